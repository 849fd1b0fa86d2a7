//! Changes of pages. An encoded change must turn the old page into the new one, in at most two bytes more
//! than plain ranges need. A payload of any bytes must be refused, or change the page only within its bounds.
#![no_main]

use duralite_format::diff;
use duralite_format::page_change::{self, ChangeKind, Difference, Scratch};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

/// Types of b-tree pages, and one that is no b-tree type.
const TYPES: [u8; 5] = [2, 5, 10, 13, 0];
/// First bytes of payloads: each kind, cells with each bit, and no valid kind.
const KINDS: [u8; 8] = [0x01, 0x11, 0x21, 0x31, 2, 3, 4, 0];

fuzz_target!(|data: &[u8]| {
    // An input that is too short ends early.
    let _ = changes(&mut Unstructured::new(data));
});

fn changes(input: &mut Unstructured) -> Result<()> {
    let page_bytes = 512 << *input.choose(&[0, 0, 0, 1, 3, 7])?;
    let header = if input.ratio(1, 4)? { 100 } else { 0 };
    let mut page = tree(input, page_bytes, header)?;
    // Payloads with operations turn the page into one that resembles SQLite's.
    for _ in 0..input.int_in_range(0..=4)? {
        let before = page.clone();
        let payload = payload(input, header)?;
        if page_change::apply(&mut page, &payload).is_err() {
            assert_eq!(page.len(), before.len());
        }
        round_trip(&before, &page, header);
    }
    let other = tree(input, page_bytes, header)?;
    round_trip(&page, &other, header);
    let any = input.bytes(input.len())?;
    let _ = page_change::kind(any);
    let _ = page_change::apply(&mut page, any);
    Ok(())
}

/// A b-tree page whose pointers and cells are from the input.
fn tree(input: &mut Unstructured, page_bytes: usize, header: usize) -> Result<Vec<u8>> {
    let mut page = vec![0; page_bytes];
    let kind = *input.choose(&TYPES)?;
    let content: u16 = if input.arbitrary()? { page_bytes as u16 } else { input.arbitrary()? };
    page[header] = kind;
    page[header + 5..header + 7].copy_from_slice(&content.to_be_bytes());
    page[header + 4] = input.int_in_range(0..=20)?;
    for _ in 0..input.int_in_range(0..=6)? {
        let at = input.int_in_range(0..=page_bytes - 1)?;
        let bytes = input.bytes(input.len().min(page_bytes - at).min(40))?;
        page[at..at + bytes.len()].copy_from_slice(bytes);
    }
    Ok(page)
}

/// A payload that is often valid.
fn payload(input: &mut Unstructured, header: usize) -> Result<Vec<u8>> {
    let mut payload = vec![*input.choose(&KINDS)?];
    if payload[0] & 0x0f == 1 && input.ratio(7, 8)? {
        payload[0] = payload[0] & 0x2f | if header == 0 { 0 } else { 0x10 };
        let count = input.int_in_range(0..=6)?;
        payload.push(count);
        for _ in 0..count {
            operation(input, &mut payload)?;
        }
    }
    let rest = input.int_in_range(0..=24)?;
    payload.extend_from_slice(input.bytes(rest.min(input.len()))?);
    Ok(payload)
}

fn operation(input: &mut Unstructured, payload: &mut Vec<u8>) -> Result<()> {
    let code = input.int_in_range(1..=5)?;
    payload.push(code);
    if matches!(code, 2 | 5) {
        payload.extend_from_slice(input.bytes(2)?);
    }
    let length = input.int_in_range(0..=40)?;
    payload.extend_from_slice(&[input.int_in_range(0..=8)?, length]);
    match code {
        1 | 2 => {
            let mut cell = vec![input.arbitrary()?; usize::from(length) + 1];
            cell[0] = length.saturating_sub(1);
            payload.extend_from_slice(&cell);
        }
        4 | 5 => payload.extend_from_slice(&[input.int_in_range(0..=length + 1)?, 0]),
        _ => {}
    }
    Ok(())
}

fn round_trip(old: &[u8], new: &[u8], header: usize) {
    let (mut payload, mut plain, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let kind = page_change::encode(&mut Scratch::default(), old, new, header, &mut payload);
    assert_eq!(page_change::kind(&payload), Ok(kind));
    let mut page = old.to_vec();
    assert_eq!(page_change::apply(&mut page, &payload), Ok(()));
    assert!(page == new);
    diff::encode(old, new, &mut plain);
    // A new cell may lie where another cell has left its bytes.
    assert!(kind == ChangeKind::Cells || payload.len() <= plain.len() + 2);
    let mut payload = Vec::new();
    match page_change::encode_rearranged(&mut Scratch::default(), old, new, header, &mut payload) {
        Difference::Ranges(ranges) => {
            let mut counted = Vec::new();
            assert_eq!(diff::encode(old, new, &mut counted), ranges);
            assert!(payload == counted);
        }
        Difference::Change => {
            assert!(payload.len() < plain.len() || payload[0] & 0x0f == 1);
            let mut page = old.to_vec();
            assert_eq!(page_change::apply(&mut page, &payload), Ok(()));
            assert!(page == new);
        }
    }
    page_change::encode_whole(new, &mut whole);
    assert_eq!(page_change::kind(&whole), Ok(ChangeKind::Whole));
    assert_eq!(page_change::apply(&mut page, &whole), Ok(()));
    assert!(page == new);
}
