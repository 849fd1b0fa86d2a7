//! Backups, a pruned archive, and stores that are restored from both. A model says what the stores have to contain.

use std::path::{Path, PathBuf};

use duralite_store::{Error, Keep, Options, RestoreTo, Store};

use super::model::{Content, Walker, content};

/// A backup, the number of the last log object in it, and the content that the store had after that object.
struct Backup {
    path: PathBuf,
    last: u64,
    content: Content,
}

/// The number of recent moments that the test remembers.
const MOMENTS: usize = 30;

/// The backups and the archive of one store.
pub struct Backups {
    dir: PathBuf,
    options: Options,
    backups: Vec<Backup>,
    /// The remembered moments: the number of a log object, and the content that the store had after that object.
    moments: Vec<(u64, Content)>,
    made: u32,
}

impl Backups {
    /// Keeps everything in `dir`, which must exist. Opens restored stores with these options.
    pub fn new(dir: &Path, options: Options) -> Self {
        Self { dir: dir.to_owned(), options, backups: vec![], moments: vec![], made: 0 }
    }

    pub fn archive(dir: &Path) -> PathBuf {
        dir.join("archive")
    }

    /// Remembers the current moment. Sometimes also takes a backup, restores one, or prunes the archive.
    pub fn step(&mut self, walker: &mut Walker<'_>) -> Result<(), Error> {
        self.moments.push((walker.store.metrics().newest_object, walker.now.clone()));
        if self.moments.len() > MOMENTS {
            self.moments.remove(0);
        }
        match walker.random.u8(0..24) {
            0 => self.backup(walker),
            1 => self.restore(walker),
            2 => self.prune(walker),
            _ => Ok(()),
        }
    }

    fn backup(&mut self, walker: &Walker<'_>) -> Result<(), Error> {
        self.made += 1;
        let path = self.dir.join(format!("backup{}", self.made));
        let last = walker.store.backup(&path)?;
        self.backups.push(Backup { path, last, content: walker.now.clone() });
        Ok(())
    }

    /// Restores a backup to a moment, and checks the content of the restored store.
    pub fn restore(&mut self, walker: &mut Walker<'_>) -> Result<(), Error> {
        if self.backups.is_empty() {
            self.backup(walker)?;
        }
        let backup = &self.backups[walker.random.usize(0..self.backups.len())];
        let archive = Self::archive(&self.dir);
        // After this checkpoint, the archive has everything that has been logged.
        walker.store.checkpoint()?;
        let later: Vec<_> = self.moments.iter().filter(|(lsn, _)| *lsn >= backup.last).collect();
        let (archive, to, expected) = match walker.random.u8(0..3) {
            0 => (None, RestoreTo::End, &backup.content),
            1 if !later.is_empty() => {
                let (lsn, content) = later[walker.random.usize(0..later.len())];
                (Some(&archive), RestoreTo::Lsn(*lsn), content)
            }
            _ => (Some(&archive), RestoreTo::End, &walker.now),
        };
        let target = self.dir.join("restored");
        let restored =
            Store::restore(&backup.path, archive.map(PathBuf::as_path), &target, to, self.options.clone())?;
        if let RestoreTo::Lsn(lsn) = to {
            assert_eq!(restored.last, lsn);
        }
        let store = Store::open(&target, self.options.clone().create(false))?;
        store.verify()?;
        assert!(content(&store)? == *expected, "{to:?} of {:?} is something else", backup.path);
        drop(store);
        std::fs::remove_dir_all(&target).unwrap();
        Ok(())
    }

    /// Prunes the archive. If the rest of the archive begins after a backup's end, restoring that backup must fail, and
    /// the test forgets the backup.
    fn prune(&mut self, walker: &mut Walker<'_>) -> Result<(), Error> {
        if self.backups.is_empty() {
            return Ok(());
        }
        let last = self.backups[walker.random.usize(0..self.backups.len())].last;
        walker.store.prune_archive(Keep::After(last))?;
        let from = walker.store.metrics().archived_from;
        assert!(from <= last + 1, "what the backup needs has gone");
        let (target, archive) = (self.dir.join("refused"), Self::archive(&self.dir));
        for backup in self.backups.extract_if(.., |backup| backup.last + 1 < from) {
            let options = self.options.clone();
            let refused = Store::restore(&backup.path, Some(&archive), &target, RestoreTo::End, options);
            assert!(matches!(refused, Err(Error::Gap { .. })), "{refused:?}");
        }
        Ok(())
    }
}
