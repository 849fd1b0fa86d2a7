//! Makes a disk whose writes can be traced.

use duralite_iotrace::Tracer;
use duralite_testkit::LoopDisk;

/// The note of a table that needs such a disk, where there is none.
pub const NOT_TRACED: &str = "Not measured: needs root, mkfs.ext4, loop devices and tracefs.";

/// Makes a loop device with ext4 that can be traced. Returns `None` and prints the reason if that fails.
#[must_use]
pub fn traceable(mebibytes: u64) -> Option<LoopDisk> {
    let disk = LoopDisk::new(mebibytes)?;
    match Tracer::at(&disk.path()).run(|| ()) {
        Ok(_) => Some(disk),
        Err(error) => {
            eprintln!("writes are not told apart, because they cannot be traced: {error:#}");
            None
        }
    }
}
