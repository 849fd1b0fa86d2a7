//! What a child process sees of its parent's state.

use super::*;

/// Runs the closure `child` in a child process. Makes the process with a bare `clone` if `bare` is set, else
/// with `fork`. The process's exit status says whether the closure returned `true`.
fn in_child(bare: bool, child: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child calls nothing that could need a lock of another thread, and then exits.
    let pid = unsafe {
        if bare {
            libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t
        } else {
            libc::fork()
        }
    };
    assert!(pid >= 0);
    if pid == 0 {
        let good = child();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) }
    }
    pid
}

fn succeeded(pid: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: waits for a child of this process, with a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status == 0
}

#[test]
fn a_child_is_another_process_however_it_was_made() {
    let own = ProcessId::current();
    for bare in [false, true] {
        let different = in_child(bare, || !own.is_current() && ProcessId::current() == ProcessId::current());
        assert!(succeeded(different));
    }
    assert!(own.is_current());
}

#[test]
fn a_lock_goes_with_the_process_although_a_child_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for bare in [false, true] {
        let file = OwnFile::open(|| File::create(&path)).unwrap();
        file.lock().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let child = in_child(bare, || {
            let _ = ProcessId::current();
            let mut byte = [0];
            // SAFETY: reads one byte into a local variable, from a pipe that the parent closes.
            let ended = unsafe { libc::read(reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1) };
            // The child can still read from its pipe: the parent's drop of `file` has closed no descriptor in
            // the child.
            ended == 1 && byte == [1]
        });
        drop(file);
        let other = File::open(&path).unwrap();
        let mut tries = 1000;
        // A child made by a bare clone closes the descriptor when it first asks for its `ProcessId`.
        while other.try_lock().is_err() && tries > 0 {
            tries -= 1;
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(tries > 0, "the child holds its parent's lock");
        std::io::Write::write_all(&mut &writer, &[1]).unwrap();
        assert!(succeeded(child));
    }
}

#[test]
fn a_lock_goes_with_the_last_handle_although_a_child_that_runs_no_handlers_has_the_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let file = OwnFile::open(|| File::create(&path)).unwrap();
    file.lock().unwrap();
    let handle = file.try_clone().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    // This child stands for a process that was started and has not executed its program yet.
    let child = in_child(true, || {
        let mut byte = [0];
        // SAFETY: reads one byte into a local variable.
        unsafe { libc::read(reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1) == 1 }
    });
    drop(file);
    let other = File::open(&path).unwrap();
    assert!(other.try_lock().is_err(), "there is one more handle");
    drop(handle);
    assert!(other.try_lock().is_ok());
    std::io::Write::write_all(&mut &writer, &[1]).unwrap();
    assert!(succeeded(child));
}

#[test]
fn state_begins_anew_in_a_child() {
    static STATE: PerProcess<AtomicU32> = PerProcess::new();
    STATE.get().store(7, Ordering::Relaxed);
    assert!(succeeded(in_child(false, || STATE.get().load(Ordering::Relaxed) == 0)));
    assert_eq!(STATE.get().load(Ordering::Relaxed), 7);
}

#[test]
fn many_descriptors_are_registered_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let files: Vec<_> = (0..600).map(|_| OwnFile::open(|| File::create(&path)).unwrap()).collect();
    let is_known = |file: &OwnFile| {
        let wanted = entry(file.as_raw_fd(), file.process.0);
        REGISTERED.places().any(|place| place.load(Ordering::Relaxed) == wanted)
    };
    assert!(files.iter().all(is_known));
    let numbers: Vec<_> = files.iter().map(|file| entry(file.as_raw_fd(), file.process.0)).collect();
    drop(files);
    // By now, other tests that run at the same time may have registered some of these numbers again, but not
    // all of them.
    let left = numbers
        .iter()
        .filter(|number| REGISTERED.places().any(|place| place.load(Ordering::Relaxed) == **number));
    assert!(left.count() < 600);
}

#[test]
fn a_fork_waits_for_work_that_the_application_does_not_know_of() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let (begun, wait) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        let _forks = ForksWait::begin();
        begun.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        DONE.store(true, Ordering::SeqCst);
    });
    wait.recv().unwrap();
    // The fork waited until the parent's thread had set `DONE`, so the child sees that. The child itself does
    // not wait for its parent's threads.
    let pid = in_child(false, || {
        drop(ForksWait::begin());
        DONE.load(Ordering::SeqCst)
    });
    assert!(succeeded(pid));
    worker.join().unwrap();
    drop(ForksWait::begin());
}
