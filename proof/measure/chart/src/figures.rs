//! Says which tables have a picture, and describes each picture. The pictures follow the figures of the
//! papers.

/// A table that has a picture.
pub(crate) struct Figure {
    /// The name of the table.
    pub(crate) table: &'static str,
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Bars(Grouped),
    Lines { per_row: usize, plots: &'static [Plot] },
}

/// A picture of bars in groups. Each group is one row, or all rows with the same label.
#[derive(Clone, Copy)]
pub(crate) struct Grouped {
    /// The columns whose cells, joined by commas, label the group.
    pub(crate) label: &'static [&'static str],
    pub(crate) bars: Each,
    /// The picture has one panel for each distinct cell in this column. If this is `None`, there is only one panel.
    pub(crate) panels: Option<&'static str>,
    /// The measured quantity and its unit.
    pub(crate) measure: &'static str,
    pub(crate) is_log: bool,
    /// Whether the bars of a group are parts of one whole.
    pub(crate) is_stacked: bool,
}

/// The bars of a group.
#[derive(Clone, Copy)]
pub(crate) enum Each {
    /// A single bar, from the cell of this column. Labels that begin with the same word share a colour.
    Row(&'static str),
    /// A bar for each of these columns.
    Column(&'static [&'static str]),
    /// A bar for each row with the same label. The column `name` has the names of the bars, and the column
    /// `figure` has their values.
    RowOf { name: &'static str, figure: &'static str },
}

/// A picture of panels with lines.
pub(crate) struct Plot {
    /// A column and a text. If this is set, the picture shows only the rows that have this text in this column's cell.
    pub(crate) only: Option<(&'static str, &'static str)>,
    /// The picture has one panel for each distinct combination of cells in these columns.
    pub(crate) panels: &'static [&'static str],
    pub(crate) lines: Along,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
}

/// The data of a line.
pub(crate) enum Along {
    /// A line for each of these columns, over the numbers in the column `over`.
    Column { over: &'static str, of: &'static [&'static str] },
    /// A line for each row. The column `name` has the line's name. Each other column whose heading has the form
    /// `before`, a number, `unit` gives one point: the number is the x value, and the cell is the y value.
    Headings { name: &'static str, before: &'static str, unit: &'static str },
    /// Marks instead of lines: one for each row that has a number in each of the columns `over` and `of`. Rows with the
    /// same cell in the column `name` share a colour. The radius of a mark is proportional to the number in the column
    /// `size`.
    Marks { over: &'static str, of: &'static str, name: &'static str, size: &'static str },
}

/// The title and scale of an axis.
#[derive(Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) is_log: bool,
}

const fn linear(name: &'static str) -> Axis {
    Axis { name, is_log: false }
}

const fn log(name: &'static str) -> Axis {
    Axis { name, is_log: true }
}

/// Returns a plot of all rows.
const fn plot(panels: &'static [&'static str], lines: Along, x: Axis, y: Axis) -> Plot {
    Plot { only: None, panels, lines, x, y }
}

const fn figure(table: &'static str, title: &'static str, kind: Kind) -> Figure {
    Figure { table, title, kind }
}

/// Describes a picture with one bar for each row.
const fn rows(label: &'static [&'static str], figure: &'static str, measure: &'static str) -> Kind {
    let (bars, panels) = (Each::Row(figure), None);
    Kind::Bars(Grouped { label, bars, panels, measure, is_log: false, is_stacked: false })
}

/// Describes a picture with bars for several columns of each row.
const fn columns(
    label: &'static [&'static str],
    of: &'static [&'static str],
    panels: Option<&'static str>,
    measure: &'static str,
) -> Kind {
    let bars = Each::Column(of);
    Kind::Bars(Grouped { label, bars, panels, measure, is_log: false, is_stacked: false })
}

/// Describes a picture with a stacked bar for each row. The columns are parts of a whole.
const fn parts(label: &'static [&'static str], of: &'static [&'static str], measure: &'static str) -> Kind {
    let (bars, panels) = (Each::Column(of), None);
    Kind::Bars(Grouped { label, bars, panels, measure, is_log: false, is_stacked: true })
}

/// Describes bars that compare the modes, for each workload of the SQLite/PPL paper.
const fn workloads(figure: &'static str, measure: &'static str) -> Kind {
    let (bars, panels) = (Each::RowOf { name: "mode", figure }, None);
    Kind::Bars(Grouped { label: &["workload"], bars, panels, measure, is_log: true, is_stacked: false })
}

/// Describes bars for the schemes of the NV-Logging paper.
const fn schemes(table: &'static str, title: &'static str) -> Figure {
    let measure = "transactions/s, by what is added per line, threads, locks";
    figure(table, title, columns(&["added per line", "threads", "locks"], &SCHEMES, None, measure))
}

/// Describes bars for the configurations in the paper on the single-level store.
const fn configurations(table: &'static str, title: &'static str, of: &'static [&'static str]) -> Figure {
    figure(table, title, columns(&["operation"], of, Some("pages"), "transactions/s"))
}

const SCHEMES: [&str; 5] =
    ["nv-disk", "nv-disk-decentralized", "flush-on-insert", "flush-on-commit", "distributed"];
const LOG_ALONE: [&str; 2] = ["baseline (tx/s)", "on-chip log (tx/s)"];
const SYNC_ALONE: [&str; 4] =
    ["baseline (tx/s)", "write-through (tx/s)", "average (tx/s)", "adaptive (tx/s)"];
const TOGETHER: [&str; 4] = ["baseline (tx/s)", "on-chip log (tx/s)", "adaptive (tx/s)", "both (tx/s)"];

/// All pictures, each of one table, grouped by paper.
pub(crate) const FIGURES: &[Figure] = &[
    figure("everyday_sizes", "waldio, one thread: the size of the database, the length of the log", SIZES),
    figure("figure5_6", "NVWAL figure 5: cost of ordering at 500 ns", NVWAL_5),
    figure("figure5_split", "NVWAL figure 5: memcpy, flush and fence at 500 ns", NVWAL_5_PARTS),
    figure("figure7", "NVWAL figure 7: six variants over NVRAM write latency", NVWAL_7),
    figure("figure8", "NVWAL figure 8: block trace of ten inserts", NVWAL_8),
    figure(
        "figure8_sums",
        "NVWAL figure 8: what ten inserts write",
        parts(&["mode"], &["log KB", "file-system journal KB", "database KB", "other KB"], "KB"),
    ),
    figure("figure9", "NVWAL figure 9: where NVRAM is as slow as this disk", NVWAL_9),
    figure("table2", "NVWAL table 2: bytes put into NVRAM", NVWAL_TABLE_2),
    figure("archive_lag_seconds", "Archive: lag at full rate, second by second", ARCHIVE_LAG),
    figure("waldio_crowds", "Many connections, one insert per transaction", CROWDS),
    figure("waldio_figure2", "WALDIO figure 2: the writes of one insert, by journal mode", INSERTS),
    figure("waldio_figure3", "WALDIO figure 3: one durable write of 4 KiB", WALDIO_3),
    figure("waldio_figure6_13", "WALDIO figures 6 and 13: direct writes by size", WALDIO_6_13),
    figure(
        "waldio_figure11",
        "WALDIO figure 11: the writes of one insert, of a new log, and of a longer log",
        INSERTS,
    ),
    figure("waldio_figure12", "WALDIO figure 12: the writes of ten inserts", INSERTS),
    figure(
        "waldio_figure14",
        "WALDIO figure 14: inserts per second by journal mode",
        rows(&["mode"], "insert", "inserts/s"),
    ),
    figure(
        "waldio_figure15",
        "WALDIO figure 15: bytes to the device per insert",
        rows(&["mode"], "insert", "bytes"),
    ),
    figure(
        "ppl_figure6",
        "SQLite/PPL figure 6: time for each workload, the database on disk",
        workloads("ms", "ms"),
    ),
    figure(
        "ppl_figure6_flash",
        "SQLite/PPL figure 6: time for each workload, the database on the paper's flash",
        workloads("ms", "ms"),
    ),
    figure(
        "ppl_table4",
        "SQLite/PPL table 4: pages written to the device by SQLite",
        workloads("by SQLite", "pages"),
    ),
    figure("ppl_figure7", "SQLite/PPL figure 7: size of a log sector", workloads("ms", "ms")),
    figure(
        "ppl_figure7_flash",
        "SQLite/PPL figure 7: size of a log sector, the database on the paper's flash",
        workloads("ms", "ms"),
    ),
    figure(
        "ppl_figure8",
        "SQLite/PPL figure 8: databases and logs in PCM",
        workloads("in PCM: ms", "in PCM: ms"),
    ),
    figure("scratchpad_figure5", "Single-level store, figure 5: caching modes", CACHING),
    configurations(
        "scratchpad_figure13",
        "Single-level store, figure 13: the log alone, rollback logging",
        &LOG_ALONE,
    ),
    configurations(
        "scratchpad_figure14",
        "Single-level store, figure 14: the log alone, write-ahead logging",
        &LOG_ALONE,
    ),
    figure(
        "scratchpad_figure15_16",
        "Single-level store, figures 15 and 16: the size of the region",
        REGIONS,
    ),
    configurations(
        "scratchpad_figure17",
        "Single-level store, figure 17: the sync alone, rollback logging",
        &SYNC_ALONE,
    ),
    configurations(
        "scratchpad_figure18",
        "Single-level store, figure 18: the sync alone, write-ahead logging",
        &SYNC_ALONE,
    ),
    configurations(
        "scratchpad_figure19",
        "Single-level store, figure 19: together, rollback logging",
        &TOGETHER,
    ),
    configurations(
        "scratchpad_figure20",
        "Single-level store, figure 20: together, write-ahead logging",
        &TOGETHER,
    ),
    figure("scratchpad_latency", "Single-level store: inserts over the latency of a line", LATENCIES),
    figure("store_figure6", "NV-Logging figure 6: TPC-C by place of the files", PLACES),
    figure("store_figure8", "NV-Logging figure 8: bytes to log and pages", TRAFFIC),
    figure("store_figure9", "NV-Logging figure 9: a write by file and by memory", WRITES),
    figure("store_figure11", "NV-Logging figure 11: insertion into the log", INSERTION),
    schemes("store_figure12", "NV-Logging figure 12: TPC-C by scheme"),
    schemes("store_figure13_tatp", "NV-Logging figure 13 (a, b): TATP by scheme"),
    schemes("store_figure13_tpcb", "NV-Logging figure 13 (c, d): TPC-B by scheme"),
    schemes("store_figure14_tatp", "NV-Logging figure 14 (a, b): TATP, slow memory"),
    schemes("store_figure14_tpcb", "NV-Logging figure 14 (c, d): TPC-B, slow memory"),
    figure("store_figure15", "NV-Logging figures 7 and 15: where the time goes", TIMES),
    figure("store_figure16", "NV-Logging figure 16: TPC-C per second and dollar", DOLLARS),
    figure("store_cores", "The schemes, modelled for 1 to 32 cores", CORES),
    figure("store_recovery", "Store: recovery after kill -9, by size of the log", RECOVERY),
];

const SIZES: Kind = Kind::Lines {
    per_row: 2,
    plots: &[
        Plot { y: linear("per second"), ..of_size("database of", "MB of database", &SPEED) },
        Plot { y: linear("per second"), ..of_size("log of", "frames of log", &SPEED) },
        Plot { y: linear("MiB"), ..of_size("database of", "MB of database", &["resident MiB"]) },
        Plot { y: linear("MiB"), ..of_size("log of", "frames of log", &["resident MiB"]) },
    ],
};
const SPEED: [&str; 3] = ["inserts/s", "updates of random rows/s", "raw overwrites/s"];

const fn of_size(only: &'static str, x: &'static str, of: &'static [&'static str]) -> Plot {
    let lines = Along::Column { over: "what", of };
    Plot { only: Some(("what", only)), ..plot(&[], lines, log(x), linear("")) }
}

const NVWAL_5: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &[],
        Along::Column {
            over: "inserts per transaction",
            of: &["lazy: flush and fence", "eager: flush and fence"],
        },
        linear("inserts per transaction"),
        linear("us per transaction"),
    )],
};

const NVWAL_5_PARTS: Kind = Kind::Bars(Grouped {
    label: &["inserts per transaction", "sync"],
    bars: Each::Column(&["memcpy", "dccmvac: lines x 500 ns", "dccmvac: instructions", "dmb: instructions"]),
    panels: Some("pages"),
    measure: "us per transaction",
    is_log: false,
    is_stacked: true,
});

const NVWAL_7: Kind = Kind::Lines {
    per_row: 3,
    plots: &[plot(
        &["operation"],
        Along::Headings { name: "variant", before: "", unit: " ns" },
        linear("write latency (ns per line)"),
        linear("transactions/s"),
    )],
};

const NVWAL_8: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &["mode"],
        Along::Column { over: "ms", of: &["log", "file-system journal", "database", "other"] },
        linear("ms"),
        linear("block of 4 KiB"),
    )],
};

const NVWAL_9: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &[],
        Along::Column {
            over: "latency (us per line)",
            of: &[
                "UH+LS+Diff",
                "LS",
                "stock WAL, cold log",
                "stock WAL, warm log",
                "waldio, layout=embedded",
            ],
        },
        log("write latency (us per line)"),
        log("inserts/s"),
    )],
};

const NVWAL_TABLE_2: Kind = Kind::Lines {
    per_row: 1,
    plots: &[Plot {
        only: Some(("", "differences")),
        ..plot(
            &[],
            Along::Headings { name: "", before: "", unit: " per transaction" },
            log("operations per transaction"),
            log("bytes per transaction"),
        )
    }],
};

const CROWDS: Kind = Kind::Bars(Grouped {
    label: &["connections"],
    bars: Each::RowOf { name: "what", figure: "commits/s" },
    panels: None,
    measure: "commits/s",
    is_log: false,
    is_stacked: false,
});

const ARCHIVE_LAG: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &[],
        Along::Column { over: "second", of: &["duralite replicate", "litestream replicate"] },
        linear("second of the run"),
        log("lag p50 (ms)"),
    )],
};

/// Addresses over time, as in the traces of the WALDIO paper. The axis of addresses is logarithmic, because the journal
/// of a file system is far away from the files.
const INSERTS: Kind = Kind::Lines {
    per_row: 2,
    plots: &[plot(
        &["trace"],
        Along::Marks { over: "ms", of: "address KiB", name: "purpose", size: "KiB" },
        linear("ms since the first request"),
        log("address (KiB); the radius is the size"),
    )],
};

const WALDIO_3: Kind = columns(&["way"], &["allocating", "non-allocating"], None, "microseconds");

const WALDIO_6_13: Kind = rows(&["write"], "durable writes/s", "durable writes/s");

const CACHING: Kind = columns(
    &["operation"],
    &["write-back, flushes free", "write-back", "write-through"],
    Some("mode"),
    "transactions/s",
);

const REGIONS: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &["mode"],
        Along::Headings { name: "operation", before: "", unit: " MiB" },
        log("size of the region (MiB)"),
        linear("transactions/s"),
    )],
};

const LATENCIES: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &["mode"],
        Along::Headings { name: "configuration", before: "", unit: " ns" },
        linear("latency of a line that is written back (ns)"),
        linear("inserts/s"),
    )],
};

const PLACES: Kind = columns(
    &["threads"],
    &["all on disk", "pages in memory, log on disk", "pages on disk, log in memory", "all in memory"],
    None,
    "transactions/s, by threads",
);

const TRAFFIC: Kind = Kind::Lines {
    per_row: 2,
    plots: &[plot(
        &["workload", "sizes"],
        Along::Column { over: "of the log", of: &["log MB", "pages MB"] },
        linear("log written, of its size"),
        linear("MB"),
    )],
};

const WRITES: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &[],
        Along::Column {
            over: "bytes",
            of: &["memcpy ns", "store, flush, fence ns", "write to a file in memory ns"],
        },
        log("bytes"),
        log("ns"),
    )],
};

const INSERTION: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &[],
        Along::Column { over: "threads", of: &SCHEMES },
        log("threads"),
        linear("us per insertion"),
    )],
};

const TIMES: Kind = parts(
    &["workload", "scheme"],
    &["log %", "locks %", "rows and pages %", "waits and system %", "rest %"],
    "%",
);

const DOLLARS: Kind = Kind::Lines {
    per_row: 2,
    plots: &[plot(
        &["prices"],
        Along::Headings { name: "what", before: "NVRAM ", unit: "x of disk" },
        log("price of NVRAM, of the disk's"),
        linear("of all in NVRAM"),
    )],
};

const CORES: Kind = Kind::Lines {
    per_row: 4,
    plots: &[plot(
        &["workload", "added"],
        Along::Headings { name: "scheme", before: "", unit: " core" },
        log("cores"),
        log("transactions/s"),
    )],
};

const RECOVERY: Kind = Kind::Lines {
    per_row: 1,
    plots: &[plot(
        &[],
        Along::Column { over: "MiB of log", of: &["seconds"] },
        linear("MiB of log"),
        linear("seconds"),
    )],
};

/// Returns the description of the table's picture, if the table has one.
pub(crate) fn of(table: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.table == table)
}

/// Returns whether a table of this name has a picture.
#[must_use]
pub fn is_known(table: &str) -> bool {
    of(table).is_some()
}
