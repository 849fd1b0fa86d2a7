//! JSON text.

use std::fmt::Write as _;

use crate::status::{self, Status};

/// An object. A value is a number where its text is one, else a text.
pub fn object(status: &Status) -> String {
    let mut json = String::from("{");
    for (i, (name, value)) in status.iter().enumerate() {
        json.push_str(if i == 0 { "" } else { "," });
        quote(&mut json, name);
        json.push(':');
        match status::number(value) {
            Some(number) => push_number(&mut json, number),
            None => quote(&mut json, value),
        }
    }
    json.push('}');
    json
}

/// An array.
pub fn array(numbers: &[u32]) -> String {
    let mut json = String::from("[");
    for (i, number) in numbers.iter().enumerate() {
        json.push_str(if i == 0 { "" } else { "," });
        push_number(&mut json, i64::from(*number));
    }
    json.push(']');
    json
}

fn push_number(json: &mut String, number: i64) {
    // Writing to a string cannot fail.
    let _ = write!(json, "{number}");
}

fn quote(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            '\0'..='\x1f' => {
                // As above.
                let _ = write!(json, "\\u{:04x}", u32::from(character));
            }
            _ => json.push(character),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_and_numbers_are_not() {
        let text = |text: &str| text.to_owned();
        let status = vec![
            ("a", text("7")),
            ("b", text("-7")),
            ("c", text("07")),
            ("d", text("7.5")),
            ("e", text("/\"q\"\\\t\u{1}é")),
        ];
        assert_eq!(object(&status), r#"{"a":7,"b":-7,"c":"07","d":"7.5","e":"/\"q\"\\\u0009\u0001é"}"#);
        assert_eq!(object(&Vec::new()), "{}");
    }

    #[test]
    fn numbers_are_listed() {
        assert_eq!(array(&[]), "[]");
        assert_eq!(array(&[1, u32::MAX]), "[1,4294967295]");
    }
}
