//! `duralite salvage`: what a damaged log holds, into a new database; nothing is changed in place.

mod apart;
mod report;
mod source;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use duralite_journal::home::DatabaseAt;
use duralite_journal::salvage::{self, Contents, Salvaged, Written};
use duralite_journal::{JournalError, directory};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::{DatabaseHeader, HEADER_BYTES, inspect};

use crate::program;
use crate::run::SHELL;
use crate::target::Target;
use apart::Apart;
use duralite_cli::progress::{self, HowFar};
use report::Report;
use source::Source;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The database to write: a file that is not there
    out: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { target, out } = arguments;
    let apart = Apart::beside(out)?;
    if out.symlink_metadata().is_ok() {
        bail!("{} is there already; name another file to write", out.display());
    }
    let from = Source::of(target, out)?;
    let file = salvage::create(out)?;
    let saved = save(&from, (&file, out), apart);
    if saved.is_err() {
        // It was made just now, and holds nothing whole.
        drop(std::fs::remove_file(out));
    }
    let report = saved.with_context(|| from.what_stays())?;
    report.print(target.json)?;
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn save(from: &Source, (file, out): (&File, &Path), mut apart: Apart) -> Result<Report> {
    let database = DatabaseAt::new(from.database_file());
    let mut salvaged = progress::with("reading the log", HowFar::default, || {
        directory::salvage(from.log_file(), &database, &mut |transaction| apart.add(transaction))
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
    from.check_unchanged()?;
    directory::sync_names(&std::path::absolute(out)?)?;
    let (apart, listed) = apart.finish(&salvaged)?;
    Ok(Report {
        database: from.database.clone(),
        log: from.log.clone(),
        engine: from.engine.name,
        copied: from.copied.as_ref().map(|copied| (copied.process(), copied.log.clone())),
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
fn hint(error: JournalError, from: &Source) -> anyhow::Error {
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
