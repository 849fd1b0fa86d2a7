//! Writes each transaction after the damage into a file of its own, and lists these transactions.

use std::fs::{self, DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use duralite_wal::LogError;
use duralite_wal::engine::salvage::{LaterTransaction, Salvaged};

use super::report::in_utc;

/// The directory for the transactions after the damage. This code creates the directory when it adds the first of these
/// transactions.
pub(super) struct Apart {
    dir: PathBuf,
    list: Option<File>,
    count: u64,
}

impl Apart {
    /// Chooses the directory: its name is the name of the new database with `-later` appended.
    ///
    /// # Errors
    /// A file or directory of that name exists.
    pub(super) fn beside(out: &Path) -> Result<Self> {
        let mut dir = out.as_os_str().to_owned();
        dir.push("-later");
        let dir = PathBuf::from(dir);
        if dir.symlink_metadata().is_ok() {
            bail!("{} exists already; name another file to write", dir.display());
        }
        Ok(Self { dir, list: None, count: 0 })
    }

    pub(super) fn add(&mut self, transaction: &LaterTransaction) -> Result<(), LogError> {
        self.count += 1;
        let name = match transaction.number {
            Some(number) => format!("transaction-{number:010}.pages"),
            None => format!("frame-{:010}.pages", transaction.first_frame),
        };
        if self.list.is_none() {
            self.begin()?;
        }
        let path = self.dir.join(&name);
        let failed = |error: std::io::Error| LogError::Io {
            op: "write",
            path: path.clone(),
            kind: error.kind(),
            message: error.to_string(),
        };
        let mut file = File::create_new(&path).map_err(failed)?;
        let mut text = in_words(transaction, &name);
        let mut at = 0;
        for page in &transaction.pages {
            match &page.image {
                Some(image) => {
                    file.write_all(image).map_err(failed)?;
                    text.push_str(&format!("  page {} at {at}\n", page.page_number));
                    at += image.len();
                }
                None => text.push_str(&format!(
                    "  page {}: only a change; the page that it changes is lost\n",
                    page.page_number
                )),
            }
        }
        file.sync_all().map_err(failed)?;
        self.list.iter_mut().try_for_each(|list| list.write_all(text.as_bytes())).map_err(failed)
    }

    fn begin(&mut self) -> Result<(), LogError> {
        let failed = |error: std::io::Error| LogError::Io {
            op: "make",
            path: self.dir.clone(),
            kind: error.kind(),
            message: error.to_string(),
        };
        DirBuilder::new().mode(0o700).create(&self.dir).map_err(failed)?;
        self.list = Some(File::create_new(self.dir.join("transactions.txt")).map_err(failed)?);
        Ok(())
    }

    /// Makes the list durable. Returns the directory, if there is one, and the text of the list.
    pub(super) fn finish(self, salvaged: &Salvaged) -> Result<(Option<PathBuf>, String)> {
        let Some(list) = self.list else { return Ok((None, String::new())) };
        list.sync_all()?;
        debug_assert_eq!(self.count, salvaged.later);
        File::open(&self.dir)?.sync_all()?;
        let text = fs::read_to_string(self.dir.join("transactions.txt"))?;
        Ok((Some(self.dir), text))
    }
}

fn in_words(transaction: &LaterTransaction, name: &str) -> String {
    let LaterTransaction { number, position, time_ms, db_pages, first_frame, offset, .. } = transaction;
    let mut text = match number {
        Some(number) => format!("transaction {number}"),
        None => "transaction".to_owned(),
    };
    if let Some(position) = position {
        text.push_str(&format!(", position {position}"));
    }
    if *first_frame > 0 {
        text.push_str(&format!(", frames from {first_frame} on"));
    }
    if *time_ms > 0 {
        text.push_str(&format!(", sealed {}", in_utc(*time_ms)));
    }
    if *db_pages > 0 {
        text.push_str(&format!(", {db_pages} pages in the database"));
    }
    text.push_str(&format!(", at {offset} of the log: {name}\n"));
    text
}
