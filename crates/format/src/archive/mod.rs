//! The files beside a database that has an archive: `app.db-archive`, which says where the archive is and which logs
//! the database has had, and one backlog for each closed log that needs one. See `docs/format/archive-beside.md`.
//!
//! `app.db-archive` is a text with a record on each line. Each line begins with a checksum of the rest of the line. A
//! reader ignores a line that is torn, damaged or of an unknown kind. If a reader needs a record that is missing, it
//! assumes that something unknown has changed the database. Then the archive takes a new snapshot of the database,
//! which costs time but loses nothing (invariant 72).

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
/// The greatest length of a line in bytes, without the newline.
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
    /// The inode of the database file for which this record was written. If somebody copies the database together with
    /// this file, the copied record still has the inode of the original database.
    pub inode: u64,
    /// The birth time of the same database file in nanoseconds since the epoch; 0 if unknown.
    pub birth_ns: u64,
}

/// Properties of a database file without a guard. Every write to the file changes at least one of them. So a reader
/// that compares two stamps notices whether anything has written to the file in the meantime.
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
    /// The change counter in the database's header.
    pub changes: u32,
    /// The hash (xxh3) of the first page.
    pub page_1: u64,
}

impl Stamp {
    /// Fills in the fields of the stamp that are computed from the database's first page. Returns the stamp.
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
    /// A process has made a log for the database. A record with `intact: false` may also be written later, while the
    /// log is in use: it then says that something other than a commit of this log has changed the database.
    Begin {
        /// The log.
        log: LogId,
        /// Whether the database file was unchanged when the log was made, compared with the stamp in the last
        /// [`Record::Rest`].
        intact: bool,
    },
    /// All commits of a log are in the database file, and a process is about to delete the log.
    End {
        /// The log.
        log: LogId,
        /// The position after the log's last transaction.
        position: u64,
        /// Whether this log has a backlog.
        backlog: bool,
    },
    /// A process has removed the guard of a log from the database file. From this record on, the file is an ordinary
    /// database.
    Rest {
        /// The log.
        log: LogId,
        /// The stamp of the database file when the guard was removed.
        stamp: Stamp,
    },
    /// The newest recorded owner has lost the archive, because another primary has claimed a later generation.
    Fenced {
        /// The generation that the other primary has claimed.
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

/// Returns the part of a line after its checksum, if the checksum is right.
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
    /// If this owner has lost the archive to another primary, the generation that the other primary has claimed.
    pub fenced: Option<u64>,
    /// The records about logs, each with the offset of its line, oldest first.
    lines: Vec<(usize, Record)>,
}

/// A closed log in a *line of logs*. A line of logs is a sequence of logs of one database. Nothing but commits of these
/// logs has changed the database from the first log to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// The log.
    pub log: LogId,
    /// The position after the log's last transaction.
    pub position: u64,
    /// Whether this log has a backlog.
    pub backlog: bool,
}

impl Records {
    /// Reads the records of a file. Ignores lines that are incomplete or damaged.
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

    /// Returns the records about logs in two lists: those before the newest owner's record, and those after it.
    #[must_use]
    pub fn around_owner(&self) -> (Vec<Record>, Vec<Record>) {
        let (older, newer): (Vec<_>, Vec<_>) =
            self.lines.iter().cloned().partition(|(at, _)| *at < self.owner_at);
        let records = |lines: Vec<(usize, Record)>| lines.into_iter().map(|(_, record)| record).collect();
        (records(older), records(newer))
    }

    /// Returns whether this log breaks the line of logs. Only records after the newest owner's record count. A log
    /// breaks the line if something other than the logs changed the database before this log was made, or if something
    /// other than this log's commits changed the database while the log was in use.
    #[must_use]
    pub fn is_broken(&self, log: LogId) -> bool {
        let is_break = |record: &Record| *record == Record::Begin { log, intact: false };
        self.lines.iter().any(|(at, record)| *at > self.owner_at && is_break(record))
    }

    /// Returns whether nothing has changed the database file since the last log was closed. `found` is the file's stamp
    /// now. The result can also be `true` if a process has recorded a new log, but has not yet put the new log's guard
    /// into the file.
    #[must_use]
    pub fn rests_at(&self, found: Stamp) -> bool {
        let last = self.logs().rev().find(|record| !matches!(record, Record::Begin { .. }));
        matches!(last, Some(Record::Rest { stamp, .. }) if *stamp == found)
    }

    /// Tells the caller how to make this file forget the log `log`, which must have no commits. Returns the offset at
    /// which to truncate the file, and the log that was closed before `log`. The truncation also removes the last
    /// [`Record::Rest`], so the caller then appends a new one for that earlier log. Returns `None` if the records do
    /// not permit this: the last record must be the beginning of `log` with `intact: true`, it must follow a
    /// [`Record::Rest`], and no owner may be recorded after that `Rest`, because an owner's record must stay.
    #[must_use]
    pub fn tail_of(&self, log: LogId) -> Option<(usize, LogId)> {
        let is_begin = |record: &Record| matches!(record, Record::Begin { .. });
        let before = self.lines.iter().rposition(|(_, record)| !is_begin(record))?;
        let &(at, Record::Rest { log: rested, .. }) = self.lines.get(before)? else { return None };
        let is_last = self.lines.last()?.1 == Record::Begin { log, intact: true };
        (is_last && self.owner_at < at).then_some((at, rested))
    }

    /// Returns the part of the line of logs that begins with `log`: its closed logs, oldest first. `now` says where the
    /// line ends: at a log in use, or at the database file, which then has no guard and has the given stamp. The result
    /// is empty if the line ends at `log`. Returns `None` if something other than these logs may have changed the
    /// database. The archive then needs a snapshot.
    #[must_use]
    pub fn since(&self, log: LogId, now: LineEnd) -> Option<Vec<Closed>> {
        if now == LineEnd::Log(log) {
            return Some(Vec::new());
        }
        let mut closed = Vec::new();
        let first =
            self.logs().position(|record| matches!(record, Record::End { log: of, .. } if *of == log))?;
        let mut records = self.logs().skip(first).peekable();
        // Each round of the loop reads the records about the end of the log `of`, and about the beginning of the log
        // after it.
        let mut of = log;
        loop {
            let mut end = None;
            while let Some(Record::End { log, position, backlog }) = records.peek()
                && *log == of
            {
                // Several records of the end mean that a process tried more than once to close the log. The backlog may
                // be from an earlier attempt.
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
            // If several logs begin in a row, only the last one counts. The others never had their guard in the
            // database file, so they have no commits.
            let mut begun = None;
            while let Some(Record::Begin { log, intact }) = records.peek() {
                begun = Some((*log, *intact));
                records.next();
            }
            of = match (begun, now) {
                // If the records end with the beginning of a log, that log's guard may not be in the database file yet.
                (_, LineEnd::File(found)) if records.peek().is_none() && *stamp == found => {
                    return Some(closed);
                }
                (Some((log, true)), _) => log,
                _ => return None,
            };
            if now == LineEnd::Log(of) {
                // This log is in use, although it may have a record of its end: a process may have written that record
                // and then failed to close the log.
                return records
                    .all(|record| matches!(record, Record::End { log, .. } if *log == of))
                    .then_some(closed);
            }
        }
    }
}

/// Where a line of logs ends now.
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

/// Returns the format version that a line names, if this build does not read that version.
fn version_of(line: &[u8]) -> Option<u32> {
    let version = body_of(line)?.strip_prefix("archive ")?.split(' ').next()?.parse().ok()?;
    (version != VERSION).then_some(version)
}
