//! How far long work has come, for whoever looks at a terminal; elsewhere nothing is written.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Work that is shorter says nothing.
const PATIENCE: Duration = Duration::from_millis(500);
const EVERY: Duration = Duration::from_millis(200);

/// Does work, and says meanwhile on a terminal what it is, for how long it has been going on, and how far it is.
pub fn with<T>(what: &str, how_far: impl Fn() -> String + Send, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, is_done) = channel::<()>();
        scope.spawn(move || tell(what, &how_far, &is_done));
        let result = work();
        drop(done);
        result
    })
}

fn tell(what: &str, how_far: &dyn Fn() -> String, is_done: &Receiver<()>) {
    let begun = Instant::now();
    let mut wait = PATIENCE;
    let mut is_shown = false;
    while is_done.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        let _ = write!(std::io::stderr(), "\r\x1b[K{what}: {} s {}", begun.elapsed().as_secs(), how_far());
        (wait, is_shown) = (EVERY, true);
    }
    if is_shown {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}
