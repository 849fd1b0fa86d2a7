//! The table of settings: everything that is asked about a setting is answered from its row.

use std::time::Duration;

use duralite_logfmt::waldio::block_size_is_valid;

use super::values::{ACCESSES, DURABILITIES, Given, name_of, on_off, text_of};
use super::{Nvram, STRICT, Settings};

/// One setting. The environment variable is the name in capitals behind `DURALITE_`.
pub struct Setting {
    pub name: &'static str,
    /// What may be given, for the message about what may not.
    pub values: &'static str,
    /// Of a live log, and the same for every connection of a process.
    pub shared: bool,
    /// Can be changed while a log is in use.
    pub changeable: bool,
    set: fn(&mut Settings, &Given<'_>) -> Result<(), String>,
    get: fn(&Settings) -> String,
}

impl Setting {
    const fn new(
        name: &'static str,
        values: &'static str,
        set: fn(&mut Settings, &Given<'_>) -> Result<(), String>,
        get: fn(&Settings) -> String,
    ) -> Self {
        Self { name, values, shared: false, changeable: false, set, get }
    }

    const fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    const fn changeable(mut self) -> Self {
        self.changeable = true;
        self
    }

    /// Sets it from its text.
    pub fn set(&self, settings: &mut Settings, value: &str) -> Result<(), String> {
        (self.set)(settings, &Given { name: self.name, value, values: self.values })
    }

    /// Its text, as [`Setting::set`] reads it.
    pub fn get(&self, settings: &Settings) -> String {
        (self.get)(settings)
    }
}

/// The setting of this name.
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// All names, for messages.
pub fn names() -> String {
    SETTINGS.iter().map(|setting| setting.name).collect::<Vec<_>>().join(", ")
}

const NANOSECONDS: &str = "a number of nanoseconds";
const BYTES: &str = "a number of bytes, with k, m or g behind it if you like";
const SWITCH: &str = "on or off";

/// Every setting.
pub static SETTINGS: [Setting; 23] = [
    Setting::new(
        "journal",
        "auto, nvwal, waldio or off",
        |all, given| given.journal().map(|value| all.journal = value),
        |all| all.journal.as_str().to_owned(),
    ),
    Setting::new(
        "nvram",
        "a directory, or emulate",
        |all, given| given.nvram().map(|value| all.nvram = Some(value)),
        |all| match &all.nvram {
            None => String::new(),
            Some(Nvram::Emulate) => "emulate".to_owned(),
            Some(Nvram::Directory(dir)) => text_of(Some(dir)),
        },
    ),
    Setting::new(
        "nvram_dir",
        "a directory",
        |all, given| given.directory().map(|value| all.nvram_dir = Some(value)),
        |all| text_of(all.nvram_dir.as_deref()),
    ),
    Setting::new(
        "nvram_write_ns",
        NANOSECONDS,
        |all, given| given.parsed().map(|value| all.options.latency.write_ns = value),
        |all| all.options.latency.write_ns.to_string(),
    )
    .shared()
    .changeable(),
    Setting::new(
        "nvram_fence_ns",
        NANOSECONDS,
        |all, given| given.parsed().map(|value| all.options.latency.fence_ns = value),
        |all| all.options.latency.fence_ns.to_string(),
    )
    .shared()
    .changeable(),
    Setting::new(
        "nvram_read_ns",
        NANOSECONDS,
        |all, given| given.parsed().map(|value| all.options.latency.read_ns = value),
        |all| all.options.latency.read_ns.to_string(),
    )
    .shared()
    .changeable(),
    Setting::new(
        "persistency",
        "x86, epoch or strict",
        |all, given| given.parsed().map(|value| all.options.persistency = value),
        |all| all.options.persistency.as_str().to_owned(),
    )
    .shared(),
    Setting::new(
        "sync",
        "lazy, eager, checksum or async",
        |all, given| given.sync_mode().map(|value| all.options.nvwal.sync = value),
        |all| all.options.nvwal.sync.as_str().to_owned(),
    )
    .shared()
    .changeable(),
    Setting::new(
        "diff",
        SWITCH,
        |all, given| given.switch().map(|value| all.options.nvwal.diff = value),
        |all| on_off(all.options.nvwal.diff),
    )
    .shared(),
    Setting::new(
        "heap",
        "user or system",
        |all, given| given.parsed().map(|value| all.options.nvwal.heap = value),
        |all| all.options.nvwal.heap.as_str().to_owned(),
    )
    .shared(),
    Setting::new(
        "block_bytes",
        BYTES,
        |all, given| given.size().map(|value| all.options.nvwal.block_bytes = value),
        |all| all.options.nvwal.block_bytes.to_string(),
    ),
    Setting::new(
        "log_limit",
        BYTES,
        |all, given| {
            all.options.nvwal.limit_bytes = given.size()?;
            all.options.waldio.limit_bytes = all.options.nvwal.limit_bytes;
            Ok(())
        },
        |all| all.options.nvwal.limit_bytes.to_string(),
    ),
    Setting::new(
        "cache_bytes",
        BYTES,
        |all, given| {
            all.options.nvwal.cache_bytes = given.size()?;
            all.options.waldio.cache_bytes = all.options.nvwal.cache_bytes;
            Ok(())
        },
        |all| all.options.nvwal.cache_bytes.to_string(),
    ),
    Setting::new(
        "log_dir",
        "a directory",
        |all, given| given.directory().map(|value| all.log_dir = Some(value)),
        |all| text_of(all.log_dir.as_deref()),
    ),
    Setting::new(
        "layout",
        "delta or embedded",
        |all, given| given.parsed().map(|value| all.options.waldio.layout = value),
        |all| all.options.waldio.layout.as_str().to_owned(),
    )
    .shared(),
    Setting::new(
        "durability",
        "full, fua or normal",
        |all, given| given.named(&DURABILITIES).map(|value| all.options.waldio.durability = value),
        |all| name_of(&DURABILITIES, all.options.waldio.durability),
    )
    .shared(),
    Setting::new(
        "access",
        "auto, direct or buffered",
        |all, given| given.named(&ACCESSES).map(|value| all.options.waldio.access = value),
        |all| name_of(&ACCESSES, all.options.waldio.access),
    )
    .shared(),
    Setting::new(
        "device_block",
        "512, 1024, 2048 or 4096, or 0 to let the device decide",
        |all, given| {
            let bytes = given.size()?;
            if bytes != 0 && !block_size_is_valid(bytes) {
                return Err(given.invalid());
            }
            all.options.waldio.block_bytes = bytes;
            Ok(())
        },
        |all| all.options.waldio.block_bytes.to_string(),
    )
    .shared(),
    Setting::new(
        "group_synch",
        "a number of frames, 0 for none",
        |all, given| given.parsed().map(|value| all.options.waldio.group_synch = value),
        |all| all.options.waldio.group_synch.to_string(),
    )
    .shared(),
    Setting::new(
        "group_interval_ms",
        "a number of milliseconds",
        |all, given| {
            given.parsed().map(|value| all.options.waldio.group_interval = Duration::from_millis(value))
        },
        |all| all.options.waldio.group_interval.as_millis().to_string(),
    )
    .shared(),
    Setting::new(
        "read_durable",
        SWITCH,
        |all, given| given.switch().map(|value| all.read_durable = value),
        |all| on_off(all.read_durable),
    ),
    Setting::new(
        "background_checkpoint",
        "on, off or a number of frames",
        |all, given| given.background_checkpoint().map(|value| all.background_checkpoint = value),
        |all| all.background_checkpoint.to_string(),
    ),
    Setting::new(
        STRICT,
        SWITCH,
        |all, given| given.switch().map(|value| all.strict = value),
        |all| on_off(all.strict),
    ),
];
