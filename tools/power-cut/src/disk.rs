//! A disk with a volatile write cache, as a single file in a FUSE file system. A power cut loses, keeps or tears unflushed writes.

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The file's name below the mount point.
pub const NAME: &str = "disk";

const FILE: INodeNo = INodeNo(2);
const SECTOR_BYTES: usize = 512;

/// The outcome of the unflushed writes.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// None of them reached the disk.
    Lost,
    /// All of them did.
    Kept,
    /// Any sector of any of them did or did not, whatever their order.
    Torn,
}

/// The disk's content.
pub struct Disk {
    /// What survives.
    durable: Vec<u8>,
    /// The data as read.
    cached: Vec<u8>,
    /// Writes since the last flush, in order.
    volatile: Vec<(usize, Vec<u8>)>,
    off: bool,
    /// Flushes so far.
    pub flushes: u64,
}

impl Disk {
    /// An empty disk.
    pub fn new(bytes: usize) -> Disk {
        Disk {
            durable: vec![0; bytes],
            cached: vec![0; bytes],
            volatile: Vec::new(),
            off: false,
            flushes: 0,
        }
    }

    /// From now on every access fails.
    pub fn cut(&mut self) {
        self.off = true;
    }

    /// Restarts with the surviving data, and returns the number of unflushed writes.
    pub fn power_on(&mut self, fate: Fate, random: &mut impl FnMut() -> u64) -> usize {
        let unflushed = self.volatile.len();
        for (offset, bytes) in self.volatile.drain(..) {
            for (at, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                let kept = match fate {
                    Fate::Lost => false,
                    Fate::Kept => true,
                    Fate::Torn => random().is_multiple_of(2),
                };
                if kept {
                    let start = offset + at * SECTOR_BYTES;
                    self.durable[start..start + sector.len()].copy_from_slice(sector);
                }
            }
        }
        self.cached.copy_from_slice(&self.durable);
        self.off = false;
        unflushed
    }
}

/// The file system that holds the disk.
pub struct DiskFile(pub Arc<Mutex<Disk>>);

impl DiskFile {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let root = ino == INodeNo::ROOT;
        let size = if root {
            0
        } else {
            self.0.lock().cached.len() as u64
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if root {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if root { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for DiskFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&Duration::ZERO, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No flag to keep the kernel's cache: it is dropped whenever the disk is attached again.
        reply.opened(FileHandle(0), FopenFlags::empty());
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
        let disk = self.0.lock();
        if disk.off {
            return reply.error(Errno::EIO);
        }
        let start = (offset as usize).min(disk.cached.len());
        let end = (start + size as usize).min(disk.cached.len());
        reply.data(&disk.cached[start..end]);
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
        let mut disk = self.0.lock();
        let start = offset as usize;
        let end = start + data.len();
        if disk.off || end > disk.cached.len() {
            return reply.error(Errno::EIO);
        }
        disk.cached[start..end].copy_from_slice(data);
        disk.volatile.push((start, data.to_vec()));
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut disk = self.0.lock();
        if disk.off {
            return reply.error(Errno::EIO);
        }
        let disk = &mut *disk;
        for (offset, bytes) in disk.volatile.drain(..) {
            disk.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        disk.flushes += 1;
        reply.ok();
    }
}
