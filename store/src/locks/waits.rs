//! Which owner waits for which, and which owner gives way in a cycle.

use std::collections::HashSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::owner::Owner;
use crate::sync::Mutex;

/// The waits of all owners. A transaction that gets its locks at once does not appear here.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<Edges>);

/// For each waiting owner, the owner itself and the owners that it waits for.
type Edges = FxHashMap<u64, (Arc<Owner>, Vec<u64>)>;

impl Waits {
    /// Records that an owner waits for others. If that closes a cycle, the youngest owner in the cycle is told to give
    /// way.
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

    /// Records that an owner has stopped waiting.
    pub(super) fn over(&self, owner: u64) {
        self.0.lock().remove(&owner);
    }
}

/// Collects the owners on a path of waits from `at` back to `to`. Returns whether there is one.
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
