//! What the kernel says of a block device.

use std::fs;

/// Returns the text of a file in the sysfs directory of a device, such as `queue/fua`. A partition has no
/// queue directory of its own, so this function also looks in the directory of its disk. Returns `None` if
/// there is no such file.
pub fn read(device: u64, name: &str) -> Option<String> {
    let sys = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let of = |dir: &str| fs::read_to_string(format!("{sys}{dir}/{name}")).ok();
    of("").or_else(|| of("/.."))
}
