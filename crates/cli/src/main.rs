//! `duralite`: runs programs on Duralite, shows and checks databases and their logs, and writes the pages of a log into
//! the log's database (a checkpoint). It also shows, checks, copies, backs up and restores the transactional stores of
//! the crate `duralite-store`. For measurements and test rigs it starts another program, `duralite-proof`.
//!
//! Exit status: 0 success, 1 the command failed or `verify` found damage, 2 wrong usage. `run` and `shell` end with the
//! program's own status, or with 126 if the program cannot be run on Duralite, or with 127 if it does not exist.

mod archive;
mod backup;
mod checkpoint;
mod discard;
mod doctor;
mod generate;
mod holders;
mod info;
mod launch;
mod mode;
mod program;
mod proof;
mod reclaim;
mod run;
mod salvage;
mod store;
mod top;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use duralite_cli::output;
use duralite_cli::target::Target;

#[derive(Parser)]
#[command(name = "duralite", version, about = "Durable and fast commits for stock SQLite")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program with Duralite under its SQLite
    ///
    /// This command does not change the program: it preloads a library that makes Duralite the default VFS of every SQLite
    /// that the program links dynamically. Duralite serves the databases in WAL mode. When the program ends, it prints on
    /// standard error what served each database. The command does not start a program that it cannot reach in this way
    /// (statically linked, or with another user's rights).
    #[command(after_help = "Example:\n  duralite run --wal -- python3 app.py")]
    Run(run::Arguments),
    /// Open a database in SQLite's own shell, sqlite3, with Duralite under it
    #[command(
        after_help = "Examples:\n  duralite shell app.db\n  duralite shell app.db 'SELECT count(*) FROM t' -header"
    )]
    Shell(run::ShellArguments),
    /// Put a database into WAL mode, and print which engine serves it here
    #[command(after_help = "Example:\n  duralite enable --create app.db")]
    Enable(mode::EnableArguments),
    /// Take a database out of WAL mode: a plain file with a rollback journal
    #[command(after_help = "Example:\n  duralite disable app.db")]
    Disable(mode::DisableArguments),
    /// Show what this machine and a directory on it offer, and which settings to use
    #[command(after_help = "Example:\n  duralite doctor /srv")]
    Doctor(doctor::Arguments),
    /// Show what a database or log file is, and where its newest commits are
    #[command(
        after_help = "Examples:\n  duralite info app.db\n  duralite info --log-dir /srv/logs --json app.db"
    )]
    Info(Target),
    /// Show what the processes do that have a database open: commits, latencies, log, checkpoints, locks
    ///
    /// Reads the memory that these processes share, takes no lock, and makes no process wait. In a terminal the view is live (q ends
    /// it); elsewhere the status is printed once, as with --once.
    #[command(after_help = "Examples:\n  duralite top app.db\n  duralite top --listen 127.0.0.1:9187 app.db")]
    Top(top::Arguments),
    /// Walk a log, report every transaction, and decide whether it would recover
    #[command(after_help = "Examples:\n  duralite verify app.db\n  duralite verify --frames app.db-duralite")]
    Verify {
        #[command(flatten)]
        target: Target,
        /// Report each frame, not only each transaction
        #[arg(long)]
        frames: bool,
    },
    /// Copy a database into one ordinary SQLite file, also while programs write it
    ///
    /// The copy is of one moment, and has every commit that was acknowledged when the backup began. In WAL mode no writer waits for
    /// the backup. OUT gets its name when it is complete and durable. The command never overwrites a file.
    #[command(after_help = "Example:\n  duralite backup app.db \"app-$(date +%F).db\"")]
    Backup(backup::Arguments),
    /// Save what a damaged log holds into a new database; change nothing in place
    ///
    /// OUT becomes the database after the last transaction before the damage. Transactions that are whole after the damage go to the
    /// directory OUT-later: a file with the pages of each, and transactions.txt, which lists these files. The command prints what is
    /// missing, and runs SQLite's integrity_check on OUT: the exit status is 1 unless the check reports ok.
    #[command(after_help = "Example:\n  duralite salvage app.db saved.db")]
    Salvage(salvage::Arguments),
    /// Write a log's pages to the database file, and make the database one plain SQLite file again
    #[command(after_help = "Examples:\n  duralite checkpoint app.db\n  duralite checkpoint --adopt copy.db")]
    Checkpoint {
        #[command(flatten)]
        target: Target,
        /// Let a copy of the original database take over the original's log
        #[arg(long)]
        adopt: bool,
        /// For a lost or damaged log: print which commits are lost, ask, keep copies of the files, and go back to the last checkpoint
        #[arg(long, conflicts_with = "adopt")]
        discard_log: bool,
        /// Do not ask; and checkpoint pages with 8 reserved bytes, although a VFS such as cksumvfs may keep checksums there, which this
        /// command does not compute
        #[arg(long)]
        yes: bool,
    },
    /// Show how much of the regions in a directory logs use (scratchpad), and free the space of deleted logs
    #[command(after_help = "Example:\n  duralite reclaim /dev/shm")]
    Reclaim(reclaim::Arguments),
    /// Look at a transactional store, check it, copy its rows, back it up and restore it
    #[command(subcommand, after_help = "Example:\n  duralite store backup STORE BACKUP")]
    Store(store::Command),
    /// Copy every commit of a database to an archive on an object store, while programs use the database
    #[command(disable_help_flag = true)]
    Replicate(proof::Arguments),
    /// Make a database of what an archive has, as of any moment
    #[command(disable_help_flag = true)]
    Restore(proof::Arguments),
    /// List, verify or prune an archive
    #[command(disable_help_flag = true)]
    Archive(proof::Arguments),
    /// Keep a local copy of an archive up to date, which any program reads
    #[command(disable_help_flag = true)]
    Follow(proof::Arguments),
    /// Make a standby the primary of an archive, and fence the one before
    #[command(disable_help_flag = true)]
    Promote(proof::Arguments),
    /// Measure, and reproduce the papers' tables and figures
    #[command(disable_help_flag = true)]
    Bench(proof::Arguments),
    /// Draw tables of figures as SVG or PNG
    #[command(disable_help_flag = true)]
    Chart(proof::Arguments),
    /// Trace what a command writes to the device of a database, and for which purpose (needs root)
    #[command(disable_help_flag = true)]
    Iotrace(proof::Arguments),
    /// Look for a crash that loses an acknowledged commit
    #[command(disable_help_flag = true)]
    Crashtest(proof::Arguments),
    /// Write the man pages, or the completions for shells
    #[command(
        subcommand,
        after_help = "Examples:\n  duralite generate man /usr/share/man/man1\n  duralite generate completions ."
    )]
    Generate(generate::What),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Shell(arguments) => run::shell(&arguments),
        Command::Enable(arguments) => mode::enable(&arguments),
        Command::Disable(arguments) => mode::disable(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Info(target) => info::run(&target),
        Command::Top(arguments) => top::run(arguments),
        Command::Verify { target, frames } => verify::run(&target, frames),
        Command::Salvage(arguments) => salvage::run(&arguments),
        Command::Backup(arguments) => backup::run(&arguments),
        Command::Checkpoint { target, adopt, discard_log, yes } => {
            checkpoint::run(&target, checkpoint::Wanted { adopt, discard_log, yes })
        }
        Command::Reclaim(arguments) => reclaim::run(&arguments),
        Command::Store(command) => store::run(&command),
        Command::Replicate(arguments) => archive::run(&["replicate"], &arguments),
        Command::Restore(arguments) => archive::run(&["restore"], &arguments),
        Command::Archive(arguments) => archive::run(&[], &arguments),
        Command::Follow(arguments) => archive::run(&["follow"], &arguments),
        Command::Promote(arguments) => archive::run(&["promote"], &arguments),
        Command::Bench(arguments) => proof::run("bench", &arguments),
        Command::Iotrace(arguments) => proof::run("iotrace", &arguments),
        Command::Chart(arguments) => proof::run("chart", &arguments),
        Command::Crashtest(arguments) => proof::run("crashtest", &arguments),
        Command::Generate(what) => generate::run(&what, Cli::command()),
    };
    output::exit_code(result)
}
