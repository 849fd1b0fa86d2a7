//! Compares a store with a model of it. The walker makes random calls of the whole interface, and the model says what
//! each call has to return.
//!
//! The calls depend only on a seed and on the model, never on what the store returns. So the same seed repeats the same
//! run.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::ops::Bound;
use std::sync::Arc;

use duralite_store::{
    Error, Key, Reader, Row, Savepoint, Snapshot, Store, Table, Ticket, Transaction, TypedTable,
};

use super::data::{BULK, ROW_BYTES, ROWS};
use super::value;

pub type Rows = BTreeMap<Vec<u8>, Arc<Vec<u8>>>;
/// The rows of each table, by table name. Cloning this is cheap.
pub type Content = BTreeMap<String, Arc<Rows>>;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const TYPED: &str = "typed";
type Typed = TypedTable<(String, u64), String>;

/// Reads the whole content of a store.
pub fn content(store: &Store) -> Result<Content, Error> {
    let mut content = Content::new();
    for name in store.tables()? {
        let table = store.table(&name)?;
        let tx = store.begin();
        let rows = tx.scan(&table, ..).map(|row| row.map(|(key, value)| (key, Arc::new(value))));
        content.insert(name, Arc::new(rows.collect::<Result<_, _>>()?));
    }
    Ok(content)
}

/// An observer of commits. Each commit makes a new state of the store, and the states are numbered.
pub trait Witness {
    /// The walker calls this before a transaction commits. The commit makes the state with this number.
    fn commits(&self, number: u64, state: &Content);
    /// The walker calls this when the transaction with this number, and all earlier ones, are durable.
    fn acknowledged(&self, number: u64);
}

/// Returns a random key of one of the tables in [`NAMES`].
fn some_key(random: &mut fastrand::Rng) -> Vec<u8> {
    let n = random.u32(0..160);
    match n % 10 {
        _ if n == 0 => Vec::new(),
        0 => [vec![b'k'; 1000], n.to_be_bytes().to_vec()].concat(),
        1 => vec![n as u8],
        _ => format!("{:02}/{n}", n / 10).into_bytes(),
    }
}

fn bulk_key(random: &mut fastrand::Rng) -> Vec<u8> {
    random.u32(0..ROWS).to_be_bytes().to_vec()
}

fn key_of(name: &str, random: &mut fastrand::Rng) -> Vec<u8> {
    if name == BULK { bulk_key(random) } else { some_key(random) }
}

fn value_of(name: &str, random: &mut fastrand::Rng) -> Vec<u8> {
    let len = match random.u8(0..20) {
        _ if name == BULK => ROW_BYTES,
        0 => 0,
        1 => random.usize(960..1040),
        2 => random.usize(3000..30_000),
        3 => random.usize(300..900),
        _ => random.usize(1..300),
    };
    value(random.u32(..), len)
}

fn row(expected: (&Vec<u8>, &Arc<Vec<u8>>)) -> Row {
    (expected.0.clone(), expected.1.to_vec())
}

/// Reads rows from both ends, and skips some. Stops when there are no more rows, or after a random number of them.
fn walk<I: DoubleEndedIterator<Item = Result<Row, Error>>>(
    mut found: I,
    mut expected: VecDeque<(&Vec<u8>, &Arc<Vec<u8>>)>,
    random: &mut fastrand::Rng,
    seek: Option<fn(&mut I, &[u8])>,
) -> Result<(), Error> {
    let most = if random.u8(0..3) == 0 { usize::MAX } else { random.usize(1..40) };
    let backwards = [0, 0, 2, 4][random.usize(0..4)];
    for _ in 0..most {
        if let Some(seek) = seek
            && random.u8(0..16) == 0
            && !expected.is_empty()
        {
            let key = expected[random.usize(0..expected.len().min(20))].0;
            seek(&mut found, key);
            while expected.front().is_some_and(|(own, _)| *own < key) {
                expected.pop_front();
            }
        }
        let is_back = random.u8(0..4) < backwards;
        let next = if is_back { found.next_back() } else { found.next() }.transpose()?;
        let own = if is_back { expected.pop_back() } else { expected.pop_front() };
        assert_eq!(next, own.map(row));
        if next.is_none() {
            return Ok(());
        }
    }
    Ok(())
}

type Edges = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn some_range(name: &str, random: &mut fastrand::Rng) -> Edges {
    let mut bound = || match random.u8(0..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key_of(name, random)),
        _ => Bound::Excluded(key_of(name, random)),
    };
    (bound(), bound())
}

fn is_in((from, to): &Edges, key: &[u8]) -> bool {
    (match from {
        Bound::Included(from) => key >= &from[..],
        Bound::Excluded(from) => key > &from[..],
        Bound::Unbounded => true,
    }) && match to {
        Bound::Included(to) => key <= &to[..],
        Bound::Excluded(to) => key < &to[..],
        Bound::Unbounded => true,
    }
}

fn edges((from, to): &Edges) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice))
}

/// Reads through a transaction or a snapshot. Calls a random one of the reading functions that both have.
fn read<R: Reader>(
    handle: &R,
    (name, table, rows): (&str, &Table, &Rows),
    random: &mut fastrand::Rng,
) -> Result<(), Error> {
    let key = key_of(name, random);
    match random.u8(0..8) {
        0..=1 => assert_eq!(handle.get(table, &key)?.as_ref(), rows.get(&key).map(|value| &**value)),
        2 => assert_eq!(handle.contains(table, &key)?, rows.contains_key(&key)),
        3 => assert_eq!(handle.first(table)?, rows.first_key_value().map(row)),
        4 => assert_eq!(handle.last(table)?, rows.last_key_value().map(row)),
        5 => {
            let prefix = &key[..random.usize(0..=key.len().min(3))];
            let expected = rows.iter().filter(|(key, _)| key.starts_with(prefix)).collect();
            walk(handle.prefix(table, prefix), expected, random, None)?;
        }
        _ => {
            let range = some_range(name, random);
            let expected = rows.iter().filter(|(key, _)| is_in(&range, key)).collect();
            walk(handle.scan(table, edges(&range)), expected, random, None)?;
        }
    }
    Ok(())
}

/// A transaction, and the content of the store that this transaction has to see.
struct Own<'r> {
    store: &'r Store,
    tx: Transaction,
    content: Content,
    savepoints: Vec<(Savepoint, Content)>,
    random: &'r mut fastrand::Rng,
}

impl Own<'_> {
    fn step(&mut self) -> Result<(), Error> {
        match self.random.u8(0..21) {
            20 => self.store.checkpoint()?,
            0 => self.savepoints.push((self.tx.savepoint(), self.content.clone())),
            1 => self.back()?,
            2..=3 => self.typed()?,
            4 => self.catalog()?,
            5..=9 => self.look()?,
            _ => self.change()?,
        }
        Ok(())
    }

    /// Chooses the name of a table at random, and makes the table if it does not exist.
    fn table(&mut self) -> Result<(&'static str, Table), Error> {
        let is_bulk = self.content.contains_key(BULK) && self.random.u8(0..3) == 0;
        let name = if is_bulk { BULK } else { NAMES[self.random.usize(0..3)] };
        self.content.entry(name.to_owned()).or_default();
        Ok((name, self.tx.table(name)?))
    }

    fn rows(&mut self, name: &str) -> &mut Rows {
        Arc::make_mut(self.content.get_mut(name).unwrap())
    }

    fn back(&mut self) -> Result<(), Error> {
        if self.savepoints.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(0..self.savepoints.len());
        self.savepoints.truncate(at + 1);
        let (savepoint, content) = self.savepoints[at].clone();
        self.tx.rollback_to(savepoint)?;
        self.content = content;
        Ok(())
    }

    fn change(&mut self) -> Result<(), Error> {
        let (name, table) = self.table()?;
        let (key, value) = (key_of(name, self.random), value_of(name, self.random));
        match self.random.u8(0..8) {
            0..=1 => {
                let was_there = self.rows(name).remove(&key).is_some();
                assert_eq!(self.tx.delete(&table, &key)?, was_there);
                return Ok(());
            }
            2 => match self.tx.insert(&table, &key, &value) {
                Err(Error::Exists) => {
                    assert!(self.rows(name).contains_key(&key));
                    return Ok(());
                }
                done => {
                    done?;
                    assert!(!self.rows(name).contains_key(&key));
                }
            },
            3 => {
                // The source yields the value in two pieces.
                let (begin, end) = value.split_at(value.len() / 3);
                assert_eq!(self.tx.put_stream(&table, &key, &mut begin.chain(end))?, value.len() as u64);
            }
            4..=5 => {
                let count = self.random.usize(1..60);
                let some: Rows = (0..count)
                    .map(|_| (key_of(name, self.random), value_of(name, self.random).into()))
                    .filter(|(_, value): &(_, Arc<Vec<u8>>)| value.len() < 2000)
                    .collect();
                self.tx.put_all(&table, some.iter().map(|(key, value)| (key, &**value)))?;
                self.rows(name).extend(some);
                return Ok(());
            }
            _ => self.tx.put(&table, &key, &value)?,
        }
        self.rows(name).insert(key, Arc::new(value));
        Ok(())
    }

    fn look(&mut self) -> Result<(), Error> {
        let (name, table) = self.table()?;
        let rows = Arc::clone(&self.content[name]);
        let key = key_of(name, self.random);
        let own = rows.get(&key).map(|value| &**value);
        match self.random.u8(0..8) {
            0 => assert_eq!(self.tx.get_for_update(&table, &key)?.as_ref(), own),
            1 => {
                let found = self.tx.get_stream(&table, &key)?.map(|mut reader| {
                    let mut found = Vec::new();
                    let len = reader.len();
                    reader.read_to_end(&mut found).unwrap();
                    assert_eq!(len, found.len() as u64);
                    found
                });
                assert_eq!(found.as_ref(), own);
            }
            2 => {
                // The number is approximate, but it must be 0 for an empty table.
                let len = self.tx.approximate_len(&table)?;
                assert!(!rows.is_empty() || len == 0, "{len} rows of none");
            }
            3..=4 => {
                let range = some_range(name, self.random);
                let expected = rows.iter().filter(|(key, _)| is_in(&range, key)).collect();
                let found = self.tx.scan(&table, edges(&range));
                walk(found, expected, self.random, Some(|scan, key| scan.seek(key)))?;
            }
            _ => read(&self.tx, (name, &table, &rows), self.random)?,
        }
        Ok(())
    }

    fn typed(&mut self) -> Result<(), Error> {
        self.content.entry(TYPED.to_owned()).or_default();
        let table: Typed = self.tx.table(TYPED)?.into();
        let word = |random: &mut fastrand::Rng| {
            (0..random.usize(0..3)).map(|_| ['\0', 'a', 'ÿ'][random.usize(0..3)]).collect::<String>()
        };
        let key = (word(self.random), self.random.u64(0..9));
        let mut bytes = Vec::new();
        <(String, u64)>::encode_last(&key, &mut bytes);
        let own = self.content[TYPED].get(&bytes).map(|value| String::from_utf8(value.to_vec()).unwrap());
        match self.random.u8(0..5) {
            0 => {
                assert_eq!(table.delete(&mut self.tx, &key)?, own.is_some());
                self.rows(TYPED).remove(&bytes);
            }
            1 => assert_eq!(table.get(&self.tx, &key)?, own),
            2 => {
                let rows = Arc::clone(&self.content[TYPED]);
                let range = (Bound::Included(bytes.clone()), Bound::Unbounded);
                let expected = rows.iter().filter(|(key, _)| is_in(&range, key));
                let expected: Vec<_> = expected
                    .map(|(key, value)| {
                        let key = <(String, u64)>::decode_last(key).unwrap();
                        (key, String::from_utf8(value.to_vec()).unwrap())
                    })
                    .collect();
                let found: Vec<_> = table.scan(&self.tx, key..).collect::<Result<_, _>>()?;
                assert_eq!(found, expected);
            }
            _ => {
                let value = word(self.random);
                table.put(&mut self.tx, &key, &value)?;
                self.rows(TYPED).insert(bytes, Arc::new(value.into_bytes()));
            }
        }
        Ok(())
    }

    fn catalog(&mut self) -> Result<(), Error> {
        let [from, to] = [0; 2].map(|_| NAMES[self.random.usize(0..4)]);
        if self.random.bool() {
            let was_there = self.content.remove(from).is_some();
            assert_eq!(self.tx.drop_table(from)?, was_there);
            return Ok(());
        }
        renamed(self.tx.rename_table(from, to), &mut self.content, from, to)
    }
}

/// Checks the result of a renaming against the model, and applies the renaming to the model.
fn renamed(done: Result<(), Error>, content: &mut Content, from: &str, to: &str) -> Result<(), Error> {
    match done {
        Err(Error::NoTable { .. }) => assert!(!content.contains_key(from)),
        Err(Error::TableExists { .. }) => assert!(content.contains_key(to)),
        done => {
            done?;
            let rows = content.remove(from).unwrap();
            assert!(content.insert(to.to_owned(), rows).is_none());
        }
    }
    Ok(())
}

/// A snapshot, and what it has to show.
struct Seen {
    snapshot: Snapshot,
    tables: Vec<(String, Table, Arc<Rows>)>,
}

/// Makes random calls of a store, one after another.
pub struct Walker<'s> {
    pub store: &'s Store,
    pub random: fastrand::Rng,
    witness: &'s dyn Witness,
    /// The committed content, as the model knows it.
    pub now: Content,
    number: u64,
    seen: Vec<Seen>,
    tickets: Vec<Ticket>,
}

impl<'s> Walker<'s> {
    /// Makes a walker for a store that has the content `now`.
    pub fn new(store: &'s Store, seed: u64, now: Content, witness: &'s dyn Witness) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { store, random, witness, now, number: 0, seen: vec![], tickets: vec![] }
    }

    /// Makes one random call.
    pub fn step(&mut self) -> Result<(), Error> {
        match self.random.u8(0..24) {
            0 => self.store.checkpoint(),
            1 => self.store.compact().map(|_| ()),
            2 => self.verify(),
            3..=4 => self.open_snapshot(),
            5..=8 => self.look(),
            9 => {
                if !self.seen.is_empty() {
                    let at = self.random.usize(0..self.seen.len());
                    self.seen.swap_remove(at);
                }
                Ok(())
            }
            10..=11 => self.tables(),
            _ => self.transaction(),
        }
    }

    fn verify(&mut self) -> Result<(), Error> {
        let verified = self.store.verify()?;
        assert_eq!(verified.tables, self.now.len() as u64);
        if verified.dropped == 0 {
            let rows = self.now.values().map(|rows| rows.len() as u64).sum::<u64>();
            assert_eq!(verified.rows, rows);
        }
        Ok(())
    }

    fn transaction(&mut self) -> Result<(), Error> {
        let (tx, content) = (self.store.begin(), self.now.clone());
        let steps = self.random.usize(1..12);
        let mut own = Own { store: self.store, tx, content, savepoints: vec![], random: &mut self.random };
        for _ in 0..steps {
            own.step()?;
        }
        let Own { tx, content, .. } = own;
        match self.random.u8(0..8) {
            0 => tx.rollback(),
            1 => {
                drop(tx);
                Ok(())
            }
            2..=3 => {
                self.commits(content);
                let ticket = tx.commit_async()?;
                self.tickets.push(ticket);
                if self.tickets.len() == 3 { self.wait() } else { Ok(()) }
            }
            _ => self.committing(content, |_| tx.commit()),
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.tickets.drain(..).try_for_each(|ticket| ticket.wait())?;
        self.witness.acknowledged(self.number);
        Ok(())
    }

    fn commits(&mut self, content: Content) {
        self.number += 1;
        self.witness.commits(self.number, &content);
        self.now = content;
    }

    /// Runs a call that commits durably. The commit gives the store this content.
    fn committing<T>(
        &mut self,
        content: Content,
        commit: impl FnOnce(&Store) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.commits(content);
        let done = commit(self.store)?;
        // A durable commit makes all earlier commits durable too.
        self.wait()?;
        Ok(done)
    }

    /// Calls a random function of the store that needs no open transaction: makes, renames, drops or lists tables, or
    /// puts a row with `Store::run`.
    fn tables(&mut self) -> Result<(), Error> {
        let [name, to] = [0; 2].map(|_| NAMES[self.random.usize(0..4)]);
        let mut content = self.now.clone();
        match self.random.u8(0..5) {
            0 => {
                let was_there = content.remove(name).is_some();
                assert_eq!(self.committing(content, |store| store.drop_table(name))?, was_there);
            }
            1 => {
                let before = content.clone();
                if content.contains_key(name) && !content.contains_key(to) {
                    renamed(Ok(()), &mut content, name, to)?;
                    self.committing(content, |store| store.rename_table(name, to))?;
                } else {
                    let refused = self.store.rename_table(name, to);
                    assert!(refused.is_err());
                    renamed(refused, &mut content, name, to)?;
                    assert_eq!(content, before);
                }
            }
            2 => {
                content.entry(name.to_owned()).or_default();
                assert_eq!(self.committing(content, |store| store.table(name))?.name(), name);
            }
            3 => {
                let names = self.store.tables()?;
                assert!(names.iter().eq(self.now.keys()), "{names:?}");
            }
            _ => {
                let (key, value) = (some_key(&mut self.random), value_of(name, &mut self.random));
                content.entry(name.to_owned()).or_default();
                Arc::make_mut(content.get_mut(name).unwrap()).insert(key.clone(), Arc::new(value.clone()));
                self.committing(content, |store| {
                    store.run(|tx| {
                        let table = tx.table(name)?;
                        tx.put(&table, &key, &value)
                    })
                })?;
            }
        }
        Ok(())
    }

    fn open_snapshot(&mut self) -> Result<(), Error> {
        let handle = |(name, rows): (&String, &Arc<Rows>)| {
            self.store.table(name).map(|table| (name.clone(), table, Arc::clone(rows)))
        };
        let tables = self.now.iter().map(handle).collect::<Result<_, _>>()?;
        self.seen.truncate(3);
        self.seen.push(Seen { snapshot: self.store.snapshot(), tables });
        Ok(())
    }

    /// Reads from a snapshot, which has to show the content that the store had when the snapshot was opened.
    fn look(&mut self) -> Result<(), Error> {
        if self.seen.is_empty() {
            return self.open_snapshot();
        }
        let Seen { snapshot, tables } = &self.seen[self.random.usize(0..self.seen.len())];
        for _ in 0..self.random.usize(1..6) {
            if tables.is_empty() {
                break;
            }
            let (name, table, rows) = &tables[self.random.usize(0..tables.len())];
            // `read` may choose a key that only another table has. It must not find that key in this table.
            read(snapshot, (name, table, rows), &mut self.random)?;
        }
        Ok(())
    }
}
