//! Settings: URI parameters, then environment variables, then defaults.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use duralite_journal::{HeapMode, NvwalOptions, PoolConfig, PoolKind, SyncMode};
use duralite_medium::{Latency, Persistency};

/// Every setting. The environment variable is the name in capitals behind `DURALITE_`.
pub const NAMES: [&str; 13] = [
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
];

/// Settings of a live log that every connection of a process shares.
const SHARED: [&str; 7] =
    ["sync", "diff", "heap", "persistency", "nvram_write_ns", "nvram_fence_ns", "nvram_read_ns"];
/// Environment variables that are no settings.
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
const OWN_PREFIXES: [&str; 4] = ["nvram", "journal", "log_", "duralite"];
/// Where emulated NVRAM is kept when nothing else is said.
pub const SHARED_MEMORY_DIR: &str = "/dev/shm";

/// Which engine serves the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journal {
    /// `nvwal` where NVRAM is named or a log already exists, else the base VFS.
    Auto,
    /// Always `nvwal`.
    Nvwal,
    /// The base VFS.
    Off,
}

impl Journal {
    fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nvwal => "nvwal",
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
    pub latency: Latency,
    pub persistency: Persistency,
    pub options: NvwalOptions,
    /// Those that were given, as opposed to defaults.
    explicit: Vec<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            journal: Journal::Auto,
            nvram: None,
            nvram_dir: None,
            latency: Latency::default(),
            persistency: Persistency::default(),
            options: NvwalOptions::default(),
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
        match name {
            "journal" => self.journal = parse_journal(value)?,
            "nvram" if value == "emulate" => self.nvram = Some(Nvram::Emulate),
            "nvram" => self.nvram = Some(Nvram::Directory(directory(name, value)?)),
            "nvram_dir" => self.nvram_dir = Some(directory(name, value)?),
            "nvram_write_ns" => self.latency.write_ns = number(name, value)?,
            "nvram_fence_ns" => self.latency.fence_ns = number(name, value)?,
            "nvram_read_ns" => self.latency.read_ns = number(name, value)?,
            "persistency" => self.persistency = choice(name, value, "x86, epoch or strict")?,
            "sync" => options.sync = choice::<SyncMode>(name, value, "lazy, eager, checksum or async")?,
            "diff" => options.diff = switch(name, value)?,
            "heap" => options.heap = choice::<HeapMode>(name, value, "user or system")?,
            "block_bytes" => options.block_bytes = size(name, value)?,
            "log_limit" => options.limit_bytes = size(name, value)?,
            "cache_bytes" => options.cache_bytes = size(name, value)?,
            _ => return Err(format!("{name} is not a setting; known are {}", NAMES.join(", "))),
        }
        Ok(())
    }

    /// The text of a setting, as [`Settings::set`] reads it; `None` for an unknown name.
    pub fn value_of(&self, name: &str) -> Option<String> {
        let path = |path: &Path| path.display().to_string();
        let options = &self.options;
        Some(match name {
            "journal" => self.journal.as_str().to_owned(),
            "nvram" => match &self.nvram {
                None => String::new(),
                Some(Nvram::Emulate) => "emulate".to_owned(),
                Some(Nvram::Directory(dir)) => path(dir),
            },
            "nvram_dir" => self.nvram_dir.as_deref().map(path).unwrap_or_default(),
            "nvram_write_ns" => self.latency.write_ns.to_string(),
            "nvram_fence_ns" => self.latency.fence_ns.to_string(),
            "nvram_read_ns" => self.latency.read_ns.to_string(),
            "persistency" => self.persistency.as_str().to_owned(),
            "sync" => options.sync.as_str().to_owned(),
            "diff" => if options.diff { "on" } else { "off" }.to_owned(),
            "heap" => options.heap.as_str().to_owned(),
            "block_bytes" => options.block_bytes.to_string(),
            "log_limit" => options.limit_bytes.to_string(),
            "cache_bytes" => options.cache_bytes.to_string(),
            _ => return None,
        })
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

    /// Where a new log goes, if anywhere.
    pub fn pool(&self) -> Option<PoolConfig> {
        if self.journal == Journal::Off {
            return None;
        }
        match self.nvram.as_ref()? {
            Nvram::Emulate => {
                let dir = self.nvram_dir.clone().unwrap_or_else(|| PathBuf::from(SHARED_MEMORY_DIR));
                Some(self.pool_in(PoolKind::Emulate, dir))
            }
            Nvram::Directory(dir) => Some(self.pool_in(PoolKind::Dax, dir.clone())),
        }
    }

    /// A pool in `dir` with this database's latency and persistency model.
    pub fn pool_in(&self, kind: PoolKind, dir: PathBuf) -> PoolConfig {
        PoolConfig { kind, dir, latency: self.latency, persistency: self.persistency }
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
        "off" => Ok(Journal::Off),
        "waldio" | "ppl" | "scratchpad" => {
            Err(format!("journal={value} is not available in this version; use auto, nvwal or off"))
        }
        _ => Err(invalid("journal", value, "auto, nvwal or off")),
    }
}

fn invalid(name: &str, value: &str, wanted: &str) -> String {
    format!("{name}={value} is not valid; use {wanted}")
}

fn choice<T: FromStr>(name: &str, value: &str, wanted: &str) -> Result<T, String> {
    value.parse().map_err(|_| invalid(name, value, wanted))
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
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
    fn nothing_given_means_pass_through() {
        let settings = uri(&[]).unwrap();
        assert_eq!(settings.journal, Journal::Auto);
        assert!(settings.pool().is_none());
    }

    #[test]
    fn the_uri_wins_over_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let base = [("nvram", "emulate"), ("nvram_dir", dir), ("sync", "eager")];
        let settings = resolve(&base, &[("DURALITE_SYNC", "checksum"), ("DURALITE_DIFF", "off")]).unwrap();
        assert_eq!(settings.options.sync, SyncMode::Eager);
        assert!(!settings.options.diff);
        let pool = settings.pool().unwrap();
        assert_eq!(pool.kind, PoolKind::Emulate);
        assert_eq!(pool.dir, Path::new(dir));
    }

    #[test]
    fn wrong_values_say_what_to_use() {
        for (name, value, hint) in [
            ("journal", "fast", "auto, nvwal or off"),
            ("journal", "waldio", "not available"),
            ("sync", "never", "lazy"),
            ("diff", "1", "on or off"),
            ("heap", "", "user"),
            ("nvram", "/does/not/exist", "not a directory"),
            ("nvram_write_ns", "-1", "nanoseconds"),
            ("log_limit", "12q", "bytes"),
            ("log_limit", "k", "bytes"),
            ("log_limit", "99999999999g", "bytes"),
            ("block_bytes", "4g", "bytes"),
            ("persistency", "arm", "x86"),
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
        assert_eq!(uri(&[("log_limit", "64m")]).unwrap().options.limit_bytes, 64 << 20);
        assert_eq!(uri(&[("block_bytes", "16K")]).unwrap().options.block_bytes, 16384);
        assert_eq!(uri(&[("cache_bytes", "0")]).unwrap().options.cache_bytes, 0);
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
        for key in ["nvram_writes_ns", "journal_mode", "log_size", "duralite_sync"] {
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
