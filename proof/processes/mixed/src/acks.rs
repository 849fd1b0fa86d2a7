//! Records which commits of each writer were acknowledged.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, Result};

/// The number of a database, and the number of a writer in that database.
pub(crate) type Place = (usize, i64);

/// Appends the acknowledgements of one process to a file, and reads those of all processes from the file.
pub(crate) struct Acks {
    file: duralite_testkit::Acks<3>,
    newest: HashMap<Place, i64>,
}

impl Acks {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = duralite_testkit::Acks::open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, newest: HashMap::new() })
    }

    /// Records that commit `seq` of a writer was acknowledged.
    pub(crate) fn record(&mut self, (database, writer): Place, seq: i64) -> Result<()> {
        Ok(self.file.record([i64::try_from(database)?, writer, seq])?)
    }

    /// Returns, for each writer, the newest of its commits that was acknowledged before this call.
    pub(crate) fn refresh(&mut self) -> Result<&HashMap<Place, i64>> {
        for [database, writer, seq] in self.file.refresh()? {
            let newest = self.newest.entry((usize::try_from(database)?, writer)).or_default();
            *newest = seq.max(*newest);
        }
        Ok(&self.newest)
    }
}
