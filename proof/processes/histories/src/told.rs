//! Lines in which a process reports its transactions. The test that kills the process reads their history from these
//! lines.

use std::collections::BTreeMap;

use crate::history::{Fate, Op, Property, Tx};

/// Returns the line that reports the operations of a transaction just before its commit, or the reads of a snapshot.
#[must_use]
pub fn commits(number: u64, begin: u64, ops: &[Op]) -> String {
    let mut line = format!("\ncommits {number} {begin}");
    for op in ops {
        line.push(' ');
        line += &written(op);
    }
    line + "\n"
}

/// Returns the line that reports how a transaction ended, and the moment of its end.
#[must_use]
pub fn ended(number: u64, fate: Fate, end: u64) -> String {
    format!("\nended {number} {} {end}\n", if fate == Fate::Committed { "committed" } else { "aborted" })
}

/// The transactions that have been reported so far, each with its fate.
#[derive(Default)]
pub struct Told(BTreeMap<u64, Tx>);

impl Told {
    /// Reads a line. Returns whether the line reports that a transaction has committed. Ignores a line that is not a
    /// report.
    ///
    /// # Errors
    /// If the line is a report that cannot be read, returns the line.
    pub fn line(&mut self, line: &str) -> Result<bool, String> {
        self.read(line).ok_or_else(|| format!("not a report: {line}"))
    }

    fn read(&mut self, line: &str) -> Option<bool> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["commits", number, begin, ops @ ..] => {
                let ops = ops.iter().map(|op| parse(op)).collect::<Option<_>>()?;
                let span = Some((begin.parse().ok()?, u64::MAX));
                self.0.insert(number.parse().ok()?, Tx { ops, fate: Fate::Unknown, span });
                Some(false)
            }
            ["ended", number, fate, end] => {
                let tx = self.0.get_mut(&number.parse().ok()?)?;
                let end = end.parse().ok()?;
                tx.fate = if *fate == "committed" { Fate::Committed } else { Fate::Aborted };
                tx.span = tx.span.map(|(begin, _)| (begin, end));
                Some(tx.fate == Fate::Committed)
            }
            _ => Some(false),
        }
    }

    /// Returns the reported transactions, by number.
    #[must_use]
    pub fn history(self) -> Vec<Tx> {
        self.0.into_values().collect()
    }
}

fn written(op: &Op) -> String {
    let numbers = |all: &[u64]| all.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    match op {
        Op::Append(list, element) => format!("a:{list}:{element}"),
        Op::Read(list, seen) => format!("r:{list}:{}", numbers(seen)),
        Op::Write(register, value) => format!("w:{register}:{value}"),
        Op::Look(register, value) => format!("l:{register}:{}", numbers(value.as_slice())),
        Op::Scan(from, to, seen) => {
            let lists: Vec<_> = seen.iter().map(|(list, seen)| format!("{list}={}", numbers(seen))).collect();
            format!("s:{from}:{to}:{}", lists.join(";"))
        }
        Op::Find(Property { from, to, divisor, remainder }, seen) => {
            let registers: Vec<_> =
                seen.iter().map(|(register, value)| format!("{register}={value}")).collect();
            format!("f:{from}:{to}:{divisor}:{remainder}:{}", registers.join(";"))
        }
    }
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn parts(text: &str, mark: char) -> impl Iterator<Item = &str> {
    text.split(mark).filter(|one| !one.is_empty())
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    parts(text, ',').map(number).collect()
}

fn parse(op: &str) -> Option<Op> {
    let words: Vec<&str> = op.split(':').collect();
    Some(match words.as_slice() {
        ["a", list, element] => Op::Append(number(list)?, number(element)?),
        ["r", list, seen] => Op::Read(number(list)?, numbers(seen)?),
        ["w", register, value] => Op::Write(number(register)?, number(value)?),
        ["l", register, value] => Op::Look(number(register)?, numbers(value)?.first().copied()),
        ["s", from, to, seen] => {
            let list = |one: &str| {
                let (list, seen) = one.split_once('=')?;
                Some((number(list)?, numbers(seen)?))
            };
            Op::Scan(number(from)?, number(to)?, parts(seen, ';').map(list).collect::<Option<_>>()?)
        }
        ["f", from, to, divisor, remainder, seen] => {
            let register = |one: &str| {
                let (register, value) = one.split_once('=')?;
                Some((number(register)?, number(value)?))
            };
            let [from, to, divisor, remainder] =
                [number(from)?, number(to)?, number(divisor)?, number(remainder)?];
            let property = Property { from, to, divisor, remainder };
            Op::Find(property, parts(seen, ';').map(register).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}
