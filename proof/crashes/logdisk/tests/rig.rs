//! Tests that what was synced survives on the rig, and that what was not synced may be lost.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use duralite_crashmodel::disk::{DiskEvent, DiskModel, PAGE, Pages, Piece};
use duralite_logdisk::{EventLog, FileSystemKind, ImageMounter, LogDisk, Volume};
use fastrand::Rng;

use common::{DISK, rig};

/// Memory that is aligned for direct I/O.
#[repr(align(4096))]
struct Aligned([u8; 2 * PAGE]);

/// Events of the disk, and marks that the test puts between them.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Disk(DiskEvent),
    Mark(&'static str),
}

impl From<DiskEvent> for Event {
    fn from(event: DiskEvent) -> Self {
        Self::Disk(event)
    }
}

fn random() -> Rng {
    let seed = std::env::var("SEED").ok().map_or(1, |text| text.parse().unwrap());
    println!("SEED={seed}");
    Rng::with_seed(seed)
}

/// Runs `work` on a disk with this file system, and returns the log.
fn record(
    kind: FileSystemKind,
    mount_options: &str,
    work: impl FnOnce(&Path, &EventLog<Event>),
) -> Vec<Event> {
    let log = Arc::new(EventLog::<Event>::default());
    let disk = LogDisk::new(DISK, log.clone()).unwrap();
    let volume = Volume::make(disk.file(), kind, &[], mount_options).unwrap();
    work(volume.path(), &log);
    log.take()
}

/// Writes a file, and syncs the file and its directory.
fn put(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    File::open(path.parent().unwrap()).unwrap().sync_all().unwrap();
}

/// At every event after the mark `from`, makes one crash image for each of `chances`. A chance says, in
/// tenths, how probable it is that a piece of an unsynced write has reached the medium.
fn crash_images(events: &[Event], from: &'static str, chances: &[u8], mut visit: impl FnMut(&Pages)) {
    let mut random = random();
    let mut model = DiskModel::new(Pages::new(DISK));
    let mut begun = false;
    for event in events {
        match event {
            Event::Disk(event) => model.apply(event),
            Event::Mark(mark) => begun |= *mark == from,
        }
        for &chance in chances.iter().filter(|_| begun) {
            let piece = if random.bool() { Piece::Sector } else { Piece::Page };
            visit(&model.crash_image(piece, |_| random.u8(..10) < chance));
        }
    }
    assert!(begun);
}

fn synced_data_survives(kind: FileSystemKind) {
    if !rig(kind) {
        return;
    }
    let content: Vec<u8> = (0..9000_u32).map(|byte| (byte % 251) as u8).collect();
    let events = record(kind, "", |dir, log| {
        put(&dir.join("synced"), &content);
        log.push(Event::Mark("synced"));
        // The crash may lose these unsynced writes. With them the file system's recovery has more work.
        for number in 0..8 {
            std::fs::write(dir.join(format!("unsynced{number}")), &content).unwrap();
        }
        put(&dir.join("other"), &content);
        std::fs::remove_file(dir.join("unsynced3")).unwrap();
        put(&dir.join("other"), &content[..100]);
    });
    let mut mounter = ImageMounter::new(kind, "");
    crash_images(&events, "synced", &[0, 3, 3, 5, 5, 5, 8, 8, 10], |image| {
        let read = mounter.with_image(image, |dir| std::fs::read(dir.join("synced")).unwrap()).unwrap();
        assert!(read == content);
    });
    let timings = mounter.timings();
    assert!(timings.images > 30, "{timings:?}");
    println!(
        "{}: {} images; each {:.1?} to restore, {:.1?} to mount, {:.1?} to check, {:.1?} to unmount",
        kind.name(),
        timings.images,
        timings.restore / timings.images,
        timings.mount / timings.images,
        timings.body / timings.images,
        timings.unmount / timings.images,
    );
}

#[test]
fn synced_data_survives_on_ext4() {
    synced_data_survives(FileSystemKind::Ext4);
}

#[test]
fn synced_data_survives_on_xfs() {
    synced_data_survives(FileSystemKind::Xfs);
}

#[test]
fn written_but_unsynced_data_may_be_lost_or_torn() {
    if !rig(FileSystemKind::Ext4) {
        return;
    }
    let events = record(FileSystemKind::Ext4, "", |dir, log| {
        put(&dir.join("file"), &[1; 2 * PAGE]);
        // Direct I/O writes to the device at once, but nothing asks the device to make the data durable.
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = File::options().write(true).custom_flags(direct).open(dir.join("file")).unwrap();
        file.write_all_at(&Aligned([2; 2 * PAGE]).0, 0).unwrap();
        log.push(Event::Mark("written"));
        log.push(Event::Mark("once more"));
    });
    let begun = events.iter().position(|event| *event == Event::Mark("written")).unwrap();
    let (mut lost, mut torn, mut there) = (0, 0, 0);
    let mut mounter = ImageMounter::new(FileSystemKind::Ext4, "");
    // The later events are left out. They include the unmounting, which syncs the data.
    crash_images(&events[..begun + 2], "written", &[0, 5, 5, 5, 10], |image| {
        let read = mounter.with_image(image, |dir| std::fs::read(dir.join("file")).unwrap()).unwrap();
        match read.iter().filter(|&&byte| byte == 2).count() {
            0 => lost += 1,
            some if some == read.len() => there += 1,
            _ => torn += 1,
        }
    });
    assert!(lost > 0 && torn > 0 && there > 0, "{lost} lost, {torn} torn, {there} there");
}

#[test]
fn without_barriers_synced_data_is_lost() {
    if !rig(FileSystemKind::Ext4) {
        return;
    }
    let events = record(FileSystemKind::Ext4, "nobarrier", |dir, log| {
        put(&dir.join("synced"), &[1; 9000]);
        log.push(Event::Mark("synced"));
        log.push(Event::Mark("once more"));
    });
    let begun = events.iter().position(|event| *event == Event::Mark("synced")).unwrap();
    let mut lost = 0;
    let mut mounter = ImageMounter::new(FileSystemKind::Ext4, "");
    crash_images(&events[..begun + 2], "synced", &[0, 3, 5, 8, 10], |image| {
        let read = mounter.with_image(image, |dir| std::fs::read(dir.join("synced")).unwrap_or_default());
        lost += u32::from(read.is_ok_and(|read| read != [1; 9000]));
    });
    assert!(lost > 0);
}

#[test]
fn events_are_in_the_order_of_the_requests() {
    for kind in [FileSystemKind::Ext4, FileSystemKind::Xfs] {
        if !rig(kind) {
            continue;
        }
        let patterns: Vec<Vec<u8>> = (0..20).map(|byte| vec![0x40 + byte; PAGE]).collect();
        let events = record(kind, "", |dir, log| {
            put(&dir.join("file"), &[1; PAGE]);
            let file = File::options().write(true).open(dir.join("file")).unwrap();
            for pattern in &patterns {
                log.push(Event::Mark("begin"));
                file.write_all_at(pattern, 0).unwrap();
                file.sync_data().unwrap();
                log.push(Event::Mark("end"));
            }
        });
        let mut calls = events.split(|event| *event == Event::Mark("begin")).skip(1);
        for pattern in &patterns {
            let call = calls.next().unwrap();
            let written = call.iter().position(|event| {
                matches!(event, Event::Disk(DiskEvent::Write { bytes, .. }) if bytes[..] == pattern[..])
            });
            let synced = call.iter().rposition(|event| *event == Event::Disk(DiskEvent::Sync));
            let end = call.iter().position(|event| *event == Event::Mark("end"));
            // The events after `end` come from the unmounting, so they do not show that the call itself
            // has synced.
            let synced_in_call = call[..end.unwrap()].contains(&Event::Disk(DiskEvent::Sync));
            assert!(written.is_some() && written < end && written < synced, "{written:?} {synced:?} {end:?}");
            assert!(synced_in_call);
        }
    }
}

#[test]
fn the_log_is_complete() {
    for kind in [FileSystemKind::Ext4, FileSystemKind::Xfs] {
        if !rig(kind) {
            continue;
        }
        let log = Arc::new(EventLog::<DiskEvent>::default());
        let disk = LogDisk::new(DISK, log.clone()).unwrap();
        let volume = Volume::make(disk.file(), kind, &[], "discard").unwrap();
        put(&volume.path().join("file"), &[1; 100_000]);
        // These calls ask the device to write zeros, and free blocks of the file system. With the mount
        // option `discard`, ext4 also discards these blocks on the device.
        let file = File::options().write(true).open(volume.path().join("file")).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::ZERO_RANGE, 5000, 50_000).unwrap();
        std::fs::write(volume.path().join("gone"), [1; 100_000]).unwrap();
        rustix::fs::syncfs(&file).unwrap();
        std::fs::remove_file(volume.path().join("gone")).unwrap();
        rustix::fs::syncfs(&file).unwrap();
        drop(file);
        volume.unmount().unwrap();
        let mut model = DiskModel::new(Pages::new(DISK));
        log.take().iter().for_each(|event| model.apply(event));
        assert!(model.crash_image(Piece::Sector, |_| true) == disk.content());
        // The file system that is on the disk after this can be mounted.
        let volume = Volume::mount_existing(disk.file(), kind, "ro").unwrap();
        assert_eq!(std::fs::read(volume.path().join("file")).unwrap().len(), 100_000);
        assert!(!volume.path().join("gone").exists());
    }
}

#[test]
fn each_image_is_what_is_mounted() {
    if !rig(FileSystemKind::Ext4) {
        return;
    }
    let events = record(FileSystemKind::Ext4, "", |dir, log| {
        for (number, mark) in ["a", "b", "c"].into_iter().enumerate() {
            put(&dir.join("file"), &vec![number as u8; 200_000]);
            log.push(Event::Mark(mark));
        }
    });
    let mut model = DiskModel::new(Pages::new(DISK));
    let mut images = Vec::new();
    for event in &events {
        match event {
            Event::Disk(event) => model.apply(event),
            Event::Mark(_) => images.push(model.durable().clone()),
        }
    }
    let mut random = random();
    let mut mounter = ImageMounter::new(FileSystemKind::Ext4, "");
    for _ in 0..100 {
        let number = random.usize(..images.len());
        let read = mounter.with_image(&images[number], |dir| {
            // A body must not see what the previous body left.
            assert!(!dir.join("left").exists());
            std::fs::write(dir.join("left"), [9; 300_000]).unwrap();
            let mut read = Vec::new();
            let mut file = File::options().read(true).write(true).open(dir.join("file")).unwrap();
            file.read_to_end(&mut read).unwrap();
            file.write_all_at(&[9; 200_000], 0).unwrap();
            read
        });
        assert!(read.unwrap() == vec![number as u8; 200_000]);
    }
}
