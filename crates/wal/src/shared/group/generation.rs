//! Starting the log over with a new generation.

use duralite_format::sqlite_wal::WAL_HEADER_BYTES;

use super::{AREA_BYTES, Generation, Group, NewGeneration};
use crate::LogError;
use crate::shared::group::commit::Leader;
use crate::shared::group::{
    GENERATION, INTENT, INTENT_HEADER, INTENT_POSITION, INTENT_STATE, INTENT_TIME, LENGTH, STARTS,
};

const STATE_EMPTY: u64 = 1;
const STATE_RETIRED: u64 = 2;

impl Group {
    /// Returns the length that the file keeps when the caller asks to shrink it to `keep_bytes`. The file keeps at
    /// least as much as SQLite fills between two automatic checkpoints, so that it need not grow again each time.
    pub(crate) fn kept_bytes(&self, keep_bytes: u64) -> u64 {
        let keep = keep_bytes.max(u64::from(self.geometry.block_bytes) * 1024);
        keep.checked_next_multiple_of(AREA_BYTES).unwrap_or(u64::MAX)
    }

    /// Starts the log over, under SQLite's WRITE lock. Returns the number of the new generation. The new generation is
    /// durable on return, with one exception: in a log that has no blocks yet, a generation with a header becomes
    /// durable together with the first blocks. With `keep_bytes`, shrinks the file at the end.
    ///
    /// The generation's slot stores the least length of the file. This method lowers `LENGTH` before it writes the
    /// slot, and makes the slot durable before it shrinks the file. So even if this process dies or the power fails at
    /// any step, neither the slot nor `LENGTH` promises bytes that are gone. Only the holder of WRITE appends, so the
    /// new generation is still empty when the file is shrunk. A process that still reads the old generation finds out
    /// that the old generation is over.
    pub(crate) fn switch(&self, new: &NewGeneration) -> Result<u64, LogError> {
        let NewGeneration { wal_header, retired, keep_bytes, position, time_ms } = *new;
        self.force()?;
        let leader = self.lead_alone()?;
        self.check()?;
        self.finish_switch(&leader)?;
        let generation = self.generation() + 1;
        if !leader.leads() {
            return Err(self.stopped());
        }
        let empty = if wal_header.is_none() { STATE_EMPTY } else { 0 };
        let retired = if retired { STATE_RETIRED } else { 0 };
        self.segment.write(self.base + INTENT_HEADER, &wal_header.unwrap_or_default());
        self.set(INTENT_STATE, empty | retired);
        self.set(INTENT_POSITION, position);
        self.set(INTENT_TIME, time_ms);
        let keep = keep_bytes.map(|bytes| self.kept_bytes(bytes));
        if let Some(keep) = keep {
            self.set(LENGTH, keep.min(self.get(LENGTH)));
        }
        self.set(INTENT, generation);
        self.finish_switch(&leader)?;
        if let Some(keep) = keep {
            // Ignore an error, because the file then only takes more space.
            let _ = self.block.shrink(keep);
        }
        Ok(generation)
    }

    /// Completes a switch that a process announced before it died. Once a switch is announced in `INTENT`, no process
    /// may use the old generation any more. If the process that announced it is alive, leaves the switch to that
    /// process.
    pub(crate) fn adopt_switch(&self) -> Result<(), LogError> {
        // A user who may only read leaves the switch to others, because such a user needs no frame of a log that is
        // about to start over.
        if self.get(INTENT) == self.get(GENERATION) || self.segment.is_read_only() {
            return Ok(());
        }
        self.depose_dead_leader()?;
        match self.try_lead_alone()? {
            Some(leader) => self.finish_switch(&leader),
            None => Ok(()),
        }
    }

    /// Carries out a switch that has been announced, by this process or by one that died.
    fn finish_switch(&self, leader: &Leader<'_>) -> Result<(), LogError> {
        let intent = self.get(INTENT);
        if intent == self.get(GENERATION) {
            return Ok(());
        }
        if !leader.leads() {
            return Err(LogError::Unexpected("a switch of generation by two at once"));
        }
        let generation = intent;
        let state = self.get(INTENT_STATE);
        let mut wal_header = [0; WAL_HEADER_BYTES];
        self.segment.read(self.base + INTENT_HEADER, &mut wal_header);
        let new = Generation {
            number: generation,
            wal_header: (state & STATE_EMPTY == 0).then_some(wal_header),
            retired: state & STATE_RETIRED != 0,
            // Store the length that is known to be durable, even if the file is longer. Otherwise the slot could become
            // durable before the file's greater length does, and recovery would take the log for a truncated one.
            file_bytes: self.get(LENGTH),
            position: self.get(INTENT_POSITION),
            time_ms: self.get(INTENT_TIME),
        };
        // With a WAL header, the generation becomes durable together with the first blocks of the file. Without a
        // header it has to be durable at once, because it records that the log is empty.
        let later = new.wal_header.is_some() && !self.has_blocks();
        let begun = self.framing.begin(self.block.as_ref(), &new, later);
        begun.map_err(|source| self.poison(self.failed(source)))?;
        let start = self.tail().position.next_multiple_of(AREA_BYTES);
        self.set(STARTS[(generation % 2) as usize], start);
        self.set(GENERATION, intent);
        Ok(())
    }
}
