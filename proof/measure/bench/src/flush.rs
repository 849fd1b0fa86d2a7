//! Measures how much time the interface of the medium (the trait `Nvm`) adds, compared with the bare
//! instructions.

use std::time::Instant;

use anyhow::{Context, Result};
use duralite_medium::{FileNvm, LINE_BYTES, MapOptions, Nvm};

use crate::report::{Table, number};
use crate::workload::median;

const PAIRS: u64 = 200_000;
const LINES: u64 = 1024;

/// Measures how many nanoseconds it takes to store to a line, flush it and fence. The rounds alternate
/// between bare instructions and the medium.
pub fn pair_cost(rounds: usize) -> Result<Table> {
    let raw_memory = RawMapping::new((LINES * LINE_BYTES) as usize)?;
    let nvm = emulated(LINES * LINE_BYTES)?;
    let (mut raw, mut through) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(5) {
        raw.push(time(|line| raw_pair(&raw_memory, line)));
        through.push(time(|line| {
            nvm.store_u64(line * LINE_BYTES, line);
            nvm.flush(line * LINE_BYTES, 8);
            nvm.fence();
        }));
    }
    let (raw, through) = (median(raw), median(through));
    let mut table = Table::new(
        "flush_pair",
        "Cost of one store, flush and fence of a line (ns)",
        &["raw instructions", "through the medium", "ratio", "asked for"],
    );
    table.row([number(raw), number(through), format!("{:.3}", through / raw), "at most 1.10".into()]);
    table.note = format!("Median of {} rounds of {PAIRS} pairs over {LINES} lines.", rounds.max(5));
    Ok(table)
}

/// Makes emulated memory of this many bytes, without added latency, in a file without a name.
pub(crate) fn emulated(bytes: u64) -> Result<FileNvm> {
    let dir =
        if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let path = dir.join(format!("duralite-bench-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let options = MapOptions { capacity: bytes, ..MapOptions::default() };
    let nvm = FileNvm::map(file, &path, &options).context("map")?;
    nvm.grow(bytes).context("grow")?;
    Ok(nvm)
}

fn time(mut pair: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    for i in 0..PAIRS {
        pair(i % LINES);
    }
    start.elapsed().as_nanos() as f64 / PAIRS as f64
}

/// Memory that is mapped as the medium maps it: shared and populated.
struct RawMapping {
    start: *mut u64,
    bytes: usize,
}

#[allow(unsafe_code, reason = "the reference is bare memory and bare instructions")]
impl RawMapping {
    fn new(bytes: usize) -> Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: the kernel chooses the address of the new mapping, so the mapping replaces no other.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
            )
        };
        Ok(Self { start: start?.cast(), bytes })
    }
}

#[allow(unsafe_code, reason = "as above")]
impl Drop for RawMapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory, and nothing uses it any more. A failure would leave it mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "as above")]
fn raw_pair(memory: &RawMapping, line: u64) {
    use duralite_medium::FlushInstruction;
    // SAFETY: `line` is below `LINES`, and that many lines were mapped.
    let at = unsafe { memory.start.add((line * LINE_BYTES / 8) as usize) };
    // SAFETY: `at` points to an aligned word of the mapping.
    unsafe { at.write_volatile(line) };
    match FLUSH.get_or_init(duralite_medium::detect_flush_instruction) {
        // SAFETY: `at` points to mapped memory. The instruction was detected, so the processor has it.
        FlushInstruction::Clwb => unsafe { std::arch::asm!("clwb [{0}]", in(reg) at, options(nostack)) },
        // SAFETY: as above.
        FlushInstruction::Clflushopt => unsafe {
            std::arch::asm!("clflushopt [{0}]", in(reg) at, options(nostack))
        },
        // SAFETY: as above. Every x86-64 processor has clflush.
        _ => unsafe { std::arch::x86_64::_mm_clflush(at.cast()) },
    }
    // SAFETY: a fence has no operands.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// The processor's flush instruction. It is detected once, because asking the processor traps into the
/// hypervisor of a virtual machine.
#[cfg(target_arch = "x86_64")]
static FLUSH: std::sync::OnceLock<duralite_medium::FlushInstruction> = std::sync::OnceLock::new();

#[cfg(not(target_arch = "x86_64"))]
#[allow(unsafe_code, reason = "as above")]
fn raw_pair(memory: &RawMapping, line: u64) {
    // SAFETY: `line` is below `LINES`, and that many lines were mapped.
    unsafe { memory.start.add((line * LINE_BYTES / 8) as usize).write_volatile(line) };
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
