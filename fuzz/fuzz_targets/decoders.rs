//! Tests every decoder by itself. What a decoder accepts must mean the same after it is encoded again. What
//! an encoder wrote must decode to the original. All other bytes must be refused without a panic.
#![no_main]

#[path = "decoders/archive.rs"]
mod archive;
#[path = "decoders/ppl.rs"]
mod ppl_log;
#[path = "decoders/scratchpad.rs"]
mod scratchpad_log;
#[path = "decoders/sqlite.rs"]
mod sqlite;

use duralite_format::record::{Base, RECORD_HEADER_BYTES, RecordHeader};
use duralite_format::{GENERATION_LIMIT, LogHead, LogId, PATH_LIMIT, diff, guard, nvwal, ppl, waldio};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const DECODERS: [fn(&mut Unstructured) -> Result<()>; 26] = [
    nvwal_superblocks,
    waldio_superblocks,
    any_superblock_bytes,
    nvwal_slots,
    waldio_slots,
    nvwal_words,
    nvwal_transactions,
    records,
    group_headers,
    waldio_transactions,
    frames,
    differences,
    sqlite::guards,
    sqlite::sqlite_headers,
    ppl_log::superblocks,
    ppl_log::extents,
    ppl_log::record_words,
    ppl_log::slots,
    ppl_log::transactions,
    scratchpad_log::superblocks,
    scratchpad_log::regions,
    scratchpad_log::pages,
    scratchpad_log::entries,
    scratchpad_log::journals,
    archive::records,
    archive::backlogs,
];

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else { return };
    // Runs one decoder, or all of them with the same bytes. An input that is too short ends early.
    let one = DECODERS.get(usize::from(which));
    for decoder in one.map_or(&DECODERS[..], std::slice::from_ref) {
        let _ = decoder(&mut Unstructured::new(bytes));
    }
});

fn log_id(input: &mut Unstructured) -> Result<LogId> {
    let id = LogId(input.arbitrary()?);
    assert_eq!(id.to_string().parse(), Ok(id));
    Ok(id)
}

/// A valid generation of a log.
fn generation(input: &mut Unstructured) -> Result<u64> {
    input.int_in_range(1..=GENERATION_LIMIT - 1)
}

fn page_size(input: &mut Unstructured) -> Result<u32> {
    Ok(512 << input.int_in_range(0..=7)?)
}

/// A page that consists mostly of one value, like a real page, with some of the input laid over it.
fn page(input: &mut Unstructured, page_bytes: usize) -> Result<Vec<u8>> {
    let mut page = vec![if input.ratio(2, 3)? { 0 } else { input.arbitrary()? }; page_bytes];
    overlay(input, &mut page)?;
    Ok(page)
}

fn overlay(input: &mut Unstructured, page: &mut [u8]) -> Result<()> {
    for _ in 0..input.int_in_range(0..=12)? {
        let start = input.int_in_range(0..=page.len() - 1)?;
        let length = input.int_in_range(1..=page.len() - start)?;
        if input.arbitrary()? {
            page[start..start + length].fill(input.arbitrary()?);
        } else {
            let bytes = input.bytes(length.min(input.len()).min(64))?;
            page[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }
    Ok(())
}

fn path(input: &mut Unstructured) -> Result<Vec<u8>> {
    let byte = input.arbitrary()?;
    Ok(vec![byte; input.int_in_range(0..=PATH_LIMIT + 2)?])
}

fn log_head(input: &mut Unstructured) -> Result<LogHead> {
    Ok(LogHead {
        page_bytes: if input.ratio(7, 8)? { page_size(input)? } else { input.arbitrary()? },
        log_id: log_id(input)?,
        db_inode: input.arbitrary()?,
        db_birth_ns: input.arbitrary()?,
        path: path(input)?,
        made_in: None,
    })
}

fn nvwal_superblocks(input: &mut Unstructured) -> Result<()> {
    let limit_blocks = input.arbitrary()?;
    let good_offset = nvwal::Superblock::blocks_offset_for(limit_blocks);
    let mut superblock = nvwal::Superblock {
        head: log_head(input)?,
        block_bytes: if input.ratio(7, 8)? {
            4096 * input.int_in_range(0..=(1 << 16) + 1)?
        } else {
            input.arbitrary()?
        },
        limit_blocks,
        blocks_offset: if input.ratio(7, 8)? { good_offset } else { input.arbitrary()? },
    };
    let mut bytes = superblock.encode();
    assert!(nvwal::Superblock::decode(&bytes).is_err(), "shorter than the area");
    bytes.resize(nvwal::SUPERBLOCK_BYTES as usize, 0);
    superblock.head.path.truncate(PATH_LIMIT);
    let may = guard::page_size_is_valid(superblock.head.page_bytes)
        && nvwal::block_size_is_valid(superblock.block_bytes, superblock.head.page_bytes)
        && (1..nvwal::NO_BLOCK).contains(&limit_blocks)
        && superblock.blocks_offset == good_offset;
    match nvwal::Superblock::decode(&bytes) {
        Ok(back) => {
            assert!(may && back == superblock);
            assert_eq!(back.file_bytes(0), back.blocks_offset);
            let last = back.block_offset(back.limit_blocks - 1);
            assert_eq!(last + u64::from(back.block_bytes), back.file_bytes(back.limit_blocks));
        }
        Err(_) => assert!(!may),
    }
    flip(input, &mut bytes[..1096])?;
    assert!(nvwal::Superblock::decode(&bytes).is_err());
    Ok(())
}

fn waldio_superblocks(input: &mut Unstructured) -> Result<()> {
    let mut superblock = waldio::Superblock {
        head: log_head(input)?,
        block_bytes: if input.ratio(7, 8)? {
            256 << input.int_in_range(0..=5)?
        } else {
            input.arbitrary()?
        },
        layout: *input.choose(&waldio::Layout::ALL)?,
        limit_bytes: input.arbitrary()?,
    };
    let mut bytes = superblock.encode();
    superblock.head.path.truncate(PATH_LIMIT);
    let may = guard::page_size_is_valid(superblock.head.page_bytes)
        && waldio::block_size_is_valid(superblock.block_bytes)
        && superblock.limit_bytes >= waldio::DATA_OFFSET;
    match waldio::Superblock::decode(&bytes) {
        Ok(back) => assert!(may && back == superblock),
        Err(_) => assert!(!may),
    }
    flip(input, &mut bytes[..1096])?;
    assert!(waldio::Superblock::decode(&bytes).is_err());
    Ok(())
}

/// Changes one byte.
fn flip(input: &mut Unstructured, bytes: &mut [u8]) -> Result<()> {
    let at = input.int_in_range(0..=bytes.len() - 1)?;
    bytes[at] ^= input.int_in_range(1..=255)?;
    Ok(())
}

/// Random bytes with a correct checksum, so that the decoder reaches the fields behind the checksum.
fn any_superblock_bytes(input: &mut Unstructured) -> Result<()> {
    let (magic, newest) = *input.choose(&[
        (nvwal::MAGIC, nvwal::VERSION),
        (waldio::MAGIC, waldio::VERSION),
        (ppl::MAGIC, ppl::VERSION),
        ([0; 8], 0),
    ])?;
    let version = if input.ratio(7, 8)? { newest } else { input.arbitrary::<u32>()? };
    let sum_is_right = input.ratio(7, 8)?;
    let mut bytes = vec![0; input.int_in_range(0..=4097)?];
    let given = input.bytes(bytes.len().min(input.len()))?;
    bytes[..given.len()].copy_from_slice(given);
    if bytes.len() >= 1096 {
        bytes[..8].copy_from_slice(&magic);
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        if sum_is_right {
            let sum = xxh3_64(&bytes[..1088]);
            bytes[1088..1096].copy_from_slice(&sum.to_le_bytes());
        }
    }
    if let Ok(it) = nvwal::Superblock::decode(&bytes) {
        let mut again = it.encode();
        again.resize(nvwal::SUPERBLOCK_BYTES as usize, 0);
        assert_eq!(nvwal::Superblock::decode(&again), Ok(it));
    }
    if let Ok(it) = ppl::Superblock::decode(&bytes) {
        let mut again = it.encode();
        again.resize(ppl::SUPERBLOCK_BYTES as usize, 0);
        assert_eq!(ppl::Superblock::decode(&again), Ok(it));
    }
    if let Ok(it) = waldio::Superblock::decode(&bytes) {
        assert_eq!(waldio::Superblock::decode(&it.encode()), Ok(it));
    }
    Ok(())
}

fn nvwal_slots(input: &mut Unstructured) -> Result<()> {
    let id = log_id(input)?;
    let slot = nvwal::Slot {
        generation: input.arbitrary()?,
        first_block: input.arbitrary()?,
        wal_header: input.arbitrary()?,
        retired: input.arbitrary()?,
    };
    assert_eq!(nvwal::Slot::decode(&slot.encode(id), id, slot.generation), Ok(slot));
    assert!(nvwal::Slot::decode(&slot.encode(id), id, !slot.generation).is_err());
    let mut bytes: [u8; nvwal::SLOT_BYTES] = input.arbitrary()?;
    if input.arbitrary()? {
        seal(&mut bytes, 56, seed_of(id));
    }
    let half = |at: usize| u64::from(u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()));
    let generation = half(0) | half(48) << 32;
    if let Ok(it) = nvwal::Slot::decode(&bytes, id, generation) {
        assert_eq!(nvwal::Slot::decode(&it.encode(id), id, generation), Ok(it));
    }
    Ok(())
}

fn waldio_slots(input: &mut Unstructured) -> Result<()> {
    let id = log_id(input)?;
    let slot = waldio::Slot {
        generation: generation(input)?,
        wal_header: input.arbitrary()?,
        retired: input.arbitrary()?,
        file_bytes: input.arbitrary()?,
        position: input.arbitrary()?,
        time_ms: input.arbitrary()?,
    };
    assert_eq!(waldio::Slot::decode(&slot.encode(id), id), Some(slot));
    let mut bytes = [0; 64];
    let given = input.bytes(input.len().min(bytes.len()))?;
    bytes[..given.len()].copy_from_slice(given);
    seal(&mut bytes, 56, seed_of(id));
    if let Some(it) = waldio::Slot::decode(&bytes, id) {
        assert_eq!(waldio::Slot::decode(&it.encode(id), id), Some(it));
    }
    let _ = waldio::Slot::decode(given, id);
    Ok(())
}

fn seed_of(id: LogId) -> u64 {
    u64::from_le_bytes(*id.0.first_chunk().unwrap())
}

/// Stores at `at` the hash of the bytes before `at`.
fn seal(bytes: &mut [u8], at: usize, seed: u64) {
    let sum = xxh3_64_with_seed(&bytes[..at], seed);
    bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Marks, links, states, block headers, and words stored with their complement.
fn nvwal_words(input: &mut Unstructured) -> Result<()> {
    let (word, value): (u64, u32) = input.arbitrary()?;
    assert_eq!(nvwal::read_checked_word(nvwal::checked_word(value), ""), Ok(value));
    assert!(nvwal::read_checked_word(nvwal::checked_word(value) ^ 1 << (word % 64), "").is_err());
    if let Ok(value) = nvwal::read_checked_word(word, "") {
        assert_eq!(nvwal::checked_word(value), word);
    }
    let (generation, sequence) = (generation(input)?, input.arbitrary()?);
    for order in [nvwal::Order::Ordered, nvwal::Order::Fenced, nvwal::Order::Async] {
        let mark = nvwal::encode_mark(order, generation, sequence);
        assert_eq!(nvwal::decode_mark(mark, generation, sequence), Some(order));
        assert_ne!(mark, 0, "the end of the log");
        assert_eq!(nvwal::decode_mark(mark, generation, sequence ^ 1), None);
        assert_eq!(nvwal::decode_mark(mark, generation ^ 1, sequence), None);
    }
    if let Some(order) = nvwal::decode_mark(word, generation, sequence) {
        assert_eq!(nvwal::encode_mark(order, generation, sequence), word);
    }
    // A log has fewer blocks than `NO_BLOCK`.
    let block = input.int_in_range(0..=nvwal::NO_BLOCK - 2)?;
    let link = nvwal::encode_link(generation, block);
    let grown = input.arbitrary()?;
    let decoded = nvwal::decode_link(link, generation, grown);
    assert_eq!(decoded.ok(), (block < grown).then_some(Some(block)));
    assert!(nvwal::decode_link(link, generation ^ 1, grown).is_err());
    match nvwal::decode_link(word, generation, grown) {
        Ok(Some(block)) => assert_eq!(nvwal::encode_link(generation, block), word),
        Ok(None) => assert_eq!(word, 0),
        Err(_) => {}
    }
    let header = nvwal::encode_block_header(generation, block);
    assert_eq!(header[16..], [0; 8]);
    let header = header.first_chunk().unwrap();
    assert!(nvwal::block_header_matches(header, generation, block));
    assert!(!nvwal::block_header_matches(header, generation, !block));
    let byte = input.arbitrary()?;
    if let Some(state) = nvwal::BlockState::from_byte(byte) {
        assert_eq!(state.byte(), byte);
    }
    Ok(())
}

fn nvwal_transactions(input: &mut Unstructured) -> Result<()> {
    const BYTES: usize = nvwal::TX_HEADER_BYTES as usize;
    let mut bytes: [u8; BYTES] = input.arbitrary()?;
    let header = nvwal::TxHeader::decode(&bytes);
    let mark = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    assert_eq!(header.encode(mark), bytes);
    let (id, generation, sequence) = (log_id(input)?, generation(input)?, input.arbitrary()?);
    let payload: [u8; 9] = input.arbitrary()?;
    let hash = nvwal::TxHash::new(id, generation, sequence).record(&bytes[..16], &payload);
    let sealed = header.seal_hash(hash);
    flip(input, &mut bytes[16..])?;
    assert_ne!(nvwal::TxHeader::decode(&bytes).seal_hash(hash), sealed);
    Ok(())
}

fn records(input: &mut Unstructured) -> Result<()> {
    let ranges = if input.arbitrary()? { input.arbitrary()? } else { 0 };
    let record = RecordHeader {
        record_bytes: input.int_in_range(RECORD_HEADER_BYTES..=u32::MAX)?,
        frame: input.int_in_range(1..=u32::MAX)?,
        page_number: input.int_in_range(1..=u32::MAX)?,
        ranges,
        base: if ranges == 0 {
            *input.choose(&[Base::Zeros, Base::Previous, Base::Change])?
        } else {
            Base::Zeros
        },
    };
    assert_eq!(RecordHeader::decode(&record.encode()), Ok(record));
    let bytes = input.arbitrary()?;
    if let Ok(record) = RecordHeader::decode(&bytes) {
        assert_eq!(record.encode(), bytes);
        let _ = record.apply(&mut [13; 512], input.bytes(input.len())?);
    }
    Ok(())
}

fn group_headers(input: &mut Unstructured) -> Result<()> {
    let (id, generation) = (log_id(input)?, generation(input)?);
    let offset = input.arbitrary()?;
    let header = waldio::GroupHeader {
        first_sequence: input.arbitrary()?,
        transactions: input.arbitrary()?,
        bytes: input.arbitrary()?,
        ordered: input.arbitrary()?,
        body_hash: input.arbitrary()?,
        time_ms: input.arbitrary()?,
    };
    let mut bytes = header.encode(id, generation, offset);
    assert_eq!(waldio::GroupHeader::decode(&bytes, id, generation, offset), Some(header));
    assert_eq!(waldio::GroupHeader::decode(&bytes, id, generation ^ 1, offset), None);
    assert_eq!(waldio::GroupHeader::decode(&bytes, id, generation, offset ^ 512), None);
    assert_eq!(waldio::GroupHeader::decode(&bytes[..63], id, generation, offset), None);
    flip(input, &mut bytes)?;
    assert_eq!(waldio::GroupHeader::decode(&bytes, id, generation, offset), None);
    let body = input.bytes(input.len())?;
    let _ = waldio::GroupHeader::decode(body, id, generation, offset);
    let (head, rest) = body.split_at(body.len().min(waldio::TX_HEADER_BYTES as usize));
    let mut hash = waldio::BodyHash::new(id, generation, offset);
    rest.chunks(1 + usize::from(head.first().copied().unwrap_or(0))).for_each(|piece| hash.update(piece));
    assert_eq!(hash.finish(head), waldio::body_hash(id, generation, offset, body));
    Ok(())
}

fn waldio_transactions(input: &mut Unstructured) -> Result<()> {
    const BYTES: usize = waldio::TX_HEADER_BYTES as usize;
    let bytes: [u8; BYTES] = input.arbitrary()?;
    if let Ok(header) = waldio::TxHeader::decode(&bytes) {
        assert_eq!(header.encode(), bytes);
        assert_ne!(header.tx_bytes, waldio::GROUP_MAGIC);
    }
    assert!(waldio::TxHeader::decode(&bytes[..BYTES - 1]).is_err());
    Ok(())
}

/// In the `embedded` layout, a page is decoded byte for byte, whatever it holds.
fn frames(input: &mut Unstructured) -> Result<()> {
    let (id, generation) = (log_id(input)?, generation(input)?);
    let (page_bytes, block_bytes) = (page_size(input)?, 512 << input.int_in_range(0..=3)?);
    let mark = waldio::Mark {
        page_number: if input.arbitrary()? { 1 } else { input.int_in_range(1..=u32::MAX)? },
        db_pages: input.arbitrary()?,
        frame: input.int_in_range(1..=u32::MAX)?,
        transaction: input.arbitrary()?,
        starts_transaction: input.arbitrary()?,
        starts_group: input.arbitrary()?,
        ordered: input.arbitrary()?,
    };
    let generation = generation % GENERATION_LIMIT;
    let offset = if input.arbitrary()? { input.arbitrary()? } else { waldio::DATA_OFFSET };
    let mut page = page(input, page_bytes as usize)?;
    if input.ratio(2, 3)? {
        shape_b_tree(input, &mut page)?;
    }
    let room = waldio::has_room_for_mark(&page, mark.page_number);
    let mut out = vec![1, 2, 3];
    waldio::encode_frame(&mut out, &page, &mark, block_bytes, id, generation, offset);
    let bytes = &mut out[3..];
    let expected = waldio::frame_bytes(page_bytes, block_bytes, room);
    assert_eq!(bytes.len(), expected as usize);
    assert!(expected.is_multiple_of(block_bytes));
    let mut back = vec![0xEE; page.len()];
    let decode = |bytes: &[u8], back: &mut [u8], generation, offset| {
        waldio::decode_frame(bytes, back, block_bytes, id, generation, offset)
    };
    assert_eq!(decode(bytes, &mut back, generation, offset), Some((mark, expected)));
    assert!(back == page, "the page differs");
    assert_eq!(decode(bytes, &mut back, generation ^ 1, offset), None);
    assert_eq!(decode(bytes, &mut back, generation, offset ^ 512), None);
    assert_eq!(decode(&bytes[..bytes.len().min(page.len()) - 1], &mut back, generation, offset), None);
    // If any byte of the page changes, the page no longer fits its mark. The mark follows the page, and
    // after it come zeros without meaning.
    flip(input, &mut bytes[..page.len()])?;
    assert_eq!(decode(bytes, &mut back, generation, offset), None);
    // Tries the mark of one page with the content of another, and any other bytes from the input.
    overlay(input, bytes)?;
    if let Some((mark, taken)) = decode(bytes, &mut back, generation, offset) {
        assert!(mark.page_number > 0 && mark.frame > 0);
        let mut again = Vec::new();
        waldio::encode_frame(&mut again, &back, &mark, block_bytes, id, generation, offset);
        assert!(taken.is_multiple_of(block_bytes));
        let mut twice = vec![0; back.len()];
        assert_eq!(decode(&again, &mut twice, generation, offset).map(|(mark, _)| mark), Some(mark));
        assert!(twice == back);
    }
    Ok(())
}

/// Gives a page the header of a b-tree page. The gap between pointers and cells may or may not be where the
/// header says.
fn shape_b_tree(input: &mut Unstructured, page: &mut [u8]) -> Result<()> {
    let at = if input.arbitrary()? { 100 } else { 0 };
    let header_bytes = 12;
    page[at] = *input.choose(&[2, 5, 10, 13, 0])?;
    let cells: u16 = if input.ratio(7, 8)? { input.int_in_range(0..=220)? } else { input.arbitrary()? };
    let content: u16 = input.arbitrary()?;
    let content = if input.ratio(7, 8)? { content % page.len().min(65535) as u16 } else { content };
    page[at + 3..at + 5].copy_from_slice(&cells.to_be_bytes());
    page[at + 5..at + 7].copy_from_slice(&content.to_be_bytes());
    let start = at + header_bytes + 2 * usize::from(cells);
    let end = usize::from(content).min(page.len());
    if start < end && input.ratio(3, 4)? {
        page[start..end].fill(0);
        // The gap may hold bytes other than zeros.
        if input.arbitrary()? {
            page[start + input.int_in_range(0..=end - start - 1)?] = 9;
        }
    }
    Ok(())
}

fn differences(input: &mut Unstructured) -> Result<()> {
    // Pages of every size, and of sizes that no page has.
    let page_bytes =
        if input.ratio(7, 8)? { page_size(input)? as usize } else { input.int_in_range(1..=65536)? };
    let old = page(input, page_bytes)?;
    let mut new = old.clone();
    overlay(input, &mut new)?;
    if input.ratio(1, 8)? {
        // The largest possible number of ranges.
        let step = input.int_in_range(1..=8)?;
        new.iter_mut().step_by(step).for_each(|byte| *byte = !*byte);
    }
    let mut payload = Vec::new();
    let ranges = diff::encode(&old, &new, &mut payload);
    assert_eq!(ranges == 0, old == new);
    assert!(payload.len() <= page_bytes + diff::RANGE_HEADER_BYTES, "one range would be cheaper");
    assert!(slow_difference(&old, &new) == payload);
    let mut back = old.clone();
    assert_eq!(diff::apply(&mut back, ranges, &payload), Ok(()));
    assert!(back == new);
    assert!(ranges == 0 || diff::apply(&mut back, ranges - 1, &payload).is_err());
    let mut whole = Vec::new();
    let one = diff::encode_whole(&new, &mut whole);
    let mut back = old.clone();
    assert_eq!((one, diff::apply(&mut back, one, &whole)), (1, Ok(())));
    assert!(back == new);
    // Damaged ranges are refused, or change the page only within its bounds.
    if !payload.is_empty() {
        flip(input, &mut payload)?;
        let _ = diff::apply(&mut back, ranges, &payload);
    }
    let (ranges, any) = (input.int_in_range(0..=9)?, input.bytes(input.len())?);
    let mut changed = back.clone();
    if diff::apply(&mut changed, ranges, any).is_ok() {
        let mut twice = changed.clone();
        assert_eq!(diff::apply(&mut twice, ranges, any), Ok(()));
        assert!(twice == changed);
    }
    Ok(())
}

/// The encoding by its definition, byte by byte.
fn slow_difference(old: &[u8], new: &[u8]) -> Vec<u8> {
    let differences: Vec<usize> = (0..new.len()).filter(|&i| old[i] != new[i]).collect();
    let mut out = Vec::new();
    for run in differences.chunk_by(|a, b| b - a - 1 <= diff::RANGE_HEADER_BYTES) {
        let (start, end) = (run[0], run[run.len() - 1] + 1);
        out.extend_from_slice(&(start as u16).to_le_bytes());
        out.extend_from_slice(&((end - start - 1) as u16).to_le_bytes());
        out.extend_from_slice(&new[start..end]);
    }
    out
}
