//! The locks of a log's wal-index, for one connection.

use std::sync::Arc;

use duralite_locks::Holder;

use crate::attachment::Attachment;

/// A log whose wal-index a connection locks, and the locks that the connection holds.
pub(crate) struct IndexLocks {
    pub attachment: Arc<Attachment>,
    pub holder: Arc<Holder>,
}

impl IndexLocks {
    pub fn of(attachment: &Arc<Attachment>) -> Self {
        Self { attachment: Arc::clone(attachment), holder: Arc::new(attachment.locks().holder()) }
    }
}
