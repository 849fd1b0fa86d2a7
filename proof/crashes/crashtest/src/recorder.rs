//! Records the calls that a workload causes on media and files, and makes the n-th call fail.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use duralite_crashmodel::disk::DiskEvent;

use crate::event::{Event, FileId, FileKind, RecordedFile, Recording, SiteId};
use crate::sites::Sites;

/// The kind of a call that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// Reading from a device.
    Read,
    /// Writing to a device.
    Write,
    /// Making writes or a directory's names durable.
    Sync,
    /// Allocating space.
    Allocate,
    /// Opening, making or deleting a file.
    Name,
    /// Mapping memory.
    Map,
}

/// The failure of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A device error. A failed write has written its first half.
    Io,
    /// No space left.
    NoSpace,
}

/// The calls that are to fail.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The first call that fails, counted from 0 over calls of any kind.
    pub nth: u64,
    /// The number of calls that fail. After the first one, only calls of the same kind fail. No call fails
    /// after the fault was removed.
    pub times: u64,
}

/// A recording in progress, shared by all hooks. The hooks record one call at a time, so the events have the
/// order in which they happened.
pub struct Recorder {
    state: Mutex<State>,
    /// The disk's requests since the newest event. The thread that serves the disk adds to them. It cannot
    /// take the recorder's lock: a thread that syncs a recorded file holds that lock until the disk has
    /// carried out the requests. So these requests have a lock of their own.
    requests: Mutex<Vec<DiskEvent>>,
}

#[derive(Default)]
struct State {
    recording: Recording,
    current: HashMap<PathBuf, FileId>,
    /// For each event, how many calls the recorder had counted when it recorded the event.
    calls_at: Vec<u64>,
    sites: Option<Sites>,
    running: bool,
    calls: u64,
    fault: Option<Fault>,
    /// The first call that the recorder made fail, and its failure.
    failed: Option<(Call, Failure)>,
    broken: Option<Call>,
    /// The number of events that were recorded before the first failure.
    events_before: usize,
    /// The number of calls that the recorder made fail.
    failures: u64,
    /// The file whose next syncs fail, and how many syncs still have to fail.
    failing_syncs: Option<(PathBuf, u32)>,
}

/// The recorder, locked for one call.
pub struct Step<'a>(MutexGuard<'a, State>, &'a Mutex<Vec<DiskEvent>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Recorder {
    /// Returns a recorder that records from now on. With `sites` it also stores the call site of each call
    /// that makes something durable. That takes some microseconds for each call.
    #[must_use]
    pub fn new(sites: bool) -> Self {
        let state = State { running: true, sites: sites.then(Sites::default), ..State::default() };
        Self { state: Mutex::new(state), requests: Mutex::default() }
    }

    /// Begins a step. Other threads wait until the result is dropped.
    pub fn step(&self) -> Step<'_> {
        Step(locked(&self.state), &self.requests)
    }

    /// Sets the fault, and resets the counts of calls and failures. `None` removes the fault.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut step = self.step();
        step.0.calls = 0;
        step.0.fault = fault;
        step.0.failed = None;
        step.0.broken = None;
        step.0.failures = 0;
    }

    /// Makes the next syncs of a file fail. This works for files that SQLite syncs, and for logs on a block
    /// medium.
    #[cfg(test)]
    pub fn fail_syncs_of(&self, path: &Path, count: u32) {
        self.step().0.failing_syncs = Some((path.to_path_buf(), count));
    }

    /// Returns whether all syncs that [`Self::fail_syncs_of`] asked for have failed.
    #[cfg(test)]
    #[must_use]
    pub fn has_failed_sync(&self) -> bool {
        self.step().0.failing_syncs.is_none()
    }

    /// Returns the number of calls since the fault was set. Only calls that can fail count.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.step().0.calls
    }

    /// Returns the first failure that was injected, if any was.
    #[must_use]
    pub fn injected(&self) -> Option<(Call, Failure)> {
        self.step().0.failed
    }

    /// Records an event of the workload itself.
    pub fn note(&self, event: Event) {
        self.step().push(event);
    }

    /// Records a request of the disk, without waiting for the recorder's lock.
    pub fn note_request(&self, request: DiskEvent) {
        locked(&self.requests).push(request);
    }

    /// Records the content that a file has at the beginning. The content is durable.
    pub fn begin_with(&self, path: &Path, kind: FileKind, content: Vec<u8>) {
        let mut step = self.step();
        let id = step.add(path, kind, content);
        step.0.recording.names.push((path.to_path_buf(), id));
    }

    /// Returns a recorder that continues a recording.
    #[must_use]
    pub fn continuing(recording: Recording) -> Self {
        let it = Self::default();
        {
            let mut step = it.step();
            for (path, file) in &recording.names {
                step.0.current.insert(path.clone(), *file);
            }
            for event in &recording.events {
                if let Event::Name { path, file } = event {
                    match file {
                        Some(file) => step.0.current.insert(path.clone(), *file),
                        None => step.0.current.remove(path),
                    };
                }
            }
            step.0.recording = recording;
        }
        it
    }

    /// Returns how many events were recorded before the first failed call; 0 if no call failed.
    #[must_use]
    pub fn events_at_fault(&self) -> usize {
        self.step().0.events_before
    }

    /// For each event of the recording, returns the number of the call that caused it. Calls are counted as
    /// [`Fault`] says.
    #[must_use]
    pub fn calls_of_events(&self) -> Vec<u64> {
        self.step().0.calls_at.iter().map(|calls| calls.saturating_sub(1)).collect()
    }

    /// Ends the recording. The hooks pass later calls on without recording them.
    #[must_use]
    pub fn finish(&self) -> Recording {
        let mut step = self.step();
        step.take_requests();
        step.0.running = false;
        let mut recording = std::mem::take(&mut step.0.recording);
        if let Some(sites) = &mut step.0.sites {
            recording.sites = sites.resolve();
        }
        recording
    }
}

impl Step<'_> {
    /// Returns whether this call is to fail, and how. Allocations fail for lack of space. Writes fail for
    /// lack of space or with a device error. All other calls fail with a device error.
    pub fn due(&mut self, call: Call) -> Option<Failure> {
        let state = &mut *self.0;
        let nth = state.calls;
        state.calls += 1;
        let fault = state.fault?;
        let again = state.broken == Some(call) && state.failures < fault.times;
        if nth != fault.nth && !again {
            return None;
        }
        state.failures += 1;
        let failure = match call {
            Call::Allocate => Failure::NoSpace,
            Call::Map | Call::Read | Call::Sync | Call::Name => Failure::Io,
            Call::Write if nth.is_multiple_of(2) => Failure::NoSpace,
            Call::Write => Failure::Io,
        };
        if state.failed.is_none() {
            state.failed = Some((call, failure));
            state.events_before = state.recording.events.len();
        }
        state.broken = Some(call);
        Some(failure)
    }

    /// Returns whether this sync of a file is to fail.
    pub fn fails_to_sync(&mut self, path: &Path) -> bool {
        let failing = &mut self.0.failing_syncs;
        let Some((_, left)) = failing.as_mut().filter(|(failing, _)| failing == path) else { return false };
        *left -= 1;
        failing.take_if(|(_, left)| *left == 0);
        true
    }

    /// Returns whether this sync of a log's blocks is to fail.
    pub fn fails_to_sync_log(&mut self, id: FileId) -> bool {
        let path = self.0.recording.files.get(id.0 as usize).map(|file| file.path.clone());
        path.is_some_and(|path| self.fails_to_sync(&path))
    }

    /// Adds an event.
    pub fn push(&mut self, event: Event) {
        self.take_requests();
        self.add_event(event);
    }

    /// Adds the requests that the disk has received since the last event.
    fn take_requests(&mut self) {
        for request in std::mem::take(&mut *locked(self.1)) {
            self.add_event(Event::Disk(request));
        }
    }

    fn add_event(&mut self, event: Event) {
        if self.0.running {
            self.0.recording.events.push(event);
            let calls = self.0.calls;
            self.0.calls_at.push(calls);
        }
    }

    /// Returns the call site of this call.
    pub fn site(&mut self) -> SiteId {
        let running = self.0.running;
        match &mut self.0.sites {
            Some(sites) if running => sites.here(),
            _ => SiteId(0),
        }
    }

    fn add(&mut self, path: &Path, kind: FileKind, initial: Vec<u8>) -> FileId {
        let id = FileId(self.0.recording.files.len() as u32);
        self.0.recording.files.push(RecordedFile { path: path.to_path_buf(), kind, initial });
        self.0.current.insert(path.to_path_buf(), id);
        id
    }

    /// Returns the file at a path. If the recording has no file there, adds one.
    pub fn file(&mut self, path: &Path, kind: FileKind) -> FileId {
        match self.0.current.get(path) {
            Some(id) => *id,
            None => self.add(path, kind, Vec::new()),
        }
    }

    /// Sets how a file becomes durable.
    pub fn set_kind(&mut self, file: FileId, kind: FileKind) {
        if let Some(file) = self.0.recording.files.get_mut(file.0 as usize) {
            file.kind = kind;
        }
    }

    /// Records that a new file was made at this path. An earlier file at the path counts as a different file.
    pub fn made(&mut self, path: &Path, kind: FileKind) -> FileId {
        self.add(path, kind, Vec::new())
    }

    /// Records that the path names a file from now on.
    pub fn named(&mut self, path: &Path, kind: FileKind) {
        let file = Some(self.file(path, kind));
        self.push(Event::Name { path: path.to_path_buf(), file });
    }

    /// Records that the path names no file from now on.
    pub fn removed(&mut self, path: &Path) {
        if self.0.current.remove(path).is_some() {
            self.push(Event::Name { path: path.to_path_buf(), file: None });
        }
    }
}
