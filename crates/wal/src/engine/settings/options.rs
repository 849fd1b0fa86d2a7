//! The values of the settings of engines and media.

use std::any::{Any, TypeId};
use std::sync::Arc;

use crate::engine::media::MediaOptions;

/// What the last connection that closes does with the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnClose {
    /// Writes everything home and lifts the guard. The database file alone is then the database.
    #[default]
    Drain,
    /// Leaves the guard and the log to the next connection that opens the database.
    Keep,
}

impl OnClose {
    /// The names in settings.
    pub(super) const NAMES: [(&'static str, Self); 2] = [("drain", Self::Drain), ("keep", Self::Keep)];
}

/// The options of engines and media. Each engine has a part of its own, of a type that only the engine has to know.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Where media are, and how emulated media work.
    pub media: MediaOptions,
    /// Most bytes a log may take, 0 for as many as the file system has; `None` leaves the limit to the engine's own part.
    pub limit_bytes: Option<u64>,
    /// Bytes of page images kept in memory; `None` leaves the number to the engine's own part.
    pub cache_bytes: Option<usize>,
    /// Whether the engine logs differences, or whole pages; `None` leaves the choice to the engine's own part.
    pub diff: Option<bool>,
    /// What the last connection of this process does with the log, if it is the last connection of all processes.
    pub on_close: OnClose,
    own: Vec<(TypeId, Arc<dyn Any + Send + Sync>)>,
}

impl EngineOptions {
    /// An engine's own part; the default of its type if nothing has been set.
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

    /// Returns the options with this part as an engine's own.
    #[must_use]
    pub fn with<T: Clone + Default + Send + Sync + 'static>(mut self, part: T) -> Self {
        self.change(|own| *own = part);
        self
    }
}

#[cfg(test)]
mod tests {
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
