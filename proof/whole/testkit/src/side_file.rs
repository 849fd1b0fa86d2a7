//! A test engine's home: it keeps the written pages in files of its own, and copies them to the database file
//! when it is drained. Until it is drained, a program that reads the database file directly finds old
//! content. The home keeps either all pages, or everything but the header.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use duralite_format::guard::HEADER_BYTES;
use duralite_wal::LogError;
use duralite_wal::engine::home::{DatabaseFile, Header, Home, write_past_guard};

use crate::steps::step;

/// The unit, in bytes, in which the home keeps pages. The sizes and offsets of pages are multiples of this
/// unit.
const SECTOR: u64 = 512;

/// The names of the two files end in these suffixes.
const NAMES: [&str; 2] = ["-pages", "-held"];

/// A home in two files. One file has the written pages, at the same offsets as in the database. The other
/// file has one byte for each sector, which says whether the home holds the sector. All processes share both
/// files, just as they share the database file.
pub struct SideFile {
    pages: PathBuf,
    held: PathBuf,
    holds_header: bool,
}

impl SideFile {
    /// Returns a home in two files beside `path`, which may be a log. The home creates the files at the first
    /// write of a page.
    #[must_use]
    pub fn beside(path: &Path, holds_header: bool) -> Self {
        let [pages, held] = NAMES.map(|end| {
            let mut name = path.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        });
        Self { pages, held, holds_header }
    }

    /// Returns whether a file belongs to a home of this kind, judged by its name.
    #[must_use]
    pub fn is_one(path: &Path) -> bool {
        NAMES.iter().any(|end| path.as_os_str().as_encoded_bytes().ends_with(end.as_bytes()))
    }

    /// Creates both files, or empties them if they exist. Every user may write them.
    ///
    /// # Errors
    /// `Io`.
    pub fn make(&self) -> std::result::Result<(), LogError> {
        let make = |path| File::create(path)?.set_permissions(Permissions::from_mode(0o666));
        make(&self.pages).and_then(|()| make(&self.held)).map_err(self.failed())
    }

    /// Releases all pages. The caller must have written them to the database file. The release is durable
    /// when this function returns.
    ///
    /// # Errors
    /// `Io`.
    pub fn release(&self) -> std::result::Result<(), LogError> {
        self.cut(0).and_then(|()| self.sync_both()).map_err(self.failed())
    }

    /// Returns whether the home holds no page.
    ///
    /// # Errors
    /// `Io`.
    pub fn is_empty(&self) -> std::result::Result<bool, LogError> {
        Ok(Self::end(&self.held().map_err(self.failed())?) == 0)
    }

    /// Returns for each sector whether the home holds it.
    fn held(&self) -> Result<Vec<u8>> {
        match std::fs::read(&self.held) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            held => held,
        }
    }

    fn is_held(held: &[u8], sector: u64) -> bool {
        held.get(sector as usize).is_some_and(|byte| *byte != 0)
    }

    fn end(held: &[u8]) -> u64 {
        held.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last as u64 + 1) * SECTOR)
    }

    fn hold(&self, bytes: &[u8], offset: u64) -> Result<()> {
        step();
        let open = |path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        open(&self.pages)?.write_all_at(bytes, offset)?;
        let (first, end) = (offset / SECTOR, (offset + bytes.len() as u64).div_ceil(SECTOR));
        open(&self.held)?.write_all_at(&vec![1; (end - first) as usize], first)
    }

    fn sync_both(&self) -> Result<()> {
        for path in [&self.pages, &self.held] {
            match File::open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                file => file?.sync_all()?,
            }
        }
        Ok(())
    }

    fn cut(&self, bytes: u64) -> Result<()> {
        match OpenOptions::new().write(true).open(&self.held) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            held => {
                let held = held?;
                held.set_len(held.metadata()?.len().min(bytes / SECTOR))
            }
        }
    }

    fn failed(&self) -> impl Fn(Error) -> LogError + '_ {
        |error| LogError::Io {
            op: "hold pages in",
            path: self.pages.clone(),
            message: error.to_string(),
            kind: error.kind(),
        }
    }
}

impl Home for SideFile {
    fn header(&self) -> Header {
        if self.holds_header { Header::Held } else { Header::File }
    }

    fn read(
        &self,
        file: &dyn DatabaseFile,
        buf: &mut [u8],
        offset: u64,
    ) -> std::result::Result<usize, LogError> {
        let held = self.held().map_err(self.failed())?;
        let end = file.size()?.max(Self::end(&held));
        let wanted = buf.len().min(end.saturating_sub(offset) as usize);
        buf[..wanted].fill(0);
        file.read(&mut buf[..wanted], offset)?;
        let mut at = 0;
        while at < wanted {
            let position = offset + at as u64;
            let len = (SECTOR - position % SECTOR).min((wanted - at) as u64) as usize;
            if Self::is_held(&held, position / SECTOR) {
                let pages = File::open(&self.pages).map_err(self.failed())?;
                pages.read_exact_at(&mut buf[at..at + len], position).map_err(self.failed())?;
            }
            at += len;
        }
        Ok(wanted)
    }

    fn write(
        &self,
        _file: &dyn DatabaseFile,
        bytes: &[u8],
        offset: u64,
    ) -> std::result::Result<(), LogError> {
        self.hold(bytes, offset).map_err(self.failed())
    }

    fn sync(&self, file: &dyn DatabaseFile) -> std::result::Result<(), LogError> {
        self.sync_both().map_err(self.failed())?;
        file.sync()
    }

    fn size(&self, file: &dyn DatabaseFile) -> std::result::Result<u64, LogError> {
        let held = self.held().map_err(self.failed())?;
        Ok(file.size()?.max(Self::end(&held)))
    }

    fn truncate(&self, file: &dyn DatabaseFile, bytes: u64) -> std::result::Result<(), LogError> {
        self.cut(bytes).map_err(self.failed())?;
        if file.size()? > bytes { file.truncate(bytes) } else { Ok(()) }
    }

    fn drain(&self, file: &dyn DatabaseFile) -> std::result::Result<(), LogError> {
        let held = self.held().map_err(self.failed())?;
        for sector in (0..held.len() as u64).filter(|sector| Self::is_held(&held, *sector)) {
            let skipped = if sector == 0 && !self.holds_header { HEADER_BYTES as u64 } else { 0 };
            let position = sector * SECTOR + skipped;
            let mut bytes = vec![0; (SECTOR - skipped) as usize];
            let pages = File::open(&self.pages).map_err(self.failed())?;
            pages.read_exact_at(&mut bytes, position).map_err(self.failed())?;
            write_past_guard(file, &bytes, position)?;
        }
        file.sync()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use duralite_format::guard;
    use duralite_wal::engine::home::{Homed, OpenDatabase};

    use super::*;

    fn open(path: &Path) -> OpenDatabase {
        OpenDatabase::new(OpenOptions::new().read(true).write(true).open(path).unwrap(), path)
    }

    #[test]
    fn what_is_held_shows_through_the_home_only_until_it_is_drained() {
        for holds_header in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("app.db");
            std::fs::write(&path, [1; 2048]).unwrap();
            let file = open(&path);
            let side = SideFile::beside(&path, holds_header);
            let home = || Some(Arc::new(SideFile::beside(&path, holds_header)) as Arc<dyn Home>);
            let homed = Homed::new(&file, home());
            let mut first = [2; 1024];
            // The new header must keep three fields: the page size, the guard, and the number of reserved
            // bytes.
            first[16..21].fill(1);
            homed.write(&first, 0).unwrap();
            for offset in [1024, 3072] {
                homed.write(&[2; 1024], offset).unwrap();
            }
            homed.sync().unwrap();
            let mut shown = [2; 4096];
            shown[16..21].fill(1);
            shown[2048..3072].fill(0);
            let mut in_file = [1; 2048];
            if holds_header {
                guard::show(&in_file, 0, &mut shown);
            } else {
                in_file[..100].copy_from_slice(&first[..100]);
            }
            assert_eq!(std::fs::read(&path).unwrap(), in_file);
            // Another process has its own home object over the same files.
            let again = Homed::new(&file, home());
            let mut seen = [9; 5000];
            assert_eq!((again.size().unwrap(), again.read(&mut seen, 0).unwrap()), (4096, 4096));
            assert_eq!(seen[..4096], shown);
            again.truncate(3072).unwrap();
            assert_eq!(homed.size().unwrap(), 2048, "nothing was held in the third page");
            homed.write(&[3; 1024], 2048).unwrap();
            shown[2048..3072].fill(3);
            (0..2).for_each(|_| homed.drain().unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), shown[..3072]);
            assert_eq!((again.read(&mut seen, 0).unwrap(), side.is_empty().unwrap()), (3072, false));
            std::fs::write(&path, [4; 3072]).unwrap();
            side.release().unwrap();
            assert_eq!((again.read(&mut seen, 0).unwrap(), side.is_empty().unwrap()), (3072, true));
            assert_eq!(seen[..3072], [4; 3072]);
        }
    }
}
