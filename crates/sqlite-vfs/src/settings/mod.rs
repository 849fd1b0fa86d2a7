//! Reads the settings. If several places give a setting, the first of these wins: a URI parameter, the value
//! that the program sets for all its databases, an environment variable, the default.

mod names;
mod table;

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use duralite_wal::engine::media::MediaSet;
use duralite_wal::{Descriptor, LogPlacement, engines};

pub use duralite_wal::engine::settings::is_off;
pub use names::{refuse_unknown, unknown, variable_of};
pub use table::{
    CONCURRENT, Concurrency, Journal, REPLICATED, REPLICATED_TIMEOUT, STRICT, Settings, find, rows,
};

/// The settings that the program has set for all its databases: names of environment variables, and values.
/// The program can set them only once, so a reader takes no lock. In a child of a fork, a lock could stay
/// locked for good.
static GIVEN: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Sets settings that win over environment variables and lose against URI parameters. Of two settings with
/// the same name the last one counts. Only the first call sets anything.
///
/// # Errors
/// A text that says which setting is wrong, or that an earlier call has set something else.
pub fn set_defaults(settings: &[(&str, &str)]) -> Result<(), String> {
    let mut checked = Settings::default();
    let mut given = Vec::new();
    for (name, value) in settings.iter().rev() {
        checked.set(name, value)?;
        let variable = variable_of(name);
        if given.iter().all(|(known, _)| *known != variable) {
            given.push((variable, (*value).to_owned()));
        }
    }
    given.sort();
    if *GIVEN.get_or_init(|| given.clone()) == given {
        Ok(())
    } else {
        Err("this process was given other settings before, and they cannot be changed".to_owned())
    }
}

/// Returns the value of a setting for all databases of this process: the value that the program has set, else
/// that of the environment variable `name`.
pub fn variable(name: &str) -> Option<String> {
    let given = GIVEN.get().into_iter().flatten().find(|(given, _)| given == name);
    given.map(|(_, value)| value.clone()).or_else(|| std::env::var(name).ok())
}

/// Returns whether `strict` is on if a URI does not say otherwise.
pub fn is_strict() -> bool {
    let value = variable(&variable_of(STRICT)).unwrap_or_default();
    !value.is_empty() && !is_off(&value)
}

/// Checks that there is a setting `name` and that it takes this value. Returns the name of its environment
/// variable.
///
/// # Errors
/// A text that says what is wrong, and what was probably meant.
pub fn check(name: &str, value: &str) -> Result<String, String> {
    let mut settings = Settings::default();
    settings.set(name, value).map(|()| variable_of(name))
}

impl Settings {
    /// Reads every setting from `uri`, else from `environment`. An empty environment variable counts as
    /// unset.
    pub fn resolve(
        uri: impl Fn(&str) -> Option<String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let mut settings = Self::default();
        for setting in rows() {
            let name = setting.name();
            let variable = variable_of(name);
            if let Some(value) = uri(name) {
                setting.set(&mut settings, &value)?;
            } else if let Some(value) = environment(&variable).filter(|value| !value.is_empty()) {
                setting
                    .set(&mut settings, &value)
                    .map_err(|message| format!("{message} (from {variable})"))?;
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
        find(name).ok_or_else(|| unknown(name))?.set(self, value)
    }

    /// Returns the text of a setting, as [`Settings::set`] reads it, or `None` for an unknown name.
    pub fn value_of(&self, name: &str) -> Option<String> {
        find(name).map(|setting| setting.get(self))
    }

    /// Returns the settings that were given explicitly, as URI parameters for opening another connection to
    /// the same log. Leaves out `background_checkpoint`, because the background thread belongs to the log and
    /// not to a connection.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let given = self.explicit.iter().filter(|name| **name != "background_checkpoint");
        given.filter_map(|name| Some((*name, self.value_of(name)?))).collect()
    }

    /// Returns the same values, but all of them count as defaults. A default never conflicts with another
    /// connection's setting.
    pub fn not_given(mut self) -> Self {
        self.explicit.clear();
        self
    }

    /// Returns a message about the first shared setting that was given here and differs from the setting of
    /// the log in use.
    pub fn conflict_with(&self, in_force: &Self) -> Option<String> {
        let shared = rows().into_iter().filter(|setting| setting.is_shared()).map(|setting| setting.name());
        shared.filter(|name| self.explicit.contains(name)).find_map(|name| {
            let (wanted, found) = (self.value_of(name)?, in_force.value_of(name)?);
            (wanted != found).then(|| {
                format!(
                    "{name}={wanted} conflicts with {name}={found} of another connection of this process to \
                     the same database; use the same value, or close that connection first"
                )
            })
        })
    }

    /// Returns where a new log of the database at this path goes, or a message that says why there can be
    /// none.
    pub fn placement(&self, database: &Path) -> Result<LogPlacement, String> {
        let media = || MediaSet::named(&self.options.media, database);
        match self.journal {
            Journal::Off => Err("journal=off".to_owned()),
            Journal::Auto => engines::choose(&media()),
            Journal::Engine(engine) => LogPlacement::of(engine, &media()),
        }
    }

    /// Returns the longest time between the acknowledgement of a commit in a log of this engine and the
    /// background thread's flush of that commit (Group Synch). Returns `None` if no commit needs a flush in
    /// the background.
    pub fn flush_interval(&self, engine: &Descriptor) -> Option<Duration> {
        (engine.flush_interval)(&self.options)
    }

    /// Checks that the settings fit together.
    pub fn check(&self) -> Result<(), String> {
        let media = &self.options.media;
        match self.journal {
            Journal::Off if self.replicated => {
                return Err(
                    "replicated=on needs a log, and journal=off has none: use another journal".to_owned()
                );
            }
            Journal::Off => return Ok(()),
            Journal::Auto => {}
            Journal::Engine(engine) => {
                let who = format!("journal={}", engine.name);
                engine.needs.iter().try_for_each(|medium| media.check_named(*medium, &who))?;
            }
        }
        media.check()
    }
}

#[cfg(test)]
mod tests {
    use duralite_wal::{NvwalOptions, SyncMode, WaldioOptions};

    use super::table::Row;
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
        let placement = settings.placement(&dir.path().join("app.db")).unwrap();
        assert_eq!((placement.engine.name, &*placement.dir), ("waldio", dir.path()));
        assert!(uri(&[("journal", "off")]).unwrap().placement(&dir.path().join("app.db")).is_err());
    }

    #[test]
    fn the_uri_wins_over_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let base = [("nvram", "emulate"), ("nvram_dir", dir), ("sync", "eager")];
        let settings = resolve(&base, &[("DURALITE_SYNC", "checksum"), ("DURALITE_DIFF", "off")]).unwrap();
        let own = settings.options.own::<NvwalOptions>();
        assert_eq!((own.sync, settings.options.diff), (SyncMode::Eager, Some(false)));
        let placement = settings.placement(Path::new("app.db")).unwrap();
        assert_eq!(
            (placement.engine.name, &*placement.dir, placement.is_dax()),
            ("nvwal", Path::new(dir), false)
        );
    }

    #[test]
    fn commits_without_a_log_cannot_be_replicated() {
        let refused = uri(&[("journal", "off"), ("replicated", "on")]).unwrap_err();
        assert!(refused.contains("replicated=on needs a log"), "{refused}");
        assert!(uri(&[("journal", "off"), ("replicated", "off")]).is_ok());
    }

    #[test]
    fn wrong_values_say_what_to_use() {
        for (name, value, hint) in [
            ("journal", "fast", "auto, nvwal, scratchpad, waldio, ppl or off"),
            ("journal", "scratchpad", "scratchpad=emulate"),
            ("scratchpad", "/does/not/exist", "not a directory"),
            ("scratchpad_bytes", "all", "bytes"),
            ("sync", "never", "lazy"),
            ("diff", "yes", "on or off"),
            ("heap", "", "user"),
            ("nvram", "/does/not/exist", "not a directory"),
            ("nvram_write_ns", "-1", "nanoseconds"),
            ("nvram_queue", "full", "lines"),
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
            ("on_close", "leave", "drain or keep"),
            ("read_durable", "maybe", "on or off"),
            ("replicated", "sometimes", "on or off"),
            ("replicated_timeout", "5s", "milliseconds"),
            ("concurrent", "yes", "off, upgrade or on"),
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
        let options = |name, value| uri(&[(name, value)]).unwrap().options;
        assert_eq!(options("log_limit", "64m").limit_bytes, Some(64 << 20));
        assert_eq!(options("log_limit", "0").limit_bytes, Some(0));
        assert_eq!(options("cache_bytes", "0").cache_bytes, Some(0));
        assert_eq!(options("block_bytes", "16K").own::<NvwalOptions>().block_bytes, 16384);
        assert_eq!(options("device_block", "4K").own::<WaldioOptions>().block_bytes, 4096);
    }

    #[test]
    fn every_setting_reads_back_what_was_set() {
        let mut settings = Settings::default();
        let mut tried = Vec::new();
        for (name, value) in [
            ("journal", "nvwal"),
            ("nvram", "emulate"),
            ("nvram_dir", "/"),
            ("nvram_write_ns", "1"),
            ("nvram_stream_ns", "4"),
            ("nvram_queue", "5"),
            ("nvram_fence_ns", "2"),
            ("nvram_read_ns", "3"),
            ("persistency", "epoch"),
            ("sync", "async"),
            ("diff", "off"),
            ("heap", "system"),
            ("block_bytes", "8192"),
            ("on_close", "keep"),
            ("log_limit", "1048576"),
            ("cache_bytes", "4096"),
            ("scratchpad", "emulate"),
            ("home", "emulate"),
            ("home_sync", "wt"),
            ("scratchpad_bytes", "2097152"),
            ("home_diff", "off"),
            ("log_dir", "/"),
            ("layout", "embedded"),
            ("durability", "fua"),
            ("access", "buffered"),
            ("device_block", "512"),
            ("group_synch", "4"),
            ("group_interval_ms", "3"),
            ("sector_bytes", "8192"),
            ("overflow_bytes", "4096"),
            ("usual_bytes", "1048576"),
            ("read_durable", "on"),
            ("replicated", "on"),
            ("replicated_timeout", "250"),
            ("background_checkpoint", "250"),
            ("concurrent", "upgrade"),
            ("strict", "on"),
        ] {
            settings.set(name, value).unwrap();
            assert_eq!(settings.value_of(name).as_deref(), Some(value));
            tried.push(name);
        }
        assert_eq!(tried, rows().iter().map(Row::name).collect::<Vec<_>>());
        assert_eq!(settings.value_of("jornal"), None);
    }

    #[test]
    fn only_given_settings_conflict() {
        let lazy = uri(&[]).unwrap();
        let eager = uri(&[("sync", "eager")]).unwrap();
        assert!(lazy.conflict_with(&eager).is_none());
        assert!(eager.conflict_with(&lazy).unwrap().contains("sync=lazy"));
    }

    /// Returns the settings in the documentation's table: each with its name, its values, and whether its row
    /// has a star.
    fn documented() -> Vec<(String, String, bool)> {
        let page = include_str!("../../../../docs/settings.md");
        let section = page.split("\n## ").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
        cells
            .flat_map(|cells| {
                let names: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
                names
                    .into_iter()
                    .map(move |name| (name.to_owned(), cells[2].to_owned(), cells[1].ends_with('*')))
            })
            .collect()
    }

    #[test]
    fn the_documentation_lists_the_settings_their_values_and_which_can_be_changed() {
        let mut documented = documented();
        documented.sort();
        let mut names: Vec<&str> = documented.iter().map(|(name, ..)| name.as_str()).collect();
        let mut known: Vec<&str> = rows().iter().map(Row::name).collect();
        known.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, known);
        for (name, values, starred) in &documented {
            let setting = find(name).unwrap();
            assert_eq!(*starred, setting.is_changeable(), "{name}");
            let known = setting.values();
            for value in values.split('`').skip(1).step_by(2) {
                let mut words = known.split([' ', ',']);
                assert!(words.any(|word| word == value), "{name}={value}: {known}");
            }
        }
    }
}
