//! fjall: a log-structured merge tree, with optimistic transactions.

use std::path::Path;

use anyhow::Result;
use fjall::{
    KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, OptimisticWriteTx, PersistMode,
    Readable,
};

use crate::kv::{Db, Done, Fail, Memory, Schema, Session, Span, Tx, Visit, Work, each};

struct Fjall {
    database: OptimisticTxDatabase,
    tables: Vec<OptimisticTxKeyspace>,
}

pub(super) fn open(dir: &Path, schema: Schema, memory: Memory) -> Result<Box<dyn Db>> {
    let database = OptimisticTxDatabase::builder(dir.join("fjall")).cache_size(memory.cache_bytes).open()?;
    let options = || {
        let options = KeyspaceCreateOptions::default();
        // Divides by two, because one memtable is written while the next one fills.
        let part = |bytes| bytes / 2 / schema.len() as u64;
        memory.buffer_bytes.map_or(options.clone(), |bytes| options.max_memtable_size(part(bytes)))
    };
    let tables = schema.iter().map(|name| database.keyspace(name, options)).collect::<Result<_, _>>()?;
    Ok(Box::new(Fjall { database, tables }))
}

impl Db for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession(self)))
    }
}

struct FjallSession<'d>(&'d Fjall);

impl Session for FjallSession<'_> {
    fn attempt(&mut self, writes: bool, work: &mut Work<'_>) -> Done<()> {
        let Fjall { database, tables } = self.0;
        let durability = if writes { Some(PersistMode::SyncData) } else { None };
        let tx = database.write_tx()?.durability(durability);
        let mut tx = FjallTx { tx, tables };
        match work(&mut tx) {
            Ok(()) => tx.tx.commit()?.map_err(|_| Fail::Retry),
            Err(error) => {
                tx.tx.rollback();
                Err(error)
            }
        }
    }
}

struct FjallTx<'d> {
    tx: OptimisticWriteTx,
    tables: &'d [OptimisticTxKeyspace],
}

impl Tx for FjallTx<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        Ok(self.tx.get(&self.tables[table], key)?.map(|value| value.to_vec()))
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()> {
        self.tx.insert(&self.tables[table], key, value);
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()> {
        self.tx.remove(&self.tables[table], key);
        Ok(())
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        let rows = self.tx.range::<&[u8], _>(&self.tables[table], span.from..span.to);
        each(rows, span.is_reverse, |row| {
            let (key, value) = row.into_inner()?;
            Ok(visit(&key, &value))
        })
    }
}
