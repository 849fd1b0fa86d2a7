//! Settings as rows of a table. A row says everything about its setting: its name, its valid values, how to set it, and
//! how to read it.
//!
//! A row is in the module of the engine to which the setting belongs. The rows of the media, and those that several engines
//! share, are in this file. An engine's descriptor names the engine's rows, including the shared ones.

use std::any::{Any, TypeId};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::engine::media::{HomeSync, MediaOptions, Medium, Nvram, ScratchpadPlace};

/// One setting of a `T`. Its environment variable is `DURALITE_` and the setting's name in capitals.
pub struct Setting<T> {
    /// The setting's name.
    pub name: &'static str,
    /// The valid values.
    pub values: Values,
    /// Whether the setting belongs to the log in use, and so is the same for every connection of a process.
    pub shared: bool,
    /// Whether the setting can be changed while a log is in use.
    pub changeable: bool,
    /// Whether the setting's value is shown among the metrics of a log in use.
    pub shown: bool,
    set: fn(&mut T, &Given<'_>) -> Result<(), String>,
    get: fn(&T) -> String,
}

/// A setting of an engine or of its media.
pub type EngineSetting = Setting<EngineOptions>;

impl<T> Setting<T> {
    /// Makes a setting that each connection has for itself, and that cannot change once the connection's database is
    /// open.
    pub const fn new(
        name: &'static str,
        values: Values,
        set: fn(&mut T, &Given<'_>) -> Result<(), String>,
        get: fn(&T) -> String,
    ) -> Self {
        Self { name, values, shared: false, changeable: false, shown: false, set, get }
    }

    /// Makes the setting belong to the log in use, so that it is the same for every connection of a process.
    #[must_use]
    pub const fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Allows changes of the setting while a log is in use.
    #[must_use]
    pub const fn changeable(mut self) -> Self {
        self.changeable = true;
        self
    }

    /// Shows the setting's value among the metrics of a log.
    #[must_use]
    pub const fn shown(mut self) -> Self {
        self.shown = true;
        self
    }

    /// Sets the setting from its text.
    ///
    /// # Errors
    /// A message that says what is wrong with the text, and what to use.
    pub fn set(&self, all: &mut T, value: &str) -> Result<(), String> {
        (self.set)(all, &Given { name: self.name, value, values: &self.values })
    }

    /// Returns the setting's text, as [`Setting::set`] reads it.
    pub fn get(&self, all: &T) -> String {
        (self.get)(all)
    }
}

// Settings that several engines share, and the descriptions of valid values (`Values`) that several settings use.

/// The number of bytes of page images that an engine keeps in memory by default.
pub const CACHE_BYTES: usize = 8 << 20;

/// The valid values of a size.
pub const BYTES: Values = Values::Fixed("a number of bytes, with k, m or g behind it if you like");
/// The valid values of a switch.
pub const SWITCH: Values = Values::Fixed("on or off");

/// The most bytes that a log may take.
pub static LOG_LIMIT: EngineSetting = EngineSetting::new(
    "log_limit",
    BYTES,
    |all, given| given.size().map(|value| all.limit_bytes = Some(value)),
    |all| all.limit_bytes.unwrap_or_default().to_string(),
);

/// The number of bytes of page images that an engine keeps in memory.
pub static CACHE: EngineSetting = EngineSetting::new(
    "cache_bytes",
    BYTES,
    |all, given| given.size().map(|value| all.cache_bytes = Some(value)),
    |all| all.cache_bytes.unwrap_or(CACHE_BYTES).to_string(),
);

/// Whether the engine logs differences, or whole pages.
pub static DIFF: EngineSetting = EngineSetting::new(
    "diff",
    SWITCH,
    |all, given| given.switch().map(|value| all.diff = Some(value)),
    |all| on_off(all.diff.unwrap_or(true)),
)
.shared();

/// What happens to the log when the last connection to the database closes.
pub static ON_CLOSE: EngineSetting = EngineSetting::new(
    "on_close",
    Values::Fixed("drain or keep"),
    |all, given| given.named(&OnClose::NAMES).map(|on_close| all.on_close = on_close),
    |all| name_of(&OnClose::NAMES, all.on_close),
)
.shared()
.changeable();

// Conversions between the text of a setting and its value.

/// A setting, with the text that the user has given for it.
pub struct Given<'a> {
    /// Name of the setting.
    pub name: &'a str,
    /// The text.
    pub value: &'a str,
    /// The valid values of the setting.
    pub values: &'a Values,
}

impl Given<'_> {
    /// Returns the message about a text that is not valid.
    #[must_use]
    pub fn invalid(&self) -> String {
        format!("{}={} is not valid; use {}", self.name, self.value, self.values)
    }

    /// Parses the text with the type's own parser.
    ///
    /// # Errors
    /// [`Given::invalid`].
    pub fn parsed<T: FromStr>(&self) -> Result<T, String> {
        self.value.parse().map_err(|_| self.invalid())
    }

    /// Finds the value that the text names.
    ///
    /// # Errors
    /// [`Given::invalid`].
    pub fn named<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, String> {
        let found = names.iter().find(|(name, _)| *name == self.value).map(|(_, value)| *value);
        found.ok_or_else(|| self.invalid())
    }

    /// Parses the text as on or off.
    ///
    /// # Errors
    /// [`Given::invalid`].
    pub fn switch(&self) -> Result<bool, String> {
        match self.value {
            "on" | "1" => Ok(true),
            value if is_off(value) => Ok(false),
            _ => Err(self.invalid()),
        }
    }

    /// Takes the text as the path of an existing directory.
    ///
    /// # Errors
    /// A message, if the path is not a directory that can be used.
    pub fn directory(&self) -> Result<PathBuf, String> {
        let path = PathBuf::from(self.value);
        let why = match path.metadata() {
            Ok(found) if found.is_dir() => return Ok(path),
            Ok(_) => "it is a file".to_owned(),
            Err(error) => duralite_medium::in_words(&error),
        };
        Err(format!(
            "{}={} is not a directory that can be used: {why}; make it, or name another",
            self.name, self.value
        ))
    }

    /// Parses the text as a number of bytes, with an optional suffix k, m or g for powers of 1024.
    ///
    /// # Errors
    /// [`Given::invalid`], also if the type cannot hold the number.
    pub fn size<T: TryFrom<u64>>(&self) -> Result<T, String> {
        let value = self.value;
        let (digits, shift) = match value.as_bytes().last().map(u8::to_ascii_lowercase) {
            Some(b'k') => (&value[..value.len() - 1], 10),
            Some(b'm') => (&value[..value.len() - 1], 20),
            Some(b'g') => (&value[..value.len() - 1], 30),
            _ => (value, 0),
        };
        let count: u64 = digits.parse().map_err(|_| self.invalid())?;
        let bytes = count.checked_mul(1 << shift).ok_or_else(|| self.invalid())?;
        T::try_from(bytes).map_err(|_| self.invalid())
    }
}

/// Returns whether this text turns a switch off.
#[must_use]
pub fn is_off(value: &str) -> bool {
    matches!(value, "off" | "0")
}

/// Returns the name of a value; empty if the value has none.
#[must_use]
pub fn name_of<T: Copy + PartialEq>(names: &[(&str, T)], wanted: T) -> String {
    names.iter().find(|(_, value)| *value == wanted).map(|(name, _)| (*name).to_owned()).unwrap_or_default()
}

/// Returns the text of a switch.
#[must_use]
pub fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// Returns the text of a path; empty without a path.
#[must_use]
pub fn text_of(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

// Settings that say where media are and how emulated media work.

/// Returns the settings of a medium.
pub(crate) fn settings_of(medium: Medium) -> &'static [&'static EngineSetting] {
    static MEMORY: [&EngineSetting; 8] =
        [&NVRAM, &NVRAM_DIR, &WRITE_NS, &STREAM_NS, &QUEUE, &FENCE_NS, &READ_NS, &PERSISTENCY];
    static HOME_MEMORY: [&EngineSetting; 2] = [&HOME, &HOME_SYNC];
    static BLOCKS: [&EngineSetting; 1] = [&LOG_DIR];
    // The region is in memory, so it has the settings of memory as well.
    static SCRATCHPAD_AND_MEMORY: [&EngineSetting; 9] =
        [&SCRATCHPAD, &NVRAM, &NVRAM_DIR, &WRITE_NS, &STREAM_NS, &QUEUE, &FENCE_NS, &READ_NS, &PERSISTENCY];
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

static QUEUE: EngineSetting = EngineSetting::new(
    "nvram_queue",
    Values::Fixed("a number of lines"),
    |all, given| given.parsed().map(|value| all.media.latency.queue_lines = value),
    |all| all.media.latency.queue_lines.to_string(),
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

// The values of the settings of engines and media.

/// What happens to the log when the last connection to the database closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnClose {
    /// Writes everything home and lifts the guard. After that the database file holds the whole database.
    #[default]
    Drain,
    /// Leaves the guard and the log to the next connection that opens the database.
    Keep,
}

impl OnClose {
    /// The names in settings.
    const NAMES: [(&'static str, Self); 2] = [("drain", Self::Drain), ("keep", Self::Keep)];
}

/// The options of engines and media. Each engine has a part of its own, whose type no other module needs to know.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Where media are, and how emulated media work.
    pub media: MediaOptions,
    /// The most bytes that a log may take, or 0 for all that the file system has. With `None` the engine's own options set
    /// the limit.
    pub limit_bytes: Option<u64>,
    /// The number of bytes of page images kept in memory. With `None` the engine's own options set the number.
    pub cache_bytes: Option<usize>,
    /// Whether the engine logs differences, or whole pages. With `None` the engine's own options decide.
    pub diff: Option<bool>,
    /// What happens to the log when this process closes its last connection, if no other process uses the log.
    pub on_close: OnClose,
    own: Vec<(TypeId, Arc<dyn Any + Send + Sync>)>,
}

impl EngineOptions {
    /// Returns an engine's own part, or the default of the part's type if nothing has been set.
    #[must_use]
    pub fn own<T: Clone + Default + Send + Sync + 'static>(&self) -> T {
        let found = self.own.iter().find(|(id, _)| *id == TypeId::of::<T>());
        found.and_then(|(_, part)| part.downcast_ref::<T>()).cloned().unwrap_or_default()
    }

    /// Changes an engine's own part.
    pub fn change<T: Clone + Default + Send + Sync + 'static>(&mut self, change: impl FnOnce(&mut T)) {
        let mut part = self.own::<T>();
        change(&mut part);
        self.own.retain(|(id, _)| *id != TypeId::of::<T>());
        self.own.push((TypeId::of::<T>(), Arc::new(part)));
    }

    /// Returns the options with `part` as an engine's own part.
    #[must_use]
    pub fn with<T: Clone + Default + Send + Sync + 'static>(mut self, part: T) -> Self {
        self.change(|own| *own = part);
        self
    }
}

// The valid values of a setting, in words.

/// Describes the valid values of a setting, for the message about an invalid one.
#[derive(Clone, Copy)]
pub enum Values {
    /// A fixed text.
    Fixed(&'static str),
    /// A text that a function makes, because it depends on the registered engines.
    Made(fn() -> String),
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(words) => f.write_str(words),
            Self::Made(words) => f.write_str(&words()),
        }
    }
}

#[cfg(test)]
mod options_tests {
    use super::*;

    #[test]
    fn each_engine_has_a_part_of_its_own() {
        let mut options = EngineOptions::default();
        assert_eq!((options.own::<u32>(), options.own::<String>()), (0, String::new()));
        options.change(|own: &mut u32| *own = 7);
        let other = options.clone().with("text".to_owned());
        options.change(|own: &mut u32| *own += 1);
        assert_eq!((options.own::<u32>(), options.own::<String>()), (8, String::new()));
        assert_eq!((other.own::<u32>(), other.own::<String>()), (7, "text".to_owned()));
    }
}
