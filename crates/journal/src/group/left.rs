//! What the processes that shared a log left of the words that they shared.
//!
//! The words say what was written, as the writer's successors would go on by them if its process died: the same
//! holds if the last process has gone, as long as the memory is there. Where nothing was under way then, the log is durable up to its end, and nothing was written after it.

use super::Recovered;
use super::words::{
    DIRECT_END, DURABLE, FRONTIER, GENERATION, HARDENED, INTENT, LEADER, Mark, POISON, STARTS, TAIL,
    process_of, writing,
};
use duralite_medium::PROCESS_SLOTS;

/// Where the log ended, durably and with nothing after it, by the words that are left of those who shared it; `None` where
/// something was under way or had failed. `data_offset` is where a generation's first group is in the file.
pub(crate) fn durable_end(words: &[u8], data_offset: u64) -> Option<Recovered> {
    let word = |at: u64| {
        let bytes = words.get(at as usize..at as usize + 8)?;
        bytes.try_into().ok().map(u64::from_ne_bytes)
    };
    let generation = word(GENERATION)?;
    let (tail, durable) = (Mark::unpack(word(TAIL)?), Mark::unpack(word(DURABLE)?));
    let end = durable.position;
    let reached = [tail.position, word(FRONTIER)?.next_multiple_of(8), word(DIRECT_END)?];
    let nobody_writes = (0..PROCESS_SLOTS).all(|process| word(writing(process)) == Some(0));
    let is_quiet = word(POISON)? == 0
        && word(INTENT)? == generation
        && process_of(word(LEADER)?).is_none()
        && nobody_writes
        && word(HARDENED)? >= end
        && reached.iter().all(|position| *position <= end);
    let start = word(STARTS[(generation % 2) as usize])?;
    // Without a group the generation itself may not be durable yet.
    (is_quiet && end > start).then(|| Recovered { generation, end: end - start + data_offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSET: u64 = 12_288;

    fn words(changes: &[(u64, u64)]) -> Vec<u8> {
        let mut words = vec![0; super::super::words::STATE_BYTES as usize];
        let mark = Mark { position: 20_480, group: 3, closed: false };
        let quiet = [
            (GENERATION, 2),
            (INTENT, 2),
            (STARTS[0], 16_384),
            (TAIL, Mark { closed: true, ..mark }.pack()),
            (DURABLE, mark.pack()),
            (FRONTIER, 20_476),
            (HARDENED, 20_480),
            (DIRECT_END, 12_288),
        ];
        for (at, value) in quiet.iter().chain(changes) {
            words[*at as usize..][..8].copy_from_slice(&value.to_ne_bytes());
        }
        words
    }

    #[test]
    fn a_log_with_nothing_under_way_ends_where_it_is_durable() {
        let end = durable_end(&words(&[]), OFFSET).unwrap();
        assert_eq!((end.generation, end.end), (2, OFFSET + 4096));
    }

    #[test]
    fn what_was_under_way_or_failed_is_not_trusted() {
        let sealed = Mark { position: 24_576, group: 4, closed: false }.pack();
        for change in [
            (INTENT, 3),
            (POISON, 1),
            (TAIL, sealed),
            (FRONTIER, 20_488),
            (DIRECT_END, 24_576),
            (HARDENED, 20_472),
            (LEADER, 1 << 20 | 3),
            (writing(5), 1),
            (writing(PROCESS_SLOTS - 1), u64::MAX),
            // No group yet.
            (STARTS[0], 20_480),
        ] {
            assert!(durable_end(&words(&[change]), OFFSET).is_none(), "{change:?}");
        }
        assert!(durable_end(&[], OFFSET).is_none());
    }
}
