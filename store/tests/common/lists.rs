//! Threads that append to lists and write registers. They read both kinds of rows, in transactions and in snapshots.
//! The result is a history of what they did and saw.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use duralite_store::{Error, Snapshot, Store, Table, Transaction};

use duralite_histories::{Element, Fate, Last, List, Op, Tx};

/// The number of lists, and also of registers. Lists and registers have the same numbers.
pub const LISTS: u64 = 12;
/// A register's key is the register's number plus this. So the keys of registers come after those of lists.
const REGISTERS: u64 = 1 << 32;

pub fn key(list: List) -> [u8; 8] {
    list.to_be_bytes()
}

pub fn encode(elements: &[Element]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

pub fn decode(bytes: &[u8]) -> Vec<Element> {
    bytes.chunks_exact(8).map(|one| u64::from_le_bytes(one.try_into().unwrap())).collect()
}

/// Reads the current content of all lists and registers.
pub fn read_all(store: &Store, table: &Table) -> Last {
    let mut last = Last::default();
    let tx = store.begin();
    for row in tx.scan(table, ..) {
        let (key, value) = row.unwrap();
        let key = u64::from_be_bytes(key.try_into().unwrap());
        if key < REGISTERS {
            last.lists.insert(key, decode(&value));
        } else {
            last.registers.insert(key - REGISTERS, decode(&value)[0]);
        }
    }
    tx.commit().unwrap();
    last
}

/// Makes one random read through a transaction or a snapshot.
fn read(
    get: impl FnOnce(&[u8]) -> Result<Option<Vec<u8>>, Error>,
    scan: impl FnOnce(&[u8], &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error>,
    random: &mut fastrand::Rng,
) -> Result<Op, Error> {
    let list = random.u64(0..LISTS);
    Ok(match random.u8(0..6) {
        0..=1 => Op::Read(list, get(&key(list))?.map_or(Vec::new(), |value| decode(&value))),
        2..=3 => Op::Look(list, get(&key(REGISTERS + list))?.map(|value| decode(&value)[0])),
        _ => {
            let to = random.u64(list..=LISTS);
            let list_of = |key: Vec<u8>| u64::from_be_bytes(key.try_into().unwrap());
            let rows = scan(&key(list), &key(to))?;
            Op::Scan(list, to, rows.into_iter().map(|(key, value)| (list_of(key), decode(&value))).collect())
        }
    })
}

/// Makes a few operations in a transaction. Adds to `ops` what the transaction did, up to the error if there is one.
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
            0..=3 => {
                let mut elements = tx.get_for_update(table, &key(list))?.map_or(Vec::new(), |v| decode(&v));
                let element = next.fetch_add(1, Ordering::SeqCst);
                elements.push(element);
                // Records the operation before making it, because it may take effect even if the call fails.
                ops.push(Op::Append(list, element));
                tx.put(table, &key(list), &encode(&elements))?;
            }
            4..=5 => {
                // Sometimes the transaction writes the register without reading it first.
                if random.u8(0..4) > 0 {
                    let value = tx.get_for_update(table, &key(REGISTERS + list))?;
                    ops.push(Op::Look(list, value.map(|value| decode(&value)[0])));
                }
                let value = next.fetch_add(1, Ordering::SeqCst);
                ops.push(Op::Write(list, value));
                tx.put(table, &key(REGISTERS + list), &encode(&[value]))?;
            }
            _ => {
                let tx = std::cell::RefCell::new(&mut *tx);
                let get = |key: &[u8]| tx.borrow_mut().get(table, key);
                let scan = |from: &[u8], to: &[u8]| tx.borrow_mut().scan(table, from..to).collect();
                ops.push(read(get, scan, random)?);
            }
        }
    }
    Ok(())
}

/// Makes a few reads through a snapshot.
pub fn look(
    snapshot: &Snapshot,
    table: &Table,
    random: &mut fastrand::Rng,
    ops: &mut Vec<Op>,
) -> Result<(), Error> {
    for _ in 0..random.usize(1..4) {
        let get = |key: &[u8]| snapshot.get(table, key);
        let is_forward = random.bool();
        let scan = |from: &[u8], to: &[u8]| {
            let rows = snapshot.scan(table, from..to);
            if is_forward {
                return rows.collect();
            }
            let mut rows: Vec<_> = rows.rev().collect::<Result<_, _>>()?;
            rows.reverse();
            Ok(rows)
        };
        ops.push(read(get, scan, random)?);
    }
    Ok(())
}

/// Runs threads until each has run `transactions` transactions, or until `stop` is set. Returns their history.
pub fn run(
    store: &Store,
    table: &Table,
    seed: u64,
    threads: u64,
    transactions: u64,
    next: &AtomicU64,
    stop: &AtomicBool,
) -> Vec<Tx> {
    let worker = Worker { store, table, next, clock: &AtomicU64::new(1), beside: None };
    worker.crowd(seed, threads, transactions, stop)
}

/// Like `run`, but each transaction also changes rows of a second table, which is much larger than the cache.
pub fn run_beside(
    store: &Store,
    table: &Table,
    seed: u64,
    (threads, transactions): (u64, u64),
    rows: u64,
) -> Vec<Tx> {
    let others = store.table("others").unwrap();
    for first in (0..rows).step_by(200) {
        let put = |n: u64| (n.to_be_bytes(), vec![n as u8; OTHER_BYTES]);
        store
            .run(|tx| {
                (first..first + 200).map(put).try_for_each(|(key, value)| tx.put(&others, &key, &value))
            })
            .unwrap();
    }
    let (next, clock) = (&AtomicU64::new(1), &AtomicU64::new(1));
    let worker = Worker { store, table, next, clock, beside: Some((&others, rows)) };
    worker.crowd(seed, threads, transactions, &AtomicBool::new(false))
}

const OTHER_BYTES: usize = 500;

#[derive(Clone, Copy)]
struct Worker<'a> {
    store: &'a Store,
    table: &'a Table,
    next: &'a AtomicU64,
    /// The clock. It numbers the moments at which transactions and snapshots begin and end.
    clock: &'a AtomicU64,
    beside: Option<(&'a Table, u64)>,
}

impl Worker<'_> {
    fn crowd(&self, seed: u64, threads: u64, transactions: u64, stop: &AtomicBool) -> Vec<Tx> {
        let history = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let history = &history;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed * 1000 + thread);
                    let mut watcher = Watcher::default();
                    for _ in 0..transactions {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        let tx = self.one(&mut random);
                        history.lock().unwrap().push(tx);
                        let seen = watcher.look(self.store, self.table, self.clock, &mut random);
                        history.lock().unwrap().extend(seen);
                    }
                    history.lock().unwrap().extend(watcher.close());
                });
            }
        });
        history.into_inner().unwrap()
    }

    fn one(&self, random: &mut fastrand::Rng) -> Tx {
        let mut ops = Vec::new();
        let begin = now(self.clock);
        let mut tx = self.store.begin();
        let done = transaction(&mut tx, self.table, random, self.next, &mut ops)
            .and_then(|()| self.something_beside(&mut tx, random));
        let fate = match done {
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
        Tx { ops, fate, span: Some((begin, now(self.clock))) }
    }

    fn something_beside(&self, tx: &mut Transaction, random: &mut fastrand::Rng) -> Result<(), Error> {
        let Some((others, rows)) = self.beside else { return Ok(()) };
        // The keys are sorted, so that transactions do not deadlock.
        let mut keys = [random.u64(0..rows), random.u64(0..rows), random.u64(0..rows)];
        keys.sort_unstable();
        keys.iter().try_for_each(|n| tx.put(others, &n.to_be_bytes(), &vec![*n as u8; OTHER_BYTES]))?;
        let snapshot = self.store.snapshot();
        let n = random.u64(0..rows);
        let value = snapshot.get(others, &n.to_be_bytes())?;
        assert!(value.is_some_and(|value| value == vec![n as u8; OTHER_BYTES]));
        Ok(())
    }
}

/// Advances the clock, and returns the moment.
pub fn now(clock: &AtomicU64) -> u64 {
    clock.fetch_add(1, Ordering::SeqCst)
}

/// A reader that opens a snapshot from time to time, and reads from it during several transactions of the same thread.
#[derive(Default)]
pub struct Watcher {
    open: Option<(Snapshot, Tx)>,
}

impl Watcher {
    /// Opens a snapshot if none is open, reads from it, and sometimes closes it. Returns what was read from the
    /// snapshot if this call closed it.
    pub fn look(
        &mut self,
        store: &Store,
        table: &Table,
        clock: &AtomicU64,
        random: &mut fastrand::Rng,
    ) -> Option<Tx> {
        if self.open.is_none() && random.u8(0..4) > 0 {
            return None;
        }
        let (snapshot, seen) = self.open.get_or_insert_with(|| {
            let begin = now(clock);
            let snapshot = store.snapshot();
            // The moment that the snapshot shows lies within this span.
            let span = Some((begin, now(clock)));
            (snapshot, Tx { ops: Vec::new(), fate: Fate::Committed, span })
        });
        if look(snapshot, table, random, &mut seen.ops).is_err() {
            seen.fate = Fate::Aborted;
            return self.close();
        }
        if random.u8(0..3) == 0 { self.close() } else { None }
    }

    /// Closes the snapshot. Returns what was read from it.
    pub fn close(&mut self) -> Option<Tx> {
        self.open.take().map(|(_, seen)| seen)
    }
}
