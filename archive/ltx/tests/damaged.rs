//! Checks that the decoder finds damage in every part of a file.

use duralite_ltx::Header;

use super::common::{decode, encode, header, pages};

/// Returns a snapshot and a file of changes.
fn files() -> [Vec<u8>; 2] {
    let snapshot = Header { min_txid: 1, ..header() };
    [encode(snapshot, &pages(1..=3)), encode(header(), &pages([1, 3]))]
}

#[test]
fn each_flipped_bit_is_found_or_changes_no_page() {
    for file in files() {
        let (summary, pages) = decode(&file).unwrap();
        let mut unnoticed = 0;
        for bit in 0..file.len() * 8 {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match decode(&damaged) {
                // LZ4 can encode the same page in several ways, so a file with a flipped bit may still decode to the
                // same pages.
                Ok(found) => {
                    unnoticed += 1;
                    assert_eq!(found, (summary, pages.clone()), "bit {bit}");
                }
                Err(error) => assert!(error.is_damage(), "bit {bit}: {error}"),
            }
        }
        assert!(unnoticed < file.len() / 10, "{unnoticed}");
    }
}

#[test]
fn each_byte_that_is_missing_or_too_much_is_found() {
    for file in files() {
        for len in 0..file.len() {
            let error = decode(&file[..len]).unwrap_err();
            assert!(error.is_damage(), "{len}: {error}");
            let mut shorter = file.clone();
            shorter.remove(len);
            // If one of several equal bytes in a row is missing, nobody can tell which one. But the decoder has to
            // notice that a byte is missing.
            assert!(decode(&shorter).is_err(), "{len}");
        }
        let longer = [&file[..], &[0]].concat();
        assert!(decode(&longer).unwrap_err().is_damage());
    }
}

#[test]
fn frames_that_changed_places_are_found() {
    let file = encode(header(), &pages([1, 3]));
    let mut found = file.clone();
    // The test changes the page numbers at the beginnings of the two frames, and leaves the pages where they are.
    let second = (100..file.len() - 10).find(|at| file[*at..].starts_with(&[0, 0, 0, 3, 0, 1])).unwrap();
    found[100 + 3] = 2;
    assert!(decode(&found).unwrap_err().is_damage());
    found.copy_from_slice(&file);
    found[second + 3] = 2;
    assert!(decode(&found).unwrap_err().is_damage());
}
