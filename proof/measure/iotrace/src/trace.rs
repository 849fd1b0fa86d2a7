//! Turns events into requests, finds their purposes, and sums them up.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde::Serialize;

use crate::class::Class;
use crate::device::Device;
use crate::parse::{Action, Event, Step};
use crate::ranges::Range;
use crate::watch::{Map, Part};

/// The first letters of the name of ext4's journal thread.
const JOURNAL_THREAD: &str = "jbd2/";
/// The first letters of the names of the kernel's worker threads. These threads issue requests that had to
/// wait for a flush.
const WORKER: &str = "kworker/";
/// In the journal, the commit record of an ext4 transaction follows the transaction's other blocks within
/// this number of seconds.
const COMMIT: f64 = 1.0;

/// A request that wrote.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Write {
    /// The time when the request was issued, in seconds from the start of the trace.
    pub seconds: f64,
    /// The seconds until the request was complete, if the trace has its completion.
    pub took: Option<f64>,
    /// The offset of the first byte on the whole device, which may have partitions.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The purpose of the largest part of the request's bytes.
    pub class: Class,
    /// The purposes of the request's other bytes, if the kernel wrote neighbouring blocks together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<(Class, u64)>,
    /// The file to which the request belongs, as an index into [`Trace::files`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<usize>,
    /// Whether the request's data had to be durable on completion (FUA).
    pub fua: bool,
    /// The task that issued the request, which is often one of the kernel's.
    pub task: String,
}

/// A file that was watched and found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TracedFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The kind of the file.
    pub class: Class,
    /// The requests and bytes written to the file. A request counts for the file that has most of its bytes.
    #[serde(flatten)]
    pub volume: Volume,
}

/// The way in which the tracer identified requests to the file system's journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalBy {
    /// By their place on the device.
    Place,
    /// By the thread that issued them.
    Task,
    /// The file system has no journal.
    Absent,
}

/// A number of requests and of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Volume {
    /// The number of requests.
    pub requests: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The result of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The device, as `MAJOR:MINOR`.
    pub device: String,
    /// Whether the device takes no requests (device mapper, md, zram). If so, the tracer counts bios, before
    /// the kernel merges neighbouring ones.
    pub of_bios: bool,
    /// The length of the trace in seconds.
    pub seconds: f64,
    /// Every request that wrote, in the order in which the kernel issued them.
    pub writes: Vec<Write>,
    /// The times when the device flushed its cache, in seconds from the start.
    pub flushes: Vec<f64>,
    /// The number of bytes that were zeroed without transferring data.
    pub zeroed_bytes: u64,
    /// The number of bytes that were discarded.
    pub discarded_bytes: u64,
    /// The number of events that the kernel lost because its buffer was full.
    pub lost: u64,
    /// The watched files that existed at some time.
    pub files: Vec<TracedFile>,
    /// The places of the file system's journal on the device, as first bytes and ends, if known.
    pub journal: Vec<(u64, u64)>,
    /// The way in which the tracer identified requests to the journal.
    pub journal_by: JournalBy,
    /// The number of requests to the journal's place that neither the journal's thread nor a worker of the
    /// kernel issued. With fast commits, processes that wait for a commit write to that place themselves.
    /// Without fast commits this number is 0.
    pub journal_by_others: u64,
    /// The kernel's lines, if the tracer kept them.
    pub raw: Option<String>,
}

/// Sums of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The sums of each class. Every class has an entry.
    pub classes: BTreeMap<Class, Volume>,
    /// The sums over all classes.
    pub total: Volume,
    /// The number of flushes of the device's cache.
    pub flushes: u64,
    /// The number of writes whose data had to be durable on completion.
    pub fua: u64,
    /// The number of bytes that were zeroed without transferring data.
    pub zeroed_bytes: u64,
    /// The number of bytes that were discarded.
    pub discarded_bytes: u64,
    /// The number of events that the kernel lost because its buffer was full. If this number is not 0, the
    /// sums are too small.
    pub lost: u64,
}

impl Summary {
    /// Returns the sums of one class.
    #[must_use]
    pub fn of(&self, class: Class) -> Volume {
        self.classes.get(&class).copied().unwrap_or_default()
    }
}

impl Trace {
    /// Returns the sums by class.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut classes: BTreeMap<Class, Volume> =
            Class::ALL.into_iter().map(|class| (class, Volume::default())).collect();
        let mut total = Volume::default();
        let mut add = |class: Class, requests: u64, bytes: u64| {
            for sum in [classes.entry(class).or_default(), &mut total] {
                sum.requests += requests;
                sum.bytes += bytes;
            }
        };
        for write in &self.writes {
            let shared: u64 = write.shared.iter().map(|(_, bytes)| bytes).sum();
            add(write.class, 1, write.bytes - shared);
            write.shared.iter().for_each(|(class, bytes)| add(*class, 0, *bytes));
        }
        Summary {
            classes,
            total,
            flushes: self.flushes.len() as u64,
            fua: self.writes.iter().filter(|write| write.fua).count() as u64,
            zeroed_bytes: self.zeroed_bytes,
            discarded_bytes: self.discarded_bytes,
            lost: self.lost,
        }
    }

    pub(crate) fn new(
        mut events: Vec<Event>,
        start: f64,
        map: &Map,
        device: &Device,
        journal: Option<Vec<Range>>,
    ) -> Self {
        events.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let journal_by = match journal {
            Some(_) => JournalBy::Place,
            None if device.has_journal() => JournalBy::Task,
            None => JournalBy::Absent,
        };
        let mut trace = Self {
            device: format!("{}:{}", device.major, device.minor),
            of_bios: !device.has_requests,
            seconds: 0.0,
            writes: Vec::new(),
            flushes: Vec::new(),
            zeroed_bytes: 0,
            discarded_bytes: 0,
            lost: 0,
            files: Vec::new(),
            journal: journal.unwrap_or_default(),
            journal_by,
            journal_by_others: 0,
            raw: None,
        };
        let mut owners = Owners { journal_by, volumes: HashMap::new(), ends: HashMap::new() };
        for (event, took) in issued(events) {
            let at = rounded(event.seconds - start);
            // A flush has no offset, so flushes for other partitions of the device count too.
            if event.flush {
                trace.flushes.push(at);
            }
            if event.offset < device.part.0 || event.offset >= device.part.1 {
                continue;
            }
            match event.action {
                Action::Zero => trace.zeroed_bytes += event.bytes,
                Action::Discard => trace.discarded_bytes += event.bytes,
                Action::Other => {}
                Action::Write => {
                    let write = owners.write(event, at, took, map);
                    let known = [JOURNAL_THREAD, WORKER].iter().any(|name| write.task.starts_with(name));
                    trace.journal_by_others += u64::from(write.class == Class::Journal && !known);
                    trace.writes.push(write);
                }
            }
        }
        let files = map.files.iter().enumerate();
        let files = files.map(|(at, (path, class))| TracedFile {
            path: path.clone(),
            class: *class,
            volume: owners.volumes.get(&at).copied().unwrap_or_default(),
        });
        trace.files = files.collect();
        trace
    }
}

/// Attributes writes to files, and sums up the bytes of each file.
struct Owners {
    journal_by: JournalBy,
    volumes: HashMap<usize, Volume>,
    /// The offsets at which writes of the journal's thread ended, each with the time of that write. A worker
    /// thread of the kernel may continue the write there.
    ends: HashMap<u64, f64>,
}

impl Owners {
    /// Turns an event into a write that was issued `at` seconds after the start. Adds the write to the sums
    /// of its files.
    fn write(&mut self, event: Event, at: f64, took: Option<f64>, map: &Map) -> Write {
        let by_thread = event.task.starts_with(JOURNAL_THREAD);
        let parts = map.parts((event.offset, event.offset + event.bytes), event.seconds);
        let otherwise = match self.journal_by {
            JournalBy::Place | JournalBy::Absent => Class::Other,
            JournalBy::Task => {
                let goes_on = self.ends.get(&event.offset).is_some_and(|end| event.seconds - end < COMMIT);
                let journals = by_thread || goes_on && event.task.starts_with(WORKER);
                if journals { Class::Journal } else { Class::Other }
            }
        };
        if by_thread {
            self.ends.insert(event.offset + event.bytes, event.seconds);
        }
        let write = write_of(event, at, took, &parts, otherwise);
        if let Some(file) = write.file {
            self.volumes.entry(file).or_default().requests += 1;
        }
        for part in &parts {
            if let Some(file) = part.file.filter(|_| part.class != Some(Class::Journal)) {
                self.volumes.entry(file).or_default().bytes += part.bytes;
            }
        }
        write
    }
}

/// Rounds to microseconds, the resolution of the trace.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

/// Makes a write from an event. `parts` are the parts of the written range by owner. `otherwise` is the
/// purpose of bytes that have no owner.
fn write_of(event: Event, seconds: f64, took: Option<f64>, parts: &[Part], otherwise: Class) -> Write {
    let mut sums: BTreeMap<Class, u64> = BTreeMap::new();
    for part in parts {
        *sums.entry(part.class.unwrap_or(otherwise)).or_default() += part.bytes;
    }
    let class = sums.iter().max_by_key(|(_, bytes)| **bytes).map_or(otherwise, |(class, _)| *class);
    let of_class = parts.iter().filter(|part| part.class == Some(class) && class != Class::Journal);
    let file = of_class.max_by_key(|part| part.bytes).and_then(|part| part.file);
    Write {
        seconds,
        took,
        offset: event.offset,
        bytes: event.bytes,
        class,
        shared: sums.into_iter().filter(|(other, _)| *other != class).collect(),
        file,
        fua: event.fua,
        task: event.task,
    }
}

/// Returns the requests that the device accepted, with the time until each was complete.
fn issued(events: Vec<Event>) -> Vec<(Event, Option<f64>)> {
    let mut taken: Vec<Option<(Event, Option<f64>)>> = Vec::new();
    // Requests in flight, by offset and size.
    let mut under_way: HashMap<(u64, u64), Vec<usize>> = HashMap::new();
    for event in events {
        let key = (event.offset, event.bytes);
        match event.step {
            Step::Issue => {
                under_way.entry(key).or_default().push(taken.len());
                taken.push(Some((event, None)));
            }
            Step::Requeue => {
                if let Some(slot) =
                    under_way.get_mut(&key).and_then(Vec::pop).and_then(|index| taken.get_mut(index))
                {
                    *slot = None;
                }
            }
            Step::Complete => {
                let Some(waiting) = under_way.get_mut(&key).filter(|waiting| !waiting.is_empty()) else {
                    continue;
                };
                if let Some(Some((issue, took))) = taken.get_mut(waiting.remove(0)) {
                    *took = Some(rounded(event.seconds - issue.seconds));
                }
            }
        }
    }
    taken.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse_line;

    const BLOCK: u64 = 4096;

    fn trace_of(text: &str, journal: Option<Vec<Range>>) -> Trace {
        let device = Device::for_test((0, 1 << 40));
        let map = Map::for_test(
            &[(10 * BLOCK, 12 * BLOCK, Class::Database), (12 * BLOCK, 20 * BLOCK, Class::Log)],
            journal.as_deref().unwrap_or_default(),
        );
        Trace::new(text.lines().filter_map(parse_line).collect(), 1.0, &map, &device, journal)
    }

    const COMMIT_OF_EXT4: &str = "\
 app-1 [0] . 1.001: block_rq_issue: 7,0 WS 8192 () 96 + 16 be,0,4 [app]
 soft-1 [0] . 1.002: block_rq_complete: 7,0 WS () 96 + 16 be,0,4 [0]
 jbd2/loop0-8-2 [0] . 1.003: block_rq_issue: 7,0 WSM 8192 () 800 + 16 be,0,3 [jbd2/loop0-8]
 kworker/0:1H-3 [0] . 1.004: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [kworker/0:1H]
 kworker/0:1H-3 [0] . 1.005: block_rq_issue: 7,0 WSM 4096 () 816 + 8 be,0,3 [kworker/0:1H]
 kworker/0:1H-3 [0] . 1.006: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [kworker/0:1H]
 kworker/u8-4 [1] . 1.007: block_rq_issue: 7,0 W 4096 () 4000 + 8 be,0,4 [kworker/u8]
";

    #[test]
    fn a_commit_is_classed_by_place_and_nearly_so_by_task() {
        let volume = |requests, bytes| Volume { requests, bytes };
        for journal in [Some(vec![(100 * BLOCK, 200 * BLOCK)]), None] {
            let by = if journal.is_some() { JournalBy::Place } else { JournalBy::Task };
            let trace = trace_of(COMMIT_OF_EXT4, journal);
            let summary = trace.summary();
            assert_eq!((trace.journal_by, trace.journal_by_others), (by, 0));
            assert_eq!(summary.of(Class::Log), volume(1, 8192));
            assert_eq!(summary.of(Class::Journal), volume(2, 12288));
            assert_eq!(summary.of(Class::Other), volume(1, 4096));
            assert_eq!((summary.of(Class::Database), summary.total), (volume(0, 0), volume(4, 24576)));
            assert_eq!((summary.flushes, summary.fua), (2, 0));
            assert_eq!((trace.writes[0].seconds, trace.writes[0].took), (0.001, Some(0.001)));
            assert_eq!(trace.files[1].volume, volume(1, 8192));
        }
    }

    #[test]
    fn a_request_to_two_files_counts_once_and_its_bytes_where_they_are() {
        let text = " x-1 [0] . 1.1: block_rq_issue: 7,0 WFS 12288 () 80 + 24 be,0,4 [x]\n\
                    x-1 [0] . 1.2: block_rq_issue: 7,0 WS 12288 () 88 + 24 be,0,4 [x]\n";
        let trace = trace_of(text, None);
        let summary = trace.summary();
        assert_eq!(summary.of(Class::Database), Volume { requests: 1, bytes: 3 * BLOCK });
        assert_eq!(summary.of(Class::Log), Volume { requests: 1, bytes: 3 * BLOCK });
        assert_eq!(summary.total, Volume { requests: 2, bytes: 6 * BLOCK });
        assert_eq!(summary.fua, 1);
        assert_eq!(trace.files[0].volume.bytes, 3 * BLOCK);
    }

    #[test]
    fn what_the_device_did_not_take_counts_when_it_did() {
        let issue = "block_rq_issue: 7,0 WS 4096 () 96 + 8 be,0,4 [x]";
        let text = format!(
            " x-1 [0] . 1.1: {issue}\n x-1 [0] . 1.2: block_rq_requeue: 7,0 WS () 96 + 8 be,0,4 [0]\n \
             x-1 [0] . 1.3: {issue}\n x-1 [0] . 1.4: block_rq_complete: 7,0 WS () 96 + 8 be,0,4 [0]\n \
             x-1 [0] . 1.5: block_rq_complete: 7,0 WS () 960 + 8 be,0,4 [0]\n"
        );
        let trace = trace_of(&text, None);
        assert_eq!(trace.writes.len(), 1);
        assert_eq!((trace.writes[0].seconds, trace.writes[0].took), (0.3, Some(0.1)));
    }

    #[test]
    fn other_partitions_and_what_sends_no_content_are_no_writes() {
        let text = " x-1 [0] . 1.1: block_rq_issue: 7,0 DS 4096 () 96 + 8 be,0,4 [x]\n \
                    x-1 [0] . 1.2: block_rq_issue: 7,0 WZS 8192 () 96 + 16 be,0,4 [x]\n \
                    x-1 [0] . 1.3: block_rq_issue: 7,0 WS 4096 () 4294967296 + 8 be,0,4 [x]\n";
        let trace = trace_of(text, None);
        assert_eq!((trace.discarded_bytes, trace.zeroed_bytes, trace.writes.len()), (4096, 8192, 0));
    }
}
