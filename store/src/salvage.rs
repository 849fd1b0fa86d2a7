//! Salvages a store whose log is damaged before its end. Makes another store, with the state of the last transaction
//! before the damage.

use std::path::Path;
use std::sync::Arc;

use crate::error::Error;
use crate::format::{Lsn, lsn};
use crate::log::Damage;
use crate::media::{Directory, Media, prepare_store};
use crate::opening::{NO_LOG, ON_BLOCKS, assemble, make_from, make_log, open_log};
use crate::options::{LogMedium, Options, Scheme};
use crate::page_file::PageFile;
use crate::poison::Poison;
use crate::recovery::recover;

/// What [`Store::salvage`](crate::Store::salvage) has saved, and what it could not save.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use duralite_store::{Error, Options, Store};
/// let path = dir.path().join("store");
/// drop(Store::open(&path, Options::default())?);
/// // A store with an undamaged log need not be salvaged.
/// let salvaged = Store::salvage(&path, dir.path().join("out"), Options::default());
/// assert!(matches!(salvaged, Err(Error::Invalid { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvaged {
    /// The last log object in the new store.
    pub last: u64,
    /// The number of transactions that committed in the log before the damage.
    pub transactions: u64,
    /// The number of transactions that had begun before the damage, but not committed. They were rolled back.
    pub undone: u64,
    /// The number of commits after the damage that are undamaged, but lost. How many commits the damaged part contained
    /// is not known.
    pub lost_commits: u64,
    /// The first undamaged log object after the damage; 0 if there is no such object.
    pub whole_again: u64,
}

pub(crate) fn salvage(dir: &Path, out: &Path, options: &Options) -> Result<Salvaged, Error> {
    options.check()?;
    if !dir.join("pages").exists() {
        return Err(Error::NotAStore {
            path: dir.to_owned(),
            why: "there is no file `pages` in it".to_owned(),
        });
    }
    prepare_store(out)?;
    salvage_into(dir, out, options)
}

fn salvage_into(dir: &Path, out: &Path, options: &Options) -> Result<Salvaged, Error> {
    let log = if options.log == LogMedium::Emulated { LogMedium::Emulated } else { LogMedium::Disk };
    let made = Options { log, scheme: Scheme::Auto, archive: None, create: true, ..options.clone() };
    Directory::open(out, &made)?.make(|media| salvage_on(media, dir, out, options, &made))
}

/// Salvages the store in `dir`, which is opened with `options`, and makes another one in `out` with the options `made`.
fn salvage_on(
    media: &Directory,
    dir: &Path,
    out: &Path,
    options: &Options,
    made: &Options,
) -> Result<Salvaged, Error> {
    // `Directory::open` locks the store until everything has been copied, so that no other process writes to it.
    let source = Directory::open(dir, options)?;
    let (file, head) = make_from(media, &dir.join("pages"), out)?;
    let file = Arc::new(file);
    let whole = || Error::Invalid {
        what: format!(
            "the log of {} is not damaged before its end; open the store, or verify it",
            dir.display()
        ),
    };
    if head.log_kind == NO_LOG {
        return Err(whole());
    }
    source.copy_log(head.log_seed, head.log_kind == ON_BLOCKS, out)?;
    drop(source);
    let poison = Arc::new(Poison::default());
    let mut damage = None;
    let log = open_log(media, &head, made, &poison, &mut |found: Damage| {
        damage = Some(found);
        Ok(())
    })?;
    let damage = damage.ok_or_else(whole)?;
    check_pages(&file, damage.missing)?;
    let engine = assemble(&file, log, &poison, made);
    let report = recover(&engine, head.number)?;
    engine.checkpoint(&|| false)?;
    let first = engine.pager.log.next();
    drop(engine);
    // The new log gets another seed, because the new store's history differs from that of the damaged store.
    make_log(media, &file, first, made, &poison)?;
    file.write_head(|head| head.last_tx = head.last_tx.max(report.last_tx))?;
    media.made()?;
    Ok(Salvaged {
        last: damage.missing - 1,
        transactions: damage.before,
        undone: report.undone,
        lost_commits: damage.beyond.commits,
        whole_again: damage.beyond.first,
    })
}

/// Checks that no page has a change from after the damage. Without its log object, such a change could not be undone.
fn check_pages(file: &PageFile, missing: Lsn) -> Result<(), Error> {
    let mut page = vec![0; file.page_bytes()];
    for id in file.first_page()..file.pages() {
        // If the page is damaged, redo may replace it. If redo does not, the thread that reads the page later gets the
        // error.
        if file.read_page(id, &mut page).is_ok() && lsn(&page) >= missing {
            let what = format!(
                "the log at log object {missing}, and page {id} in the page file has later changes, so no \
                 store with the state before the damage can be made: the log"
            );
            return Err(Error::corrupt(&what));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed helper is a failed test

    use super::*;
    use crate::store::Store;

    /// Another process makes a store in the directory after the salvage has found it empty.
    #[test]
    fn a_salvage_removes_nothing_of_a_store_that_came_first() {
        let dir = tempfile::tempdir().unwrap();
        let (damaged, other) = (dir.path().join("damaged"), dir.path().join("other"));
        let options = Options::default();
        drop(Store::open(&damaged, options.clone()).unwrap());
        let store = Store::open(&other, options.clone()).unwrap();
        let salvaged = salvage_into(&damaged, &other, &options);
        assert!(matches!(salvaged, Err(Error::Locked { .. })), "{salvaged:?}");
        assert!(other.join("lock").exists() && other.join("log").exists());
        drop(store);
        let salvaged = salvage_into(&damaged, &other, &options);
        assert!(matches!(salvaged, Err(Error::Invalid { .. })), "{salvaged:?}");
        Store::open(&other, options).unwrap().verify().unwrap();
    }
}
