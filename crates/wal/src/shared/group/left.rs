//! Determines the state in which the last processes left a log, from the words that they shared.
//!
//! If a process dies, the words tell the other processes how to continue. The shared memory may also outlive the last
//! process, and then tells the next process the same. If the words show that no operation was in progress, the log is
//! durable up to its end, and nothing was written after the end.

use super::Recovered;
use crate::shared::group::{
    DIRECT_END, DURABLE, FLUSHED, FRONTIER, GENERATION, INTENT, LEADER, LENGTH, Mark, POISON, SETTINGS,
    STARTS, TAIL, process_of, writing,
};
use duralite_medium::PROCESS_SLOTS;

/// The state in which the last processes left a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// The end of the log: everything before it is durable, and nothing was written after it.
    pub(crate) end: Recovered,
    /// The length of the file in bytes that is known to be durable.
    pub(crate) file_bytes: u64,
    /// The settings with which the log was used.
    pub(crate) settings: u64,
}

/// Determines from the words in which state the last processes left the log. Returns `None` if an operation was in
/// progress or had failed. `data_offset` is the file offset of a generation's first group.
pub(crate) fn left(words: &[u8], data_offset: u64) -> Option<Left> {
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
        && word(FLUSHED)? >= end
        && reached.iter().all(|position| *position <= end);
    let start = word(STARTS[(generation % 2) as usize])?;
    // If the generation has no group yet, the generation itself may not be durable. So such a log has to be recovered.
    if !is_quiet || end <= start {
        return None;
    }
    let end = Recovered { generation, end: end - start + data_offset };
    Some(Left { end, file_bytes: word(LENGTH)?, settings: word(SETTINGS)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSET: u64 = 12_288;

    fn words(changes: &[(u64, u64)]) -> Vec<u8> {
        let mut words = vec![0; super::super::STATE_BYTES as usize];
        let mark = Mark { position: 20_480, group: 3, closed: false };
        let quiet = [
            (GENERATION, 2),
            (INTENT, 2),
            (STARTS[0], 16_384),
            (TAIL, Mark { closed: true, ..mark }.pack()),
            (DURABLE, mark.pack()),
            (FRONTIER, 20_476),
            (FLUSHED, 20_480),
            (DIRECT_END, 12_288),
            (LENGTH, 65_536),
            (SETTINGS, 7),
        ];
        for (at, value) in quiet.iter().chain(changes) {
            words[*at as usize..][..8].copy_from_slice(&value.to_ne_bytes());
        }
        words
    }

    #[test]
    fn a_log_with_nothing_under_way_ends_where_it_is_durable() {
        let end = Recovered { generation: 2, end: OFFSET + 4096 };
        assert_eq!(left(&words(&[]), OFFSET), Some(Left { end, file_bytes: 65_536, settings: 7 }));
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
            (FLUSHED, 20_472),
            (LEADER, 1 << 20 | 3),
            (writing(5), 1),
            (writing(PROCESS_SLOTS - 1), u64::MAX),
            // The generation has no group yet.
            (STARTS[0], 20_480),
        ] {
            assert!(left(&words(&[change]), OFFSET).is_none(), "{change:?}");
        }
        assert!(left(&[], OFFSET).is_none());
    }
}
