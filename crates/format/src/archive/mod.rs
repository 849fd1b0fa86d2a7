//! The files beside a database that has an archive: `app.db-archive`, which says where the archive is and which logs the
//! database has had, and the backlogs of closed logs. See `docs/format/archive-beside.md`.
//!
//! `app.db-archive` is a text with a record on each line. Each line begins with a checksum of the rest of the line. A
//! reader leaves out a line that is torn, damaged or of an unknown kind. If a record is missing, a reader that needs it
//! treats the database as changed. That costs a snapshot and loses nothing (invariant 72).

pub mod backlog;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64;

use crate::bytes::u32_be;
use crate::{FormatError, LogId};

/// Version of the format of `app.db-archive`.
pub const VERSION: u32 = 1;
/// The longest URL of an archive, in bytes.
pub const URL_LIMIT: usize = 2048;
/// The longest line in bytes, without its end.
const LINE_LIMIT: usize = 4096;

const WHAT: &str = "the archive file beside the database";

/// The URL of the archive, and the identity of this database in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The URL of the archive, without spaces and control characters.
    pub url: String,
    /// The generation that this database has claimed; 0 if it has claimed none yet.
    pub generation: u64,
    /// The random number with which the database has claimed the generation.
    pub token: u128,
    /// The inode of the database file for which this record was written. Beside a copy of the database, the record
    /// still names the original file.
    pub inode: u64,
    /// The birth time of that file in nanoseconds since the epoch; 0 if unknown.
    pub birth_ns: u64,
}

/// Properties of a database file without a guard. Whoever writes to the file changes at least one of them, so a reader
/// notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Inode number.
    pub inode: u64,
    /// Birth time in nanoseconds since the epoch, 0 if unknown.
    pub birth_ns: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// When the file was last written, in nanoseconds since the epoch.
    pub modified_ns: u64,
    /// The change counter of the header.
    pub changes: u32,
    /// The hash (xxh3) of the first page.
    pub page_1: u64,
}

impl Stamp {
    /// Completes a stamp from the bytes of the first page.
    #[must_use]
    pub fn with_page_1(self, page: &[u8]) -> Self {
        Self { changes: u32_be(page, 24), page_1: xxh3_64(page), ..self }
    }
}

/// Returns whether a file with these first bytes may be an `app.db-archive`.
#[must_use]
pub fn may_be(first_bytes: &[u8]) -> bool {
    !first_bytes.is_empty() && first_bytes.iter().all(u8::is_ascii_hexdigit)
}

/// A record of `app.db-archive`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The archive of the database. Only the newest record of this kind counts.
    Owner(Owner),
    /// A log was made. With `intact: false`, the record may also say that something other than commits of the log has
    /// changed the database while the log was in use.
    Begin {
        /// The log.
        log: LogId,
        /// Whether the database file, when the log was made, was still in the state that the last [`Record::Rest`]
        /// describes.
        intact: bool,
    },
    /// Everything that a log holds is in the database file, and the log is about to be deleted.
    End {
        /// The log.
        log: LogId,
        /// The position after the log's last transaction.
        position: u64,
        /// Whether there is a backlog of this log.
        backlog: bool,
    },
    /// A process has removed the guard of a log from the database file. From here on the file is an ordinary database.
    Rest {
        /// The log.
        log: LogId,
        /// The stamp of the file at that time.
        stamp: Stamp,
    },
    /// Another primary has taken the archive over from the newest recorded owner.
    Fenced {
        /// The generation with which that primary has taken the archive over.
        generation: u64,
    },
}

impl Record {
    /// Returns the record's line, with the newline.
    ///
    /// # Errors
    /// `Damaged` if the URL is too long, or has characters that a line cannot hold.
    pub fn encode(&self) -> Result<String, FormatError> {
        let mut body = String::new();
        // Writing to a string cannot fail.
        let _ = match self {
            Self::Owner(Owner { url, generation, token, inode, birth_ns }) => {
                if url.is_empty()
                    || url.len() > URL_LIMIT
                    || url.chars().any(|c| c.is_whitespace() || c.is_control())
                {
                    return Err(FormatError::Damaged { what: "the URL of the archive" });
                }
                write!(body, "archive {VERSION} {url} {generation} {token:032x} {inode} {birth_ns}")
            }
            Self::Begin { log, intact } => write!(body, "begin {log} {}", u8::from(*intact)),
            Self::End { log, position, backlog } => {
                write!(body, "end {log} {position} {}", u8::from(*backlog))
            }
            Self::Fenced { generation } => write!(body, "fenced {generation}"),
            Self::Rest { log, stamp } => {
                let Stamp { inode, birth_ns, bytes, modified_ns, changes, page_1 } = stamp;
                write!(body, "rest {log} {inode} {birth_ns} {bytes} {modified_ns} {changes} {page_1:016x}")
            }
        };
        Ok(format!("{:016x} {body}\n", xxh3_64(body.as_bytes())))
    }

    /// Reads a line, which is given without the newline. Returns `None` if the line is damaged, or of a kind that this
    /// version does not know.
    fn decode(line: &[u8]) -> Option<Self> {
        let body = body_of(line)?;
        let mut fields = body.split(' ');
        let record = match fields.next()? {
            "archive" => {
                fields.next().filter(|version| version.parse() == Ok(VERSION))?;
                Self::Owner(Owner {
                    url: fields.next()?.to_owned(),
                    generation: decimal(fields.next()?)?,
                    token: u128::from_str_radix(hex(fields.next()?, 32)?, 16).ok()?,
                    inode: decimal(fields.next()?)?,
                    birth_ns: decimal(fields.next()?)?,
                })
            }
            "fenced" => Self::Fenced { generation: decimal(fields.next()?)? },
            "begin" => Self::Begin { log: fields.next()?.parse().ok()?, intact: flag(fields.next()?)? },
            "end" => Self::End {
                log: fields.next()?.parse().ok()?,
                position: decimal(fields.next()?)?,
                backlog: flag(fields.next()?)?,
            },
            "rest" => Self::Rest {
                log: fields.next()?.parse().ok()?,
                stamp: Stamp {
                    inode: decimal(fields.next()?)?,
                    birth_ns: decimal(fields.next()?)?,
                    bytes: decimal(fields.next()?)?,
                    modified_ns: decimal(fields.next()?)?,
                    changes: decimal(fields.next()?)?.try_into().ok()?,
                    page_1: u64::from_str_radix(hex(fields.next()?, 16)?, 16).ok()?,
                },
            },
            _ => return None,
        };
        fields.next().is_none().then_some(record)
    }
}

/// Returns what a line says after its checksum, if the checksum is right.
fn body_of(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok().filter(|line| line.len() <= LINE_LIMIT)?;
    let (sum, body) = line.split_once(' ')?;
    let sum = u64::from_str_radix(hex(sum, 16)?, 16).ok()?;
    (xxh3_64(body.as_bytes()) == sum).then_some(body)
}

fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok())?
}

fn hex(text: &str, digits: usize) -> Option<&str> {
    (text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(text)
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// The records of `app.db-archive`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    /// The newest owner.
    pub owner: Owner,
    /// The offset of that owner's line.
    owner_at: usize,
    /// The generation with which another primary has taken the archive over from this owner, if one has.
    pub fenced: Option<u64>,
    /// The records about logs, each with the offset of its line, oldest first.
    lines: Vec<(usize, Record)>,
}

/// A closed log: one of the consecutive logs whose transactions, applied in order, lead from one state of the database
/// to another (see *line of logs* in the glossary).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// The log.
    pub log: LogId,
    /// The position after the log's last transaction.
    pub position: u64,
    /// Whether there is a backlog of this log.
    pub backlog: bool,
}

impl Records {
    /// Reads the records of a file. Leaves out lines that are incomplete or damaged.
    ///
    /// # Errors
    /// `Version` for the file of another version; `Damaged` if no line says where the archive is.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (mut owner, mut fenced, mut lines, mut at) = (None, None, Vec::new(), 0);
        let mut other_version = None;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let place = at;
            at += line.len();
            let Some(line) = line.strip_suffix(b"\n") else { break };
            match Record::decode(line) {
                Some(Record::Owner(newest)) => (owner, fenced) = (Some((place, newest)), None),
                Some(Record::Fenced { generation }) => fenced = Some(generation),
                Some(record) => lines.push((place, record)),
                None => other_version = other_version.or_else(|| version_of(line)),
            }
        }
        match (owner, other_version) {
            (_, Some(version)) => Err(FormatError::Version(version)),
            (Some((owner_at, owner)), None) => Ok(Self { owner, owner_at, fenced, lines }),
            (None, None) => Err(FormatError::Damaged { what: WHAT }),
        }
    }

    /// Returns the records about the owner.
    #[must_use]
    pub fn of_owner(&self) -> Vec<Record> {
        let fenced = self.fenced.map(|generation| Record::Fenced { generation });
        std::iter::once(Record::Owner(self.owner.clone())).chain(fenced).collect()
    }

    /// Returns the records about logs, oldest first.
    pub fn logs(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.lines.iter().map(|(_, record)| record)
    }

    /// Returns the records about logs that are older than the owner, and the records that are newer.
    #[must_use]
    pub fn around_owner(&self) -> (Vec<Record>, Vec<Record>) {
        let (older, newer): (Vec<_>, Vec<_>) =
            self.lines.iter().cloned().partition(|(at, _)| *at < self.owner_at);
        let records = |lines: Vec<(usize, Record)>| lines.into_iter().map(|(_, record)| record).collect();
        (records(older), records(newer))
    }

    /// Returns whether a record after the owner's says that this log breaks the line of logs. Either the database was
    /// not intact when the log was made, or something other than commits of the log has changed the database while the
    /// log was in use.
    #[must_use]
    pub fn is_broken(&self, log: LogId) -> bool {
        let is_break = |record: &Record| *record == Record::Begin { log, intact: false };
        self.lines.iter().any(|(at, record)| *at > self.owner_at && is_break(record))
    }

    /// Returns whether the database file, whose stamp is `found` now, is as the last closed log has left it. Also
    /// returns `true` if a process has since recorded another log, but has not put the guard of that log on the file.
    #[must_use]
    pub fn rests_at(&self, found: Stamp) -> bool {
        let last = self.logs().rev().find(|record| !matches!(record, Record::Begin { .. }));
        matches!(last, Some(Record::Rest { stamp, .. }) if *stamp == found)
    }

    /// Returns the offset of the line of the last [`Record::Rest`], and the log of that record. Returns `None` unless
    /// `log` is the last log, was made after that record, and found the database intact. If `log` has had no commits, a
    /// caller can truncate the file at that offset, and then append another [`Record::Rest`] of the earlier log.
    /// Returns `None` also if an owner was recorded after that record, because the owner's line must stay.
    #[must_use]
    pub fn tail_of(&self, log: LogId) -> Option<(usize, LogId)> {
        let is_begin = |record: &Record| matches!(record, Record::Begin { .. });
        let before = self.lines.iter().rposition(|(_, record)| !is_begin(record))?;
        let &(at, Record::Rest { log: rested, .. }) = self.lines.get(before)? else { return None };
        let is_last = self.lines.last()?.1 == Record::Begin { log, intact: true };
        (is_last && self.owner_at < at).then_some((at, rested))
    }

    /// Returns the closed logs from `log` to the end `now` of the line of logs, oldest first. That end is a log in use,
    /// or the database file without a guard, with its stamp. The result is empty if `now` is `log` itself. Otherwise it
    /// begins with `log`. Returns `None` if something other than these logs may have changed the database, so that the
    /// archive needs a snapshot.
    #[must_use]
    pub fn since(&self, log: LogId, now: LineEnd) -> Option<Vec<Closed>> {
        if now == LineEnd::Log(log) {
            return Some(Vec::new());
        }
        let mut closed = Vec::new();
        let first =
            self.logs().position(|record| matches!(record, Record::End { log: of, .. } if *of == log))?;
        let mut records = self.logs().skip(first).peekable();
        // Each round reads how the log `of` ended, and which log began after it.
        let mut of = log;
        loop {
            let mut end = None;
            while let Some(Record::End { log, position, backlog }) = records.peek()
                && *log == of
            {
                // A process has closed the log again. An earlier attempt may have written the backlog already.
                let backlog =
                    *backlog || end.is_some_and(|end: Closed| end.backlog && end.position == *position);
                end = Some(Closed { log: of, position: *position, backlog });
                records.next();
            }
            closed.push(end?);
            let Some(Record::Rest { log, stamp }) = records.next() else { return None };
            if *log != of {
                return None;
            }
            // Of several logs in a row only the last one counts. The guards of the others never came into force.
            let mut begun = None;
            while let Some(Record::Begin { log, intact }) = records.peek() {
                begun = Some((*log, *intact));
                records.next();
            }
            of = match (begun, now) {
                // A log that was recorded last may not have its guard yet.
                (_, LineEnd::File(found)) if records.peek().is_none() && *stamp == found => {
                    return Some(closed);
                }
                (Some((log, true)), _) => log,
                _ => return None,
            };
            if now == LineEnd::Log(of) {
                // A close of this log may have failed after its record was written.
                return records
                    .all(|record| matches!(record, Record::End { log, .. } if *log == of))
                    .then_some(closed);
            }
        }
    }
}

/// The end of a line of logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnd {
    /// A log that is in use.
    Log(LogId),
    /// The database file, without a guard.
    File(Stamp),
}

impl Record {
    /// Returns the log that the record is about.
    #[must_use]
    pub fn log(&self) -> Option<LogId> {
        match self {
            Self::Owner(_) | Self::Fenced { .. } => None,
            Self::Begin { log, .. } | Self::End { log, .. } | Self::Rest { log, .. } => Some(*log),
        }
    }
}

/// Returns the version of a line that another version of this format wrote.
fn version_of(line: &[u8]) -> Option<u32> {
    let version = body_of(line)?.strip_prefix("archive ")?.split(' ').next()?.parse().ok()?;
    (version != VERSION).then_some(version)
}
