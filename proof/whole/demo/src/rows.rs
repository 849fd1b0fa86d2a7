//! The input: the Unicode characters that have individual names.

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The number of the row, counted from 1.
    pub(crate) line: u32,
    /// The character's code in hexadecimal, as in the standard.
    pub(crate) code: String,
    pub(crate) name: String,
}

/// Prefixes of names that the Unicode standard makes by a rule, from the code or from the parts of the
/// character. About 100,000 names have these prefixes. The input leaves them out, because they say no more
/// than the code or those parts.
const MADE_BY_RULE: [&str; 4] =
    ["CJK UNIFIED IDEOGRAPH-", "CJK COMPATIBILITY IDEOGRAPH-", "HANGUL SYLLABLE ", "TANGUT IDEOGRAPH-"];

/// Returns the named characters in the order of their codes, or only the first `limit` of them.
pub(crate) fn read(limit: Option<u32>) -> Vec<Row> {
    ('\0'..=char::MAX)
        .filter_map(|c| Some((c, unicode_names2::name(c)?.to_string())))
        .filter(|(_, name)| !MADE_BY_RULE.iter().any(|start| name.starts_with(start)))
        .zip(1..=limit.unwrap_or(u32::MAX))
        .map(|((c, name), line)| Row { line, code: format!("{:04X}", u32::from(c)), name })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_come_in_the_order_of_their_codes() {
        let rows = read(Some(34));
        assert_eq!(rows[0], Row { line: 1, code: "0020".into(), name: "SPACE".into() });
        assert_eq!(rows[33], Row { line: 34, code: "0041".into(), name: "LATIN CAPITAL LETTER A".into() });
        assert_eq!(rows.len(), 34);
    }
}
