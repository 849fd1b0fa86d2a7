//! A segment: a file of complete log objects, in the order of their numbers.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use duralite_medium::block::sync_directory;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::format::{Lsn, Object};

const MAGIC: [u8; 8] = *b"DURALARC";
/// The version of the format. In version 1 the head had no checksum and did not name a predecessor.
const VERSION: u32 = 2;
const HEAD_BYTES: usize = 64;
const CHECK_AT: usize = 12;
/// The prefix of segment names.
const NAME: &str = "log-";

/// The head of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) store_id: [u8; 16],
    /// The seed of the checksums of the segment's objects.
    pub(crate) seed: u64,
    pub(crate) first: Lsn,
    /// The number after the segment's last object.
    pub(crate) end: Lsn,
    /// The first object of the preceding segment; 0 if there is no segment directly before this one.
    pub(crate) previous: Lsn,
}

/// Returns the file name of the segment that begins with this object.
pub(crate) fn name_of(first: Lsn) -> String {
    format!("{NAME}{first:020}")
}

/// Returns the checksum of a head. For this, the four bytes of the checksum itself are taken as zeros.
fn check_of(head: &[u8]) -> [u8; 4] {
    let mut head = head.to_vec();
    head.iter_mut().skip(CHECK_AT).take(4).for_each(|byte| *byte = 0);
    (xxh3_64(&head) as u32).to_le_bytes()
}

/// A segment in a directory: its path and its head.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) head: SegmentHead,
}

impl SegmentHead {
    fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.store_id);
        out[32..40].copy_from_slice(&self.seed.to_le_bytes());
        out[40..48].copy_from_slice(&self.first.to_le_bytes());
        out[48..56].copy_from_slice(&self.end.to_le_bytes());
        out[56..64].copy_from_slice(&self.previous.to_le_bytes());
        let check = check_of(&out);
        out[CHECK_AT..CHECK_AT + 4].copy_from_slice(&check);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let version = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
        let is_whole = version == 1 || version == VERSION && *bytes.get(CHECK_AT..16)? == check_of(bytes);
        (bytes.get(..8)? == MAGIC && is_whole).then_some(Self {
            store_id: bytes.get(16..32)?.try_into().ok()?,
            seed: word(32)?,
            first: word(40)?,
            end: word(48)?,
            previous: word(56)?,
        })
    }
}

/// Writes a segment, which is durable on return. A crash leaves either the whole segment or none.
pub(crate) fn write_segment(dir: &Path, head: &SegmentHead, objects: &[u8]) -> Result<(), Error> {
    let path = dir.join(name_of(head.first));
    write_whole(&path, &[&head.encode(), objects])
}

/// Writes a file, in place of an older one if there is one. The file is durable on return. A crash leaves either the
/// whole new file or the whole older one.
fn write_whole(path: &Path, parts: &[&[u8]]) -> Result<(), Error> {
    let unfinished = path.with_extension("new");
    let write = || {
        let mut file = File::create(&unfinished)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    let written = write().map_err(|error| Error::io("writing the archive", path, error));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    let dir = path.parent().unwrap_or(path);
    sync_directory(dir).map_err(|error| Error::medium("writing the archive", error))
}

/// The name of a file that contains an object number. The store has had every object below that number. If the archive
/// ends earlier, segments are missing at its end.
const REACHED: &str = "reached";

/// Records that the store has had all objects with numbers below `end`. The record is durable on return.
pub(crate) fn write_reached(dir: &Path, end: Lsn) -> Result<(), Error> {
    write_whole(&dir.join(REACHED), &[format!("{end}\n").as_bytes()])
}

/// Returns the number that [`write_reached`] recorded last, or 0 if it has recorded none.
pub(crate) fn read_reached(dir: &Path) -> Result<Lsn, Error> {
    let path = dir.join(REACHED);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::io("reading", &path, error)),
        Ok(text) => {
            text.trim().parse().map_err(|_| Error::corrupt(&format!("the archive's {}", path.display())))
        }
    }
}

/// Returns the segments of a directory, ordered by their first object.
pub(crate) fn list(dir: &Path) -> Result<Vec<Segment>, Error> {
    let reading = |error| Error::io("reading the archive", dir, error);
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir).map_err(reading)? {
        let path = entry.map_err(reading)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with(NAME) || path.extension().is_some() {
            continue;
        }
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(reading)?;
        file.take(HEAD_BYTES as u64).read_to_end(&mut bytes).map_err(reading)?;
        let head = SegmentHead::decode(&bytes)
            .ok_or_else(|| Error::corrupt(&format!("the archive's {}", path.display())))?;
        segments.push(Segment { path, head });
    }
    segments.sort_by_key(|segment| segment.head.first);
    Ok(segments)
}

impl Segment {
    /// Checks each object of the segment, and passes it to `visit` in order.
    pub(crate) fn scan(
        &self,
        visit: &mut dyn FnMut(Lsn, &Object<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let bytes = fs::read(&self.path).map_err(|error| Error::io("reading", &self.path, error))?;
        let damaged = || Error::corrupt(&format!("the archive's {}", self.path.display()));
        let mut rest = bytes.get(HEAD_BYTES..).ok_or_else(damaged)?;
        for lsn in self.head.first..self.head.end {
            let object = Object::decode(rest, self.head.seed).map_err(|_| damaged())?;
            if object.header.lsn != lsn {
                return Err(damaged());
            }
            visit(lsn, &object)?;
            rest = rest.get(object.header.bytes as usize..).ok_or_else(damaged)?;
        }
        if rest.is_empty() { Ok(()) } else { Err(damaged()) }
    }
}
