//! Settings that say where media are, and how emulated media work.

use super::{EngineSetting, Values, is_off, text_of};
use crate::engine::media::{HomeSync, Medium, Nvram, ScratchpadPlace};

/// The settings of a medium.
pub(crate) fn settings_of(medium: Medium) -> &'static [&'static EngineSetting] {
    static MEMORY: [&EngineSetting; 7] =
        [&NVRAM, &NVRAM_DIR, &WRITE_NS, &STREAM_NS, &FENCE_NS, &READ_NS, &PERSISTENCY];
    static HOME_MEMORY: [&EngineSetting; 2] = [&HOME, &HOME_SYNC];
    static BLOCKS: [&EngineSetting; 1] = [&LOG_DIR];
    // The region is in memory, so the settings of memory apply to it as well.
    static SCRATCHPAD_AND_MEMORY: [&EngineSetting; 8] =
        [&SCRATCHPAD, &NVRAM, &NVRAM_DIR, &WRITE_NS, &STREAM_NS, &FENCE_NS, &READ_NS, &PERSISTENCY];
    match medium {
        Medium::LogMemory => &MEMORY,
        Medium::HomeMemory => &HOME_MEMORY,
        Medium::Scratchpad => &SCRATCHPAD_AND_MEMORY,
        Medium::LogBlocks => &BLOCKS,
    }
}

const NANOSECONDS: Values = Values::Fixed("a number of nanoseconds");

static NVRAM: EngineSetting = EngineSetting::new(
    "nvram",
    Values::Fixed("a directory, or emulate"),
    |all, given| {
        let emulated = given.value == "emulate";
        let value = if emulated { Nvram::Emulate } else { Nvram::Directory(given.directory()?) };
        all.media.nvram = Some(value);
        Ok(())
    },
    |all| match &all.media.nvram {
        None => String::new(),
        Some(Nvram::Emulate) => "emulate".to_owned(),
        Some(Nvram::Directory(dir)) => text_of(Some(dir)),
    },
);

static SCRATCHPAD: EngineSetting = EngineSetting::new(
    "scratchpad",
    Values::Fixed("a directory, emulate or off"),
    |all, given| {
        let place = match given.value {
            "emulate" => ScratchpadPlace::Emulate,
            value if is_off(value) => ScratchpadPlace::Off,
            _ => ScratchpadPlace::Directory(given.directory()?),
        };
        all.media.scratchpad = Some(place);
        Ok(())
    },
    |all| match &all.media.scratchpad {
        None => String::new(),
        Some(ScratchpadPlace::Emulate) => "emulate".to_owned(),
        Some(ScratchpadPlace::Off) => "off".to_owned(),
        Some(ScratchpadPlace::Directory(dir)) => text_of(Some(dir)),
    },
);

static NVRAM_DIR: EngineSetting = EngineSetting::new(
    "nvram_dir",
    Values::Fixed("a directory"),
    |all, given| given.directory().map(|value| all.media.nvram_dir = Some(value)),
    |all| text_of(all.media.nvram_dir.as_deref()),
);

static WRITE_NS: EngineSetting = EngineSetting::new(
    "nvram_write_ns",
    NANOSECONDS,
    |all, given| given.parsed().map(|value| all.media.latency.write_ns = value),
    |all| all.media.latency.write_ns.to_string(),
)
.shared()
.changeable();

static STREAM_NS: EngineSetting = EngineSetting::new(
    "nvram_stream_ns",
    NANOSECONDS,
    |all, given| given.parsed().map(|value| all.media.latency.stream_ns = Some(value)),
    |all| all.media.latency.per_streamed_line().to_string(),
)
.shared()
.changeable();

static FENCE_NS: EngineSetting = EngineSetting::new(
    "nvram_fence_ns",
    NANOSECONDS,
    |all, given| given.parsed().map(|value| all.media.latency.fence_ns = value),
    |all| all.media.latency.fence_ns.to_string(),
)
.shared()
.changeable();

static READ_NS: EngineSetting = EngineSetting::new(
    "nvram_read_ns",
    NANOSECONDS,
    |all, given| given.parsed().map(|value| all.media.latency.read_ns = value),
    |all| all.media.latency.read_ns.to_string(),
)
.shared()
.changeable();

static PERSISTENCY: EngineSetting = EngineSetting::new(
    "persistency",
    Values::Fixed("x86, epoch or strict"),
    |all, given| given.parsed().map(|value| all.media.persistency = value),
    |all| all.media.persistency.as_str().to_owned(),
)
.shared();

static HOME: EngineSetting = EngineSetting::new(
    "home",
    Values::Fixed("emulate, or nothing for a database on a DAX file system"),
    |all, given| {
        all.media.home_emulated = match given.value {
            "emulate" => true,
            "" => false,
            _ => return Err(given.invalid()),
        };
        Ok(())
    },
    |all| if all.media.home_emulated { "emulate" } else { "" }.to_owned(),
);

static HOME_SYNC: EngineSetting = EngineSetting::new(
    "home_sync",
    Values::Fixed("adaptive, average, wb or wt"),
    |all, given| given.named(&HomeSync::NAMES).map(|value| all.media.home_sync = value),
    |all| all.media.home_sync.as_str().to_owned(),
)
.shared();

static LOG_DIR: EngineSetting = EngineSetting::new(
    "log_dir",
    Values::Fixed("a directory"),
    |all, given| given.directory().map(|value| all.media.log_dir = Some(value)),
    |all| text_of(all.media.log_dir.as_deref()),
);
