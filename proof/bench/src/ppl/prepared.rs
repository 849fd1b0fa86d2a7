//! The six workloads, ready to be run.

use std::path::Path;

use anyhow::Result;

use super::apps;
use super::generate::Workload;
use super::replay::Template;

/// The seed that all figures are measured with.
pub const SEED: u64 = 2015;

/// A workload and what its database begins with.
pub struct Prepared {
    /// What is run.
    pub workload: Workload,
    /// What it is run on.
    pub template: Template,
}

impl Prepared {
    /// All six, in the paper's order; files are in `dir` meanwhile.
    ///
    /// # Errors
    /// SQLite's and the file system's.
    pub fn all(dir: &Path) -> Result<Vec<Self>> {
        let each = |app: &super::app::App| {
            let workload = Workload::new(app, SEED);
            Ok(Self { template: Template::new(dir, &workload)?, workload })
        };
        apps::ALL.into_iter().map(each).collect()
    }

    /// The application.
    #[must_use]
    pub fn name(&self) -> String {
        self.workload.paper.name.to_owned()
    }
}
