//! Which engine is tested.

use std::fmt;
use std::path::Path;
use std::sync::Once;

use duralite_journal::media::Medium;
use duralite_journal::{Descriptor, engines, nvwal, ppl, scratchpad, waldio};

use crate::{side_engine, vec_engine};

/// The variable that says which engine is tested: the registry's first if it is not set.
const ENGINE_VARIABLE: &str = "TESTKIT_ENGINE";

/// Adds the engines of the tests to the registry. Doing it again changes nothing.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    static ENGINES: [&Descriptor; 4] = {
        let [side, undo, sideundo] = &side_engine::DESCRIPTORS;
        [&vec_engine::DESCRIPTOR, side, undo, sideundo]
    };
    ONCE.call_once(|| engines::add(&ENGINES).unwrap());
}

/// An engine under test: on emulated NVRAM if it needs memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Engine(&'static Descriptor);

impl Engine {
    /// For tests of what only `nvwal` does.
    pub const NVWAL: Self = Self(&nvwal::DESCRIPTOR);
    /// For tests of what only `waldio` does.
    pub const WALDIO: Self = Self(&waldio::DESCRIPTOR);
    /// For tests of what only `ppl` does.
    pub const PPL: Self = Self(&ppl::DESCRIPTOR);

    /// For tests of what only `scratchpad` does.
    pub const SCRATCHPAD: Self = Self(&scratchpad::DESCRIPTOR);

    /// The product's engines.
    #[must_use]
    pub fn all() -> Vec<Self> {
        engines::ENGINES.iter().copied().map(Self).collect()
    }

    /// The engines that keep rollback journals: the product's, and those of the tests.
    #[must_use]
    pub fn keeping_rollback_journals() -> Vec<Self> {
        register();
        engines::all().filter(|engine| engine.rollback_journals).map(Self).collect()
    }

    /// The engine of this name: one of the product's, or of the tests'.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        register();
        engines::by_name(name).map(Self)
    }

    /// The engine that this run tests.
    #[must_use]
    pub fn under_test() -> Self {
        match std::env::var(ENGINE_VARIABLE) {
            Err(_) => Self(engines::ENGINES[0]),
            Ok(name) => Self::named(&name).unwrap_or_else(|| panic!("{ENGINE_VARIABLE}={name} is no engine")),
        }
    }

    /// Whether it keeps rollback journals.
    #[must_use]
    pub fn keeps_rollback_journals(self) -> bool {
        self.0.rollback_journals
    }

    /// As the registry has it.
    #[must_use]
    pub fn descriptor(self) -> &'static Descriptor {
        self.0
    }

    /// Its name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether its logs are in memory that is mapped.
    #[must_use]
    pub fn is_in_memory(self) -> bool {
        matches!(self.0.needs.first(), Some(Medium::LogMemory | Medium::Scratchpad))
    }

    /// URI parameters for this engine with its logs in `log_dir`.
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
