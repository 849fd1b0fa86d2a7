//! The store that a command works on, and how the command opens it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use duralite_cli::output::{print_json, print_text};
use duralite_store::{LogMedium, Options, Store};
use serde_json::{Map, Value};

use duralite_cli::progress::{self, HowFar};

/// Which store, and how to open it.
#[derive(Args)]
pub(crate) struct Place {
    /// The store's directory
    #[arg(value_name = "STORE")]
    pub(super) dir: PathBuf,
    /// Directory with the store's log, if the log is in NVRAM
    #[arg(long, value_name = "DIR", env = "DURALITE_NVRAM_DIR")]
    nvram_dir: Option<PathBuf>,
    /// Directory of the store's archive, if it has one: log objects stay there after the log has dropped them
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Place {
    /// Returns the options for opening the store. They say on which medium its log is, and where its archive is.
    pub(super) fn options(&self) -> Options {
        let log = match &self.nvram_dir {
            Some(dir) => LogMedium::Nvram(dir.clone()),
            None if self.dir.join("log.nvram").exists() => LogMedium::Emulated,
            None => LogMedium::Disk,
        };
        let options = Options::default().log(log);
        match &self.archive {
            Some(dir) => options.archive(dir),
            None => options,
        }
    }

    /// Opens an existing store. Opening recovers the store if necessary.
    pub(super) fn open(&self) -> Result<Store> {
        // This check comes first, because `Store::open` creates a store in a directory that is empty or missing.
        if !self.dir.join("pages").exists() && !self.dir.join("backup").exists() {
            bail!("{} is not a store: there is no file `pages` in it", self.dir.display());
        }
        self.open_or_make()
    }

    pub(super) fn open_or_make(&self) -> Result<Store> {
        let opened = progress::with("opening", HowFar::default, || Store::open(&self.dir, self.options()));
        Ok(opened?)
    }

    /// Prints names and values, as JSON or text.
    pub(super) fn print(&self, facts: &Map<String, Value>) -> Result<()> {
        if self.json {
            return print_json(&Value::Object(facts.clone()));
        }
        let line = |(name, value): (&String, &Value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{name:<22} {text}\n")
        };
        print_text(&facts.iter().map(line).collect::<String>())
    }
}
