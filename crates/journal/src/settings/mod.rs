//! Settings as rows of a table: everything that is asked about a setting is answered from its row.
//!
//! A row stands where what it sets belongs: with an engine, with the media, or, where several engines share
//! it, in [`common`]. An engine's descriptor names its rows, those that it shares too.

pub mod common;
mod given;
pub(crate) mod media;
mod options;
mod values;

pub use given::{Given, is_off, name_of, on_off, text_of};
pub use options::{EngineOptions, OnClose};
pub use values::Values;

/// One setting of a `T`. The environment variable is the name in capitals after `DURALITE_`.
pub struct Setting<T> {
    /// Its name.
    pub name: &'static str,
    /// What may be given.
    pub values: Values,
    /// Of a live log, and the same for every connection of a process.
    pub shared: bool,
    /// Can be changed while a log is in use.
    pub changeable: bool,
    /// Is told along with the figures of a log in use.
    pub shown: bool,
    set: fn(&mut T, &Given<'_>) -> Result<(), String>,
    get: fn(&T) -> String,
}

/// A setting of an engine or of its media.
pub type EngineSetting = Setting<EngineOptions>;

impl<T> Setting<T> {
    /// A setting of a connection, fixed once its database is open.
    pub const fn new(
        name: &'static str,
        values: Values,
        set: fn(&mut T, &Given<'_>) -> Result<(), String>,
        get: fn(&T) -> String,
    ) -> Self {
        Self { name, values, shared: false, changeable: false, shown: false, set, get }
    }

    /// The same, of a live log.
    #[must_use]
    pub const fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// The same, to be changed while a log is in use.
    #[must_use]
    pub const fn changeable(mut self) -> Self {
        self.changeable = true;
        self
    }

    /// The same, told along with the figures of a log.
    #[must_use]
    pub const fn shown(mut self) -> Self {
        self.shown = true;
        self
    }

    /// Sets it from its text.
    ///
    /// # Errors
    /// What is wrong with the text, and what to use.
    pub fn set(&self, all: &mut T, value: &str) -> Result<(), String> {
        (self.set)(all, &Given { name: self.name, value, values: &self.values })
    }

    /// Its text, as [`Setting::set`] reads it.
    pub fn get(&self, all: &T) -> String {
        (self.get)(all)
    }
}
