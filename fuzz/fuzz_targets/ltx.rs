//! LTX files come from an object store. Any bytes must be decoded or refused; what was decoded must encode to a file
//! with the same pages; and damage to a file must be found or change nothing.
#![no_main]

use duralite_ltx::{Decoder, Encoder, Header, LtxError, Summary, parse_file_name};
use libfuzzer_sys::fuzz_target;

type Pages = Vec<(u32, Vec<u8>)>;

fuzz_target!(|data: &[u8]| {
    if let Ok((summary, pages)) = decode(data)
        && summary.post_checksum.is_none()
    {
        assert_eq!(decode(&encode(summary.header, &pages)).map(|(_, pages)| pages).ok(), Some(pages));
    }
    let _ = std::str::from_utf8(data).map(parse_file_name);
    damaged(data);
});

/// A file that the input describes, with bytes of it replaced as the input says.
fn damaged(data: &[u8]) {
    let [commit, first, rest @ ..] = data else { return };
    let header = Header {
        page_size: 512,
        commit: u32::from(commit % 8) + 1,
        min_txid: u64::from(first % 2) + 1,
        max_txid: u64::from(first / 2) + 2,
        timestamp_ms: 1,
        pre_checksum: None,
        wal_offset: 1,
        wal_size: 1,
        wal_salt: [1, 2],
        node_id: 3,
    };
    let page = |number: u32| {
        let byte = |at: usize| rest.get((at * number as usize) % rest.len().max(1)).copied().unwrap_or(0);
        (number, (0..512).map(byte).collect())
    };
    let is_in = |number: &u32| header.is_snapshot() || first >> (number % 8) & 1 == 1;
    let pages: Pages = (1..=header.commit).filter(is_in).map(page).collect();
    let whole = encode(header, &pages);
    let mut file = whole.clone();
    for replaced in rest.chunks_exact(3).take(4) {
        let at = usize::from(u16::from_be_bytes([replaced[0], replaced[1]])) % file.len();
        file[at] = replaced[2];
    }
    match decode(&file) {
        Ok((summary, found)) => assert!(summary.header == header && found == pages),
        Err(_) => assert!(file != whole),
    }
}

fn encode(header: Header, pages: &Pages) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), header).expect("a header that was decoded");
    for (number, bytes) in pages {
        encoder.page(*number, bytes).expect("a page that was decoded");
    }
    encoder.finish().expect("pages that were decoded").0
}

fn decode(bytes: &[u8]) -> Result<(Summary, Pages), LtxError> {
    let mut decoder = Decoder::new(bytes)?;
    let mut page = vec![0; decoder.header().page_size as usize];
    let mut pages = Pages::new();
    while let Some(number) = decoder.next_page(&mut page)? {
        pages.push((number, page.clone()));
    }
    Ok((decoder.finish()?, pages))
}
