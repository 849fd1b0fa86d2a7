//! Tests the LTX files that are made from groups of commits.

use std::io::{Read as _, Seek as _, SeekFrom};

use duralite_format::LogId;
use duralite_sidecar::group::{Commit, Group, Mark};

const LOG: LogId = LogId([7; 16]);

/// Commits. Each is the size of the database in pages after the commit, and the pages that it has written. One byte
/// stands for the image of a page.
type Commits<'a> = &'a [(u32, Vec<(u32, u8)>)];

/// Returns the file that has these commits. The first commit becomes the transaction `min`.
fn file(commits: Commits<'_>, min: u64) -> Vec<u8> {
    let mut group = Group::new(512, LOG);
    for (at, (db_pages, pages)) in (min..).zip(commits) {
        let commit = Commit { position: 10 * at, time_ms: at, db_pages: *db_pages };
        group.push(commit, pages.iter().copied());
    }
    let after = Mark { generation: 1, txid: min - 1, ..Mark::default() };
    let read = |image: &u8, page: &mut [u8]| {
        page.fill(*image);
        Ok(())
    };
    let (mut file, mark) = group.encode(&after, read).unwrap().unwrap();
    assert_eq!((mark.txid, mark.position), (min - 1 + commits.len() as u64, 10 * mark.txid));
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Returns the numbers of the pages in a file, with the first byte of each page.
fn pages(file: &[u8]) -> Vec<(u32, u8)> {
    let mut decoder = duralite_ltx::Decoder::new(file).unwrap();
    let (mut pages, mut page) = (Vec::new(), [0; 512]);
    while let Some(number) = decoder.next_page(&mut page).unwrap() {
        pages.push((number, page[0]));
    }
    decoder.finish().unwrap();
    pages
}

#[test]
fn inv69_pages_that_were_cut_off_and_taken_again_are_zeros() {
    let commits = [(9, vec![(1, 1), (8, 1), (9, 1)]), (5, vec![(1, 2)]), (9, vec![(1, 3), (9, 3)])];
    assert_eq!(pages(&file(&commits, 4)), [(1, 3), (6, 0), (7, 0), (8, 0), (9, 3)]);
    // The last commit has cut off the pages after page 5, so the file does not have them.
    assert_eq!(pages(&file(&commits[..2], 4)), [(1, 2)]);
    // A new group adds no pages of zeros for its first commit, although that commit may have made the database longer.
    assert_eq!(pages(&file(&commits[2..], 4)), [(1, 3), (9, 3)]);
}

#[test]
fn inv69_a_group_has_the_pages_that_its_commits_merged_one_by_one_have() {
    for seed in 0..300_u64 {
        let mut state = seed;
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let commits: Vec<(u32, Vec<(u32, u8)>)> = (1..=2 + below(6) as u8)
            .map(|image| {
                let db_pages = 1 + below(12) as u32;
                let written = 1 + below(4);
                (db_pages, (0..written).map(|_| (1 + below(u64::from(db_pages)) as u32, image)).collect())
            })
            .collect();
        let single: Vec<Vec<u8>> = (2..).zip(commits.chunks(1)).map(|(min, one)| file(one, min)).collect();
        let merged = duralite_ltx::merge(single.iter().map(|file| &file[..]).collect(), Vec::new());
        assert_eq!(pages(&file(&commits, 2)), pages(&merged.unwrap().1), "seed {seed}: {commits:?}");
    }
}
