//! Follows the log of a database.

use std::io::{BufRead, Write};
use std::path::Path;

use duralite_testkit::Engine;
use duralite_wal::engine::media::MediaSet;
use duralite_wal::{EngineOptions, Follower, LogPlacement};

/// Pins the log at its oldest position, so that it does not start over, and prints `pinned`. After that, for
/// each line of input, prints the position after the newest transaction. If the line is `announce`, first
/// announces that the archive has everything up to that position.
pub fn run(engine: &str, dir: &str, database: &str) {
    let engine = Engine::named(engine).unwrap().descriptor();
    let logs = LogPlacement::at(engine, Path::new(dir), &MediaSet::default());
    let mut follower = Follower::open(&logs, &EngineOptions::default(), Path::new(database)).unwrap();
    let oldest = follower.oldest().unwrap();
    assert!(follower.pin(oldest).unwrap());
    let mut out = std::io::stdout();
    writeln!(out, "pinned").unwrap();
    for line in std::io::stdin().lock().lines() {
        let newest = follower.newest().unwrap();
        if line.unwrap() == "announce" {
            follower.announce_sidecar(newest, 0).unwrap();
        }
        writeln!(out, "{newest}").unwrap();
    }
}
