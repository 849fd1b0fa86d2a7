//! The registry of engines.
//!
//! All code that depends on which engine keeps a log asks the registry: by the name in settings, by the first bytes of
//! a log's file, or by the available media.

pub mod nvwal;
pub mod ppl;
pub mod scratchpad;
pub mod waldio;

use std::sync::OnceLock;

use crate::engine::descriptor::{Descriptor, LogPlacement};
use crate::engine::media::MediaSet;
use crate::engine::settings::{EngineSetting, settings_of};

/// The product's engines, in the order in which `journal=auto` tries them.
pub static ENGINES: &[&Descriptor] =
    &[&nvwal::DESCRIPTOR, &scratchpad::DESCRIPTOR, &waldio::DESCRIPTOR, &ppl::DESCRIPTOR];

static ADDED: OnceLock<&'static [&'static Descriptor]> = OnceLock::new();

/// Adds the engines of a program that links this crate to the list, after those of the product. The program calls this
/// function once, before it opens the first database: settings that it read earlier would lack those of the new
/// engines.
///
/// # Errors
/// One of the engines has a name or a magic number that is already used, or engines have been added before.
pub fn add(engines: &'static [&'static Descriptor]) -> Result<(), &'static str> {
    for (position, engine) in engines.iter().enumerate() {
        let mut others = ENGINES.iter().chain(&engines[..position]);
        if others.any(|other| other.name == engine.name || other.magic == engine.magic)
            || ["auto", "off"].contains(&engine.name)
        {
            return Err("an engine with this name or this magic number exists already");
        }
    }
    ADDED.set(engines).map_err(|_| "engines can be added only once, and were added before")
}

/// Returns all engines.
pub fn all() -> impl Iterator<Item = &'static Descriptor> {
    ENGINES.iter().chain(ADDED.get().copied().unwrap_or_default()).copied()
}

/// Returns the engine with this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Descriptor> {
    all().find(|engine| engine.name == name)
}

/// Returns the engine whose magic number begins these bytes.
#[must_use]
pub fn by_magic(first_bytes: &[u8]) -> Option<&'static Descriptor> {
    all().find(|engine| first_bytes.starts_with(&engine.magic))
}

/// Returns the placement of a log on these media, for the first engine that has all its media in the set.
///
/// # Errors
/// A text that says what is missing. The text is about the first engine whose media are all named in the settings. If there
/// is no such engine, it is about the last engine.
pub fn choose(media: &MediaSet) -> Result<LogPlacement, String> {
    let (mut why, mut is_named) = (String::new(), false);
    for engine in all() {
        match LogPlacement::of(engine, media) {
            Ok(directory) => return Ok(directory),
            Err(_) if is_named => {}
            Err(message) => {
                is_named = engine.needs.iter().all(|medium| media.has(*medium));
                why = message;
            }
        }
    }
    Err(why)
}

/// Returns the settings of all engines and of the media that they need, each once, in the order in which users see
/// them.
#[must_use]
pub fn settings() -> Vec<&'static EngineSetting> {
    let mut found: Vec<&'static EngineSetting> = Vec::new();
    for engine in all() {
        let of_media = engine.needs.iter().flat_map(|medium| settings_of(*medium));
        for setting in of_media.chain(engine.settings) {
            if !found.iter().any(|other| other.name == setting.name) {
                found.push(setting);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::media::{Medium, Memory, MemoryKind};

    #[test]
    fn engines_are_told_apart_by_name_and_by_magic() {
        for engine in ENGINES {
            assert_eq!(by_name(engine.name), Some(*engine));
            assert_eq!(by_magic(&engine.magic), Some(*engine));
            assert!(!engine.needs.is_empty());
        }
        assert_eq!((by_name("scratch"), by_magic(b"SQLite f")), (None, None));
        assert!(add(ENGINES).is_err());
    }

    #[test]
    fn one_that_needs_nothing_special_serves_where_nothing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("app.db");
        let found = choose(&MediaSet::named(&Default::default(), &database)).unwrap();
        assert_eq!((found.engine.name, &*found.dir), ("waldio", dir.path()));
        let memory = crate::engine::media::MediaOptions {
            nvram: Some(crate::engine::media::Nvram::Emulate),
            nvram_dir: Some(dir.path().to_path_buf()),
            ..Default::default()
        };
        let found = choose(&MediaSet::named(&memory, &database)).unwrap();
        assert_eq!((found.engine.name, &*found.dir), ("nvwal", dir.path()));
        let region = crate::engine::media::MediaOptions {
            scratchpad: Some(crate::engine::media::ScratchpadPlace::Emulate),
            home_emulated: true,
            nvram: None,
            ..memory
        };
        let found = choose(&MediaSet::named(&region, &database)).unwrap();
        assert_eq!((found.engine.name, &*found.dir), ("scratchpad", dir.path()));
        assert!(choose(&MediaSet::default()).is_err());
    }

    #[test]
    fn an_engine_takes_all_the_media_that_it_needs_and_no_other() {
        static TWO: Descriptor = Descriptor {
            name: "two",
            magic: *b"TWOMEDIA",
            needs: &[Medium::LogBlocks, Medium::HomeMemory],
            ..waldio::DESCRIPTOR
        };
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory { kind: MemoryKind::Emulated, dir: dir.path().to_path_buf() };
        let blocks = MediaSet { log_blocks: Some(dir.path().to_path_buf()), ..MediaSet::default() };
        assert!(LogPlacement::of(&TWO, &blocks).is_err());
        let all = MediaSet { home_memory: Some(memory.clone()), log_memory: Some(memory.clone()), ..blocks };
        let found = LogPlacement::of(&TWO, &all).unwrap();
        assert_eq!(found.dir, dir.path());
        assert_eq!(found.media().home_memory, Some(memory));
        assert_eq!(found.media().log_memory, None);
        assert!(!found.is_dax());
        // The log of a database may be in another directory. The placement names that directory, and pages stay on the
        // same medium.
        let elsewhere = LogPlacement::at(&TWO, "/elsewhere".as_ref(), &all);
        assert_eq!(elsewhere.dir, std::path::Path::new("/elsewhere"));
        assert_eq!(elsewhere.media().home_memory, found.media().home_memory);
    }

    #[test]
    fn settings_that_engines_share_are_told_once() {
        let mut names: Vec<&str> = settings().iter().map(|setting| setting.name).collect();
        let count = names.len();
        assert!(names.contains(&"log_limit") && names.contains(&"log_dir"));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
