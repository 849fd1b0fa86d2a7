//! The media for logs: all media that the settings name for a process, and the selection of them that one engine uses.

use std::path::{Path, PathBuf};

use duralite_medium::block::check_filesystem;
use duralite_medium::{
    Latency, PersistenceDomain, Persistency, has_dax, in_words, is_dax, persistence_domain,
};

/// The directory of emulated memory if the settings name none.
pub const SHARED_MEMORY_DIR: &str = "/dev/shm";

/// A kind of medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Byte-addressable memory for the log.
    LogMemory,
    /// Byte-addressable memory for the database's pages.
    HomeMemory,
    /// A directory of block files for the log.
    LogBlocks,
    /// Byte-addressable memory for a region that the logs of several databases share.
    Scratchpad,
}

/// What memory guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Persistent memory, on a DAX file system.
    Dax,
    /// Memory backed by a file on any file system; its contents survive the crash of a process, not a power loss.
    Emulated,
}

impl MemoryKind {
    fn word(self) -> u64 {
        match self {
            Self::Dax => 1,
            Self::Emulated => 2,
        }
    }
}

/// The way in which stores to pages of a mapped database, and to logs in the same memory, become durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HomeSync {
    /// For each page, whichever of `WriteBack` and `WriteThrough` costs less.
    #[default]
    Adaptive,
    /// For each page, the rule of the paper (Xu et al., JCST 2016): non-temporal stores for a page that is written
    /// less often than the average page.
    Average,
    /// Ordinary stores, and a flush at the sync.
    WriteBack,
    /// Non-temporal stores.
    WriteThrough,
}

impl HomeSync {
    /// The names of the values in settings.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("adaptive", Self::Adaptive),
        ("average", Self::Average),
        ("wb", Self::WriteBack),
        ("wt", Self::WriteThrough),
    ];

    /// Returns the name of this value in settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Average => "average",
            Self::WriteBack => "wb",
            Self::WriteThrough => "wt",
        }
    }
}

/// A directory of files that are mapped as memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// What the memory guarantees.
    pub kind: MemoryKind,
    /// The directory.
    pub dir: PathBuf,
}

/// Memory for a region that the logs of several databases share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scratchpad {
    /// The memory's directory, and what the memory guarantees.
    pub memory: Memory,
    /// Whether a store in this memory is durable without a flush.
    pub durable_on_store: bool,
}

impl Scratchpad {
    /// Describes the memory in a directory on a DAX file system. Asks the platform whether cache lines have to be
    /// flushed.
    #[must_use]
    fn on_dax(dir: &Path) -> Self {
        let memory = Memory { kind: MemoryKind::Dax, dir: dir.to_path_buf() };
        Self { memory, durable_on_store: persistence_domain(dir) == PersistenceDomain::CpuCache }
    }

    fn word(&self) -> u64 {
        self.memory.kind.word() + if self.durable_on_store { 4 } else { 0 }
    }
}

/// The value of the setting `scratchpad`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScratchpadPlace {
    /// A mapped file on an ordinary file system, treated as memory in which a store is durable without a flush.
    Emulate,
    /// A directory on a DAX file system.
    Directory(PathBuf),
    /// No memory of its own: the region is in the memory that `nvram` names, and the engine flushes cache lines.
    Off,
}

/// The value of the setting `nvram`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nvram {
    /// A mapped file on an ordinary file system.
    Emulate,
    /// A directory on a DAX file system.
    Directory(PathBuf),
}

/// Where the media are according to the settings, and how emulated memory behaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MediaOptions {
    /// Memory for logs.
    pub nvram: Option<Nvram>,
    /// Memory for a region that the logs of several databases share.
    pub scratchpad: Option<ScratchpadPlace>,
    /// The directory of emulated memory; `None` for [`SHARED_MEMORY_DIR`].
    pub nvram_dir: Option<PathBuf>,
    /// The directory of block files; `None` for the database's own.
    pub log_dir: Option<PathBuf>,
    /// Whether an engine may map a database on an ordinary file system as if it were memory.
    pub home_emulated: bool,
    /// The way in which stores to pages in memory become durable.
    pub home_sync: HomeSync,
    /// Added latency of memory, for experiments.
    pub latency: Latency,
    /// Persistency model of memory, for experiments.
    pub persistency: Persistency,
}

impl MediaOptions {
    /// Checks that emulated media have a directory.
    ///
    /// # Errors
    /// A text that says which directory is missing, and which setting can name another one.
    pub fn check(&self) -> Result<(), String> {
        let nowhere = self.nvram_dir.is_none() && !Path::new(SHARED_MEMORY_DIR).is_dir();
        let emulated = [
            ("nvram", self.nvram == Some(Nvram::Emulate)),
            ("scratchpad", self.scratchpad == Some(ScratchpadPlace::Emulate)),
        ];
        if let Some((name, _)) = emulated.into_iter().find(|(_, emulated)| *emulated && nowhere) {
            return Err(format!(
                "{name}=emulate uses {SHARED_MEMORY_DIR}, which does not exist; set nvram_dir=DIR"
            ));
        }
        Ok(())
    }

    /// Checks that the settings name a medium that `who` needs. Succeeds for a medium that needs no setting.
    ///
    /// # Errors
    /// A text that says how to name the medium.
    pub fn check_named(&self, medium: Medium, who: &str) -> Result<(), String> {
        match medium {
            Medium::LogMemory if self.nvram.is_none() => Err(format!(
                "{who} needs NVRAM: set nvram=DIR to a directory on a DAX file \
                 system, or nvram=emulate (survives a process crash, not a power loss)"
            )),
            Medium::Scratchpad if self.scratchpad.is_none() => Err(format!(
                "{who} needs a region: set scratchpad=DIR to a directory on a DAX file system, \
                 scratchpad=emulate (survives a process crash, not a power loss), or scratchpad=off for a \
                 region in the memory that nvram names"
            )),
            Medium::Scratchpad if self.scratchpad == Some(ScratchpadPlace::Off) => {
                self.check_named(Medium::LogMemory, "scratchpad=off")
            }
            // The settings name the medium, or it needs no name: pages are always in the database's directory, and
            // block files may be there too.
            Medium::LogMemory | Medium::HomeMemory | Medium::LogBlocks | Medium::Scratchpad => Ok(()),
        }
    }

    fn emulated_dir(&self) -> PathBuf {
        self.nvram_dir.clone().unwrap_or_else(|| SHARED_MEMORY_DIR.into())
    }
}

/// The media of one database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MediaSet {
    /// Memory for the database's log.
    pub log_memory: Option<Memory>,
    /// Memory for the database's pages.
    pub home_memory: Option<Memory>,
    /// The directory of block files for the database's log.
    pub log_blocks: Option<PathBuf>,
    /// Memory for a region that the logs of several databases share.
    pub scratchpad: Option<Scratchpad>,
}

impl MediaSet {
    /// Returns all media that the settings name for the database at this path.
    #[must_use]
    pub fn named(options: &MediaOptions, database: &Path) -> Self {
        let log_memory = options.nvram.as_ref().map(|nvram| match nvram {
            Nvram::Emulate => Memory { kind: MemoryKind::Emulated, dir: options.emulated_dir() },
            Nvram::Directory(dir) => Memory { kind: MemoryKind::Dax, dir: dir.clone() },
        });
        let beside = || database.parent().map(Path::to_path_buf).unwrap_or_default();
        let kind = if options.home_emulated { MemoryKind::Emulated } else { MemoryKind::Dax };
        let home_memory = Some(Memory { kind, dir: beside() });
        let log_blocks = Some(options.log_dir.clone().unwrap_or_else(beside));
        let scratchpad = options.scratchpad.as_ref().and_then(|place| match place {
            ScratchpadPlace::Emulate => {
                let memory = Memory { kind: MemoryKind::Emulated, dir: options.emulated_dir() };
                Some(Scratchpad { memory, durable_on_store: true })
            }
            ScratchpadPlace::Directory(dir) => Some(Scratchpad::on_dax(dir)),
            ScratchpadPlace::Off => {
                log_memory.clone().map(|memory| Scratchpad { memory, durable_on_store: false })
            }
        });
        Self { log_memory, home_memory, log_blocks, scratchpad }
    }

    /// Checks that the set has a medium, and that it can be used.
    ///
    /// # Errors
    /// A text that says why the medium cannot be used.
    pub fn check(&self, medium: Medium) -> Result<(), String> {
        match medium {
            Medium::LogMemory if self.log_memory.is_none() => {
                Err("no NVRAM; set nvram=DIR or nvram=emulate".to_owned())
            }
            Medium::HomeMemory => match &self.home_memory {
                Some(memory) => check_home(memory),
                None => Err("no memory for pages".to_owned()),
            },
            Medium::Scratchpad if self.scratchpad.is_none() => {
                Err("no region; set scratchpad=DIR or scratchpad=emulate".to_owned())
            }
            Medium::LogBlocks => match &self.log_blocks {
                Some(dir) => check_place(dir),
                None => Err("no directory for blocks".to_owned()),
            },
            Medium::LogMemory | Medium::Scratchpad => Ok(()),
        }
    }

    /// Returns whether the set has a medium, even if it cannot be used.
    #[must_use]
    pub fn has(&self, medium: Medium) -> bool {
        match medium {
            Medium::LogMemory => self.log_memory.is_some(),
            Medium::HomeMemory => self.home_memory.is_some(),
            Medium::Scratchpad => self.scratchpad.is_some(),
            Medium::LogBlocks => self.log_blocks.is_some(),
        }
    }

    /// Returns the memory of this medium; `None` for blocks.
    #[must_use]
    pub fn memory(&self, medium: Medium) -> Option<&Memory> {
        match medium {
            Medium::LogMemory => self.log_memory.as_ref(),
            Medium::HomeMemory => self.home_memory.as_ref(),
            Medium::Scratchpad => self.scratchpad.as_ref().map(|scratchpad| &scratchpad.memory),
            Medium::LogBlocks => None,
        }
    }

    /// Returns the same set, but each memory counts as the kind that its directory provides. Emulated memory in a
    /// directory on a DAX file system becomes persistent memory. Memory for pages becomes emulated if its file system
    /// is not DAX.
    #[must_use]
    pub fn as_found(mut self) -> Self {
        let is_more = |memory: &Memory| memory.kind == MemoryKind::Emulated && is_dax(&memory.dir);
        if let Some(memory) = &mut self.log_memory
            && is_more(memory)
        {
            memory.kind = MemoryKind::Dax;
        }
        if let Some(scratchpad) = &mut self.scratchpad
            && is_more(&scratchpad.memory)
        {
            *scratchpad = Scratchpad::on_dax(&scratchpad.memory.dir);
        }
        if let Some(memory) = &mut self.home_memory
            && memory.kind == MemoryKind::Dax
            && !is_dax(&memory.dir)
        {
            memory.kind = MemoryKind::Emulated;
        }
        self
    }

    /// Returns the same set, restricted to these media.
    #[must_use]
    pub fn only(&self, kinds: &[Medium]) -> Self {
        let has = |medium| kinds.contains(&medium);
        Self {
            log_memory: self.log_memory.clone().filter(|_| has(Medium::LogMemory)),
            home_memory: self.home_memory.clone().filter(|_| has(Medium::HomeMemory)),
            log_blocks: self.log_blocks.clone().filter(|_| has(Medium::LogBlocks)),
            scratchpad: self.scratchpad.clone().filter(|_| has(Medium::Scratchpad)),
        }
    }

    /// Returns the directory of a medium.
    #[must_use]
    pub fn directory(&self, medium: Medium) -> Option<&Path> {
        match medium {
            Medium::LogMemory => self.log_memory.as_ref().map(|memory| &*memory.dir),
            Medium::HomeMemory => self.home_memory.as_ref().map(|memory| &*memory.dir),
            Medium::LogBlocks => self.log_blocks.as_deref(),
            Medium::Scratchpad => self.scratchpad.as_ref().map(|scratchpad| &*scratchpad.memory.dir),
        }
    }

    /// Returns the same set, but with this medium in this directory. Memory counts as emulated.
    #[must_use]
    pub fn with(mut self, medium: Medium, dir: &Path) -> Self {
        let memory = || Some(Memory { kind: MemoryKind::Emulated, dir: dir.to_path_buf() });
        match medium {
            Medium::LogMemory => self.log_memory = memory(),
            Medium::HomeMemory => self.home_memory = memory(),
            Medium::LogBlocks => self.log_blocks = Some(dir.to_path_buf()),
            Medium::Scratchpad => {
                self.scratchpad = memory().map(|memory| Scratchpad { memory, durable_on_store: true });
            }
        }
        self
    }

    /// Returns a number that says which kinds of memory the set has, regardless of the directories. Processes whose sets
    /// differ in this number must not use a log at the same time. So the first process stores the number in the segment, and
    /// others compare it. The number is never 0.
    pub(crate) fn word(&self) -> u64 {
        const BLOCKS: u64 = 3;
        const BOTH: u64 = 4;
        let kind = |memory: &Option<Memory>| memory.as_ref().map_or(0, |memory| memory.kind.word());
        let log = match (kind(&self.log_memory), &self.log_blocks) {
            (0, Some(_)) => BLOCKS,
            (memory, Some(_)) => BOTH + memory,
            (memory, None) => memory,
        };
        let scratchpad = self.scratchpad.as_ref().map_or(0, Scratchpad::word);
        (scratchpad << 16 | kind(&self.home_memory) << 8 | log).max(1)
    }
}

/// Checks that an engine can map a database in this directory as memory (invariant 20).
fn check_home(memory: &Memory) -> Result<(), String> {
    let dir = if memory.dir.as_os_str().is_empty() { Path::new(".") } else { &memory.dir };
    check_directory(dir)?;
    if memory.kind == MemoryKind::Dax && !has_dax(dir).map_err(|error| cannot_use(dir, &error))? {
        return Err(format!(
            "{} is not on a DAX file system, so its databases cannot be mapped as persistent memory: move them to \
             a DAX file system, or set home=emulate (survives a process crash, not a power loss)",
            dir.display()
        ));
    }
    check_place(dir)
}

fn cannot_use(dir: &Path, error: &std::io::Error) -> String {
    format!("cannot use directory {}: {}", dir.display(), in_words(error))
}

/// Checks that a directory exists. If it does not exist, the caller must fail, because no engine may fall back on
/// another medium.
pub(crate) fn check_directory(dir: &Path) -> Result<(), String> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let found = dir.metadata().map_err(|error| cannot_use(dir, &error))?;
    if found.is_dir() { Ok(()) } else { Err(format!("{} is not a directory; name another", dir.display())) }
}

/// Checks that the directory of a file exists.
///
/// # Errors
/// The system's error.
pub fn check_parent(path: &Path) -> Result<(), String> {
    path.parent().map_or(Ok(()), check_directory)
}

fn check_place(dir: &Path) -> Result<(), String> {
    check_directory(dir)?;
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    check_filesystem(dir).map(|_| ()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ways_to_make_pages_durable() {
        for (name, sync) in HomeSync::NAMES {
            assert_eq!(sync.as_str(), name);
        }
    }

    #[test]
    fn inv20_pages_are_in_memory_where_that_is_or_where_it_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let named = |home_emulated| {
            let options = MediaOptions { home_emulated, ..MediaOptions::default() };
            MediaSet::named(&options, &dir.path().join("app.db"))
        };
        assert_eq!(named(true).check(Medium::HomeMemory), Ok(()));
        if !is_dax(dir.path()) {
            let why = named(false).check(Medium::HomeMemory).unwrap_err();
            assert!(why.contains("home=emulate"), "{why}");
        }
        assert!(MediaSet::default().check(Medium::HomeMemory).is_err());
        assert_ne!(named(true).word(), named(false).word());
    }

    #[test]
    fn the_words_of_sets_differ_and_those_of_one_medium_stay() {
        let memory = |kind| Some(Memory { kind, dir: PathBuf::new() });
        let (dax, emulated, blocks) =
            (memory(MemoryKind::Dax), memory(MemoryKind::Emulated), Some(PathBuf::new()));
        let set =
            |log_memory: &Option<Memory>, home_memory: &Option<Memory>, log_blocks: &Option<PathBuf>| {
                let [log_memory, home_memory] = [log_memory, home_memory].map(Clone::clone);
                MediaSet { log_memory, home_memory, log_blocks: log_blocks.clone(), scratchpad: None }.word()
            };
        assert_eq!(
            [set(&dax, &None, &None), set(&emulated, &None, &None), set(&None, &None, &blocks)],
            [1, 2, 3]
        );
        let mut words = Vec::new();
        for home in [&None, &dax, &emulated] {
            for log in [&None, &dax, &emulated] {
                for blocks in [&None, &blocks] {
                    if log.is_some() || blocks.is_some() {
                        words.push(set(log, home, blocks));
                    }
                }
            }
        }
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
    }
}
