//! Settings: URI parameters, then environment variables, then defaults.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use std::time::Duration;

use duralite_journal::{EngineOptions, HeapMode, PoolConfig, PoolKind, SyncMode};
use duralite_logfmt::waldio::{Layout, block_size_is_valid};
use duralite_medium::block::{Access, Durability, check_filesystem};

/// Every setting. The environment variable is the name in capitals behind `DURALITE_`.
pub const NAMES: [&str; 22] = [
    "journal",
    "nvram",
    "nvram_dir",
    "nvram_write_ns",
    "nvram_fence_ns",
    "nvram_read_ns",
    "persistency",
    "sync",
    "diff",
    "heap",
    "block_bytes",
    "log_limit",
    "cache_bytes",
    "log_dir",
    "layout",
    "durability",
    "access",
    "device_block",
    "group_synch",
    "group_interval_ms",
    "read_durable",
    "background_checkpoint",
];

/// Settings of a live log that every connection of a process shares.
const SHARED: [&str; 13] = [
    "sync",
    "diff",
    "heap",
    "persistency",
    "nvram_write_ns",
    "nvram_fence_ns",
    "nvram_read_ns",
    "layout",
    "durability",
    "access",
    "device_block",
    "group_synch",
    "group_interval_ms",
];
/// Variables that are no settings: the library's own, the Python package's, the tests'.
const OTHER_VARIABLES: [&str; 6] = [
    "DURALITE_MAKE_DEFAULT",
    "DURALITE_LOG",
    "DURALITE_LIBRARY",
    "DURALITE_REQUIRE_RIGS",
    "DURALITE_SEED",
    "DURALITE_REGENERATE",
];
const VARIABLE_PREFIX: &str = "DURALITE_";
/// A URI parameter that begins like this and is no setting is a typing error: the others may
/// belong to SQLite or to another VFS.
const OWN_PREFIXES: [&str; 7] = ["nvram", "journal", "log_", "duralite", "group_", "read_d", "background"];
/// Frames at which the background checkpoint begins: well before SQLite's own, at 1000.
const BACKGROUND_FRAMES: u32 = 400;
/// Where emulated NVRAM is kept when nothing else is said.
pub const SHARED_MEMORY_DIR: &str = "/dev/shm";

/// Which engine serves the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journal {
    /// `nvwal` where NVRAM is named, else `waldio` where the file system carries it, else the base
    /// VFS.
    Auto,
    /// Always `nvwal`.
    Nvwal,
    /// Always `waldio`.
    Waldio,
    /// The base VFS.
    Off,
}

impl Journal {
    fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nvwal => "nvwal",
            Self::Waldio => "waldio",
            Self::Off => "off",
        }
    }
}

/// What `nvram` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nvram {
    /// A mapped file on an ordinary file system.
    Emulate,
    /// A directory on a DAX file system.
    Directory(PathBuf),
}

/// The settings of one open database.
#[derive(Debug, Clone)]
pub struct Settings {
    pub journal: Journal,
    pub nvram: Option<Nvram>,
    pub nvram_dir: Option<PathBuf>,
    pub log_dir: Option<PathBuf>,
    pub options: EngineOptions,
    /// A reader waits until what it reads is durable.
    pub read_durable: bool,
    /// A thread checkpoints when the log has this many frames, so that no committer has to; 0 for
    /// never.
    pub background_checkpoint: u32,
    /// Those that were given, as opposed to defaults.
    explicit: Vec<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            journal: Journal::Auto,
            nvram: None,
            nvram_dir: None,
            log_dir: None,
            options: EngineOptions::default(),
            read_durable: false,
            background_checkpoint: 0,
            explicit: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads every setting. An empty environment variable counts as unset.
    pub fn resolve(
        uri: impl Fn(&str) -> Option<String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let mut settings = Self::default();
        for name in NAMES {
            let variable = variable_of(name);
            if let Some(value) = uri(name) {
                settings.set(name, &value)?;
            } else if let Some(value) = environment(&variable).filter(|value| !value.is_empty()) {
                settings.set(name, &value).map_err(|message| format!("{message} (from {variable})"))?;
            } else {
                continue;
            }
            settings.explicit.push(name);
        }
        settings.check()?;
        Ok(settings)
    }

    /// Sets one setting from its text.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let options = &mut self.options;
        let (nvwal, waldio, latency) = (&mut options.nvwal, &mut options.waldio, &mut options.latency);
        match name {
            "journal" => self.journal = parse_journal(value)?,
            "nvram" if value == "emulate" => self.nvram = Some(Nvram::Emulate),
            "nvram" => self.nvram = Some(Nvram::Directory(directory(name, value)?)),
            "nvram_dir" => self.nvram_dir = Some(directory(name, value)?),
            "nvram_write_ns" => latency.write_ns = number(name, value)?,
            "nvram_fence_ns" => latency.fence_ns = number(name, value)?,
            "nvram_read_ns" => latency.read_ns = number(name, value)?,
            "persistency" => options.persistency = choice(name, value, "x86, epoch or strict")?,
            "sync" => nvwal.sync = choice::<SyncMode>(name, value, "lazy, eager, checksum or async")?,
            "diff" => nvwal.diff = switch(name, value)?,
            "heap" => nvwal.heap = choice::<HeapMode>(name, value, "user or system")?,
            "block_bytes" => nvwal.block_bytes = size(name, value)?,
            "log_limit" => {
                nvwal.limit_bytes = size(name, value)?;
                waldio.limit_bytes = nvwal.limit_bytes;
            }
            "cache_bytes" => {
                nvwal.cache_bytes = size(name, value)?;
                waldio.cache_bytes = nvwal.cache_bytes;
            }
            "log_dir" => self.log_dir = Some(directory(name, value)?),
            "layout" => waldio.layout = choice::<Layout>(name, value, "delta or embedded")?,
            "durability" => waldio.durability = parse_durability(name, value)?,
            "access" => waldio.access = parse_access(name, value)?,
            "device_block" => {
                waldio.block_bytes = size(name, value)?;
                if waldio.block_bytes != 0 && !block_size_is_valid(waldio.block_bytes) {
                    return Err(invalid(
                        name,
                        value,
                        "512, 1024, 2048 or 4096, or 0 to let the device decide",
                    ));
                }
            }
            "group_synch" => waldio.group_synch = choice(name, value, "a number of frames, 0 for none")?,
            "group_interval_ms" => {
                waldio.group_interval = Duration::from_millis(choice(name, value, "milliseconds")?);
            }
            "read_durable" => self.read_durable = switch(name, value)?,
            "background_checkpoint" => {
                self.background_checkpoint = match switch(name, value) {
                    Ok(true) => BACKGROUND_FRAMES,
                    Ok(false) => 0,
                    Err(_) => choice(name, value, "on, off or a number of frames")?,
                };
            }
            _ => return Err(format!("{name} is not a setting; known are {}", NAMES.join(", "))),
        }
        Ok(())
    }

    /// The text of a setting, as [`Settings::set`] reads it; `None` for an unknown name.
    pub fn value_of(&self, name: &str) -> Option<String> {
        let path = |path: &Path| path.display().to_string();
        let EngineOptions { nvwal, waldio, latency, persistency } = &self.options;
        let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
        Some(match name {
            "journal" => self.journal.as_str().to_owned(),
            "nvram" => match &self.nvram {
                None => String::new(),
                Some(Nvram::Emulate) => "emulate".to_owned(),
                Some(Nvram::Directory(dir)) => path(dir),
            },
            "nvram_dir" => self.nvram_dir.as_deref().map(path).unwrap_or_default(),
            "nvram_write_ns" => latency.write_ns.to_string(),
            "nvram_fence_ns" => latency.fence_ns.to_string(),
            "nvram_read_ns" => latency.read_ns.to_string(),
            "persistency" => persistency.as_str().to_owned(),
            "sync" => nvwal.sync.as_str().to_owned(),
            "diff" => on_off(nvwal.diff),
            "heap" => nvwal.heap.as_str().to_owned(),
            "block_bytes" => nvwal.block_bytes.to_string(),
            "log_limit" => nvwal.limit_bytes.to_string(),
            "cache_bytes" => nvwal.cache_bytes.to_string(),
            "log_dir" => self.log_dir.as_deref().map(path).unwrap_or_default(),
            "layout" => waldio.layout.as_str().to_owned(),
            "durability" => name_of(&DURABILITIES, waldio.durability),
            "access" => name_of(&ACCESSES, waldio.access),
            "device_block" => waldio.block_bytes.to_string(),
            "group_synch" => waldio.group_synch.to_string(),
            "group_interval_ms" => waldio.group_interval.as_millis().to_string(),
            "read_durable" => on_off(self.read_durable),
            "background_checkpoint" => self.background_checkpoint.to_string(),
            _ => return None,
        })
    }

    /// The settings that were given, as URI parameters for another connection to the same log; a
    /// thread of the log's own is not among them.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let given = self.explicit.iter().filter(|name| **name != "background_checkpoint");
        given.filter_map(|name| Some((*name, self.value_of(name)?))).collect()
    }

    /// The first setting that was given here and differs from those a live log runs with.
    pub fn conflict_with(&self, in_force: &Self) -> Option<String> {
        SHARED.into_iter().filter(|name| self.explicit.contains(name)).find_map(|name| {
            let (wanted, found) = (self.value_of(name)?, in_force.value_of(name)?);
            (wanted != found).then(|| {
                format!(
                    "{name}={wanted} conflicts with {name}={found} of another connection of this process to \
                     the same database; use the same value, or close that connection first"
                )
            })
        })
    }

    /// Where a new log of the database at this path goes; a message says why it goes nowhere.
    pub fn pool(&self, database: &Path) -> Result<PoolConfig, String> {
        match (self.journal, &self.nvram) {
            (Journal::Off, _) => Err("journal=off".to_owned()),
            (Journal::Auto | Journal::Nvwal, Some(Nvram::Emulate)) => {
                let dir = self.nvram_dir.clone().unwrap_or_else(|| PathBuf::from(SHARED_MEMORY_DIR));
                Ok(PoolConfig { kind: PoolKind::Emulate, dir })
            }
            (Journal::Auto | Journal::Nvwal, Some(Nvram::Directory(dir))) => {
                Ok(PoolConfig { kind: PoolKind::Dax, dir: dir.clone() })
            }
            (Journal::Nvwal, None) => Err("no NVRAM; set nvram=DIR or nvram=emulate".to_owned()),
            (Journal::Waldio, _) | (Journal::Auto, None) => {
                let beside = database.parent().map(Path::to_path_buf).unwrap_or_default();
                let dir = self.log_dir.clone().unwrap_or(beside);
                check_filesystem(&dir).map_err(|error| error.to_string())?;
                Ok(PoolConfig { kind: PoolKind::Disk, dir })
            }
        }
    }

    /// What no single value shows.
    fn check(&self) -> Result<(), String> {
        match (&self.journal, &self.nvram) {
            (Journal::Off, _) => Ok(()),
            (Journal::Nvwal, None) => {
                Err("journal=nvwal needs NVRAM: set nvram=DIR to a directory on a DAX file \
                 system, or nvram=emulate (survives a process crash, not a power loss)"
                    .to_owned())
            }
            (_, Some(Nvram::Emulate))
                if self.nvram_dir.is_none() && !Path::new(SHARED_MEMORY_DIR).is_dir() =>
            {
                Err(format!(
                    "nvram=emulate uses {SHARED_MEMORY_DIR}, which does not exist; set nvram_dir=DIR"
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses names that are meant for Duralite and are no settings.
pub fn refuse_unknown(
    uri_keys: impl Iterator<Item = String>,
    variables: impl Iterator<Item = String>,
) -> Result<(), String> {
    for key in uri_keys {
        let ours = OWN_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        if ours && !NAMES.contains(&key.as_str()) {
            return Err(format!("unknown URI parameter {key}; known are {}", NAMES.join(", ")));
        }
    }
    for variable in variables.filter(|name| name.starts_with(VARIABLE_PREFIX)) {
        let known = OTHER_VARIABLES.contains(&variable.as_str())
            || NAMES.iter().any(|name| variable_of(name) == variable);
        if !known {
            return Err(format!(
                "unknown environment variable {variable}; settings are {}",
                NAMES.join(", ")
            ));
        }
    }
    Ok(())
}

fn variable_of(name: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", name.to_uppercase())
}

fn parse_journal(value: &str) -> Result<Journal, String> {
    match value {
        "auto" => Ok(Journal::Auto),
        "nvwal" => Ok(Journal::Nvwal),
        "waldio" => Ok(Journal::Waldio),
        "off" => Ok(Journal::Off),
        "ppl" | "scratchpad" => {
            Err(format!("journal={value} is not available in this version; use auto, nvwal, waldio or off"))
        }
        _ => Err(invalid("journal", value, "auto, nvwal, waldio or off")),
    }
}

/// The paper's full synch, persistent direct I/O and normal synch (WALDIO, section 5).
const DURABILITIES: [(&str, Durability); 3] =
    [("full", Durability::Full), ("fua", Durability::Fua), ("normal", Durability::Normal)];
const ACCESSES: [(&str, Access); 3] =
    [("auto", Access::Auto), ("direct", Access::Direct), ("buffered", Access::Buffered)];

fn parse_durability(name: &str, value: &str) -> Result<Durability, String> {
    named(&DURABILITIES, value).ok_or_else(|| invalid(name, value, "full, fua or normal"))
}

fn parse_access(name: &str, value: &str) -> Result<Access, String> {
    named(&ACCESSES, value).ok_or_else(|| invalid(name, value, "auto, direct or buffered"))
}

fn named<T: Copy>(names: &[(&str, T)], wanted: &str) -> Option<T> {
    names.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value)
}

fn name_of<T: Copy + PartialEq>(names: &[(&str, T)], wanted: T) -> String {
    names.iter().find(|(_, value)| *value == wanted).map(|(name, _)| (*name).to_owned()).unwrap_or_default()
}

fn invalid(name: &str, value: &str, wanted: &str) -> String {
    format!("{name}={value} is not valid; use {wanted}")
}

fn choice<T: FromStr>(name: &str, value: &str, wanted: &str) -> Result<T, String> {
    value.parse().map_err(|_| invalid(name, value, wanted))
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err(invalid(name, value, "on or off")),
    }
}

fn number(name: &str, value: &str) -> Result<u32, String> {
    choice(name, value, "a number of nanoseconds")
}

fn directory(name: &str, value: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(value);
    if path.is_dir() {
        Ok(path)
    } else {
        Err(format!("{name}={value} is not a directory; make it, or name another"))
    }
}

/// Bytes, with an optional suffix k, m or g for powers of 1024.
fn size<T: TryFrom<u64>>(name: &str, value: &str) -> Result<T, String> {
    let wrong = || invalid(name, value, "a number of bytes, with k, m or g behind it if you like");
    let (digits, shift) = match value.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => (&value[..value.len() - 1], 10),
        Some(b'm') => (&value[..value.len() - 1], 20),
        Some(b'g') => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = count.checked_mul(1 << shift).ok_or_else(wrong)?;
    T::try_from(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        resolve(pairs, &[])
    }

    fn resolve(uri: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Settings, String> {
        let find = |pairs: &[(&str, &str)], name: &str| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::resolve(|name| find(uri, name), |name| find(environment, name))
    }

    #[test]
    fn nothing_given_means_a_log_beside_the_database() {
        let settings = uri(&[]).unwrap();
        assert_eq!(settings.journal, Journal::Auto);
        let dir = tempfile::tempdir().unwrap();
        let pool = settings.pool(&dir.path().join("app.db")).unwrap();
        assert_eq!(pool, PoolConfig { kind: PoolKind::Disk, dir: dir.path().to_path_buf() });
        assert!(uri(&[("journal", "off")]).unwrap().pool(&dir.path().join("app.db")).is_err());
    }

    #[test]
    fn the_uri_wins_over_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let base = [("nvram", "emulate"), ("nvram_dir", dir), ("sync", "eager")];
        let settings = resolve(&base, &[("DURALITE_SYNC", "checksum"), ("DURALITE_DIFF", "off")]).unwrap();
        assert_eq!(settings.options.nvwal.sync, SyncMode::Eager);
        assert!(!settings.options.nvwal.diff);
        let pool = settings.pool(Path::new("app.db")).unwrap();
        assert_eq!(pool.kind, PoolKind::Emulate);
        assert_eq!(pool.dir, Path::new(dir));
    }

    #[test]
    fn wrong_values_say_what_to_use() {
        for (name, value, hint) in [
            ("journal", "fast", "auto, nvwal, waldio or off"),
            ("journal", "ppl", "not available"),
            ("sync", "never", "lazy"),
            ("diff", "yes", "on or off"),
            ("heap", "", "user"),
            ("nvram", "/does/not/exist", "not a directory"),
            ("nvram_write_ns", "-1", "nanoseconds"),
            ("log_limit", "12q", "bytes"),
            ("log_limit", "k", "bytes"),
            ("log_limit", "99999999999g", "bytes"),
            ("block_bytes", "4g", "bytes"),
            ("persistency", "arm", "x86"),
            ("layout", "packed", "delta or embedded"),
            ("durability", "none", "full, fua or normal"),
            ("access", "mapped", "direct"),
            ("device_block", "1000", "512"),
            ("group_synch", "-1", "frames"),
            ("read_durable", "maybe", "on or off"),
            ("log_dir", "/does/not/exist", "not a directory"),
        ] {
            let message = uri(&[(name, value)]).unwrap_err();
            assert!(message.contains(hint), "{name}={value}: {message}");
        }
    }

    #[test]
    fn nvwal_without_nvram_says_how_to_name_it() {
        assert!(uri(&[("journal", "nvwal")]).unwrap_err().contains("nvram=emulate"));
    }

    #[test]
    fn sizes_take_suffixes() {
        assert_eq!(uri(&[("log_limit", "64m")]).unwrap().options.waldio.limit_bytes, 64 << 20);
        assert_eq!(uri(&[("block_bytes", "16K")]).unwrap().options.nvwal.block_bytes, 16384);
        assert_eq!(uri(&[("cache_bytes", "0")]).unwrap().options.waldio.cache_bytes, 0);
    }

    #[test]
    fn every_setting_reads_back_what_was_set() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("journal", "nvwal"),
            ("nvram", "emulate"),
            ("nvram_dir", "/"),
            ("nvram_write_ns", "1"),
            ("nvram_fence_ns", "2"),
            ("nvram_read_ns", "3"),
            ("persistency", "epoch"),
            ("sync", "async"),
            ("diff", "off"),
            ("heap", "system"),
            ("block_bytes", "8192"),
            ("log_limit", "1048576"),
            ("cache_bytes", "4096"),
            ("log_dir", "/"),
            ("layout", "embedded"),
            ("durability", "fua"),
            ("access", "buffered"),
            ("device_block", "512"),
            ("group_synch", "4"),
            ("group_interval_ms", "3"),
            ("read_durable", "on"),
            ("background_checkpoint", "250"),
        ] {
            settings.set(name, value).unwrap();
            assert_eq!(settings.value_of(name).as_deref(), Some(value));
        }
        assert!(NAMES.iter().all(|name| settings.value_of(name).is_some()));
        assert_eq!(settings.value_of("jornal"), None);
    }

    #[test]
    fn names_close_to_ours_are_refused_and_others_are_not() {
        let check = |keys: &[&str], variables: &[&str]| {
            refuse_unknown(keys.iter().map(|s| (*s).to_owned()), variables.iter().map(|s| (*s).to_owned()))
        };
        assert!(check(&["vfs", "mode", "cache", "psow", "journal", "log_limit"], &["PATH"]).is_ok());
        for key in ["nvram_writes_ns", "journal_mode", "log_size", "duralite_sync", "group_sync"] {
            assert!(check(&[key], &[]).unwrap_err().contains(key));
        }
        assert!(check(&[], &["DURALITE_SYNC", "DURALITE_LOG", "DURALITE_MAKE_DEFAULT"]).is_ok());
        assert!(check(&[], &["DURALITE_SYNCH"]).unwrap_err().contains("DURALITE_SYNCH"));
    }

    #[test]
    fn only_given_settings_conflict() {
        let lazy = uri(&[]).unwrap();
        let eager = uri(&[("sync", "eager")]).unwrap();
        assert!(lazy.conflict_with(&eager).is_none());
        assert!(eager.conflict_with(&lazy).unwrap().contains("sync=lazy"));
    }
}
