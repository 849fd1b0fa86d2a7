//! Memory that a process shares with those that it forks.
#![allow(unsafe_code)] // memory that processes share

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// A type of which zeros are a value, and that is changed through shared references only: all its fields are atomic.
pub trait Zeroable: Sync {}

/// New shared memory, full of zeros. It is never unmapped.
pub fn map<T: Zeroable>() -> &'static T {
    let (bytes, access) = (size_of::<T>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: new memory at a place of the kernel's choice.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::SHARED) };
    let memory = memory.unwrap().cast::<T>();
    // SAFETY: mapped with this size and at a page's boundary; zeros are a value of every field, and every other
    // reference to the memory is shared too.
    unsafe { &*memory }
}
