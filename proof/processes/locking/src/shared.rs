//! Memory that a process shares with the processes that it forks.
#![allow(unsafe_code)] // memory that processes share

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// A type for which zeros are a value, and whose values change through shared references only, because all
/// fields are atomic.
pub trait Zeroable: Sync {}

/// Maps new shared memory, full of zeros. The memory is never unmapped.
pub fn map<T: Zeroable>() -> &'static T {
    let (bytes, access) = (size_of::<T>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: new memory at a place of the kernel's choice.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::SHARED) };
    let memory = memory.unwrap().cast::<T>();
    // SAFETY: mapped with this size and at a page's boundary; zeros are a value of every field, and every other
    // reference to the memory is shared too.
    unsafe { &*memory }
}
