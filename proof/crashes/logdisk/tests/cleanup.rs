//! Checks that nothing stays mounted and no loop device stays attached, whatever happens. These tests look
//! at all loop devices of their process, so they are in a program of their own.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod common;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use duralite_crashmodel::disk::DiskEvent;
use duralite_logdisk::{EventLog, FileSystemKind, ImageMounter, LogDisk, Volume};

use common::{DISK, rig};

// The file that a `body` leaves open.
thread_local! {
    static OPEN: std::cell::Cell<Option<File>> = const { std::cell::Cell::new(None) };
}

/// Returns whether something is mounted on this directory.
fn mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// Returns the loop devices whose backing file's name contains `part`.
fn attached(part: &str) -> Vec<String> {
    let devices = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let backing = |device: &Path| std::fs::read_to_string(device.join("loop/backing_file"));
    let attached = devices.filter(|device| backing(device).is_ok_and(|name| name.contains(part)));
    attached.map(|device| device.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn no_volume_is_left_behind() {
    if !rig(FileSystemKind::Ext4) {
        return;
    }
    for panics in [false, true] {
        let mut dirs = Vec::new();
        let mut file = String::new();
        let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let log = Arc::new(EventLog::<DiskEvent>::default());
            let disk = LogDisk::new(DISK, log).unwrap();
            let volume = Volume::make(disk.file(), FileSystemKind::Ext4, &[], "").unwrap();
            file = disk.file().to_str().unwrap().to_owned();
            dirs = vec![disk.file().parent().unwrap().to_owned(), volume.path().to_owned()];
            assert!(dirs.iter().all(|dir| mounted(dir)));
            assert_eq!(attached(&file).len(), 1);
            assert!(!panics, "as the test wants it");
        }));
        assert_eq!(work.is_err(), panics);
        assert!(dirs.len() == 2 && dirs.iter().all(|dir| !dir.exists() && !mounted(dir)));
        assert!(attached(&file).is_empty());
    }
}

#[test]
fn no_image_is_left_behind() {
    if !rig(FileSystemKind::Ext4) {
        return;
    }
    let disk = LogDisk::new(DISK, Arc::new(EventLog::<DiskEvent>::default())).unwrap();
    drop(Volume::make(disk.file(), FileSystemKind::Ext4, &[], "").unwrap());
    let image = &disk.content();
    let mut seen = Vec::new();
    let mut mounter = ImageMounter::new(FileSystemKind::Ext4, "");
    let media = format!("logdisk-{}", std::process::id());
    let mut see = |dir: &Path| {
        assert!(mounted(dir));
        assert!(!attached(&media).is_empty());
        seen.push(dir.to_owned());
    };
    mounter.with_image(image, &mut see).unwrap();
    let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        mounter.with_image(image, |dir| {
            see(dir);
            panic!("as the test wants it");
        })
    }));
    assert!(work.is_err());
    // A file that stays open keeps its image mounted, but the next image has a mount of its own.
    let open = mounter.with_image(image, |dir| {
        see(dir);
        OPEN.set(Some(File::create(dir.join("open")).unwrap()));
    });
    assert!(open.is_err());
    mounter.with_image(image, |dir| assert!(!dir.join("open").exists())).unwrap();
    mounter.with_image(image, &mut see).unwrap();
    drop(mounter);
    drop(OPEN.take());
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|dir| !dir.exists() && !mounted(dir)));
    assert!(attached(&media).is_empty());
}
