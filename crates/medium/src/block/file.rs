//! Blocks in a file.
#![allow(missing_docs)]
use super::{Block, BlockCounters, Durability};
use crate::{Guarantee, MediumError};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Auto,
    Direct,
    Buffered,
}
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockOptions {
    pub block_bytes: Option<u32>,
    pub access: Access,
    pub read_only: bool,
}
#[derive(Debug)]
pub struct FileBlock {
    file: File,
    direct: Option<File>,
    len: AtomicU64,
    block_bytes: u32,
    writes: AtomicU64,
    bytes: AtomicU64,
    flushes: AtomicU64,
    pre: AtomicU64,
    reads: AtomicU64,
}
fn err(op: &'static str, e: &std::io::Error) -> MediumError {
    MediumError::from_errno(op, Errno::from_io_error(e).unwrap_or(Errno::IO))
}
impl FileBlock {
    pub fn open(file: File, _path: &Path, o: &BlockOptions) -> Result<Self, MediumError> {
        let direct = if o.read_only || o.access == Access::Buffered {
            None
        } else {
            std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
                .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
                .ok()
        };
        let block_bytes = o.block_bytes.unwrap_or(4096);
        let len = file.metadata().map_err(|e| err("fstat", &e))?.len() / u64::from(block_bytes)
            * u64::from(block_bytes);
        Ok(Self {
            file,
            direct,
            len: AtomicU64::new(len),
            block_bytes,
            writes: 0.into(),
            bytes: 0.into(),
            flushes: 0.into(),
            pre: 0.into(),
            reads: 0.into(),
        })
    }
    fn put(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        if at + blocks.len() as u64 > self.len() {
            return Err(MediumError::OutOfBounds { at, len: blocks.len() as u64 });
        }
        self.writes.fetch_add(1, Relaxed);
        self.bytes.fetch_add(blocks.len() as u64, Relaxed);
        match &self.direct {
            Some(f) => {
                let mut v = vec![0u8; blocks.len() + 4096];
                let off = v.as_ptr().align_offset(4096);
                v[off..off + blocks.len()].copy_from_slice(blocks);
                f.write_all_at(&v[off..off + blocks.len()], at)
            }
            None => self.file.write_all_at(blocks, at),
        }
        .map_err(|e| err("pwrite", &e))
    }
}
impl Block for FileBlock {
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
    fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }
    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        let mut at = self.len();
        let z = vec![0; 1 << 20];
        while at < len {
            let n = (len - at).min(1 << 20);
            self.file.write_all_at(&z[..n as usize], at).map_err(|e| err("pwrite", &e))?;
            at += n;
            self.pre.fetch_add(n, Relaxed);
        }
        self.file.sync_all().map_err(|e| err("fsync", &e))?;
        self.len.fetch_max(len, Relaxed);
        Ok(())
    }
    fn refresh_len(&self) -> Result<(), MediumError> {
        let l = self.file.metadata().map_err(|e| err("fstat", &e))?.len();
        self.len.fetch_max(l / u64::from(self.block_bytes) * u64::from(self.block_bytes), Relaxed);
        Ok(())
    }
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        if at + buf.len() as u64 > self.len() {
            return Err(MediumError::OutOfBounds { at, len: buf.len() as u64 });
        }
        self.reads.fetch_add(buf.len() as u64, Relaxed);
        self.file.read_exact_at(buf, at).map_err(|e| err("pread", &e))
    }
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.put(at, blocks)
    }
    fn commit(&self, at: u64, blocks: &[u8], d: Durability) -> Result<(), MediumError> {
        self.put(at, blocks)?;
        if d == Durability::Normal { Ok(()) } else { self.flush() }
    }
    fn flush(&self) -> Result<(), MediumError> {
        self.flushes.fetch_add(1, Relaxed);
        self.file.sync_data().map_err(|e| err("fdatasync", &e))
    }
    fn counters(&self) -> BlockCounters {
        BlockCounters {
            writes: self.writes.load(Relaxed),
            written_bytes: self.bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            preallocated_bytes: self.pre.load(Relaxed),
            read_bytes: self.reads.load(Relaxed),
        }
    }
    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerLoss
    }
    fn describe(&self) -> String {
        format!("blocks of {}", self.block_bytes)
    }
}
pub fn check_filesystem(_path: &Path) -> Result<(), MediumError> {
    Ok(())
}
