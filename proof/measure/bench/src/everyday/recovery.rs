//! Measures how long the first connection needs to recover after a process was killed with many commits in
//! the log.

use std::path::Path;

use anyhow::{Result, ensure};

use super::child;
use super::line::Line;
use super::scale::{self, NVWAL, WALDIO};
use super::tasks::{COMMIT, RECOVER, ROWS_EACH};
use crate::concurrent;
use crate::nvwal::Effort;
use crate::workload::median;

/// The number of commits in the log in a full run. The next constant is the minimum for a shorter run.
const COMMITS: f64 = 100_000.0;
const LEAST_COMMITS: u64 = 100;
const MIB: f64 = (1 << 20) as f64;
/// For a log of this size, recovery should seem instantaneous.
const PART_MIB: f64 = 64.0;

/// The recoveries of one engine.
#[derive(Default)]
struct Recoveries {
    milliseconds: Vec<f64>,
    log_mib: Vec<f64>,
}

/// A configuration to recover.
struct Subject {
    parameters: Option<&'static str>,
    /// Whether the benchmark first drops the files from the page cache, as a power failure would.
    is_cold: bool,
}

const STOCK: Subject = Subject { parameters: None, is_cold: false };
const STOCK_COLD: Subject = Subject { parameters: None, is_cold: true };
const ON_WALDIO: Subject = Subject { parameters: Some(WALDIO), is_cold: false };
const ON_NVWAL: Subject = Subject { parameters: Some(NVWAL), is_cold: false };

/// Drops the files of a directory from the page cache.
fn make_cold(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let file = std::fs::File::open(entry?.path())?;
        if file.metadata()?.is_file() {
            // The kernel does not drop dirty pages, so the file is synced first.
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

impl Recoveries {
    /// Lets a process commit `commits` times and kills it. Lets another process recover the database, and
    /// records the times.
    fn take(&mut self, dir: &Path, subject: &Subject, commits: u64) -> Result<()> {
        let own = tempfile::tempdir_in(dir)?;
        let uri = concurrent::fresh(own.path(), subject.parameters);
        let left = child::kill(COMMIT, &uri, &[commits])?;
        if subject.is_cold {
            make_cold(own.path())?;
        }
        let found = child::ask(RECOVER, &uri, &[])?;
        let ([log_bytes], [micros, rows]) = (&left[..], &found[..]) else {
            anyhow::bail!("the workers said {left:?} and {found:?}");
        };
        let wanted = (commits * ROWS_EACH) as f64;
        ensure!(*rows == wanted, "{uri}: {rows} rows of {wanted} survived the kill");
        self.milliseconds.push(micros / 1e3);
        self.log_mib.push(log_bytes / MIB);
        Ok(())
    }
}

/// Recovers on `waldio` and `nvwal`, and on stock SQLite for comparison.
///
/// # Errors
/// An error of SQLite or of a process, or a commit that was lost.
pub(super) fn measure(dir: &Path, effort: Effort) -> Result<Vec<Line>> {
    let commits = ((COMMITS * scale::part(effort)) as u64).max(LEAST_COMMITS);
    let mut recoveries: [Recoveries; 4] = Default::default();
    for _ in 0..scale::crowd_rounds(effort) {
        for (subject, recoveries) in [STOCK, STOCK_COLD, ON_WALDIO, ON_NVWAL].iter().zip(&mut recoveries) {
            recoveries.take(dir, subject, commits)?;
        }
    }
    let [stock, cold, waldio, nvwal] =
        recoveries.map(|recoveries| (median(recoveries.milliseconds), median(recoveries.log_mib)));
    let mut lines = Vec::new();
    for (engine, (milliseconds, mib)) in [("waldio", waldio), ("nvwal", nvwal)] {
        let what = format!("{engine}, recovery of {commits} commits of {ROWS_EACH} rows (ms)");
        lines.push(Line::beside(&what, milliseconds, "stock WAL, the same", stock.0, "at most 1.0x")?);
        if engine == "waldio" {
            let reference = "stock WAL, its files out of the page cache";
            lines.push(Line::beside(&what, milliseconds, reference, cold.0, "-")?);
        }
        let what = format!("{engine}, the log of these commits (MiB)");
        lines.push(Line::beside(&what, mib, "stock WAL, the same", stock.1, "-")?);
        let per_part = |milliseconds: f64, mib: f64| milliseconds / mib * PART_MIB;
        let what = format!("{engine}, recovery per {PART_MIB} MiB of log (ms)");
        let (own, its) = (per_part(milliseconds, mib), per_part(stock.0, stock.1));
        lines.push(Line::beside(&what, own, "stock WAL, the same", its, "at most 200")?);
    }
    Ok(lines)
}
