//! Data from the paper: SQLite/PPL (Oh, Kim, Lee, Moon; PVLDB 8(12), 2015), section 4.

/// A row of table 3, with the data of tables 4 to 6 on the same trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trace {
    /// The application.
    pub name: &'static str,
    /// The number of transactions, of one statement or of many.
    pub transactions: u32,
    /// The number of transactions between `BEGIN` and `COMMIT`.
    pub batches: u32,
    /// The mean number of statements in a transaction between `BEGIN` and `COMMIT`.
    pub statements_per_batch: f64,
    /// The share of joins among all statements, in percent.
    pub joins: f64,
    /// The share of inserts, updates and deletes among all statements, in percent.
    pub updates: f64,
    /// The number of page writes that SQLite requests per transaction.
    pub pages_per_transaction: f64,
    /// The mean size of a log record, in bytes.
    pub record_bytes: f64,
    /// The number of log records per transaction.
    pub records_per_transaction: f64,
    /// The size of the database at the end, in megabytes.
    pub megabytes: f64,
    /// Table 4: pages written by SQLite and by the file system, for DELETE, WAL and SQLite/PPL.
    pub written: [(u32, u32); 3],
    /// Table 5: milliseconds per statement, for DELETE, WAL and SQLite/PPL.
    pub latency_ms: [f64; 3],
    /// The paper's table 6; `None` for `AndroBench`, which has no reads.
    pub reads: Option<Reads>,
}

/// A row of table 6.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reads {
    /// The number of pages read.
    pub pages: u32,
    /// How many of these pages had to be rolled forward.
    pub rolled: u32,
    /// The milliseconds for all reads.
    pub elapsed_ms: f64,
    /// The part of these milliseconds that was spent rolling pages forward.
    pub roll_ms: f64,
}

const fn reads(pages: u32, rolled: u32, elapsed_ms: f64, roll_ms: f64) -> Option<Reads> {
    Some(Reads { pages, rolled, elapsed_ms, roll_ms })
}

/// `KakaoTalk`, the messenger.
pub const KAKAOTALK: Trace = Trace {
    name: "KakaoTalk",
    transactions: 4342,
    batches: 432,
    statements_per_batch: 10.55,
    joins: 0.1,
    updates: 75.6,
    pages_per_transaction: 1.80,
    record_bytes: 383.66,
    records_per_transaction: 2.68,
    megabytes: 0.45,
    written: [(15_411, 44_995), (9_644, 10_119), (1_300, 2_242)],
    latency_ms: [41.2, 13.1, 7.5],
    reads: reads(66, 11, 28.4, 2.1),
};

/// Twitter.
pub const TWITTER: Trace = Trace {
    name: "Twitter",
    transactions: 2022,
    batches: 17,
    statements_per_batch: 26.35,
    joins: 1.2,
    updates: 76.3,
    pages_per_transaction: 1.53,
    record_bytes: 424.41,
    records_per_transaction: 1.25,
    megabytes: 6.08,
    written: [(6_120, 40_381), (3_424, 12_447), (494, 230)],
    latency_ms: [11.5, 3.9, 0.3],
    reads: reads(26, 10, 17.9, 2.8),
};

/// The web browser.
pub const BROWSER: Trace = Trace {
    name: "Browser",
    transactions: 1522,
    batches: 1493,
    statements_per_batch: 2.99,
    joins: 17.0,
    updates: 58.4,
    pages_per_transaction: 3.44,
    record_bytes: 159.86,
    records_per_transaction: 5.00,
    megabytes: 2.51,
    written: [(9_171, 28_178), (6_824, 9_973), (989, 4_123)],
    latency_ms: [19.6, 6.5, 1.8],
    reads: reads(48, 13, 55.7, 1.7),
};

/// Facebook.
pub const FACEBOOK: Trace = Trace {
    name: "Facebook",
    transactions: 1281,
    batches: 262,
    statements_per_batch: 7.87,
    joins: 0.6,
    updates: 65.1,
    pages_per_transaction: 2.90,
    record_bytes: 274.89,
    records_per_transaction: 4.44,
    megabytes: 1.95,
    written: [(6_941, 23_719), (4_569, 9_812), (1_261, 2_095)],
    latency_ms: [13.3, 6.1, 2.6],
    reads: reads(316, 113, 130.4, 34.5),
};

/// Gmail.
pub const GMAIL: Trace = Trace {
    name: "Gmail",
    transactions: 984,
    batches: 806,
    statements_per_batch: 12.93,
    joins: 8.9,
    updates: 68.3,
    pages_per_transaction: 6.14,
    record_bytes: 171.26,
    records_per_transaction: 30.03,
    megabytes: 0.74,
    written: [(11_528, 13_287), (8_249, 3_447), (1_832, 1_033)],
    latency_ms: [3.7, 1.8, 1.6],
    reads: reads(63, 17, 25.3, 4.2),
};

/// `AndroBench`, a benchmark of Android's storage.
pub const ANDROBENCH: Trace = Trace {
    name: "AndroBench",
    transactions: 3081,
    batches: 2,
    statements_per_batch: 1.5,
    joins: 0.0,
    updates: 100.0,
    pages_per_transaction: 1.38,
    record_bytes: 470.66,
    records_per_transaction: 0.98,
    megabytes: 0.19,
    written: [(20_776, 32_088), (4_846, 12_020), (295, 271)],
    latency_ms: [66.5, 16.3, 4.0],
    reads: None,
};

/// The time in nanoseconds in which the paper's flash writes a random page of 4 KiB. By table 2, the first SD
/// card, on which figure 6 (a) was measured, writes 516.3 such pages per second.
pub const FLASH_WRITE_NS: f64 = 1e9 / 516.3;
/// The size of the page to which [`FLASH_WRITE_NS`] applies.
pub const FLASH_PAGE_BYTES: u64 = 4096;

/// The time in nanoseconds in which PCM writes a line. By table 1, PCM reads 4 bytes in 408 ns and writes
/// them in 7.5 us. The paper's board writes up to 32 bytes at once, so a line of 64 bytes takes two accesses,
/// or 15 us. Table 2 agrees, because at 4.9 MB/s a line takes 13 us.
pub const PCM_WRITE_NS: u32 = 2 * 7500;
/// The time in nanoseconds in which PCM reads a line, which takes two accesses like a write.
pub const PCM_READ_NS: u32 = 2 * 408;
/// The time in nanoseconds that a fence adds. The paper states no separate cost of a barrier: its write
/// latency includes all waiting. So a fence adds nothing here.
pub const PCM_FENCE_NS: u32 = 0;
/// The size in bytes of the line to which [`PCM_WRITE_NS`] and [`PCM_READ_NS`] apply.
pub const PCM_LINE_BYTES: u64 = 64;
