//! Restores a database from an archive.
//!
//! The restore writes the database to a temporary file in the directory of the final file. It moves the file to its
//! final path only after it has found every object undamaged. So nobody ever sees a half restored database.

use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path as FilePath, PathBuf};

use duralite_ltx::{Decoder, Header, Summary, database_checksum};
use object_store::path::Path;
use tempfile::NamedTempFile;

use super::archive::Archive;
use super::error::ArchiveError;
use super::fetch::{ObjectReader, Report, fetch};
use super::keys::Generation;
use super::plan::{Lineage, Plan, Step, Target};

/// The largest number of plans that one restore makes. It makes a new plan when somebody has deleted objects of the
/// previous plan.
const PLANS: usize = 8;
/// The largest number of bytes that one write may have. Only consecutive pages go into one write.
const RUN: usize = 256 << 10;
/// The suffixes of the files that SQLite keeps beside a database. If such a file were left over from an older database,
/// SQLite would apply it to the restored one.
const BESIDE: [&str; 3] = ["-wal", "-journal", "-shm"];

/// How a database is restored.
#[derive(Clone, Default)]
pub struct RestoreOptions {
    /// The largest number of requests for large pieces that run at a time. For small objects, eight times as many may
    /// run. 0 means 16.
    pub parallel: usize,
    /// A function that the restore calls with its progress.
    pub report: Option<Report>,
}

/// A restored database that is not yet at its final path. Dropping this value deletes the database.
#[derive(Debug)]
pub struct Restored {
    file: NamedTempFile,
    out: PathBuf,
    /// The generation of the last transaction; `None` if Litestream made the archive.
    pub generation: Option<Generation>,
    /// The last transaction in the database.
    pub txid: u64,
    /// The time at which that transaction was committed, in milliseconds since 1970.
    pub time_ms: i64,
    /// The page size in bytes.
    pub page_size: u32,
    /// The size of the database in pages.
    pub pages: u32,
    /// The number of bytes that were fetched.
    pub fetched: u64,
}

impl Restored {
    /// Returns the path of the temporary file, so that the caller can check the database before `place`. The check must
    /// not write.
    #[must_use]
    pub fn path(&self) -> &FilePath {
        self.file.path()
    }

    /// Moves the database to its final path, durably.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Exists`] if a file has appeared there meanwhile; [`ArchiveError::File`].
    pub fn place(self) -> Result<(), ArchiveError> {
        check_that_nothing_is_at(&self.out)?;
        let failed = || ArchiveError::of_file(&self.out);
        self.file.as_file().sync_all().map_err(failed())?;
        let dir = dir_of(&self.out);
        self.file.persist_noclobber(&self.out).map_err(|error| match error.error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                ArchiveError::Exists { path: self.out.display().to_string() }
            }
            _ => ArchiveError::of_file(&self.out)(error.error),
        })?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(ArchiveError::of_file(dir))
    }
}

impl Archive {
    /// Restores the database as it was at a moment, into a temporary file beside `out`. [`Restored::place`] moves the
    /// file to `out`.
    ///
    /// # Errors
    ///
    /// Those of [`Archive::plan`]; [`ArchiveError::Exists`]; [`ArchiveError::Broken`] names the object that is damaged
    /// or missing, and what can be restored without it.
    pub async fn restore(
        &self,
        target: Target,
        out: &FilePath,
        options: &RestoreOptions,
    ) -> Result<Restored, ArchiveError> {
        check_that_nothing_is_at(out)?;
        let mut chosen = target;
        let mut missing: Option<ArchiveError> = None;
        for _ in 0..PLANS {
            let (lineage, plan) = match self.planned(chosen).await {
                // Pruning has deleted the chosen state meanwhile. So choose again, as a restore that began now would.
                Err(ArchiveError::NotThere { .. }) if chosen != target => self.planned(target).await?,
                planned => planned?,
            };
            // From here on the chosen state is fixed. If somebody deletes an object meanwhile, the next plan makes the
            // same state from other objects.
            chosen = Target::Txid(plan.txid);
            let error = match self.apply(plan, out, options).await {
                Err(error) if error.is_missing() => error,
                Err(error) if error.is_damage() => return Err(broken(&lineage, chosen, error)),
                done => return done,
            };
            // The new plan needs the same missing object again, because the new listing still shows it. So neither
            // compaction nor pruning has deleted the object.
            if missing.is_some_and(|before| before.to_string() == error.to_string()) {
                return Err(broken(&lineage, chosen, error));
            }
            missing = Some(error);
        }
        Err(missing.unwrap_or(ArchiveError::Empty))
    }

    async fn apply(
        &self,
        plan: Plan,
        out: &FilePath,
        options: &RestoreOptions,
    ) -> Result<Restored, ArchiveError> {
        let parallel = if options.parallel == 0 { 16 } else { options.parallel };
        let Plan { txid, steps } = plan;
        let generation = steps.last().and_then(|step| step.generation);
        let fetched = steps.iter().map(|step| step.object.bytes).sum();
        let file = temporary_file_for(out)?;
        let (to, to_apply) = (file.reopen().map_err(ArchiveError::of_file(out))?, steps.clone());
        let path = out.to_owned();
        let last = fetch(self, &steps, parallel, options.report.clone(), move |objects| {
            let mut last: Option<Summary> = None;
            for step in &to_apply {
                let page_size = last.map(|last| last.header.page_size);
                last = Some(objects.next(|reader| apply_object(step, reader, page_size, &to, &path))?);
            }
            let last = last.ok_or(ArchiveError::Empty)?;
            if let (Some(stated), Some(step)) = (last.post_checksum, to_apply.last()) {
                check_database(&to, &last, stated, &step.key, &path)?;
            }
            Ok(last)
        })
        .await?;
        Ok(Restored {
            file,
            out: out.to_owned(),
            generation,
            txid,
            time_ms: last.header.timestamp_ms,
            page_size: last.header.page_size,
            pages: last.header.commit,
            fetched,
        })
    }
}

/// Reads an object to its end, and calls `page` with each of its pages. Fails if the object is not the one that its key
/// names.
pub fn read_step(
    step: &Step,
    reader: &mut ObjectReader<'_>,
    mut page: impl FnMut(u32, &[u8]) -> Result<(), ArchiveError>,
) -> Result<Summary, ArchiveError> {
    let damaged = || ArchiveError::of_object(&step.key);
    let mut decoder = Decoder::new(reader).map_err(damaged())?;
    check_name(step, decoder.header())?;
    let mut bytes = vec![0; decoder.header().page_size as usize];
    while let Some(number) = decoder.next_page(&mut bytes).map_err(damaged())? {
        page(number, &bytes)?;
    }
    decoder.finish().map_err(damaged())
}

/// Checks that nobody has put another object in the place of this one.
fn check_name(step: &Step, header: &Header) -> Result<(), ArchiveError> {
    let damaged = |what| Err(ArchiveError::Damaged { key: step.key.to_string(), what });
    if (header.min_txid, header.max_txid) != (step.object.min, step.object.max) {
        return damaged(format!(
            "it has transactions {} to {}, another object's",
            header.min_txid, header.max_txid
        ));
    }
    match step.generation {
        // An object that Litestream made names no generation.
        Some(generation) if header.node_id != 0 && header.node_id != generation.number() => {
            damaged(format!("it is of the generation {:016x}", header.node_id))
        }
        _ => Ok(()),
    }
}

fn apply_object(
    step: &Step,
    reader: &mut ObjectReader<'_>,
    page_size: Option<u32>,
    to: &File,
    path: &FilePath,
) -> Result<Summary, ArchiveError> {
    let mut pages = Pages { file: to, first: 0, run: Vec::with_capacity(RUN) };
    let summary = read_step(step, reader, |number, bytes| {
        pages.push(number, bytes).map_err(ArchiveError::of_file(path))
    })?;
    let header = &summary.header;
    if page_size.is_some_and(|page_size| page_size != header.page_size) {
        let what = "its pages have another size than those before".to_owned();
        return Err(ArchiveError::Damaged { key: step.key.to_string(), what });
    }
    pages.flush(header.page_size as usize).map_err(ArchiveError::of_file(path))?;
    // Set the exact length. The database may have become smaller, or its last page may be the lock page, which no
    // object has.
    let len = u64::from(header.commit) * u64::from(header.page_size);
    to.set_len(len).map_err(ArchiveError::of_file(path))?;
    Ok(summary)
}

/// Collects consecutive pages, and writes them with one call.
struct Pages<'a> {
    file: &'a File,
    /// The first page of the run.
    first: u32,
    run: Vec<u8>,
}

impl Pages<'_> {
    fn push(&mut self, number: u32, bytes: &[u8]) -> std::io::Result<()> {
        let in_run = (self.run.len() / bytes.len()) as u32;
        if in_run > 0
            && (self.first.checked_add(in_run) != Some(number) || self.run.len() + bytes.len() > RUN)
        {
            self.flush(bytes.len())?;
        }
        if self.run.is_empty() {
            self.first = number;
        }
        self.run.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self, page_size: usize) -> std::io::Result<()> {
        if !self.run.is_empty() {
            self.file.write_all_at(&self.run, u64::from(self.first - 1) * page_size as u64)?;
            self.run.clear();
        }
        Ok(())
    }
}

/// Compares the restored database with the checksum in the last object.
fn check_database(
    to: &File,
    last: &Summary,
    stated: u64,
    key: &Path,
    path: &FilePath,
) -> Result<(), ArchiveError> {
    let mut reader = BufReader::with_capacity(RUN, to);
    let sum =
        |reader: &mut BufReader<_>| database_checksum(reader, last.header.page_size, last.header.commit);
    let found = reader.rewind().and_then(|()| sum(&mut reader)).map_err(ArchiveError::of_file(path))?;
    if found == stated {
        return Ok(());
    }
    let what = "the database does not have the checksum that this object says it has then".to_owned();
    Err(ArchiveError::Damaged { key: key.to_string(), what })
}

/// Returns the error for an object that a plan needs. The error names the last state that can be restored without that
/// object.
fn broken(lineage: &Lineage, target: Target, cause: ArchiveError) -> ArchiveError {
    let key = match &cause {
        ArchiveError::Damaged { key, .. } | ArchiveError::Store { key, .. } => key.clone(),
        _ => return cause,
    };
    let Target::Txid(txid) = target else { return cause };
    ArchiveError::Broken {
        cause: Box::new(cause),
        had: lineage.without(|other| other.as_ref() == key).newest_until(txid),
    }
}

fn temporary_file_for(out: &FilePath) -> Result<NamedTempFile, ArchiveError> {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    tempfile::Builder::new()
        .prefix(&format!(".{name}.restore-"))
        .permissions(std::fs::Permissions::from_mode(0o644))
        .tempfile_in(dir_of(out))
        .map_err(ArchiveError::of_file(out))
}

fn dir_of(out: &FilePath) -> &FilePath {
    out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| FilePath::new("."))
}

fn check_that_nothing_is_at(out: &FilePath) -> Result<(), ArchiveError> {
    let beside = BESIDE.iter().map(|end| {
        let mut name = out.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    });
    for path in std::iter::once(out.to_owned()).chain(beside) {
        match path.symlink_metadata() {
            Ok(_) => return Err(ArchiveError::Exists { path: path.display().to_string() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(ArchiveError::of_file(&path)(error)),
        }
    }
    Ok(())
}
