//! The status of a database: what serves it, with which settings, and what this process and others have done.
//! `PRAGMA duralite`, the table `duralite` and `duralite_json()` all show this.

use duralite_format::guard::DatabaseHeader;
use duralite_wal::metrics::Counter;

use crate::account;
use crate::database::{Db, replicated};
use crate::settings::{self, Settings};

/// The names and values of a status. No name occurs twice. For each count, `docs/status.md` says whether the
/// count covers one process or all processes.
pub type Status = Vec<(&'static str, String)>;

/// The counts of what this process was refused because the log had no room.
const ROOM: [(&str, Counter); 2] = [("room_busy", Counter::RoomWaits), ("room_full", Counter::RoomFailures)];

/// The counts of what became of this process's concurrent transactions.
const CONCURRENCY: [(&str, Counter); 7] = [
    ("commits_merged", Counter::Merged),
    ("conflicts_page", Counter::PageConflicts),
    ("conflicts_schema", Counter::SchemaConflicts),
    ("conflicts_shrunk", Counter::ShrinkConflicts),
    ("conflicts_unknown", Counter::UnknownConflicts),
    ("upgrades_waited", Counter::UpgradesWaited),
    ("snapshots_moved", Counter::SnapshotsMoved),
];

/// Returns the value as a number, if its text is exactly that of a number.
pub fn number(value: &str) -> Option<i64> {
    value.parse().ok().filter(|number: &i64| number.to_string() == value)
}

/// Returns the settings in force: those of the log in use, or else those of this connection.
pub fn in_force(db: &Db) -> Settings {
    match db.in_service() {
        Some(attachment) => {
            let mut settings = attachment.in_force().clone();
            // Each connection decides for itself whether it is concurrent and whether its commits wait for
            // the archive, so the log's settings do not count.
            let own = db.settings();
            settings.concurrent = own.concurrent;
            (settings.replicated, settings.replicated_timeout) = (own.replicated, own.replicated_timeout);
            settings
        }
        None => db.settings().clone(),
    }
}

/// Returns the status of a database that is open through Duralite.
pub fn of(db: &Db) -> Status {
    let settings = in_force(db);
    let Some(attachment) = db.in_service() else {
        let (engine, state) = why_idle(db, &settings);
        let mut status = idle(engine, state);
        status.push(("journal", settings.value_of("journal").unwrap_or_default()));
        return status;
    };
    let log = attachment.log();
    let mut status = idle(log.engine().name, "active".to_owned());
    status.push(("medium", log.describe()));
    status.push(("guarantee", log.guarantee().as_str().to_owned()));
    status.extend(log.why_unsynced().map(|why| ("guarantee_reason", why.to_owned())));
    let shown = settings::rows().into_iter().filter(|row| row.is_shown());
    status.extend(shown.map(|row| (row.name(), row.get(&settings))));
    status.push(("log", log.path().display().to_string()));
    status.extend(log.metrics());
    let (readers, oldest) = attachment.locks().readers().unwrap_or_default();
    let locks = attachment.locks().activity();
    status.extend([
        ("readers", readers.to_string()),
        ("oldest_reader_ms", oldest.as_millis().to_string()),
        ("lock_busy", locks.busy.to_string()),
        ("lock_waits", locks.waits.to_string()),
        ("lock_recoveries", locks.recovered.to_string()),
    ]);
    let count = |(name, counter)| (name, attachment.conflicts().events(counter).to_string());
    status.extend(ROOM.map(count));
    status.push(("concurrent", db.concurrency_in_force().name().to_owned()));
    status.extend(CONCURRENCY.map(count));
    drop(log);
    status.extend(replicated::status(db, &attachment));
    status
}

/// Returns the status of a database that Duralite does not serve. `why` says how the database is open.
pub fn plain(why: &str) -> Status {
    idle("off", format!("off: {why}"))
}

fn idle(engine: &str, state: String) -> Status {
    vec![("version", crate::version().to_owned()), ("engine", engine.to_owned()), ("state", state)]
}

/// Notes in the account why no log serves a database, if no log has ever served it.
pub fn account_for(db: &Db) {
    if account::is_on() && !db.is_helper() && !db.was_served() {
        account::plain(&db.path, &why_idle(db, &in_force(db)).1);
    }
}

/// Returns the engine that would serve the database, and the reason why no engine serves it now.
fn why_idle(db: &Db, settings: &Settings) -> (&'static str, String) {
    let engine = match settings.placement(&db.path) {
        Ok(placement) => placement.engine.name,
        Err(why) => return ("off", format!("off: {why}")),
    };
    let state = match db.header() {
        Ok(DatabaseHeader::Guarded { .. }) => "idle: nothing read yet",
        _ if db.read_only => return ("off", "off: opened read-only".to_owned()),
        Ok(DatabaseHeader::Plain { wal: true, .. }) => match db.base_wal_bytes() {
            Ok(Some(1..)) => "idle: an ordinary -wal file is there",
            _ => "idle: nothing read yet",
        },
        _ if db.may_raise_for_journal() => "idle: nothing written yet",
        _ => "idle: journal_mode is not wal",
    };
    (engine, state.to_owned())
}
