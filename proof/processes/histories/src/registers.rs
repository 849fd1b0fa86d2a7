//! Finds the order of the values of registers, as far as the transactions show it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::find::{self, Found, Unknown, Versions};
use crate::graph::Graph;
use crate::history::{Fate, Op, Register, Tx, Written};
use crate::uses::Use;
use crate::why::{Place, Why};

/// A value that a register had; `None` before it was first written.
type Version = (Register, Option<Written>);

/// Adds the edges that registers show. `counts` marks the transactions that are known to have taken effect.
/// This function also marks those of which only registers show it. Returns the reads by a property that are
/// still unclear.
pub fn add_edges(
    history: &[Tx],
    counts: &mut [bool],
    last: &BTreeMap<Register, Written>,
    graph: &mut Graph,
) -> Result<Found, String> {
    let mut writer: HashMap<Written, (Register, usize)> = HashMap::new();
    for (number, tx) in history.iter().enumerate() {
        for op in &tx.ops {
            if let Op::Write(register, value) = op {
                writer.insert(*value, (*register, number));
            }
        }
    }
    come_about(history, counts, last, &writer)?;
    let registers: BTreeSet<Register> = writer.values().map(|(register, _)| *register).collect();
    let mut uses: Vec<BTreeMap<Register, Use>> = Vec::new();
    let mut unknown = Vec::new();
    for (number, tx) in history.iter().enumerate() {
        let used = if counts[number] { uses_of(number, tx, &registers)? } else { Uses::default() };
        uses.push(used.of);
        unknown.extend(used.unknown);
    }
    let next = later_versions(&uses, last);
    for ((register, value), later) in &next {
        let Some(value) = value else { continue };
        let Some((_, by)) = writer.get(value) else {
            return Err(format!("{value} of register {register} was read, and nobody wrote it"));
        };
        for after in later {
            graph.add(*by, writer[after].1, Why::Ww(Place::Register(*register)));
        }
    }
    for (number, used) in uses.iter().enumerate() {
        for (register, Use { read, .. }) in used {
            let Some(read) = read else { continue };
            if let Some(value) = read {
                let by = final_writer(history, &writer, (*register, *value), number)?;
                graph.add(by, number, Why::Wr(Place::Register(*register)));
            }
            for after in next.get(&(*register, *read)).into_iter().flatten() {
                graph.add(number, writer[after].1, Why::Rw(Place::Register(*register)));
            }
        }
    }
    let lost =
        uses.iter().flatten().find(|(register, used)| !used.wrote.is_empty() && !last.contains_key(register));
    if let Some((register, _)) = lost {
        return Err(format!("register {register} is gone, and was written"));
    }
    let versions = registers.iter().filter_map(|register| Some((*register, versions_of(*register, &uses)?)));
    Ok(Found { versions: versions.collect(), unknown })
}

/// Returns the versions of a register in order, each with its writer. The empty version at the beginning is
/// left out. Returns `None` if the transactions do not show the order of all versions.
fn versions_of(register: Register, uses: &[BTreeMap<Register, Use>]) -> Option<Versions> {
    let mut after: HashMap<Option<Written>, (Written, usize)> = HashMap::new();
    let mut writers = 0;
    for (number, used) in uses.iter().enumerate() {
        let Some(Use { read, wrote }) = used.get(&register) else { continue };
        let Some(own) = wrote.last() else { continue };
        writers += 1;
        after.insert((*read)?, (*own, number));
    }
    let mut versions = Versions::new();
    let mut at = None;
    while let Some((value, by)) = after.remove(&at) {
        versions.push((value, by));
        at = Some(value);
    }
    (versions.len() == writers).then_some(versions)
}

/// Returns, for each version, the later versions that are known. A value is later than the value that its
/// writer had read. Every value is later than the empty register. The value at the end is later than all
/// others.
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

/// Returns the writer of a value that a transaction has read. Fails if the writer itself replaced this value
/// later.
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

/// Finds those transactions with unknown outcome that have taken effect. One of their values is still there
/// at the end, or a transaction that took effect has read it.
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
        for op in &tx.ops {
            match op {
                Op::Look(_, value) => seen.extend(value),
                Op::Find(_, found) => seen.extend(found.iter().map(|(_, value)| *value)),
                _ => {}
            }
        }
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

/// A transaction's use of registers.
#[derive(Default)]
struct Uses {
    of: BTreeMap<Register, Use>,
    unknown: Vec<Unknown>,
}

fn uses_of(number: usize, tx: &Tx, registers: &BTreeSet<Register>) -> Result<Uses, String> {
    let mut uses: BTreeMap<Register, Use> = BTreeMap::new();
    let mut missed = Vec::new();
    for op in &tx.ops {
        match op {
            Op::Write(register, value) => uses.entry(*register).or_default().wrote.push(*value),
            Op::Look(register, value) => {
                uses.entry(*register).or_default().look(number, *register, *value)?
            }
            Op::Find(property, found) => {
                missed.extend(find::note(number, property, found, registers, &mut uses)?);
            }
            Op::Append(..) | Op::Read(..) | Op::Scan(..) => {}
        }
    }
    // If a transaction did not find a register, another read of the same transaction may show the register's
    // value.
    let unknown = find::still_unknown(missed, &uses)?;
    Ok(Uses { of: uses, unknown })
}
