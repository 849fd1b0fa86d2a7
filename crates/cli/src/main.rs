//! `duralite`: runs programs on Duralite, shows and checks databases and their logs, and checkpoints a log back into its database. It does
//! the same for stores. The measurements and test rigs are in a command of their own, `duralite-proof`, which this command starts.
//!
//! Exit status: 0 success, 1 the command failed or `verify` found damage, 2 wrong usage. `run` and `shell` end with the program's own
//! status, or with 126 if the program cannot be run on Duralite, or with 127 if it does not exist.

mod backup;
mod checkpoint;
mod discard;
mod doctor;
mod generate;
mod holders;
mod info;
mod launch;
mod locate;
mod mode;
mod program;
mod proof;
mod reclaim;
mod run;
mod salvage;
mod store;
mod target;
mod top;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use duralite_cli::output;
use target::Target;

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
    /// The program is not changed: a library is preloaded that makes Duralite the default VFS of every SQLite that the
    /// program links dynamically. Databases in WAL mode are served; at its end the program says on standard error what
    /// became of each. A program that cannot be reached so (statically linked, with another user's rights) is not started.
    #[command(after_help = "Example:\n  duralite run --wal -- python3 app.py")]
    Run(run::Arguments),
    /// Open a database in SQLite's own shell, sqlite3, with Duralite under it
    #[command(
        after_help = "Examples:\n  duralite shell app.db\n  duralite shell app.db 'SELECT count(*) FROM t' -header"
    )]
    Shell(run::ShellArguments),
    /// Put a database into WAL mode, and say what serves it here
    #[command(after_help = "Example:\n  duralite enable --create app.db")]
    Enable(mode::EnableArguments),
    /// Take a database out of WAL mode: a plain file with a rollback journal
    #[command(after_help = "Example:\n  duralite disable app.db")]
    Disable(mode::DisableArguments),
    /// Show what this machine, and a directory on it, can give, and which settings to take
    #[command(after_help = "Example:\n  duralite doctor /srv")]
    Doctor(doctor::Arguments),
    /// Show what a database or log file is, and where its newest commits are
    #[command(
        after_help = "Examples:\n  duralite info app.db\n  duralite info --log-dir /srv/logs --json app.db"
    )]
    Info(Target),
    /// Show what the processes do that have a database open: commits, their latencies, log, checkpoints, locks
    ///
    /// Reads the memory that they share, without a lock, and keeps nobody waiting. In a terminal the view is live (q ends it); elsewhere
    /// it is written once, as with --once.
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
    /// The copy has every commit that was acknowledged when it began, and nothing later. No writer waits for it in WAL mode. OUT
    /// appears under its name when it is whole and durable; one that is there already is not touched.
    #[command(after_help = "Example:\n  duralite backup app.db \"app-$(date +%F).db\"")]
    Backup(backup::Arguments),
    /// Save what a damaged log holds into a new database; change nothing in place
    ///
    /// OUT becomes the database after the last transaction before the damage. What is whole behind the damage goes to the directory
    /// OUT-later: a file with the pages of each transaction, and transactions.txt, which lists them. Says what is missing, and
    /// runs SQLite's integrity_check on OUT: exit status 1 unless that is ok.
    #[command(after_help = "Example:\n  duralite salvage app.db saved.db")]
    Salvage(salvage::Arguments),
    /// Write a log home and make its database one plain SQLite file again
    #[command(after_help = "Examples:\n  duralite checkpoint app.db\n  duralite checkpoint --adopt copy.db")]
    Checkpoint {
        #[command(flatten)]
        target: Target,
        /// Let a copy of the original database take over its log
        #[arg(long)]
        adopt: bool,
        /// The log is lost or damaged: say which commits are lost, ask, keep copies, and go back to the last checkpoint
        #[arg(long, conflicts_with = "adopt")]
        discard_log: bool,
        /// Do not ask; and checkpoint pages with 8 reserved bytes, where a VFS such as cksumvfs may keep checksums that this does not make
        #[arg(long)]
        yes: bool,
    },
    /// Show what logs have of the regions in a directory (scratchpad), and give back what deleted ones have had
    #[command(after_help = "Example:\n  duralite reclaim /dev/shm")]
    Reclaim(reclaim::Arguments),
    /// Look at a transactional store, check it, copy its rows, back it up and restore it
    #[command(subcommand, after_help = "Example:\n  duralite store backup STORE BACKUP")]
    Store(store::Command),
    /// Measure, and reproduce the papers' tables and figures
    #[command(disable_help_flag = true)]
    Bench(proof::Arguments),
    /// Draw tables of figures as SVG or PNG
    #[command(disable_help_flag = true)]
    Chart(proof::Arguments),
    /// Trace what a command writes to the device of a database, and what for (needs root)
    #[command(disable_help_flag = true)]
    Iotrace(proof::Arguments),
    /// Look for a crash that loses an acknowledged commit
    #[command(disable_help_flag = true)]
    Crashtest(proof::Arguments),
    /// Write the man pages, or the completions of shells
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
        Command::Bench(arguments) => proof::run("bench", &arguments),
        Command::Iotrace(arguments) => proof::run("iotrace", &arguments),
        Command::Chart(arguments) => proof::run("chart", &arguments),
        Command::Crashtest(arguments) => proof::run("crashtest", &arguments),
        Command::Generate(what) => generate::run(&what, Cli::command()),
    };
    output::exit_code(result)
}
