//! Checks what transactions and snapshots saw of lists and registers: whether one order of the transactions explains
//! all of it (Adya; Kingsbury and Alvaro, "Elle", VLDB 2020).
//!
//! Every element is appended once. So a list tells the order in which its writers committed, and a read of the list
//! tells after which of them the reader came. Every value is written to a register once. If a transaction reads a value
//! before it writes another one, that tells which value came first.
//!
//! From this follow edges between transactions: a writer comes after another writer (ww), a reader after the writer of
//! what it read (wr), a writer after a reader that did not see its write (rw), and a transaction that began after
//! another one had ended comes after it (time). If the edges form a cycle, the history is not strictly serializable.
//! The check also finds reads of values that were never committed, reads of values that their writer replaced, reads of
//! a part of a transaction, and lists that contradict each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::graph::Graph;
use super::registers;

/// The number of a list, and the number of an element.
pub type List = u64;
pub type Element = u64;
/// The number of a register, and a value that is written to one.
pub type Register = u64;
pub type Written = u64;

/// One operation of a transaction or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Append(List, Element),
    Read(List, Vec<Element>),
    /// Reads all lists that are not empty, from the first number up to before the second.
    Scan(List, List, Vec<(List, Vec<Element>)>),
    Write(Register, Written),
    Look(Register, Option<Written>),
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Committed,
    Aborted,
    /// A crash came before the outcome was reported.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Tx {
    pub ops: Vec<Op>,
    pub fate: Fate,
    /// The moments at which the transaction began, and at which its end was known. It takes effect at some moment in
    /// between.
    pub span: Option<(u64, u64)>,
}

/// All lists and registers at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Last {
    pub lists: BTreeMap<List, Vec<Element>>,
    pub registers: BTreeMap<Register, Written>,
}

/// Returns why a history is not strictly serializable.
pub fn check(history: &[Tx], last: &Last) -> Result<(), String> {
    let writer = writers(history);
    let order = &last.lists;
    check_lists(history, order)?;
    for (list, elements) in order {
        if let Some(element) = elements.iter().find(|element| history[writer[element]].fate == Fate::Aborted)
        {
            return Err(format!("list {list} has {element}, whose transaction aborted"));
        }
    }
    let mut graph = Graph::new(history.len());
    for elements in order.values() {
        for pair in elements.windows(2) {
            graph.add(writer[&pair[0]], writer[&pair[1]], "ww");
        }
    }
    let mut counts = Vec::with_capacity(history.len());
    for (number, tx) in history.iter().enumerate() {
        let is_there = match tx.fate {
            Fate::Committed => true,
            Fate::Aborted => false,
            Fate::Unknown => came_about(number, tx, order)?,
        };
        counts.push(is_there);
        if is_there {
            edges_of_lists(number, tx, order, &writer, &mut graph)?;
        }
    }
    registers::add_edges(history, &mut counts, &last.registers, &mut graph)?;
    let spans = history.iter().zip(&counts).enumerate().filter(|(_, (_, is_there))| **is_there);
    graph.add_time(spans.filter_map(|(number, (tx, _))| {
        let (begin, end) = tx.span?;
        Some((number, begin, (tx.fate == Fate::Committed).then_some(end)))
    }));
    graph.find_circle()
}

/// The transaction that appended each element.
fn writers(history: &[Tx]) -> HashMap<Element, usize> {
    let mut writer = HashMap::new();
    for (number, tx) in history.iter().enumerate() {
        for op in &tx.ops {
            if let Op::Append(_, element) = op {
                writer.insert(*element, number);
            }
        }
    }
    writer
}

fn edges_of_lists(
    number: usize,
    tx: &Tx,
    order: &BTreeMap<List, Vec<Element>>,
    writer: &HashMap<Element, usize>,
    graph: &mut Graph,
) -> Result<(), String> {
    let mut own: BTreeMap<List, Vec<Element>> = BTreeMap::new();
    let empty = Vec::new();
    for op in &tx.ops {
        match op {
            Op::Append(list, element) => {
                own.entry(*list).or_default().push(*element);
                if !order.get(list).is_some_and(|order| order.contains(element)) {
                    return Err(format!("{element}, which was acknowledged, is not in list {list}"));
                }
            }
            Op::Read(list, seen) => {
                let order = order.get(list).unwrap_or(&empty);
                read_edges(number, order, own.get(list), seen, writer, graph)?;
            }
            Op::Scan(from, to, seen) => {
                let seen: BTreeMap<_, _> = seen.iter().cloned().collect();
                let lists: BTreeSet<_> =
                    order.range(*from..*to).map(|(list, _)| list).chain(seen.keys()).collect();
                for list in lists {
                    let (order, seen) = (order.get(list).unwrap_or(&empty), seen.get(list).unwrap_or(&empty));
                    read_edges(number, order, own.get(list), seen, writer, graph)?;
                }
            }
            Op::Write(..) | Op::Look(..) => {}
        }
    }
    Ok(())
}

/// Whether a transaction with unknown outcome has taken effect. An error if only a part of it has.
fn came_about(number: usize, tx: &Tx, order: &BTreeMap<List, Vec<Element>>) -> Result<bool, String> {
    let appended = tx.ops.iter().filter_map(|op| match op {
        Op::Append(list, element) => Some(order.get(list).is_some_and(|order| order.contains(element))),
        _ => None,
    });
    let (there, gone): (Vec<bool>, Vec<bool>) = appended.partition(|is_there| *is_there);
    if !there.is_empty() && !gone.is_empty() {
        return Err(format!("a part of transaction {number} is there"));
    }
    Ok(!there.is_empty())
}

fn read_edges(
    reader: usize,
    order: &[Element],
    own: Option<&Vec<Element>>,
    seen: &[Element],
    writer: &HashMap<Element, usize>,
    graph: &mut Graph,
) -> Result<(), String> {
    // The elements that the transaction appended itself are at the end.
    let own = own.map_or(&[][..], Vec::as_slice);
    let Some(seen) = seen.strip_suffix(own) else {
        return Err(format!("transaction {reader} read {seen:?}, and had appended {own:?}"));
    };
    if !order.starts_with(seen) {
        return Err(format!("transaction {reader} read {seen:?} of a list that became {order:?}"));
    }
    if let Some(last) = seen.last() {
        graph.add(writer[last], reader, "wr");
    }
    if let Some(next) = order.get(seen.len()) {
        graph.add(reader, writer[next], "rw");
    }
    // The first element that the transaction has not seen may be its own. It may also belong to a writer of which the
    // transaction has seen another element: then the transaction saw a part of that writer.
    match seen.last().zip(order.get(seen.len())) {
        Some((last, next)) if writer[last] == writer[next] && writer[last] != reader => {
            Err(format!("transaction {reader} read a part of what {} appended", writer[last]))
        }
        _ => Ok(()),
    }
}

/// Checks that the lists contain only elements that were appended to them, each once.
fn check_lists(history: &[Tx], last: &BTreeMap<List, Vec<Element>>) -> Result<(), String> {
    let mut known = BTreeSet::new();
    for tx in history {
        for op in &tx.ops {
            if let Op::Append(list, element) = op {
                known.insert((*list, *element));
            }
        }
    }
    for (list, elements) in last {
        let distinct: BTreeSet<_> = elements.iter().collect();
        if distinct.len() != elements.len() {
            return Err(format!("list {list} has an element twice: {elements:?}"));
        }
        if let Some(element) = elements.iter().find(|element| !known.contains(&(*list, **element))) {
            return Err(format!("list {list} has {element}, which nobody appended"));
        }
    }
    Ok(())
}
