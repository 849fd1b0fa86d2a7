//! Threads that append to lists and read them, and the history of it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use duralite_store::{Error, Store, Table, Transaction};

use super::history::{Element, Fate, List, Op, Tx};

/// Lists that there are.
pub const LISTS: u64 = 12;

pub fn key(list: List) -> [u8; 8] {
    list.to_be_bytes()
}

pub fn encode(elements: &[Element]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

pub fn decode(bytes: &[u8]) -> Vec<Element> {
    bytes.chunks_exact(8).map(|one| u64::from_le_bytes(one.try_into().unwrap())).collect()
}

/// All lists as they are.
pub fn read_all(store: &Store, table: &Table) -> BTreeMap<List, Vec<Element>> {
    store
        .run(|tx| {
            tx.scan(table, ..)
                .map(|row| {
                    let (key, value) = row?;
                    Ok::<_, Error>((u64::from_be_bytes(key.try_into().unwrap()), decode(&value)))
                })
                .collect()
        })
        .unwrap()
}

/// One transaction of a few operations; what it did before it failed or ended.
pub fn transaction(
    tx: &mut Transaction,
    table: &Table,
    random: &mut fastrand::Rng,
    next: &AtomicU64,
    ops: &mut Vec<Op>,
) -> Result<(), Error> {
    for _ in 0..random.usize(1..5) {
        let list = random.u64(0..LISTS);
        match random.u8(0..10) {
            0..=4 => {
                let mut elements = tx.get_for_update(table, &key(list))?.map_or(Vec::new(), |v| decode(&v));
                let element = next.fetch_add(1, Ordering::SeqCst);
                elements.push(element);
                // Before it is known whether it has come about.
                ops.push(Op::Append(list, element));
                tx.put(table, &key(list), &encode(&elements))?;
            }
            5..=7 => {
                let elements = tx.get(table, &key(list))?.map_or(Vec::new(), |value| decode(&value));
                ops.push(Op::Read(list, elements));
            }
            _ => {
                let to = random.u64(list..=LISTS);
                let (from_key, to_key) = (key(list), key(to));
                let mut seen = Vec::new();
                for row in tx.scan(table, &from_key[..]..&to_key[..]) {
                    let (key, value) = row?;
                    seen.push((u64::from_be_bytes(key.try_into().unwrap()), decode(&value)));
                }
                ops.push(Op::Scan(list, to, seen));
            }
        }
    }
    Ok(())
}

/// Lets threads run until each has made so many transactions or `stop` is set; what they did.
pub fn run(
    store: &Store,
    table: &Table,
    seed: u64,
    threads: u64,
    transactions: u64,
    next: &AtomicU64,
    stop: &AtomicBool,
) -> Vec<Tx> {
    let history = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let history = &history;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed * 1000 + thread);
                for _ in 0..transactions {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let tx = one(store, table, &mut random, next);
                    history.lock().unwrap().push(tx);
                }
            });
        }
    });
    history.into_inner().unwrap()
}

fn one(store: &Store, table: &Table, random: &mut fastrand::Rng, next: &AtomicU64) -> Tx {
    let mut ops = Vec::new();
    let mut tx = store.begin();
    let fate = match transaction(&mut tx, table, random, next, &mut ops) {
        Ok(()) if random.u8(0..8) == 0 => {
            drop(tx);
            Fate::Aborted
        }
        Ok(()) => match tx.commit() {
            Ok(()) => Fate::Committed,
            Err(_) => Fate::Unknown,
        },
        Err(Error::Poisoned { .. }) => Fate::Unknown,
        Err(_) => Fate::Aborted,
    };
    Tx { ops, fate }
}
