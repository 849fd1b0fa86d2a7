//! The block device that holds a directory, as sysfs describes it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use duralite_medium::block::Fua;
use serde_json::{Value, json};

/// Returns the properties of the block device; `null` if the file system has no block device of its own.
pub(super) fn describe(dir: &Path) -> Value {
    let Ok(device) = fs::metadata(dir).map(|meta| meta.dev()) else { return Value::Null };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    of_device(Path::new("/sys"), major, minor)
}

fn of_device(sysfs: &Path, major: u32, minor: u32) -> Value {
    let Ok(dir) = fs::canonicalize(sysfs.join(format!("dev/block/{major}:{minor}"))) else {
        return Value::Null;
    };
    let Some(queue) = queue(&dir) else { return Value::Null };
    let word = |name: &str| fs::read_to_string(queue.join(name)).ok().map(|text| text.trim().to_owned());
    let number = |name: &str| word(name).and_then(|text| text.parse::<u64>().ok());
    json!({
        "name": dir.file_name().map(|name| name.display().to_string()),
        "sector_bytes": number("logical_block_size"),
        "physical_sector_bytes": number("physical_block_size"),
        "write_cache": word("write_cache"),
        "fua": number("fua").map(|fua| fua == 1),
        "durable_by_itself": Fua::of_queue(word("fua").as_deref(), word("write_cache").as_deref()).map(Fua::in_words),
        "rotational": number("rotational").map(|rotational| rotational == 1),
    })
}

/// Returns the sysfs directory of the device's queue. A partition has no queue of its own, so for a partition this is
/// the queue of its disk.
fn queue(device: &Path) -> Option<PathBuf> {
    [device.join("queue"), device.parent()?.join("queue")].into_iter().find(|queue| queue.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_told_by_its_disks_queue() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/block/sda");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        for (name, text) in [
            ("logical_block_size", "512\n"),
            ("physical_block_size", "4096\n"),
            ("write_cache", "write back\n"),
            ("fua", "1\n"),
        ] {
            fs::write(disk.join("queue").join(name), text).unwrap();
        }
        std::os::unix::fs::symlink(disk.join("sda1"), sys.path().join("dev/block/8:1")).unwrap();
        let expected = json!({
            "name": "sda1", "sector_bytes": 512, "physical_sector_bytes": 4096, "write_cache": "write back", "fua": true,
            "durable_by_itself": "by the device itself", "rotational": null,
        });
        assert_eq!(of_device(sys.path(), 8, 1), expected);
        assert_eq!(of_device(sys.path(), 8, 2), Value::Null);
        fs::write(disk.join("queue/fua"), "0\n").unwrap();
        let found = of_device(sys.path(), 8, 1);
        assert_eq!(
            (&found["fua"], &found["durable_by_itself"]),
            (&json!(false), &json!("emulated by a write and a flush"))
        );
    }
}
