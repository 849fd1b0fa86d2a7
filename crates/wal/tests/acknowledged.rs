//! Tests at which of SQLite's writes a transaction is sealed. Also tests which committed frames a writer may overwrite:
//! only those of a transaction whose process died before it acknowledged the commit (invariant 15).

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{Model, Rng, contents, fresh_medium, open};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::nvwal::Nvwal;
use duralite_wal::log::stream::WalStream;
use duralite_wal::{LogError, NvwalOptions};

#[test]
fn inv15_a_frame_that_was_acknowledged_is_not_replaced() {
    let options = NvwalOptions::default();
    let mut stream = open(Arc::new(fresh_medium(&options, 4096)), &options).expect("open");
    let mut rng = Rng(15);
    let mut model = Model::new(4096, 6);
    let (at, header) = model.restart();
    stream.write(&NoDatabase, at, &header).expect("header");
    let first = model.transaction(&mut rng, false);
    for (at, bytes) in &first.writes {
        stream.write(&NoDatabase, *at, bytes).expect("first");
    }
    model.commit(first);
    let acknowledged = (stream.engine().version() >> 32) << 32 | model.frames();

    // A transaction is sealed and its process dies. Another transaction then replaces it.
    let lost = model.transaction(&mut rng, false);
    for (at, bytes) in &lost.writes {
        stream.write(&NoDatabase, *at, bytes).expect("lost");
    }
    stream.set_acknowledged(acknowledged);
    let second = model.transaction(&mut rng, false);
    for (at, bytes) in &second.writes {
        stream.write(&NoDatabase, *at, bytes).expect("in place of one that nobody was told of");
    }
    model.commit(second);
    assert_eq!(contents(&mut stream), model.committed);

    // The second transaction is acknowledged. Then a writer whose wal-index lacks that transaction writes the same
    // frames.
    stream.set_acknowledged((stream.engine().version() >> 32) << 32 | model.frames());
    let refused =
        lost.writes.iter().try_for_each(|(at, bytes)| stream.write(&NoDatabase, *at, bytes).map(|_| ()));
    assert!(
        matches!(refused, Err(LogError::Unexpected(what)) if what.contains("acknowledged")),
        "{refused:?}"
    );
    assert_eq!(contents(&mut stream), model.committed);

    // In the next generation frame numbers begin again with 1.
    let (at, header) = model.restart();
    stream.write(&NoDatabase, at, &header).expect("header");
    let third = model.transaction(&mut rng, false);
    for (at, bytes) in &third.writes {
        stream.write(&NoDatabase, *at, bytes).expect("third");
    }
    model.commit(third);
    assert_eq!(contents(&mut stream), model.committed);
}

#[test]
fn the_write_that_seals_a_transaction_tells_of_it_and_no_other_does() {
    for spill in [false, true] {
        let options = NvwalOptions::default();
        let nvm = Arc::new(fresh_medium(&options, 4096));
        let mut stream = open(nvm.clone(), &options).expect("open");
        let other = Nvwal::open(nvm, Path::new("model"), options.clone()).expect("join");
        let mut other = WalStream::new(other);
        let mut rng = Rng(16);
        let mut model = Model::new(4096, 6);
        let (at, header) = model.restart();
        assert!(stream.write(&NoDatabase, at, &header).expect("header").is_none());
        let first = model.transaction(&mut rng, spill);
        let (last, before) = first.writes.split_last().expect("writes");
        for (at, bytes) in before {
            assert!(stream.write(&NoDatabase, *at, bytes).expect("write").is_none());
        }
        let sealed = stream.write(&NoDatabase, last.0, &last.1).expect("the last write").expect("sealed");
        model.commit(first);
        let commit = (stream.engine().version() >> 32) << 32 | model.frames();
        assert_eq!((sealed.commit, sealed.ticket), (commit, None));
        assert_eq!(u64::from(stream.engine().committed()), model.frames());
        assert_eq!(sealed.fill, stream.engine().fill());
        // When another process writes, it learns that the transaction was sealed, although it has sealed nothing
        // itself.
        let known = other.engine().version();
        let second = model.transaction(&mut rng, false);
        let (at, bytes) = &second.writes[0];
        assert!(other.write(&NoDatabase, *at, bytes).expect("a header").is_none());
        assert_ne!(other.engine().version(), known);
    }
}
