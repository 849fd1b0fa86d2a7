//! Selects the engine that a run tests.

use std::fmt;
use std::path::Path;
use std::sync::Once;

use duralite_wal::engine::media::Medium;
use duralite_wal::engines::{nvwal, ppl, scratchpad, waldio};
use duralite_wal::{Descriptor, engines};

use crate::{side_engine, vec_engine};

/// The environment variable that names the tested engine. If it is not set, the run tests the first engine of the
/// registry.
const ENGINE_VARIABLE: &str = "TESTKIT_ENGINE";

/// Adds the tests' own engines to the registry. Further calls change nothing.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    static ENGINES: [&Descriptor; 4] = {
        let [side, undo, sideundo] = &side_engine::DESCRIPTORS;
        [&vec_engine::DESCRIPTOR, side, undo, sideundo]
    };
    ONCE.call_once(|| engines::add(&ENGINES).unwrap());
}

/// An engine under test. If it needs memory, it runs on emulated NVRAM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Engine(&'static Descriptor);

impl Engine {
    /// The engine for tests of behaviour that only `nvwal` has.
    pub const NVWAL: Self = Self(&nvwal::DESCRIPTOR);
    /// The engine for tests of behaviour that only `waldio` has.
    pub const WALDIO: Self = Self(&waldio::DESCRIPTOR);
    /// The engine for tests of behaviour that only `ppl` has.
    pub const PPL: Self = Self(&ppl::DESCRIPTOR);

    /// The engine for tests of behaviour that only `scratchpad` has.
    pub const SCRATCHPAD: Self = Self(&scratchpad::DESCRIPTOR);

    /// Returns the engines for a test that covers all of the product's engines. If the environment variable is not set,
    /// returns all of them. If it is set, another run covers all engines, so returns only one. That is the named
    /// engine, or the default engine if the variable names one of the tests' own engines.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let all = engines::ENGINES.iter().copied().map(Self);
        if std::env::var_os(ENGINE_VARIABLE).is_none() {
            return all.collect();
        }
        let named = all.clone().find(|engine| *engine == Self::under_test());
        named.or_else(|| all.clone().next()).into_iter().collect()
    }

    /// Returns all engines that keep rollback journals, the product's and the tests' own.
    #[must_use]
    pub fn keeping_rollback_journals() -> Vec<Self> {
        register();
        engines::all().filter(|engine| engine.rollback_journals).map(Self).collect()
    }

    /// Returns the engine with this name. It may be one of the product's or one of the tests' own.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        register();
        engines::by_name(name).map(Self)
    }

    /// Returns the engine that this run tests.
    #[must_use]
    pub fn under_test() -> Self {
        match std::env::var(ENGINE_VARIABLE) {
            Err(_) => Self(engines::ENGINES[0]),
            Ok(name) => Self::named(&name).unwrap_or_else(|| panic!("{ENGINE_VARIABLE}={name} is no engine")),
        }
    }

    /// Returns whether the engine keeps rollback journals.
    #[must_use]
    pub fn keeps_rollback_journals(self) -> bool {
        self.0.rollback_journals
    }

    /// Returns the engine's descriptor in the registry.
    #[must_use]
    pub fn descriptor(self) -> &'static Descriptor {
        self.0
    }

    /// Returns the engine's name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns whether the engine's logs are in mapped memory.
    #[must_use]
    pub fn is_in_memory(self) -> bool {
        matches!(self.0.needs.first(), Some(Medium::LogMemory | Medium::Scratchpad))
    }

    /// Returns the URI parameters for this engine with its logs in `log_dir`.
    #[must_use]
    pub fn settings(self, log_dir: &Path) -> String {
        let log_dir = log_dir.display();
        let media = self.0.needs.iter().map(|medium| match medium {
            Medium::LogMemory => format!("&nvram=emulate&nvram_dir={log_dir}"),
            Medium::HomeMemory => "&home=emulate".to_owned(),
            Medium::LogBlocks => format!("&log_dir={log_dir}"),
            Medium::Scratchpad => format!("&scratchpad=emulate&nvram_dir={log_dir}"),
        });
        format!("journal={}{}", self.name(), media.collect::<String>())
    }
}

impl From<&'static Descriptor> for Engine {
    fn from(engine: &'static Descriptor) -> Self {
        Self(engine)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
