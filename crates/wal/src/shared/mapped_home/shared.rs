//! Which processes have stored in the database file since it was last made durable. A sync makes durable what any of them has
//! stored (invariant 20), and a process can flush only the lines that it has stored itself.

use std::sync::Arc;

use duralite_medium::Segment;

/// No process.
const NOBODY: u64 = 0;
/// Several processes, or one that may be dead.
const SEVERAL: u64 = u64::MAX;

/// A word that the processes share, and this process's name in it. SQLite's locks let one process write at a time, so the word
/// passes from one writer to the next.
#[derive(Default)]
pub(super) struct Writers(Option<Shared>);

struct Shared {
    segment: Arc<dyn Segment>,
    at: u64,
    /// This process's name: not 0, and not `SEVERAL`.
    me: u64,
}

impl Writers {
    pub(super) fn sharing(segment: Arc<dyn Segment>, at: u64) -> Self {
        // Two processes with one name would take each other's lines for flushed. So without random bytes there is no name, and
        // nothing is known.
        let me = getrandom::u64().ok().map(|word| word & (u64::MAX >> 1) | 1);
        Self(me.map(|me| Shared { segment, at, me }))
    }

    /// Has to be called before anything is stored. Returns whether all that is stored and not durable is this process's own.
    pub(super) fn claim(&self) -> bool {
        let Some(Shared { segment, at, me }) = &self.0 else { return false };
        loop {
            let word = segment.load(*at);
            match word {
                SEVERAL => return false,
                word if word == *me => return true,
                NOBODY => {
                    if segment.compare_exchange(*at, NOBODY, *me).is_ok() {
                        return true;
                    }
                }
                other => {
                    if segment.compare_exchange(*at, other, SEVERAL).is_ok() {
                        return false;
                    }
                }
            }
        }
    }

    /// Has to be called after this process has made its own stores durable. Returns whether no other process can have stored
    /// anything.
    pub(super) fn synced(&self) -> bool {
        let Some(Shared { segment, at, me }) = &self.0 else { return false };
        let word = segment.load(*at);
        word == NOBODY || word == *me
    }

    /// Says that everything stored is durable: by this process, which alone has stored (`own`), or by a sync of the file.
    pub(super) fn end(&self, own: bool) {
        let Some(Shared { segment, at, me }) = &self.0 else { return };
        let expected = if own { *me } else { SEVERAL };
        // A process that has claimed the word since then keeps it. The name of a single other process stays: the next writer
        // replaces it by `SEVERAL`.
        let _ = segment.compare_exchange(*at, expected, NOBODY);
    }
}

#[cfg(test)]
mod tests {
    use duralite_medium::LocalSegment;

    use super::*;

    #[test]
    fn the_word_tells_whether_lines_may_be_somebody_elses() {
        let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(4096));
        let [one, other] = [0; 2].map(|_| Writers::sharing(Arc::clone(&segment), 64));
        assert!(one.claim() && one.claim() && one.synced());
        one.end(true);
        assert!(other.claim(), "the first has synced");
        // The second process dies, and the first one writes.
        assert!(!one.claim() && !one.synced());
        one.end(true);
        assert!(!one.claim(), "its own stores are not all");
        one.end(false);
        assert!(one.claim() && one.synced());
        let alone = Writers::default();
        assert!(!alone.claim() && !alone.synced());
    }
}
