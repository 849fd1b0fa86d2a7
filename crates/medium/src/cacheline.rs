//! Instructions that write cache lines back to memory.
//!
//! The instructions are written as inline assembly. The compiler must assume that inline assembly may access
//! any memory. So it does not move a store across such an instruction.
#![allow(unsafe_code)] // cache-line instructions take addresses

use crate::LINE_BYTES;

/// An instruction that writes a cache line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushInstruction {
    /// The x86 instruction that writes the line back and keeps it in the cache. `sfence` orders it.
    Clwb,
    /// The x86 instruction that writes the line back and evicts it. `sfence` orders it.
    Clflushopt,
    /// The x86 instruction that writes the line back and evicts it. Several of them execute in order, one at
    /// a time.
    Clflush,
    /// The Arm instruction that cleans the line to the point of persistence. Not tested on hardware.
    DcCvap,
    /// The Arm instruction that cleans the line to the point of coherency (the paper's `dccmvac`). Not tested
    /// on hardware.
    DcCvac,
    /// No such instruction is known for this machine. So nothing here can guarantee that lines are flushed.
    None,
}

impl FlushInstruction {
    /// Returns the name in the processor's manual, in lower case, or `"no flush"`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::Clflushopt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvap => "dc cvap",
            Self::DcCvac => "dc cvac",
            Self::None => "no flush",
        }
    }
}

/// Returns the best instruction that this processor has.
#[must_use]
#[cfg(target_arch = "x86_64")]
pub fn detect_flush_instruction() -> FlushInstruction {
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    const CLFLUSHOPT: u32 = 1 << 23;
    const CLWB: u32 = 1 << 24;
    if __cpuid(0).eax < 7 {
        return FlushInstruction::Clflush;
    }
    let features = __cpuid_count(7, 0).ebx;
    if features & CLWB != 0 {
        FlushInstruction::Clwb
    } else if features & CLFLUSHOPT != 0 {
        FlushInstruction::Clflushopt
    } else {
        FlushInstruction::Clflush
    }
}

/// Returns the best instruction that this processor has.
#[must_use]
#[cfg(target_arch = "aarch64")]
pub fn detect_flush_instruction() -> FlushInstruction {
    if std::arch::is_aarch64_feature_detected!("dpb") {
        FlushInstruction::DcCvap
    } else {
        FlushInstruction::DcCvac
    }
}

/// Returns the best instruction that this processor has.
#[must_use]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn detect_flush_instruction() -> FlushInstruction {
    FlushInstruction::None
}

/// Writes back `lines` lines, beginning with the line that contains `first`.
///
/// # Safety
///
/// All of these lines are mapped, and the processor has the instruction.
#[inline(always)]
pub(crate) unsafe fn flush_lines(instruction: FlushInstruction, first: *const u8, lines: u64) {
    let mut line = first.map_addr(|addr| addr & !(LINE_BYTES as usize - 1));
    macro_rules! each_line {
        ($template:literal) => {
            for _ in 0..lines {
                // SAFETY: the caller guarantees that the line is mapped and that the processor has the
                // instruction.
                unsafe {
                    std::arch::asm!($template, in(reg) line, options(nostack, preserves_flags));
                }
                line = line.wrapping_add(LINE_BYTES as usize);
            }
        };
    }
    match instruction {
        #[cfg(target_arch = "x86_64")]
        FlushInstruction::Clwb => each_line!("clwb [{0}]"),
        #[cfg(target_arch = "x86_64")]
        FlushInstruction::Clflushopt => each_line!("clflushopt [{0}]"),
        #[cfg(target_arch = "x86_64")]
        FlushInstruction::Clflush => each_line!("clflush [{0}]"),
        // Write `dc cvap` as its encoding, because assemblers know the name only from ARMv8.2 on.
        #[cfg(target_arch = "aarch64")]
        FlushInstruction::DcCvap => each_line!("sys #3, c7, c12, #1, {0}"),
        #[cfg(target_arch = "aarch64")]
        FlushInstruction::DcCvac => each_line!("dc cvac, {0}"),
        _ => {
            let _ = (&mut line, lines);
        }
    }
}

/// Waits until the memory has accepted every line that this thread has flushed or streamed before the call.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    // Wait for the whole system, not only the inner shareable domain, because the memory may be outside that
    // domain.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every AArch64 processor has the instruction.
    unsafe {
        std::arch::asm!("dsb sy", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Copies `lines` whole lines with non-temporal stores. On a machine without such stores, copies and flushes
/// the lines.
///
/// # Safety
///
/// `to` is aligned to a line and valid for writing `lines` lines. `from` is valid for reading `lines` lines.
/// The two ranges do not overlap. The processor has the instruction.
pub(crate) unsafe fn stream_lines(instruction: FlushInstruction, to: *mut u8, from: *const u8, lines: u64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128};

        let _ = instruction;
        let (mut to, mut from) = (to.cast::<__m128i>(), from.cast::<__m128i>());
        for _ in 0..lines * (LINE_BYTES / 16) {
            // SAFETY: the caller guarantees both ranges and the alignment of `to`. SSE2 is part of x86-64.
            // The assembly replaces an intrinsic whose contract forbids reading the bytes back before a
            // fence, although the processor allows it.
            unsafe {
                std::arch::asm!(
                    "movntdq [{0}], {1}",
                    in(reg) to,
                    in(xmm_reg) _mm_loadu_si128(from),
                    options(nostack, preserves_flags)
                );
                to = to.add(1);
                from = from.add(1);
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller guarantees both ranges and the instruction.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, (lines * LINE_BYTES) as usize);
        flush_lines(instruction, to, lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 256]);

    #[test]
    fn some_instruction_is_found() {
        let found = detect_flush_instruction();
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_ne!(found, FlushInstruction::None);
        assert!(!found.as_str().is_empty());
    }

    #[test]
    fn flushing_keeps_the_bytes() {
        let mut lines = Lines([7; 256]);
        lines.0[100] = 9;
        // SAFETY: three lines from the second byte on are inside the array.
        unsafe { flush_lines(detect_flush_instruction(), lines.0[1..].as_ptr(), 3) };
        fence();
        assert_eq!(lines.0[100], 9);
        assert_eq!(lines.0[255], 7);
    }

    #[test]
    fn streaming_copies_whole_lines() {
        let mut lines = Lines([0; 256]);
        let from: Vec<u8> = (0..129).collect();
        let to = lines.0[64..].as_mut_ptr();
        // SAFETY: two lines fit into the array from its second line on, which is aligned. The source has two
        // lines from its second byte on.
        unsafe { stream_lines(detect_flush_instruction(), to, from[1..].as_ptr(), 2) };
        fence();
        assert_eq!(lines.0[64..192], from[1..]);
        assert_eq!(lines.0[63], 0);
        assert_eq!(lines.0[192], 0);
    }
}
