//! Frees the pages of dropped tables, in the background.
//!
//! A dropped table keeps a row in the catalog (the table that lists all tables), under a name that no program can use.
//! After a crash, the reaper finds the rest of the table by this row, and continues. It frees the leaves first, then
//! the pages above them, and finally the root together with the row.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::admission::Room;
use crate::engine::{Engine, now_ns};
use crate::error::Error;
use crate::format::{ObjectKind, PageId};
use crate::free::free_chains;
use crate::locks::{Held, Key, Mode, Target};
use crate::pager::Author;
use crate::running::Stop;
use crate::steps::Undoable;
use crate::tree::{Reaped, chain_pages};

/// The first byte of all names that no program can use.
const HIDDEN: u8 = 0;
/// The prefix of a dropped table's name. The number of the table's root page follows, with the largest byte first.
const DROPPED: &[u8] = b"\0dropped ";
/// The bytes of log that the reaper reserves for freeing one page of an overflow chain.
const OBJECT_BYTES: u64 = 128;
/// The time for which the reaper waits for a lock on a dropped table before it goes on to the next table.
const PATIENCE: Duration = Duration::from_millis(20);
/// The interval at which the reaper tries again to free tables that it could not free before.
const TRY_EVERY: Duration = Duration::from_millis(200);
/// The longest sleep of the reaper, practically forever. The reaper needs no timer, because a transaction that drops a
/// table wakes it, and so does a snapshot that ends.
const UNTIL_WOKEN: Duration = Duration::from_secs(3600);

/// Returns whether a row of the catalog has a name that no program can use.
pub(crate) fn is_hidden(name: &[u8]) -> bool {
    name.first() == Some(&HIDDEN)
}

/// Returns the key of the row that a dropped table has in the catalog.
pub(crate) fn dropped_key(root: PageId) -> Vec<u8> {
    [DROPPED, &root.to_be_bytes()].concat()
}

/// Starts the reaper's thread.
pub(crate) fn start(engine: &Arc<Engine>, stop: &Arc<Stop>) -> Result<JoinHandle<()>, Error> {
    let (engine, stop) = (Arc::clone(engine), Arc::clone(stop));
    let work = move || {
        while !stop.sleep(Duration::ZERO) {
            // Errors need no handling here, because the reaper tries again later.
            let _ = reap(&engine, &stop);
            let has_more = engine.tables.are_dropped.load(Ordering::SeqCst) && !engine.poison.is_set();
            engine.tables.wait_for_dropped(if has_more { TRY_EVERY } else { UNTIL_WOKEN });
        }
    };
    std::thread::Builder::new()
        .name("store-reaper".to_owned())
        .spawn(work)
        .map_err(|source| Error::Io { what: "starting a thread".to_owned(), source })
}

/// Frees the pages of all dropped tables.
fn reap(engine: &Engine, stop: &Stop) -> Result<(), Error> {
    if engine.poison.is_set() || !engine.tables.are_dropped.swap(false, Ordering::SeqCst) {
        return Ok(());
    }
    let done = dropped(engine).and_then(|roots| {
        let mut all = true;
        for root in roots {
            let mut next = Next::More;
            while next == Next::More && !stop.sleep(Duration::ZERO) {
                next = step(engine, root)?;
            }
            all &= next != Next::More;
        }
        Ok(all)
    });
    if !matches!(done, Ok(true)) {
        engine.tables.are_dropped.store(true, Ordering::SeqCst);
    }
    done.map(|_| ())
}

/// Returns the roots of all dropped tables, including those that were dropped by transactions that have not committed.
fn dropped(engine: &Engine) -> Result<Vec<PageId>, Error> {
    let mut roots = Vec::new();
    let range = (Bound::Included(DROPPED), Bound::Excluded(&[HIDDEN + 1][..]));
    engine.tree(engine.catalog()).each_cell(range, |key, _| {
        let root = key.strip_prefix(DROPPED).and_then(|root| root.try_into().ok());
        roots.extend(root.map(u64::from_be_bytes));
        Ok(())
    })?;
    Ok(roots)
}

/// The way in which the reaper continues with a dropped table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The table has more pages.
    More,
    /// Open snapshots still read the table. When the last of them ends, the reaper tries again.
    Later,
    /// The table has no pages left.
    Done,
}

/// Frees a part of a dropped table, under an exclusive lock.
fn step(engine: &Engine, root: PageId) -> Result<Next, Error> {
    let mut held = engine.locks.begin(engine.new_tx());
    let done = locked_step(engine, root, &mut held);
    engine.locks.release(&mut held, 0);
    done
}

fn locked_step(engine: &Engine, root: PageId, held: &mut Held) -> Result<Next, Error> {
    let key = dropped_key(root);
    let catalog = engine.catalog();
    let mut lock = |target: &Target, mode| engine.locks.take(held, target, mode, PATIENCE);
    // The lock is granted only after the transaction that dropped the table has ended, and when no other transaction
    // reads the pages.
    lock(&Target::Table(root), Mode::Exclusive)?;
    lock(&Target::Table(catalog), Mode::IntentionExclusive)?;
    lock(&Target::Row(catalog, Key::from(&key[..])), Mode::Exclusive)?;
    engine.poison.check()?;
    if engine.tree(catalog).get(&key)?.is_none() {
        // The drop was rolled back.
        return Ok(Next::Done);
    }
    if !engine.tables.may_give_back(root, &engine.versions) {
        return Ok(Next::Later);
    }
    let page_bytes = engine.pager.pool.page_bytes();
    let room = Room { bytes: 4 * page_bytes as u64, objects: 4 };
    let limit = engine.tuning.lock_timeout;
    engine.admission.keep(room, Room::default(), limit)?;
    let reaped = engine.tree(root).reap();
    let done = match reaped {
        Ok(Reaped::Root) => engine.tree(catalog).remove_with_page(&key, root).map(|()| {
            engine.tables.given_back(root);
            Next::Done
        }),
        Ok(Reaped::Pages) => Ok(Next::More),
        Ok(Reaped::LongRow { key, first, bytes }) => {
            let pages = chain_pages(page_bytes, bytes);
            remove_long_row(engine, root, &key, first, pages).map(|()| Next::More)
        }
        Err(error) => Err(error),
    };
    engine.admission.give_back(room);
    done
}

/// Removes a row with a long value, in a transaction of its own. So whenever a crash happens, either recovery or the
/// reaper frees the row's chain.
fn remove_long_row(
    engine: &Engine,
    root: PageId,
    key: &[u8],
    first: PageId,
    pages: u64,
) -> Result<(), Error> {
    let tx = engine.new_tx();
    let force = engine.pager.log.space().force_bytes;
    let room = Room { bytes: (pages + 4) * OBJECT_BYTES + force, objects: pages + 4 };
    engine.admission.keep(room, Room::default(), engine.tuning.lock_timeout)?;
    let undoable = Arc::new(Undoable::default());
    // This transaction ends soon. The flag tells the keeper not to move this step forward in the log.
    undoable.list.lock().is_over = true;
    engine.active.enter(tx, engine.pager.log.next(), undoable);
    let done = engine
        .tree(root)
        .remove(Author { kind: ObjectKind::Update, tx, previous: 0 }, key, &mut |_| Ok(true))
        .and_then(|_| {
            engine
                .pager
                .say(Author { kind: ObjectKind::Commit, tx, previous: 0 }, &now_ns().to_le_bytes())
                .map_err(|error| engine.poison.set(&error))
        })
        .and_then(|_| free_chains(engine, tx, &[first]));
    if !engine.poison.is_set() {
        engine.active.leave(tx);
    }
    engine.admission.give_back(room);
    done
}

#[cfg(test)]
mod tests;
