//! Traces of writes whose requests are known, on a loop device with ext4.
#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

use std::fs::File;
use std::path::Path;
use std::process::Command;

use duralite_iotrace::{Class, Trace, Volume, trace};
use duralite_testkit::LoopDisk;

fn dd(disk: &LoopDisk, file: &Path, arguments: &[&str]) -> Trace {
    let mut command = Command::new("dd");
    command.arg("if=/dev/zero").arg(format!("of={}", file.display())).arg("bs=4096").args(arguments);
    disk.settle();
    let (trace, status) =
        trace(&[disk.path().join("x.db")], command.stderr(std::process::Stdio::null())).unwrap();
    assert!(status.success());
    assert_eq!(trace.lost, 0);
    trace
}

#[test]
fn overwrites_of_a_log_are_counted_and_wake_no_journal_and_appends_do() {
    let Some(disk) = LoopDisk::new(64) else { return };
    let log = disk.path().join("x.db-wal");
    std::fs::write(&log, vec![1; 1 << 20]).unwrap();
    File::open(&log).unwrap().sync_all().unwrap();
    let overwrites = dd(&disk, &log, &["count=20", "oflag=direct", "conv=notrunc"]);
    let log_only = [(Class::Log, Volume { requests: 20, bytes: 20 * 4096 })];
    assert_eq!(overwrites.volumes().into_iter().collect::<Vec<_>>(), log_only);
    assert_eq!(overwrites.flushes, 0);

    let database = disk.path().join("x.db");
    let appends = dd(&disk, &database, &["count=20", "conv=fsync"]);
    let volumes = appends.volumes();
    assert_eq!(volumes[&Class::Database].bytes, 20 * 4096);
    assert!(volumes[&Class::Journal].bytes > 0 && appends.flushes > 0, "{volumes:?}");
}

#[test]
fn what_cannot_be_traced_is_said() {
    let shm = Path::new("/dev/shm/x.db");
    if rustix::process::geteuid().is_root() && Path::new("/dev/shm").is_dir() {
        let error = trace(&[shm.to_path_buf()], &mut Command::new("true")).unwrap_err();
        assert!(error.to_string().contains("no block device"), "{error}");
    }
    assert!(trace(&[], &mut Command::new("true")).is_err());
}
