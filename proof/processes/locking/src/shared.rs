//! Memory that a process shares with the processes that it forks.
#![allow(unsafe_code)] // memory that processes share

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// A type for which all-zero bytes are a valid value. All fields are atomic, so processes need only shared
/// references to change a value.
pub trait Zeroable: Sync {}

/// Maps new shared memory that has only zeros. Nobody ever unmaps the memory.
pub fn map<T: Zeroable>() -> &'static T {
    let (bytes, access) = (size_of::<T>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: the kernel chooses the address of the new memory, so the mapping replaces no other.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::SHARED) };
    let memory = memory.unwrap().cast::<T>();
    // SAFETY: the memory has this size, and begins at a page's boundary. Zeros are a valid value of every
    // field. Every other reference to the memory is shared too.
    unsafe { &*memory }
}
