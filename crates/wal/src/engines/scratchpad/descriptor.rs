//! The descriptor of `scratchpad` for the registry, and the engine's settings.

use duralite_format::scratchpad::MAGIC;

use super::options::{NAME, ScratchpadOptions};
use crate::engine::descriptor::{Descriptor, SharedBytes};
use crate::engine::media::Medium;
use crate::engine::settings::{BYTES, CACHE, DIFF, EngineOptions, EngineSetting, LOG_LIMIT, SWITCH, on_off};
use crate::engines::scratchpad::{files, salvage};

/// The engine for a small memory in which a store is durable without a flush, beside persistent memory.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::Scratchpad, Medium::HomeMemory],
    settings: &[&SCRATCHPAD_BYTES, &DIFF, &HOME_DIFF, &LOG_LIMIT, &CACHE],
    // The word that the writers of the home share. Everything else is in the log and the region.
    shared: SharedBytes { zeroed: 8, all: 8 },
    format: files::format,
    attach: files::attach,
    attach_outside: files::attach_outside,
    open_read_only: |log| Ok(Box::new(files::look_at(log)?)),
    inspect: files::inspect,
    is_empty: files::is_empty,
    salvage: |log, _, later| salvage::salvage(log, later),
    release: files::release,
    walk: salvage::walk,
    rollback_journals: true,
    writes_home: false,
    flush_interval: |_| None,
};

impl ScratchpadOptions {
    /// This engine's part of the options of all engines, with the settings that it shares with others.
    pub(super) fn of(all: &EngineOptions) -> Self {
        let own = all.own::<Self>();
        Self {
            limit_bytes: all.limit_bytes.unwrap_or(own.limit_bytes),
            cache_bytes: all.cache_bytes.unwrap_or(own.cache_bytes),
            diff: all.diff.unwrap_or(own.diff),
            sync: all.media.home_sync,
            ..own
        }
    }
}

static SCRATCHPAD_BYTES: EngineSetting = EngineSetting::new(
    "scratchpad_bytes",
    BYTES,
    |all, given| given.size().map(|bytes| all.change(|own: &mut ScratchpadOptions| own.region_bytes = bytes)),
    |all| all.own::<ScratchpadOptions>().region_bytes.to_string(),
);

static HOME_DIFF: EngineSetting = EngineSetting::new(
    "home_diff",
    SWITCH,
    |all, given| given.switch().map(|on| all.change(|own: &mut ScratchpadOptions| own.home_diff = on)),
    |all| on_off(all.own::<ScratchpadOptions>().home_diff),
)
.shared();
