//! The locks of a log's wal-index, as a connection has them.

use std::sync::Arc;

use duralite_locks::Holder;

use crate::attachment::Attachment;

/// A log whose wal-index a connection locks, and what it holds of those locks.
pub(crate) struct IndexLocks {
    pub attachment: Arc<Attachment>,
    pub holder: Arc<Holder>,
}

impl IndexLocks {
    pub fn of(attachment: &Arc<Attachment>) -> Self {
        Self { attachment: Arc::clone(attachment), holder: Arc::new(attachment.locks().holder()) }
    }
}
