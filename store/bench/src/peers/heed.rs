//! LMDB: a memory-mapped file with copy-on-write pages, and one writer at a time.

use std::ops::Bound;
use std::path::Path;

use anyhow::Result;
use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions, RoTxn, RwTxn, WithTls};

use crate::kv::{Db, Done, Fail, Schema, Session, Span, Tx, Visit, Work};

/// The size of the mapped address range. The file itself grows only as needed.
const MAP_BYTES: usize = 64 << 30;

type Table = Database<Bytes, Bytes>;

struct Lmdb {
    env: Env,
    tables: Vec<Table>,
}

#[allow(unsafe_code)] // the file is mapped
pub(super) fn open(dir: &Path, schema: Schema) -> Result<Box<dyn Db>> {
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES).max_dbs(schema.len() as u32).max_readers(512);
    // SAFETY: no other process changes the file, and this process opens it only once.
    let env = unsafe { options.open(dir)? };
    let mut tx = env.write_txn()?;
    let tables =
        schema.iter().map(|name| env.create_database(&mut tx, Some(name))).collect::<Result<_, _>>()?;
    tx.commit()?;
    Ok(Box::new(Lmdb { env, tables }))
}

impl Db for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LmdbSession(self)))
    }
}

struct LmdbSession<'d>(&'d Lmdb);

impl Session for LmdbSession<'_> {
    fn attempt(&mut self, writes: bool, work: &mut Work<'_>) -> Done<()> {
        let Lmdb { env, tables } = self.0;
        if !writes {
            return work(&mut Reading(env.read_txn()?, tables));
        }
        // Dropping a transaction rolls it back.
        let mut tx = Writing(env.write_txn()?, tables);
        work(&mut tx)?;
        Ok(tx.0.commit()?)
    }
}

struct Reading<'d>(RoTxn<'d, WithTls>, &'d [Table]);

struct Writing<'d>(RwTxn<'d>, &'d [Table]);

fn rows(table: Table, tx: &RoTxn<'_>, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
    let Span { from, to, is_reverse } = span;
    // LMDB allows no empty keys, not even as a bound.
    let from = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
    let range = (from, Bound::Excluded(to));
    let mut show = |row: heed::Result<(&[u8], &[u8])>| -> Done<bool> {
        let (key, value) = row?;
        Ok(visit(key, value))
    };
    if is_reverse {
        for row in table.rev_range(tx, &range)? {
            if !show(row)? {
                break;
            }
        }
        return Ok(());
    }
    for row in table.range(tx, &range)? {
        if !show(row)? {
            break;
        }
    }
    Ok(())
}

fn only_reads() -> Fail {
    std::io::Error::other("a write in a transaction that reads").into()
}

impl Tx for Reading<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        Ok(self.1[table].get(&self.0, key)?.map(<[u8]>::to_vec))
    }

    fn put(&mut self, _table: usize, _key: &[u8], _value: &[u8]) -> Done<()> {
        Err(only_reads())
    }

    fn delete(&mut self, _table: usize, _key: &[u8]) -> Done<()> {
        Err(only_reads())
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        rows(self.1[table], &self.0, span, visit)
    }
}

impl Tx for Writing<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        Ok(self.1[table].get(&self.0, key)?.map(<[u8]>::to_vec))
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()> {
        Ok(self.1[table].put(&mut self.0, key, value)?)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()> {
        self.1[table].delete(&mut self.0, key)?;
        Ok(())
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        rows(self.1[table], &self.0, span, visit)
    }
}
