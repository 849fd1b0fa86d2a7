//! `duralite salvage`: what a damaged log holds, into a new database; nothing is changed in place.

mod apart;
mod report;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use duralite_journal::home::DatabaseAt;
use duralite_journal::salvage::{self, Contents, Salvaged, Written};
use duralite_journal::{JournalError, directory, offline};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::{DatabaseHeader, HEADER_BYTES, inspect};

use crate::locate;
use crate::program;
use crate::run::SHELL;
use crate::target::Target;
use apart::Apart;
use duralite_cli::progress::{self, HowFar};
use report::Report;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The database to write: a file that is not there
    out: PathBuf,
}

/// What is saved, and from where.
struct From {
    database: PathBuf,
    log: PathBuf,
    id: LogId,
    engine: &'static str,
}

impl From {
    fn of(target: &Target) -> Result<Self> {
        let log = log_file(target)?;
        let about = directory::describe(&log)?;
        let database = if log == target.path {
            // Where it was made for, or beside the log, should both have been moved.
            let beside = log.parent().map(|dir| dir.join(about.database.file_name().unwrap_or_default()));
            let places = [Some(about.database.clone()), beside];
            let found = places.into_iter().flatten().find(|database| database.exists());
            found.with_context(|| format!("the database {} is not there", about.database.display()))?
        } else {
            target.path.clone()
        };
        Ok(Self { database, log, id: about.id, engine: about.engine.name })
    }
}

fn log_file(target: &Target) -> Result<PathBuf> {
    if locate::is_log(&target.path) {
        return Ok(target.path.clone());
    }
    match offline::inspect(&target.path)? {
        header @ (DatabaseHeader::Plain { .. } | DatabaseHeader::Empty) => {
            let path = target.path.display();
            bail!("{path} has no log to save anything from: it is {}", locate::describe(header))
        }
        header @ (DatabaseHeader::Damaged | DatabaseHeader::NotSqlite) => {
            let said = || format!("{} is {}", target.path.display(), locate::describe(header));
            locate::find_by_owner(target).map(|log| log.path).with_context(said)
        }
        DatabaseHeader::Guarded { .. } => locate::log_file(target),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { target, out } = arguments;
    let from = From::of(target)?;
    let apart = Apart::beside(out)?;
    let file = salvage::create(out)?;
    let saved = save(&from, (&file, out), apart);
    if saved.is_err() {
        // It was made just now, and holds nothing whole.
        drop(std::fs::remove_file(out));
    }
    let report = saved?;
    report.print(target.json)?;
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn save(from: &From, (file, out): (&File, &Path), mut apart: Apart) -> Result<Report> {
    let database = DatabaseAt::new(&from.database);
    let mut salvaged = progress::with("reading the log", HowFar::default, || {
        directory::salvage(&from.log, &database, &mut |transaction| apart.add(transaction))
    })
    .map_err(|error| hint(error, from))?;
    let mut contents = Contents::BeforeDamage;
    let (mut written, mut journal) = write(&mut salvaged, &database, (file, out), contents, from.id)?;
    let mut integrity = check(out)?;
    let before = integrity.clone();
    let is_ok = |integrity: &Option<String>| integrity.as_deref() == Some("ok");
    let may_be_ahead = salvaged.damage.is_some() && salvaged.checkpointed.is_some();
    if !is_ok(&integrity) && integrity.is_some() && may_be_ahead {
        contents = Contents::FileAlone;
        (written, journal) = write(&mut salvaged, &database, (file, out), contents, from.id)?;
        integrity = check(out)?;
        if !is_ok(&integrity) {
            contents = Contents::BeforeDamage;
            (written, journal) = write(&mut salvaged, &database, (file, out), contents, from.id)?;
            integrity = before;
        }
    }
    directory::sync_names(&std::path::absolute(out)?)?;
    let (apart, listed) = apart.finish(&salvaged)?;
    Ok(Report {
        database: from.database.clone(),
        log: from.log.clone(),
        engine: from.engine,
        out: out.to_path_buf(),
        salvaged,
        contents,
        written,
        journal,
        integrity,
        apart,
        listed,
    })
}

/// What the rollback journal in the log came to: how many pages, or why not.
type Journal = Result<usize, JournalError>;

fn write(
    salvaged: &mut Salvaged,
    database: &DatabaseAt,
    (file, out): (&File, &Path),
    contents: Contents,
    id: LogId,
) -> Result<(Written, Journal)> {
    let written =
        progress::with("writing", HowFar::default, || salvaged.write(database, (file, out), contents))?;
    Ok((written, salvaged.roll_back((file, out), id)))
}

/// Where nothing at all can be read of a log, the database file is all that there is.
fn hint(error: JournalError, from: &From) -> anyhow::Error {
    let database = from.database.display();
    let what = format!(
        "nothing can be read of {}; what the last checkpoint left is in {database}: copy it, move the log away, and \
         `duralite checkpoint --discard-log COPY`",
        from.log.display()
    );
    anyhow::Error::new(error).context(what)
}

/// What SQLite's own check says of a database; `None` where there is no shell to ask.
fn check(out: &Path) -> Result<Option<String>> {
    let mut header = [0; HEADER_BYTES];
    let is_database = File::open(out).and_then(|mut file| {
        use std::io::Read as _;
        file.read_exact(&mut header)
    });
    if is_database.is_err() || !matches!(inspect(&header), DatabaseHeader::Plain { .. }) {
        return Ok(Some("it is no SQLite database".to_owned()));
    }
    let Ok(shell) = program::find(SHELL.as_ref()) else { return Ok(None) };
    // Else a database in WAL mode would get files beside it.
    let name = uri_of(&std::path::absolute(out)?);
    let output = Command::new(shell)
        .args(["-batch", "-init", "/dev/null"])
        .arg(name)
        .arg("PRAGMA integrity_check(20)")
        .output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok(Some(String::from_utf8_lossy(&said).trim().to_owned()))
}

fn uri_of(path: &Path) -> std::ffi::OsString {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let mut uri = b"file:".to_vec();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'%' | b'?' | b'#' => uri.extend(format!("%{byte:02x}").bytes()),
            byte => uri.push(*byte),
        }
    }
    uri.extend(b"?immutable=1");
    std::ffi::OsString::from_vec(uri)
}
