//! A file in memory that the rig serves through FUSE, and that reports its writes and syncs.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    Session, WriteFlags,
};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::error::Error;
use crate::event::Sink;
use crate::sys;
use crate::volume::mount_point;
use duralite_crashmodel::disk::Pages;

const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(INodeNo::ROOT.0 + 1);
/// The time for which the kernel may cache names and attributes. They never change.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A file in memory that reports every write and sync to a [`Sink`].
///
/// A single thread serves the file, so requests have an order, and the sink sees that order. The kernel
/// caches nothing of the file. Drop all users of the file before the disk. In a `struct`, declare the
/// [`Volume`](crate::Volume) above the disk.
#[derive(Debug)]
pub struct LogDisk {
    server: Option<JoinHandle<()>>,
    content: Arc<Mutex<Pages>>,
    file: PathBuf,
    dir: TempDir,
}

impl LogDisk {
    /// Serves a file of `bytes` bytes, rounded up to a multiple of 4 KiB, in a new directory below the
    /// temporary directory.
    ///
    /// # Errors
    /// An error if FUSE cannot be mounted.
    pub fn new(bytes: u64, sink: Arc<dyn Sink>) -> Result<Self, Error> {
        let dir = mount_point()?;
        let content = Arc::new(Mutex::new(Pages::new(bytes)));
        let server = Server { content: Arc::clone(&content), sink };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("logdisk".into()), MountOption::NoAtime];
        let (report, mounted) = mpsc::sync_channel(1);
        let at = dir.path().to_owned();
        // If the process is killed, /dev/fuse must be closed at once, so that the kernel gives up this disk.
        // Otherwise a thread that waits for the disk would never end, because no signal can end it. Such a
        // thread keeps open every descriptor that it shares with other threads. So only the server thread has
        // the descriptor of /dev/fuse.
        let serve = move || match sys::unshare_descriptors().and_then(|()| Session::new(server, at, &config))
        {
            Ok(session) => {
                drop(report.send(Ok(())));
                drop(session.run());
            }
            Err(error) => drop(report.send(Err(error))),
        };
        let server = std::thread::Builder::new().name("logdisk".into()).spawn(serve);
        let server = server.map_err(Error::io("start a server for", dir.path()))?;
        let mounted = mounted.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        mounted.map_err(Error::io("mount FUSE on", dir.path()))?;
        Ok(Self { server: Some(server), content, file: dir.path().join(NAME), dir })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the present content, synced or not.
    #[must_use]
    pub fn content(&self) -> Pages {
        lock(&self.content).clone()
    }
}

impl Drop for LogDisk {
    fn drop(&mut self) {
        match unmount(self.dir.path(), UnmountFlags::empty()) {
            // The server ends when the directory is unmounted.
            Ok(()) => drop(self.server.take().map(JoinHandle::join)),
            // Some program still has the file open. The server continues until the last user has closed the
            // file.
            Err(_) => drop(unmount(self.dir.path(), UnmountFlags::DETACH)),
        }
    }
}

fn lock(content: &Mutex<Pages>) -> MutexGuard<'_, Pages> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Server {
    content: Arc<Mutex<Pages>>,
    sink: Arc<dyn Sink>,
}

impl Server {
    fn attributes(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        let (kind, perm, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            FILE => (FileType::RegularFile, 0o600, lock(&self.content).len()),
            _ => return Err(Errno::ENOENT),
        };
        let then = SystemTime::UNIX_EPOCH;
        Ok(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: then,
            mtime: then,
            ctime: then,
            crtime: then,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = if parent == INodeNo::ROOT && name == NAME { FILE } else { INodeNo(0) };
        match self.attributes(found) {
            Ok(attributes) => reply.entry(&FOREVER, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(attributes) => reply.attr(&FOREVER, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Without direct I/O, the kernel would answer reads from its own cache.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let content = lock(&self.content);
        let len = content.len().saturating_sub(offset).min(u64::from(size));
        let mut bytes = vec![0; len as usize];
        content.read(offset, &mut bytes);
        drop(content);
        reply.data(&bytes);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut content = lock(&self.content);
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > content.len()) {
            return reply.error(Errno::ENOSPC);
        }
        content.write(offset, data);
        drop(content);
        self.sink.write(offset, data);
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.sink.sync();
        reply.ok();
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        // The loop device sends this request to discard blocks or to write zeros. When the server refuses it,
        // the kernel writes the zeros itself, and no longer tries to discard blocks.
        reply.error(Errno::EOPNOTSUPP);
    }
}
