//! Reads the formats' constants from the code and from the documents.

use std::collections::BTreeMap;

use syn::{BinOp, Expr, Item, Lit};

use super::files;
use crate::rooms::root;

/// The directories with the formats. The first has the formats of the logs, and the code that they share. The
/// second has the store's format.
const FORMATS: [&str; 2] = ["crates/format/src", "store/src/format"];

/// Returns the constants of a format by name. Reads the files with the format's name in their path, and the
/// files that the formats share.
pub fn in_code(format: &str, others: &[&str]) -> BTreeMap<String, String> {
    let all = files(&FORMATS, &["rs"]);
    let (own, rest): (Vec<_>, Vec<_>) = all.iter().partition(|file| file.path.contains(format));
    let shared = rest.iter().filter(|file| !others.iter().any(|other| file.path.contains(other)));
    // The format's own constants come last, and replace shared ones of the same name.
    let texts: Vec<&str> =
        shared.copied().chain(own.iter().copied()).map(|file| file.text.as_str()).collect();
    evaluate(&texts)
}

/// Returns every constant whose value is a number or a text, including values that refer to other constants.
pub fn evaluate(texts: &[&str]) -> BTreeMap<String, String> {
    let mut expressions: BTreeMap<String, Expr> = BTreeMap::new();
    for text in texts {
        for item in syn::parse_file(text).unwrap().items {
            if let Item::Const(constant) = item {
                expressions.insert(constant.ident.to_string(), *constant.expr);
            }
        }
    }
    let value = |expression: &Expr| {
        text_of(expression).or_else(|| number_of(expression, &expressions).map(|number| number.to_string()))
    };
    expressions.iter().filter_map(|(name, expression)| Some((name.clone(), value(expression)?))).collect()
}

fn text_of(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Unary(unary) => text_of(&unary.expr),
        Expr::Lit(literal) => match &literal.lit {
            Lit::ByteStr(bytes) => String::from_utf8(bytes.value()).ok(),
            _ => None,
        },
        _ => None,
    }
}

fn number_of(expression: &Expr, all: &BTreeMap<String, Expr>) -> Option<u128> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => number.base10_parse().ok(),
            _ => None,
        },
        Expr::Paren(inner) => number_of(&inner.expr, all),
        Expr::Cast(cast) => number_of(&cast.expr, all),
        Expr::Path(path) => {
            let names: Vec<String> = path.path.segments.iter().map(|part| part.ident.to_string()).collect();
            match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["u32", "MAX"] => Some(u32::MAX.into()),
                ["u64", "MAX"] => Some(u64::MAX.into()),
                [.., name] => number_of(all.get(name)?, all),
                [] => None,
            }
        }
        Expr::Binary(binary) => {
            let (left, right) = (number_of(&binary.left, all)?, number_of(&binary.right, all)?);
            match binary.op {
                BinOp::Add(_) => left.checked_add(right),
                BinOp::Sub(_) => left.checked_sub(right),
                BinOp::Mul(_) => left.checked_mul(right),
                BinOp::Shl(_) => left.checked_shl(right.try_into().ok()?),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the rows `| NAME | value |` of a format's document in which NAME is written like a constant.
pub fn in_document(page: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let is_constant =
        |name: &str| name.len() > 1 && name.chars().all(|c| matches!(c, 'A'..='Z' | '0'..='9' | '_'));
    text.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
            let (name, value) = (cells.next()?.trim_matches('`'), cells.next()?);
            (is_constant(name) && name.starts_with(char::is_alphabetic))
                .then(|| (name.to_owned(), normal(value)))
        })
        .collect()
}

/// Brings a value into a form that can be compared: numbers become decimal, even those that were given as
/// `0x…` or as `2^n`.
pub fn normal(value: &str) -> String {
    let value = value.trim_matches('`');
    let number = if let Some(digits) = value.strip_prefix("0x") {
        u128::from_str_radix(digits, 16).ok()
    } else if let Some(exponent) = value.strip_prefix("2^") {
        exponent.parse().ok().and_then(|exponent| 1_u128.checked_shl(exponent))
    } else {
        value.parse().ok()
    };
    number.map_or_else(|| value.to_owned(), |number| number.to_string())
}
