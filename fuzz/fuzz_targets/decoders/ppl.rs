//! The decoders of the `ppl` log.

use duralite_format::ppl::{
    EXTENT_HEADER_BYTES, Extent, ExtentHeader, LAST_TRANSACTION, MERGED_AT, MOST_SLOTS, SECTORS_PER_CHUNK,
    SLOT_HEADER_BYTES, SUPERBLOCK_BYTES, SlotHeader, Superblock, TRANSACTION_BYTES, TRANSACTIONS,
    TransactionKind, TransactionRecord, read_record_word, record_check, record_word, sector_size_is_valid,
};
use duralite_format::{PATH_LIMIT, guard};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

use super::{flip, log_head, log_id, overlay, page, page_size};

pub fn superblocks(input: &mut Unstructured) -> Result<()> {
    let odd = |input: &mut Unstructured| input.ratio(1u8, 8u8);
    let mut superblock = Superblock {
        head: log_head(input)?,
        sector_bytes: if odd(input)? { input.arbitrary()? } else { 4096 * input.int_in_range(0..=4)? },
        limit_chunks: if odd(input)? { input.arbitrary()? } else { input.int_in_range(0..=1 << 24)? },
        usual_chunks: 0,
        slots: if odd(input)? { input.arbitrary()? } else { input.int_in_range(0..=MOST_SLOTS + 1)? },
        buckets: if odd(input)? { input.arbitrary()? } else { 1 << input.int_in_range(0..=29)? },
    };
    superblock.usual_chunks = match input.int_in_range(0..=2)? {
        0 => input.arbitrary()?,
        1 => superblock.limit_chunks / 2,
        _ => superblock.limit_chunks,
    };
    let mut bytes = superblock.encode();
    assert!(Superblock::decode(&bytes).is_err(), "shorter than the area");
    bytes.resize(SUPERBLOCK_BYTES as usize, 0);
    superblock.head.path.truncate(PATH_LIMIT);
    let may = guard::page_size_is_valid(superblock.head.page_bytes)
        && sector_size_is_valid(superblock.sector_bytes)
        && (1..=1 << 24).contains(&superblock.limit_chunks)
        && (1..=superblock.limit_chunks).contains(&superblock.usual_chunks)
        && (1..=MOST_SLOTS).contains(&superblock.slots)
        && superblock.buckets.is_power_of_two()
        && superblock.buckets <= 1 << 28;
    match Superblock::decode(&bytes) {
        Ok(back) => {
            assert!(may && back == superblock);
            places(input, &back)?;
        }
        Err(_) => assert!(!may),
    }
    flip(input, &mut bytes[..1096])?;
    assert!(Superblock::decode(&bytes).is_err());
    Ok(())
}

/// The parts of a log must not overlap, and must lie within its file.
fn places(input: &mut Unstructured, superblock: &Superblock) -> Result<()> {
    let geometry = superblock.geometry();
    let slots_end = geometry.slot_offset(geometry.slots);
    assert_eq!(slots_end, geometry.buckets_offset);
    let bucket = geometry.bucket_offset(input.arbitrary()?);
    assert!((slots_end..geometry.chunks_offset).contains(&bucket) && bucket.is_multiple_of(8));
    let chunk = input.int_in_range(0..=superblock.limit_chunks.min(1 << 16) - 1)?;
    let (begin, end) = (geometry.file_bytes(chunk), geometry.file_bytes(chunk + 1));
    let extents: Vec<Extent> = geometry.extents_of(chunk).collect();
    assert_eq!(extents.len() as u32, SECTORS_PER_CHUNK + geometry.pieces_per_chunk);
    let mut states_end = begin;
    let mut bodies_end = geometry.extent_offset(extents[0]);
    for extent in extents {
        assert!(geometry.has(extent, chunk + 1) && !geometry.has(extent, chunk));
        assert_eq!(Extent::of_link(extent.to_link()), Some(extent));
        assert_eq!(geometry.state_offset(extent), states_end);
        assert_eq!(geometry.extent_offset(extent), bodies_end);
        states_end += 64;
        bodies_end += u64::from(geometry.extent_bytes(extent));
    }
    assert!(
        states_end <= geometry.extent_offset(Extent::sector(chunk * SECTORS_PER_CHUNK)) && bodies_end <= end
    );
    Ok(())
}

pub fn extents(input: &mut Unstructured) -> Result<()> {
    let id = log_id(input)?;
    let number = input.arbitrary()?;
    let extent = if input.arbitrary()? { Extent::piece(number) } else { Extent::sector(number) };
    let header = ExtentHeader {
        page_number: input.arbitrary()?,
        order: input.arbitrary()?,
        taken_by: input.arbitrary()?,
    };
    let mut bytes = header.encode(id, extent);
    let is_used = header.page_number > 0;
    assert_eq!(ExtentHeader::decode(&bytes, id, extent), is_used.then_some(header));
    let other = if extent.is_piece() { Extent::sector(number) } else { Extent::piece(number) };
    assert_eq!(ExtentHeader::decode(&bytes, id, other), None, "another extent's");
    flip(input, &mut bytes)?;
    assert_eq!(ExtentHeader::decode(&bytes, id, extent), None);
    let any: [u8; EXTENT_HEADER_BYTES as usize] = input.arbitrary()?;
    if let Some(it) = ExtentHeader::decode(&any, id, extent) {
        assert_eq!(it.encode(id, extent), any[..MERGED_AT as usize]);
    }
    Ok(())
}

pub fn record_words(input: &mut Unstructured) -> Result<()> {
    let id = log_id(input)?;
    let (transaction, length) =
        (input.int_in_range(0..=LAST_TRANSACTION)?, input.int_in_range(0..=(1 << 20) - 1)?);
    let word = record_word(transaction, length);
    assert_eq!(read_record_word(word), (word != 0).then_some((transaction, length)));
    let any = input.arbitrary()?;
    if let Some((transaction, length)) = read_record_word(any) {
        assert_eq!(record_word(transaction, length), any);
    }
    let page_number = input.arbitrary()?;
    let mut payload: Vec<u8> = input.arbitrary()?;
    let check = record_check(id, page_number, word, &payload);
    assert_ne!(check, record_check(id, page_number ^ 1, word, &payload));
    assert_ne!(check, record_check(id, page_number, word ^ 1 << 20, &payload));
    if !payload.is_empty() {
        flip(input, &mut payload)?;
        assert_ne!(check, record_check(id, page_number, word, &payload));
    }
    Ok(())
}

pub fn slots(input: &mut Unstructured) -> Result<()> {
    let id = log_id(input)?;
    let page_bytes = page_size(input)? as usize;
    let mut image = page(input, page_bytes)?;
    let header = SlotHeader { page_number: input.arbitrary()?, transaction: input.arbitrary()? };
    let mut head = [0; SLOT_HEADER_BYTES as usize];
    head[..24].copy_from_slice(&header.encode(id, &image));
    assert_eq!(SlotHeader::page_of(&head), header.page_number);
    assert_eq!(SlotHeader::decode(&head, id, &image), (header.page_number > 0).then_some(header));
    let before = image.clone();
    overlay(input, &mut image)?;
    if image != before {
        assert_eq!(SlotHeader::decode(&head, id, &image), None, "a torn image");
    }
    // Bytes 4 to 8 have no meaning.
    flip(input, &mut head[8..24])?;
    assert_eq!(SlotHeader::decode(&head, id, &before), None);
    Ok(())
}

pub fn transactions(input: &mut Unstructured) -> Result<()> {
    let id = log_id(input)?;
    let record = TransactionRecord {
        number: input.int_in_range(0..=LAST_TRANSACTION)?,
        kind: *input.choose(&[TransactionKind::Begin, TransactionKind::Commit, TransactionKind::Abort])?,
        db_pages: input.arbitrary()?,
        time_ms: input.arbitrary()?,
        retired: input.arbitrary()?,
    };
    let place = record.number % TRANSACTIONS;
    assert_eq!(TransactionRecord::offset(record.number), TransactionRecord::offset(place));
    let mut bytes = record.encode(id);
    assert_eq!(TransactionRecord::decode(&bytes, id, place), Ok(Some(record)));
    let elsewhere = TransactionRecord::decode(&bytes, id, place ^ 1);
    assert_eq!(elsewhere.is_err(), record.kind == TransactionKind::Commit, "damage is what was committed");
    assert!(!matches!(elsewhere, Ok(Some(_))));
    flip(input, &mut bytes)?;
    assert!(!matches!(TransactionRecord::decode(&bytes, id, place), Ok(Some(_))));
    let any: [u8; TRANSACTION_BYTES] = input.arbitrary()?;
    if let Ok(Some(it)) = TransactionRecord::decode(&any, id, place) {
        assert_eq!(TransactionRecord::decode(&it.encode(id), id, place), Ok(Some(it)));
    }
    Ok(())
}
