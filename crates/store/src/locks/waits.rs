//! Who waits for whom, and who gives way when that is a circle.

use std::collections::HashSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::owner::Owner;
use crate::sync::Mutex;

/// Only those who wait are here: a transaction that gets its locks at once never comes by.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<Edges>);

/// Of each owner that waits, itself and whom for.
type Edges = FxHashMap<u64, (Arc<Owner>, Vec<u64>)>;

impl Waits {
    /// The owner waits for these. If that closes a circle, the youngest in it is told to give way.
    pub(super) fn wait(&self, owner: &Arc<Owner>, for_these: Vec<u64>) {
        let mut waits = self.0.lock();
        waits.insert(owner.id, (Arc::clone(owner), for_these));
        let mut circle = Vec::new();
        if find_circle(&waits, owner.id, owner.id, &mut circle, &mut HashSet::new())
            && let Some((youngest, _)) = circle.iter().max().and_then(|id| waits.get(id))
        {
            youngest.give_way();
        }
    }

    /// It does not wait any more.
    pub(super) fn over(&self, owner: u64) {
        self.0.lock().remove(&owner);
    }
}

/// The owners on a way from `at` back to `to`.
fn find_circle(waits: &Edges, at: u64, to: u64, way: &mut Vec<u64>, seen: &mut HashSet<u64>) -> bool {
    let Some((_, next)) = waits.get(&at) else { return false };
    way.push(at);
    for one in next {
        if *one == to || (seen.insert(*one) && find_circle(waits, *one, to, way, seen)) {
            return true;
        }
    }
    way.pop();
    false
}
