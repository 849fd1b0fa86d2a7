//! `duralite salvage`: saves the contents of a damaged log into a new database. It changes neither the database nor the
//! log.

mod alone;
mod apart;
mod check;
mod report;
mod source;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use duralite_format::LogId;
use duralite_wal::engine::home::DatabaseAt;
use duralite_wal::engine::salvage::{self, Contents, Salvaged, Written};
use duralite_wal::{ErrorKind, LogError, placement};

use apart::Apart;
use check::check;
use duralite_cli::progress::{self, HowFar};
use duralite_cli::target::Target;
use report::Report;
use source::{Found, Source};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The database to write: a file that does not exist
    out: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { target, out } = arguments;
    let apart = Apart::beside(out)?;
    if out.symlink_metadata().is_ok() {
        bail!("{} exists already; name another file to write", out.display());
    }
    let found = source::find(target)?;
    let from = match Source::of(target, out, &found) {
        Err(error) => match (found, nothing_is_read(error)?) {
            (Found::Log(log), error) => {
                return alone::save((&target.path, &log), out, error, target.json);
            }
            (Found::Deleted(_), error) => bail!(error),
        },
        Ok(from) => from,
    };
    let file = salvage::create(out)?;
    let saved = save(&from, (&file, out), apart);
    if saved.is_err() {
        // This command has just created the file, and nothing in it is complete, so the command removes the file.
        drop(std::fs::remove_file(out));
    }
    match saved.with_context(|| from.what_stays()) {
        Err(error) if from.copied.is_none() => {
            let error = nothing_is_read(error)?;
            alone::save((&from.database, &from.log), out, error, target.json)
        }
        saved => {
            let report = saved?;
            report.print(target.json)?;
            Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// Returns the error if it means that the log is too damaged to be read at all. Fails with any other error.
fn nothing_is_read(error: anyhow::Error) -> Result<LogError> {
    let is_so = |error: &LogError| match error {
        LogError::Format { .. } => !error.is_other_version(),
        LogError::NoRegion { .. } => true,
        error => error.kind() == ErrorKind::Corrupt,
    };
    match error.downcast::<LogError>() {
        Ok(error) if is_so(&error) => Ok(error),
        Ok(error) => Err(error.into()),
        Err(error) => Err(error),
    }
}

fn save(from: &Source, (file, out): (&File, &Path), mut apart: Apart) -> Result<Report> {
    let database = DatabaseAt::new(from.database_file());
    let mut salvaged = progress::with("reading the log", HowFar::default, || {
        placement::salvage(from.log_file(), &database, &mut |transaction| apart.add(transaction))
    })?;
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
    placement::sync_names(&std::path::absolute(out)?)?;
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

/// The result of the rollback from the journal in the log: the number of restored pages, or the error.
type Journal = Result<usize, LogError>;

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
