//! Checks a whole history.

use crate::graph::{Circle, Graph};
use crate::history::{Fate, Last, Tx};
use crate::{find, lists, registers, words};

/// Checks that a history is strictly serializable.
///
/// # Errors
/// A text that says why the history is not serializable. It names the transactions that contradict each
/// other, with their operations.
pub fn check(history: &[Tx], last: &Last) -> Result<(), String> {
    let mut graph = Graph::new(history.len());
    let mut counts = lists::add_edges(history, &last.lists, &mut graph)?;
    let told = registers::add_edges(history, &mut counts, &last.registers, &mut graph)?;
    let spans = history.iter().zip(&counts).enumerate().filter(|(_, (_, is_there))| **is_there);
    graph.add_time(spans.filter_map(|(number, (tx, _))| {
        let (begin, end) = tx.span?;
        Some((number, begin, (tx.fate == Fate::Committed).then_some(end)))
    }));
    let described = |circle: Circle| words::circle(&circle, history);
    graph.find_circle().map_err(described)?;
    while find::narrow(&told, &mut graph)? {
        graph.find_circle().map_err(described)?;
    }
    Ok(())
}

/// Returns a snapshot for each transaction that did not commit: the reads before the transaction's first
/// change. If transactions that did not commit must also see a single state, the caller checks the history
/// together with these snapshots.
#[must_use]
pub fn reads_of_the_uncommitted(history: &[Tx]) -> Vec<Tx> {
    let uncommitted = history.iter().filter(|tx| tx.fate != Fate::Committed);
    let reads = |tx: &Tx| tx.ops.iter().take_while(|op| op.is_read()).cloned().collect::<Vec<_>>();
    uncommitted
        .map(|tx| Tx { ops: reads(tx), fate: Fate::Committed, span: tx.span })
        .filter(|tx| !tx.ops.is_empty())
        .collect()
}
