//! Threads that change lists, registers and long rows, and read them in snapshots. The history of these threads says
//! which contents the store may have after a crash. The tests compare the recovered content with the history.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use duralite_store::{Error, Options, Store, Table, Transaction};

use super::crash::{Images, OnRig, Rig};
use super::data::{self, BULK, Data};
use super::lists::{self, Watcher, key, now};
use duralite_histories::{Fate, Last, Tx, check};

/// The history of a run. Acknowledged transactions are numbered in the order of their acknowledgements.
#[derive(Default)]
pub struct Ran {
    pub history: Vec<Tx>,
    /// The number of each transaction; `None` if the transaction was not acknowledged.
    acknowledged: Vec<Option<u64>>,
}

impl Ran {
    fn add(&mut self, tx: Tx, acknowledge: &(dyn Fn() -> u64 + Sync)) {
        let number = (tx.fate == Fate::Committed).then(acknowledge);
        self.history.push(tx);
        self.acknowledged.push(number);
    }

    /// Returns the history as known at a crash. If a transaction was acknowledged only after the crash, its outcome is
    /// unknown.
    pub fn known(&self, acknowledged: u64) -> Vec<Tx> {
        let mut history = self.history.clone();
        for (tx, number) in history.iter_mut().zip(&self.acknowledged) {
            if number.is_some_and(|number| number >= acknowledged) {
                tx.fate = Fate::Unknown;
            }
        }
        history
    }
}

/// Runs transactions on one or more threads. The transactions change lists, registers and long rows, and some of them
/// are rolled back. Calls `acknowledge` for each commit, one at a time, to get the commit's number. If there is a
/// table with other rows, each transaction changes some of those too.
pub fn run(
    store: &Store,
    bulk: Option<&Table>,
    seed: u64,
    threads: u64,
    count: u64,
    acknowledge: &(dyn Fn() -> u64 + Sync),
) -> Ran {
    let table = store.table("lists").unwrap();
    let (next, clock) = (AtomicU64::new(1), AtomicU64::new(1));
    let all = Mutex::new(Ran::default());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (all, next, clock, table) = (&all, &next, &clock, &table);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed * 64 + thread);
                let mut watcher = Watcher::default();
                for nth in 0..count {
                    let mut ops = Vec::new();
                    let begin = now(clock);
                    let mut tx = store.begin();
                    let done = lists::transaction(&mut tx, table, &mut random, next, &mut ops)
                        .and_then(|()| long_row(&mut tx, store, &mut random))
                        .and_then(|()| {
                            bulk.map_or(Ok(()), |bulk| data::change(&mut tx, bulk, 12, &mut random))
                        });
                    let fate = match done {
                        Ok(()) if random.u8(0..5) != 0 => {
                            tx.commit().map_or(Fate::Unknown, |()| Fate::Committed)
                        }
                        _ => {
                            drop(tx);
                            Fate::Aborted
                        }
                    };
                    let span = Some((begin, now(clock)));
                    all.lock().unwrap().add(Tx { ops, fate, span }, acknowledge);
                    // What a snapshot has shown must survive a crash too. So the history contains the snapshot as an
                    // acknowledged transaction.
                    if let Some(seen) = watcher.look(store, table, clock, &mut random) {
                        all.lock().unwrap().add(seen, acknowledge);
                    }
                    if nth % 16 == 9 {
                        store.checkpoint().unwrap();
                    }
                }
            });
        }
    });
    all.into_inner().unwrap()
}

/// Writes or deletes a row whose value is in overflow pages. The table `long` has only such rows.
fn long_row(tx: &mut Transaction, store: &Store, random: &mut fastrand::Rng) -> Result<(), Error> {
    let long = store.table("long")?;
    match random.u8(0..4) {
        0 => {
            let len = random.usize(3000..30_000);
            tx.put(&long, &key(random.u64(0..3)), &vec![len as u8; len])
        }
        1 => tx.delete(&long, &key(random.u64(0..3))).map(|_| ()),
        _ => Ok(()),
    }
}

/// Reads all lists and registers. Also checks all other rows, and every page.
pub fn content(store: &Store) -> Last {
    let table = store.table("lists").unwrap();
    let long = store.table("long").unwrap();
    store
        .run(|tx| {
            for row in tx.scan(&long, ..) {
                let (_, value) = row?;
                assert!(value.iter().all(|byte| usize::from(*byte) == value.len() % 256));
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    let all = lists::read_all(store, &table);
    if store.tables().unwrap().iter().any(|name| name == BULK) {
        data::check(store, &store.table(BULK).unwrap()).unwrap();
    }
    store.verify().unwrap();
    all
}

/// The parameters of a run during which crashes happen.
#[derive(Clone, Debug)]
pub struct Course {
    pub data: Data,
    pub options: Options,
    pub seed: u64,
    pub threads: u64,
    /// The number of transactions that each thread runs.
    pub count: u64,
    pub crashes: usize,
}

impl Course {
    /// Runs transactions on a rig with crashes.
    pub fn run(&self, rig: &Arc<Rig>, store: &Store) -> Ran {
        store.table("lists").unwrap();
        store.table("long").unwrap();
        let bulk = self.data.bulk(store);
        rig.crash(self.crashes, 3000 * self.threads, self.seed);
        let acknowledge = || rig.acknowledged.fetch_add(1, Ordering::SeqCst);
        run(store, bulk.as_ref(), self.seed, self.threads, self.count, &acknowledge)
    }

    pub fn open(&self, rig: &Arc<Rig>) -> Result<Store, Error> {
        Store::open_on(OnRig(Arc::clone(rig)), self.options.clone())
    }

    /// Checks what each crash of a run left. Also crashes during the recoveries from these crashes. Returns how many
    /// states were checked.
    pub fn explore(&self) -> u64 {
        let rig = self.data.rig(self.options.scheme);
        let store = self.open(&rig).unwrap();
        let ran = self.run(&rig, &store);
        drop(store);
        // The run may have only a few steps, because group commit may make many transactions durable at once.
        assert!(rig.steps() > 0);
        let mut states = 0;
        for crash in rig.crashes() {
            let what = format!("{self:?}, step {}", crash.step);
            let history = ran.known(crash.acknowledged);
            let (again, store) = self.recover(crash.images).unwrap_or_else(|why| panic!("{what}: {why}"));
            let found = content(&store);
            drop(store);
            check(&history, &found).unwrap_or_else(|why| panic!("{what}: {why}"));
            states += 1;
            // A crash interrupted the recovery itself. A second recovery has to find the same content.
            for second in again {
                let store = self.open(&Rig::new(Some(second))).unwrap();
                assert_eq!(content(&store), found, "{what}, crashed again");
                states += 1;
            }
        }
        states
    }

    /// Recovers a store, with crashes during the recovery. Returns what these crashes left, and the store.
    fn recover(&self, images: Images) -> Result<(Vec<Images>, Store), Error> {
        let rig = Rig::new(Some(images));
        rig.crash(3, 150, self.seed);
        let store = self.open(&rig)?;
        Ok((rig.crashes().into_iter().map(|crash| crash.images).collect(), store))
    }
}
