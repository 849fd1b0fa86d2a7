//! Reports what was saved, and what is missing.

use std::path::PathBuf;

use anyhow::Result;
use chrono::{DateTime, SecondsFormat};
use duralite_cli::output::{print_json, print_text};
use duralite_wal::LogError;
use duralite_wal::engine::salvage::{Contents, Damage, Salvaged, Written};
use serde_json::json;

pub(super) struct Report {
    pub(super) database: PathBuf,
    pub(super) log: PathBuf,
    pub(super) engine: &'static str,
    /// For a deleted log: the process that has it open, and the path of the copy of the log.
    pub(super) copied: Option<(u32, PathBuf)>,
    pub(super) out: PathBuf,
    pub(super) salvaged: Salvaged,
    pub(super) contents: Contents,
    pub(super) written: Written,
    /// The number of pages that the rollback journal in the log restored, or why it restored none.
    pub(super) journal: Result<usize, LogError>,
    /// The result of SQLite's `integrity_check`; `None` if SQLite's shell is not installed.
    pub(super) integrity: Option<String>,
    /// The directory with the transactions after the damage, if there are any.
    pub(super) apart: Option<PathBuf>,
    pub(super) listed: String,
}

/// Returns a time in UTC, from milliseconds since 1970.
pub(super) fn in_utc(time_ms: u64) -> String {
    let time = i64::try_from(time_ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(|| "?".to_owned(), |time| time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// Returns the first few page numbers, and how many more follow.
fn listed(pages: &[u32]) -> String {
    const SHOWN: usize = 20;
    let first: Vec<String> = pages.iter().take(SHOWN).map(u32::to_string).collect();
    let more = pages.len().saturating_sub(SHOWN);
    let first = first.join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

impl Report {
    /// Returns whether the saved database passed all checks: SQLite's `integrity_check` found no error, and the
    /// rollback from the journal in the log did not fail.
    pub(super) fn is_sound(&self) -> bool {
        self.integrity.as_deref() == Some("ok") && self.journal.is_ok()
    }

    pub(super) fn print(&self, as_json: bool) -> Result<()> {
        if as_json { self.print_json() } else { print_text(&self.in_words()) }
    }

    fn in_words(&self) -> String {
        let mut lines =
            vec![format!("log {} ({}), of {}", self.log.display(), self.engine, self.database.display())];
        if let Some((process, copy)) = &self.copied {
            lines.push(format!(
                "the log was deleted; process {process} has it open, but commits nothing more; a copy of the \
                 log is {}",
                copy.display()
            ));
        }
        lines.extend(self.damage_in_words());
        lines.extend(self.doubts_in_words());
        lines.push(self.written_in_words());
        match &self.journal {
            Ok(0) => {}
            Ok(pages) => {
                lines.push(format!("rolled back: {pages} pages, by the rollback journal in the log"))
            }
            Err(error) => lines.push(format!(
                "rollback journal: {error}; {} may have only a part of a transaction",
                self.out.display()
            )),
        }
        lines.push(match &self.integrity {
            Some(said) => format!("integrity_check of {}: {said}", self.out.display()),
            None => format!(
                "integrity_check: sqlite3 is not on PATH; run `PRAGMA integrity_check` on {}",
                self.out.display()
            ),
        });
        lines.push(match &self.copied {
            Some((process, _)) => format!(
                "{} was not changed; it gets the same commits when every connection of process {process} is \
                 closed",
                self.database.display()
            ),
            None => format!("{} and its log were not changed", self.database.display()),
        });
        lines.join("\n") + "\n"
    }

    fn damage_in_words(&self) -> Vec<String> {
        let Salvaged { point, later, missing, .. } = &self.salvaged;
        let mut before = format!("{} transactions", point.transactions);
        if let Some(position) = point.position.filter(|_| point.transactions > 0) {
            before.push_str(&format!(", the last at position {position}"));
        }
        if point.time_ms > 0 {
            before.push_str(&format!(", sealed {}", in_utc(point.time_ms)));
        }
        let Some(Damage { error, from, until }) = &self.salvaged.damage else {
            return vec!["damage: none; the log recovers".to_owned(), format!("in the log: {before}")];
        };
        let place =
            until.map_or_else(|| format!("from byte {from} on"), |until| format!("bytes {from} to {until}"));
        let missing = match (missing, self.salvaged.is_sequence) {
            (Some(missing), _) => {
                format!("missing: {missing} transactions between those before and those after the damage")
            }
            (None, false) => "missing: unknown, because each page has a log of its own".to_owned(),
            (None, true) if *later == 0 => "missing: all later transactions; how many is unknown".to_owned(),
            (None, true) => {
                format!(
                    "missing: transactions between frame {} and the first one after the damage",
                    point.last_frame
                )
            }
        };
        let behind = match &self.apart {
            Some(dir) => format!("after it: {later} transactions, in {}", dir.display()),
            None => "after it: no whole transaction".to_owned(),
        };
        vec![
            format!("damage: {place}: {}", error.to_string().split("; ").next().unwrap_or_default()),
            format!("before it: {before}"),
            missing,
            behind,
        ]
    }

    fn doubts_in_words(&self) -> Vec<String> {
        let Salvaged { checkpointed, newer, older, .. } = &self.salvaged;
        let mut lines = Vec::new();
        if let Some(number) = checkpointed {
            lines.push(format!(
                "a checkpoint wrote transactions after the damage to the database file, up to transaction \
                 {number} or later"
            ));
        }
        if !newer.is_empty() && self.contents == Contents::BeforeDamage {
            let pages = listed(newer);
            lines.push(format!("pages newer than the rest, because no older image is left: {pages}"));
        }
        if !older.is_empty() {
            lines.push(format!(
                "pages from the database file, perhaps older than the rest: {}",
                listed(older)
            ));
        }
        if !self.written.absent.is_empty() {
            lines
                .push(format!("pages found nowhere, and written as zeros: {}", listed(&self.written.absent)));
        }
        lines
    }

    fn written_in_words(&self) -> String {
        let Written { db_pages, from_log, .. } = &self.written;
        let out = self.out.display();
        match self.contents {
            Contents::BeforeDamage => format!(
                "{out}: the database after transaction {}, {db_pages} pages, {from_log} of them from the log",
                self.salvaged.point.transactions
            ),
            Contents::FileAlone => format!(
                "{out}: the database file alone, {db_pages} pages, as its last checkpoint left it, because \
                 with the transactions before the damage the database does not pass SQLite's check"
            ),
        }
    }

    fn print_json(&self) -> Result<()> {
        let Salvaged { point, damage, newer, older, checkpointed, later, missing, .. } = &self.salvaged;
        let damage = damage.as_ref().map(
            |damage| json!({ "from": damage.from, "until": damage.until, "what": damage.error.to_string() }),
        );
        print_json(&json!({
            "database": self.database.display().to_string(),
            "log": self.log.display().to_string(),
            "engine": self.engine,
            "process": self.copied.as_ref().map(|(process, _)| process),
            "log_copy": self.copied.as_ref().map(|(_, copy)| copy.display().to_string()),
            "out": self.out.display().to_string(),
            "damage": damage,
            "transactions": point.transactions,
            "position": point.position,
            "time_ms": point.time_ms,
            "missing": missing,
            "later": later,
            "later_in": self.apart.as_ref().map(|dir| dir.display().to_string()),
            "later_transactions": self.listed.lines().collect::<Vec<_>>(),
            "checkpointed_beyond": checkpointed,
            "newer_pages": newer,
            "older_pages": older,
            "absent_pages": self.written.absent,
            "contents": match self.contents {
                Contents::BeforeDamage => "before damage",
                Contents::FileAlone => "database file alone",
            },
            "pages": self.written.db_pages,
            "pages_from_log": self.written.from_log,
            "rollback_journal": self.journal.as_ref().err().map(ToString::to_string),
            "integrity_check": self.integrity,
        }))
    }
}
