//! A trace instance of the kernel's, of this process's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::files::Device;

const MOUNT: &str = "/sys/kernel/tracing";
const EVENT: &str = "events/block/block_rq_issue";
/// Room for events per processor: some hundred thousand requests.
const BUFFER_KIB: &str = "32768";

/// Tracing, from [`Session::start`] until it is dropped.
pub struct Session {
    dir: PathBuf,
}

impl Session {
    /// Starts to trace requests to a device.
    pub fn start(device: &Device) -> Result<Self> {
        let root = Path::new(MOUNT);
        if !root.join(EVENT).exists() {
            eprintln!("iotrace: mounting tracefs at {MOUNT}");
            let mounted = Command::new("mount").args(["-t", "tracefs", "none", MOUNT]).status();
            if !mounted.is_ok_and(|status| status.success()) || !root.join(EVENT).exists() {
                bail!("this kernel has no block tracepoints, or tracefs cannot be mounted at {MOUNT}");
            }
        }
        let dir = root.join(format!("instances/duralite-{}", std::process::id()));
        fs::create_dir(&dir).context("cannot make a trace instance")?;
        let session = Self { dir };
        session.set("buffer_size_kb", BUFFER_KIB)?;
        // The kernel's device number: 12 bits of major above 20 of minor.
        session.set(&format!("{EVENT}/filter"), &format!("dev == {}", device.major << 20 | device.minor))?;
        session.set(&format!("{EVENT}/enable"), "1")?;
        Ok(session)
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.dir.join(name), value).with_context(|| format!("cannot set {name} to {value}"))
    }

    /// Stops; the trace's text, and the number of events that were lost.
    pub fn finish(self) -> Result<(String, u64)> {
        self.set(&format!("{EVENT}/enable"), "0")?;
        let text = fs::read(self.dir.join("trace")).context("cannot read the trace")?;
        let mut lost = 0;
        for cpu in fs::read_dir(self.dir.join("per_cpu"))?.filter_map(Result::ok) {
            let stats = fs::read_to_string(cpu.path().join("stats")).unwrap_or_default();
            let overrun = stats.lines().find_map(|line| line.strip_prefix("overrun: "));
            lost += overrun.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok((String::from_utf8_lossy(&text).into_owned(), lost))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.set(&format!("{EVENT}/enable"), "0");
        let _ = fs::remove_dir(&self.dir);
    }
}
