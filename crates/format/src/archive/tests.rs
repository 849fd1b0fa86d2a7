use proptest::prelude::*;

use super::backlog::{self, Commit, Header, Next, Trailer};
use super::*;

const A: LogId = LogId([1; 16]);
const B: LogId = LogId([2; 16]);
const C: LogId = LogId([3; 16]);

fn owner() -> Record {
    Record::Owner(Owner {
        url: "s3://bucket/prefix?region=eu-1".to_owned(),
        generation: 3,
        token: 0xabc,
        inode: 77,
        birth_ns: 5,
    })
}

fn stamp(changes: u32) -> Stamp {
    Stamp { inode: 77, birth_ns: 5, bytes: 8192, modified_ns: 123_456_789, changes, page_1: u64::MAX - 1 }
}

fn begin(log: LogId, intact: bool) -> Record {
    Record::Begin { log, intact }
}

fn end(log: LogId, position: u64, backlog: bool) -> Record {
    Record::End { log, position, backlog }
}

fn rest(log: LogId, changes: u32) -> Record {
    Record::Rest { log, stamp: stamp(changes) }
}

fn text(records: &[Record]) -> Vec<u8> {
    let lines: Vec<String> = records.iter().map(|record| record.encode().unwrap()).collect();
    [owner().encode().unwrap(), lines.concat()].concat().into_bytes()
}

fn read(records: &[Record]) -> Records {
    Records::decode(&text(records)).unwrap()
}

/// Returns the records of a line of logs: log A with 5 transactions, log B, which a process tried twice to close, and
/// log C, which is in use.
fn line() -> Vec<Record> {
    vec![
        begin(A, false),
        end(A, 5, true),
        rest(A, 1),
        begin(B, true),
        end(B, 2, true),
        end(B, 2, false),
        rest(B, 2),
        begin(C, true),
    ]
}

#[test]
fn records_read_back_and_the_newest_owner_counts() {
    let mut records = line();
    let found = read(&records);
    assert_eq!(found.logs().cloned().collect::<Vec<_>>(), records);
    let Record::Owner(mut newest) = owner() else { unreachable!("an owner") };
    assert_eq!(found.owner, newest);
    newest.generation = u64::MAX;
    records.push(Record::Owner(newest.clone()));
    assert_eq!(read(&records).owner, newest);
    assert_eq!(read(&records).logs().count(), records.len() - 1);
}

#[test]
fn a_fence_is_of_the_owner_before_it() {
    let fenced = Record::Fenced { generation: 4 };
    let mut records = line();
    assert_eq!((read(&records).fenced, read(&records).of_owner()), (None, vec![owner()]));
    records.insert(2, fenced.clone());
    let found = read(&records);
    assert_eq!((found.fenced, found.of_owner()), (Some(4), vec![owner(), fenced]));
    assert_eq!(found.logs().cloned().collect::<Vec<_>>(), line(), "it is no record of a log");
    // A new owner record means that this database has claimed the archive again, so it is no longer fenced.
    records.push(owner());
    assert_eq!(read(&records).fenced, None);
    records.push(Record::Fenced { generation: u64::MAX });
    assert_eq!(read(&records).fenced, Some(u64::MAX));
}

#[test]
fn inv72_a_log_is_broken_by_what_was_noted_after_the_owner() {
    let broken = |records: &[Record]| [A, B, C].map(|log| read(records).is_broken(log));
    let mut records = line();
    // The record of log A says that the database was not intact when log A was made.
    assert_eq!(broken(&records), [true, false, false]);
    records.push(begin(C, false));
    assert_eq!(broken(&records), [true, false, true]);
    // If an archive is enabled after these records, it begins with a snapshot of the database as it is then. So the
    // older records do not matter any more.
    records.push(owner());
    assert_eq!(broken(&records), [false; 3]);
    records.push(begin(C, true));
    assert_eq!(broken(&records), [false; 3]);
    records.push(begin(C, false));
    assert_eq!(broken(&records), [false, false, true]);
}

#[test]
fn records_are_older_or_newer_than_the_newest_owner() {
    let whole = line();
    for at in 0..=whole.len() {
        let mut records = whole.clone();
        records.insert(at, owner());
        let (older, newer) = read(&records).around_owner();
        assert_eq!((&older[..], &newer[..]), whole.split_at(at), "{at}");
    }
    assert_eq!(read(&whole).around_owner(), (Vec::new(), whole));
}

#[test]
fn a_url_that_no_line_can_hold_is_refused() {
    for url in ["", "s3://a b", "s3://a\n", "s3://a\u{0}", &"a".repeat(URL_LIMIT + 1)] {
        let Record::Owner(owner) = owner() else { unreachable!("an owner") };
        assert!(Record::Owner(Owner { url: url.to_owned(), ..owner }).encode().is_err(), "{url:?}");
    }
}

#[test]
fn inv72_a_line_leads_from_log_to_log() {
    let records = read(&line());
    let [a, b] = [(A, 5), (B, 2)].map(|(log, position)| Closed { log, position, backlog: true });
    assert_eq!(records.since(A, LineEnd::Log(C)), Some(vec![a, b]));
    assert_eq!(records.since(B, LineEnd::Log(C)), Some(vec![b]));
    assert_eq!(records.since(C, LineEnd::Log(C)), Some(vec![]));
    assert_eq!(records.since(A, LineEnd::Log(LogId([9; 16]))), None);
    assert_eq!(records.since(LogId([9; 16]), LineEnd::Log(C)), None);
    assert_eq!(
        records.since(A, LineEnd::File(stamp(2))),
        Some(vec![a, b]),
        "the log that begins has no guard yet"
    );
    assert_eq!(records.since(A, LineEnd::File(stamp(3))), None, "something has written the file");
    let at_rest = read(&line()[..7]);
    assert_eq!(at_rest.since(A, LineEnd::File(stamp(2))), Some(vec![a, b]));
    assert_eq!(at_rest.since(A, LineEnd::File(stamp(3))), None, "something has written the file");
    assert!(at_rest.rests_at(stamp(2)) && !at_rest.rests_at(stamp(1)) && records.rests_at(stamp(2)));
    assert!(!read(&line()[..6]).rests_at(stamp(2)), "the log is not closed yet");
}

#[test]
fn inv72_a_line_without_one_of_its_records_is_none() {
    let whole = line();
    for missing in 1..whole.len() {
        // Log B has two records of its end, and one of them is enough. Only the first of them says that B has a
        // backlog.
        let mut records = whole.clone();
        let left_out = records.remove(missing);
        let since = read(&records).since(A, LineEnd::Log(C));
        let expected = match (missing, since.as_deref()) {
            (4, Some([_, last])) => !last.backlog,
            (5, Some([_, last])) => last.backlog,
            (_, None) => true,
            _ => false,
        };
        assert!(expected, "without {left_out:?}: {since:?}");
    }
    for broken in [3, 7] {
        let mut records = whole.clone();
        let Record::Begin { intact, .. } = &mut records[broken] else { unreachable!("a beginning") };
        *intact = false;
        assert_eq!(read(&records).since(A, LineEnd::Log(C)), None);
        assert_eq!(read(&records).since(C, LineEnd::Log(C)), Some(vec![]));
    }
    // A process recorded log C's end and then failed to close the log. This does not break the line of logs.
    let tried = [whole.clone(), vec![end(C, 1, true)]].concat();
    assert_eq!(read(&tried).since(A, LineEnd::Log(C)).unwrap().len(), 2);
}

#[test]
fn a_log_without_commits_can_be_left_out() {
    let records = line();
    let bytes = text(&records);
    let (at, earlier) = read(&records).tail_of(C).unwrap();
    assert_eq!(earlier, B);
    assert_eq!(
        &bytes[at..],
        [rest(B, 2), begin(C, true)].map(|record| record.encode().unwrap()).concat().as_bytes()
    );
    assert_eq!(read(&records).tail_of(B), None, "it is not the last");
    assert_eq!(read(&[begin(A, true)]).tail_of(A), None, "nothing is before it");
    assert_eq!(read(&[rest(A, 1), begin(B, false)]).tail_of(B), None, "the line is broken anyway");
}

#[test]
fn inv72_a_log_whose_guard_never_went_on_is_passed_over() {
    let mut records = line();
    records.insert(7, begin(LogId([8; 16]), true));
    let since = read(&records).since(A, LineEnd::Log(C)).unwrap();
    assert_eq!(since.len(), 2);
    assert!(read(&records).tail_of(C).is_some() && read(&records).rests_at(stamp(2)));
    // If several logs begin in a row, only the last one decides whether the line of logs is broken.
    records.insert(8, begin(LogId([7; 16]), false));
    assert!(read(&records).since(A, LineEnd::Log(C)).is_some(), "the file was what it had been");
    records.push(begin(LogId([6; 16]), false));
    assert_eq!(read(&records).since(A, LineEnd::Log(LogId([6; 16]))), None);
}

#[test]
fn inv72_a_torn_or_damaged_line_is_left_out_and_those_behind_it_are_read() {
    let records = line();
    let bytes = text(&records);
    for cut in 0..bytes.len() {
        let whole = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        match Records::decode(&bytes[..cut]) {
            Ok(found) => assert_eq!(found.logs().count(), whole - 1),
            Err(error) => assert!(whole == 0 && error == FormatError::Damaged { what: WHAT }),
        }
        // A process that appends to a torn file first begins a new line.
        let after = [&bytes[..cut], b"\n", begin(B, true).encode().unwrap().as_bytes()].concat();
        if let Ok(found) = Records::decode(&after) {
            assert_eq!(found.logs().next_back(), Some(&begin(B, true)));
        }
    }
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        if let Ok(found) = Records::decode(&bad) {
            assert!(found.logs().all(|record| records.contains(record)), "byte {at}");
        }
    }
}

#[test]
fn the_file_of_another_version_is_refused_and_records_of_unknown_kinds_are_not() {
    let line = |body: &str| format!("{:016x} {body}\n", xxh3_64(body.as_bytes()));
    let other = line("archive 2 s3://a 1 2 3");
    assert_eq!(Records::decode(other.as_bytes()), Err(FormatError::Version(2)));
    let more = [owner().encode().unwrap(), line("later 1 2 3"), begin(A, false).encode().unwrap()].concat();
    assert_eq!(Records::decode(more.as_bytes()).unwrap().logs().count(), 1);
}

#[test]
fn a_backlog_reads_back_and_bytes_of_another_log_or_place_do_not() {
    let header = Header { log: A, page_bytes: 4096, first: 7 };
    assert_eq!(Header::decode(&header.encode()), Ok(header));
    let commit = Next::Commit(Commit { position: 8, time_ms: 9, db_pages: 2, pages: 1 });
    let trailer = Next::Trailer(Trailer { position: 8, commits: 1 });
    for next in [commit, trailer] {
        assert_eq!(Next::decode(&next.encode(A), A), Ok(next));
        assert!(Next::decode(&next.encode(A), B).is_err());
    }
    let head = backlog::encode_page(A, 8, 2, b"image");
    assert_eq!(backlog::decode_page(&head, A, 8, b"image"), Ok(2));
    for (log, position, image) in [(B, 8, "image"), (A, 9, "image"), (A, 8, "imagE")] {
        assert!(backlog::decode_page(&head, log, position, image.as_bytes()).is_err());
    }
    let mut small = header.encode();
    small[0] ^= 1;
    assert_eq!(Header::decode(&small), Err(FormatError::Magic));
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Records::decode(&bytes);
        let _ = Record::decode(&bytes);
        if let Some(header) = bytes.first_chunk() {
            let _ = Header::decode(header);
        }
        if let Some(next) = bytes.first_chunk() {
            let _ = Next::decode(next, A);
        }
    }

    #[test]
    fn every_record_reads_back(position in any::<u64>(), changes in any::<u32>(), id in any::<[u8; 16]>()) {
        for record in [end(LogId(id), position, true), rest(LogId(id), changes), begin(LogId(id), true)] {
            let line = record.encode().unwrap();
            prop_assert_eq!(Record::decode(line.trim_end().as_bytes()), Some(record));
        }
    }
}
