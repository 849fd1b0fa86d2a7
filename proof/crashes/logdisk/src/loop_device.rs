//! A loop device that the kernel detaches when its last user is gone.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Error;
use crate::sys;

/// A loop device. The kernel detaches it when this value is dropped and nothing is mounted on it, even if the
/// process dies.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    // The device file. It is open only for reading, because a kernel may refuse to mount a device that is
    // open for writing.
    held: File,
}

impl LoopDevice {
    /// Attaches the next free device to `backing`. Errors name the backing file as `name`.
    pub fn attach(backing: &File, name: &Path) -> Result<Self, Error> {
        let control = Path::new("/dev/loop-control");
        let opened = File::open(control).map_err(Error::io("open", control))?;
        loop {
            let number = sys::free_loop_device(&opened).map_err(Error::io("get a device from", control))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::options().read(true).write(true).open(&path);
            let device = device.map_err(Error::io("open", &path))?;
            match sys::attach_loop_device(&device, backing) {
                Ok(()) => {
                    let held = File::open(&path).map_err(Error::io("open", &path))?;
                    return Ok(Self { path, held });
                }
                // Another process has attached the device of this number.
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(Error::io("attach a loop device to", name)(error)),
            }
        }
    }

    /// Returns the path of the device file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the kernel's cached blocks of the device back, and empties this cache.
    pub fn drop_buffers(&self) -> Result<(), Error> {
        sys::drop_buffers(&self.held).map_err(Error::io("drop the buffers of", &self.path))
    }
}
