//! Which committed frames may be written again: only those of a transaction whose process died before it acknowledged
//! the commit (invariant 15).

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::sync::Arc;

use common::{Model, Rng, contents, fresh_medium, open};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
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

    // This transaction is sealed and then its process dies: another transaction takes its place.
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

    // The second transaction is acknowledged. Then a writer comes whose wal-index does not know it.
    stream.set_acknowledged((stream.engine().version() >> 32) << 32 | model.frames());
    let refused =
        lost.writes.iter().try_for_each(|(at, bytes)| stream.write(&NoDatabase, *at, bytes).map(|_| ()));
    assert!(
        matches!(refused, Err(LogError::Unexpected(what)) if what.contains("acknowledged")),
        "{refused:?}"
    );
    assert_eq!(contents(&mut stream), model.committed);

    // In the next generation the frame numbers begin anew.
    let (at, header) = model.restart();
    stream.write(&NoDatabase, at, &header).expect("header");
    let third = model.transaction(&mut rng, false);
    for (at, bytes) in &third.writes {
        stream.write(&NoDatabase, *at, bytes).expect("third");
    }
    model.commit(third);
    assert_eq!(contents(&mut stream), model.committed);
}

/// A write that only finds another process's transaction seals nothing. If its connection took that transaction for its
/// own, it would acknowledge one that SQLite has not published.
#[test]
fn inv15_a_transaction_is_handed_to_the_writer_that_sealed_it_alone() {
    let options = NvwalOptions::default();
    let medium = Arc::new(fresh_medium(&options, 4096));
    let mut first = open(medium.clone(), &options).expect("open");
    let mut second = open(medium, &options).expect("open again");
    let (mut rng, mut model) = (Rng(16), Model::new(4096, 6));
    let (at, header) = model.restart();
    assert!(first.write(&NoDatabase, at, &header).expect("header").is_none());
    let transaction = model.transaction(&mut rng, false);
    let mut handed = Vec::new();
    for (at, bytes) in &transaction.writes {
        handed.extend(first.write(&NoDatabase, *at, bytes).expect("write"));
    }
    model.commit(transaction);
    let [sealed] = &handed[..] else { panic!("{handed:?}") };
    assert_eq!(sealed.commit, (first.engine().version() >> 32) << 32 | model.frames());
    assert_eq!(u64::from(first.engine().committed()), model.frames());

    let before = second.engine().version();
    let (at, head) = &model.transaction(&mut rng, false).writes[0];
    assert!(second.write(&NoDatabase, *at, head).expect("a frame's header").is_none());
    assert_ne!(second.engine().version(), before, "the write has found the transaction");
}
