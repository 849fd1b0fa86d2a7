//! The descriptor of `ppl` for the registry, and the engine's settings.

use duralite_format::ppl::{MAGIC, sector_size_is_valid};

use super::options::{NAME, PplOptions};
use crate::engine::descriptor::Descriptor;
use crate::engine::media::Medium;
use crate::engine::settings::{BYTES, CACHE, EngineOptions, EngineSetting, LOG_LIMIT, ON_CLOSE, Values};
use crate::engines::ppl::{files, salvage, words};

/// The engine for flash that should wear less.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::LogMemory],
    settings: &[&SECTOR_BYTES, &OVERFLOW_BYTES, &ON_CLOSE, &LOG_LIMIT, &CACHE],
    rollback_journals: false,
    writes_home: true,
    shared: words::SHARED,
    format: files::format,
    attach: files::attach,
    attach_outside: files::attach_outside,
    open_read_only: |log| Ok(Box::new(files::look_at(log)?)),
    inspect: files::inspect,
    is_empty: files::is_empty,
    salvage: salvage::salvage,
    walk: salvage::walk,
    release: |_| Ok(()),
    flush_interval: |_| None,
};

impl PplOptions {
    /// This engine's part of the options of all engines, with the settings that it shares with others.
    pub(super) fn of(all: &EngineOptions) -> Self {
        let own = all.own::<Self>();
        Self {
            limit_bytes: all.limit_bytes.unwrap_or(own.limit_bytes),
            cache_bytes: all.cache_bytes.unwrap_or(own.cache_bytes),
            ..own
        }
    }
}

static SECTOR_BYTES: EngineSetting = EngineSetting::new(
    "sector_bytes",
    Values::Fixed("4096, 8192 or 12288"),
    |all, given| {
        let bytes: u32 = given.size()?;
        if !sector_size_is_valid(bytes) {
            return Err(given.invalid());
        }
        all.change(|own: &mut PplOptions| own.sector_bytes = bytes);
        Ok(())
    },
    |all| all.own::<PplOptions>().sector_bytes.to_string(),
);

static OVERFLOW_BYTES: EngineSetting = EngineSetting::new(
    "overflow_bytes",
    BYTES,
    |all, given| given.size().map(|bytes| all.change(|own: &mut PplOptions| own.overflow_bytes = bytes)),
    |all| all.own::<PplOptions>().overflow_bytes.to_string(),
)
.shared();
