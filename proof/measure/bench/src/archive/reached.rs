//! Finds out at which time each commit became restorable. During the run, a thread watches the server's directory and
//! notes when each object appears. After the run, this module reads the objects, and finds the newest row in each.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use duralite_ltx::Decoder;

/// The time between two listings of the directory.
const LOOK: Duration = Duration::from_millis(10);
/// In a database file, a leaf page of a table begins with this byte. The next constants are offsets in that page. The
/// first is that of the number of cells, the second is that of the array with the cells' positions.
const LEAF_OF_TABLE: u8 = 13;
const CELLS: usize = 3;
const PLACES: usize = 8;

/// Returns the names of the objects in a directory, sorted. The transactions in the objects have the same order.
pub(super) fn objects(dir: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| dir.display().to_string()),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".ltx") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The time at which each object was first seen, in seconds since the beginning of the run.
type Seen = Arc<Mutex<BTreeMap<String, f64>>>;

/// A thread that watches a directory of objects.
pub(super) struct Watch {
    dir: PathBuf,
    /// The objects, and the time at which each was first seen. Objects that were there before the watch began have time
    /// 0.
    seen: Seen,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
    /// For each object that was read, the newest row in it.
    rows: BTreeMap<String, i64>,
}

impl Watch {
    pub(super) fn start(dir: &Path, since: Instant) -> Result<Self> {
        let before = objects(dir)?.into_iter().map(|name| (name, 0.0)).collect();
        let (seen, stop) = (Seen::new(Mutex::new(before)), Arc::new(AtomicBool::new(false)));
        let (of_thread, stopped, watched) = (Arc::clone(&seen), Arc::clone(&stop), dir.to_owned());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let now = objects(&watched)?;
                let at = since.elapsed().as_secs_f64();
                let mut seen = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                for name in now {
                    seen.entry(name).or_insert(at);
                }
                drop(seen);
                std::thread::sleep(LOOK);
            }
            Ok(())
        });
        Ok(Self { dir: dir.to_owned(), seen, stop, thread: Some(thread), rows: BTreeMap::new() })
    }

    /// Returns pairs of a time and a row. From that time on, a restore would have given all rows up to this row. Later
    /// pairs never have a smaller time or row. An object counts only when all earlier objects are there too.
    pub(super) fn reached(&mut self) -> Result<Vec<(f64, i64)>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut at, mut newest) = (0.0_f64, 0);
        let mut reached = Vec::new();
        for (name, seen_at) in seen {
            let row = match self.rows.get(&name) {
                Some(row) => *row,
                None => {
                    let path = self.dir.join(&name);
                    let row = newest_row(File::open(&path)?).with_context(|| path.display().to_string())?;
                    *self.rows.entry(name).or_insert(row)
                }
            };
            (at, newest) = (at.max(seen_at), newest.max(row));
            reached.push((at, newest));
        }
        Ok(reached)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && let Ok(Err(error)) = thread.join()
        {
            eprintln!("watching {}: {error:#}", self.dir.display());
        }
    }
}

/// Returns the largest rowid in an object; 0 if the object has no row.
fn newest_row(object: impl Read) -> Result<i64> {
    let mut decoder = Decoder::new(object)?;
    let mut page = vec![0; decoder.header().page_size as usize];
    let mut newest = 0;
    while decoder.next_page(&mut page)?.is_some() {
        newest = newest.max(last_row(&page).unwrap_or(0));
    }
    decoder.finish()?;
    Ok(newest)
}

/// Returns the rowid of the last cell of a page, if the page is a leaf of a table.
fn last_row(page: &[u8]) -> Option<i64> {
    let number = |at: usize| Some(usize::from(u16::from_be_bytes([*page.get(at)?, *page.get(at + 1)?])));
    if *page.first()? != LEAF_OF_TABLE {
        return None;
    }
    let last = number(CELLS)?.checked_sub(1)?;
    let cell = page.get(number(PLACES + 2 * last)?..)?;
    let (_payload_bytes, rest) = varint(cell)?;
    varint(rest).map(|(row, _)| row)
}

/// Returns a number that SQLite wrote as a varint, and the bytes after it.
fn varint(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let mut value = 0_i64;
    for nth in 0..9 {
        let byte = i64::from(*bytes.get(nth)?);
        if nth == 8 {
            return Some((value << 8 | byte, bytes.get(9..)?));
        }
        value = value << 7 | (byte & 0x7f);
        if byte < 0x80 {
            return Some((value, bytes.get(nth + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use duralite_ltx::{Encoder, Header};
    use rusqlite::Connection;

    use super::*;

    /// Returns an object with all pages of a database of `rows` rows.
    fn object(rows: i64) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let sql = Connection::open(&path).unwrap();
        sql.execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT NOT NULL)").unwrap();
        let insert = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
             INSERT INTO t(v) SELECT hex(randomblob(50)) FROM n WHERE ?1 > 0";
        sql.execute(insert, [rows]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let header = Header {
            page_size: 4096,
            commit: (bytes.len() / 4096) as u32,
            min_txid: 1,
            max_txid: 1,
            timestamp_ms: 0,
            ..Header::default()
        };
        let mut encoder = Encoder::new(Vec::new(), header).unwrap();
        for (number, page) in (1..).zip(bytes.chunks(4096)) {
            encoder.page(number, page).unwrap();
        }
        encoder.finish().unwrap().0
    }

    #[test]
    fn the_newest_row_of_an_object_is_found() {
        for rows in [0, 1, 100, 3000, 20_000] {
            assert_eq!(newest_row(&object(rows)[..]).unwrap(), rows);
        }
    }

    #[test]
    fn an_object_counts_when_all_before_it_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let put =
            |name: &str, rows| std::fs::write(dir.path().join(format!("{name}.ltx")), object(rows)).unwrap();
        put("1-1", 10);
        let mut watch = Watch::start(dir.path(), Instant::now()).unwrap();
        assert_eq!(watch.reached().unwrap(), [(0.0, 10)]);
        let see = |name: &str, at: f64| watch.seen.lock().unwrap().insert(format!("{name}.ltx"), at);
        see("3-3", 1.0);
        see("2-2", 2.0);
        put("2-2", 20);
        put("3-3", 30);
        assert_eq!(watch.reached().unwrap(), [(0.0, 10), (2.0, 20), (2.0, 30)]);
    }
}
