//! The list of blocks of a generation, as this process has followed it.

use rustc_hash::FxHashSet;

/// Blocks in order. None is in it twice: a list that comes back to itself is damage, and following
/// it takes no longer than there are blocks with something in them.
#[derive(Debug, Default)]
pub(crate) struct BlockList {
    order: Vec<u32>,
    members: FxHashSet<u32>,
}

impl BlockList {
    /// Appends a block; `false`, and nothing done, when the list has it already.
    #[must_use]
    pub(crate) fn push(&mut self, block: u32) -> bool {
        let new = self.members.insert(block);
        if new {
            self.order.push(block);
        }
        new
    }

    /// Appends blocks that are known not to be in it.
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
