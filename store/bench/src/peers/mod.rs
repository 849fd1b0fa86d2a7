//! Other stores that users may choose instead, each as a [`Db`](crate::kv::Db).

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "heed")]
mod heed;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sqlite;
#[cfg(feature = "turso")]
mod turso;

use std::path::Path;

use anyhow::{Result, bail};

use crate::kv::{Db, Memory, Schema};

/// The names of all other stores. The flag says whether this program was built with the store.
pub(crate) const PEERS: [(&str, bool); 7] = [
    ("sqlite", true),
    ("waldio", true),
    ("redb", cfg!(feature = "redb")),
    ("fjall", cfg!(feature = "fjall")),
    ("rocksdb", cfg!(feature = "rocksdb")),
    ("lmdb", cfg!(feature = "heed")),
    ("turso", cfg!(feature = "turso")),
];

/// Returns the name that the tables show for a peer.
pub(crate) fn title(name: &str) -> &'static str {
    match name {
        "sqlite" => "stock SQLite, WAL",
        "waldio" => "SQLite on waldio",
        "redb" => "redb",
        "fjall" => "fjall",
        "rocksdb" => "RocksDB TransactionDB",
        "lmdb" => "LMDB",
        _ => "Turso, MVCC",
    }
}

/// Makes or opens a peer in a directory. Keeps its log in another directory if the peer supports that. Every commit is
/// durable.
pub(crate) fn open(
    name: &str,
    dir: &Path,
    log_dir: &Path,
    schema: Schema,
    memory: Memory,
) -> Result<Box<dyn Db>> {
    std::fs::create_dir_all(dir)?;
    std::fs::create_dir_all(log_dir)?;
    match name {
        "sqlite" => sqlite::open(dir, None, schema, memory),
        "waldio" => sqlite::open(dir, Some(log_dir), schema, memory),
        #[cfg(feature = "redb")]
        "redb" => redb::open(dir, schema, memory),
        #[cfg(feature = "fjall")]
        "fjall" => fjall::open(dir, schema, memory),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => rocksdb::open(dir, log_dir, schema, memory),
        #[cfg(feature = "heed")]
        "lmdb" => heed::open(dir, schema),
        #[cfg(feature = "turso")]
        "turso" => turso::open(dir, schema),
        _ => bail!("{name} is not built; name it with --features"),
    }
}
