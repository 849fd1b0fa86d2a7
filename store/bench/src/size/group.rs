//! A control group for one child, below this process's own group, with a memory limit.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The group. Dropping this removes it.
#[derive(Debug)]
pub(super) struct Group {
    dir: PathBuf,
    is_v2: bool,
}

/// Returns the group that counts this process's memory, and whether it is of cgroup version 2.
fn own() -> Result<(PathBuf, bool)> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mounted = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let has = fields.get(3)?.split(',').any(|one| one == option);
            (fields.get(2)? == &kind && (option.is_empty() || has)).then(|| PathBuf::from(fields[1]))
        })
    };
    let named = |number_and_controllers: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let (head, path) = line.rsplit_once(':')?;
            number_and_controllers(head).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let in_v1 =
        named(&|head| head.split(':').nth(1).is_some_and(|all| all.split(',').any(|one| one == "memory")));
    if let (Some(path), Some(at)) = (in_v1, mounted("cgroup", "memory")) {
        return Ok((at.join(path), false));
    }
    let path = named(&|head| head == "0:").context("this process is in no control group")?;
    Ok((mounted("cgroup2", "").context("no control groups are mounted")?.join(path), true))
}

impl Group {
    /// Makes a group with this limit in bytes, and without swap.
    pub(super) fn new(bytes: u64) -> Result<Self> {
        let (own, is_v2) = own()?;
        let dir = own.join(format!("storebench-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        let it = Self { dir, is_v2 };
        let limit = it.dir.join(if is_v2 { "memory.max" } else { "memory.limit_in_bytes" });
        fs::write(&limit, bytes.to_string()).with_context(|| format!("writing {}", limit.display()))?;
        Ok(it)
    }

    /// Moves a process into the group, before the process begins its work.
    pub(super) fn take(&self, process: u32) -> Result<()> {
        Ok(fs::write(self.dir.join("cgroup.procs"), process.to_string())?)
    }

    /// Returns the most memory that the group has used at a time, including the system's cache of its files.
    pub(super) fn most_bytes(&self) -> Option<u64> {
        let name = if self.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.dir.join(name)).ok()?.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group can be removed only once its process is gone, which may take a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.dir).is_ok() || !Path::new(&self.dir).exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Returns why no group can be made; `None` if one can be made.
pub(super) fn why_not() -> Option<String> {
    Group::new(1 << 30).err().map(|error| format!("{error:#}"))
}
