//! Describes the machine on which the measurements run, without its host name.

use std::fs;

/// Returns one line that names the processor, the number of cores, the memory, the kernel and SQLite's
/// version.
#[must_use]
pub fn describe() -> String {
    let cpu = first_field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kib: u64 = first_field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next().and_then(|number| number.parse().ok()))
        .unwrap_or(0);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: Vec<&str> = release.trim().split(['.', '-']).take(2).collect();
    format!(
        "{cpu}, {cores} cores, {} GiB, Linux {}, SQLite {}, {} for write-back",
        (kib + (1 << 19)) >> 20,
        kernel.join("."),
        rusqlite::version(),
        duralite_medium::detect_flush_instruction().as_str(),
    )
}

fn first_field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
