//! Describes a history in words that people can read.

use std::fmt;

use crate::graph::Circle;
use crate::history::{Fate, Op, Tx};

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append(list, element) => write!(f, "appends {element} to list {list}"),
            Self::Read(list, seen) => write!(f, "reads list {list}: {}", End(seen)),
            Self::Scan(from, to, seen) => {
                write!(f, "reads lists {from} to {to}:")?;
                seen.iter().try_for_each(|(list, seen)| write!(f, " {list} {}", End(seen)))
            }
            Self::Write(register, value) => write!(f, "writes {value} to register {register}"),
            Self::Look(register, None) => write!(f, "reads register {register}: nothing"),
            Self::Look(register, Some(value)) => write!(f, "reads register {register}: {value}"),
            Self::Find(property, seen) => write!(
                f,
                "finds in registers {} to {} with remainder {} of {}: {seen:?}",
                property.from, property.to, property.remainder, property.divisor
            ),
        }
    }
}

/// Prints only the end of a list, because people need no more.
struct End<'a>(&'a [u64]);

impl fmt::Display for End<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = &self.0[self.0.len().saturating_sub(4)..];
        if end.len() == self.0.len() {
            return write!(f, "{end:?}");
        }
        write!(f, "{} elements, the last ones {end:?}", self.0.len())
    }
}

/// Describes a transaction in one line.
pub fn transaction(number: usize, tx: &Tx) -> String {
    let fate = match tx.fate {
        Fate::Committed => "committed",
        Fate::Aborted => "aborted",
        Fate::Unknown => "outcome unknown",
    };
    let span = tx.span.map_or(String::new(), |(begin, end)| format!(", from {begin} to {end}"));
    let ops: Vec<String> = tx.ops.iter().map(ToString::to_string).collect();
    format!("transaction {number} ({fate}{span}) {}", ops.join("; "))
}

/// Describes a cycle of transactions: which comes before which, why, and what each of them did.
pub fn circle(circle: &Circle, history: &[Tx]) -> String {
    let mut text = String::from("a circle:");
    for (nth, (from, why)) in circle.iter().enumerate() {
        let (to, _) = circle[(nth + 1) % circle.len()];
        text += &format!(" {from} -({why})-> {to};");
    }
    for (number, _) in circle {
        text += &format!("\n  {}", transaction(*number, &history[*number]));
    }
    text
}
