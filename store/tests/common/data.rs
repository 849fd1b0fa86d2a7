//! Other data: rows in addition to those that a test itself uses. There are none, or ten times as many as fit into the
//! smallest cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use duralite_store::{Error, Options, Scheme, Store, Table, Transaction};

use super::crash::{Images, OnRig, Rig};
use super::{options, value};

/// The amount of other data in the store. If there is ten times as much data as the cache holds, the store evicts pages
/// and writes them to the page file all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    InCache,
    TenTimes,
}

/// The name of the table with the other data.
pub const BULK: &str = "bulk";
/// The number of other rows. They need ten times as many pages as the smallest cache has frames.
pub const ROWS: u32 = 5200;
pub const ROW_BYTES: usize = 500;
const PAGES: u64 = 640;

/// Returns the options of a store with the smallest possible cache.
pub fn smallest(scheme: Scheme) -> Options {
    let cache_bytes = Options::smallest_cache_bytes(4096);
    options(scheme).log_bytes(4 << 20).cache_bytes(cache_bytes).page_bytes(4096)
}

/// Returns the media of a closed store that has the other data. Builds them once for each scheme.
fn base(scheme: Scheme) -> Images {
    static MADE: Mutex<BTreeMap<&str, Images>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    let make = || {
        let rig = Rig::new(None);
        let store = Store::open_on(OnRig(Arc::clone(&rig)), smallest(scheme)).unwrap();
        let table = store.table(BULK).unwrap();
        for first in (0..ROWS).step_by(100) {
            let rows = (first..first + 100).map(|n| (n.to_be_bytes(), value(0, ROW_BYTES)));
            store.run(|tx| tx.put_all(&table, rows.clone())).unwrap();
        }
        assert!(store.verify().unwrap().pages >= PAGES);
        drop((table, store));
        rig.death()
    };
    made.entry(scheme.as_str()).or_insert_with(make).clone()
}

impl Data {
    pub const ALL: [Self; 2] = [Self::InCache, Self::TenTimes];

    /// Returns the media for a test. If there is other data, the media have a store with only that data. Otherwise they
    /// are empty.
    pub fn rig(self, scheme: Scheme) -> Arc<Rig> {
        Rig::new(match self {
            Self::InCache => None,
            Self::TenTimes => Some(base(scheme)),
        })
    }

    /// Returns the table with the other data; `None` if there is no other data.
    pub fn bulk(self, store: &Store) -> Option<Table> {
        (self == Self::TenTimes).then(|| store.table(BULK).unwrap())
    }
}

/// Chooses random rows of the first half, and a random number to write into them. Sorts the rows, so that transactions
/// hardly ever deadlock.
pub fn choose(rows: u32, random: &mut fastrand::Rng) -> (Vec<u32>, u32) {
    let mut chosen: Vec<u32> = (0..rows).map(|_| random.u32(0..ROWS / 2)).collect();
    chosen.sort_unstable();
    (chosen, random.u32(..))
}

/// Writes one number into some rows, and into the corresponding rows of the second half.
pub fn change(
    tx: &mut Transaction,
    bulk: &Table,
    rows: u32,
    random: &mut fastrand::Rng,
) -> Result<(), Error> {
    let (chosen, number) = choose(rows, random);
    for half in [0, ROWS / 2] {
        for n in &chosen {
            tx.put(bulk, &(n + half).to_be_bytes(), &value(number, ROW_BYTES))?;
        }
    }
    Ok(())
}

/// Checks that every row equals its counterpart in the other half. Returns an error that says what is wrong.
pub fn check(store: &Store, bulk: &Table) -> Result<(), String> {
    let tx = store.begin();
    let rows: Vec<_> = tx.scan(bulk, ..).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    if rows.len() != ROWS as usize {
        return Err(format!("{} rows of {ROWS}", rows.len()));
    }
    let (some, others) = rows.split_at(rows.len() / 2);
    for (n, ((_, row), (_, other))) in some.iter().zip(others).enumerate() {
        let number = u32::from_le_bytes(row[..4].try_into().unwrap());
        if row != other || *row != value(number, ROW_BYTES) {
            return Err(format!("row {n} has {number}, and its counterpart something else"));
        }
    }
    Ok(())
}
