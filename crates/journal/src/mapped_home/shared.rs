//! Who has stored in the database file and not made it durable yet.

use std::sync::Arc;

use duralite_medium::Segment;

/// Nobody.
const NOBODY: u64 = 0;
/// More than one process, or one that may be dead.
const SEVERAL: u64 = u64::MAX;

/// A word that the processes share, and this one's name in it. Writers exclude each other by SQLite's locks, so that the
/// word moves from one to the next.
#[derive(Default)]
pub(super) struct Writers(Option<Shared>);

struct Shared {
    segment: Arc<dyn Segment>,
    at: u64,
    /// Not 0, and not `SEVERAL`.
    me: u64,
}

impl Writers {
    pub(super) fn sharing(segment: Arc<dyn Segment>, at: u64) -> Self {
        // Two processes with one name would take each other's lines for flushed. Without random bytes nothing is known.
        let me = getrandom::u64().ok().map(|word| word & (u64::MAX >> 1) | 1);
        Self(me.map(|me| Shared { segment, at, me }))
    }

    /// To be called before anything is stored. Whether nobody else can have stored what is not durable yet.
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

    /// To be called once this process has made its own stores durable. Whether there can be no others.
    pub(super) fn synced(&self) -> bool {
        let Some(Shared { segment, at, me }) = &self.0 else { return false };
        let word = segment.load(*at);
        word == NOBODY || word == *me
    }

    /// All that was stored is durable: by this process alone (`own`), or by a sync of the file.
    pub(super) fn end(&self, own: bool) {
        let Some(Shared { segment, at, me }) = &self.0 else { return };
        let expected = if own { *me } else { SEVERAL };
        // Whoever has claimed it since then keeps it. A single other name stays: the next to write makes it `SEVERAL`.
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
        // The second dies, and the first writes.
        assert!(!one.claim() && !one.synced());
        one.end(true);
        assert!(!one.claim(), "its own stores are not all");
        one.end(false);
        assert!(one.claim() && one.synced());
        let alone = Writers::default();
        assert!(!alone.claim() && !alone.synced());
    }
}
