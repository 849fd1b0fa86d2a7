//! `PRAGMA duralite` and `PRAGMA duralite_<setting>`.
#![allow(unsafe_code)] // reads the array of strings that SQLite passes

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;

use duralite_logfmt::guard::DatabaseHeader;
use duralite_sqlite_ffi as ffi;

use crate::account;
use crate::database::{Db, strict};
use crate::settings::{self, Settings};

const PRAGMA: &str = "duralite";
/// A pragma of SQLite's own.
const SIZE_LIMIT: &str = "journal_size_limit";

/// Answers `SQLITE_FCNTL_PRAGMA`; `NOTFOUND` when the pragma is not ours.
///
/// # Safety
/// `words` is the array of that call: result, name, value or null.
pub unsafe fn answer(db: &Db, words: *mut *mut c_char) -> c_int {
    // SAFETY: the name is never null.
    let name = unsafe { CStr::from_ptr(*words.add(1)) }.to_string_lossy().to_lowercase();
    // SAFETY: null or a string.
    let value = unsafe { (*words.add(2)).as_ref().map(|value| CStr::from_ptr(value)) };
    let value = value.map(|value| value.to_string_lossy().into_owned());
    if let Err(failure) = strict::check_pragma(db, &name, value.as_deref()) {
        // SAFETY: SQLite frees the text that it finds there.
        unsafe { *words = db.sqlite.text(&format!("duralite: {}", failure.message)) };
        return db.sqlite.fail(&failure);
    }
    if name == SIZE_LIMIT {
        limit_size(db, value.as_deref());
        return ffi::NOTFOUND;
    }
    let setting = match name.strip_prefix(PRAGMA) {
        Some("") => None,
        Some(rest) if rest.starts_with('_') => Some(&rest[1..]),
        _ => return ffi::NOTFOUND,
    };
    let result = match (setting, value) {
        (None, None) => Ok(status(db)),
        (None, Some(_)) => Err("PRAGMA duralite takes no value; use PRAGMA duralite_<setting>".to_owned()),
        (Some(setting), None) => read(db, setting),
        (Some(setting), Some(value)) => change(db, setting, &value),
    };
    let (code, text) = match result {
        Ok(text) => (ffi::OK, text),
        Err(text) => (ffi::ERROR, format!("duralite: {text}")),
    };
    // SAFETY: SQLite frees the text that it finds there.
    unsafe { *words = db.sqlite.text(&text) };
    code
}

/// Takes note of SQLite's own pragma, which it goes on to carry out: the size that it then compares is
/// that of the log's content, so that it would never ask for the file to be cut.
fn limit_size(db: &Db, value: Option<&str>) {
    let Some(limit) = value.and_then(|value| value.trim().parse::<i64>().ok()) else { return };
    let limit = u64::try_from(limit).ok();
    db.settings().size_limit = limit;
    if let Some(attachment) = db.in_service() {
        attachment.log().limit_size(limit);
    }
}

/// The settings that count: those of the log in use, else this connection's.
fn in_force(db: &Db) -> Settings {
    match db.in_service() {
        Some(attachment) => attachment.in_force().clone(),
        None => db.settings().clone(),
    }
}

fn read(db: &Db, setting: &str) -> Result<String, String> {
    in_force(db).value_of(setting).ok_or_else(|| settings::unknown(setting))
}

fn change(db: &Db, setting: &str, value: &str) -> Result<String, String> {
    let row = settings::find(setting).ok_or_else(|| settings::unknown(setting))?;
    if !row.is_changeable() {
        return Err(format!("{setting} is fixed once the database is open; give it when opening"));
    }
    db.settings().set(setting, value)?;
    if let Some(attachment) = db.in_service() {
        let mut settings = attachment.in_force();
        settings.set(setting, value)?;
        let options = settings.options.clone();
        drop(settings);
        attachment.log().configure(&options);
    }
    read(db, setting)
}

fn status(db: &Db) -> String {
    let settings = in_force(db);
    let mut text = String::new();
    line(&mut text, "version", crate::version());
    let Some(attachment) = db.in_service() else {
        let (engine, state) = why_idle(db, &settings);
        line(&mut text, "engine", engine);
        line(&mut text, "state", &state);
        line(&mut text, "journal", &settings.value_of("journal").unwrap_or_default());
        return text.trim_end().to_owned();
    };
    let log = attachment.log();
    line(&mut text, "engine", log.engine().name);
    line(&mut text, "state", "active");
    line(&mut text, "medium", &log.describe());
    line(&mut text, "guarantee", log.guarantee().as_str());
    for row in settings::rows().iter().filter(|row| row.is_shown()) {
        line(&mut text, row.name(), &row.get(&settings));
    }
    line(&mut text, "log", &log.path().display().to_string());
    for (name, value) in log.metrics() {
        line(&mut text, name, &value);
    }
    let (readers, oldest) = attachment.locks().readers().unwrap_or_default();
    line(&mut text, "readers", &readers.to_string());
    line(&mut text, "oldest_reader_ms", &oldest.as_millis().to_string());
    let locks = attachment.locks().activity();
    line(&mut text, "lock_busy", &locks.busy.to_string());
    line(&mut text, "lock_waits", &locks.waits.to_string());
    line(&mut text, "lock_recoveries", &locks.recovered.to_string());
    text.trim_end().to_owned()
}

/// Takes down why no log serves a database, if none has.
pub fn account_for(db: &Db) {
    if account::is_on() && !db.is_helper && !db.was_served() {
        let settings = in_force(db);
        account::plain(&db.path, &why_idle(db, &settings).1);
    }
}

fn line(text: &mut String, name: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name}\t{value}");
}

/// The engine that would serve, and why none does now.
fn why_idle(db: &Db, settings: &Settings) -> (&'static str, String) {
    let engine = match settings.log_dir(&db.path) {
        Ok(directory) => directory.engine.name,
        Err(why) => return ("off", format!("off: {why}")),
    };
    let state = match db.header() {
        Ok(DatabaseHeader::Guarded { .. }) => "idle: nothing read yet",
        _ if db.read_only => return ("off", "off: opened read-only".to_owned()),
        Ok(DatabaseHeader::Plain { wal: true, .. }) => "idle: nothing read yet",
        _ if db.may_raise_for_journal() => "idle: nothing written yet",
        _ => "idle: journal_mode is not wal",
    };
    (engine, state.to_owned())
}
