//! Checks that the explorer finds bugs. In recordings, it leaves out calls for durability or changes the
//! order of events, and explores the results.
//!
//! A medium that skips every call from one place in the source leaves the same trace as a program without
//! that call. So one recorded run stands for many broken programs, one for each call site.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use crate::event::{Event, FileKind, Recording, SiteId};
use crate::memory::{Explorer, Limits, Tally};
use crate::setup::{Engine, Setup};
use crate::stage::Stage;
use crate::workload::{self, Length, Run};

/// After a changed event, the explorer looks for effects of the change at this many barriers.
const REACH: usize = 8;

/// A change of a recording.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// Every call from one place in the source is left out.
    Omit {
        /// The kind of call, in words.
        kind: &'static str,
        /// Where it is called, innermost first.
        site: String,
    },
    /// A commit mark becomes durable before the data that it declares valid.
    EarlyMark,
    /// A checkpoint's pages become durable in the database file before the log that they come from is
    /// durable.
    HomeFirst,
}

impl std::fmt::Display for Mutation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Omit { kind, site } => write!(f, "no {kind} at {site}"),
            Self::EarlyMark => f.write_str("commit mark durable first"),
            Self::HomeFirst => f.write_str("home durable before the log"),
        }
    }
}

/// Functions in which a call may be left out although no check notices. Each entry has the function and the
/// reason.
const EXPLAINED: [(&str, &str); 19] = [
    (
        "sync < log.rs",
        "what is in memory has been written back; the file's length and blocks wait for it, and are recorded as durable",
    ),
    ("reach < extend", "only the new length waits for it, and a preallocated length is recorded as durable"),
    ("raise", "the guard is synced before the first transaction, and a home once more"),
    ("set_state", "the table of block states is a hint: after a crash the list of blocks decides"),
    ("allocate", "as for the table; what the block holds is fenced again before anything names it"),
    ("free", "as for the table"),
    ("reconcile", "as for the table"),
    ("store_link", "the commit's own fence follows before anything relies on the link"),
    ("append_to", "the eager order of the paper; the commit's own fence follows"),
    ("switch_generation", "another fence follows at once, when the blocks of the old generation are freed"),
    ("settle_doubtful", AFTER_A_DEATH),
    ("publish", "the content is durable already, by the flush that formatted it: this is for owner and mode"),
    ("sync_names", "the database was synced just before, which is enough where metadata is journalled"),
    ("format", "the sync before the file gets its name covers it"),
    (
        "cut_behind_tail",
        "what the link leads to counts only behind the terminator, and is fenced before that is moved",
    ),
    (
        "sync",
        "where the database is mapped SQLite syncs its pages too, which it does not at synchronous=OFF; and what a process \
         that has died had written: explored as states after deaths",
    ),
    ("settle", "needed after a flush that failed, which inv09 tests of the engine try"),
    ("flush_link", UNLINKED),
    // This entry is for the fence in `flush_link`. The call stack does not show `flush_link` itself here.
    ("recover_heap < attach", UNLINKED),
];
const UNLINKED: &str = "needed when a process has died between an unlink and its flush, and the block is in use again at a power loss: \
     rarer than is looked at here";

/// Functions of `nvwal` in which a call may be left out although no check notices. Each entry has the kind of
/// call, the function and the reason.
const EXPLAINED_OF_NVWAL: [(&str, &str, &str); 1] = [(
    "fence",
    "store_grown < grow",
    "the fence behind the new block's state follows at once, before the block holds anything",
)];

/// Functions of `ppl` in which a call may be left out although no check notices. Each entry has the kind of
/// call, the function and the reason.
const EXPLAINED_OF_PPL: [(&str, &str, &str); 11] = [
    (
        "fence",
        "store_grown < grow",
        "the transaction's own fence follows before anything in the new chunks counts",
    ),
    (
        "flush",
        "store_grown < grow",
        "where a merge makes the log longer, its own fences come before what it moves counts",
    ),
    (
        "flush",
        "store_grown < shrink",
        "after a crash the log has its larger size again, and no extent in the chunks that were given back is in use",
    ),
    ("fence", "store_grown < shrink", "as for the flush"),
    (
        "fence",
        "detach_batch",
        "the first is for logs that move, which only a commit between a merge and its sync brings about: rarer than is \
         looked at here",
    ),
    ("fence", "rebuild", AFTER_A_CRASH),
    ("flush", "rebuild", AFTER_A_CRASH),
    ("flush", "recover", AFTER_A_CRASH),
    (
        "fence",
        "erase_slots",
        "any later fence will do: until its page is merged again a slot that comes back holds what is on flash",
    ),
    ("flush", "erase_slots", "shows when the page has been merged again, later than is looked at here"),
    ("", "retire", "it says of a log without records that it may be deleted, which is seen without it"),
];

/// Functions of `scratchpad` in which a call may be left out although no check notices. Each entry has the
/// kind of call, the function and the reason.
const EXPLAINED_OF_SCRATCHPAD: [(&str, &str, &str); 11] = [
    (
        "fence",
        "checkpointed",
        "the sync of the home, without which the log does not start over, fences once more",
    ),
    (
        "",
        "create",
        "an empty journal is as good as none; where it begins and that it is there are in one line, which the journal's sync \
         makes durable before the database changes",
    ),
    (
        "fence",
        "write < journal.rs",
        "what was kept in memory until EXCLUSIVE is put into the log, and synced there before it counts",
    ),
    (
        ALONE,
        "write < write",
        "a journal begins with a word of zeros, which is fenced; and until it is synced the database is unchanged",
    ),
    ("fence", "store_beginning < write", IN_ONE_LINE),
    ("", "flush_words < pages", AFTER_A_DEATH),
    ("", "uncount < release", COUNTS_TOO_MANY),
    // This entry too is for the last fence of `release`. Its stack shows only the caller, `retire`.
    ("fence", "retire < log.rs", COUNTS_TOO_MANY),
    (
        "flush",
        "writer.rs < part",
        "the last entry is one line with its mark, which is flushed: they become durable in their order",
    ),
    (
        "",
        "flush < truncate",
        "what stays of a journal that is cut SQLite has synced before, and of one that ends nothing stays",
    ),
    (
        "flush",
        "erase_heads < reach",
        "a page that held the second head of a journal and holds more of another one: rarer than is looked at here; inv26 of the \
         engine tries it",
    ),
];
const COUNTS_TOO_MANY: &str = "a region that counts a log too many only stays; that it never counts one too few takes several logs to \
    see, which inv24 of the engine has";
const ALONE: &str = "fence of stores that need no flush";
const IN_ONE_LINE: &str = "SQLite writes of a head the first 28 bytes, or 12 of them, which are in one line: they become durable in their order";
const AFTER_A_DEATH: &str =
    "needed when the process before has died without flushing: explored as states after deaths";
const AFTER_A_CRASH: &str =
    "there is something to be made durable only after a crash: explored as states during recovery";

impl Mutation {
    /// Returns why the mutation may go unnoticed with this engine; `None` if a check must notice it.
    #[must_use]
    pub fn explanation(&self, engine: Engine) -> Option<&'static str> {
        let Self::Omit { kind, site } = self else { return None };
        let frames: Vec<&str> =
            site.split(" < ").map(|frame| frame.rsplit_once(':').map_or(frame, |(name, _)| name)).collect();
        // `names` is one function, or a chain of functions that call each other, innermost first.
        let explains = |names: &str| {
            let names: Vec<&str> = names.split(" < ").collect();
            frames.windows(names.len()).any(|frames| frames == names)
        };
        let own = match engine.as_str() {
            "nvwal" => EXPLAINED_OF_NVWAL.as_slice(),
            "ppl" => &EXPLAINED_OF_PPL,
            "scratchpad" => &EXPLAINED_OF_SCRATCHPAD,
            _ => &[],
        };
        let mut own = own.iter().filter(|(of, name, _)| kind.starts_with(of) && explains(name));
        let shared = || EXPLAINED.iter().find(|(name, _)| explains(name)).map(|(_, why)| *why);
        own.next().map(|(_, _, why)| *why).or_else(shared)
    }
}

/// The result of exploring a mutation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The mutation.
    pub mutation: Mutation,
    /// The number of calls that the mutation changed.
    pub calls: usize,
    /// The number of states that the explorer recovered. It stops at the first state that the oracle rejects.
    pub states: u64,
    /// What was wrong with the state that the oracle rejected; `None` if it rejected none.
    pub caught: Option<String>,
}

/// Recorded runs of an engine, with their call sites.
pub struct Mutants {
    runs: Vec<(Explorer, Run)>,
}

impl Mutants {
    /// Records runs with these seeds.
    ///
    /// # Errors
    /// The error of a workload.
    pub fn record(engine: Engine, seeds: impl Iterator<Item = u64>, length: Length) -> Result<Self> {
        let mut runs = Vec::new();
        for seed in seeds {
            // Only setups that promise durability and have one thread. With the others, the checks would pass
            // even if many calls were left out.
            let sound = |setup: &Setup| setup.waits && setup.threads == 1;
            let mut others = (0..100).map(|offset| Setup::for_each_mode(engine, seed + 1000 * offset));
            let setups = others.find(|setups| setups.iter().all(sound)).context("no setup")?;
            for setup in setups {
                let stage = Stage::new(setup.beside)?;
                let run = workload::record(&stage, &setup, seed, length, true)
                    .with_context(|| format!("the workload of seed {seed}"))?;
                runs.push((Explorer::new(stage, setup, seed, &run)?, run));
            }
        }
        Ok(Self { runs })
    }

    /// Returns every mutation that these runs allow: each omission of a call, and each change of order.
    #[must_use]
    pub fn all(&self) -> Vec<Mutation> {
        let mut all = BTreeSet::new();
        for (_, run) in &self.runs {
            for event in &run.recording.events {
                if let Some(mutation) = omission(&run.recording, event) {
                    all.insert(mutation);
                }
            }
        }
        let has_memory = self
            .runs
            .iter()
            .any(|(_, run)| run.recording.files.iter().any(|file| file.kind == FileKind::Memory));
        let early = has_memory.then_some(Mutation::EarlyMark);
        all.into_iter().chain(early).chain([Mutation::HomeFirst]).collect()
    }

    /// Explores the runs with a mutation until the oracle rejects a state.
    ///
    /// # Errors
    /// An error that says why the test could not run.
    pub fn try_out(&self, mutation: &Mutation, window_states: usize) -> Result<Outcome> {
        let mut tally = Tally::default();
        let mut calls = 0;
        for (explorer, run) in &self.runs {
            let (events, changed) = mutate(&run.recording, mutation);
            if changed.is_empty() {
                continue;
            }
            calls += changed.len();
            let mutant = Recording { events, ..run.recording.clone() };
            let near = Some(reach(&mutant, &changed));
            let limits = Limits { states: u64::MAX, window_states, exhaustive_lines: 0, near };
            if let Some(violation) = explorer.run(&mutant, &limits, &mut tally)? {
                let caught = Some(violation.what.clone());
                return Ok(Outcome { mutation: mutation.clone(), calls, states: tally.states, caught });
            }
        }
        Ok(Outcome { mutation: mutation.clone(), calls, states: tally.states, caught: None })
    }
}

fn omission(recording: &Recording, event: &Event) -> Option<Mutation> {
    let kind = match event {
        Event::Flush { .. } => "flush",
        Event::Fence { all: true, .. } => ALONE,
        Event::Fence { .. } => "fence",
        Event::Sync { .. } | Event::SyncRange { .. } => "sync",
        Event::SyncNames { .. } => "sync of names",
        _ => return None,
    };
    let SiteId(index) = event.site()?;
    Some(Mutation::Omit { kind, site: recording.sites.get(index as usize)?.clone() })
}

/// Returns the changed events, and the positions at which the changes begin to have an effect.
fn mutate(recording: &Recording, mutation: &Mutation) -> (Vec<Event>, Vec<usize>) {
    match mutation {
        Mutation::Omit { .. } => {
            let (mut events, mut changed) = (Vec::new(), Vec::new());
            for event in &recording.events {
                if omission(recording, event).as_ref() == Some(mutation) {
                    changed.push(events.len());
                } else {
                    events.push(event.clone());
                }
            }
            (events, changed)
        }
        Mutation::EarlyMark => early_marks(&recording.events),
        Mutation::HomeFirst => home_first(recording),
    }
}

/// Moves each commit mark before the flushes and the fence that precede it. A mark is a store of a single
/// word, followed by its flush (where the memory needs one) and its fence.
fn early_marks(events: &[Event]) -> (Vec<Event>, Vec<usize>) {
    let (mut out, mut changed): (Vec<Event>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut rest = events;
    while let [first, others @ ..] = rest {
        let mark = match rest {
            [Event::Store { bytes, .. }, Event::Flush { .. }, Event::Fence { .. }, ..]
                if bytes.len() == 8 =>
            {
                3
            }
            [Event::Store { bytes, .. }, Event::Fence { all: true, .. }, ..] if bytes.len() == 8 => 2,
            _ => 0,
        };
        if mark > 0
            && let Some(Event::Fence { .. }) = out.last()
        {
            // The mark's data is flushed between the last two fences, so the mark moves to the place before
            // these flushes.
            let last = out.len() - 1;
            let from = out[..last].iter().rposition(|event| matches!(event, Event::Fence { .. }));
            let at = from.map_or(0, |position| position + 1);
            changed.push(at);
            out.splice(at..at, rest[..mark].iter().cloned());
            rest = &rest[mark..];
            continue;
        }
        out.push(first.clone());
        rest = others;
    }
    (out, changed)
}

/// From the first commit on, moves each sync of the log to the place after the next sync of the database.
/// Removes the acknowledgements between the two places, so that the explorer finds nothing but effects of the
/// wrong order.
fn home_first(recording: &Recording) -> (Vec<Event>, Vec<usize>) {
    let is_log = |file: crate::event::FileId| crate::event::is_log(&recording.files[file.0 as usize].path);
    let is_home = |event: &Event| {
        matches!(event, Event::Sync { file, .. }
            if recording.files[file.0 as usize].path.extension().is_some_and(|end| end == "db"))
    };
    let mut begun = false;
    let (mut out, mut changed) = (Vec::new(), Vec::new());
    let mut held: BTreeMap<usize, Event> = BTreeMap::new();
    for event in &recording.events {
        match event {
            Event::Begin { .. } => begun = true,
            Event::Sync { file, .. } | Event::SyncRange { file, .. } | Event::Fence { file, .. }
                if begun && is_log(*file) =>
            {
                held.insert(file.0 as usize, event.clone());
                changed.push(out.len());
                continue;
            }
            Event::Acknowledged { .. } if !held.is_empty() => continue,
            _ => {}
        }
        out.push(event.clone());
        if is_home(event) {
            out.extend(std::mem::take(&mut held).into_values());
        }
    }
    (out, changed)
}

/// Returns the first barriers after each change, and the end of the recording. The explorer looks there for
/// the effects of the change.
fn reach(recording: &Recording, changed: &[usize]) -> BTreeSet<usize> {
    let mut near = BTreeSet::new();
    for from in changed {
        let behind = recording.events.iter().enumerate().skip(*from);
        let barriers = behind.filter(|(_, event)| crate::model::Model::is_barrier(event));
        near.extend(barriers.take(REACH).map(|(position, _)| position));
    }
    near.insert(recording.events.len());
    near
}
