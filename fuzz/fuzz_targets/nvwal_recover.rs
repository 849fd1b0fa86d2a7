//! Any bytes as a log: recovery either refuses them or serves a stream, and the log can be used
//! on. It never panics, reads outside the medium, or runs away.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use duralite_journal::NvwalOptions;
use duralite_journal::engine::Engine as _;
use duralite_journal::nvwal::{self, Nvwal};
use duralite_journal::stream::WalStream;
use duralite_logfmt::LogId;
use duralite_logfmt::sqlite_wal::make_wal_header;
use duralite_medium::RecordingNvm;
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const CAPACITY: u64 = 4 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if mode % 2 == 1 {
        repair_checksums(&mut bytes);
    }
    // A log may claim more than there is, but the medium has a size.
    let nvm = Arc::new(RecordingNvm::from_bytes(bytes, CAPACITY));
    let _ = nvwal::walk(nvm.clone(), Path::new("fuzz"), |_| {});
    let options = NvwalOptions { cache_bytes: 0, ..NvwalOptions::default() };
    let Ok(mut engine) = Nvwal::open(nvm, Path::new("fuzz"), options) else { return };
    let page_bytes = engine.superblock().page_bytes as usize;
    if engine.recover_heap().is_err() || engine.committed() > 5000 {
        return;
    }
    let mut stream = WalStream::new(engine);
    let _ = stream.find_checksum_mismatch();
    let mut piece = vec![0; page_bytes + 24];
    if let Ok(size) = stream.size() {
        let _ = stream.read(0, &mut piece);
        let _ = stream.read(size / 2, &mut piece);
        let _ = stream.read(size.saturating_sub(9), &mut piece);
    }
    let header = make_wal_header(page_bytes as u32, 1, [1, 2]);
    if stream.write(0, &header).is_ok() {
        let mut frame = [0; 24];
        frame[3] = 1;
        frame[7] = 1;
        if stream.write(32, &frame).is_ok() && stream.write(56, &vec![7; page_bytes]).is_ok() {
            assert_eq!(stream.engine().committed(), 1);
        }
    }
});

/// Makes superblock and generation slots check, so that the bytes behind them are reached.
fn repair_checksums(bytes: &mut [u8]) {
    if bytes.len() < 4096 {
        return;
    }
    bytes[..8].copy_from_slice(b"DURALNVW");
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    let superblock = xxh3_64(&bytes[..1088]);
    bytes[1088..1096].copy_from_slice(&superblock.to_le_bytes());
    let id = LogId(bytes[16..32].try_into().unwrap());
    let seed = u64::from_le_bytes(id.0[..8].try_into().unwrap());
    for slot in [1216, 1280] {
        let sum = xxh3_64_with_seed(&bytes[slot..slot + 56], seed);
        bytes[slot + 56..slot + 64].copy_from_slice(&sum.to_le_bytes());
    }
    for word in [1152, 1344] {
        let value: u32 = u32::from_le_bytes(bytes[word..word + 4].try_into().unwrap());
        bytes[word + 4..word + 8].copy_from_slice(&(!value).to_le_bytes());
    }
}
