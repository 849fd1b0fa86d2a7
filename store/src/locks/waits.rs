//! The graph of waits between owners. In a cycle, the youngest owner has to give way.

use std::collections::HashSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::owner::Owner;
use crate::sync::Mutex;

/// The waits of all owners. An owner whose request was granted at once does not appear here.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<Edges>);

/// For each waiting owner, by number: the owner itself, and the owners for whom it waits.
type Edges = FxHashMap<u64, (Arc<Owner>, Vec<u64>)>;

impl Waits {
    /// Records that an owner waits for others. If that closes a cycle, tells the youngest owner in the cycle to give
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

    /// Records that an owner no longer waits.
    pub(super) fn over(&self, owner: u64) {
        self.0.lock().remove(&owner);
    }
}

/// Searches for a path of waits from `at` back to `to`. Returns whether there is one, and leaves its owners in `way`.
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
