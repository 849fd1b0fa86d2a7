//! Makes LTX files for the tests.

use duralite_ltx::{Decoder, Encoder, Header, LtxError, Summary};

/// A page and its number.
pub type Page = (u32, Vec<u8>);

pub fn header() -> Header {
    Header {
        page_size: 512,
        commit: 3,
        min_txid: 2,
        max_txid: 4,
        timestamp_ms: 1_700_000_000_000,
        pre_checksum: None,
        wal_offset: 9,
        wal_size: 3,
        wal_salt: [7, 8],
        node_id: 5,
    }
}

pub fn encode(header: Header, pages: &[Page]) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), header).unwrap();
    for (number, bytes) in pages {
        encoder.page(*number, bytes).unwrap();
    }
    let (bytes, len) = encoder.finish().unwrap();
    assert_eq!(bytes.len() as u64, len);
    bytes
}

/// Reads a whole file.
pub fn decode(bytes: &[u8]) -> Result<(Summary, Vec<Page>), LtxError> {
    let mut decoder = Decoder::new(bytes)?;
    let mut page = vec![0; decoder.header().page_size as usize];
    let mut pages = Vec::new();
    while let Some(number) = decoder.next_page(&mut page)? {
        pages.push((number, page.clone()));
    }
    Ok((decoder.finish()?, pages))
}

/// Returns some pages of a small database: one of zeros, one that repeats itself, and one that cannot be
/// compressed.
pub fn pages(numbers: impl IntoIterator<Item = u32>) -> Vec<Page> {
    let mut state = 1_u64;
    let mut noise = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let page = |number: u32| match number % 3 {
        0 => vec![0; 512],
        1 => (0..512).map(|at| (at % 7) as u8).collect(),
        _ => (0..512).map(|_| noise()).collect(),
    };
    let mut page = page;
    numbers.into_iter().map(|number| (number, page(number))).collect()
}
