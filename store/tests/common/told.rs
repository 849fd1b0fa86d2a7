//! Lines in which a process reports its transactions. The test that kills the process reads their history from these
//! lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::history::{Fate, Op, Tx};

/// The line that reports the operations of a transaction just before it commits, or the reads of a snapshot.
pub fn commits(number: u64, begin: u64, ops: &[Op]) -> String {
    let mut line = format!("\ncommits {number} {begin}");
    for op in ops {
        let numbers = |all: &[u64]| all.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let told = match op {
            Op::Append(list, element) => write!(line, " a:{list}:{element}"),
            Op::Read(list, seen) => write!(line, " r:{list}:{}", numbers(seen)),
            Op::Write(register, value) => write!(line, " w:{register}:{value}"),
            Op::Look(register, value) => write!(line, " l:{register}:{}", numbers(value.as_slice())),
            Op::Scan(from, to, seen) => {
                let lists: Vec<_> =
                    seen.iter().map(|(list, seen)| format!("{list}={}", numbers(seen))).collect();
                write!(line, " s:{from}:{to}:{}", lists.join(";"))
            }
        };
        told.unwrap();
    }
    line + "\n"
}

/// The line that reports how a transaction ended, and the moment of its end.
pub fn ended(number: u64, fate: Fate, end: u64) -> String {
    format!("\nended {number} {} {end}\n", if fate == Fate::Committed { "committed" } else { "aborted" })
}

/// The transactions that have been reported so far, each with its fate.
#[derive(Default)]
pub struct Told(BTreeMap<u64, Tx>);

impl Told {
    /// Reads a line. Returns whether it reports that a transaction has committed.
    pub fn line(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["commits", number, begin, ops @ ..] => {
                let ops = ops.iter().map(|op| parse(op)).collect();
                let span = Some((begin.parse().unwrap(), u64::MAX));
                self.0.insert(number.parse().unwrap(), Tx { ops, fate: Fate::Unknown, span });
                false
            }
            ["ended", number, fate, end] => {
                let tx = self.0.get_mut(&number.parse().unwrap()).unwrap();
                tx.fate = if *fate == "committed" { Fate::Committed } else { Fate::Aborted };
                tx.span = tx.span.map(|(begin, _)| (begin, end.parse().unwrap()));
                tx.fate == Fate::Committed
            }
            _ => false,
        }
    }

    pub fn history(self) -> Vec<Tx> {
        self.0.into_values().collect()
    }
}

fn parse(op: &str) -> Op {
    let number = |text: &str| text.parse().unwrap();
    let numbers =
        |text: &str| text.split(',').filter(|one| !one.is_empty()).map(number).collect::<Vec<u64>>();
    let parts: Vec<&str> = op.split(':').collect();
    match parts.as_slice() {
        ["a", list, element] => Op::Append(number(list), number(element)),
        ["r", list, seen] => Op::Read(number(list), numbers(seen)),
        ["w", register, value] => Op::Write(number(register), number(value)),
        ["l", register, value] => Op::Look(number(register), numbers(value).first().copied()),
        ["s", from, to, seen] => {
            let lists = seen.split(';').filter(|one| !one.is_empty());
            let list =
                |one: &str| one.split_once('=').map(|(list, seen)| (number(list), numbers(seen))).unwrap();
            Op::Scan(number(from), number(to), lists.map(list).collect())
        }
        _ => panic!("{op}"),
    }
}
