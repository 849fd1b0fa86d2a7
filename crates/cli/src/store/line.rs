//! The lines of a dump: table, key and value, separated by tabs. A byte that is not plain text is written as `\xNN`.

use anyhow::{Context, Result, bail};

/// The first line of a dump.
pub(super) const FIRST: &str = "# duralite store dump 1";
/// The beginning of the last line. The number of rows follows it.
pub(super) const LAST: &str = "# rows: ";

fn escape(bytes: &[u8], into: &mut Vec<u8>) {
    for byte in bytes {
        match byte {
            b'\\' => into.extend_from_slice(b"\\\\"),
            b' '..=b'~' => into.push(*byte),
            _ => into.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
}

/// Returns the line of a row, with its line end.
pub(super) fn write(table: &str, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(table.len() + key.len() + value.len() + 8);
    escape(table.as_bytes(), &mut line);
    for field in [key, value] {
        line.push(b'\t');
        escape(field, &mut line);
    }
    line.push(b'\n');
    line
}

fn unescape(field: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, rest) {
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                rest = after;
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit =
                    |byte: u8| char::from(byte).to_digit(16).context("\\x without two hexadecimal digits");
                bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
                rest = after;
            }
            (b'\\', _) => bail!("a backslash that begins no escape"),
            (byte, _) => bytes.push(*byte),
        }
    }
    Ok(bytes)
}

/// Parses a line, without its line end, into table, key and value.
pub(super) fn read(line: &[u8]) -> Result<(String, Vec<u8>, Vec<u8>)> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
    let [table, key, value] = fields[..] else {
        bail!("not three fields (table, key and value) separated by tabs")
    };
    let table = String::from_utf8(unescape(table)?).context("a table's name")?;
    Ok((table, unescape(key)?, unescape(value)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let line = write("t\u{e9}\t\\x", &all, b"");
        let (end, line) = line.split_last().unwrap();
        assert_eq!(*end, b'\n');
        assert!(line.iter().all(|byte| (b' '..=b'~').contains(byte) || *byte == b'\t'));
        assert_eq!(read(line).unwrap(), ("t\u{e9}\t\\x".to_owned(), all, Vec::new()));
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for line in
            ["t", "t\tk", "t\tk\tv\tw", "t\tk\t\\", "t\tk\t\\xg0", "t\tk\t\\x0", "t\tk\t\\y", "\\xff\tk\tv"]
        {
            assert!(read(line.as_bytes()).is_err(), "{line}");
        }
    }
}
