//! Finds the order of the values of registers, as far as the transactions tell it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::graph::Graph;
use super::history::{Fate, Op, Register, Tx, Written};

/// A value that a register had. A register has none at first.
type Version = (Register, Option<Written>);

/// A transaction's use of one register.
#[derive(Default)]
struct Use {
    /// The value that the transaction read before it wrote the register, if it did.
    read: Option<Option<Written>>,
    /// The values that the transaction wrote, in order.
    wrote: Vec<Written>,
}

/// Adds the edges of registers. `counts` says which transactions are known to have taken effect. This function finds
/// out which others have, and sets them too.
pub fn add_edges(
    history: &[Tx],
    counts: &mut [bool],
    last: &BTreeMap<Register, Written>,
    graph: &mut Graph,
) -> Result<(), String> {
    let mut writer: HashMap<Written, (Register, usize)> = HashMap::new();
    for (number, tx) in history.iter().enumerate() {
        for op in &tx.ops {
            if let Op::Write(register, value) = op {
                writer.insert(*value, (*register, number));
            }
        }
    }
    come_about(history, counts, last, &writer)?;
    let mut uses: Vec<BTreeMap<Register, Use>> = Vec::new();
    for (number, tx) in history.iter().enumerate() {
        uses.push(if counts[number] { uses_of(number, tx)? } else { BTreeMap::new() });
    }
    let next = later_versions(&uses, last);
    for ((_, value), later) in &next {
        if let Some(value) = value {
            later.iter().for_each(|after| graph.add(writer[value].1, writer[after].1, "ww"));
        }
    }
    for (number, used) in uses.iter().enumerate() {
        for (register, Use { read, .. }) in used {
            let Some(read) = read else { continue };
            if let Some(value) = read {
                graph.add(final_writer(history, &writer, (*register, *value), number)?, number, "wr");
            }
            let later = next.get(&(*register, *read)).into_iter().flatten();
            later.for_each(|after| graph.add(number, writer[after].1, "rw"));
        }
    }
    let lost =
        uses.iter().flatten().find(|(register, used)| !used.wrote.is_empty() && !last.contains_key(register));
    lost.map_or(Ok(()), |(register, _)| Err(format!("register {register} is gone, and was written")))
}

/// The later versions of each version, as far as they are known. A value comes after the value that its writer had
/// read. Every value comes after the empty register. The value at the end comes after every other.
fn later_versions(
    uses: &[BTreeMap<Register, Use>],
    last: &BTreeMap<Register, Written>,
) -> BTreeMap<Version, BTreeSet<Written>> {
    let mut next: BTreeMap<Version, BTreeSet<Written>> = BTreeMap::new();
    for (register, used) in uses.iter().flatten() {
        let Some(own) = used.wrote.last() else { continue };
        for before in [None, used.read.flatten()] {
            next.entry((*register, before)).or_default().insert(*own);
        }
        if let Some(end) = last.get(register).filter(|end| *end != own) {
            next.entry((*register, Some(*own))).or_default().insert(*end);
        }
    }
    next
}

/// The writer of a value that was read. An error if that writer has replaced the value itself.
fn final_writer(
    history: &[Tx],
    writer: &HashMap<Written, (Register, usize)>,
    (register, value): (Register, Written),
    reader: usize,
) -> Result<usize, String> {
    let Some((_, by)) = writer.get(&value).filter(|(of, _)| *of == register) else {
        return Err(format!("transaction {reader} read {value} of register {register}, which nobody wrote"));
    };
    if history[*by].fate == Fate::Aborted {
        return Err(format!("transaction {reader} read {value}, whose transaction aborted"));
    }
    let wrote = |op: &&Op| matches!(op, Op::Write(of, _) if *of == register);
    match history[*by].ops.iter().rev().find(wrote) {
        Some(Op::Write(_, own)) if *own == value => Ok(*by),
        _ => Err(format!("transaction {reader} read {value}, which {by} has replaced itself")),
    }
}

/// Finds the transactions with unknown outcome that have taken effect: they wrote a value that is there at the end, or
/// that a transaction which took effect has read.
fn come_about(
    history: &[Tx],
    counts: &mut [bool],
    last: &BTreeMap<Register, Written>,
    writer: &HashMap<Written, (Register, usize)>,
) -> Result<(), String> {
    let mut seen: Vec<Written> = Vec::new();
    for (register, value) in last {
        match writer.get(value) {
            Some((of, by)) if of == register && history[*by].fate != Fate::Aborted => seen.push(*value),
            _ => return Err(format!("register {register} has {value}, which nobody wrote, or who aborted")),
        }
    }
    let read = |tx: &Tx, seen: &mut Vec<Written>| {
        seen.extend(tx.ops.iter().filter_map(|op| match op {
            Op::Look(_, value) => *value,
            _ => None,
        }));
    };
    history.iter().zip(&*counts).filter(|(_, counts)| **counts).for_each(|(tx, _)| read(tx, &mut seen));
    while let Some(value) = seen.pop() {
        let Some((_, by)) = writer.get(&value) else { continue };
        if history[*by].fate == Fate::Unknown && !counts[*by] {
            if history[*by].ops.iter().any(|op| matches!(op, Op::Append(..))) {
                return Err(format!("a part of transaction {by} is there: {value}"));
            }
            counts[*by] = true;
            read(&history[*by], &mut seen);
        }
    }
    Ok(())
}

fn uses_of(number: usize, tx: &Tx) -> Result<BTreeMap<Register, Use>, String> {
    let mut uses: BTreeMap<Register, Use> = BTreeMap::new();
    for op in &tx.ops {
        match op {
            Op::Write(register, value) => uses.entry(*register).or_default().wrote.push(*value),
            Op::Look(register, value) => {
                let used = uses.entry(*register).or_default();
                let own = used.wrote.last().copied();
                let known = own.map(Some).or(used.read);
                if known.is_some_and(|known| known != *value) {
                    return Err(format!(
                        "transaction {number} read {value:?} of {register}, and then {known:?}"
                    ));
                }
                if own.is_none() {
                    used.read = Some(*value);
                }
            }
            _ => {}
        }
    }
    Ok(uses)
}
