//! Tests how Duralite's processes, and the threads of the store, use the memory that they share. A schedule
//! explorer chooses the order of their operations.

mod archived;
mod groups;
mod index_locks;
mod pins;
mod store_locks;
mod store_logs;
mod store_snapshots;
mod weak_locks;

// These modules of the store are under test. This program compiles them itself, so that they use the mutexes
// and atomics of the module `sync` here, and not those of the store. The modules refer to each other, to
// `sync` and to the formats by paths from the crate's root, so all of these must have the same names here.
#[path = "../../../../store/src/counter.rs"]
mod counter;
#[allow(dead_code)]
#[path = "../../../../store/src/error.rs"]
mod error;
#[allow(dead_code, unused_imports)]
#[path = "../../../../store/src/locks/mod.rs"]
mod locks;
#[allow(dead_code, unused_imports)]
#[path = "../../../../store/src/log/mod.rs"]
mod log;
#[path = "../../../../store/src/noting.rs"]
mod noting;
#[allow(dead_code)]
#[path = "../../../../store/src/poison.rs"]
mod poison;
#[allow(dead_code)]
#[path = "../../../../store/src/range.rs"]
mod range;
#[allow(dead_code)]
#[path = "../../../../store/src/steps.rs"]
mod steps;
mod sync;
#[allow(dead_code)]
#[path = "../../../../store/src/versions/mod.rs"]
mod versions;

use duralite_store::format;
use {crossbeam_skiplist as _, rustc_hash as _, smallvec as _, thiserror as _}; // used by those modules
