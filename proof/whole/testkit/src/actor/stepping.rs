//! Runs statements, and kills its own process at the step that `die N` chooses.

use std::io;
use std::path::Path;
use std::sync::Arc;

use duralite_testkit::{die_at_step, step};
use duralite_wal::placement::{FileStep, Hook, hook};

use super::sql;

/// A hook that counts each write of a file beside a database (`app.db-archive` for example) as a step.
struct Beside;

impl Hook for Beside {
    fn step(&self, at: FileStep, _log: &Path) -> io::Result<()> {
        if at == FileStep::Record {
            step();
        }
        Ok(())
    }
}

/// Runs statements as [`serve`] does. Writes of the files beside the databases in `dir` also count as steps.
pub fn serve_beside(uri: &str, dir: &str) {
    let _hooked = hook(Path::new(dir), Arc::new(Beside));
    serve(uri);
}

pub fn serve(uri: &str) {
    sql::serve_or(uri, |line| {
        let number = line.strip_prefix("die ").and_then(|number| number.parse().ok());
        number.map(die_at_step).is_some()
    });
}
