//! Figure 7: how the size of log sectors affects the run time.

use std::path::Path;

use anyhow::Result;

use super::config::{Config, InPaper, Latency, POLICY_NOTE, pcm_note};
use super::prepared::Prepared;
use super::timing::{ROUNDS, flash_note, time};
use crate::nvwal::Effort;
use crate::report::{Table, number};

/// Measures figure 7: how the run time depends on the size of log sectors, with files on this disk. Also calculates
/// the times for the flash device of the paper. Returns no table if this build lacks `ppl`, the engine that has
/// sectors.
///
/// # Errors
/// An error of SQLite.
pub fn figure7(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let of_paper: Vec<Config> =
        [Latency::None, Latency::Pcm].into_iter().flat_map(Config::of_paper).collect();
    if of_paper.is_empty() {
        return Ok(Vec::new());
    }
    let by_default = Config::sectors(Latency::None).into_iter().filter(Config::is_with_pool);
    let configs: Vec<Config> =
        [Config::wal(), Config::nvwal(Latency::None)].into_iter().chain(of_paper).chain(by_default).collect();
    let rounds = effort.rounds.min(ROUNDS);
    let mut table = Table::new(
        "ppl_figure7",
        "SQLite/PPL figure 7: size of a log sector",
        &["workload", "mode", "ms", "transactions/s", "WAL / this"],
    );
    let mut flash = Table::new(
        "ppl_figure7_flash",
        "SQLite/PPL figure 7: size of a log sector, the database on the paper's flash",
        &["workload", "mode", "pages written", "ms", "WAL / this"],
    );
    for prepared in Prepared::all(dir)? {
        let timings = time(dir, &prepared, &configs, rounds)?;
        for timing in &timings {
            table.row([
                prepared.name(),
                timing.config.name.clone(),
                number(timing.ms),
                timing.per_second(&prepared),
                timing.times(InPaper::Wal, &timings),
            ]);
            let names = [prepared.name(), timing.config.name.clone()];
            flash.row(names.into_iter().chain(timing.on_flash(&timings)));
        }
    }
    table.note = format!(
        "Medians of {rounds} rounds. {POLICY_NOTE} In the paper, the time falls on every workload when sectors become larger, but \
         hardly beyond 8 KiB, except on AndroBench. A larger sector saves merges, each of which writes a page. This disk writes a \
         page in a tenth of a millisecond, so the savings are small beside SQLite's own time; the next table has the paper's \
         flash."
    );
    flash.note = format!(
        "From the same runs: the column `ms` is that of the paper's figure. {} {} With PCM and the paper's policy the rows are \
         the paper's three bars.",
        flash_note(),
        pcm_note()
    );
    Ok(vec![table, flash])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ppl::apps;
    use crate::ppl::generate::Workload;
    use crate::ppl::replay::Template;

    #[test]
    fn with_the_papers_policy_larger_sectors_write_fewer_pages() {
        let dir = tempfile::tempdir().unwrap();
        // AndroBench changes the same pages again and again.
        let workload = Workload::new(apps::ALL[5], 1);
        let prepared = Prepared { template: Template::new(dir.path(), &workload).unwrap(), workload };
        let mut configs = Config::of_paper(Latency::None);
        let mut others = Config::sectors(Latency::None);
        // Two more configurations, both with the smallest sectors: the first has no common pool, the second has the
        // default one.
        configs.extend([others.remove(3), others.remove(0)]);
        let timings = time(dir.path(), &prepared, &configs, 1).unwrap();
        let pages: Vec<u64> = timings.iter().map(|timing| timing.pages_written()).collect();
        let [small, middle, large, without_pool, by_default] = pages[..] else { panic!("{pages:?}") };
        assert!(small > middle && middle > large, "{pages:?}");
        assert!(small > without_pool, "rare checkpoints save merges: {pages:?}");
        assert!(without_pool > by_default, "the pool saves merges: {pages:?}");
        assert!(
            timings[0].on_flash_ms() > timings[0].ms + small as f64,
            "a page takes more than a millisecond"
        );
    }
}
