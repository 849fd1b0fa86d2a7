//! Says what is durable after the first part of a recording, and what a crash at that time may leave.
//!
//! - Memory: each line holds everything up to its last flush and fence, and any prefix of the later stores,
//!   word by word. The processor may write a line back at any time, and a line that is flushed but not yet
//!   fenced may or may not have reached the medium. Words of 8 bytes are atomic. A run may store to some
//!   lines that it never flushes. Their data need not survive. In the model, either all or none of these
//!   lines have reached the medium.
//! - Files on a device: each sector of 512 bytes holds any version since the last sync, and the file has any
//!   size that it had since then. A sector for which no version was chosen keeps its durable content, or
//!   holds zeros if it has none. If such a file is also mapped as memory, its lines are in doubt like those
//!   of memory, until they are flushed and fenced, or the file is synced.
//! - A mapped database on a disk of its own ([`Model::over_disk`]): the disk decides which names exist and
//!   how long the file is, as on a file system with direct access. The file's content counts as memory.
//! - Names of logs: after a crash, a name points to any of the files to which it has pointed since its
//!   directory was last synced. All other names in the database's directory belong to SQLite. They all become
//!   durable when any file with such a name is synced, as on file systems that journal their metadata.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use duralite_crashmodel::{Lines, SECTOR, Sectors, window};

use duralite_wal::placement::is_log_name;

use crate::event::{Event, FileId, FileKind, RecordedFile, Recording};

/// What a path holds after a crash; `None` when there is no such file.
pub type Contents = Vec<(PathBuf, Option<Vec<u8>>)>;

#[derive(Clone, Debug)]
struct File {
    kind: FileKind,
    /// What programs see.
    visible: Vec<u8>,
    durable: Vec<u8>,
    lines: Lines,
    /// Lines that are never flushed.
    volatile: HashSet<u64>,
    sectors: Sectors,
    /// Sizes that the file had since the last sync.
    sizes: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
struct Name {
    durable: Option<FileId>,
    /// The files to which the name has pointed since it was last durable.
    pending: Vec<Option<FileId>>,
}

/// Everything that a crash may leave in more than one state.
#[derive(Clone, Debug)]
pub struct Model {
    files: Vec<File>,
    names: BTreeMap<PathBuf, Name>,
    /// The database's directory.
    home: PathBuf,
    /// The path of the database, if its directory is on a disk of its own.
    on_disk: Option<PathBuf>,
    paths: Vec<PathBuf>,
}

/// A piece of content or a name that a crash may leave in one of several states. State 0 is what was durable
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    place: Place,
    /// The number of states.
    pub states: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Line(FileId, u64),
    /// All lines that are never flushed.
    Volatile(FileId),
    Sector(FileId, u64),
    Size(FileId),
    /// The n-th path in order.
    Name(usize),
}

impl Model {
    /// Returns the model at the beginning of the recording. `home` is the database's directory. The module
    /// documentation says when names in it become durable, for logs and for other files.
    #[must_use]
    pub fn new(recording: &Recording, home: &Path) -> Self {
        let files = recording.files.iter().enumerate().map(|(nth, file)| File {
            kind: file.kind,
            visible: file.initial.clone(),
            durable: file.initial.clone(),
            lines: Lines::default(),
            volatile: recording.volatile.get(nth).cloned().unwrap_or_default(),
            sectors: Sectors::default(),
            sizes: Vec::new(),
        });
        let names = recording
            .names
            .iter()
            .map(|(path, file)| (path.clone(), Name { durable: Some(*file), pending: Vec::new() }));
        Self {
            files: files.collect(),
            names: names.collect(),
            home: home.to_path_buf(),
            on_disk: None,
            paths: recording.files.iter().map(|file| file.path.clone()).collect(),
        }
    }

    /// Returns the model at the beginning of the recording of a mapped database. The disk decides the names
    /// and sizes in the database's directory, so the model decides only about the database's content.
    /// [`Model::crash`] does not know the file's size, so the content that it returns may reach beyond the
    /// end of the file.
    #[must_use]
    pub fn over_disk(recording: &Recording, database: &Path) -> Self {
        let home = database.parent().unwrap_or(database);
        Self { on_disk: Some(database.to_path_buf()), ..Self::new(recording, home) }
    }

    /// Returns whether the disk decides the name and size of this path.
    fn is_on_disk(&self, path: &Path) -> bool {
        self.on_disk.is_some() && path.starts_with(&self.home)
    }

    /// Returns whether an event makes something durable. Fewer states are possible after such an event.
    #[must_use]
    pub fn is_barrier(event: &Event) -> bool {
        matches!(
            event,
            Event::Fence { .. } | Event::Sync { .. } | Event::SyncRange { .. } | Event::SyncNames { .. }
        )
    }

    /// Applies the next event of the recording.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Store { file, at, bytes } => self.files[file.0 as usize].store(*at, bytes),
            Event::Flush { file, at, len, .. } => self.files[file.0 as usize].lines.flush(*at, *len),
            Event::Fence { file, all, .. } => {
                let File { lines, durable, .. } = &mut self.files[file.0 as usize];
                if *all { lines.fence_all(durable) } else { lines.fence(durable) }
            }
            Event::Write { file, at, bytes } => self.files[file.0 as usize].write(*at, bytes),
            Event::Truncate { file, size } => self.files[file.0 as usize].truncate(*size),
            Event::Extend { file, size } => self.files[file.0 as usize].extend(*size),
            Event::Sync { file, .. } => {
                self.files[file.0 as usize].sync();
                let home = self.home.clone();
                let is_sqlites = |path: &Path| path.starts_with(&home) && !is_log_name(path);
                if is_sqlites(&self.paths[file.0 as usize]) {
                    self.settle_names(is_sqlites);
                }
            }
            Event::Lost { file } => self.files[file.0 as usize].lose(),
            Event::SyncRange { file, at, len, .. } => self.files[file.0 as usize].sync_range(*at, *len),
            Event::Name { path, file } => self.names.entry(path.clone()).or_default().pending.push(*file),
            Event::SyncNames { path, .. } => {
                let dir = path.parent().map(Path::to_path_buf);
                self.settle_names(|path| path.parent() == dir.as_deref());
            }
            Event::Disk(_) | Event::Begin { .. } | Event::Acknowledged { .. } => {}
        }
    }

    /// Applies a flush that the medium reports as done but does not carry out. Written sectors may or may not
    /// have reached the device, and no later sync writes them. Flushed lines of memory do not reach the
    /// medium. They may reach it after another store to the same line.
    pub fn drop_flush(&mut self, event: &Event) {
        match event {
            Event::Fence { file, all, .. } => self.files[file.0 as usize].lines.lose(*all),
            Event::Sync { file, .. } | Event::SyncRange { file, .. } => {
                let File { sectors, sizes, .. } = &mut self.files[file.0 as usize];
                sectors.fail_sync();
                sizes.clear();
            }
            _ => {}
        }
    }

    /// Returns what remains if every process dies now: everything that the processes wrote, durable or not.
    /// The power may fail later, so this also returns a recording that begins in this state. Its files begin
    /// with the durable content, and its first events repeat the writes that are not durable.
    #[must_use]
    pub fn survive(&self) -> (Contents, Recording) {
        let mut recording = Recording::default();
        for (file, path) in self.files.iter().zip(&self.paths) {
            let (path, kind, initial) = (path.clone(), file.kind, file.durable.clone());
            recording.files.push(RecordedFile { path, kind, initial });
        }
        for (index, file) in self.files.iter().enumerate() {
            file.redo(FileId(index as u32), &mut recording.events);
        }
        let mut contents = Contents::new();
        for (path, name) in &self.names {
            if let Some(id) = name.durable {
                recording.names.push((path.clone(), id));
            }
            let pending = name.pending.iter().map(|file| Event::Name { path: path.clone(), file: *file });
            recording.events.extend(pending);
            let last = name.pending.last().copied().unwrap_or(name.durable);
            let content = last.map(|id| self.files[id.0 as usize].visible.clone());
            contents.push((path.clone(), content));
        }
        (contents, recording)
    }

    fn settle_names(&mut self, which: impl Fn(&Path) -> bool) {
        for (_, name) in self.names.iter_mut().filter(|(path, _)| which(path)) {
            if let Some(last) = name.pending.last() {
                name.durable = *last;
                name.pending.clear();
            }
        }
    }

    /// Returns every piece in doubt.
    #[must_use]
    pub fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (index, (path, name)) in self.names.iter().enumerate() {
            if !name.pending.is_empty() && !self.is_on_disk(path) {
                let states = 1 + name.pending.len();
                choices.push(Choice { place: Place::Name(index), states });
            }
        }
        for (index, file) in self.files.iter().enumerate() {
            let id = FileId(index as u32);
            let path = &self.paths[index];
            let is_on_disk = self.is_on_disk(path);
            if !self.is_reachable(id) || is_on_disk && self.on_disk.as_ref() != Some(path) {
                continue;
            }
            let lines = file.lines.in_doubt().filter(|(line, _)| !file.volatile.contains(line));
            choices.extend(lines.map(|(line, states)| Choice { place: Place::Line(id, line), states }));
            if file.lines.in_doubt().any(|(line, _)| file.volatile.contains(&line)) {
                choices.push(Choice { place: Place::Volatile(id), states: 2 });
            }
            let sectors = file.sectors.in_doubt();
            choices
                .extend(sectors.map(|(sector, states)| Choice { place: Place::Sector(id, sector), states }));
            if !file.sizes.is_empty() && !is_on_disk {
                let states = 1 + file.sizes.len();
                choices.push(Choice { place: Place::Size(id), states });
            }
        }
        choices
    }

    /// Returns whether any name may point to this file after a crash.
    fn is_reachable(&self, id: FileId) -> bool {
        self.names.values().any(|name| name.durable == Some(id) || name.pending.contains(&Some(id)))
    }

    /// Returns what a crash leaves if each choice has the chosen state. `choices` and `chosen` are in the
    /// order of [`Model::choices`].
    #[must_use]
    pub fn crash(&self, choices: &[Choice], chosen: &[usize]) -> Contents {
        let mut images: Vec<Option<Vec<u8>>> = vec![None; self.files.len()];
        let mut names: Vec<Option<FileId>> = self.names.values().map(|name| name.durable).collect();
        let mut sizes: Vec<Option<u64>> = vec![None; self.files.len()];
        for (choice, state) in choices.iter().zip(chosen) {
            let Some(nth) = state.checked_sub(1) else { continue };
            match choice.place {
                Place::Name(index) => {
                    if let Some(name) = self.names.values().nth(index) {
                        names[index] = name.pending.get(nth).copied().flatten();
                    }
                }
                Place::Size(id) => {
                    sizes[id.0 as usize] = self.files[id.0 as usize].sizes.get(nth).copied();
                }
                Place::Line(id, line) => {
                    let file = &self.files[id.0 as usize];
                    let image = images[id.0 as usize].get_or_insert_with(|| file.durable.clone());
                    file.lines.leave(image, line, *state);
                }
                Place::Volatile(id) => {
                    let file = &self.files[id.0 as usize];
                    let image = images[id.0 as usize].get_or_insert_with(|| file.durable.clone());
                    for (line, states) in file.lines.in_doubt() {
                        if file.volatile.contains(&line) {
                            file.lines.leave(image, line, states - 1);
                        }
                    }
                }
                Place::Sector(id, sector) => {
                    let file = &self.files[id.0 as usize];
                    let image = images[id.0 as usize].get_or_insert_with(|| file.durable.clone());
                    file.sectors.leave(image, sector, *state);
                }
            }
        }
        let content_of = |id: FileId| {
            let file = &self.files[id.0 as usize];
            let mut image = images[id.0 as usize].clone().unwrap_or_else(|| file.durable.clone());
            if file.kind == FileKind::Sectors && !self.is_on_disk(&self.paths[id.0 as usize]) {
                image.resize(sizes[id.0 as usize].unwrap_or(file.durable.len() as u64) as usize, 0);
            }
            image
        };
        self.names.keys().zip(names).map(|(path, id)| (path.clone(), id.map(content_of))).collect()
    }
}

/// Returns the number of states of each piece.
#[must_use]
pub fn states_of(choices: &[Choice]) -> Vec<usize> {
    choices.iter().map(|choice| choice.states).collect()
}

/// Returns a random state, in the form that [`Model::crash`] takes.
pub fn sample(choices: &[Choice], random: &mut fastrand::Rng) -> Vec<usize> {
    window::sample(&states_of(choices), random)
}

impl File {
    /// Adds the events that turn the durable content into the content that programs see. The events contain
    /// no flush of memory. So a crash may lose stores that were flushed but not fenced, like all others.
    fn redo(&self, file: FileId, events: &mut Vec<Event>) {
        for (at, word) in self.lines.stores() {
            events.push(Event::Store { file, at, bytes: Box::new(*word) });
        }
        for size in &self.sizes {
            events.push(Event::Truncate { file, size: *size });
        }
        for (sector, content) in self.sectors.versions() {
            let at = sector * SECTOR as u64;
            let room = (self.visible.len() as u64).saturating_sub(at).min(SECTOR as u64);
            events.push(Event::Write { file, at, bytes: content[..room as usize].into() });
        }
    }

    fn store(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        if self.visible.len() < end as usize {
            self.extend(end);
        }
        self.visible[at as usize..end as usize].copy_from_slice(bytes);
        self.lines.stored(&self.visible, at, bytes.len());
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let (from, end) = (at as usize, at as usize + bytes.len());
        if self.visible.len() < end {
            self.visible.resize(end, 0);
            self.sizes.push(end as u64);
        }
        self.visible[from..end].copy_from_slice(bytes);
        self.sectors.written(&self.visible, at, bytes.len());
    }

    fn truncate(&mut self, size: u64) {
        if size != self.visible.len() as u64 {
            self.lines.cut(size);
            self.visible.resize(size as usize, 0);
            self.sizes.push(size);
        }
    }

    fn extend(&mut self, size: u64) {
        let cut = self.visible.len();
        if cut < size as usize {
            // An earlier cut may not have been durable, so the durable image may still have content beyond
            // the file's end. After the growth, the file reads as zeros there, and its new size is durable.
            self.durable.truncate(cut);
            self.sizes.clear();
            self.visible.resize(size as usize, 0);
            self.durable.resize(size as usize, 0);
        }
    }

    fn sync_range(&mut self, at: u64, len: u64) {
        let sectors = at / SECTOR as u64..(at + len).div_ceil(SECTOR as u64);
        self.sectors.sync(&mut self.durable, &self.visible, &sectors);
    }

    /// Simulates a failed sync: the file loses the writes since the last sync. The kernel reports the failure
    /// once, and from then on treats the pages as clean. As long as these pages are in its cache, programs
    /// still see the new content. No program may rely on that, so the model shows the old content at once.
    fn lose(&mut self) {
        let bytes = self.visible.len();
        self.visible.clone_from(&self.durable);
        self.visible.resize(bytes, 0);
        self.sectors.clear();
        for (line, states) in self.lines.in_doubt() {
            self.lines.leave(&mut self.visible, line, states - 1);
        }
    }

    fn sync(&mut self) {
        if self.kind != FileKind::Sectors {
            return;
        }
        self.lines.fence_all(&mut self.durable);
        if self.sizes.is_empty() {
            self.sectors.sync(&mut self.durable, &self.visible, &(0..u64::MAX));
        } else {
            self.sectors.clear();
            self.sizes.clear();
            self.durable.clone_from(&self.visible);
        }
    }
}
