//! Settings as rows of a table. A row answers all questions about its setting.
//!
//! A row is in the module that its setting belongs to: that of an engine, that of the media or, if several engines share the
//! setting, [`common`]. An engine's descriptor names the engine's rows, including the shared ones.

pub mod common;
mod given;
pub(crate) mod media;
mod options;
mod values;

pub use given::{Given, is_off, name_of, on_off, text_of};
pub use options::{EngineOptions, OnClose};
pub use values::Values;

/// One setting of a `T`. Its environment variable is `DURALITE_` and the setting's name in capitals.
pub struct Setting<T> {
    /// The setting's name.
    pub name: &'static str,
    /// The valid values.
    pub values: Values,
    /// Whether it is a setting of a live log, and so the same for every connection of a process.
    pub shared: bool,
    /// Whether it can be changed while a log is in use.
    pub changeable: bool,
    /// Whether it is shown along with the metrics of a log in use.
    pub shown: bool,
    set: fn(&mut T, &Given<'_>) -> Result<(), String>,
    get: fn(&T) -> String,
}

/// A setting of an engine or of its media.
pub type EngineSetting = Setting<EngineOptions>;

impl<T> Setting<T> {
    /// Makes a setting of a connection, fixed once the connection's database is open.
    pub const fn new(
        name: &'static str,
        values: Values,
        set: fn(&mut T, &Given<'_>) -> Result<(), String>,
        get: fn(&T) -> String,
    ) -> Self {
        Self { name, values, shared: false, changeable: false, shown: false, set, get }
    }

    /// Makes it a setting of a live log.
    #[must_use]
    pub const fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Makes it a setting that can be changed while a log is in use.
    #[must_use]
    pub const fn changeable(mut self) -> Self {
        self.changeable = true;
        self
    }

    /// Makes it a setting that is shown along with the metrics of a log.
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

    /// The setting's text, as [`Setting::set`] reads it.
    pub fn get(&self, all: &T) -> String {
        (self.get)(all)
    }
}
