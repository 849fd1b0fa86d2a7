//! Follows the log of a database.

use std::io::{BufRead, Write};
use std::path::Path;

use duralite_journal::{EngineOptions, Follower, PoolConfig, PoolKind};

/// Pins the log from where it begins, prints `pinned`, and answers each line with the position after the
/// newest transaction.
pub fn run(kind: &str, dir: &str, database: &str) {
    let kind = if kind == "waldio" { PoolKind::Disk } else { PoolKind::Emulate };
    let pool = PoolConfig { kind, dir: dir.into() };
    let mut follower = Follower::open(&pool, &EngineOptions::default(), Path::new(database)).unwrap();
    let oldest = follower.oldest().unwrap();
    assert!(follower.pin(oldest).unwrap());
    let mut out = std::io::stdout();
    writeln!(out, "pinned").unwrap();
    for line in std::io::stdin().lock().lines() {
        line.unwrap();
        writeln!(out, "{}", follower.newest().unwrap()).unwrap();
    }
}
