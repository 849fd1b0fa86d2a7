//! Long work shows its progress on a terminal, and nowhere else.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A dump of one row, in two pieces.
const BEGIN: &[u8] = b"# duralite store dump 1\nmany\t1\tone\n";
const END: &[u8] = b"# rows: 1\n";

/// How long the test waits for text on the terminal. Half a second is usually enough, but a slow machine gets a minute.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Opens a pseudo-terminal, and returns its two ends. The program writes to the second end, and the test reads from the
/// first.
fn terminal() -> (File, File) {
    let first = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&first).unwrap();
    unlockpt(&first).unwrap();
    tcsetwinsize(&first, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&first, Vec::new()).unwrap();
    let second = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(first), second)
}

/// Starts `duralite store load STORE -`, which runs until its input ends.
fn loading(dir: &std::path::Path, stderr: Stdio) -> (Child, ChildStdin) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_duralite"))
        .args(["store", "load", dir.to_str().unwrap(), "-"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let stdin = child.stdin.take().unwrap();
    (child, stdin)
}

/// Reads the terminal until the text has appeared. Returns what it has read.
fn read_until(terminal: &mut File, text: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let mut bytes = [0; 256];
        let is_there = poll(&mut [PollFd::new(terminal, PollFlags::IN)], Some(&PATIENCE)).unwrap() > 0;
        assert!(is_there, "nothing more than {:?}", String::from_utf8_lossy(&seen));
        let count = terminal.read(&mut bytes).unwrap();
        seen.extend_from_slice(&bytes[..count]);
    }
    String::from_utf8(seen).unwrap()
}

/// Reads the rest, until reading fails because no program has the terminal open any more.
fn read_rest(terminal: &mut File) -> String {
    let (mut seen, mut bytes) = (Vec::new(), [0; 256]);
    while let Ok(count @ 1..) = terminal.read(&mut bytes) {
        seen.extend_from_slice(&bytes[..count]);
    }
    String::from_utf8(seen).unwrap()
}

#[test]
fn a_terminal_shows_long_work_and_forgets_it_at_its_end_or_at_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for is_whole in [true, false] {
        let (mut terminal, end) = terminal();
        let (child, mut stdin) = loading(&dir.path().join(format!("store {is_whole}")), Stdio::from(end));
        stdin.write_all(BEGIN).unwrap();
        read_until(&mut terminal, "loading");
        if is_whole {
            stdin.write_all(END).unwrap();
        }
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let rest = read_rest(&mut terminal);
        assert_eq!(output.status.success(), is_whole, "{rest}");
        // The program clears the line, and then prints only the error.
        let (_, after) = rest.rsplit_once("\x1b[2K").unwrap();
        assert!(!after.contains("loading"), "{rest:?}");
        assert_eq!(after.contains("cut off"), !is_whole, "{rest:?}");
        assert_eq!(output.stdout.is_empty(), !is_whole);
    }
}

#[test]
fn a_pipe_gets_nothing_however_long_it_takes() {
    let dir = tempfile::tempdir().unwrap();
    let (child, mut stdin) = loading(&dir.path().join("store"), Stdio::piped());
    stdin.write_all(BEGIN).unwrap();
    // On a terminal, progress appears after half a second.
    std::thread::sleep(Duration::from_millis(1500));
    stdin.write_all(END).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
