//! Compares the store with other stores that a user might choose.

use std::path::Path;

use anyhow::{Context, Result};
use duralite_bench::report::{Table, number};
use duralite_store::Scheme;

use super::plan::{Contender, Plan, in_turns, times};
use crate::kv::{Db, Memory};
use crate::nv::Setup;
use crate::peers::{PEERS, open, title};
use crate::workload::Workload;

const STORE: &str = "Duralite's store";

/// Measures TPC-B, with every commit durable on this disk.
pub(crate) fn on_disk(plan: &Plan) -> Result<Table> {
    let table = Table::new(
        "store_peers_disk",
        &format!("Store: TPC-B with {} threads, every commit durable on this disk", plan.threads),
        &["what", "transactions/s", "lowest - highest", "store / it", "wanted", "gave way"],
    );
    fill(table, plan, &plan.disk, &plan.disk, Scheme::Auto)
}

/// Measures TPC-B with logs in memory.
pub(crate) fn in_memory(plan: &Plan) -> Result<Table> {
    let table = Table::new(
        "store_peers_memory",
        &format!("Store: TPC-B with {} threads, logs in memory", plan.threads),
        &["what", "transactions/s", "lowest - highest", "store / it", "wanted", "gave way"],
    );
    fill(table, plan, &plan.disk, &plan.memory, Scheme::FlushOnCommit)
}

fn fill(mut table: Table, plan: &Plan, pages: &Path, logs: &Path, scheme: Scheme) -> Result<Table> {
    let is_memory = scheme == Scheme::FlushOnCommit;
    let workload = plan.tpcb();
    let dir = tempfile::tempdir_in(pages)?;
    let log_dir = tempfile::tempdir_in(logs)?;
    let mut contenders = Vec::new();
    let store = Setup::fresh(dir.path(), log_dir.path(), "store", scheme)?.open(workload.schema())?;
    contenders.push(Contender { name: STORE.to_owned(), db: Box::new(store) });
    let mut missing = Vec::new();
    for (name, is_built) in PEERS {
        if !is_built {
            missing.push(title(name));
            continue;
        }
        // If the logs are in memory, this decides where the data goes. A peer that cannot separate its log from its
        // data has both in memory.
        let splits = matches!(name, "waldio" | "rocksdb");
        let data = if is_memory && !splits { log_dir.path() } else { dir.path() };
        let opened: Result<Box<dyn Db>> =
            open(name, &data.join(name), &log_dir.path().join(name), workload.schema(), Memory::default());
        let db = opened.with_context(|| format!("opening {}", title(name)))?;
        contenders.push(Contender { name: title(name).to_owned(), db });
    }
    for contender in &contenders {
        workload.load(&*contender.db).with_context(|| format!("loading {}", contender.name))?;
    }
    let scored = in_turns(&contenders, &workload, plan.threads, plan)?;
    let best = scored[1..].iter().map(|one| one.per_second).fold(0.0, f64::max);
    for one in &scored {
        let wanted = match (one.name == STORE, one.per_second == best) {
            (false, true) if is_memory => ">= 3x",
            (false, true) => ">= 1.5x",
            _ => "",
        };
        table.row([
            one.name.clone(),
            number(one.per_second),
            format!("{} - {}", number(one.lowest), number(one.highest)),
            times(scored[0].per_second, one.per_second),
            wanted.to_owned(),
            one.runs.iter().map(|run| run.retries).sum::<u64>().to_string(),
        ]);
    }
    table.note = note(plan, is_memory, &missing);
    Ok(table)
}

fn note(plan: &Plan, is_memory: bool, missing: &[&str]) -> String {
    let workload = plan.tpcb();
    let mut note = format!(
        "{} branches, {} accounts, rows of the specified sizes. All stores had 64 MiB of cache, and ran in turns: {} rounds of {} s; medians. ",
        workload.branches,
        workload.branches * workload.accounts_of_a_branch,
        plan.rounds,
        plan.time.as_secs_f64()
    );
    note.push_str(if is_memory {
        "The store's pages, RocksDB's tables and the database on `waldio` are on the disk, and their logs are in memory. A peer that cannot keep its log in another directory has its data in memory too, which favours it. "
    } else {
        "SQLite with `synchronous=FULL`, redb with `Durability::Immediate`, fjall with `PersistMode::SyncData`, RocksDB with synced writes. "
    });
    note.push_str(
        "In each store the sums of branches, tellers, accounts and history agreed after its rounds.",
    );
    if !missing.is_empty() {
        note.push_str(&format!(" Not built into this run: {}.", missing.join(", ")));
    }
    note
}
