//! The decoders of the `scratchpad` log and its region.

use duralite_format::scratchpad::{
    CommitEntry, ENTRY_BYTES, HEADER_BYTES, JOURNAL_LIMIT, Kind, MOST_PAGES, Owner, PageHeader,
    REFERENCE_OFFSET, RegionId, RegionSuperblock, SUPERBLOCK_BYTES, Superblock, TxHeader, UndoChain,
    UndoState, change_word, committed_mark, committing_mark, entry_bytes, link_word, read_change_word,
    read_link,
};
use duralite_format::{PATH_LIMIT, guard};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

use super::{flip, log_head, log_id, overlay, path};

pub fn superblocks(input: &mut Unstructured) -> Result<()> {
    let mut superblock = Superblock {
        head: log_head(input)?,
        region: RegionId(input.arbitrary()?),
        limit_pages: input.arbitrary()?,
        region_dir: path(input)?,
    };
    let (head, reference) = superblock.encode();
    let mut bytes = vec![0; SUPERBLOCK_BYTES as usize];
    let at = REFERENCE_OFFSET as usize;
    bytes[..head.len()].copy_from_slice(&head);
    assert!(Superblock::decode(&bytes).is_err(), "without the place of its region");
    bytes[at..at + reference.len()].copy_from_slice(&reference);
    assert!(Superblock::decode(&bytes[..bytes.len() - 1]).is_err(), "shorter than the file");
    superblock.head.path.truncate(PATH_LIMIT);
    if superblock.region_dir.len() > PATH_LIMIT {
        superblock.region_dir.clear();
    }
    match Superblock::decode(&bytes) {
        Ok(back) => assert!(guard::page_size_is_valid(superblock.head.page_bytes) && back == superblock),
        Err(_) => assert!(!guard::page_size_is_valid(superblock.head.page_bytes)),
    }
    if input.arbitrary()? {
        flip(input, &mut bytes[..1096])?
    } else {
        flip(input, &mut bytes[at..at + reference.len()])?
    }
    assert!(Superblock::decode(&bytes).is_err());
    Ok(())
}

pub fn regions(input: &mut Unstructured) -> Result<()> {
    let id = RegionId(input.arbitrary()?);
    let made = RegionSuperblock::for_bytes(id, input.arbitrary()?);
    assert!((16..=MOST_PAGES).contains(&made.limit_pages));
    let superblock =
        if input.arbitrary()? { made } else { RegionSuperblock { id, limit_pages: input.arbitrary()? } };
    let mut bytes = superblock.encode();
    match RegionSuperblock::decode(&bytes) {
        Ok(back) => assert_eq!(back, superblock),
        Err(_) => assert!(!(2..=MOST_PAGES).contains(&superblock.limit_pages)),
    }
    let length = input.int_in_range(0..=bytes.len() - 1)?;
    assert!(RegionSuperblock::decode(&bytes[..length]).is_err());
    flip(input, &mut bytes)?;
    assert!(RegionSuperblock::decode(&bytes).is_err());
    Ok(())
}

pub fn pages(input: &mut Unstructured) -> Result<()> {
    let (id, page) = (log_id(input)?, input.int_in_range(1..=MOST_PAGES - 1)?);
    let owner = Owner::of(id);
    let slot = usize::from(input.arbitrary::<u8>()?);
    let word = owner.word(slot);
    assert_eq!((Owner::in_word(word), Owner::slot_in(word)), (Some(owner), slot));
    assert!(Owner::in_word(0).is_none() && owner.number() > 0 && owner.number() < 1 << 56);
    let header = PageHeader {
        kind: if input.arbitrary()? { Kind::Redo } else { Kind::Undo },
        generation: input.arbitrary()?,
        transaction: input.arbitrary()?,
        index: input.arbitrary()?,
    };
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes[8..].copy_from_slice(&header.encode(id, page));
    let tag = header.tag(id, page);
    assert_eq!(PageHeader::decode(&bytes, id, page), Some((header, tag)));
    flip(input, &mut bytes[8..32])?;
    // The checksum has 32 bits, so a flip may go unnoticed.
    if let Some((found, tag)) = PageHeader::decode(&bytes, id, page) {
        assert_eq!(
            (found.encode(id, page)[..24].to_vec(), found.tag(id, page)),
            (bytes[8..32].to_vec(), tag)
        );
    }
    overlay(input, &mut bytes)?;
    if let Some((found, _)) = PageHeader::decode(&bytes, id, page) {
        assert_eq!(found.encode(id, page)[..24], bytes[8..32]);
    }
    links(input, tag)
}

fn links(input: &mut Unstructured, tag: u32) -> Result<()> {
    let targets: u32 = input.arbitrary()?;
    let target: u32 =
        if input.arbitrary()? { input.arbitrary()? } else { input.int_in_range(0..=targets)? };
    let word = link_word(target, tag);
    assert_ne!(word, 0);
    let found = read_link(word, tag, targets);
    assert_eq!(found, (target != 0 && target < targets).then_some(target));
    let word =
        if input.arbitrary()? { input.arbitrary()? } else { word ^ 1 << input.int_in_range(0..=63)? };
    if let Some(target) = read_link(word, tag, targets) {
        assert!(target != 0 && target < targets && link_word(target, tag) == word);
    }
    Ok(())
}

pub fn entries(input: &mut Unstructured) -> Result<()> {
    let (id, generation, transaction) = (log_id(input)?, input.arbitrary()?, input.arbitrary()?);
    let [open, done] = [committing_mark, committed_mark].map(|mark| mark(id, generation, transaction));
    assert!((open ^ done).count_ones() >= 7);
    let header = TxHeader::decode(&input.arbitrary::<[u8; 40]>()?);
    let entry = CommitEntry { header, generation, transaction, pages: input.arbitrary()? };
    let mut line = entry.encode(id);
    assert_eq!(CommitEntry::decode(&line, id, generation, transaction), Some(entry));
    assert_eq!(CommitEntry::decode(&line, id, generation, transaction ^ 1), None);
    // The mark is checked separately.
    line[..8].copy_from_slice(&done.to_le_bytes());
    assert_eq!(CommitEntry::decode(&line, id, generation, transaction), Some(entry));
    flip(input, &mut line[8..])?;
    assert_eq!(CommitEntry::decode(&line, id, generation, transaction), None);
    let line: [u8; ENTRY_BYTES as usize] = input.arbitrary()?;
    assert!(
        CommitEntry::decode(&line, id, generation, transaction)
            .is_none_or(|it| it.encode(id)[8..] == line[8..])
    );
    let size = input.arbitrary()?;
    assert_eq!(read_change_word(change_word(size)), Some(size));
    assert!(entry_bytes(size).is_multiple_of(ENTRY_BYTES) && entry_bytes(size) > u64::from(size));
    let word = if input.arbitrary()? {
        input.arbitrary()?
    } else {
        change_word(size) ^ 1 << input.int_in_range(0..=63)?
    };
    assert!(read_change_word(word).is_none_or(|size| change_word(size) == word));
    Ok(())
}

pub fn journals(input: &mut Unstructured) -> Result<()> {
    let id = log_id(input)?;
    let first =
        if input.ratio(1u8, 8u8)? { input.arbitrary()? } else { input.int_in_range(1..=MOST_PAGES - 1)? };
    let chain = UndoChain { first, number: input.arbitrary()? };
    assert_eq!(UndoChain::read(chain.word()), chain);
    assert_eq!(UndoState::read(UndoState::Gone.word(id, chain), id, chain), Ok(UndoState::Gone));
    let state = UndoState::Bytes(input.int_in_range(0..=JOURNAL_LIMIT - 1)?);
    let word = state.word(id, chain);
    assert_ne!(word, 0);
    let is_page = (1..MOST_PAGES).contains(&first);
    assert_eq!(UndoState::read(word, id, chain).ok(), is_page.then_some(state));
    let word =
        if input.arbitrary()? { input.arbitrary()? } else { word ^ 1 << input.int_in_range(0..=63)? };
    if let Ok(found) = UndoState::read(word, id, chain) {
        assert_eq!(found.word(id, chain), word);
    }
    Ok(())
}
