//! Checks that the decoder returns what the encoder was given.

use duralite_ltx::{Decoder, Header, database_checksum, lock_page};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::common::{Page, decode, encode, header, pages};

/// Generates the headers of files of a database with `commit` pages. The first transaction of each file is
/// `min`.
fn headers(
    min: impl Strategy<Value = u64>,
    commit: impl Strategy<Value = u32>,
) -> impl Strategy<Value = Header> {
    let log = (1..=i64::MAX as u64, 0..=i64::MAX as u64, any::<[u32; 2]>());
    (0_u32..4, min, commit, any::<u32>(), 0..=i64::MAX, prop::option::of(log), any::<u64>()).prop_map(
        |(power, min_txid, commit, more, timestamp_ms, log, node_id)| {
            let (wal_offset, wal_size, wal_salt) = log.unwrap_or((0, 0, [0, 0]));
            let max_txid = min_txid.saturating_add(u64::from(more));
            let page_size = 512 << power;
            let pre_checksum = None;
            Header {
                page_size,
                commit,
                min_txid,
                max_txid,
                timestamp_ms,
                pre_checksum,
                wal_offset,
                wal_size,
                wal_salt,
                node_id,
            }
        },
    )
}

/// Returns pages. Each repeats some random bytes, so that some pages compress and some do not.
fn content(page_size: u32) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..600)
        .prop_map(move |bytes| bytes.into_iter().cycle().take(page_size as usize).collect())
}

fn changes() -> impl Strategy<Value = (Header, Vec<Page>)> {
    headers(2..u64::MAX, 1_u32..).prop_flat_map(|header| {
        let numbers = (1..=header.commit)
            .prop_filter("the lock page", move |number| *number != lock_page(header.page_size));
        let pages = btree_map(numbers, content(header.page_size), 0..20);
        (Just(header), pages.prop_map(|pages| pages.into_iter().collect()))
    })
}

fn snapshots() -> impl Strategy<Value = (Header, Vec<Page>)> {
    headers(Just(1), 1..20_u32).prop_flat_map(|header| {
        let pages = vec(content(header.page_size), header.commit as usize);
        (Just(header), pages.prop_map(|pages| (1..).zip(pages).collect()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pages_come_back((header, pages) in prop_oneof![changes(), snapshots()]) {
        let bytes = encode(header, &pages);
        prop_assert_eq!(&bytes, &encode(header, &pages));
        let (summary, found) = decode(&bytes).unwrap();
        prop_assert_eq!(found, pages);
        prop_assert_eq!(summary.header, header);
        prop_assert_eq!(summary.bytes, bytes.len() as u64);
        prop_assert_eq!(summary.post_checksum, None);
    }

    #[test]
    fn headers_come_back(header in headers(1..u64::MAX, 1_u32..)) {
        prop_assert_eq!(Header::decode(&header.encode().unwrap()).unwrap(), header);
    }

    #[test]
    fn inv12_any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..400), kept in 0..200_usize) {
        // The file begins like a valid file, and the random bytes follow.
        let mut file = encode(header(), &pages([1, 3]));
        file.truncate(kept);
        file.extend(&bytes);
        let _ = (decode(&bytes), decode(&file));
    }
}

/// With this many pages, the index goes to a temporary file.
#[test]
fn a_file_with_very_many_pages_comes_back() {
    let count = 500_000;
    let header = Header { commit: count, min_txid: 1, max_txid: 1, ..header() };
    let page = [5; 512];
    let mut encoder = duralite_ltx::Encoder::new(Vec::new(), header).unwrap();
    for number in 1..=count {
        encoder.page(number, &page).unwrap();
    }
    let (bytes, _) = encoder.finish().unwrap();
    let summary = Decoder::new(&bytes[..]).unwrap().finish().unwrap();
    assert_eq!(summary.pages, count);
}

#[test]
fn a_snapshot_has_no_lock_page() {
    // With the largest page size, the lock page has the lowest number, so a test can afford to reach it.
    let lock = lock_page(65_536);
    let header = Header { page_size: 65_536, commit: lock + 1, min_txid: 1, max_txid: 1, ..header() };
    let page = vec![0; 65_536];
    let mut encoder = duralite_ltx::Encoder::new(Vec::new(), header).unwrap();
    for number in (1..lock).chain([lock + 1]) {
        encoder.page(number, &page).unwrap();
    }
    let (bytes, _) = encoder.finish().unwrap();
    assert_eq!(Decoder::new(&bytes[..]).unwrap().finish().unwrap().pages, lock);
}

#[test]
fn the_checksum_of_a_database_leaves_out_what_is_behind_its_end() {
    let database: Vec<u8> = pages(1..=4).into_iter().flat_map(|(_, bytes)| bytes).collect();
    let all = database_checksum(&database[..], 512, 4).unwrap();
    assert_ne!(all, database_checksum(&database[..], 512, 3).unwrap());
    assert!(database_checksum(&database[..], 512, 5).is_err());
}
