//! Parses lines of the kernel's trace.

/// A step in the life of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The request went to the device (`block_rq_issue`), or to a device without requests
    /// (`block_bio_queue`).
    Issue,
    /// The device did not accept the request, and the kernel will issue it again (`block_rq_requeue`).
    Requeue,
    /// The request is complete (`block_rq_complete`).
    Complete,
}

/// The action of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A write of content.
    Write,
    /// A zeroing of a range, without data transfer.
    Zero,
    /// A discard of a range.
    Discard,
    /// None of these. The request may still flush.
    Other,
}

/// An event of a request that does not read.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The time, in seconds of the trace's clock.
    pub seconds: f64,
    /// The step of the request.
    pub step: Step,
    /// The action of the request.
    pub action: Action,
    /// Whether the device flushes its cache before the rest of the request.
    pub flush: bool,
    /// Whether the request's data must be durable on completion (FUA).
    pub fua: bool,
    /// The first byte on the device.
    pub offset: u64,
    /// The number of bytes; 0 for a request that only flushes.
    pub bytes: u64,
    /// The name of the task in which the event happened. It is empty for [`Step::Requeue`] and
    /// [`Step::Complete`].
    pub task: String,
}

/// Parses a line of a block tracepoint. Returns `None` for any other line, and for requests that read. An
/// example:
///
/// `  python3-123  [001] d..1.  12.345678: block_rq_issue: 7,0 WS 4096 () 8216 + 8 be,0,4 [python3]`
#[must_use]
pub fn parse_line(line: &str) -> Option<Event> {
    // A task's name is too short to contain one of these strings, so the first match is the event's
    // name.
    let steps = [
        (": block_rq_issue: ", Step::Issue),
        (": block_bio_queue: ", Step::Issue),
        (": block_rq_requeue: ", Step::Requeue),
        (": block_rq_complete: ", Step::Complete),
    ];
    let (head, event, name, step) = steps
        .iter()
        .find_map(|(name, step)| line.split_once(name).map(|(head, event)| (head, event, *name, *step)))?;
    let seconds = head.rsplit(' ').next()?.parse().ok()?;
    let mut words = event.split(' ');
    let (_device, operation) = (words.next()?, words.next()?);
    let (action, flush, fua) = decode(operation)?;
    // A request's sector follows the command for the device, which is in parentheses. A bio has no command.
    let place = match name {
        ": block_bio_queue: " => event.splitn(3, ' ').nth(2)?,
        _ => event.split_once(") ")?.1,
    };
    let (sector, place) = place.split_once(" + ")?;
    let (sectors, rest) = place.split_once(' ')?;
    let sector: u64 = sector.parse().ok()?;
    let sectors: u64 = sectors.parse().ok()?;
    // The task's name is in brackets at the end, and may contain any characters.
    let (_, task) = rest.split_once('[')?;
    let task = task.trim_end().strip_suffix(']')?;
    Some(Event {
        seconds,
        step,
        action: if sectors == 0 { Action::Other } else { action },
        flush,
        fua: fua && sectors > 0,
        offset: sector.wrapping_mul(512),
        bytes: sectors.wrapping_mul(512),
        task: if step == Step::Issue { task.to_owned() } else { String::new() },
    })
}

/// The blocks in which ext4 has put a piece of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mapping {
    /// The time, in seconds of the trace's clock.
    pub seconds: f64,
    /// The file's inode.
    pub inode: u64,
    /// The first block on the file system's device.
    pub block: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// Parses a line of ext4's `ext4_ext_map_blocks_exit`. Returns `None` for any other line, and for holes. An
/// example:
///
/// `  python3-123  [001] d..1.  12.345678: ext4_ext_map_blocks_exit: dev 7,0 ino 22 flags CREATE|UNWRIT
/// lblk 0 pblk 6540 len 3 mflags NMU ret 3`
#[must_use]
pub fn parse_mapping(line: &str) -> Option<Mapping> {
    let (head, event) = line
        .split_once(": ext4_ext_map_blocks_exit: ")
        .or_else(|| line.split_once(": ext4_ind_map_blocks_exit: "))?;
    let seconds = head.rsplit(' ').next()?.parse().ok()?;
    let value = |name: &str| event.split_once(name)?.1.split(' ').next()?.trim().parse::<i64>().ok();
    let mapped = u64::try_from(value(" ret ")?).ok().filter(|blocks| *blocks > 0)?;
    let (inode, block) = (value(" ino ")?, value(" pblk ")?);
    Some(Mapping {
        seconds,
        inode: u64::try_from(inode).ok()?,
        block: u64::try_from(block).ok()?,
        blocks: mapped.min(u64::try_from(value(" len ")?).ok()?),
    })
}

/// Decodes the kernel's letters: an F if the request flushes first, then the operation, then attributes. An F
/// among the attributes means FUA. Returns `None` if the request reads.
fn decode(operation: &str) -> Option<(Action, bool, bool)> {
    let preflush = operation.starts_with('F');
    // A request that only flushes is "F", or "FF" if the kernel also marks it as a flush.
    let rest = operation.strip_prefix('F').unwrap_or(operation);
    let (action, attributes) = if let Some(rest) = rest.strip_prefix("WZ") {
        (Action::Zero, rest)
    } else if let Some(rest) = rest.strip_prefix("ZA").or_else(|| rest.strip_prefix('W')) {
        (Action::Write, rest)
    } else if let Some(rest) = rest.strip_prefix('D') {
        (Action::Discard, rest)
    } else if let Some(rest) = rest.strip_prefix('N') {
        // Older kernels print N for operations for which they have no letter: zeroing, or resetting zones.
        (Action::Zero, rest)
    } else if rest.starts_with('R') {
        return None;
    } else {
        return Some((Action::Other, preflush, false));
    };
    Some((action, preflush, attributes.contains('F')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> Event {
        parse_line(line).unwrap_or_else(|| panic!("{line}"))
    }

    #[test]
    fn lines_of_a_kernel_are_read() {
        let line = "    a: [x] b-1 c-10259   [000] ..... 20661.349390: block_rq_issue: 7,0 WS 12288 () 49352 + 24 be,0,4 [a: [x] b-1 c]";
        let expected = Event {
            seconds: 20661.349390,
            step: Step::Issue,
            action: Action::Write,
            flush: false,
            fua: false,
            offset: 49352 * 512,
            bytes: 12288,
            task: "a: [x] b-1 c".to_owned(),
        };
        assert_eq!(event(line), expected);
        let line = "     ksoftirqd/0-14      [000] ..s.. 20661.349406: block_rq_complete: 7,0 WS () 49352 + 24 be,0,4 [0]";
        let done = event(line);
        assert_eq!((done.step, done.offset, done.bytes), (Step::Complete, 49352 * 512, 12288));
        assert_eq!(done.task, "");
        let line = "    jbd2/loop0-8-10234   [001] ..... 20661.349466: block_rq_issue: 7,0 WSM 4096 () 184 + 8 be,0,3 [jbd2/loop0-8]";
        assert_eq!(event(line).task, "jbd2/loop0-8");
        let line = "    kworker/0:1H-54      [000] ..... 20661.349562: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [kworker/0:1H]";
        let flush = event(line);
        assert_eq!((flush.action, flush.flush, flush.bytes), (Action::Other, true, 0));
        let line = "     ksoftirqd/0-14      [000] ..s.. 20661.350008: block_rq_complete: 7,0 FF () 18446744073709551615 + 0 none,0,0 [0]";
        assert_eq!(event(line).step, Step::Complete);
        let line = "    jbd2/loop0-8-10234   [000] ..... 20661.353030: block_bio_queue: 7,0 FWFSM 312 + 8 [jbd2/loop0-8]";
        let commit = event(line);
        assert_eq!((commit.action, commit.flush, commit.fua), (Action::Write, true, true));
        assert_eq!((commit.offset, commit.bytes), (312 * 512, 4096));
        let line = "    kworker/0:1H-54      [000] ..... 20684.351858: block_rq_issue: 7,0 DS 65536 () 49352 + 128 be,0,4 [kworker/0:1H]";
        assert_eq!(event(line).action, Action::Discard);
        let line = "   x-54  [000] d..1. 20684.3: block_rq_requeue: 7,0 WS () 49352 + 128 be,0,4 [0]";
        assert_eq!(event(line).step, Step::Requeue);
        // This line is from a kernel that did not yet print priorities.
        let line = "   x-54  [000] d..1 20684.3: block_rq_issue: 8,0 WFS 4096 () 100 + 8 [x]";
        assert!(event(line).fua && !event(line).flush);
    }

    #[test]
    fn places_of_files_are_read() {
        let line = "   python3-1 [000] ..... 277.943789: ext4_ext_map_blocks_exit: dev 7,0 ino 22 flags CREATE|UNWRIT|DELALLOC lblk 0 pblk 12439 len 3 mflags NMU ret 3";
        let expected = Mapping { seconds: 277.943789, inode: 22, block: 12439, blocks: 3 };
        assert_eq!(parse_mapping(line), Some(expected));
        let hole = "   python3-1 [000] ..... 277.9: ext4_ext_map_blocks_exit: dev 7,0 ino 22 flags  lblk 0 pblk 0 len 1 mflags  ret 0";
        let failed = hole.replace("ret 0", "ret -28");
        for line in [hole, failed.as_str(), "", " x-1 [000] . 1.0: ext4_ext_map_blocks_exit: dev 7,0"] {
            assert_eq!(parse_mapping(line), None, "{line}");
        }
    }

    #[test]
    fn operations_are_told_apart() {
        let (write, zero, discard, other) = (Action::Write, Action::Zero, Action::Discard, Action::Other);
        for (letters, expected) in [
            ("W", (write, false, false)),
            ("WSM", (write, false, false)),
            ("WFS", (write, false, true)),
            ("FW", (write, true, false)),
            ("FWFS", (write, true, true)),
            ("ZAS", (write, false, false)),
            ("WZS", (zero, false, false)),
            ("NS", (zero, false, false)),
            ("DS", (discard, false, false)),
            ("F", (other, true, false)),
            ("FF", (other, true, false)),
            ("FFS", (other, true, false)),
            ("FS", (other, true, false)),
        ] {
            assert_eq!(decode(letters), Some(expected), "{letters}");
        }
        for letters in ["R", "RA", "RM", "RSM"] {
            assert_eq!(decode(letters), None, "{letters}");
        }
    }

    #[test]
    fn other_lines_do_no_harm() {
        for line in [
            "",
            "# tracer: nop",
            "CPU:1 [LOST 12 EVENTS]",
            " a-1 [000] .... 2.5: block_rq_issue: 8,0 R 512 () 1 + 1 none,0,0 [a]",
            " a-1 [000] .... x: block_rq_issue: 8,0 W 512 () 1 + 1 none,0,0 [a]",
            " a-1 [000] .... 2.5: block_rq_issue: 8,0",
            " a-1 [000] .... 2.5: block_rq_issue: 8,0 W 512 () 1 + 1 none,0,0 [a",
            " a-1 [000] .... 2.5: block_rq_issue: 8,0 W 512 () x + 1 none,0,0 [a]",
            " a-1 [000] .... 2.5: block_rq_issue: ] [ (",
            " a-1 [000] .... 2.5: block_bio_queue: 8,0 W",
            " a-1 [000] .... 2.5: sched_switch: a ==> b [120]",
        ] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }
}
