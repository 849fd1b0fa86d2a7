//! Traces of known writes on a loop device with ext4. These tests need root.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use duralite_iotrace::{Class, JournalBy, Marker, Summary, Trace, Tracer, Volume, draw, trace};
use duralite_testkit::{LoopDisk, skip};

/// Only one test holds this lock at a time. Otherwise a test would see the writes that the kernel makes for
/// another test.
static ALONE: Mutex<()> = Mutex::new(());

/// Makes a disk that can be traced. If that is impossible, prints the reason and returns `None`.
fn disk() -> Option<LoopDisk> {
    let disk = LoopDisk::new(64)?;
    // This fails if the kernel has no tracepoints.
    match trace(&disk.path(), &[], || ()) {
        Ok(_) => Some(disk),
        Err(error) => {
            skip("cannot trace a loop device with ext4", &format!("{error:#}"));
            None
        }
    }
}

/// Makes a new file of zeros on the disk.
fn file(disk: &LoopDisk, name: &str, bytes: usize) -> PathBuf {
    let path = disk.path().join(name);
    fs::write(&path, vec![0; bytes]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    path
}

fn dd(file: &Path, arguments: &[&str]) {
    let mut command = Command::new("dd");
    command.arg("if=/dev/zero").arg(format!("of={}", file.display())).arg("bs=4096").args(arguments);
    assert!(command.stderr(Stdio::null()).status().unwrap().success());
}

fn volume(requests: u64, bytes: u64) -> Volume {
    Volume { requests, bytes }
}

fn check(trace: &Trace) -> Summary {
    let summary = trace.summary();
    assert_eq!(summary.lost, 0);
    assert_eq!(summary.classes.values().map(|volume| volume.bytes).sum::<u64>(), summary.total.bytes);
    assert_eq!(trace.journal_by_others, 0, "places and tasks agree on what is the journal's");
    let own = format!("duralite-{}", std::process::id());
    let instances = fs::read_dir("/sys/kernel/tracing/instances").unwrap();
    let left =
        instances.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(&own));
    assert_eq!(left.count(), 0, "trace instances left behind");
    summary
}

#[test]
fn overwrites_of_a_log_are_counted_exactly_and_wake_no_journal() {
    let _alone = ALONE.lock().unwrap();
    let Some(disk) = disk() else { return };
    let log = file(&disk, "x.db-wal", 1 << 20);
    let before = fs::metadata(&log).unwrap().modified().unwrap();
    let watch = [disk.path().join("x.db")];
    let (trace, ()) =
        trace(&disk.path(), &watch, || dd(&log, &["count=50", "oflag=direct", "conv=notrunc"])).unwrap();
    assert_ne!(fs::metadata(&log).unwrap().modified().unwrap(), before, "it did write");
    let summary = check(&trace);
    assert_eq!(summary.of(Class::Log), volume(50, 50 * 4096));
    assert_eq!(summary.of(Class::Journal), volume(0, 0));
    assert_eq!((summary.total, summary.flushes), (volume(50, 50 * 4096), 0));
    assert!(trace.writes.iter().all(|write| write.bytes == 4096 && write.took.is_some()));
    assert!(trace.writes.windows(2).all(|pair| pair[1].offset == pair[0].offset + 4096));
    assert_eq!(trace.files.len(), 1);
    assert_eq!(
        (trace.files[0].path.clone(), trace.files[0].volume),
        (log.canonicalize().unwrap(), summary.total)
    );
}

#[test]
fn appends_are_the_databases_and_the_journals() {
    let _alone = ALONE.lock().unwrap();
    let Some(disk) = disk() else { return };
    let database = disk.path().join("x.db");
    let (trace, ()) = trace(&disk.path(), std::slice::from_ref(&database), || {
        dd(&database, &["count=20", "conv=fdatasync"])
    })
    .unwrap();
    let summary = check(&trace);
    assert_eq!(summary.of(Class::Database).bytes, 20 * 4096);
    let journal = summary.of(Class::Journal);
    assert!(journal.bytes >= 3 * 4096 && summary.flushes > 0, "{summary:?}");
    assert_eq!((trace.journal_by, summary.of(Class::Log)), (JournalBy::Place, volume(0, 0)));
    let pictures = tempfile::tempdir().unwrap();
    for marker in [Marker::Square, Marker::Circle] {
        draw(&trace, "an append", marker, &pictures.path().join("append.svg")).unwrap();
    }
}

#[test]
fn what_is_not_written_out_is_not_written_out_by_looking() {
    let _alone = ALONE.lock().unwrap();
    let Some(disk) = disk() else { return };
    let database = file(&disk, "x.db", 4096);
    let (trace, ()) = trace(&disk.path(), std::slice::from_ref(&database), || {
        for seek in 1..9 {
            dd(&database, &["count=1", "conv=notrunc", &format!("seek={seek}")]);
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
    })
    .unwrap();
    assert_eq!(check(&trace).of(Class::Database), volume(0, 0));
}

#[test]
fn logs_that_live_for_a_moment_and_blocks_that_pass_on_are_told() {
    let _alone = ALONE.lock().unwrap();
    let Some(disk) = disk() else { return };
    let database = file(&disk, "x.db", 1 << 16);
    let journal = disk.path().join("x.db-journal");
    let rounds = 60;
    let (trace, ()) = trace(&disk.path(), std::slice::from_ref(&database), || {
        for _ in 0..rounds {
            fs::write(&journal, vec![1; 8192]).unwrap();
            File::open(&journal).unwrap().sync_data().unwrap();
            fs::remove_file(&journal).unwrap();
        }
    })
    .unwrap();
    let summary = check(&trace);
    assert_eq!(summary.of(Class::Log), volume(rounds, rounds * 8192));
    assert_eq!(summary.of(Class::Database), volume(0, 0));
}

#[test]
fn a_command_keeps_its_status_and_its_raw_lines() {
    let _alone = ALONE.lock().unwrap();
    let Some(disk) = disk() else { return };
    let elsewhere = disk.path().join("logs");
    fs::create_dir(&elsewhere).unwrap();
    let log = file(&disk, "logs/x.db-duralite", 1 << 16);
    let script = format!(
        "dd if=/dev/zero of={} bs=4096 count=3 oflag=direct conv=notrunc 2>&-; exit 7",
        log.display()
    );
    let tracer = || Tracer::new().database(&disk.path().join("x.db")).log(&elsewhere).keep_raw();
    let (trace, status) = tracer().command(Command::new("sh").args(["-c", &script])).unwrap();
    assert_eq!(status.code(), Some(7));
    assert_eq!(check(&trace).of(Class::Log), volume(3, 3 * 4096));
    assert!(trace.raw.is_some_and(|raw| raw.matches("block_rq_issue").count() == 3));
    let error = tracer().command(&mut Command::new("/does/not/exist")).unwrap_err();
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    assert_eq!(kind, Some(std::io::ErrorKind::NotFound));
    let error = tracer().database(Path::new("/proc/x.db")).command(&mut Command::new("true")).unwrap_err();
    assert!(error.to_string().contains("no block device"), "{error}");
}

#[test]
fn a_panic_leaves_no_instance_behind() {
    let _alone = ALONE.lock().unwrap();
    let Some(disk) = disk() else { return };
    let place = disk.path();
    let result = std::panic::catch_unwind(|| trace(&place, &[], || panic!("on purpose")));
    assert!(result.is_err());
    let (trace, ()) = trace(&place, &[], || ()).unwrap();
    check(&trace);
}

#[test]
fn what_cannot_be_traced_is_said() {
    if !rustix::process::geteuid().is_root() {
        let error = trace(Path::new("/"), &[], || ()).unwrap_err().to_string();
        return assert!(error.contains("root"), "{error}");
    }
    let error = trace(Path::new("/proc"), &[], || ()).unwrap_err().to_string();
    assert!(error.contains("no block device"), "{error}");
    let error = trace(Path::new("/does/not/exist"), &[], || ()).unwrap_err().to_string();
    assert!(error.contains("/does/not/exist"), "{error}");
}
