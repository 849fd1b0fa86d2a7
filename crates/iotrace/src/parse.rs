//! Lines of the kernel's trace.

/// A write or flush request as it was issued to the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// When, in seconds of the trace's clock.
    pub seconds: f64,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub bytes: u64,
    /// Whether the device's cache is flushed.
    pub is_flush: bool,
    /// Who issued it.
    pub task: String,
}

/// Reads a line of `block_rq_issue`; `None` for anything else, and for requests that only read:
///
/// `  python3-123  [001] d..1.  12.345678: block_rq_issue: 7,0 WS 4096 () 8216 + 8 be,0,4 [python3]`
#[must_use]
pub fn parse_line(line: &str) -> Option<Request> {
    let (head, event) = line.split_once(": block_rq_issue: ")?;
    let seconds = head.rsplit(' ').next()?.parse().ok()?;
    // The task stands in brackets at the end, whatever its name is.
    let (rest, task) = event.rsplit_once(" [")?;
    let task = task.trim_end().strip_suffix(']')?;
    let mut words = rest.split_whitespace();
    let (_device, operation) = (words.next()?, words.next()?);
    let bytes: u64 = words.next()?.parse().ok()?;
    // Behind the command in parentheses.
    let (_, place) = rest.split_once(") ")?;
    let mut place = place.split_whitespace();
    let sector: u64 = place.next()?.parse().unwrap_or(0);
    let sectors: u64 = place.nth(1)?.parse().ok()?;
    let writes = operation.contains('W') && sectors > 0;
    let is_flush = operation.contains('F');
    (writes || is_flush).then(|| Request {
        seconds,
        offset: sector.wrapping_mul(512),
        bytes: if writes { bytes.max(sectors * 512) } else { 0 },
        is_flush,
        task: task.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_flushes_and_journal_threads_are_told() {
        let line = "         python3-123     [001] d..1.    12.345678: block_rq_issue: 7,0 WS 4096 () 8216 + 8 be,0,4 [python3]";
        let expected = Request {
            seconds: 12.345678,
            offset: 8216 * 512,
            bytes: 4096,
            is_flush: false,
            task: "python3".to_owned(),
        };
        assert_eq!(parse_line(line), Some(expected));
        let line = " kworker/1:1H-58      [001] d..2.    12.4: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [kworker/1:1H]";
        let flush = parse_line(line).unwrap();
        assert!(flush.is_flush && flush.bytes == 0);
        let line = " jbd2/loop0-8-99 [000] ....  1.0: block_rq_issue: 7,0 WFS 4096 () 100 + 8 none,0,0 [jbd2/loop0-8]";
        let journal = parse_line(line).unwrap();
        assert!(journal.is_flush && journal.bytes == 4096 && journal.task == "jbd2/loop0-8");
    }

    #[test]
    fn odd_task_names_and_other_lines_do_no_harm() {
        let line =
            " my [odd] app-7 [000] .... 2.5: block_rq_issue: 8,0 W 512 () 1 + 1 none,0,0 [my [odd] app]";
        let odd = parse_line(line).unwrap();
        assert_eq!((odd.bytes, odd.offset), (512, 512));
        for line in [
            "",
            "# tracer: nop",
            " a-1 [000] .... 2.5: block_rq_complete: 8,0 W () 1 + 1 [0]",
            " a-1 [000] .... 2.5: block_rq_issue: 8,0 R 512 () 1 + 1 none,0,0 [a]",
            " a-1 [000] .... x: block_rq_issue: 8,0 W 512 () 1 + 1 none,0,0 [a]",
            " a-1 [000] .... 2.5: block_rq_issue: 8,0",
            " a-1 [000] .... 2.5: block_rq_issue: ] [ (",
        ] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }
}
