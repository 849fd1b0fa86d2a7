//! Each case runs in a process of its own: this test program, started again.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, exit};

use super::*;
use crate::{FileNvm, MapOptions, MediumError, Nvm};

const CASE: &str = "DURALITE_TEST_CUT";
const LEN: u64 = 1 << 20;

fn run(case: &str) -> ExitStatus {
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new(test);
    command.args(["--exact", "cut::tests::child", "--nocapture", "--test-threads=1"]).env(CASE, case);
    command.output().unwrap().status
}

#[test]
fn inv19_a_cut_ends_in_an_error_and_the_rest_of_the_process_is_as_it_was() {
    assert_eq!(run("survives").code(), Some(0));
    assert_eq!(run("survives on a thread with a signal stack").code(), Some(0));
    assert_eq!(run("a child").code(), Some(0));
}

#[test]
fn inv19_what_is_not_ours_is_as_without_us() {
    assert_eq!(run("not watched").signal(), Some(libc::SIGBUS));
    assert_eq!(run("forgotten").signal(), Some(libc::SIGBUS));
    assert_eq!(run("raised").signal(), Some(libc::SIGBUS));
    assert_eq!(run("raised and ignored").code(), Some(0));
    assert_eq!(run("not watched and ignored").signal(), Some(libc::SIGBUS));
}

#[test]
fn handlers_that_were_there_are_called_as_they_were_installed() {
    assert_eq!(run("handler with information").code(), Some(42));
    assert_eq!(run("plain handler").code(), Some(43));
}

fn map(watched: bool) -> (std::fs::File, FileNvm) {
    let file = tempfile::tempfile().unwrap();
    let options = MapOptions { capacity: 64 << 30, watched, ..MapOptions::default() };
    let nvm = FileNvm::map(file.try_clone().unwrap(), Path::new("app.db"), &options).unwrap();
    nvm.grow(LEN).unwrap();
    (file, nvm)
}

fn read(nvm: &FileNvm, at: u64) -> u8 {
    let mut byte = [9];
    nvm.read(at, &mut byte);
    byte[0]
}

fn survives() {
    let (file, nvm) = map(true);
    let (_, other) = map(true);
    nvm.store(0, &[5]);
    nvm.store(LEN - 1, &[6]);
    other.store(LEN - 1, &[7]);
    file.set_len(LEN / 2).unwrap();
    assert_eq!((read(&nvm, 0), nvm.check()), (5, Ok(())));
    assert_eq!(read(&nvm, LEN - 1), 0);
    assert_eq!(nvm.check(), Err(MediumError::Cut { path: "app.db".into() }));
    nvm.store(LEN - 5, &[1]);
    nvm.stream(LEN / 2, &[1; 128]);
    nvm.flush(LEN / 2, LEN / 2);
    assert_eq!((read(&nvm, 0), read(&other, LEN - 1), other.check()), (5, 7, Ok(())));
    drop(nvm);
    // The next mapping uses the entry that the dropped mapping had in the list of watched mappings.
    let (file, nvm) = map(true);
    assert_eq!(nvm.check(), Ok(()));
    file.set_len(0).unwrap();
    nvm.store(7, &[1]);
    assert!(nvm.check().is_err());
    // Make more mappings than fit into one chunk of the list.
    let many: Vec<_> = (0..70).map(|_| map(true)).collect();
    many[69].0.set_len(0).unwrap();
    assert_eq!((read(&many[69].1, 0), many[68].1.check()), (0, Ok(())));
    assert!(many[69].1.check().is_err());
}

fn die_of(nvm: &FileNvm, file: &std::fs::File) {
    file.set_len(0).unwrap();
    read(nvm, LEN - 1);
}

extern "C" fn with_information(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid pointer, and the union has the address of a fault.
    let is_fault = unsafe { (*info).si_code == libc::BUS_ADRERR && !(*info).si_addr().is_null() };
    // SAFETY: ends the process.
    unsafe { libc::_exit(if is_fault { 42 } else { 1 }) };
}

extern "C" fn plain(signal: c_int) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(if signal == libc::SIGBUS { 43 } else { 1 }) };
}

fn set_action(action: usize, flags: c_int) {
    // SAFETY: the action is complete, and zeros are an empty mask.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = action;
        new.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const new, ptr::null_mut()), 0);
    }
}

/// Makes a child process. The child maps a file, unwatched, at the address of a mapping that the parent
/// watches. An access to that mapping then ends the child.
fn in_a_child() {
    let (_file, nvm) = map(true);
    // SAFETY: the child makes one mapping and is ended by a signal, or exits without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (file, unwatched) = map(false);
        die_of(&unwatched, &file);
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS);
    assert_eq!(nvm.check(), Ok(()));
}

#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let default = libc::SIG_DFL;
    match &*case {
        "survives" => survives(),
        "survives on a thread with a signal stack" => std::thread::spawn(survives).join().unwrap(),
        "a child" => {
            set_action(default, 0);
            in_a_child();
        }
        "not watched" | "forgotten" => {
            set_action(default, 0);
            drop(map(true));
            let (file, nvm) = map(false);
            die_of(&nvm, &file);
        }
        "not watched and ignored" => {
            set_action(libc::SIG_IGN, 0);
            drop(map(true));
            let (file, nvm) = map(false);
            die_of(&nvm, &file);
        }
        "raised" | "raised and ignored" => {
            set_action(if case == "raised" { default } else { libc::SIG_IGN }, 0);
            let _watched = map(true);
            // SAFETY: sends a signal.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        "handler with information" | "plain handler" => {
            let information: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = with_information;
            let plain: extern "C" fn(c_int) = plain;
            if case == "plain handler" {
                set_action(plain as *const () as usize, 0);
            } else {
                set_action(information as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
            }
            survives();
            let (file, nvm) = map(false);
            die_of(&nvm, &file);
        }
        other => panic!("{other}"),
    }
    exit(0);
}
