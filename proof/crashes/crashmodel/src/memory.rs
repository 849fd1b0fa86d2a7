//! A medium in ordinary memory that knows what a crash would leave of it.
//!
//! The medium keeps two images, the one that programs see and the durable one, and the stores that are not
//! durable yet. [`RecordingNvm::crash`] uses them to build one of the states that a power failure may leave.
//! Which stores this state contains depends on the persistency model:
//!
//! - [`Persistency::X86`]: as [`Lines`] says;
//! - [`Persistency::Epoch`]: all stores before the last barrier, and later stores as [`Lines`] says;
//! - [`Persistency::Strict`]: every store;
//! - memory that is [durable on store](RecordingNvm::durable_on_store): the same as [`Persistency::Epoch`].
//!   No store needs a flush, but a store after the last fence may still be in the processor.
//!
//! In a model with flushes, lines written by streaming stores are in doubt until a fence, like flushed lines.
//!
//! [`Crashes::crash_before`] simulates a power failure while a program is using the medium. A test can leave
//! out the n-th flush or fence to show that its checks would notice the omission.

use std::sync::{Mutex, MutexGuard, PoisonError};

use duralite_medium::{
    Counters, Guarantee, LINE_BYTES, Latency, MediumError, Nvm, Persistency, checked_end, lines_touched,
};

use crate::{Chance, Crashes, DueCrash, Lines};

/// A recorded medium. It says that its content survives a power loss ([`Guarantee::PowerLoss`]). A test
/// simulates the power loss by a call of [`crash`](Self::crash).
#[derive(Debug)]
pub struct RecordingNvm {
    state: Mutex<State>,
    due: DueCrash,
    capacity: u64,
    persistency: Persistency,
    durable_on_store: bool,
}

#[derive(Debug, Default)]
struct State {
    visible: Vec<u8>,
    durable: Vec<u8>,
    lines: Lines,
    counters: Counters,
    flush_calls: u64,
    fence_calls: u64,
    dropped_flush: Option<u64>,
    dropped_fence: Option<u64>,
    grow_limit: Option<u64>,
    latency: Latency,
}

impl RecordingNvm {
    /// Returns a medium of `len` zero bytes that can grow to `capacity`.
    #[must_use]
    pub fn new(len: u64, capacity: u64) -> Self {
        Self::from_bytes(vec![0; len as usize], capacity)
    }

    /// Returns a medium with this content, all of it durable.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>, capacity: u64) -> Self {
        let state = State { visible: bytes.clone(), durable: bytes, ..State::default() };
        Self {
            state: Mutex::new(state),
            due: DueCrash::default(),
            capacity,
            persistency: Persistency::X86,
            durable_on_store: false,
        }
    }

    /// Returns the same medium, but with stores that are durable without a flush.
    #[must_use]
    pub fn durable_on_store(mut self) -> Self {
        self.durable_on_store = true;
        self
    }

    /// Returns the same medium, but under another persistency model.
    #[must_use]
    pub fn with_persistency(mut self, persistency: Persistency) -> Self {
        self.persistency = persistency;
        self
    }

    /// Returns the content that programs see.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.lock().visible.clone()
    }

    /// Returns a state that a power failure at this moment may leave, chosen by `seed`.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        self.over(self.lock().left(seed))
    }

    /// Returns the state that remains when every process dies. It contains all stores.
    #[must_use]
    pub fn survive(&self) -> Self {
        self.over(self.to_bytes())
    }

    /// Returns another medium with the same settings, on which these bytes are durable.
    #[must_use]
    pub fn over(&self, bytes: Vec<u8>) -> Self {
        let over = Self::from_bytes(bytes, self.capacity).with_persistency(self.persistency);
        Self { durable_on_store: self.durable_on_store, ..over }
    }

    /// Makes growing beyond `len` fail with [`MediumError::NoSpace`].
    pub fn set_grow_limit(&self, len: Option<u64>) {
        self.lock().grow_limit = len;
    }

    /// Leaves out the n-th flush call from now on, counted from 0.
    pub fn drop_flush(&self, nth: u64) {
        let mut state = self.lock();
        state.dropped_flush = Some(state.flush_calls + nth);
    }

    /// Leaves out the n-th fence call from now on, counted from 0.
    pub fn drop_fence(&self, nth: u64) {
        let mut state = self.lock();
        state.dropped_fence = Some(state.fence_calls + nth);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state for an operation that changes the medium. First simulates the crash if it is due now.
    fn step(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        self.due.step(|seed| state.left(seed));
        state
    }
}

impl Crashes for RecordingNvm {
    fn due_crash(&self) -> &DueCrash {
        &self.due
    }
}

impl State {
    fn check(&self, at: u64, len: u64) {
        assert!(
            checked_end(at, len, self.visible.len() as u64).is_ok(),
            "{len} bytes at {at} are outside the medium's {} bytes",
            self.visible.len()
        );
    }

    /// Returns the image that a power failure leaves, chosen by `seed`.
    fn left(&self, seed: u64) -> Vec<u8> {
        let mut chance = Chance::new(seed);
        let mut image = self.durable.clone();
        for (line, states) in self.lines.in_doubt() {
            self.lines.leave(&mut image, line, chance.state(states));
        }
        image
    }

    fn store(&mut self, at: u64, bytes: &[u8], persistency: Persistency) {
        self.check(at, bytes.len() as u64);
        self.visible[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        self.counters.stores += 1;
        self.counters.stored_bytes += bytes.len() as u64;
        self.lines.stored(&self.visible, at, bytes.len());
        if persistency == Persistency::Strict {
            self.lines.fence_all(&mut self.durable);
        }
    }

    fn flush(&mut self, at: u64, len: u64) {
        self.check(at, len);
        let call = self.flush_calls;
        self.flush_calls += 1;
        self.counters.flushed_lines += lines_touched(at, len);
        if self.dropped_flush != Some(call) {
            self.lines.flush(at, len);
        }
    }

    fn fence(&mut self, all: bool) {
        let call = self.fence_calls;
        self.fence_calls += 1;
        self.counters.fences += 1;
        if self.dropped_fence == Some(call) {
            return;
        }
        if all {
            self.lines.fence_all(&mut self.durable);
        } else {
            self.lines.fence(&mut self.durable);
        }
    }
}

/// Returns how many cache lines lie completely within the range.
fn whole_lines(at: u64, len: u64) -> u64 {
    ((at + len) / LINE_BYTES).saturating_sub(at.div_ceil(LINE_BYTES))
}

impl Nvm for RecordingNvm {
    fn len(&self) -> u64 {
        self.lock().visible.len() as u64
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn grow(&self, len: u64) -> Result<(), MediumError> {
        checked_end(0, len, self.capacity)?;
        let mut state = self.step();
        if state.grow_limit.is_some_and(|limit| len > limit) {
            return Err(MediumError::NoSpace);
        }
        if len > state.visible.len() as u64 {
            state.visible.resize(len as usize, 0);
            state.durable.resize(len as usize, 0);
        }
        Ok(())
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        let mut state = self.step();
        // The cut is durable at once, like a file's new size. A test in which a power loss undoes the cut
        // must model that by itself.
        state.visible.truncate(len as usize);
        state.durable.truncate(len as usize);
        state.lines.cut(len);
        Ok(())
    }

    fn is_durable_on_store(&self) -> bool {
        self.durable_on_store
    }

    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError> {
        checked_end(0, at_least, self.len()).map(|_| ())
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        let mut state = self.lock();
        state.check(at, buf.len() as u64);
        buf.copy_from_slice(&state.visible[at as usize..at as usize + buf.len()]);
        state.counters.read_bytes += buf.len() as u64;
        state.counters.lines_read += lines_touched(at, buf.len() as u64);
    }

    fn load_u64(&self, at: u64) -> u64 {
        assert!(at.is_multiple_of(8), "a word at {at} is not aligned");
        let state = self.lock();
        state.check(at, 8);
        let mut word = [0; 8];
        word.copy_from_slice(&state.visible[at as usize..at as usize + 8]);
        u64::from_le_bytes(word)
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        self.step().store(at, bytes, self.persistency);
    }

    fn store_u64(&self, at: u64, value: u64) {
        assert!(at.is_multiple_of(8), "a word at {at} is not aligned");
        self.store(at, &value.to_le_bytes());
    }

    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        assert!(at.is_multiple_of(8), "a word at {at} is not aligned");
        let mut state = self.step();
        state.check(at, 8);
        let mut word = [0; 8];
        word.copy_from_slice(&state.visible[at as usize..at as usize + 8]);
        let found = u64::from_le_bytes(word);
        if found != current {
            return Err(found);
        }
        state.store(at, &new.to_le_bytes(), self.persistency);
        Ok(found)
    }

    fn stream(&self, at: u64, bytes: &[u8]) {
        let mut state = self.step();
        state.store(at, bytes, self.persistency);
        if !self.durable_on_store {
            state.flush(at, bytes.len() as u64);
            state.counters.streamed_lines += whole_lines(at, bytes.len() as u64);
        }
    }

    fn flush(&self, at: u64, len: u64) {
        let mut state = self.step();
        if self.durable_on_store {
            state.check(at, len);
        } else {
            state.flush(at, len);
        }
    }

    fn fence(&self) {
        self.step().fence(self.durable_on_store || self.persistency == Persistency::Epoch);
    }

    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.grow(checked_end(at, len, self.capacity)?)
    }

    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        // The content of a freed range is unspecified. Keeping the old content is the harder case for
        // recovery.
        checked_end(at, len, self.len()).map(|_| ())
    }

    fn counters(&self) -> Counters {
        self.lock().counters
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerLoss
    }

    fn describe(&self) -> String {
        format!("recorded memory ({})", self.persistency)
    }

    fn set_latency(&self, latency: Latency) {
        self.lock().latency = latency;
    }

    fn latency(&self) -> Latency {
        self.lock().latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates many crashes, and returns the different contents that they leave in the first `len` bytes.
    fn outcomes(nvm: &RecordingNvm, len: usize) -> std::collections::BTreeSet<Vec<u8>> {
        (0..400).map(|seed| nvm.crash(seed).to_bytes()[..len].to_vec()).collect()
    }

    #[test]
    fn unflushed_words_may_be_lost_or_survive_in_prefix_order() {
        let nvm = RecordingNvm::new(128, 128);
        nvm.store(0, &[1; 8]);
        nvm.store(8, &[2; 8]);
        nvm.store(0, &[3; 8]);
        let expected = [[0, 0], [1, 0], [1, 2], [3, 2]];
        let expected = expected.iter().map(|[a, b]| [[*a; 8], [*b; 8]].concat()).collect();
        assert_eq!(outcomes(&nvm, 16), expected);
    }

    #[test]
    fn lines_are_independent_and_fenced_ones_are_safe() {
        let nvm = RecordingNvm::new(192, 192);
        nvm.store(0, &[1; 8]);
        nvm.flush(0, 8);
        nvm.fence();
        nvm.store_u64(64, 7);
        nvm.flush(64, 8);
        nvm.store_u64(128, 9);
        let seen: std::collections::BTreeSet<_> =
            outcomes(&nvm, 192).iter().map(|bytes| (bytes[0], bytes[64], bytes[128])).collect();
        assert_eq!(seen, [(1, 0, 0), (1, 0, 9), (1, 7, 0), (1, 7, 9)].into());
    }

    #[test]
    fn left_out_calls_lose_what_they_would_have_saved() {
        for drop_fence in [false, true] {
            let nvm = RecordingNvm::new(64, 64);
            if drop_fence {
                nvm.drop_fence(0)
            } else {
                nvm.drop_flush(0)
            }
            nvm.store_u64(0, 5);
            nvm.flush(0, 8);
            nvm.fence();
            assert_eq!(outcomes(&nvm, 8).len(), 2);
            nvm.flush(0, 8);
            nvm.fence();
            assert_eq!(outcomes(&nvm, 8).len(), 1);
        }
    }

    #[test]
    fn epochs_need_no_flush_and_strict_needs_nothing() {
        let epoch = RecordingNvm::new(64, 64).with_persistency(Persistency::Epoch);
        epoch.store_u64(0, 5);
        assert_eq!(outcomes(&epoch, 8).len(), 2);
        epoch.fence();
        assert_eq!(outcomes(&epoch, 8).len(), 1);
        let strict = RecordingNvm::new(64, 64).with_persistency(Persistency::Strict);
        strict.store_u64(0, 5);
        assert_eq!(outcomes(&strict, 8).len(), 1);
        assert_eq!(strict.crash(0).load_u64(0), 5);
    }

    #[test]
    fn durable_on_store_needs_a_fence_and_no_flush() {
        let nvm = RecordingNvm::new(128, 128).durable_on_store();
        nvm.store_u64(0, 5);
        nvm.flush(0, 8);
        assert_eq!((outcomes(&nvm, 8).len(), nvm.counters().flushed_lines), (2, 0));
        nvm.fence();
        assert_eq!(outcomes(&nvm, 8).len(), 1);
        assert!(nvm.crash(0).is_durable_on_store());
    }

    #[test]
    fn exchanges_store_only_what_was_expected_and_cuts_take_stores_along() {
        let nvm = RecordingNvm::new(128, 128);
        assert_eq!(nvm.compare_exchange_u64(8, 1, 2), Err(0));
        assert_eq!((nvm.compare_exchange_u64(8, 0, 7), nvm.load_u64(8)), (Ok(0), 7));
        assert_eq!(outcomes(&nvm, 16).len(), 2);
        nvm.store(64, &[1; 64]);
        nvm.shrink(64).unwrap();
        nvm.grow(128).unwrap();
        assert_eq!(nvm.crash(1).to_bytes()[64..], [0; 64]);
        nvm.stream(1, &[2; 127]);
        assert_eq!(nvm.counters().streamed_lines, 1);
    }

    #[test]
    fn a_crash_comes_before_the_step_it_was_told_and_changes_nothing() {
        let steps: [fn(&RecordingNvm); 7] = [
            |nvm| nvm.store(0, &[1; 8]),
            |nvm| nvm.flush(0, 8),
            |nvm| nvm.fence(),
            |nvm| nvm.stream(0, &[2; 8]),
            |nvm| nvm.fence(),
            |nvm| nvm.grow(128).unwrap(),
            |nvm| nvm.store_u64(0, 3),
        ];
        let possible: [&[u8]; 8] = [&[0], &[0, 1], &[0, 1], &[1], &[1, 2], &[2], &[2], &[2, 3]];
        for (nth, possible) in possible.into_iter().enumerate() {
            let mut seen = std::collections::BTreeSet::new();
            for seed in 0..100 {
                let nvm = RecordingNvm::new(64, 128);
                nvm.crash_before(nth as u64, seed);
                for (done, step) in steps.iter().enumerate() {
                    assert_eq!(nvm.has_crashed(), done > nth);
                    step(&nvm);
                }
                assert_eq!(nvm.load_u64(0), 3);
                let image = nvm.image().unwrap_or_else(|| nvm.crash(seed).to_bytes());
                assert_eq!(image.len(), if nth > 5 { 128 } else { 64 });
                seen.insert(image[0]);
            }
            assert_eq!(Vec::from_iter(seen), possible, "before step {nth}");
        }
    }

    #[test]
    fn growth_is_bounded_and_a_dead_process_loses_nothing() {
        let nvm = RecordingNvm::new(64, 256);
        nvm.set_grow_limit(Some(128));
        assert_eq!(nvm.grow(200), Err(MediumError::NoSpace));
        assert_eq!((nvm.grow(128), nvm.len()), (Ok(()), 128));
        assert!(nvm.grow(512).is_err());
        nvm.store(100, &[4; 20]);
        assert_eq!(nvm.survive().to_bytes()[100..120], [4; 20]);
    }
}
