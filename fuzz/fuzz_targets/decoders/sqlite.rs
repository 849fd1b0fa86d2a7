//! The decoders of SQLite's own formats: the database header under the guard, and the beginning of the
//! write-ahead log.

use duralite_format::LogId;
use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES, JournalKind};
use duralite_format::sqlite_wal::{
    FRAME_HEADER_BYTES, FrameHeader, WAL_HEADER_BYTES, WalHeader, make_wal_header,
};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use xxhash_rust::xxh3::xxh3_64;

use super::{log_id, overlay, page, page_size};

pub fn guards(input: &mut Unstructured) -> Result<()> {
    let id = log_id(input)?;
    let mut header = [0; HEADER_BYTES];
    let shape: u8 = input.arbitrary()?;
    let given = input.bytes(input.len().min(HEADER_BYTES))?;
    header[..given.len()].copy_from_slice(given);
    let _ = guard::inspect(given);
    if shape & 1 != 0 {
        header[..16].copy_from_slice(b"SQLite format 3\0");
    }
    if shape & 2 != 0 {
        let (version, raised) = if shape & 16 == 0 { (2, guard::GUARD) } else { (1, guard::ROLLBACK_GUARD) };
        // Earlier builds set both bytes.
        header[18] = if shape & 64 == 0 { version } else { raised };
        header[19] = raised;
    }
    if shape & 4 != 0 {
        let check = xxh3_64(&header[72..88]);
        let check = if shape & 32 == 0 { check } else { !check };
        header[88..92].copy_from_slice(&check.to_le_bytes()[..4]);
    }
    if shape & 8 != 0 {
        header[16..18].copy_from_slice(&[2, 0]);
    }
    if let DatabaseHeader::Guarded { page_bytes, log_id, kind, provisional } = guard::inspect(&header) {
        assert!(guard::page_size_is_valid(page_bytes));
        let mut shown = header;
        guard::unmask(0, &mut shown);
        let wal = kind == JournalKind::Wal;
        assert_eq!(guard::inspect(&shown), DatabaseHeader::Plain { page_bytes, wal });
        let mut lifted = header;
        guard::lift(&mut lifted);
        assert_eq!(lifted, shown);
        if provisional {
            guard::mask_provisionally(kind, &mut shown, log_id);
        } else {
            guard::mask_as(kind, 0, &mut shown, log_id);
        }
        // The write version stays unchanged, even if an earlier build has set it for the guard.
        assert_eq!((&shown[..18], &shown[19..]), (&header[..18], &header[19..]));
        assert!(shown[18] <= 2);
    }
    // Only headers that SQLite can have written: with a journal mode, and with zeros in the reserved
    // bytes.
    let mut plain = header;
    guard::lift(&mut plain);
    let kind = guard::kind_of_page(0, &plain).unwrap();
    let mut disk = plain;
    guard::mask_as(kind, 0, &mut disk, id);
    if let DatabaseHeader::Plain { page_bytes, .. } = guard::inspect(&plain) {
        let guarded = DatabaseHeader::Guarded { page_bytes, log_id: id, kind, provisional: false };
        let valid = guard::page_size_is_valid(page_bytes);
        assert_eq!(guard::inspect(&disk), if valid { guarded } else { DatabaseHeader::Damaged });
    }
    pieces(&plain, &disk, id, kind, shape, given.first().copied());
    Ok(())
}

/// Masking a header in pieces must give the same as masking it as a whole. The bytes after the header
/// must stay those of the page.
fn pieces(
    plain: &[u8; HEADER_BYTES],
    disk: &[u8; HEADER_BYTES],
    id: LogId,
    kind: JournalKind,
    shape: u8,
    len: Option<u8>,
) {
    let from = usize::from(shape >> 4) * 6;
    let to = from + len.map_or(0, usize::from).min(HEADER_BYTES - from);
    let mut piece = plain[from..to].to_vec();
    guard::mask_as(kind, from as u64, &mut piece, id);
    assert_eq!(piece, disk[from..to]);
    guard::unmask_as(kind, from as u64, &mut piece);
    assert_eq!(piece, plain[from..to]);
    let far = guard::MASKED_END + u64::from_le_bytes(*id.0.first_chunk().unwrap()) / 2;
    for offset in [guard::MASKED_END, far, u64::MAX - 3] {
        let mut piece = *plain;
        guard::mask(offset, &mut piece, id);
        guard::unmask(offset, &mut piece);
        assert_eq!(piece, *plain);
    }
}

pub fn sqlite_headers(input: &mut Unstructured) -> Result<()> {
    let page_bytes = if input.ratio(7, 8)? { page_size(input)? } else { input.arbitrary()? };
    let made = make_wal_header(page_bytes, input.arbitrary()?, input.arbitrary()?);
    let parsed = WalHeader::parse(&made);
    assert_eq!(parsed.is_ok(), guard::page_size_is_valid(page_bytes));
    let mut bytes: [u8; WAL_HEADER_BYTES] = made;
    overlay(input, &mut bytes)?;
    if input.arbitrary()? {
        bytes[..4].copy_from_slice(&(0x377f_0682_u32 + u32::from(input.arbitrary::<bool>()?)).to_be_bytes());
    }
    if input.arbitrary()? {
        let sum = slow_checksum(bytes[3] & 1 != 0, [0, 0], &bytes[..24]);
        bytes[24..28].copy_from_slice(&sum[0].to_be_bytes());
        bytes[28..].copy_from_slice(&sum[1].to_be_bytes());
    }
    let Ok(header) = WalHeader::parse(&bytes) else { return Ok(()) };
    assert_eq!(header.bytes, bytes);
    assert!(guard::page_size_is_valid(header.page_bytes));
    assert_eq!(header.frame_bytes(), u64::from(header.page_bytes) + FRAME_HEADER_BYTES as u64);
    let (page_number, db_pages) = input.arbitrary()?;
    let page = page(input, header.page_bytes as usize)?;
    let sum = header.extend(header.checksum, page_number, db_pages, &page);
    let frame = header.frame_header(page_number, db_pages, sum);
    assert_eq!(FrameHeader::parse(&frame), FrameHeader { page_number, db_pages, checksum: sum });
    assert_eq!(frame[8..16], bytes[16..24]);
    let numbers = slow_checksum(header.big_endian, header.checksum, &frame[..8]);
    assert_eq!(slow_checksum(header.big_endian, numbers, &page), sum);
    Ok(())
}

/// SQLite's checksum, as its documentation describes it.
fn slow_checksum(big_endian: bool, start: [u32; 2], data: &[u8]) -> [u32; 2] {
    let words = data.chunks_exact(4).map(|bytes| {
        let bytes = *bytes.first_chunk().unwrap();
        if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    });
    let words: Vec<u32> = words.collect();
    let [mut s0, mut s1] = start;
    for pair in words.chunks_exact(2) {
        s0 = s0.wrapping_add(pair[0]).wrapping_add(s1);
        s1 = s1.wrapping_add(pair[1]).wrapping_add(s0);
    }
    [s0, s1]
}
