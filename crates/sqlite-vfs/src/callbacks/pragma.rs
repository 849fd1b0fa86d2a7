//! `PRAGMA duralite`, `PRAGMA duralite_conflicts` and `PRAGMA duralite_<setting>`.
#![allow(unsafe_code)] // reads the array of strings that SQLite passes

use std::ffi::{CStr, c_char, c_int};

use duralite_sqlite_ffi as ffi;

use crate::attachment::conflicts::HotPage;
use crate::database::{Db, strict};
use crate::settings::{self, CONCURRENT, REPLICATED, REPLICATED_TIMEOUT};
use crate::status::{self, Status, in_force};

const PRAGMA: &str = "duralite";
/// The end of the name of `PRAGMA duralite_conflicts`. That name looks like a setting's name, but is not one.
const CONFLICTS: &str = "conflicts";
/// A pragma of SQLite's own, whose value Duralite uses too.
const SIZE_LIMIT: &str = "journal_size_limit";

/// Answers `SQLITE_FCNTL_PRAGMA`. `NOTFOUND` tells SQLite to carry the pragma out itself.
///
/// # Safety
/// `words` is the array of that file control: the result, the name, and the value or null.
pub unsafe fn answer(db: &Db, words: *mut *mut c_char) -> c_int {
    // SAFETY: the name is never null.
    let name = unsafe { CStr::from_ptr(*words.add(1)) }.to_string_lossy().to_lowercase();
    // SAFETY: the value is null, or a string that ends with a zero.
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
        (None, None) => Ok(lines(&status::of(db))),
        (None, Some(_)) => Err("PRAGMA duralite takes no value; use PRAGMA duralite_<setting>".to_owned()),
        (Some(CONFLICTS), None) => Ok(conflicts(db)),
        (Some(CONFLICTS), Some(_)) => Err("PRAGMA duralite_conflicts takes no value".to_owned()),
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

/// Notes the value of `PRAGMA journal_size_limit`, which SQLite also carries out itself. SQLite compares the
/// limit with the size of the log's content. The log's file may be larger than its content, so SQLite would
/// never ask to truncate the file. The log applies the limit instead.
fn limit_size(db: &Db, value: Option<&str>) {
    let Some(limit) = value.and_then(|value| value.trim().parse::<i64>().ok()) else { return };
    let limit = u64::try_from(limit).ok();
    db.settings().size_limit = limit;
    if let Some(attachment) = db.in_service() {
        attachment.log().limit_size(limit);
    }
}

fn read(db: &Db, setting: &str) -> Result<String, String> {
    in_force(db).value_of(setting).ok_or_else(|| settings::unknown(setting))
}

fn change(db: &Db, setting: &str, value: &str) -> Result<String, String> {
    let row = settings::find(setting).ok_or_else(|| settings::unknown(setting))?;
    if !row.is_changeable() {
        return Err(format!(
            "{setting} is fixed once the database is open; set it when you open the database"
        ));
    }
    if setting == CONCURRENT {
        if db.is_active() {
            return Err(format!("{setting} is fixed once a connection has read from the database"));
        }
        db.settings().set(setting, value)?;
        return read(db, setting);
    }
    if [REPLICATED, REPLICATED_TIMEOUT].contains(&setting) {
        let mut changed = db.settings().clone();
        changed.set(setting, value)?;
        changed.check()?;
        *db.settings() = changed;
        return read(db, setting);
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

/// Returns a line for each name and value, with a tab in between.
fn lines(status: &Status) -> String {
    status.iter().map(|(name, value)| format!("{name}\t{value}")).collect::<Vec<_>>().join("\n")
}

/// Returns a line for each page on which transactions were overtaken. The line has the count of these
/// transactions, the page's number, and the table or index to which the page belongs, with tabs in between.
fn conflicts(db: &Db) -> String {
    let line = |hot: &HotPage| {
        // Replace tabs and line ends in the name of a table, because they separate the columns and lines
        // here.
        let owner = hot.owner().replace(|character: char| character.is_control(), " ");
        format!("{}\t{}\t{owner}", hot.count, hot.page)
    };
    db.hot_pages().iter().map(line).collect::<Vec<_>>().join("\n")
}
