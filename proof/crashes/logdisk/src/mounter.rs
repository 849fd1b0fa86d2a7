//! Mounts one image after another, quickly.
//!
//! A loop device over a file in memory stays attached. Before each image, the mounter makes the file equal to
//! the image. The mounter compares the pages and writes only those that differ, so it also undoes the changes
//! of the last mount.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::error::Error;
use crate::loop_device::LoopDevice;
use crate::volume::{FileSystemKind, Mount, mount_point};
use duralite_crashmodel::disk::{PAGE, Page, Pages, ZEROS};

/// The number of pages that are compared at a time. They fit in the processor's cache.
const BATCH: usize = 32;

/// The time spent on each part, summed over all images.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// The number of images mounted.
    pub images: u32,
    /// The time for making the file equal to the image.
    pub restore: Duration,
    /// The time for mounting, including the replay of the journal.
    pub mount: Duration,
    /// The time of the caller's `body`.
    pub body: Duration,
    /// The time for unmounting.
    pub unmount: Duration,
}

/// Mounts images, one at a time. Give each thread its own mounter.
#[derive(Debug)]
pub struct ImageMounter {
    kind: FileSystemKind,
    options: String,
    // `None` before the first image, and after an image that could not be unmounted.
    medium: Option<Medium>,
    timings: Timings,
}

impl ImageMounter {
    /// Returns a mounter for images of this file system. `mount_options` are as for `mount -o`.
    #[must_use]
    pub fn new(kind: FileSystemKind, mount_options: &str) -> Self {
        Self { kind, options: mount_options.to_owned(), medium: None, timings: Timings::default() }
    }

    /// Returns the time spent so far.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Mounts an image, runs `body` with its directory, and unmounts the image. Changes that `body` makes to
    /// files do not last.
    ///
    /// # Errors
    /// [`Error::Mount`] if the file system cannot recover the image. Other errors if the rig fails, or if
    /// `body` leaves files open.
    pub fn with_image<R>(&mut self, image: &Pages, body: impl FnOnce(&Path) -> R) -> Result<R, Error> {
        let start = Instant::now();
        // Takes the medium out of `self`, so that the next image gets a new one if unmounting fails or `body`
        // panics.
        let medium = match self.medium.take() {
            Some(medium) if medium.bytes == image.len() => medium,
            _ => Medium::new(image.len())?,
        };
        medium.restore(image)?;
        let restored = Instant::now();
        let mount = match Mount::new(medium.device.path(), medium.dir.path(), self.kind, &self.options) {
            Ok(mount) => mount,
            Err(error) => {
                self.medium = Some(medium);
                return Err(error);
            }
        };
        let mounted = Instant::now();
        let result = body(mount.path());
        let done = Instant::now();
        mount.unmount()?;
        self.medium = Some(medium);
        let timings = &mut self.timings;
        timings.images += 1;
        timings.restore += restored - start;
        timings.mount += mounted - restored;
        timings.body += done - mounted;
        timings.unmount += done.elapsed();
        Ok(result)
    }
}

/// A file in memory, the loop device on it, and the directory where it is mounted.
#[derive(Debug)]
struct Medium {
    device: LoopDevice,
    file: File,
    bytes: u64,
    dir: TempDir,
}

impl Medium {
    fn new(bytes: u64) -> Result<Self, Error> {
        let name = Path::new("a file in memory");
        // This name appears in the output of `losetup`.
        let shown = format!("logdisk-{}", std::process::id());
        let file = memfd_create(shown, MemfdFlags::CLOEXEC).map_err(Error::io("make", name))?;
        let file = File::from(file);
        file.set_len(bytes).map_err(Error::io("resize", name))?;
        Ok(Self { device: LoopDevice::attach(&file, name)?, file, bytes, dir: mount_point()? })
    }

    /// Makes the file equal to the image, and drops what the kernel has cached of the device.
    fn restore(&self, image: &Pages) -> Result<(), Error> {
        self.write_differences(image).map_err(Error::io("write to the file below", self.device.path()))?;
        self.device.drop_buffers()
    }

    fn write_differences(&self, image: &Pages) -> std::io::Result<()> {
        let count = (self.bytes / PAGE as u64) as usize;
        let mut buffer = vec![[0; PAGE]; BATCH];
        let mut next = 0;
        loop {
            let data = self.seek(SeekFrom::Data((next * PAGE) as u64))?.unwrap_or(count);
            for index in next..data {
                if let Some(page) = image.page(index) {
                    self.write(index, page)?;
                }
            }
            if data == count {
                return Ok(());
            }
            next = self.seek(SeekFrom::Hole((data * PAGE) as u64))?.unwrap_or(count);
            for begin in (data..next).step_by(BATCH) {
                let batch = &mut buffer[..BATCH.min(next - begin)];
                self.file.read_exact_at(batch.as_flattened_mut(), (begin * PAGE) as u64)?;
                for (index, page) in (begin..).zip(&*batch) {
                    let wanted = image.page(index).unwrap_or(ZEROS);
                    if page != wanted {
                        self.write(index, wanted)?;
                    }
                }
            }
        }
    }

    /// Returns the page where the next data or hole begins, if there is one.
    fn seek(&self, from: SeekFrom) -> std::io::Result<Option<usize>> {
        match seek(&self.file, from) {
            Ok(at) => Ok(Some((at / PAGE as u64) as usize)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&self, index: usize, page: &Page) -> std::io::Result<()> {
        self.file.write_all_at(page, (index * PAGE) as u64)
    }
}
