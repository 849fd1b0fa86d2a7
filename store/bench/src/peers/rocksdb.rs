//! RocksDB with pessimistic transactions, each of which is synced.

use std::path::Path;

use anyhow::Result;
use rocksdb::{
    BlockBasedOptions, BoundColumnFamily, Cache, ColumnFamilyDescriptor, Direction, ErrorKind, IteratorMode,
    MultiThreaded, Options, ReadOptions, Transaction, TransactionDB, TransactionDBOptions,
    TransactionOptions, WriteOptions,
};

use crate::kv::{Db, Done, Fail, Memory, Schema, Session, Span, Tx, Visit, Work};

type Database = TransactionDB<MultiThreaded>;

struct Rocks {
    database: Database,
    schema: Schema,
}

pub(super) fn open(dir: &Path, log_dir: &Path, schema: Schema, memory: Memory) -> Result<Box<dyn Db>> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_wal_dir(log_dir.join("rocksdb-log"));
    if let Some(bytes) = memory.buffer_bytes {
        options.set_db_write_buffer_size(bytes as usize);
        options.set_write_buffer_size(bytes as usize / 4);
        // By default, RocksDB keeps two flushed buffers of each column family in memory, so that optimistic
        // transactions can validate against them. The transactions here lock their rows instead, so they need no such
        // buffers.
        options.set_max_write_buffer_size_to_maintain(1);
    }
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(memory.cache_bytes as usize)?);
    blocks.set_bloom_filter(10.0, false);
    // By default, index and filter blocks take memory outside the cache, in proportion to the number of table files.
    // Put them into the cache, so that its limit holds for them too.
    blocks.set_cache_index_and_filter_blocks(true);
    options.set_block_based_table_factory(&blocks);
    let mut transactions = TransactionDBOptions::new();
    transactions.set_default_lock_timeout(1000);
    let families = schema.iter().map(|name| ColumnFamilyDescriptor::new(*name, options.clone()));
    let database = Database::open_cf_descriptors(&options, &transactions, dir.join("rocksdb"), families)?;
    Ok(Box::new(Rocks { database, schema }))
}

impl Db for Rocks {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RocksSession(self)))
    }
}

struct RocksSession<'d>(&'d Rocks);

/// Converts an error. The benchmark tries a transaction again if it got a lock timeout or a deadlock.
fn fail(error: rocksdb::Error) -> Fail {
    match error.kind() {
        ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::TryAgain => Fail::Retry,
        _ => Fail::Broken(error.into()),
    }
}

impl Session for RocksSession<'_> {
    fn attempt(&mut self, _writes: bool, work: &mut Work<'_>) -> Done<()> {
        let Rocks { database, schema } = self.0;
        let mut write = WriteOptions::default();
        write.set_sync(true);
        let mut options = TransactionOptions::default();
        options.set_deadlock_detect(true);
        let tables = schema.iter().filter_map(|name| database.cf_handle(name)).collect();
        let mut tx = RocksTx { tx: database.transaction_opt(&write, &options), tables };
        match work(&mut tx) {
            Ok(()) => tx.tx.commit().map_err(fail),
            Err(error) => {
                tx.tx.rollback()?;
                Err(error)
            }
        }
    }
}

struct RocksTx<'d> {
    tx: Transaction<'d, Database>,
    tables: Vec<std::sync::Arc<BoundColumnFamily<'d>>>,
}

impl Tx for RocksTx<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        self.tx.get_cf(&self.tables[table], key).map_err(fail)
    }

    fn get_for_update(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        self.tx.get_for_update_cf(&self.tables[table], key, true).map_err(fail)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()> {
        self.tx.put_cf(&self.tables[table], key, value).map_err(fail)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()> {
        self.tx.delete_cf(&self.tables[table], key).map_err(fail)
    }

    // Scans take no locks and read committed rows, because RocksDB has no range locks.
    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        let Span { from, to, is_reverse } = span;
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(from);
        options.set_iterate_upper_bound(to);
        let mode = if is_reverse { IteratorMode::End } else { IteratorMode::From(from, Direction::Forward) };
        for row in self.tx.iterator_cf_opt(&self.tables[table], options, mode) {
            let (key, value) = row.map_err(fail)?;
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
