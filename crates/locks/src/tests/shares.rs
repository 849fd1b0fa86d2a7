//! Locks that the threads of one process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duralite_medium::LocalSegment;

use crate::table::Shares;
use crate::{FIRST_READ, LAYOUT_BYTES, Table};

#[test]
fn threads_that_share_a_lock_never_meet_one_that_has_it_alone() {
    let table = Table::join(Arc::new(LocalSegment::new(LAYOUT_BYTES)), 0);
    let (sharing, alone) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let holder = table.holder();
                for _ in 0..20_000 {
                    if holder.lock_shared(FIRST_READ).is_ok() {
                        sharing.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(alone.load(Ordering::SeqCst), 0);
                        sharing.fetch_sub(1, Ordering::SeqCst);
                        holder.unlock_shared(FIRST_READ);
                    }
                }
            });
        }
        scope.spawn(|| {
            let holder = table.holder();
            for _ in 0..20_000 {
                if holder.lock_exclusive(FIRST_READ, 1).is_ok() {
                    alone.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(sharing.load(Ordering::SeqCst), 0);
                    alone.fetch_sub(1, Ordering::SeqCst);
                    holder.unlock_exclusive(FIRST_READ, 1);
                }
            }
        });
    });
    // Nothing is left.
    table.holder().lock_exclusive(FIRST_READ, 1).unwrap();
}

#[test]
fn the_first_and_the_last_are_told_apart_from_those_between() {
    let shares = Shares::default();
    assert!(!shares.join(3) && !shares.any(3));
    shares.begin(3);
    assert!(shares.any(3) && !shares.any(2));
    assert!(shares.join(3));
    assert!(shares.leave(3));
    assert!(!shares.leave(3), "the last one leaves under the mutex");
    assert!(shares.end(3));
    assert!(!shares.any(3) && !shares.end(3) && !shares.leave(3));
}

#[test]
fn one_who_joins_the_last_keeps_the_lock() {
    let shares = Shares::default();
    shares.begin(0);
    assert!(!shares.leave(0));
    assert!(shares.join(0), "before the last one has the mutex");
    assert!(!shares.end(0));
    assert!(shares.any(0));
    assert!(shares.end(0));
}
