//! What works on a log beside the commits: the thread that checkpoints and flushes, and the checkpoint that
//! starts an outgrown log over.

pub mod restart;
pub mod save;
pub mod worker;

use std::time::Duration;

use crate::database::waiting;
use crate::sqlite::connection::BusyWait;

/// Waits in the queue for WRITE where that is what is in the way, as any writer. While it waits for readers it has WRITE itself.
fn in_queue(polling: Duration, queued: Duration) -> BusyWait {
    BusyWait { polling, queued, queue: waiting::sleep }
}
