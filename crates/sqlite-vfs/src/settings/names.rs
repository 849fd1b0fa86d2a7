//! Finds mistyped settings: names that are meant for Duralite but are not settings.
//!
//! SQLite hands every parameter of a URI to its VFS, including those for other VFSs and for drivers. So an
//! unknown name counts as mistyped only if it resembles a setting, or begins as Duralite's settings do.

use duralite_wal::engines;

use super::table::{Row, find, names, rows};

/// Environment variables of Duralite that are not settings: of the library, of the Python package, of
/// `duralite run`, of the tests, and of one benchmark.
const OTHER_VARIABLES: [&str; 8] = [
    "DURALITE_MAKE_DEFAULT",
    "DURALITE_LOG",
    "DURALITE_LIBRARY",
    "DURALITE_RUN",
    "DURALITE_REQUIRE_RIGS",
    "DURALITE_SEED",
    "DURALITE_REGENERATE",
    "DURALITE_BENCH_10GB",
];
const VARIABLE_PREFIX: &str = "DURALITE_";
/// The beginnings of names that are meant for Duralite. A name that begins with the name of an engine is also
/// meant for Duralite.
const OWN_PREFIXES: [&str; 7] = ["nvram", "journal", "log_", PRODUCT, "group_", "read_d", "background"];
const PRODUCT: &str = "duralite";
/// Parameters of SQLite itself, and of VFSs that come with it or are stacked over it. Duralite never refuses
/// these names, nor names that begin with `_`, which belong to drivers.
const FOREIGN: [&str; 28] = [
    "vfs",
    "mode",
    "cache",
    "psow",
    "nolock",
    "immutable",
    "modeof",
    "8_3_names",
    "ptr",
    "sz",
    "max",
    "freeonclose",
    "cksm",
    "zv",
    "key",
    "hexkey",
    "textkey",
    "rekey",
    "hexrekey",
    "textrekey",
    "reservebytes",
    "chunksize",
    "truncate",
    "quota",
    "cipher",
    "legacy",
    "delay",
    "schema",
];
/// Pragmas whose names begin like settings. SQLite does not accept them as parameters.
const PRAGMAS: [&str; 2] = ["journal_mode", "journal_size_limit"];
/// A setting whose name is a single word is recognised within a longer name only if the word has at least
/// this many bytes.
const DISTINCT_BYTES: usize = 6;
/// The name of a setting is recognised with two typing errors if it has at least this many bytes. A shorter
/// name is recognised only with one.
const LONG_BYTES: usize = 7;

/// Refuses names that are meant for Duralite but are not settings.
pub fn refuse_unknown(
    uri_keys: impl Iterator<Item = String>,
    mut variables: impl Iterator<Item = String>,
) -> Result<(), String> {
    for key in uri_keys {
        if find(&key).is_some() || FOREIGN.contains(&key.as_str()) || key.starts_with('_') {
            continue;
        }
        let known = if PRAGMAS.contains(&key.as_str()) {
            format!("it is set by PRAGMA {key}")
        } else if let Some(name) = setting_meant(&key) {
            format!("did you mean {name}?")
        } else if begins_as_ours(&plain(&key)) {
            format!("the settings are {}", names())
        } else {
            continue;
        };
        return Err(format!("unknown URI parameter {key}; {known}"));
    }
    variables.try_for_each(|variable| check_variable(&variable))
}

fn begins_as_ours(name: &str) -> bool {
    let engines = engines::all().map(|engine| engine.name);
    OWN_PREFIXES.into_iter().chain(engines).any(|prefix| name.starts_with(prefix))
}

/// Returns the message about an unknown name where only a setting is allowed.
pub fn unknown(name: &str) -> String {
    match setting_meant(name) {
        Some(meant) => format!("{name} is not a setting; did you mean {meant}?"),
        None => format!("{name} is not a setting; the settings are {}", names()),
    }
}

/// Returns the environment variable of a setting.
pub fn variable_of(name: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", name.to_uppercase())
}

fn check_variable(variable: &str) -> Result<(), String> {
    let Some((prefix, rest)) = variable.split_once('_') else { return Ok(()) };
    let (prefix, own) = (prefix.to_uppercase(), VARIABLE_PREFIX.trim_end_matches('_'));
    // Compare the lengths first, because that is cheap and excludes most variables of an environment.
    if prefix != own && (prefix.len().abs_diff(own.len()) > 2 || distance(&prefix, own) > 2) {
        return Ok(());
    }
    let known: Vec<&str> = rows().iter().map(Row::name).collect();
    if OTHER_VARIABLES.contains(&variable) || known.iter().any(|name| variable_of(name) == variable) {
        return Ok(());
    }
    let others = OTHER_VARIABLES.iter().filter_map(|other| other.strip_prefix(VARIABLE_PREFIX));
    let others: Vec<String> = others.map(str::to_lowercase).collect();
    let candidates: Vec<&str> = known.into_iter().chain(others.iter().map(String::as_str)).collect();
    match meant(rest, &candidates) {
        Some(name) => {
            Err(format!("unknown environment variable {variable}; did you mean {}?", variable_of(name)))
        }
        None if prefix == own => {
            Err(format!("unknown environment variable {variable}; the settings are {}", names()))
        }
        // The variable belongs to another program, and its name happens to look like one of Duralite's, so
        // ignore it.
        None => Ok(()),
    }
}

fn setting_meant(name: &str) -> Option<&'static str> {
    let candidates: Vec<&'static str> = rows().iter().map(Row::name).collect();
    meant(name, &candidates)
}

/// Returns the candidate that `name` was probably meant to be.
fn meant<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let name = plain(name);
    // Compare only the part of the name after the name of the product or of an engine.
    let own = engines::all().map(|engine| engine.name).chain([PRODUCT]);
    let rest = own.filter_map(|own| name.strip_prefix(own)?.strip_prefix('_')).next();
    let name = rest.unwrap_or(&name);
    let squeezed = name.replace('_', "");
    let near = candidates.iter().map(|candidate| {
        let wanted = candidate.replace('_', "");
        let allowed = if wanted.len() < LONG_BYTES { 1 } else { 2 };
        (distance(&squeezed, &wanted), allowed, *candidate)
    });
    let nearest = near.filter(|(found, allowed, _)| found <= allowed).min_by_key(|(found, ..)| *found);
    nearest.map(|(.., candidate)| candidate).or_else(|| {
        let longer = candidates.iter().filter(|candidate| is_within(name, candidate));
        longer.max_by_key(|candidate| candidate.len()).copied()
    })
}

/// Returns the name in lower case, with `_` between its words as in settings.
fn plain(name: &str) -> String {
    name.to_lowercase().replace(['-', '.', ' '], "_")
}

/// Returns whether one of the two names is the other name with more words before or after it.
fn is_within(name: &str, candidate: &str) -> bool {
    let contains = |long: &str, short: &str| format!("_{long}_").contains(&format!("_{short}_"));
    let distinct = |short: &str| short.contains('_') || short.len() >= DISTINCT_BYTES;
    distinct(candidate) && contains(name, candidate) || name.contains('_') && contains(candidate, name)
}

/// Returns the smallest number of insertions, deletions, substitutions and swaps of neighbouring characters
/// that turn one word into the other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let mut best = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows.last().and_then(|row| row.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &[&str], variables: &[&str]) -> Result<(), String> {
        refuse_unknown(keys.iter().map(|s| (*s).to_owned()), variables.iter().map(|s| (*s).to_owned()))
    }

    #[test]
    fn mistyped_parameters_are_refused_and_say_what_was_meant() {
        for (key, meant) in [
            ("durabilty", "durability"),
            ("Durability", "durability"),
            ("durablity", "durability"),
            ("nvrm", "nvram"),
            ("nvram-dir", "nvram_dir"),
            ("nvramdir", "nvram_dir"),
            ("log_limits", "log_limit"),
            ("loglimit", "log_limit"),
            ("log-limit", "log_limit"),
            ("limit_log_limit", "log_limit"),
            ("snyc", "sync"),
            ("SYNC", "sync"),
            ("lay_out", "layout"),
            ("layuot", "layout"),
            ("acess", "access"),
            ("strct", "strict"),
            ("strict_mode", "strict"),
            ("jounal", "journal"),
            ("heaps", "heap"),
            ("dif", "diff"),
            ("group_sync", "group_synch"),
            ("write_ns", "nvram_write_ns"),
            ("background-checkpoints", "background_checkpoint"),
            ("interval_ms", "group_interval_ms"),
            ("nvram_writes_ns", "nvram_write_ns"),
            ("duralite_sync", "sync"),
            ("waldio_log_dir", "log_dir"),
        ] {
            let message = check(&[key], &[]).unwrap_err();
            assert_eq!(message, format!("unknown URI parameter {key}; did you mean {meant}?"));
        }
        // These names resemble no setting, but they begin as names for Duralite do.
        for key in ["nvram_latency", "log_size", "waldio", "background"] {
            let message = check(&[key], &[]).unwrap_err();
            assert!(message.contains(key) && message.contains("the settings are journal"), "{message}");
        }
        assert!(check(&["journal_mode"], &[]).unwrap_err().ends_with("PRAGMA journal_mode"));
    }

    #[test]
    fn the_parameters_of_others_are_left_alone() {
        assert!(check(&FOREIGN, &[]).is_ok());
        for key in FOREIGN {
            assert_eq!(setting_meant(key), None, "{key} resembles a setting");
        }
        let others = [
            "color",
            "timeout",
            "_sync",
            "_journal_mode",
            "_pragma",
            "synchronous",
            "isolation_level",
            "kdf_iter",
            "page_size",
            "outer_cache",
            "threads",
            "foreign_keys",
            "static",
            "ratio",
            "checkpoint",
            "interval",
            "limit",
        ];
        for key in others {
            assert_eq!(check(&[key], &[]), Ok(()));
        }
        for setting in rows() {
            assert_eq!(check(&[setting.name()], &[&variable_of(setting.name())]), Ok(()));
        }
    }

    #[test]
    fn mistyped_variables_are_refused_and_say_what_was_meant() {
        assert_eq!(check(&[], &OTHER_VARIABLES), Ok(()));
        let others = ["PATH", "HOME", "DURABLE_SYNC", "SYNC", "_", "DURATION_MS", "DURALINE_X", "LS_COLORS"];
        assert_eq!(check(&[], &others), Ok(()));
        for (variable, meant) in [
            ("DURALITE_SYNCH", "DURALITE_SYNC"),
            ("DURALITE_DURABILTY", "DURALITE_DURABILITY"),
            ("duralite_sync", "DURALITE_SYNC"),
            ("DURALIT_STRICT", "DURALITE_STRICT"),
            ("DURALITE_MAKEDEFAULT", "DURALITE_MAKE_DEFAULT"),
            ("DURALITE_LOGS", "DURALITE_LOG"),
        ] {
            let message = check(&[], &[variable]).unwrap_err();
            assert_eq!(message, format!("unknown environment variable {variable}; did you mean {meant}?"));
        }
        assert!(check(&[], &["DURALITE_COLOR"]).unwrap_err().contains("settings are journal"));
    }

    #[test]
    fn distances_count_swaps_as_one() {
        assert_eq!(distance("", "ab"), 2);
        assert_eq!(distance("sync", "snyc"), 1);
        assert_eq!(distance("durabilty", "durability"), 1);
        assert_eq!(distance("access", "layout"), 6);
    }
}
