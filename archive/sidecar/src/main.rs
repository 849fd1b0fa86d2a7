//! `duralite-archive` works with archives of databases on object stores. `duralite replicate`, `restore`, `archive`,
//! `follow` and `promote` start this program. So `duralite` itself needs no code for networks.
//!
//! Exit status: 0 success, 1 the command failed or `verify` found damage, 2 wrong usage.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand};
use duralite_archive::{
    Archive, Generation, Line, Missing, Owner, Policy, Progress, Report, RestoreOptions, Retry, Target,
    random_token,
};
use duralite_cli::output::{exit_code, print_json, print_text};
use duralite_cli::progress::{self, HowFar};
use duralite_sidecar::config::{self, Database};
use duralite_sidecar::replica::Replica;
use duralite_sidecar::replicate::{Replicator, Until, is_temporary};
use duralite_sidecar::{hold, promote};
use tokio::runtime::Runtime;

#[derive(Parser)]
#[command(name = "duralite-archive", version, about = "The archive of databases on object stores")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Copy every commit of a database to an archive, while programs use the database
    ///
    /// With --config, one process does this for all databases of a file. Credentials come from the environment
    /// (AWS_ACCESS_KEY_ID and its like).
    #[command(
        after_help = "Examples:\n  duralite replicate app.db s3://bucket/app?region=eu-central-1\n  duralite replicate --config /etc/duralite.toml"
    )]
    Replicate(Replicate),
    /// Make a database of what an archive has
    #[command(after_help = "Example:\n  duralite restore s3://bucket/app app.db --to 2026-11-26T12:00:00Z")]
    Restore(Restore),
    /// Show what can be restored from an archive
    List(Place),
    /// Fetch and check every object of an archive
    Verify(Verify),
    /// Delete what need not be kept any longer
    Prune(Prune),
    /// Keep a local copy of an archive up to date, which any program reads as an ordinary database
    #[command(after_help = "Example:\n  duralite follow s3://bucket/app replica.db")]
    Follow(Follow),
    /// Make a standby, or a new file, the primary of an archive, and fence the one before
    #[command(after_help = "Example:\n  duralite promote s3://bucket/app app.db")]
    Promote(Promote),
    /// Try whether an object store can hold an archive
    Probe(Place),
    /// Hold a snapshot of a database, for the process that has started this one
    #[command(hide = true)]
    Hold {
        database: PathBuf,
        #[arg(long = "set", value_parser = pair)]
        settings: Vec<(String, String)>,
    },
}

#[derive(Args)]
struct Place {
    /// The archive
    url: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Replicate {
    /// The database
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    database: Option<PathBuf>,
    /// The archive; if left out, the one that `duralite enable --archive` has set
    #[arg(conflicts_with = "config")]
    url: Option<String>,
    /// A file that lists databases and their archives
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// End when everything committed is in the archive
    #[arg(long)]
    once: bool,
    /// How long commits are collected before they are uploaded, if none of them waits
    #[arg(long, value_name = "TIME", default_value_t = config::INTERVAL.into())]
    interval: humantime::Duration,
    /// How often a snapshot is uploaded
    #[arg(long, value_name = "TIME", default_value_t = config::SNAPSHOT_EVERY.into())]
    snapshot_every: humantime::Duration,
    /// How long every moment is kept
    #[arg(long, value_name = "TIME", default_value_t = config::KEEP.into())]
    keep: humantime::Duration,
    /// The most bytes of the database that a snapshot reads in a second
    #[arg(long, value_name = "BYTES")]
    limit: Option<u64>,
    #[command(flatten)]
    opening: Opening,
}

/// How the database is opened.
#[derive(Args)]
struct Opening {
    /// Directory with the log, if it is none of the usual places
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Directory with the log in NVRAM, if it is none of the usual places
    #[arg(long, value_name = "DIR", env = "DURALITE_NVRAM_DIR")]
    nvram_dir: Option<PathBuf>,
    /// A setting with which the database is opened; may be given several times
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
}

#[derive(Args)]
struct Moment {
    /// The newest moment that is not after this time, such as 2026-11-26T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<i64>,
    /// The moment after this transaction
    #[arg(long, value_name = "N", conflicts_with = "to")]
    txid: Option<u64>,
}

impl Moment {
    fn target(&self) -> Target {
        match (self.to, self.txid) {
            (Some(time_ms), _) => Target::Time(time_ms),
            (_, Some(txid)) => Target::Txid(txid),
            _ => Target::Latest,
        }
    }
}

#[derive(Args)]
struct Restore {
    /// The archive, or what Litestream has made
    url: String,
    /// The database: a file that does not exist yet
    out: PathBuf,
    #[command(flatten)]
    moment: Moment,
    /// Requests at a time for large objects, or eight times as many for small ones
    #[arg(long, value_name = "N", default_value_t = 8)]
    parallel: usize,
    /// Run SQLite's integrity_check before the database gets its name
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Verify {
    #[command(flatten)]
    place: Place,
    /// Requests at a time for large objects, or eight times as many for small ones
    #[arg(long, value_name = "N", default_value_t = 8)]
    parallel: usize,
}

#[derive(Args)]
struct Prune {
    #[command(flatten)]
    place: Place,
    /// How long every moment is kept
    #[arg(long, value_name = "TIME", default_value_t = config::KEEP.into())]
    keep: humantime::Duration,
    /// Only show what would be deleted
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
struct Follow {
    /// The archive
    url: String,
    /// The copy
    replica: PathBuf,
    #[command(flatten)]
    moment: Moment,
    /// End when the copy has what the archive has
    #[arg(long)]
    once: bool,
    /// How often the archive is asked
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
}

#[derive(Args)]
struct Promote {
    /// The archive
    url: String,
    /// The database: a copy that `duralite follow` has made, or a file that does not exist yet
    database: PathBuf,
    #[command(flatten)]
    opening: Opening,
}

impl Opening {
    fn of(self, path: PathBuf) -> Database {
        Database {
            log_dir: self.log_dir,
            nvram_dir: self.nvram_dir,
            settings: self.settings.into_iter().collect(),
            ..Database::new(path)
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is written as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses a time as people write it. Returns it in milliseconds since 1970.
fn time(text: &str) -> Result<i64, String> {
    let time = humantime::parse_rfc3339_weak(text).map_err(|error| error.to_string())?;
    let since = time.duration_since(std::time::UNIX_EPOCH).map_err(|error| error.to_string())?;
    i64::try_from(since.as_millis()).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    exit_code(run(Cli::parse().command))
}

fn run(command: Command) -> Result<ExitCode> {
    if let Command::Hold { database, settings } = command {
        hold::run(&database, &settings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match command {
        Command::Replicate(arguments) => replicate(&runtime, arguments)?,
        Command::Restore(arguments) => return restore(&runtime, &arguments),
        Command::List(place) => list(&runtime, &place)?,
        Command::Verify(arguments) => return verify(&runtime, &arguments),
        Command::Prune(arguments) => prune(&runtime, &arguments)?,
        Command::Follow(arguments) => follow(&runtime, &arguments)?,
        Command::Promote(arguments) => {
            promote::run(runtime.handle(), &arguments.url, arguments.opening.of(arguments.database))?
        }
        Command::Probe(place) => {
            let owner = Owner { token: random_token()?, node: String::new(), retry: Retry::default() };
            runtime.block_on(open(&place.url)?.probe(&owner))?;
            print_text("the object store can hold an archive\n")?;
        }
        Command::Hold { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn open(url: &str) -> Result<Archive> {
    Ok(Archive::open(&url.parse()?)?)
}

/// Returns a flag that a signal handler sets when the user or the system asks this process to end.
fn stopped() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn replicate(runtime: &Runtime, arguments: Replicate) -> Result<()> {
    let databases = match (arguments.config, arguments.database) {
        (Some(config), _) => config::read(&config)?,
        (None, Some(path)) => vec![Database {
            archive: arguments.url,
            interval: arguments.interval.into(),
            snapshot_every: arguments.snapshot_every.into(),
            keep: arguments.keep.into(),
            limit: arguments.limit,
            ..arguments.opening.of(path)
        }],
        (None, None) => bail!("no database"),
    };
    let stop = stopped()?;
    let until = if arguments.once { Until::Drained } else { Until::Stopped };
    let mut replicators = Vec::new();
    for database in databases {
        let path = database.path.clone();
        let replicator = Replicator::new(database, runtime.handle().clone(), Arc::clone(&stop), until);
        replicators.push((path.clone(), replicator.with_context(|| path.display().to_string())?));
    }
    // If the replication of one database fails, the others continue. The exit status then reports the failure.
    let threads: Vec<_> = replicators
        .into_iter()
        .map(|(path, mut replicator)| {
            let name = path.display().to_string();
            let thread = std::thread::Builder::new().spawn(move || {
                replicator.run().with_context(|| path.display().to_string()).inspect_err(|error| {
                    eprintln!("duralite-archive: {error:#}");
                })
            });
            (name, thread)
        })
        .collect();
    let mut failed = Vec::new();
    for (name, thread) in threads {
        if !thread?.join().is_ok_and(|result| result.is_ok()) {
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("not replicated any longer: {}", failed.join(", ")) }
}

/// Calls `work`, and shows the progress that it reports, if standard error is a terminal.
fn shown<T>(what: &str, work: impl FnOnce(Report) -> Result<T>) -> Result<T> {
    let seen: Arc<std::sync::Mutex<Progress>> = Arc::default();
    let since = std::time::Instant::now();
    let told = Arc::clone(&seen);
    let report: Report = Arc::new(move |progress| {
        if let Ok(mut seen) = told.lock() {
            *seen = progress;
        }
    });
    let how_far = || {
        let Progress { bytes, of_bytes, .. } = seen.lock().map(|seen| *seen).unwrap_or_default();
        let rate = bytes as f64 / since.elapsed().as_secs_f64().max(0.001) / 1e6;
        let text = format!("{:.1} of {:.1} MB, {rate:.1} MB/s", bytes as f64 / 1e6, of_bytes as f64 / 1e6);
        HowFar { part: Some((bytes, of_bytes)), text }
    };
    progress::with(what, how_far, || work(report))
}

fn restore(runtime: &Runtime, arguments: &Restore) -> Result<ExitCode> {
    let archive = open(&arguments.url)?;
    let restored = shown("restoring", |report| {
        let options = RestoreOptions { parallel: arguments.parallel, report: Some(report) };
        Ok(runtime.block_on(archive.restore(arguments.moment.target(), &arguments.out, &options))?)
    })?;
    if arguments.check {
        check(restored.path())?;
    }
    let (txid, time_ms, pages, page_size) =
        (restored.txid, restored.time_ms, restored.pages, restored.page_size);
    restored.place()?;
    if arguments.json {
        let out = arguments.out.display().to_string();
        print_json(
            &serde_json::json!({ "outcome": "restored", "database": out, "txid": txid, "time_ms": time_ms, "pages": pages, "page_size": page_size }),
        )?;
    } else {
        print_text(&format!(
            "{} is the database after transaction {txid} of {}: {pages} pages of {page_size} bytes\n",
            arguments.out.display(),
            moment(time_ms)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs SQLite's integrity check on a database that nobody else uses. The check does not write to the database.
fn check(database: &std::path::Path) -> Result<()> {
    let uri = duralite::uri(
        std::path::absolute(database)?,
        &[("immutable", "1"), ("mode", "ro"), ("strict", "off")],
    )
    .replacen("vfs=duralite", "vfs=unix", 1);
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_URI;
    let connection = rusqlite::Connection::open_with_flags(uri, flags)?;
    let said: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if said != "ok" {
        bail!("SQLite's integrity_check says: {said}; nothing was restored");
    }
    Ok(())
}

fn moment(time_ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(time_ms).unwrap_or(0));
    humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + since).to_string()
}

fn list(runtime: &Runtime, place: &Place) -> Result<()> {
    let listed = runtime.block_on(open(&place.url)?.listed())?;
    if place.json {
        let rows: Vec<serde_json::Value> = listed
            .iter()
            .map(|one| {
                let of = |moment: &Option<duralite_archive::Moment>| {
                    moment.map(|moment| serde_json::json!({ "txid": moment.txid, "time_ms": moment.time_ms }))
                };
                serde_json::json!({
                    "generation": one.generation.map(|generation| generation.to_string()),
                    "url": replica_url(&place.url, one.generation),
                    "line": one.start.as_ref().map(|start| start.line),
                    "counts": one.counts,
                    "node": one.claim.as_ref().map(|claim| claim.node.clone()),
                    "first": of(&one.first),
                    "last": of(&one.last),
                    "states": one.states,
                    "snapshots": one.snapshots,
                    "missing": one.missing.iter().map(in_words).collect::<Vec<_>>(),
                    "bytes": one.bytes(),
                })
            })
            .collect();
        return print_json(&serde_json::Value::Array(rows));
    }
    let mut text = String::new();
    for one in &listed {
        let line = match (&one.start, one.counts) {
            (Some(start), true) => match start.line {
                Line::First => "the first",
                Line::Continues => "continues the one below",
                Line::Gap => "the same database; transactions before it are not in the archive",
                Line::Other => "another line: the database was changed without the archive",
            },
            (Some(_), false) => "given up: a later generation does not continue it",
            (None, _) => "not begun",
        };
        text += &match one.generation {
            Some(generation) => {
                let url = replica_url(&place.url, one.generation);
                format!("generation {generation}: {line}\n  restore it by itself: {url}\n")
            }
            None => "made by Litestream\n".to_owned(),
        };
        match (&one.first, &one.last) {
            (Some(first), Some(last)) => {
                text += &format!(
                    "  from {first} to {last}: {} states, {:.1} MB\n",
                    one.states,
                    one.bytes() as f64 / 1e6
                )
            }
            _ => text += "  nothing of it can be restored\n",
        }
        for missing in &one.missing {
            text += &format!("  missing: {}\n", in_words(missing));
        }
    }
    print_text(&text)
}

fn in_words(missing: &Missing) -> String {
    format!("transactions {} to {}", missing.first, missing.last)
}

/// Returns the URL of one generation. Litestream can restore from this URL too.
fn replica_url(url: &str, generation: Option<Generation>) -> String {
    let Some(generation) = generation else { return url.to_owned() };
    let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    format!("{}/g{generation}{query}", path.trim_end_matches('/'))
}

fn verify(runtime: &Runtime, arguments: &Verify) -> Result<ExitCode> {
    let archive = open(&arguments.place.url)?;
    let verified =
        shown("verifying", |report| Ok(runtime.block_on(archive.verify(arguments.parallel, Some(report)))?))?;
    let is_sound = verified.is_sound();
    if arguments.place.json {
        print_json(&serde_json::json!({
            "sound": is_sound,
            "objects": verified.objects,
            "bytes": verified.bytes,
            "findings": verified.findings.iter().map(|found| serde_json::json!({ "key": found.key, "what": found.what })).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut text =
            format!("{} objects, {:.1} MB checked\n", verified.objects, verified.bytes as f64 / 1e6);
        for found in &verified.findings {
            text += &format!("damaged: {}: {}\n", found.key, found.what);
        }
        for intact in &verified.intact {
            let name = intact
                .generation
                .map_or_else(|| "the archive".to_owned(), |generation| format!("generation {generation}"));
            text += &match (intact.first, intact.last) {
                (Some(first), Some(last)) => format!(
                    "{name}: {} states can be restored, transactions {first} to {last}\n",
                    intact.states
                ),
                _ => format!("{name}: nothing can be restored\n"),
            };
            for missing in &intact.missing {
                text += &format!("{name}: missing: {}\n", in_words(missing));
            }
        }
        print_text(&text)?;
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn prune(runtime: &Runtime, arguments: &Prune) -> Result<()> {
    let archive = open(&arguments.place.url)?;
    let policy = Policy { keep: arguments.keep.into(), ..Policy::default() };
    let pruned = runtime.block_on(archive.prune(&policy, &Retry::default(), arguments.dry_run))?;
    let Some(pruned) = pruned else { bail!("a new primary is taking the archive over; nothing was deleted") };
    let done = if arguments.dry_run { "would be deleted" } else { "were deleted" };
    if arguments.place.json {
        return print_json(
            &serde_json::json!({ "objects": pruned.objects.len(), "bytes": pruned.bytes, "deleted": !arguments.dry_run }),
        );
    }
    print_text(&format!("{} objects of {:.1} MB {done}\n", pruned.objects.len(), pruned.bytes as f64 / 1e6))
}

fn follow(runtime: &Runtime, arguments: &Follow) -> Result<()> {
    let (archive, stop) = (open(&arguments.url)?, stopped()?);
    let target = arguments.moment.target();
    let mut replica = Replica::open(runtime.handle(), &archive, &arguments.url, &arguments.replica, target)?;
    if target != Target::Latest {
        replica.move_to(runtime.handle(), &archive, target)?;
        return print_text(&format!(
            "{} is the database after transaction {}\n",
            arguments.replica.display(),
            replica.txid()
        ));
    }
    while !stop.load(Ordering::Relaxed) {
        match replica.catch_up(runtime.handle(), &archive, &stop) {
            Ok(Some(0)) if arguments.once => break,
            Ok(Some(applied)) if applied > 0 => continue,
            Ok(_) => {}
            Err(error) if !arguments.once && is_temporary(&error) => {
                eprintln!("duralite-archive: {error:#}; it is tried again");
            }
            Err(error) => return Err(error),
        }
        wait(arguments.interval, &stop);
    }
    print_text(&format!(
        "{} has everything up to transaction {}\n",
        arguments.replica.display(),
        replica.txid()
    ))
}

/// Sleeps for `time`, but returns soon after the process was asked to end.
fn wait(time: Duration, stop: &AtomicBool) {
    let since = std::time::Instant::now();
    while since.elapsed() < time && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(time.saturating_sub(since.elapsed()).min(Duration::from_millis(100)));
    }
}
