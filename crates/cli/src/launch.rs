//! Starts a program on Duralite: finds the libraries to preload, checks the settings, and sets the program's
//! environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use duralite_sqlite_vfs::check_setting;

use crate::program;

const LIBRARY: &str = "libduralite.so";
const PRELOAD: &str = "libduralite_preload.so";
/// The environment variable that says where Duralite reports refusals.
const LOG: &str = "DURALITE_LOG";
/// The dynamic linker's variable.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// The settings with which a database is opened.
#[derive(Args, Clone, Default)]
pub(crate) struct Settings {
    /// Where the log goes: auto, waldio, nvwal, ppl, scratchpad, off
    #[arg(long, value_name = "ENGINE")]
    pub(crate) journal: Option<String>,
    /// Persistent memory: a directory on a DAX file system, or `emulate`
    #[arg(long, value_name = "DIR")]
    pub(crate) nvram: Option<String>,
    /// Order of write-back of a log in memory: lazy, eager, checksum, async
    #[arg(long, value_name = "ORDER")]
    pub(crate) sync: Option<String>,
    /// Any other setting; may be given several times (docs/settings.md lists all settings)
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) others: Vec<String>,
}

impl Settings {
    /// Returns each setting's name and value, as they are written in the URI of a database.
    ///
    /// # Errors
    /// An entry of `--set` is not of the form `NAME=VALUE`.
    pub(crate) fn pairs(&self) -> Result<Vec<(&str, &str)>> {
        let named = [("journal", &self.journal), ("nvram", &self.nvram), ("sync", &self.sync)];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let others = self.others.iter().map(|pair| {
            pair.split_once('=').with_context(|| format!("--set takes NAME=VALUE, and {pair} has no ="))
        });
        named.map(Ok).chain(others).collect()
    }

    /// Returns the settings as environment variables.
    ///
    /// # Errors
    /// A name is no setting, or a value is not valid for its setting. The error suggests what the user probably meant.
    pub(crate) fn variables(&self) -> Result<Vec<(String, String)>> {
        let mut variables = Vec::new();
        for (name, value) in self.pairs()? {
            let variable = check_setting(name, value).map_err(anyhow::Error::msg)?;
            variables.push((variable, value.to_owned()));
        }
        Ok(variables)
    }
}

/// Instructions for the preloaded library.
#[derive(Clone, Copy, Default)]
pub(crate) struct Orders {
    /// Whether the library puts each database that the program opens into WAL mode.
    pub(crate) wal: bool,
    /// Whether the library prints no summary when the program ends.
    pub(crate) quiet: bool,
    /// Whether Duralite prints on standard error why it refuses a database. SQLite's own text is usually only "unable
    /// to open database file".
    pub(crate) reasons: bool,
}

/// Builds the command that runs a program on Duralite. The variable `DURALITE_RUN` must hold the pid of the program,
/// and this function sets it to the pid of this process. So the caller should replace this process with the program by
/// `exec`, which keeps the pid.
///
/// # Errors
/// Duralite cannot reach the program, so the program would silently run plain SQLite (see [`program::check`]); a
/// library is missing; a setting is wrong.
pub(crate) fn command(name: &OsStr, settings: &Settings, orders: Orders) -> Result<Command> {
    let variables = settings.variables()?;
    let found = program::find(name)?;
    program::check(&found)?;
    let (library, preload) = (library(LIBRARY)?, library(PRELOAD)?);
    let mut command = Command::new(&found);
    let mut words = format!("pid={}", std::process::id());
    for (word, _) in [(",wal", orders.wal), (",quiet", orders.quiet)].iter().filter(|(_, wanted)| *wanted) {
        words.push_str(word);
    }
    command
        .envs(variables)
        .env("DURALITE_LIBRARY", library)
        .env("DURALITE_MAKE_DEFAULT", "1")
        .env("DURALITE_RUN", words)
        .env(LD_PRELOAD, preloaded(&preload)?);
    if orders.reasons && env::var_os(LOG).is_none() {
        command.env(LOG, "stderr");
    }
    Ok(command)
}

/// Returns the value of `LD_PRELOAD`: `library`, followed by the libraries that are already in this environment's
/// `LD_PRELOAD`.
fn preloaded(library: &Path) -> Result<OsString> {
    let text = library.to_str().filter(|text| !text.contains([' ', '\t', '\n', ':']));
    let Some(text) = text else {
        bail!(
            "the path {} has a blank or a colon, and LD_PRELOAD cannot name such a path",
            library.display()
        );
    };
    let mut list = OsString::from(text);
    if let Some(others) = env::var_os(LD_PRELOAD).filter(|others| !others.is_empty() && *others != *text) {
        list.push(":");
        list.push(others);
    }
    Ok(list)
}

/// Returns the path of one of the project's libraries. If `DURALITE_LIBRARY` names `libduralite.so`, the other
/// libraries are in the same directory. Otherwise a library is beside this command or where packages install it.
fn library(name: &str) -> Result<PathBuf> {
    let own = env::current_exe()?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let named = env::var_os("DURALITE_LIBRARY").map(PathBuf::from);
    let named = named.map(|named| if name == LIBRARY { named } else { named.with_file_name(name) });
    // The user has chosen this library. If it is missing, this function fails, and does not use another version of the
    // library.
    if let Some(named) = named.filter(|named| !named.as_os_str().is_empty()) {
        let found = named.canonicalize().ok().filter(|path| path.is_file());
        return found.with_context(|| {
            format!("DURALITE_LIBRARY names {}, and there is no such file", named.display())
        });
    }
    let usual = ["", "../lib/duralite", "../lib"].map(|dir| beside.join(dir).join(name));
    let places: Vec<PathBuf> = usual.into_iter().collect();
    let found = places.iter().find(|place| place.is_file());
    let Some(found) = found else {
        let searched: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        bail!(
            "{name} is at none of {}; `make build` builds it, and DURALITE_LIBRARY names libduralite.so",
            searched.join(", ")
        );
    };
    Ok(found.canonicalize()?)
}
