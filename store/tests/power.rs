//! Power cuts on ext4. The test records every request to the disk. Then it mounts, recovers and checks what a power
//! cut may leave.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use common::crowd::{self, Ran, content};
use common::options;
use duralite_crashmodel::disk::{DiskEvent, DiskModel, Pages};
use duralite_histories::check;
use duralite_logdisk::{EventLog, FileSystemKind, ImageMounter, LogDisk, Volume, missing_rig};
use duralite_store::{Options, Scheme, Store};

const DISK_BYTES: u64 = 24 << 20;
const KIND: FileSystemKind = FileSystemKind::Ext4;
/// The number of images that the test makes for each chosen moment. The images differ in which unsynced writes have
/// reached the disk.
const IMAGES_PER_SYNC: u32 = 5;
const SCHEMES: [Scheme; 3] = [Scheme::Auto, Scheme::NvDisk, Scheme::NvDiskDecentralized];

fn small(scheme: Scheme) -> Options {
    let cache_bytes = Options::smallest_cache_bytes(4096);
    options(scheme).log_bytes(4 << 20).cache_bytes(cache_bytes).page_bytes(4096)
}

#[derive(Debug)]
enum Event {
    Disk(DiskEvent),
    /// The store and its tables have been made.
    Made,
    Acknowledged,
}

impl From<DiskEvent> for Event {
    fn from(event: DiskEvent) -> Self {
        Self::Disk(event)
    }
}

fn open(volume: &Path, scheme: Scheme) -> Store {
    Store::open(volume.join("store"), small(scheme)).unwrap()
}

/// Runs transactions on a disk of their own. Returns their history, and the requests that the disk received.
fn record(scheme: Scheme, seed: u64) -> (Ran, Vec<Event>) {
    let events = Arc::new(EventLog::<Event>::default());
    let disk = LogDisk::new(DISK_BYTES, events.clone()).unwrap();
    let volume = Volume::make(disk.file(), KIND, &[], "").unwrap();
    let ran = {
        let store = open(volume.path(), scheme);
        store.table("lists").unwrap();
        store.table("long").unwrap();
        events.push(Event::Made);
        let next = AtomicU64::new(0);
        crowd::run(&store, None, seed, 1 + seed % 3, 40, &|| {
            events.push(Event::Acknowledged);
            next.fetch_add(1, Ordering::SeqCst)
        })
    };
    volume.unmount().unwrap();
    (ran, events.take())
}

/// Checks what a power cut may leave, at up to `moments` random moments of a run. Each moment is just before a sync or
/// an acknowledgement. No image contains a torn block, because this test is not about how the file system handles torn
/// blocks. Returns how many images were checked.
fn explore(mounter: &mut ImageMounter, scheme: Scheme, seed: u64, moments: usize) -> u64 {
    let (ran, events) = record(scheme, seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let made = events.iter().position(|event| matches!(event, Event::Made)).unwrap();
    let mut syncs: Vec<usize> = (made..events.len())
        .filter(|at| matches!(events[*at], Event::Disk(DiskEvent::Sync) | Event::Acknowledged))
        .collect();
    random.shuffle(&mut syncs);
    let moments: BTreeSet<usize> = syncs.into_iter().take(moments).collect();
    let mut disk = DiskModel::new(Pages::new(DISK_BYTES));
    let (mut acknowledged, mut images) = (0, 0);
    for (at, event) in events.iter().enumerate() {
        let history = moments.contains(&at).then(|| ran.known(acknowledged));
        for nth in 0..if history.is_some() { IMAGES_PER_SYNC } else { 0 } {
            let image = disk.image_of_pages(nth, &mut random);
            let found = mounter.with_image(&image, |path| content(&open(path, scheme))).unwrap();
            let what = format!("{scheme:?}, seed {seed}, event {at}, image {nth}");
            check(history.as_deref().unwrap_or_default(), &found)
                .unwrap_or_else(|why| panic!("{what}: {why}"));
            images += 1;
        }
        match event {
            Event::Disk(event) => disk.apply(event),
            Event::Acknowledged => acknowledged += 1,
            Event::Made => {}
        }
    }
    images
}

/// Checks images on all processors, with seeds from `DURALITE_SEED` on. `STORE_CUTS` sets the number of images. The
/// default is small.
#[test]
fn inv30_what_was_acknowledged_survives_power_cuts_on_ext4() {
    if let Some(why) = missing_rig(KIND) {
        println!("skipped: {why}");
        let has_to = std::env::var_os("DURALITE_REQUIRE_RIGS").is_some_and(|value| value == "1");
        assert!(!(has_to && rustix::process::geteuid().is_root()), "DURALITE_REQUIRE_RIGS is set, and {why}");
        return;
    }
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let wanted = number("STORE_CUTS").unwrap_or(60);
    let first = number("DURALITE_SEED").unwrap_or(1);
    let begun = Instant::now();
    let (next, images) = (AtomicU64::new(first), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut mounter = ImageMounter::new(KIND, "");
                while images.load(Ordering::SeqCst) < wanted {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    let scheme = SCHEMES[(seed % 3) as usize];
                    let moments = (wanted / 20 / u64::from(IMAGES_PER_SYNC)).clamp(4, 60) as usize;
                    images.fetch_add(explore(&mut mounter, scheme, seed, moments), Ordering::SeqCst);
                }
            });
        }
    });
    let (images, runs) = (images.into_inner(), next.into_inner() - first);
    println!(
        "| store | power cuts on ext4 | {images} images in {runs} runs | {} |",
        begun.elapsed().as_secs()
    );
}
