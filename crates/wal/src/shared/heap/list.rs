//! The list of a generation's blocks, as far as this process has followed the links.

use rustc_hash::FxHashSet;

/// Blocks in the order of the list. No block is in it twice: a list that returns to one of its own blocks is damaged. So to
/// follow a damaged list takes no more steps than the log has blocks with valid headers.
#[derive(Debug, Default)]
pub(crate) struct BlockList {
    order: Vec<u32>,
    members: FxHashSet<u32>,
}

impl BlockList {
    /// Appends a block. Returns `false`, and changes nothing, if the list has the block already.
    #[must_use]
    pub(crate) fn push(&mut self, block: u32) -> bool {
        let new = self.members.insert(block);
        if new {
            self.order.push(block);
        }
        new
    }

    /// Appends blocks that are known not to be in the list.
    pub(crate) fn extend(&mut self, blocks: &[u32]) {
        self.members.extend(blocks);
        self.order.extend(blocks);
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        self.members.contains(&block)
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.order
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
