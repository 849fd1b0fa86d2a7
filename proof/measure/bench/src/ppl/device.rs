//! Table 4: the pages that SQLite and the file system write to the device.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use duralite_iotrace::{Class, Summary, Tracer};
use duralite_testkit::LoopDisk;

use super::config::{Config, InPaper, Latency, POLICY_NOTE};
use super::io::Bytes;
use super::prepared::Prepared;
use super::replay::{Database, run};
use crate::disk::{traceable, traced};
use crate::nvwal::Effort;
use crate::report::Table;

const PAGE: u64 = 4096;
/// The size of the loop device, in MiB.
const DISK_MIB: u64 = 256;

/// The number of pages written from the start of a workload until its database was closed and everything was
/// synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pages {
    /// The number of pages passed to the kernel by system calls.
    asked: u64,
    /// The pages that reached the device, if they could be traced.
    device: Option<OnDevice>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OnDevice {
    database: u64,
    log: u64,
    file_system: u64,
}

impl OnDevice {
    fn new(summary: &Summary) -> Self {
        let pages = |classes: &[Class]| {
            classes.iter().map(|class| summary.of(*class).bytes).sum::<u64>().div_ceil(PAGE)
        };
        Self {
            database: pages(&[Class::Database]),
            log: pages(&[Class::Log]),
            file_system: pages(&[Class::Journal, Class::Other]),
        }
    }
}

impl Pages {
    /// Returns the number of pages that SQLite wrote to the database and its logs.
    fn by_sqlite(&self) -> u64 {
        self.device.map_or(self.asked, |device| device.database + device.log)
    }

    /// Returns the number of pages that SQLite and the file system wrote, if they could be traced.
    fn all(&self) -> Option<u64> {
        self.device.map(|device| device.database + device.log + device.file_system)
    }
}

/// Runs a workload, closes its database, and syncs the file system. Returns the number of pages that were
/// passed to the kernel.
fn complete(database: &Database, prepared: &Prepared) -> Result<u64> {
    let before = Bytes::now()?;
    let conn = database.open()?;
    run(&conn, &prepared.workload)?;
    drop(conn);
    let asked = before.since()?.written.div_ceil(PAGE);
    let dir = database.path().parent().unwrap_or(Path::new("."));
    rustix::fs::syncfs(File::open(dir)?)?;
    Ok(asked)
}

/// Counts the pages that a workload writes. Traces them on the loop device. If there is none, counts only
/// the pages that are passed to the kernel.
fn count(dir: &Path, disk: Option<&LoopDisk>, prepared: &Prepared, config: &Config) -> Result<Pages> {
    let Some(disk) = disk else {
        let database = Database::new(dir, &prepared.template, config)?;
        return Ok(Pages { asked: complete(&database, prepared)?, device: None });
    };
    let database = Database::new(&disk.path(), &prepared.template, config)?;
    let tracer = Tracer::at(&disk.path()).database(database.path());
    let (trace, asked) = traced(tracer, || complete(&database, prepared))?;
    Ok(Pages { asked, device: Some(OnDevice::new(&trace.summary())) })
}

const COLUMNS: [&str; 14] = [
    "workload",
    "mode",
    "handed over",
    "database",
    "log",
    "by SQLite",
    "by the file system",
    "WAL / this",
    "with the file system's",
    "nvwal / this",
    "paper: by SQLite",
    "paper: file system",
    "paper: WAL / this",
    "paper: with the file system's",
];

/// Measures table 4: the pages written to the device.
///
/// # Errors
/// An error of SQLite or of the tracer.
pub fn table4(dir: &Path, _: Effort) -> Result<Table> {
    let mut table =
        Table::new("ppl_table4", "SQLite/PPL table 4: pages of 4 KiB written to the device", &COLUMNS);
    let disk = traceable(DISK_MIB);
    let mut configs = vec![Config::delete(), Config::wal(), Config::nvwal(Latency::None)];
    configs.extend(Config::sectors(Latency::None));
    configs.extend(Config::of_paper(Latency::None));
    for prepared in Prepared::all(dir)? {
        let counts: Vec<Pages> = (configs.iter())
            .map(|config| count(dir, disk.as_ref(), &prepared, config))
            .collect::<Result<_>>()?;
        let of = |wanted: InPaper| {
            let found = configs.iter().zip(&counts).find(|(config, _)| config.in_paper == wanted);
            found.map(|(_, pages)| *pages).context("a mode that others are compared with is counted")
        };
        let bases = (of(InPaper::Wal)?, of(InPaper::Absent)?);
        for (config, pages) in configs.iter().zip(&counts) {
            table.row(row(&prepared, config, pages, &bases));
        }
    }
    table.note = note(disk.is_some());
    Ok(table)
}

/// Makes a row of the table. The last argument holds the pages of WAL and of `nvwal`. The row compares its
/// own pages with them.
fn row(prepared: &Prepared, config: &Config, pages: &Pages, (wal, nvwal): &(Pages, Pages)) -> Vec<String> {
    let ratio = |wal: u64, this: u64| format!("{:.2}x", wal as f64 / this.max(1) as f64);
    let none = || "-".to_owned();
    let of_device = |part: fn(&OnDevice) -> u64| {
        pages.device.as_ref().map_or_else(none, |device| part(device).to_string())
    };
    let [delete, paper_wal, ppl] = prepared.workload.paper.written;
    let paper = match config.in_paper {
        InPaper::Delete => Some(delete),
        InPaper::Wal => Some(paper_wal),
        InPaper::Ppl => Some(ppl),
        InPaper::Absent => None,
    };
    let of_paper = |text: &dyn Fn((u32, u32)) -> String| paper.map_or_else(none, text);
    vec![
        prepared.name(),
        config.name.clone(),
        pages.asked.to_string(),
        of_device(|device| device.database),
        of_device(|device| device.log),
        pages.by_sqlite().to_string(),
        of_device(|device| device.file_system),
        ratio(wal.by_sqlite(), pages.by_sqlite()),
        wal.all().zip(pages.all()).map_or_else(none, |(wal, this)| ratio(wal, this)),
        ratio(nvwal.by_sqlite(), pages.by_sqlite()),
        of_paper(&|(sqlite, _)| sqlite.to_string()),
        of_paper(&|(_, system)| system.to_string()),
        of_paper(&|(sqlite, _)| ratio(paper_wal.0.into(), sqlite.into())),
        of_paper(&|(sqlite, system)| ratio((paper_wal.0 + paper_wal.1).into(), (sqlite + system).into())),
    ]
}

fn note(traced: bool) -> String {
    let how = if traced {
        "From the block trace of a loop device with ext4, from opening to closing and a sync of the whole \
         file system; `handed over` counts the pages that SQLite and Duralite wrote with system calls."
    } else {
        "Tracing was not possible (it needs root, loop devices, mkfs.ext4 and tracefs): only the pages \
         written with system calls are counted, without the file system's own pages."
    };
    format!(
        "{how} One run; the database and a log in NVRAM as in figure 6, with the same limits and automatic \
         checkpoints for all. SQLite's own log has frames of 4,120 bytes, which touch two pages of the \
         device where the paper counts one. The paper's file system wrote more in WAL mode: here SQLite \
         syncs with fdatasync and, from the first checkpoint on, overwrites its log in place, which changes \
         only times in the metadata. Times are written every few seconds, so a busy machine writes more of \
         them. `nvwal` writes each changed page once per checkpoint, and once at the close. {POLICY_NOTE}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ppl::apps;
    use crate::ppl::census::Census;
    use crate::ppl::generate::Workload;
    use crate::ppl::replay::Template;

    #[test]
    fn what_is_written_on_closing_is_counted_as_the_databases() {
        let Some(disk) = traceable(DISK_MIB) else { return };
        let dir = tempfile::tempdir().unwrap();
        let workload = Workload::new(apps::ALL[5], 1);
        let different = Census::of(dir.path(), &workload).unwrap().different_pages as u64;
        let prepared = Prepared { template: Template::new(dir.path(), &workload).unwrap(), workload };
        let pages = count(dir.path(), Some(&disk), &prepared, &Config::nvwal(Latency::None)).unwrap();
        let device = pages.device.unwrap();
        assert_eq!(device.log, 0, "its log is elsewhere: {pages:?}");
        assert!(device.database >= different, "{different} different pages: {pages:?}");
        assert!(pages.asked >= different, "{different} different pages: {pages:?}");
        assert!(device.file_system > 0, "{pages:?}");
        let wal = count(dir.path(), Some(&disk), &prepared, &Config::wal()).unwrap();
        assert!(wal.device.unwrap().log > device.database, "{wal:?}");
    }
}
