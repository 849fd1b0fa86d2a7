//! The rows of the table of results. Each row combines a workload, the size of the data relative to the cache, the
//! number of threads, and the size of a data row.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::tpcb::TpcB;
use crate::tpcc::TpcC;
use crate::workload::Workload;
use crate::ycsb::{Mix, Ycsb};

/// The workload of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// Loads sorted rows. If the store has a special way to do this, uses it.
    Load,
    LoadByTransactions,
    Scan,
    Ycsb(Mix),
    TpcB,
    TpcC,
}

const KINDS: [(&str, Kind); 12] = [
    ("load", Kind::Load),
    ("load-by-transactions", Kind::LoadByTransactions),
    ("scan", Kind::Scan),
    ("ycsb-a", Kind::Ycsb(Mix::A)),
    ("ycsb-b", Kind::Ycsb(Mix::B)),
    ("ycsb-c", Kind::Ycsb(Mix::C)),
    ("ycsb-d", Kind::Ycsb(Mix::D)),
    ("ycsb-e", Kind::Ycsb(Mix::E)),
    ("ycsb-f", Kind::Ycsb(Mix::F)),
    ("mixed", Kind::Ycsb(Mix::BesideScan)),
    ("tpc-b", Kind::TpcB),
    ("tpc-c", Kind::TpcC),
];

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) kind: Kind,
    /// The size of the data as a multiple of the cache's size.
    pub(super) multiple: u64,
    pub(super) threads: u64,
    pub(super) row_bytes: u64,
    pub(super) is_zipf: bool,
}

/// The rows that `make storebench` measures unless it is told otherwise.
const USUAL: [&str; 4] = ["load-5x-1t-100b", "scan-5x-1t-100b", "tpc-b-5x-16t-100b", "ycsb-a-10x-16t-1000b"];

/// The size of a warehouse with its initial rows, in bytes.
const WAREHOUSE_BYTES: u64 = 4 << 20;

impl Case {
    /// Returns all rows of the table. Rows that use the same data are adjacent.
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for multiple in [1, 5, 10] {
            for row_bytes in [100, 1000] {
                for (_, kind) in KINDS {
                    let (of_rows, of_banks) =
                        (matches!(kind, Kind::Ycsb(_)), matches!(kind, Kind::TpcB | Kind::TpcC));
                    if of_banks && row_bytes != 100 {
                        // The rows of these workloads have a fixed size.
                        continue;
                    }
                    let threads: &[u64] = if of_rows || of_banks { &[1, 16] } else { &[1] };
                    for &threads in threads {
                        if kind == Kind::Ycsb(Mix::BesideScan) && threads == 1 {
                            continue;
                        }
                        let drawn: &[bool] = if of_rows { &[false, true] } else { &[false] };
                        all.extend(drawn.iter().map(|&is_zipf| Self {
                            kind,
                            multiple,
                            threads,
                            row_bytes,
                            is_zipf,
                        }));
                    }
                }
            }
        }
        all
    }

    pub(super) fn usual() -> Vec<Self> {
        Self::all().into_iter().filter(|case| USUAL.contains(&case.name().as_str())).collect()
    }

    /// Returns whether the row measures only loading.
    pub(super) fn is_load(self) -> bool {
        matches!(self.kind, Kind::Load | Kind::LoadByTransactions)
    }

    pub(super) fn title(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(name, _)| name)
    }

    pub(super) fn name(self) -> String {
        let Self { multiple, threads, row_bytes, is_zipf, .. } = self;
        let drawn = if is_zipf { "-zipf" } else { "" };
        format!("{}-{multiple}x-{threads}t-{row_bytes}b{drawn}", self.title())
    }

    /// Returns the size of all keys and values in bytes. If the multiple is 1, the keys and values take four fifths of
    /// the cache, so that everything fits.
    pub(super) fn data_bytes(self, cache_bytes: u64) -> u64 {
        if self.multiple == 1 { cache_bytes / 5 * 4 } else { cache_bytes * self.multiple }
    }

    fn rows(self, cache_bytes: u64) -> u64 {
        self.data_bytes(cache_bytes) / (self.row_bytes + 8)
    }

    /// Returns the name of the data set that this row of the table uses. Rows with the same name use the same data set.
    pub(super) fn data(self) -> String {
        match self.kind {
            Kind::TpcB | Kind::TpcC => format!("{}-{}x", self.title(), self.multiple),
            Kind::LoadByTransactions => {
                format!("rows-by-transactions-{}x-{}b", self.multiple, self.row_bytes)
            }
            _ => format!("rows-{}x-{}b", self.multiple, self.row_bytes),
        }
    }

    pub(super) fn workload(self, cache_bytes: u64) -> Result<Box<dyn Workload>> {
        let (rows, row_bytes) = (self.rows(cache_bytes), self.row_bytes as usize);
        if rows < 1000 {
            bail!("a cache of {cache_bytes} bytes is too small to measure with");
        }
        Ok(match self.kind {
            Kind::Load | Kind::LoadByTransactions | Kind::Scan => {
                Box::new(Ycsb::new(Mix::Scan, rows, row_bytes, false))
            }
            Kind::Ycsb(mix) => Box::new(Ycsb::new(mix, rows, row_bytes, self.is_zipf)),
            Kind::TpcB => {
                // Nearly all rows are accounts, which take 104 bytes each.
                let branches = (self.data_bytes(cache_bytes) / 104 / 1000).max(1) as u32;
                Box::new(TpcB { branches, accounts_of_a_branch: 1000 })
            }
            Kind::TpcC => {
                let warehouses = (self.data_bytes(cache_bytes) / WAREHOUSE_BYTES).max(1) as u32;
                Box::new(TpcC { warehouses, customers_of_a_district: 300, items: 1000 })
            }
        })
    }

    /// Returns how many bytes of keys and values a transaction changes on average. For workloads that only load rows,
    /// returns the size of one row. Returns `None` if there is no fixed number.
    pub(super) fn user_bytes(self) -> Option<f64> {
        let row = (self.row_bytes + 8) as f64;
        match self.kind {
            Kind::Load | Kind::LoadByTransactions => Some(row),
            Kind::Ycsb(Mix::A | Mix::F) => Some(row / 2.0),
            Kind::Ycsb(Mix::B | Mix::D | Mix::E | Mix::BesideScan) => Some(row / 20.0),
            // Three rows of 100 bytes and one row of 50 bytes, with their keys.
            Kind::TpcB => Some(3.0 * 104.0 + 50.0 + 12.0),
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_comes_to_the_child_as_it_is() {
        let all = Case::all();
        assert_eq!(all.iter().map(|case| case.name()).collect::<BTreeSet<_>>().len(), all.len());
        for case in &all {
            assert_eq!(serde_json::from_str::<Case>(&serde_json::to_string(case).unwrap()).unwrap(), *case);
        }
        assert_eq!(Case::usual().len(), USUAL.len());
    }
}
