//! Checks that the encoder does not write, and the decoder does not read, anything that the format does not
//! allow.

use duralite_ltx::{Decoder, Encoder, Header, LtxError, lock_page};

use super::common::{encode, header, pages};

fn is_refused<T>(result: Result<T, LtxError>) -> bool {
    matches!(result, Err(LtxError::Refused(_)))
}

#[test]
fn headers_that_contradict_themselves() {
    let wrong = [
        Header { page_size: 0, ..header() },
        Header { page_size: 256, ..header() },
        Header { page_size: 1000, ..header() },
        Header { page_size: 131_072, ..header() },
        Header { commit: 0, ..header() },
        Header { min_txid: 0, ..header() },
        Header { min_txid: 5, ..header() },
        Header { timestamp_ms: -1, ..header() },
        Header { wal_offset: 0, ..header() },
        Header { wal_offset: 1 << 63, ..header() },
        Header { wal_size: 1 << 63, ..header() },
        Header { pre_checksum: Some(0), ..header() },
        Header { pre_checksum: Some(7), ..header() },
        Header { pre_checksum: Some(1 << 63), min_txid: 1, ..header() },
    ];
    for header in wrong {
        assert!(is_refused(header.encode()), "{header:?}");
    }
    for header in [
        Header { pre_checksum: Some(1 << 63), ..header() },
        Header { pre_checksum: Some(0), min_txid: 1, ..header() },
    ] {
        assert_eq!(Header::decode(&header.encode().unwrap()).unwrap(), header);
        // The encoder refuses this header, because it computes no checksum of the database.
        assert!(is_refused(Encoder::new(Vec::new(), header).map(drop)));
    }
}

#[test]
fn pages_that_are_not_the_next_one() {
    let mut encoder = Encoder::new(Vec::new(), header()).unwrap();
    for number in [0, 4, lock_page(512)] {
        assert!(is_refused(encoder.page(number, &[0; 512])), "{number}");
    }
    assert!(is_refused(encoder.page(1, &[0; 511])));
    encoder.page(2, &[0; 512]).unwrap();
    for number in [1, 2] {
        assert!(is_refused(encoder.page(number, &[0; 512])), "{number}");
    }
    encoder.finish().unwrap();
}

#[test]
fn snapshots_that_lack_a_page() {
    let snapshot = Header { min_txid: 1, ..header() };
    let mut encoder = Encoder::new(Vec::new(), snapshot).unwrap();
    assert!(is_refused(encoder.page(2, &[0; 512])));
    encoder.page(1, &[0; 512]).unwrap();
    assert!(is_refused(encoder.page(3, &[0; 512])));
    encoder.page(2, &[0; 512]).unwrap();
    assert!(is_refused(encoder.finish().map(drop)));
}

#[test]
fn buffers_that_are_no_page() {
    let file = encode(header(), &pages([1]));
    assert!(is_refused(Decoder::new(&file[..]).unwrap().next_page(&mut [0; 511])));
}
