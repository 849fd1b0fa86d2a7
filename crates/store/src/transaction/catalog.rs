//! Tables are found and made.

use std::sync::Arc;

use duralite_logfmt::store::{Change, PageId, PageKind, Undo, Value, blank, leaf_cell, leaf_value};

use super::Transaction;
use crate::error::Error;
use crate::locks::{Key, Mode, Target};
use crate::space::{GivenPage, Purpose};

impl Transaction {
    /// The root of the table of this name, which is made if there is none.
    pub(crate) fn table_root(&mut self, name: &str) -> Result<PageId, Error> {
        self.check()?;
        let catalog = self.engine().catalog();
        let key = name.as_bytes();
        self.lock(catalog, &Target::Row(catalog, Key::from(key)), Mode::Exclusive)?;
        if let Some((cell, _)) = self.engine().tree(catalog).get(key)? {
            let damaged = || Error::corrupt("the list of tables");
            return match leaf_value(&cell).map_err(|_| damaged())? {
                Value::Inline(root) => Ok(u64::from_le_bytes(root.try_into().map_err(|_| damaged())?)),
                Value::Long { .. } => Err(damaged()),
            };
        }
        self.changing(|tx| {
            let root = tx.make_root()?;
            tx.put_cell(catalog, key, &leaf_cell(key, Value::Inline(&root.to_le_bytes())))?;
            Ok(root)
        })
    }

    /// An empty tree, which is given back if the transaction is.
    fn make_root(&mut self) -> Result<PageId, Error> {
        let kept = self.admit(0)?;
        let undoable = Arc::clone(self.undoable.get_or_insert_default());
        let busy = undoable.busy.lock();
        let made = self.step_for_root();
        self.admitted(kept);
        let (root, logged, undo) = made?;
        self.add_step(logged, undo);
        drop(busy);
        Ok(root)
    }

    fn step_for_root(&self) -> Result<(PageId, crate::pager::Logged, Vec<u8>), Error> {
        let engine = self.engine();
        let mut given = engine.space.find(&engine.pager, 1, Purpose::Do)?;
        let GivenPage { id: root, set, .. } = given.pages[0];
        let mut page = engine.pager.pool.make(root)?;
        let mut image = page.bytes().to_vec();
        blank(&mut image, PageKind::Leaf, 0);
        let mut undo = Vec::new();
        Undo::Page { page: root }.encode(&mut undo);
        let changes = [(0, set), (1, Change::image_of(&image))];
        let logged =
            engine.pager.step(self.author(), &undo, &mut [&mut given.maps[0], &mut page], &changes)?;
        given.taken();
        Ok((root, logged, undo))
    }
}
