//! Checks that the encoder still writes the same bytes as when the golden files were made, and that the decoder reads a
//! file that another program made.
//!
//! With `LTX_GOLDEN=1` the test writes the golden files of the encoder, except those that exist already.

use std::path::{Path, PathBuf};

use duralite_ltx::{DatabaseChecksum, Header};

use super::common::{decode, encode, header, pages};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// An archive creates each object only once. So another primary, or the same primary after a restart, must write the
/// same bytes. If a new version of the compression library changes the bytes, this test notices.
#[test]
fn the_encoder_writes_what_it_wrote_before() {
    let snapshot = Header { min_txid: 1, commit: 5, ..header() };
    let files = [("snapshot.ltx", snapshot, pages(1..=5)), ("changes.ltx", header(), pages([1, 3]))];
    for (name, header, pages) in files {
        let bytes = encode(header, &pages);
        let path = golden(name);
        if std::env::var_os("LTX_GOLDEN").is_some() && !path.exists() {
            std::fs::write(&path, &bytes).unwrap();
        }
        assert!(std::fs::read(path).unwrap() == bytes, "{name}");
        assert_eq!(decode(&bytes).unwrap().1, pages);
    }
}

/// `ltx encode-db` of version 0.5.3 made the file, a snapshot with a checksum of the database.
#[test]
fn a_file_of_another_program_is_read() {
    let bytes = std::fs::read(golden("other.ltx")).unwrap();
    let (summary, pages) = decode(&bytes).unwrap();
    assert_eq!((summary.header.min_txid, summary.header.max_txid, summary.header.page_size), (1, 1, 512));
    assert_eq!(summary.pages, summary.header.commit);
    let mut checksum = DatabaseChecksum::new();
    pages.iter().for_each(|(number, bytes)| checksum.add(*number, bytes));
    assert_eq!(summary.post_checksum, Some(checksum.value()));
    assert!(pages[0].1.starts_with(b"SQLite format 3\0"));
    // Even if all other bytes are right, the decoder refuses a file that states a wrong checksum of the database.
    let mut other = bytes.clone();
    let at = other.len() - 9;
    other[at] ^= 1;
    assert!(decode(&other).unwrap_err().is_damage());
}
