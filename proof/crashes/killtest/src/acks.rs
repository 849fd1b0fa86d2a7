//! Records which transaction was acknowledged to which process.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// The size of an acknowledgement, in bytes.
pub(crate) const RECORD: u64 = duralite_testkit::Acks::<2>::RECORD_BYTES as u64;
/// If more acknowledgements than this are in memory, the process forgets old ones.
const MANY: usize = 1 << 14;

/// The file of acknowledgements. Each process appends its own to the end.
pub(crate) struct Acks(duralite_testkit::Acks<2>);

impl Acks {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = duralite_testkit::Acks::open(path);
        Ok(Self(file.with_context(|| format!("cannot open {}", path.display()))?))
    }

    /// Acknowledges transaction `n`, made by process `id`.
    pub(crate) fn record(&mut self, n: i64, id: u64) -> Result<()> {
        Ok(self.0.record([n, id.cast_signed()])?)
    }
}

/// The acknowledgements read so far.
pub(crate) struct Acknowledged {
    file: Acks,
    owners: HashMap<i64, u64>,
    newest: i64,
}

impl Acknowledged {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(Self { file: Acks::open(path)?, owners: HashMap::new(), newest: 0 })
    }

    /// Reads the new acknowledgements. Returns the lowest transaction number among them.
    pub(crate) fn refresh(&mut self) -> Result<Option<i64>> {
        let new = self.file.0.refresh()?;
        for [n, id] in &new {
            let id = id.cast_unsigned();
            if let Some(other) = self.owners.insert(*n, id).filter(|other| *other != id) {
                bail!("transaction {n} was acknowledged to process {other} and to process {id}");
            }
            self.newest = self.newest.max(*n);
        }
        Ok(new.iter().map(|[n, _]| *n).min())
    }

    pub(crate) fn newest(&self) -> i64 {
        self.newest
    }

    /// Returns the process to which transaction `n` was acknowledged, if it was acknowledged.
    pub(crate) fn owner(&self, n: i64) -> Option<u64> {
        self.owners.get(&n).copied()
    }

    /// Forgets acknowledgements of transactions before `low`, if there are many.
    pub(crate) fn forget_before(&mut self, low: i64) {
        if self.owners.len() > MANY {
            self.owners.retain(|n, _| *n >= low);
        }
    }
}
