//! `duralite enable` and `disable`: change the journal mode of a database.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use duralite_cli::output::print_text;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::archive;
use crate::launch::{self, Orders, Settings};
use crate::run::SHELL;

#[derive(Args)]
pub(crate) struct EnableArguments {
    #[command(flatten)]
    settings: Settings,
    /// The database
    database: PathBuf,
    /// Create the database if it does not exist
    #[arg(long)]
    create: bool,
    /// Remember where the archive of the database is, for `duralite replicate`, and record from now on what the archive needs
    #[arg(long, value_name = "URL")]
    archive: Option<String>,
}

#[derive(Args)]
pub(crate) struct DisableArguments {
    #[command(flatten)]
    settings: Settings,
    /// The database
    database: PathBuf,
}

/// The rows that `PRAGMA duralite` returned for a database.
pub(crate) struct Status {
    rows: Vec<(String, String)>,
}

impl Status {
    /// Returns the value of a row of `PRAGMA duralite`.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.rows.iter().find(|(row, _)| row == name).map(|(_, value)| value.as_str())
    }

    /// Says in one line which engine serves the database.
    pub(crate) fn in_words(&self) -> String {
        let word = |name| self.get(name).unwrap_or("?");
        match self.get("guarantee") {
            Some(guarantee) => format!(
                "engine {} ({}), guarantee {guarantee}: {}{}",
                word("engine"),
                // After the colon are the measurements of the medium, which this line omits.
                word("medium").split(": ").next().unwrap_or_default(),
                meaning(guarantee),
                self.get("guarantee_reason").map_or_else(String::new, |why| format!(" ({why})"))
            ),
            None => format!("plain SQLite: {}", word("state")),
        }
    }
}

/// Explains what a guarantee promises for a commit.
fn meaning(guarantee: &str) -> &'static str {
    match guarantee {
        "power-loss" => "a commit survives a power loss",
        "system-crash" => {
            "a commit survives a crash of the system, but a power loss may lose the newest commits"
        }
        "ordered" => "a crash may lose the newest commits, but never an older one before a newer one",
        _ => "a commit survives a crash of the process, but not of the machine",
    }
}

pub(crate) fn enable(arguments: &EnableArguments) -> Result<ExitCode> {
    let database = &arguments.database;
    if !arguments.create {
        check_exists(database, "; --create creates it")?;
    }
    let remark = arguments.archive.as_deref().map(archive::probe).transpose()?.flatten();
    let status = set(database, "wal", &arguments.settings)?;
    print_text(&format!("{} is in WAL mode; {}\n", database.display(), status.in_words()))?;
    if let Some(url) = &arguments.archive {
        archive::enable(database, url)?;
        let remark = remark.map_or_else(String::new, |remark| format!("; {remark}"));
        print_text(&format!("its archive is {url}{remark}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn disable(arguments: &DisableArguments) -> Result<ExitCode> {
    check_exists(&arguments.database, "")?;
    set(&arguments.database, "delete", &arguments.settings)?;
    print_text(&format!("{} is one plain file, in rollback-journal mode\n", arguments.database.display()))?;
    if let Some(url) = archive::disable(&arguments.database)? {
        print_text(&format!("its archive {url} stays as it is, and gets nothing more\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check_exists(database: &Path, hint: &str) -> Result<()> {
    if !database.exists() {
        bail!("{} does not exist{hint}", database.display());
    }
    Ok(())
}

/// Sets the journal mode through Duralite, and returns what `PRAGMA duralite` says after that.
///
/// # Errors
/// An error of SQLite; the database did not change to that mode.
pub(crate) fn set(database: &Path, mode: &str, settings: &Settings) -> Result<Status> {
    let sql = format!("PRAGMA journal_mode={mode}; SELECT count(*) FROM sqlite_schema; PRAGMA duralite;");
    let output =
        launch::command(OsStr::new(SHELL), settings, Orders { wal: false, quiet: true, reasons: true })
            .context("this command needs sqlite3, SQLite's own shell (Debian's package sqlite3)")?
            .args(["-batch", "-bail", "-init", "/dev/null"])
            .arg(std::path::absolute(database)?)
            .arg(sql)
            .output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() {
        if let Some(why) = not_writable(database) {
            bail!("{why} (SQLite: {said})");
        }
        bail!("{}: {said}", database.display());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let found = lines.next().unwrap_or_default().to_owned();
    if found != mode {
        bail!("{} stays in journal mode {found}: {said}", database.display());
    }
    let rows = lines.filter_map(|line| line.split_once('\t'));
    Ok(Status { rows: rows.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() })
}

/// Returns why this user cannot write the database or its directory (no permission, or a read-only file system), and
/// what to do about it. SQLite's own message does not say this clearly. Returns `None` if the user may write both the
/// database and its directory.
fn not_writable(database: &Path) -> Option<String> {
    let directory = match database.parent()? {
        nothing if nothing.as_os_str().is_empty() => Path::new("."),
        directory => directory,
    };
    let places = [database, directory].into_iter().filter(|place| place.exists());
    let refused = |place: &Path| access(place, Access::WRITE_OK).err().map(|error| (place.to_owned(), error));
    let (place, error) = places.filter_map(refused).next()?;
    let what_to_do = match error {
        Errno::ROFS => "mount the file system for writing first",
        _ => "run this command as a user who may write the database and its directory",
    };
    let reason = std::io::Error::from(error);
    Some(format!("{}: {reason}; the database file stores the journal mode: {what_to_do}", place.display()))
}
