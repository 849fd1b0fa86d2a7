//! The order of the elements in lists, and what it shows about the writers and readers of the lists.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::graph::Graph;
use crate::history::{Element, Fate, List, Op, Tx};
use crate::why::{Place, Why};

/// Adds the edges that follow from the lists. Returns which transactions are known to have taken effect.
pub fn add_edges(
    history: &[Tx],
    order: &BTreeMap<List, Vec<Element>>,
    graph: &mut Graph,
) -> Result<Vec<bool>, String> {
    let writer = writers(history);
    check_lists(history, order)?;
    for (list, elements) in order {
        if let Some(element) = elements.iter().find(|element| history[writer[element]].fate == Fate::Aborted)
        {
            return Err(format!("list {list} has {element}, whose transaction aborted"));
        }
        for pair in elements.windows(2) {
            graph.add(writer[&pair[0]], writer[&pair[1]], Why::Ww(Place::List(*list)));
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
            edges_of(number, tx, order, &writer, graph)?;
        }
    }
    Ok(counts)
}

/// Returns, for each element, the transaction that appended it.
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

fn edges_of(
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
                read_edges((number, *list), order, own.get(list), seen, writer, graph)?;
            }
            Op::Scan(from, to, seen) => {
                let seen: BTreeMap<_, _> = seen.iter().cloned().collect();
                let lists: BTreeSet<_> =
                    order.range(*from..*to).map(|(list, _)| list).chain(seen.keys()).collect();
                for list in lists {
                    let (order, seen) = (order.get(list).unwrap_or(&empty), seen.get(list).unwrap_or(&empty));
                    read_edges((number, *list), order, own.get(list), seen, writer, graph)?;
                }
            }
            Op::Write(..) | Op::Look(..) | Op::Find(..) => {}
        }
    }
    Ok(())
}

/// Returns whether a transaction with unknown outcome has taken effect. Fails if only a part of the transaction
/// has taken effect.
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
    (reader, list): (usize, List),
    order: &[Element],
    own: Option<&Vec<Element>>,
    seen: &[Element],
    writer: &HashMap<Element, usize>,
    graph: &mut Graph,
) -> Result<(), String> {
    // The elements that the reader itself appended are at the end.
    let own = own.map_or(&[][..], Vec::as_slice);
    let Some(seen) = seen.strip_suffix(own) else {
        return Err(format!("transaction {reader} read {seen:?} of list {list}, and had appended {own:?}"));
    };
    if !order.starts_with(seen) {
        return Err(format!("transaction {reader} read {seen:?} of list {list}, which became {order:?}"));
    }
    if let Some(last) = seen.last() {
        graph.add(writer[last], reader, Why::Wr(Place::List(list)));
    }
    if let Some(next) = order.get(seen.len()) {
        graph.add(reader, writer[next], Why::Rw(Place::List(list)));
    }
    // The first element that the reader has not seen may be its own. If another transaction appended both
    // this element and one that the reader has seen, the reader saw only a part of that transaction.
    match seen.last().zip(order.get(seen.len())) {
        Some((last, next)) if writer[last] == writer[next] && writer[last] != reader => {
            Err(format!("transaction {reader} read a part of what {} appended to list {list}", writer[last]))
        }
        _ => Ok(()),
    }
}

/// Checks that the lists contain only elements that were appended to them, and each of them once.
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
