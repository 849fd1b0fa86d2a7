//! URIs of databases.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the URI under which SQLite opens a database through Duralite:
/// `file:app.db?vfs=duralite&strict=on`, followed by the settings. The settings are those of
/// `docs/settings.md`, or parameters of SQLite such as `("mode", "ro")`.
///
/// The URI says `strict=on` unless the settings say otherwise. With `strict=on` Duralite refuses what plain
/// SQLite would serve, such as the first write to a database that is not in WAL mode. `path` may be any path;
/// a relative path stays relative. A path with a zero byte cannot name a file. The URI keeps the zero byte,
/// so that an attempt to make a C string of the URI fails.
///
/// Duralite checks the settings when the database is opened. [`last_error`](crate::last_error) returns the
/// reason of a refusal.
pub fn uri(path: impl AsRef<Path>, settings: &[(&str, &str)]) -> String {
    let path = path.as_ref();
    let mut text = String::from(if path.is_absolute() { "file://" } else { "file:" });
    encode(&mut text, path.as_os_str().as_bytes());
    text.push_str("?vfs=duralite");
    let is_strict = settings.iter().all(|(name, _)| *name != "strict");
    for (name, value) in is_strict.then_some(&("strict", "on")).into_iter().chain(settings) {
        text.push('&');
        encode(&mut text, name.as_bytes());
        text.push('=');
        encode(&mut text, value.as_bytes());
    }
    text
}

/// Encodes every byte that may have a meaning in a URI. Leaves a zero byte as it is: if it were encoded,
/// SQLite would end the path there, and open another file.
fn encode(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' | 0 => {
                text.push(char::from(*byte));
            }
            // Writing to a String does not fail.
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_uri_is_strict_unless_it_is_told_otherwise() {
        assert_eq!(uri("app.db", &[]), "file:app.db?vfs=duralite&strict=on");
        assert_eq!(uri("/srv/app.db", &[("strict", "off")]), "file:///srv/app.db?vfs=duralite&strict=off");
        let settings = [("journal", "nvwal"), ("nvram", "/mnt/a&b=c")];
        let expected = "file:app.db?vfs=duralite&strict=on&journal=nvwal&nvram=/mnt/a%26b%3Dc";
        assert_eq!(uri("app.db", &settings), expected);
    }

    #[test]
    fn paths_keep_their_meaning() {
        let path = Path::new(OsStr::from_bytes(b"a b?c#d%e\xff:f"));
        assert_eq!(uri(path, &[]), "file:a%20b%3Fc%23d%25e%FF%3Af?vfs=duralite&strict=on");
        assert!(std::ffi::CString::new(uri("a\0b", &[])).is_err());
    }
}
