//! The settings of one open database, and the table of all settings: those of connections, of every engine,
//! and of the media that engines need. A new setting of a connection is a field of [`Settings`] and a row.

use duralite_wal::engine::settings::{EngineSetting, Given, SWITCH, Setting, Values, on_off};
use duralite_wal::{Descriptor, EngineOptions, engines};

/// The name of the setting that also concerns databases that are not opened through this VFS.
pub const STRICT: &str = "strict";
/// The name of the setting that each connection may choose for itself until it first reads.
pub const CONCURRENT: &str = "concurrent";
/// The name of a setting that each connection may change for itself at any time. [`REPLICATED_TIMEOUT`] is
/// another one.
pub const REPLICATED: &str = "replicated";
pub const REPLICATED_TIMEOUT: &str = "replicated_timeout";

/// The settings of one open database.
#[derive(Debug, Clone)]
pub struct Settings {
    pub journal: Journal,
    /// The settings of engines and media.
    pub options: EngineOptions,
    /// Whether a reader waits until what it reads is durable.
    pub read_durable: bool,
    /// Whether a commit returns only once its transaction is in the archive.
    pub replicated: bool,
    /// The longest time, in milliseconds, for which a commit with `replicated` waits for the archive.
    pub replicated_timeout: u64,
    /// The number of frames at which a background thread checkpoints the log, so that no committer has to; 0
    /// for never.
    pub background_checkpoint: u32,
    /// Whether to refuse what plain SQLite would serve.
    pub strict: bool,
    /// How write transactions of several connections run together.
    pub concurrent: Concurrency,
    /// The size in bytes to which the log truncates its file when the log starts over, as SQLite's own
    /// `PRAGMA journal_size_limit` sets it. `None` for no limit.
    pub size_limit: Option<u64>,
    /// The names of the settings that were given, as opposed to defaults.
    pub(super) explicit: Vec<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            journal: Journal::Auto,
            options: EngineOptions::default(),
            read_durable: false,
            replicated: false,
            replicated_timeout: 30_000,
            background_checkpoint: 0,
            strict: false,
            concurrent: Concurrency::Off,
            size_limit: None,
            explicit: Vec::new(),
        }
    }
}

/// The choice of what serves the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journal {
    /// The first engine whose media exist, else the base VFS.
    Auto,
    /// Always this engine.
    Engine(&'static Descriptor),
    /// The base VFS.
    Off,
}

/// How write transactions of several connections run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// As in stock SQLite.
    Off,
    /// One transaction writes at a time, but a transaction that has read can wait for its turn to write.
    Upgrade,
    /// Transactions run at the same time, and the VFS validates each of them when it commits.
    On,
}

/// One setting. Its environment variable is `DURALITE_` followed by the name in capitals.
#[derive(Clone, Copy)]
pub enum Row {
    /// A setting of a connection.
    Connection(&'static Setting<Settings>),
    /// A setting of an engine, or of its media.
    Engine(&'static EngineSetting),
}

/// Evaluates an expression for a setting of either kind.
macro_rules! ask {
    ($row:expr, $setting:ident => $answer:expr) => {
        match $row {
            Row::Connection($setting) => $answer,
            Row::Engine($setting) => $answer,
        }
    };
}

impl Row {
    pub fn name(&self) -> &'static str {
        ask!(self, setting => setting.name)
    }

    /// Returns the values that may be given, in words.
    #[cfg(test)]
    pub fn values(&self) -> String {
        ask!(self, setting => setting.values.to_string())
    }

    /// Returns whether the setting belongs to a log in use, so that all connections of a process must agree
    /// on it.
    pub fn is_shared(&self) -> bool {
        ask!(self, setting => setting.shared)
    }

    /// Returns whether the setting can be changed while a log is in use.
    pub fn is_changeable(&self) -> bool {
        ask!(self, setting => setting.changeable)
    }

    /// Returns whether the status of a log in use shows the setting.
    pub fn is_shown(&self) -> bool {
        ask!(self, setting => setting.shown)
    }

    /// Sets the setting from a text.
    pub fn set(&self, settings: &mut Settings, value: &str) -> Result<(), String> {
        match self {
            Self::Connection(setting) => setting.set(settings, value),
            Self::Engine(setting) => setting.set(&mut settings.options, value),
        }
    }

    /// Returns the text of the setting, as [`Row::set`] reads it.
    pub fn get(&self, settings: &Settings) -> String {
        match self {
            Self::Connection(setting) => setting.get(settings),
            Self::Engine(setting) => setting.get(&settings.options),
        }
    }
}

/// Returns every setting, in the order in which the status shows them.
pub fn rows() -> Vec<Row> {
    let mut rows = vec![Row::Connection(&JOURNAL)];
    rows.extend(engines::settings().into_iter().map(Row::Engine));
    let of_connections: [&ConnectionSetting; 6] = [
        &READ_DURABLE,
        &REPLICATED_ROW,
        &REPLICATED_TIMEOUT_ROW,
        &BACKGROUND_CHECKPOINT,
        &CONCURRENT_ROW,
        &STRICT_ROW,
    ];
    rows.extend(of_connections.map(Row::Connection));
    rows
}

/// Returns the setting of this name.
pub fn find(name: &str) -> Option<Row> {
    rows().into_iter().find(|setting| setting.name() == name)
}

/// Returns the names of all settings, for messages.
pub fn names() -> String {
    rows().iter().map(Row::name).collect::<Vec<_>>().join(", ")
}

type ConnectionSetting = Setting<Settings>;

static JOURNAL: ConnectionSetting = ConnectionSetting::new(
    "journal",
    Values::Made(journals),
    |all, given| journal(given).map(|value| all.journal = value),
    |all| journal_name(all.journal).to_owned(),
);

static READ_DURABLE: ConnectionSetting = ConnectionSetting::new(
    "read_durable",
    SWITCH,
    |all, given| given.switch().map(|value| all.read_durable = value),
    |all| on_off(all.read_durable),
)
.shown();

static REPLICATED_ROW: ConnectionSetting = ConnectionSetting::new(
    REPLICATED,
    SWITCH,
    |all, given| given.switch().map(|value| all.replicated = value),
    |all| on_off(all.replicated),
)
.changeable()
.shown();

static REPLICATED_TIMEOUT_ROW: ConnectionSetting = ConnectionSetting::new(
    REPLICATED_TIMEOUT,
    Values::Fixed("a number of milliseconds"),
    |all, given| given.parsed().map(|value| all.replicated_timeout = value),
    |all| all.replicated_timeout.to_string(),
)
.changeable()
.shown();

static BACKGROUND_CHECKPOINT: ConnectionSetting = ConnectionSetting::new(
    "background_checkpoint",
    Values::Fixed("on, off or a number of frames"),
    |all, given| background_checkpoint(given).map(|value| all.background_checkpoint = value),
    |all| all.background_checkpoint.to_string(),
)
.shown();

static CONCURRENT_ROW: ConnectionSetting = ConnectionSetting::new(
    CONCURRENT,
    Values::Fixed("off, upgrade or on"),
    |all, given| concurrency(given).map(|value| all.concurrent = value),
    |all| all.concurrent.name().to_owned(),
)
.changeable();

static STRICT_ROW: ConnectionSetting = ConnectionSetting::new(
    STRICT,
    SWITCH,
    |all, given| given.switch().map(|value| all.strict = value),
    |all| on_off(all.strict),
);

const AUTO: &str = "auto";
const OFF: &str = "off";
const UPGRADE: &str = "upgrade";
const ON: &str = "on";

/// Returns the values that `journal` takes, in words.
fn journals() -> String {
    let engines: Vec<&str> = engines::all().map(|engine| engine.name).collect();
    format!("{AUTO}, {} or {OFF}", engines.join(", "))
}

fn journal(given: &Given<'_>) -> Result<Journal, String> {
    match given.value {
        AUTO => Ok(Journal::Auto),
        OFF => Ok(Journal::Off),
        name => engines::by_name(name).map(Journal::Engine).ok_or_else(|| given.invalid()),
    }
}

fn journal_name(journal: Journal) -> &'static str {
    match journal {
        Journal::Auto => AUTO,
        Journal::Engine(engine) => engine.name,
        Journal::Off => OFF,
    }
}

fn concurrency(given: &Given<'_>) -> Result<Concurrency, String> {
    match given.value {
        OFF => Ok(Concurrency::Off),
        UPGRADE => Ok(Concurrency::Upgrade),
        ON => Ok(Concurrency::On),
        _ => Err(given.invalid()),
    }
}

impl Concurrency {
    /// Returns the text that the setting has for this value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => OFF,
            Self::Upgrade => UPGRADE,
            Self::On => ON,
        }
    }
}

/// The number of frames at which the background checkpoint begins. SQLite's own checkpoint begins much later,
/// at 1000.
const BACKGROUND_FRAMES: u32 = 400;

fn background_checkpoint(given: &Given<'_>) -> Result<u32, String> {
    match given.switch() {
        Ok(true) => Ok(BACKGROUND_FRAMES),
        Ok(false) => Ok(0),
        Err(_) => given.parsed(),
    }
}
