//! The six workloads, ready to run.

use std::path::Path;

use anyhow::Result;

use super::apps;
use super::generate::Workload;
use super::replay::Template;

/// The seed of all measured workloads.
pub const SEED: u64 = 2015;

/// A workload and the initial contents of its database.
pub struct Prepared {
    /// The transactions to run.
    pub workload: Workload,
    /// The initial database.
    pub template: Template,
}

impl Prepared {
    /// Prepares all six workloads, in the paper's order. Temporary files are in `dir`.
    ///
    /// # Errors
    /// An error of SQLite or of the file system.
    pub fn all(dir: &Path) -> Result<Vec<Self>> {
        let each = |app: &super::app::App| {
            let workload = Workload::new(app, SEED);
            Ok(Self { template: Template::new(dir, &workload)?, workload })
        };
        apps::ALL.into_iter().map(each).collect()
    }

    /// Returns the name of the application.
    #[must_use]
    pub fn name(&self) -> String {
        self.workload.paper.name.to_owned()
    }
}
