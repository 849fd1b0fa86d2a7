//! The files beside a database that has an archive.

use duralite_format::LogId;
use duralite_format::archive::backlog::{self, Commit, Header, Next, Trailer};
use duralite_format::archive::{LineEnd, Owner, Record, Records, Stamp};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

use super::{log_id, page_size};

fn record(input: &mut Unstructured, log: LogId) -> Result<Record> {
    Ok(match input.int_in_range(0..=2)? {
        0 => Record::Begin { log, intact: input.arbitrary()? },
        1 => Record::End { log, position: input.arbitrary()?, backlog: input.arbitrary()? },
        _ => Record::Rest { log, stamp: stamp(input)? },
    })
}

fn stamp(input: &mut Unstructured) -> Result<Stamp> {
    Ok(Stamp {
        inode: input.arbitrary()?,
        birth_ns: input.arbitrary()?,
        bytes: input.arbitrary()?,
        modified_ns: input.arbitrary()?,
        changes: input.arbitrary()?,
        page_1: input.arbitrary()?,
    })
}

pub fn records(input: &mut Unstructured) -> Result<()> {
    let url = format!("s3://{:x}", input.arbitrary::<u32>()?);
    let owner = Owner {
        url,
        generation: input.arbitrary()?,
        token: input.arbitrary()?,
        inode: input.arbitrary()?,
        birth_ns: input.arbitrary()?,
    };
    let ids = [log_id(input)?, log_id(input)?];
    let mut written = vec![Record::Owner(owner.clone())];
    let fence = input.arbitrary::<Option<u64>>()?;
    for _ in 0..input.int_in_range(0..=8)? {
        let log = *input.choose(&ids)?;
        written.push(record(input, log)?);
    }
    let lines: Vec<String> = written.iter().map(|record| record.encode().expect("it fits a line")).collect();
    let fenced = fence.map(|generation| Record::Fenced { generation }.encode().expect("it fits a line"));
    let text = (lines.concat() + fenced.as_deref().unwrap_or_default()).into_bytes();
    let found = Records::decode(&text).expect("what was written");
    assert_eq!(found.fenced, fence);
    assert_eq!(found.owner, owner);
    assert!(found.logs().eq(&written[1..]));
    let end = if input.arbitrary()? { LineEnd::Log(ids[1]) } else { LineEnd::File(stamp(input)?) };
    let _ = (found.since(ids[0], end), found.tail_of(ids[0]));
    // Bytes of the input, in a place of their own: nothing is read that was not written.
    let at = input.int_in_range(0..=text.len())?;
    let bad = [&text[..at], &input.bytes(input.len())?.to_vec(), &text[at..]].concat();
    if let Ok(found) = Records::decode(&bad) {
        assert!(found.logs().all(|record| written.contains(record)));
    }
    Ok(())
}

pub fn backlogs(input: &mut Unstructured) -> Result<()> {
    let header = Header { log: log_id(input)?, page_bytes: page_size(input)?, first: input.arbitrary()? };
    assert_eq!(Header::decode(&header.encode()), Ok(header));
    let position = input.arbitrary()?;
    let next = if input.arbitrary()? {
        Next::Trailer(Trailer { position, commits: input.arbitrary()? })
    } else {
        Next::Commit(Commit {
            position,
            time_ms: input.arbitrary()?,
            db_pages: input.arbitrary()?,
            pages: input.arbitrary()?,
        })
    };
    assert_eq!(Next::decode(&next.encode(header.log), header.log), Ok(next));
    let (number, image) = (input.arbitrary()?, input.bytes(input.len().min(64))?.to_vec());
    let head = backlog::encode_page(header.log, position, number, &image);
    assert_eq!(backlog::decode_page(&head, header.log, position, &image), Ok(number));
    let bytes = input.bytes(input.len())?;
    if let Some(bytes) = bytes.first_chunk()
        && let Ok(found) = Header::decode(bytes)
    {
        assert_eq!(found.encode(), *bytes);
    }
    if let Some(bytes) = bytes.first_chunk()
        && let Ok(found) = Next::decode(bytes, header.log)
    {
        assert_eq!(found.encode(header.log), *bytes);
    }
    let _ = Records::decode(bytes);
    Ok(())
}
