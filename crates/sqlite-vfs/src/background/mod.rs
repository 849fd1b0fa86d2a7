//! Work on a log beside the commits: the thread that checkpoints and flushes, and the checkpoint that starts
//! an outgrown log over.

pub mod restart;
pub mod save;
pub mod worker;

use std::time::Duration;

use crate::database::waiting;
use crate::sqlite::connection::BusyWait;

/// Waits as any writer does, in the queue for WRITE, if that lock is in the way. If readers are in the way,
/// the waiting connection has WRITE itself.
fn in_queue(polling: Duration, queued: Duration) -> BusyWait {
    BusyWait { polling, queued, queue: waiting::sleep }
}
