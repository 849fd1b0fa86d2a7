use std::path::Path;

use super::*;

const LEN: u64 = 8192;

fn map(options: &MapOptions) -> FileNvm {
    let file = tempfile::tempfile().unwrap();
    let nvm = FileNvm::map(file, Path::new("nvm"), &MapOptions { capacity: LEN * 4, ..*options }).unwrap();
    nvm.grow(LEN).unwrap();
    nvm
}

#[test]
fn what_is_durable_on_store_is_never_flushed_nor_waited_for() {
    let latency = Latency { write_ns: u32::MAX, fence_ns: u32::MAX, ..Latency::default() };
    let nvm = map(&MapOptions { durable_on_store: true, latency, ..MapOptions::default() });
    nvm.store(1, &[7; 200]);
    nvm.stream(1, &[7; 200]);
    nvm.flush(1, 200);
    nvm.fence();
    let counters = nvm.counters();
    assert_eq!((counters.stored_bytes, counters.flushed_lines, counters.fences), (400, 0, 1));
    assert!(nvm.is_durable_on_store());
    assert!(nvm.describe().contains("durable on store"), "{}", nvm.describe());
    let model = MapOptions {
        durable_on_store: true,
        persistency: Persistency::Strict,
        capacity: LEN,
        ..MapOptions::default()
    };
    assert!(FileNvm::map(tempfile::tempfile().unwrap(), Path::new("nvm"), &model).is_err());
}

#[test]
fn streamed_lines_have_a_latency_of_their_own() {
    let latency = Latency { stream_ns: Some(1_000_000), ..Latency::default() };
    let nvm = map(&MapOptions { latency, ..MapOptions::default() });
    let start = std::time::Instant::now();
    nvm.stream(64, &[7; 192]);
    assert!(start.elapsed() >= std::time::Duration::from_micros(2_980));
    // The range is only a part of a line, so `stream` stores it in the ordinary way and flushes it.
    nvm.stream(1, &[7; 10]);
    assert_eq!((nvm.counters().flushed_lines, nvm.counters().streamed_lines), (4, 3));
    assert!(nvm.describe().contains("per line streamed"), "{}", nvm.describe());
}

#[test]
fn lines_in_the_queue_are_waited_for_by_the_fence() {
    let waiting = |nvm: &FileNvm| nvm.queue().time_to_drain(latency::now());
    let slow = |write_ns, queue_lines| Latency { write_ns, queue_lines, ..Latency::default() };
    // The latency is some seconds. `flush` must put the lines into the queue, and not wait for the latency of
    // each.
    let nvm = map(&MapOptions { latency: slow(u32::MAX, 8), ..MapOptions::default() });
    nvm.flush(0, 192);
    assert_eq!(nvm.queue().lines(), 3);
    assert!(nvm.describe().contains("a queue of 8 lines"), "{}", nvm.describe());
    nvm.set_latency(slow(0, 8));
    assert!(!nvm.describe().contains("queue"), "{}", nvm.describe());
    let nvm = map(&MapOptions { latency: slow(u32::MAX, 8), ..MapOptions::default() });
    nvm.stream(256, &[7; 128]);
    assert_eq!(nvm.queue().lines(), 2);
    let nvm = map(&MapOptions { latency: slow(1_000_000, 2), ..MapOptions::default() });
    nvm.flush(0, 640);
    nvm.fence();
    assert_eq!((waiting(&nvm), nvm.counters().flushed_lines, nvm.counters().fences), (0, 10, 1));
    // No line is in the queue: in the first case there is no queue, and the other two models do not flush
    // lines.
    for (persistency, queue_lines) in
        [(Persistency::X86, 0), (Persistency::Epoch, 8), (Persistency::Strict, 8)]
    {
        let nvm = map(&MapOptions { latency: slow(1, queue_lines), persistency, ..MapOptions::default() });
        nvm.store(0, &[7; 192]);
        nvm.flush(0, 192);
        assert_eq!(nvm.queue().lines(), 0);
    }
}

#[test]
fn words_are_exchanged_once() {
    let nvm = map(&MapOptions::default());
    assert_eq!(nvm.compare_exchange_u64(8, 0, 5), Ok(0));
    assert_eq!(nvm.compare_exchange_u64(8, 0, 6), Err(5));
    assert_eq!((nvm.load_u64(8), nvm.counters().stored_bytes), (5, 8));
    let wins: usize = std::thread::scope(|scope| {
        let takers: Vec<_> = (1..=4)
            .map(|me| {
                scope.spawn({
                    let nvm = &nvm;
                    move || nvm.compare_exchange_u64(16, 0, me)
                })
            })
            .collect();
        takers.into_iter().map(|taker| usize::from(taker.join().unwrap().is_ok())).sum()
    });
    assert_eq!(wins, 1);
}

#[test]
fn what_is_cut_off_is_gone_and_comes_back_as_zeros() {
    let nvm = map(&MapOptions::default());
    nvm.store(4096, &[9; 4096]);
    nvm.shrink(4096).unwrap();
    assert_eq!(nvm.len(), 4096);
    nvm.shrink(LEN).unwrap();
    assert_eq!(nvm.len(), 4096);
    nvm.grow(LEN).unwrap();
    let mut page = [1; 4096];
    nvm.read(4096, &mut page);
    assert_eq!((page, nvm.check()), ([0; 4096], Ok(())));
    let read_only = MapOptions { capacity: LEN, read_only: true, ..MapOptions::default() };
    let read_only = FileNvm::map(tempfile::tempfile().unwrap(), Path::new("nvm"), &read_only).unwrap();
    assert!(read_only.shrink(0).is_err());
}

/// Returns a mapping that has only one page of address space at first.
fn map_narrowly(file: &std::fs::File, watched: bool) -> FileNvm {
    let options = MapOptions { capacity: 1 << 40, first_bytes: Some(4096), watched, ..MapOptions::default() };
    FileNvm::map(file.try_clone().unwrap(), Path::new("app.db"), &options).unwrap()
}

#[test]
fn what_outgrows_its_addresses_is_mapped_anew_while_others_read() {
    const MOST: u64 = 4 << 20;
    let file = tempfile::tempfile().unwrap();
    let (nvm, other) = (map_narrowly(&file, false), map_narrowly(&file, false));
    nvm.grow(4096).unwrap();
    nvm.store(0, &[7; 4096]);
    let growing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut page = [0; 4096];
                    let mut reads = 0_u64;
                    while growing.load(Ordering::Acquire) || reads == 0 {
                        let last = nvm.len() - 4096;
                        nvm.read(last, &mut page);
                        // Bytes that have storage are zeros until something is stored there.
                        assert!(page.iter().all(|byte| [0, 7].contains(byte)));
                        nvm.read(0, &mut page);
                        assert_eq!(page, [7; 4096]);
                        reads += 1;
                    }
                })
            })
            .collect();
        let mut end = 4096;
        while end < MOST {
            nvm.restore(end, 4096).unwrap();
            nvm.store(end, &[7; 4096]);
            nvm.flush(end, 4096);
            end += 4096;
        }
        growing.store(false, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    // Another process learns the length.
    other.refresh_len(MOST).unwrap();
    for nvm in [&nvm, &other] {
        let mut all = vec![0; MOST as usize];
        nvm.read(0, &mut all);
        assert!(all.iter().all(|byte| *byte == 7));
        assert!(nvm.views.bytes() as u64 <= 2 * MOST && nvm.capacity() == 1 << 40);
    }
    other.store_u64(MOST - 8, 1);
    assert_eq!(nvm.load_u64(MOST - 8), 1);
}

#[test]
fn inv19_a_cut_is_found_behind_the_first_addresses_and_stays_found() {
    let file = tempfile::tempfile().unwrap();
    let nvm = map_narrowly(&file, true);
    nvm.grow(1 << 20).unwrap();
    nvm.store((1 << 20) - 8, &[7; 8]);
    assert_eq!(nvm.check(), Ok(()));
    file.set_len(4096).unwrap();
    let mut bytes = [7; 8];
    nvm.read((1 << 20) - 8, &mut bytes);
    assert_eq!(bytes, [0; 8]);
    assert!(nvm.check().is_err());
    nvm.grow(8 << 20).unwrap();
    assert!(nvm.check().is_err(), "what was there is gone, whatever is mapped now");
}
