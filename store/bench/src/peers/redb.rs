//! redb: copy on write, and one writer at a time.

use std::path::Path;

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::kv::{Db, Done, Memory, Schema, Session, Span, Tx, Visit, Work, each};

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;
type WriteTable<'t> = redb::Table<'t, &'static [u8], &'static [u8]>;
type ReadTable = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

struct Redb {
    database: Database,
    tables: Vec<Definition>,
}

pub(super) fn open(dir: &Path, schema: Schema, memory: Memory) -> Result<Box<dyn Db>> {
    let mut builder = Database::builder();
    builder.set_cache_size(memory.cache_bytes as usize);
    let database = builder.create(dir.join("redb"))?;
    let tables: Vec<Definition> = schema.iter().map(|name| TableDefinition::new(name)).collect();
    let tx = database.begin_write()?;
    for table in &tables {
        tx.open_table(*table)?;
    }
    tx.commit()?;
    Ok(Box::new(Redb { database, tables }))
}

impl Db for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession(self)))
    }
}

struct RedbSession<'d>(&'d Redb);

impl Session for RedbSession<'_> {
    fn attempt(&mut self, writes: bool, work: &mut Work<'_>) -> Done<()> {
        let Redb { database, tables } = self.0;
        if !writes {
            let tx = database.begin_read()?;
            let tables = tables.iter().map(|table| tx.open_table(*table)).collect::<Result<Vec<_>, _>>()?;
            return work(&mut Reading(tables));
        }
        let mut tx: WriteTransaction = database.begin_write()?;
        tx.set_durability(Durability::Immediate)?;
        let done = {
            let opened = tables.iter().map(|table| tx.open_table(*table)).collect::<Result<Vec<_>, _>>()?;
            work(&mut Writing(opened))
        };
        match done {
            Ok(()) => Ok(tx.commit()?),
            Err(error) => {
                tx.abort()?;
                Err(error)
            }
        }
    }
}

struct Writing<'t>(Vec<WriteTable<'t>>);

struct Reading(Vec<ReadTable>);

fn get<T: ReadableTable<&'static [u8], &'static [u8]>>(table: &T, key: &[u8]) -> Done<Option<Vec<u8>>> {
    Ok(table.get(key)?.map(|value| value.value().to_vec()))
}

fn scan<T: ReadableTable<&'static [u8], &'static [u8]>>(
    table: &T,
    span: Span<'_>,
    visit: &mut Visit<'_>,
) -> Done<()> {
    each(table.range::<&[u8]>(span.from..span.to)?, span.is_reverse, |row| {
        let (key, value) = row?;
        Ok(visit(key.value(), value.value()))
    })
}

impl Tx for Writing<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        get(&self.0[table], key)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()> {
        self.0[table].insert(key, value)?;
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()> {
        self.0[table].remove(key)?;
        Ok(())
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        scan(&self.0[table], span, visit)
    }
}

impl Tx for Reading {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        get(&self.0[table], key)
    }

    fn put(&mut self, _table: usize, _key: &[u8], _value: &[u8]) -> Done<()> {
        Err(std::io::Error::other("a write in a transaction that reads").into())
    }

    fn delete(&mut self, _table: usize, _key: &[u8]) -> Done<()> {
        Err(std::io::Error::other("a write in a transaction that reads").into())
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        scan(&self.0[table], span, visit)
    }
}
