//! The leader lock: who holds it, and for how long.
//!
//! **The word.** The leader is a thread. `LEADER` holds the slot of its process, and an epoch that every acquisition
//! advances. So no two leaders ever hold the same word. A thread that frees the word, or takes it over, compares all of
//! it. If that thread has slept in between, its late exchange finds another word and does nothing.
//!
//! **Stopped leaders.** A process that is stopped while one of its threads leads (SIGSTOP, a frozen container) holds the
//! word and cannot be told from a slow one. After a while another thread takes the word over, and writes the same group
//! again. The stopped thread may still do one write when it continues, long after. Before that write it checked that its
//! group was the oldest that was not durable. So it writes the bytes of that group, which do no harm where they already
//! are. They would do harm if the place had been reused, which takes a new generation. So each process counts in a word
//! how many of its threads may write, and a new generation waits until no other living process has such a thread
//! ([`Group::lead_alone`]).

use std::time::Duration;

use duralite_medium::PROCESS_SLOTS;

use super::Group;
use super::words::{ALONE, EPOCH, GENERATION, INTENT, LEADER, process_of, writing};
use crate::LogError;

/// How long a thread that waits for the leader lock sleeps before it looks again.
const PAUSE: Duration = Duration::from_micros(50);
/// How often a process that writes without leading is looked at again: its write may be about to end.
const LOOKS: u32 = 20;

/// The leader lock, while a thread holds it.
pub(super) struct Leader<'a> {
    group: &'a Group,
    token: u64,
}

impl Leader<'_> {
    /// Whether no other thread has taken over.
    pub(super) fn leads(&self) -> bool {
        self.group.get(LEADER) == self.token
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.group.count_writer(u64::MAX);
        if self.group.exchange(LEADER, self.token, freed(self.token)).is_ok() {
            self.group.wake_next_leader();
        }
    }
}

/// The word after its holder has released it.
fn freed(token: u64) -> u64 {
    token / EPOCH * EPOCH
}

/// The leader word that a thread waits for, and since when.
#[derive(Default)]
pub(super) struct Watch(Option<(u64, u64)>);

impl Group {
    fn count_writer(&self, by: u64) {
        self.segment.fetch_add(self.base + writing(self.segment.process_slot()), by);
    }

    /// Takes the leader lock if the word is still `seen`.
    pub(super) fn acquire(&self, seen: u64, alone: u64) -> Option<Leader<'_>> {
        // This thread counts itself before it leads: a thread that needs to be alone takes the word first, and then
        // looks at the counts.
        self.count_writer(1);
        let token = (seen / EPOCH).wrapping_add(1).wrapping_mul(EPOCH) | alone | self.own();
        if self.exchange(LEADER, seen, token).is_ok() {
            return Some(Leader { group: self, token });
        }
        self.count_writer(u64::MAX);
        None
    }

    /// Takes the leader lock if it is free.
    pub(super) fn try_lead(&self) -> Option<Leader<'_>> {
        self.try_lead_as(0)
    }

    fn try_lead_as(&self, alone: u64) -> Option<Leader<'_>> {
        let word = self.get(LEADER);
        if process_of(word).is_some() { None } else { self.acquire(word, alone) }
    }

    /// Clears the words of the dead process that had this process slot before.
    pub(super) fn bury_predecessor(&self) {
        self.set(writing(self.segment.process_slot()), 0);
        let word = self.get(LEADER);
        if process_of(word) == Some(self.segment.process_slot()) {
            let _ = self.exchange(LEADER, word, freed(word));
        }
    }

    /// Frees the leader lock if its holder is dead.
    pub(super) fn depose_dead_leader(&self) -> Result<(), LogError> {
        let word = self.get(LEADER);
        if let Some(process) = process_of(word)
            && !self.is_alive(process)?
        {
            // If a new process has the slot by now and leads, the word is another.
            let _ = self.exchange(LEADER, word, freed(word));
        }
        Ok(())
    }

    fn is_alive(&self, process: usize) -> Result<bool, LogError> {
        self.segment.is_alive(process).map_err(|source| self.failed(source))
    }

    /// Takes the leader lock from a leader that has made no progress for too long. The more leaders have been replaced
    /// already, the longer this waits: more writers do not help a slow device.
    pub(super) fn take_over(&self, watch: &mut Watch) -> Result<Option<Leader<'_>>, LogError> {
        let word = self.get(LEADER);
        if process_of(word).is_none() || word & ALONE != 0 && self.get(INTENT) != self.get(GENERATION) {
            // Only one process may do the writes of a switch of generation.
            *watch = Watch::default();
            return Ok(None);
        }
        let now = self.segment.clock_ns();
        let since = match watch.0 {
            Some((seen, since)) if seen == word => since,
            _ => {
                *watch = Watch(Some((word, now)));
                return Ok(None);
            }
        };
        let patience = self.patience();
        let waited = now.saturating_sub(since);
        if waited < patience || waited < patience.saturating_mul(self.writers()?) {
            return Ok(None);
        }
        Ok(self.acquire(word, 0))
    }

    /// The time at which a thread stops waiting for others that may write.
    fn deadline(&self) -> u64 {
        self.segment.clock_ns().saturating_add(self.patience().saturating_mul(5))
    }

    /// How long to wait for a leader, in nanoseconds.
    fn patience(&self) -> u64 {
        u64::try_from(self.options.leader_patience.as_nanos()).unwrap_or(u64::MAX)
    }

    /// How many threads of living processes may write groups or generations.
    fn writers(&self) -> Result<u64, LogError> {
        let mut count = 0;
        for process in 0..PROCESS_SLOTS {
            let writers = self.get(writing(process));
            if writers != 0 && self.is_alive(process)? {
                count += writers;
            }
        }
        Ok(count)
    }

    /// Takes the leader lock, and waits until no other thread can write to the device any more, not even late. Returns
    /// `Busy` when another process that may write does not finish in time: it is stopped, or its device hardly makes
    /// progress.
    pub(super) fn lead_alone(&self) -> Result<Leader<'_>, LogError> {
        let deadline = self.deadline();
        let mut watch = Watch::default();
        let leader = loop {
            self.check()?;
            if let Some(leader) = self.try_lead_as(ALONE) {
                break leader;
            }
            self.depose_dead_leader()?;
            // The leader lock is dropped at once: everything is durable, so a leader would have nothing to write. What
            // is left is to find out which threads may write.
            drop(self.take_over(&mut watch)?);
            self.pause_until(deadline)?;
        };
        while !self.is_alone()? {
            self.pause_until(deadline)?;
        }
        Ok(leader)
    }

    /// As [`Group::lead_alone`], but returns `None` instead of waiting.
    pub(super) fn try_lead_alone(&self) -> Result<Option<Leader<'_>>, LogError> {
        match self.try_lead_as(ALONE) {
            Some(leader) if self.is_alone()? => Ok(Some(leader)),
            _ => Ok(None),
        }
    }

    /// Whether the caller, who leads, is the only thread that may write.
    fn is_alone(&self) -> Result<bool, LogError> {
        Ok(self.writers()? <= 1)
    }

    fn pause_until(&self, deadline: u64) -> Result<(), LogError> {
        if self.segment.clock_ns() > deadline {
            return Err(self.stopped());
        }
        self.pause();
        Ok(())
    }

    pub(super) fn stopped(&self) -> LogError {
        let what = "the log cannot start over while another process is stopped in a write to it";
        LogError::Busy { path: self.geometry.path.clone(), what }
    }

    /// Lets other threads run. No thread wakes this one: it waits on a word so that a simulated segment can observe the
    /// sleep.
    fn pause(&self) {
        let word = self.get(LEADER);
        self.segment.wait(self.base + LEADER, (word & 0xffff_ffff) as u32, PAUSE);
    }

    /// Makes everything sealed durable, for the holder of the WRITE lock that is about to start the log over. Returns
    /// whether no thread is left that could write to the log late.
    pub(super) fn settle(&self) -> Result<bool, LogError> {
        self.force()?;
        let (mut watch, mut looks) = (Watch::default(), LOOKS);
        let deadline = self.deadline();
        loop {
            if self.writers()? == 0 {
                return Ok(true);
            }
            // A leader is about to finish its work. Any other writer was replaced, or needs a moment to find that
            // another thread leads.
            match process_of(self.get(LEADER)) {
                None if looks == 0 => return Ok(false),
                Some(_) if self.segment.clock_ns() > deadline => return Ok(false),
                None => looks -= 1,
                Some(_) => {
                    self.depose_dead_leader()?;
                    drop(self.take_over(&mut watch)?);
                }
            }
            self.check()?;
            self.pause();
        }
    }
}
