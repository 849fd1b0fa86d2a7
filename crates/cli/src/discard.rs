//! `duralite checkpoint --discard-log`: gives up a log that is lost or damaged.
//!
//! Discarding loses commits, so the command takes these steps in order. First it searches for the log in directories
//! that no setting names. Then it tells the user which commits are lost, and asks for consent. Then it copies the
//! database file and what is left of the log. Finally it removes the guard from the database's header, so that SQLite
//! opens the database again.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use chrono::DateTime;
use duralite_cli::progress::{self, HowFar};
use duralite_format::LogId;
use duralite_format::guard::DatabaseHeader;
use duralite_wal::engine::home::DatabaseAt;
use duralite_wal::engine::salvage::Salvaged;
use duralite_wal::log::offline;
use duralite_wal::placement::{self, sync_names};
use rusqlite::{Connection, OpenFlags};

use duralite_cli::locate;
use duralite_cli::target::Target;

/// Directories that the command searches for a log that is in none of the usual places. It also searches the
/// directories around the database.
const ROOTS: [&str; 10] =
    ["/dev/shm", "/mnt", "/media", "/srv", "/var", "/tmp", "/run", "/home", "/opt", "/root"];
/// The longest time that the search may take. `DEPTH` is the number of directory levels that it visits below each root.
const LONGEST: Duration = Duration::from_secs(5);
const DEPTH: u32 = 4;

/// The log to give up.
pub(crate) struct Lost {
    /// The database's header, as the command read it when it found that the log is lost.
    pub(crate) header: DatabaseHeader,
    /// The id of the log that the database names, if the header can be read.
    pub(crate) id: Option<LogId>,
    /// The log's path, if the log exists and is damaged.
    pub(crate) damaged: Option<PathBuf>,
}

/// Tells the user which commits are lost, asks for consent, copies the files, and removes the guard from the database's
/// header. Returns the text to print at the end.
///
/// # Errors
/// The search finds the log, so that no commit is lost; the user does not consent; `Busy` if a process has the database
/// open, or has changed the database's guard since the command read the header.
pub(crate) fn discard(target: &Target, lost: &Lost, yes: bool) -> Result<String> {
    let database = &target.path;
    // Check this before asking for consent. Otherwise the user might consent in vain, because the command could not go
    // on.
    if !offline::is_unused(database)? {
        bail!("{}: a process has the database open; close it first", database.display());
    }
    if let (Some(id), None) = (lost.id, &lost.damaged)
        && let Some(log) = search(database, id)
    {
        let dir = log.parent().unwrap_or(Path::new("/"));
        bail!(
            "the log is not lost: it is {}; `duralite checkpoint --log-dir {} {}` writes its pages to the \
             database file",
            log.display(),
            dir.display(),
            database.display()
        );
    }
    let losses = losses(target, lost)?;
    eprintln!("{losses}");
    consent(yes)?;
    let mut kept = vec![keep(database)?];
    for log in remains(target, lost) {
        kept.push(keep(&log)?);
    }
    offline::discard_log(database, lost.header)?;
    let kept: Vec<_> = kept.iter().map(|path| path.display().to_string()).collect();
    Ok(format!(
        "guard lifted; copies of the files as they were: {}; check the database with PRAGMA integrity_check",
        kept.join(", ")
    ))
}

/// Describes the commits that will be lost.
fn losses(target: &Target, lost: &Lost) -> Result<String> {
    let database = &target.path;
    let mut text = format!(
        "{} goes back to its last checkpoint. The file was last written at {}.",
        database.display(),
        when(database)
    );
    let Some(log) = &lost.damaged else {
        let id = lost.id.map_or_else(|| "not known".to_owned(), |id| id.to_string());
        let dirs: Vec<_> = locate::candidates(target).iter().map(|dir| dir.display().to_string()).collect();
        text.push_str(&format!(
            "\n\
             Every commit since then is lost. How many, until when, and of which tables is unknown: their \
             log ({id}) was not found in {}, nor in {}. If the log is on a disk that is not mounted, or in a \
             backup, bring it back instead.",
            dirs.join(", "),
            ROOTS.join(", ")
        ));
        return Ok(text);
    };
    text.push('\n');
    text.push_str(&of_damaged(database, log));
    Ok(text)
}

/// Describes the commits that are lost with a damaged log, and how to save the transactions that are whole.
fn of_damaged(database: &Path, log: &Path) -> String {
    let (mut pages, mut newest) = (BTreeSet::new(), 0);
    let salvaged = progress::with("reading the log", HowFar::default, || {
        placement::salvage(log, &DatabaseAt::new(database), &mut |later| {
            newest = newest.max(later.time_ms);
            pages.extend(later.pages.iter().map(|page| page.page_number));
            Ok(())
        })
    });
    let (log, until) = (log.display(), when(log));
    let salvaged = match salvaged {
        Ok(salvaged) => salvaged,
        Err(error) => {
            return format!(
                "The commits since then, until {until}, are lost with {log}. How many and of which tables is \
                 unknown: nothing of the log can be read ({error})."
            );
        }
    };
    pages.extend(&salvaged.pages);
    let Salvaged { point, damage, later, missing, .. } = &salvaged;
    let why = damage.as_ref().map_or_else(
        || "its pages do not match their checksums".to_owned(),
        |damage| damage.error.to_string().split("; ").next().unwrap_or_default().to_owned(),
    );
    let at =
        |time_ms: u64| if time_ms > 0 { format!(", the last of {}", utc(time_ms)) } else { String::new() };
    let missing = missing.map_or_else(|| "an unknown number".to_owned(), |missing| missing.to_string());
    let mut text = format!(
        "All transactions until {until} that no checkpoint has written to the database file are lost. In \
         {log}, {} transactions are whole before the damage ({why}){}, {missing} are missing in the damage, \
         and {later} are whole after it{}.",
        point.transactions,
        at(point.time_ms),
        at(newest),
    );
    if !pages.is_empty() {
        let tables = tables(database, &pages).unwrap_or_else(|_| format!("{} pages", pages.len()));
        text.push_str(&format!(" The whole transactions changed {tables}."));
    }
    let database = database.display();
    text.push_str(&format!(" First save the whole transactions: `duralite salvage {database} OUT`."));
    text
}

/// Returns the names of the tables and indexes to which these pages belonged at the last checkpoint.
fn tables(database: &Path, pages: &BTreeSet<u32>) -> Result<String> {
    let parent = database.canonicalize()?.parent().map(Path::to_path_buf).unwrap_or_default();
    // SQLite does not open a database with a guard, so this function removes the guard from a copy of the database.
    let copy = tempfile::Builder::new().prefix(".duralite-look-").tempfile_in(parent)?;
    fs::copy(database, copy.path())?;
    offline::discard_log(copy.path(), offline::inspect(copy.path())?)?;
    let uri = duralite::uri(copy.path(), &[("immutable", "1"), ("strict", "off")]);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let conn = Connection::open_with_flags(uri.replacen("vfs=duralite", "vfs=unix", 1), flags)?;
    let mut rows = conn.prepare("SELECT name, pageno FROM dbstat")?;
    let rows = rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?)))?;
    let (mut names, mut new) = (BTreeSet::new(), pages.clone());
    for row in rows {
        let (name, page) = row?;
        if new.remove(&page) {
            names.insert(name);
        }
    }
    let names: Vec<_> = names.into_iter().collect();
    Ok(format!("{} and {} pages that are new since then", names.join(", "), new.len()))
}

/// Returns when the file was last written, in UTC.
fn when(path: &Path) -> String {
    let modified = fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    since.map_or_else(|| "an unknown time".to_owned(), |since| utc(since.as_millis() as u64))
}

/// Returns a time in UTC, from milliseconds since 1970.
fn utc(time_ms: u64) -> String {
    let time = i64::try_from(time_ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(|| "an unknown time".to_owned(), |time| time.format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn consent(yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        bail!("nothing was changed; to go back without being asked, add --yes");
    }
    eprint!("Give these commits up? Type yes: ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if answer.trim() != "yes" {
        bail!("nothing was changed");
    }
    Ok(())
}

/// Returns the files that may hold parts of the log: the damaged log, and files with the log's name in the usual
/// directories.
fn remains(target: &Target, lost: &Lost) -> Vec<PathBuf> {
    let mut found: BTreeSet<PathBuf> = lost.damaged.iter().cloned().collect();
    if let Some(name) = target.path.file_name() {
        let names = log_names(name, lost.id);
        let paths = locate::candidates(target)
            .into_iter()
            .flat_map(|dir| names.iter().map(move |name| dir.join(name)).collect::<Vec<_>>());
        found.extend(paths.filter(|path| path.is_file()));
    }
    found.into_iter().collect()
}

fn log_names(database: &std::ffi::OsStr, id: Option<LogId>) -> Vec<OsString> {
    let mut plain = database.to_owned();
    plain.push("-duralite");
    let with_id = id.map(|id| {
        let mut name = plain.clone();
        name.push(format!("-{id}"));
        name
    });
    with_id.into_iter().chain([plain]).collect()
}

/// Copies a file, in the same directory, under a name that is not in use. When this function returns, the copy and its
/// name are durable.
fn keep(path: &Path) -> Result<PathBuf> {
    let failed = || format!("keep a copy of {}", path.display());
    for number in 1..1000 {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".before-discard-{number}"));
        let copy = PathBuf::from(name);
        match File::create_new(&copy) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            made => drop(made.with_context(failed)?),
        }
        progress::with("keeping a copy", HowFar::default, || fs::copy(path, &copy)).with_context(failed)?;
        File::open(&copy).and_then(|file| file.sync_all()).with_context(failed)?;
        sync_names(&copy)?;
        return Ok(copy);
    }
    bail!("{} has too many copies already", path.display())
}

/// Searches for the log with this id, in directories that no setting names.
fn search(database: &Path, id: LogId) -> Option<PathBuf> {
    let near = database.canonicalize().ok();
    let near = near.iter().flat_map(|path| path.ancestors().skip(1).take(3));
    let roots = near.filter(|dir| dir.parent().is_some()).map(Path::to_path_buf);
    let roots: Vec<_> = roots.chain(ROOTS.iter().map(PathBuf::from)).collect();
    let deadline = Instant::now() + LONGEST;
    progress::with("looking for the log", HowFar::default, || {
        roots.iter().find_map(|root| search_below(root, id, DEPTH, deadline))
    })
}

fn search_below(dir: &Path, id: LogId, depth: u32, deadline: Instant) -> Option<PathBuf> {
    let mut below = Vec::new();
    for entry in fs::read_dir(dir).ok()?.flatten() {
        if Instant::now() > deadline {
            return None;
        }
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        let is_named = || entry.file_name().as_bytes().windows(9).any(|word| word == b"-duralite");
        if kind.is_file() && is_named() && placement::describe(&path).is_ok_and(|about| about.id == id) {
            return Some(path);
        }
        if kind.is_dir() && depth > 0 {
            below.push(path);
        }
    }
    below.iter().find_map(|dir| search_below(dir, id, depth - 1, deadline))
}
