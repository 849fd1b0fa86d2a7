//! The names of files: the first and the last transaction, as hexadecimal digits.

/// Returns the name of the file that has these transactions.
#[must_use]
pub fn file_name(min: u64, max: u64) -> String {
    format!("{min:016x}-{max:016x}.ltx")
}

/// Returns the transactions of the file with this name, or `None` if it is not the name of an LTX file.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<(u64, u64)> {
    let (min, max) = name.strip_suffix(".ltx")?.split_once('-')?;
    let (min, max) = (number(min)?, number(max)?);
    (min >= 1 && min <= max).then_some((min, max))
}

fn number(digits: &str) -> Option<u64> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (digits.len() == 16 && digits.bytes().all(is_digit)).then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        assert_eq!(file_name(1, 0xff), "0000000000000001-00000000000000ff.ltx");
        for (min, max) in [(1, 1), (7, u64::MAX)] {
            assert_eq!(parse_file_name(&file_name(min, max)), Some((min, max)));
        }
    }

    #[test]
    fn other_names_are_not_read() {
        let digits = "0000000000000002";
        for name in [
            String::new(),
            format!("{digits}-{digits}.tmp"),
            format!("{digits}{digits}.ltx"),
            format!("{digits}-0000000000000001.ltx"),
            format!("0000000000000000-{digits}.ltx"),
            format!("{digits}-000000000000000A.ltx"),
            format!("{digits}-+00000000000002.ltx"),
            format!("{digits}-2.ltx"),
        ] {
            assert_eq!(parse_file_name(&name), None, "{name}");
        }
    }
}
