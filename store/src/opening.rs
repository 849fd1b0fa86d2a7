//! Opens a store: opens its page file and its log, recovers it, and makes a new log if the options ask for another kind
//! or size.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use duralite_format::FormatError;
use parking_lot::Mutex;

use crate::active::Active;
use crate::admission::Admission;
use crate::archive::Archive;
use crate::buffer::Pool;
use crate::controls::Controls;
use crate::engine::{Counts, Engine, LogAtOpening, Tuning};
use crate::error::Error;
use crate::format::{Change, Lsn, PageFileHead, PageKind, blank, kind};
use crate::locks::Locks;
use crate::log::disk::{DiskLog, Grouping};
use crate::log::nv::{Flush, NvLog};
use crate::log::rings::RingsLog;
use crate::log::{Log, Named, OnDamage, refuse};
use crate::media::{Directory, Media, WhichLog, nothing_there, random};
use crate::options::{DEFAULT_PAGE, Options, Scheme};
use crate::page_file::{FormatOrError, PageFile};
use crate::pager::{Author, Pager};
use crate::poison::Poison;
use crate::recovery::{Report, recover};
use crate::space::{GivenPage, Purpose, Space};
use crate::table::Tables;
use crate::versions::Versions;

/// The kind of log in the superblock of a page file without a log. Such a page file has all changes of its store.
pub(crate) const NO_LOG: u32 = 0;
/// The kind of log in the superblock of a page file that names a log on blocks.
pub(crate) const ON_BLOCKS: u32 = 1;
const IN_MEMORY: u32 = 2;
const IN_RINGS: u32 = 3;

/// Returns the length of the longest log object in bytes. Such an object has the images of at most three pages, and a
/// few more bytes.
fn largest_object(page_bytes: usize) -> u64 {
    page_bytes as u64 * 3 + 8192
}

/// Returns how many bytes of the cache's memory a log on a disk may use for waiting objects.
fn log_memory(options: &Options) -> u64 {
    options.cache_bytes / 16
}

fn log_kind(scheme: Scheme) -> u32 {
    match scheme {
        Scheme::FlushOnInsert | Scheme::FlushOnCommit => IN_MEMORY,
        Scheme::Distributed => IN_RINGS,
        Scheme::Auto | Scheme::NvDisk | Scheme::NvDiskDecentralized => ON_BLOCKS,
    }
}

fn flush(scheme: Scheme) -> Flush {
    if scheme == Scheme::FlushOnInsert { Flush::OnInsert } else { Flush::OnCommit }
}

fn grouping(scheme: Scheme) -> Grouping {
    match scheme {
        Scheme::NvDisk => Grouping::Central,
        Scheme::NvDiskDecentralized => Grouping::Apart,
        _ => Grouping::Grouped,
    }
}

/// Opens the page file, or makes it. Returns whether it was made.
fn open_pages(media: &dyn Media, options: &Options, path: &Path) -> Result<(PageFile, bool), Error> {
    let block = media.pages()?;
    let is_store = !block.is_empty();
    if is_store {
        match PageFile::open(Arc::clone(&block), options.controls()) {
            Ok(file) => return Ok((file, false)),
            Err(FormatOrError::Error(error)) => return Err(error),
            // The power failed while the store was being made, on media that do not record when a store is complete. So
            // the store is made again.
            Err(FormatOrError::Format(FormatError::Magic | FormatError::Short { .. }))
                if is_unmade(&*block)? => {}
            Err(FormatOrError::Format(error)) => return Err(no_store(path, error)),
        }
    }
    if !options.create {
        return Err(nothing_there(path));
    }
    let page_bytes = options.page_bytes.unwrap_or(DEFAULT_PAGE);
    options.check_cache(page_bytes)?;
    let head = PageFileHead {
        number: 0,
        store_id: random()?,
        page_bytes,
        log_kind: NO_LOG,
        log_seed: 0,
        log_first: 1,
        last_tx: 0,
        opened: 0,
        home: 1,
    };
    Ok((PageFile::create(block, head, options.controls())?, true))
}

/// Makes the page file of a store from a copy of the file `pages`. The copy names no log. Also returns the superblock
/// of the original.
pub(crate) fn make_from(
    media: &Directory,
    pages: &Path,
    path: &Path,
) -> Result<(PageFile, PageFileHead), Error> {
    let opened = PageFile::open(media.copy_pages(pages)?, Controls::default()).map_err(|error| match error {
        FormatOrError::Error(error) => error,
        FormatOrError::Format(error) => no_store(path, error),
    });
    let file = opened?;
    let head = file.head();
    // Invariant 75: the copied pages name the log of another store, which may still have it. So the copy must name no
    // log. This write also makes the copy durable.
    file.write_head(|head| (head.log_kind, head.log_seed) = (NO_LOG, 0))?;
    media.has_copied()?;
    file.restore_torn()?;
    Ok((file, head))
}

/// Returns whether the beginning of the page file has nothing but zeros.
fn is_unmade(block: &dyn duralite_medium::block::Block) -> Result<bool, Error> {
    let mut bytes = vec![0; block.len().min(1 << 16) as usize];
    block.read(0, &mut bytes).map_err(|error| Error::medium("reading the page file", error))?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

fn no_store(path: &Path, error: FormatError) -> Error {
    match error {
        FormatError::Version(version) => Error::Version { path: path.to_owned(), version },
        FormatError::Damaged { what } => Error::corrupt(what),
        error => Error::NotAStore { path: path.to_owned(), why: error.to_string() },
    }
}

/// Opens the log that the page file's superblock names.
pub(crate) fn open_log(
    media: &dyn Media,
    head: &PageFileHead,
    options: &Options,
    poison: &Arc<Poison>,
    on_damage: &mut OnDamage<'_>,
) -> Result<Arc<dyn Log>, Error> {
    let scheme = options.chosen_scheme();
    let poison = Arc::clone(poison);
    let largest = largest_object(head.page_bytes as usize);
    let which = WhichLog::Existing(head.log_seed);
    let named = Named { seed: head.log_seed, home: head.home };
    match head.log_kind {
        ON_BLOCKS => {
            let block = media.block_log(which)?;
            let log = DiskLog::open(block, named, grouping(scheme), poison, on_damage)?;
            Ok(Arc::new(log.with_memory(log_memory(options))))
        }
        IN_MEMORY => {
            let layout = NvLog::layout(options.log_bytes, largest, 0, 1);
            let nvm = media.memory_log(which, layout.log_bytes())?;
            Ok(Arc::new(NvLog::open(nvm, named, flush(scheme), poison, on_damage)?))
        }
        IN_RINGS => {
            let layout = RingsLog::layout(options.log_bytes, largest, 0, 1);
            let nvm = media.memory_log(which, layout.log_bytes())?;
            Ok(Arc::new(RingsLog::open(nvm, named, largest, poison, on_damage)?))
        }
        kind => Err(Error::Corrupt { what: format!("the page file, with log kind {kind},"), page: None }),
    }
}

/// Makes an empty log in place of the one that the page file names, and records the new log in the page file. The page
/// file must already have all changes of the old log.
pub(crate) fn make_log(
    media: &dyn Media,
    file: &PageFile,
    first: Lsn,
    options: &Options,
    poison: &Arc<Poison>,
) -> Result<Arc<dyn Log>, Error> {
    media.can_make_log()?;
    file.write_head(|head| (head.log_kind, head.log_first, head.home) = (NO_LOG, first, first))?;
    // If this process may not remove the old log, the log stays and takes space. Nothing in it is needed.
    let _ = media.remove_log(file.head().log_seed);
    let seed = u64::from_le_bytes(random()?);
    // Record the number of the new log before making the log. If this attempt fails, the next one finds the unfinished
    // log by that number.
    file.write_head(|head| head.log_seed = seed)?;
    let which = WhichLog::New(seed);
    let scheme = options.chosen_scheme();
    let kind = log_kind(scheme);
    let poison = Arc::clone(poison);
    let largest = largest_object(file.page_bytes());
    let log: Arc<dyn Log> = if kind == IN_RINGS {
        let layout = RingsLog::layout(options.log_bytes, largest, seed, first);
        let nvm = media.memory_log(which, layout.log_bytes())?;
        Arc::new(RingsLog::create(nvm, layout, largest, poison)?)
    } else if kind == IN_MEMORY {
        let layout = NvLog::layout(options.log_bytes, largest, seed, first);
        let nvm = media.memory_log(which, layout.log_bytes())?;
        Arc::new(NvLog::create(nvm, layout, flush(scheme), poison)?)
    } else {
        let block = media.block_log(which)?;
        let layout = DiskLog::layout(&*block, options.log_bytes, seed);
        let log = DiskLog::create(block, layout, first, grouping(scheme), poison)?;
        Arc::new(log.with_memory(log_memory(options)))
    };
    file.write_head(|head| head.log_kind = kind)?;
    Ok(log)
}

/// Puts an engine together, before recovery.
pub(crate) fn assemble(
    file: &Arc<PageFile>,
    log: Arc<dyn Log>,
    poison: &Arc<Poison>,
    options: &Options,
) -> Engine {
    let head = file.head();
    let pool = Pool::new(Arc::clone(file), Arc::clone(&log), Arc::clone(poison), options.cache_bytes);
    Engine {
        space: Space::new(file.first_page(), file.page_bytes()),
        admission: Admission::new(Arc::clone(&log)),
        pager: Pager { pool: Arc::new(pool), log, poison: Arc::clone(poison) },
        locks: Locks::new(options.lock_inheritance),
        active: Active::default(),
        tuning: Tuning {
            lock_timeout: options.lock_timeout,
            durability: options.durability,
            early_lock_release: options.early_lock_release,
        },
        poison: Arc::clone(poison),
        counts: Counts::default(),
        log_at_opening: LogAtOpening::default(),
        archive: None,
        next_tx: AtomicU64::new(head.last_tx + 1),
        newest_commit: AtomicU64::new(0),
        pinned: Mutex::default(),
        backups: Mutex::default(),
        store_id: head.store_id,
        versions: Versions::new(options.snapshot_bytes),
        tables: Tables::default(),
        waiters: Arc::default(),
        controls: Arc::clone(file.controls()),
    }
}

/// Makes a new store on media in memory.
#[cfg(test)]
#[allow(clippy::unwrap_used)] // a store that cannot be made is a failed test
pub(crate) fn in_memory(options: &Options) -> Engine {
    open(&crate::media::InMemory, options, Path::new("the store")).unwrap().0
}

/// Opens a store on media, and recovers it. All that was recovered is durable on return.
pub(crate) fn open(media: &dyn Media, options: &Options, path: &Path) -> Result<(Engine, Report), Error> {
    options.check()?;
    let (file, is_new) = open_pages(media, options, path)?;
    let head = file.head();
    if let Some(asked) = options.page_bytes
        && asked != head.page_bytes
    {
        return Err(Error::PageSize { has: head.page_bytes, asked });
    }
    options.check_cache(head.page_bytes)?;
    let file = Arc::new(file);
    let poison = Arc::new(Poison::default());
    let mut report = Report::default();
    let mut first = head.log_first;
    let mut log = None;
    let found = (head.log_kind != NO_LOG)
        .then(|| open_log(media, &head, options, &poison, &mut refuse))
        .transpose()
        .map_err(|error| file.explain_misfit(error))?;
    // This is the first write to the page file. If the page file is an older copy, which does not fit its log,
    // `open_log` has already failed.
    file.restore_torn()?;
    // Invariant 76: makes the superblock durable before the log is used, because the log relies on what the superblock
    // records.
    file.write_head_again()?;
    if let Some(found) = found {
        let mut engine = assemble(&file, Arc::clone(&found), &poison, options);
        engine.archive = open_archive(&file, &*found, options)?;
        report = recover(&engine, head.number).map_err(|error| file.explain_misfit(error))?;
        engine.checkpoint(&|| false)?;
        first = found.next();
        let is_kept =
            head.log_kind == log_kind(options.chosen_scheme()) && is_as_wanted(&*found, options, &file);
        // Invariant 76: the superblock does not record which changes the page file has, because an earlier build has
        // written it. Older copies of the page file lack this record too, so they would seem to fit this log. So do not
        // keep the log.
        log = (is_kept && head.home != 0).then_some(found);
    }
    let last_tx = report.last_tx.max(head.last_tx);
    let log = match log {
        Some(log) => log,
        None => make_log(media, &file, first, options, &poison)?,
    };
    // A crash may have lost the highest transaction number in use. So each opening begins with a higher multiple of
    // 2^40, above all numbers in use.
    file.write_head(|head| {
        head.home = head.home.max(log.head());
        head.opened += 1;
        head.last_tx = last_tx.max(head.opened << 40);
    })?;
    let mut engine = assemble(&file, log, &poison, options);
    engine.space.count(&engine.pager)?;
    engine.archive = open_archive(&file, &*engine.pager.log, options)?;
    make_catalog(&engine)?;
    if is_new {
        media.made()?;
    }
    let log = &engine.pager.log;
    engine.log_at_opening = LogAtOpening { newest_object: log.next() - 1, bytes: log.counters().bytes };
    Ok((engine, report))
}

fn open_archive(file: &PageFile, log: &dyn Log, options: &Options) -> Result<Option<Archive>, Error> {
    let head = file.head();
    let open = |dir: &PathBuf| Archive::open(dir, head.store_id, log, head.log_first);
    options.archive.as_ref().map(open).transpose()
}

/// Returns whether the log has about the size that the options ask for, and was made for its medium.
fn is_as_wanted(log: &dyn Log, options: &Options, file: &PageFile) -> bool {
    if !log.fits_medium() {
        return false;
    }
    let has = log.space().all_bytes;
    let wants = if log_kind(options.chosen_scheme()) == IN_MEMORY {
        let layout = NvLog::layout(options.log_bytes, largest_object(file.page_bytes()), 0, 1);
        layout.extents * layout.extent_bytes
    } else {
        options.log_bytes
    };
    // `has` counts only the bytes that are sure to fit, which are somewhat fewer than the options ask for. So accept
    // any size above half of what they ask for.
    has > wants / 2 && has <= wants
}

/// Makes the catalog (the tree of table names), with its root in the first page, unless it exists.
fn make_catalog(engine: &Engine) -> Result<(), Error> {
    let root = engine.catalog();
    {
        let page = engine.pager.pool.read(root)?;
        if kind(page.bytes()) == PageKind::Leaf || kind(page.bytes()) == PageKind::Inner {
            return Ok(());
        }
    }
    let mut given = engine.space.find(&engine.pager, 1, Purpose::Do)?;
    let GivenPage { id, set, .. } = given.pages[0];
    if id != root {
        return Err(Error::corrupt("the space map of a store without tables"));
    }
    let mut page = engine.pager.pool.make(id)?;
    let mut image = page.bytes().to_vec();
    blank(&mut image, PageKind::Leaf, 0);
    let changes = [(0, set), (1, Change::image_of(&image))];
    let logged = engine.pager.step(Author::SYSTEM, &[], &mut [&mut given.maps[0], &mut page], &changes)?;
    given.taken();
    drop((given, page));
    engine.force(logged.lsn)
}
