//! A local copy of an archive. Any program can read it as an ordinary database while `duralite follow` keeps it up to
//! date.
//!
//! Each object of the archive becomes one transaction of the copy. SQLite itself writes this transaction, through its
//! virtual table `sqlite_dbpage`. So SQLite takes care of locks, readers' snapshots and crashes, and a program that
//! reads the copy does not need Duralite.
//!
//! A small file beside the copy says which transaction of the archive the copy has. This code writes the file before a
//! transaction of the copy begins, and again after the commit. After a crash in between, the copy may be in the state
//! before or after that transaction. Then this code applies an object that can continue either state, or replaces the
//! whole copy with the newest state.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use duralite_archive::{Archive, ArchiveError, Generation, Next, RestoreOptions, Step, Target};
use duralite_ltx::{Decoder, lock_page};
use duralite_wal::archive::beside;
use rusqlite::{Connection, OpenFlags, params};
use serde::{Deserialize, Serialize};
use tempfile::SpooledTempFile;
use tokio::runtime::Handle;

use crate::fetch::fetch;

/// The suffix of the name of the file beside a copy.
const END: &str = "-follow";
/// How long the copy waits for a lock that another program holds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The content of the first [`SECTOR`] bytes of the file beside a copy. The archive's URL follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// The generation of the last transaction; `None` if Litestream made the archive.
    generation: Option<Generation>,
    /// The last transaction of the copy. If `applying` is set, the copy may have later transactions.
    txid: u64,
    /// The last transaction that the copy may have, while this code applies an object or moves the copy, and after a
    /// crash or an error has cut that short. The copy is in a state from `txid` to this one. If those states are of
    /// two generations, this is [`ANY`].
    applying: Option<u64>,
}

/// A transaction that no object reaches, so none leads on, and the copy needs a new base.
const ANY: u64 = u64::MAX;

impl State {
    /// Returns what is known of the copy while it goes to the state after transaction `target` of `generation`. A step or
    /// a move may have been cut short before, and may be cut short again. So the result covers every state in which the
    /// copy may be already.
    fn going_to(self, generation: Option<Generation>, target: u64) -> Self {
        if generation != self.generation {
            return Self { applying: Some(ANY), ..self };
        }
        let applying = self.applying.unwrap_or(self.txid).max(target);
        Self { txid: self.txid.min(target), applying: Some(applying), ..self }
    }
}

/// A local copy.
pub struct Replica {
    path: PathBuf,
    state: State,
    /// The file that holds the state. The lock on it keeps other processes from updating this copy.
    file: File,
    connection: Connection,
}

/// The file beside a copy after the copy was closed. Until this value is dropped, no other process updates the copy.
pub struct FileBeside {
    path: PathBuf,
    _locked: File,
}

impl FileBeside {
    /// Stops following the archive. From then on the copy is an ordinary database, and programs may write to it.
    ///
    /// # Errors
    /// The file cannot be deleted.
    pub fn remove(self) -> Result<()> {
        Ok(std::fs::remove_file(&self.path)?)
    }
}

impl Replica {
    /// Opens a copy. If there is none, makes it by restoring the archive.
    ///
    /// # Errors
    /// A file exists that is not a copy of this archive; another process keeps the copy up to date; an error of a
    /// restore.
    pub fn open(runtime: &Handle, archive: &Archive, url: &str, path: &Path, target: Target) -> Result<Self> {
        let name = beside(path, END);
        let is_new = !path.exists();
        if !is_new && !name.exists() {
            bail!("{} exists and is not a copy that follows an archive; name another file", path.display());
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&name)
            .with_context(|| name.display().to_string())?;
        if file.try_lock().is_err() {
            bail!("another process keeps {} up to date", path.display());
        }
        let state = if is_new {
            let restored = runtime.block_on(archive.restore(target, path, &RestoreOptions::default()))?;
            let state = State { generation: restored.generation, txid: restored.txid, applying: None };
            file.set_len(0)?;
            file.write_all_at(url.as_bytes(), SECTOR as u64)?;
            write(&file, state)?;
            restored.place()?;
            state
        } else {
            let (state, of) = read(&file).with_context(|| format!("{} is damaged", name.display()))?;
            if of != url {
                bail!("{} is a copy of {of}", path.display());
            }
            state
        };
        let connection = open(path)?;
        Ok(Self { path: path.to_owned(), state, file, connection })
    }

    /// Returns the number of the copy's last transaction.
    #[must_use]
    pub fn txid(&self) -> u64 {
        self.state.txid
    }

    /// Returns the generation of the copy's last transaction.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        self.state.generation
    }

    /// Applies the transactions that the archive has and the copy lacks. Returns the number of applied objects;
    /// `None` while a new primary takes the archive over.
    ///
    /// # Errors
    /// Those of the archive and of SQLite. After an error the copy is in the state after its last transaction.
    pub fn catch_up(
        &mut self,
        runtime: &Handle,
        archive: &Archive,
        stop: &AtomicBool,
    ) -> Result<Option<u64>> {
        let Some(mut settled) = runtime.block_on(archive.settled())? else { return Ok(None) };
        let mut applied = 0;
        let mut missing = None;
        while !stop.load(Ordering::Relaxed) {
            match settled.after(self.state.generation, self.state.txid, self.state.applying) {
                Next::Step(step) => match runtime.block_on(fetch(archive, &step)) {
                    // Somebody has pruned the object after it was listed, and another object has its transactions.
                    Err(error) if is_missing(&error) && missing.as_ref() != Some(&step.key) => {
                        missing = Some(step.key);
                        let Some(again) = runtime.block_on(archive.settled())? else { return Ok(None) };
                        settled = again;
                        continue;
                    }
                    content => self.apply(&step, content?)?,
                },
                Next::Base => self.move_to(runtime, archive, Target::Txid(settled.newest()?))?,
                Next::Nothing => break,
            }
            applied += 1;
        }
        Ok(Some(applied))
    }

    /// Moves the copy to the database as it was at a moment, in one transaction.
    ///
    /// # Errors
    /// As [`Replica::catch_up`]; the database had another page size at that moment.
    pub fn move_to(&mut self, runtime: &Handle, archive: &Archive, target: Target) -> Result<()> {
        let restored = runtime.block_on(archive.restore(
            target,
            &beside(&self.path, "-next"),
            &RestoreOptions::default(),
        ))?;
        let (page_size, pages) = (restored.page_size, restored.pages);
        self.check_page_size(page_size)?;
        let from = File::open(restored.path())?;
        // After a crash the copy may be the database before or after the move.
        self.remember(self.state.going_to(restored.generation, restored.txid))?;
        let transaction =
            self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            let mut select = transaction.prepare_cached("SELECT data FROM sqlite_dbpage WHERE pgno = ?1")?;
            let mut page = vec![0; page_size as usize];
            for number in (1..=pages).filter(|number| *number != lock_page(page_size)) {
                from.read_exact_at(&mut page, u64::from(number - 1) * u64::from(page_size))?;
                let mut rows = select.query([number])?;
                let is_equal = match rows.next()? {
                    Some(row) => row.get_ref(0)?.as_blob()? == page.as_slice(),
                    None => false,
                };
                if !is_equal {
                    insert.execute(params![number, page])?;
                }
            }
        }
        shrink(&transaction, pages)?;
        transaction.commit()?;
        self.remember(State { generation: restored.generation, txid: restored.txid, applying: None })
    }

    /// Closes the copy. It stays a copy of the archive until somebody removes the file beside it.
    ///
    /// # Errors
    /// An error of SQLite in the last checkpoint.
    pub fn close(self) -> Result<FileBeside> {
        self.connection.close().map_err(|(_, error)| error)?;
        Ok(FileBeside { path: beside(&self.path, END), _locked: self.file })
    }

    /// Applies an object as one transaction.
    fn apply(&mut self, step: &Step, content: SpooledTempFile) -> Result<()> {
        let mut decoder = Decoder::new(content)?;
        let (page_size, pages) = (decoder.header().page_size, decoder.header().commit);
        self.check_page_size(page_size)?;
        self.remember(self.state.going_to(step.generation, step.object.max))?;
        let transaction =
            self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut page = vec![0; page_size as usize];
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            while let Some(number) = decoder.next_page(&mut page)? {
                insert.execute(params![number, page])?;
            }
        }
        // The transaction commits only after the decoder has checked the object's checksum.
        decoder.finish()?;
        shrink(&transaction, pages)?;
        transaction.commit()?;
        self.remember(State { generation: step.generation, txid: step.object.max, applying: None })
    }

    fn check_page_size(&self, page_size: u32) -> Result<()> {
        let own: u32 = self.connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        if own != page_size {
            bail!(
                "the database has pages of {page_size} bytes now, and its copy {} has pages of {own}; remove the copy and the file {} beside it, and follow again",
                self.path.display(),
                beside(&self.path, END).display()
            );
        }
        Ok(())
    }

    fn remember(&mut self, state: State) -> Result<()> {
        write(&self.file, state)?;
        self.state = state;
        Ok(())
    }
}

const INSERT: &str = "INSERT INTO sqlite_dbpage(pgno, data, schema) VALUES(?1, ?2, 'main')";

/// Shortens the database to a number of pages.
fn shrink(connection: &Connection, pages: u32) -> Result<()> {
    let has: u32 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    if has > pages {
        connection
            .execute("INSERT INTO sqlite_dbpage(pgno, data, schema) VALUES(?1, NULL, 'main')", [pages + 1])?;
    }
    Ok(())
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(ArchiveError::is_missing)
}

/// Opens the copy with stock SQLite.
fn open(path: &Path) -> Result<Connection> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(PATIENCE)?;
    connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")?;
    let has_pages = connection.query_row(
        "SELECT count(*) FROM pragma_module_list WHERE name = 'sqlite_dbpage'",
        [],
        |row| row.get::<_, bool>(0),
    )?;
    if !has_pages {
        return Err(anyhow!(
            "this program was built with an SQLite that has no table sqlite_dbpage; build it in the project's directory"
        ));
    }
    Ok(connection)
}

/// Returns the state and the URL from the file beside a copy.
fn read(file: &File) -> Result<(State, String)> {
    let (mut state, mut url) = ([0; SECTOR], String::new());
    file.read_exact_at(&mut state, 0)?;
    let mut rest = file;
    rest.seek(SeekFrom::Start(SECTOR as u64))?;
    rest.read_to_string(&mut url)?;
    Ok((serde_json::from_slice(&state)?, url))
}

/// Writes the state durably. This writes one sector at once, so after a crash the file has either the previous state or
/// this one.
fn write(file: &File, state: State) -> Result<()> {
    let mut sector = serde_json::to_vec(&state)?;
    sector.resize(SECTOR, b' ');
    file.write_all_at(&sector, 0)?;
    Ok(file.sync_data()?)
}

/// The number of bytes that the state takes in the file.
const SECTOR: usize = 512;
