//! The ioctls of loop devices, and a function that gives a thread its own file descriptor table.
#![allow(unsafe_code)] // No crate in use wraps LOOP_CONFIGURE or CLOSE_RANGE_UNSHARE.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const BLKFLSBUF: libc::Ioctl = 0x1261;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_config` of `linux/loop.h`, together with the fields of the `struct loop_info64` in it.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    lo_device: u64,
    lo_inode: u64,
    lo_rdevice: u64,
    lo_offset: u64,
    lo_sizelimit: u64,
    lo_number: u32,
    lo_encrypt_type: u32,
    lo_encrypt_key_size: u32,
    lo_flags: u32,
    lo_file_name: [u8; 64],
    lo_crypt_name: [u8; 64],
    lo_encrypt_key: [u8; 32],
    lo_init: [u64; 2],
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the number of a loop device that is not attached. Another process may attach it before the caller
/// does.
pub fn free_loop_device(control: &File) -> io::Result<i32> {
    // SAFETY: the request takes no argument and touches no memory of this process.
    checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })
}

/// Attaches `backing` with sectors of 512 bytes and direct I/O. The kernel detaches the device when its last
/// user is gone.
pub fn attach_loop_device(device: &File, backing: &File) -> io::Result<()> {
    let config = LoopConfig {
        fd: backing.as_raw_fd() as u32,
        block_size: 512,
        lo_device: 0,
        lo_inode: 0,
        lo_rdevice: 0,
        lo_offset: 0,
        lo_sizelimit: 0,
        lo_number: 0,
        lo_encrypt_type: 0,
        lo_encrypt_key_size: 0,
        lo_flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
        lo_file_name: [0; 64],
        lo_crypt_name: [0; 64],
        lo_encrypt_key: [0; 32],
        lo_init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: the request reads a `struct loop_config`. `config` has its layout and size. The request keeps
    // no pointer to it.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }).map(drop)
}

/// Writes the kernel's cached blocks of a block device back, and empties this cache.
pub fn drop_buffers(device: &File) -> io::Result<()> {
    // SAFETY: the request takes no argument and touches no memory of this process.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF, 0) }).map(drop)
}

/// Gives the calling thread, and the threads that it starts, its own file descriptor table with only the
/// standard streams.
pub fn unshare_descriptors() -> io::Result<()> {
    // SAFETY: CLOSE_RANGE_UNSHARE first copies the table, and closes the descriptors only in the copy. Other
    // threads keep the old table. This thread has opened no file that it would lose.
    checked(unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE as libc::c_int) })
        .map(drop)
}
