//! An engine for tests that is `nvwal` with the database file as its home, mapped.
//!
//! Its logs are those of `nvwal`, under a magic number of their own.

use std::sync::Arc;

use duralite_journal::descriptor::{Attaching, Descriptor, SharedBytes};
use duralite_journal::engine::{Engine, LogFile, LogReader};
use duralite_journal::mapped_home::MappedHome;
use duralite_journal::media::Medium;
use duralite_journal::{EngineOptions, JournalError, nvwal};

use crate::side_engine::{MoreThanNvwal, as_nvwal, format, walk};

/// Its name in settings.
const NAME: &str = "mapped";
const MAGIC: [u8; 8] = *b"DURALMAP";

pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::LogMemory, Medium::HomeMemory],
    // The word that the home's writers share.
    shared: SharedBytes { zeroed: 8, all: 8 },
    format: |new| format(new, MAGIC),
    attach,
    // Who may only read has pages from the file, which is the same memory.
    attach_outside: |log| Ok(Box::new(MoreThanNvwal::open(NAME, &log.file, log.options, false)?)),
    open_read_only: |file| Ok(Box::new(MoreThanNvwal::open(NAME, file, &EngineOptions::default(), false)?)),
    inspect: |file, bytes| (nvwal::DESCRIPTOR.inspect)(file, &as_nvwal(bytes, MAGIC)),
    is_empty: |file| {
        let log = MoreThanNvwal::open(NAME, file, &EngineOptions::default(), false);
        log.is_ok_and(|log| log.transactions() == 0)
    },
    walk,
    ..nvwal::DESCRIPTOR
};

fn attach(log: Attaching<'_>) -> Result<Box<dyn Engine>, JournalError> {
    const { assert!(nvwal::DESCRIPTOR.shared.all == 0) };
    let mut mapped = MoreThanNvwal::open(NAME, &log.file, log.options, true)?;
    if log.alone {
        mapped.log.recover_heap()?;
    }
    let nvm = log.database.map(log.directory.home_kind())?;
    nvm.set_latency(log.options.media.latency);
    let home = MappedHome::new(nvm, mapped.log.page_bytes(), log.options.media.home_sync)
        .sharing(log.segment, log.base);
    if log.alone {
        home.recover(log.database)?;
    }
    mapped.home = Some(Arc::new(home));
    Ok(Box::new(mapped))
}
