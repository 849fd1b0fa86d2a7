//! What transactions saw of lists that they append to, and whether some order of them explains it.
//!
//! Every element is appended once, so a list tells in which order its writers committed, and a read of it after which
//! of them the reader came. From that follow edges between transactions: who wrote after whom (ww), who read what
//! somebody wrote (wr), who did not see yet what somebody wrote (rw). If they close a circle the history is not
//! serializable. Reads of what was never committed, of parts of a transaction, and of lists that contradict each other
//! are found on the way.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The number of a list, and of an element.
pub type List = u64;
pub type Element = u64;

/// What a transaction did, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Append(List, Element),
    Read(List, Vec<Element>),
    /// All lists that are not empty, from one up to before another.
    Scan(List, List, Vec<(List, Vec<Element>)>),
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Committed,
    Aborted,
    /// A crash came before anybody was told.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Tx {
    pub ops: Vec<Op>,
    pub fate: Fate,
}

/// Why a history is not serializable.
pub fn check(history: &[Tx], last: &BTreeMap<List, Vec<Element>>) -> Result<(), String> {
    let mut writer: HashMap<Element, usize> = HashMap::new();
    for (number, tx) in history.iter().enumerate() {
        for op in &tx.ops {
            if let Op::Append(_, element) = op {
                writer.insert(*element, number);
            }
        }
    }
    let order = orders(history, last)?;
    let is_there =
        |element: &Element, list: &List| order.get(list).is_some_and(|order| order.contains(element));
    let mut edges: BTreeMap<usize, BTreeMap<usize, &str>> = BTreeMap::new();
    let mut add = |from: usize, to: usize, why: &'static str| {
        if from != to {
            edges.entry(from).or_default().insert(to, why);
        }
    };
    for (list, elements) in &order {
        for pair in elements.windows(2) {
            add(writer[&pair[0]], writer[&pair[1]], "ww");
        }
        for element in elements {
            if history[writer[element]].fate == Fate::Aborted {
                return Err(format!("list {list} has {element}, whose transaction aborted"));
            }
        }
    }
    for (number, tx) in history.iter().enumerate() {
        if tx.fate == Fate::Aborted || (tx.fate == Fate::Unknown && !came_about(number, tx, &order)?) {
            continue;
        }
        let mut own: BTreeMap<List, Vec<Element>> = BTreeMap::new();
        for op in &tx.ops {
            match op {
                Op::Append(list, element) => {
                    own.entry(*list).or_default().push(*element);
                    if tx.fate == Fate::Committed && !is_there(element, list) {
                        return Err(format!("{element}, which was acknowledged, is not in list {list}"));
                    }
                }
                Op::Read(list, seen) => {
                    let empty = Vec::new();
                    let order = order.get(list).unwrap_or(&empty);
                    read_edges(number, order, own.get(list), seen, &writer, &mut add)?;
                }
                Op::Scan(from, to, seen) => {
                    let seen: BTreeMap<_, _> = seen.iter().cloned().collect();
                    for (list, order) in order.range(*from..*to) {
                        let seen = seen.get(list).cloned().unwrap_or_default();
                        read_edges(number, order, own.get(list), &seen, &writer, &mut add)?;
                    }
                }
            }
        }
    }
    find_circle(&edges, history)
}

/// Whether a transaction that nobody was told of is there, as a whole.
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
    add: &mut dyn FnMut(usize, usize, &'static str),
) -> Result<(), String> {
    // What it appended itself stands at the end.
    let own = own.map_or(0, Vec::len).min(seen.len());
    let seen = &seen[..seen.len() - own];
    if !order.starts_with(seen) {
        return Err(format!("transaction {reader} read {seen:?} of a list that became {order:?}"));
    }
    if let Some(last) = seen.last() {
        add(writer[last], reader, "wr");
    }
    if let Some(next) = order.get(seen.len()) {
        add(reader, writer[next], "rw");
    }
    Ok(())
}

/// In which order each list's elements came.
fn orders(
    history: &[Tx],
    last: &BTreeMap<List, Vec<Element>>,
) -> Result<BTreeMap<List, Vec<Element>>, String> {
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
    Ok(last.clone())
}

fn find_circle(edges: &BTreeMap<usize, BTreeMap<usize, &str>>, history: &[Tx]) -> Result<(), String> {
    // 0 not seen, 1 on the way, 2 done; without recursion, histories are long.
    let mut state = vec![0_u8; history.len()];
    for start in edges.keys() {
        let mut way: Vec<(usize, Vec<usize>)> = Vec::new();
        if state[*start] == 0 {
            state[*start] = 1;
            way.push((*start, edges[start].keys().copied().collect()));
        }
        while let Some((at, next)) = way.last_mut() {
            match next.pop() {
                None => {
                    state[*at] = 2;
                    way.pop();
                }
                Some(to) if state[to] == 1 => {
                    let begin = way.iter().position(|(on_it, _)| *on_it == to).unwrap_or(0);
                    let circle: Vec<usize> = way[begin..].iter().map(|(on_it, _)| *on_it).collect();
                    let mut text = String::from("a circle:");
                    for (nth, from) in circle.iter().enumerate() {
                        let to = circle[(nth + 1) % circle.len()];
                        text += &format!(" {from} -{}-> {to};", edges[from][&to]);
                    }
                    return Err(text);
                }
                Some(to) if state[to] == 0 => {
                    state[to] = 1;
                    let next = edges.get(&to).map(|edges| edges.keys().copied().collect());
                    way.push((to, next.unwrap_or_default()));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}
