//! A graph of the order of transactions: which transaction comes before which, and why.

use std::collections::{BTreeMap, VecDeque};

use crate::why::Why;

/// A graph with a node for each transaction. More nodes follow, one for each moment at which a transaction ended.
pub struct Graph {
    transactions: usize,
    nodes: usize,
    edges: BTreeMap<usize, BTreeMap<usize, Why>>,
}

/// A cycle of transactions: each comes before the next one, and the last comes before the first.
pub type Circle = Vec<(usize, Why)>;

impl Graph {
    pub fn new(transactions: usize) -> Self {
        Self { transactions, nodes: transactions, edges: BTreeMap::new() }
    }

    /// Adds an edge. Returns whether it is new.
    pub fn add(&mut self, from: usize, to: usize, why: Why) -> bool {
        from != to && self.edges.entry(from).or_default().insert(to, why).is_none()
    }

    /// Adds edges for the times at which transactions began and ended. If a transaction began after another had ended,
    /// it comes after the other. There are too many such pairs to add an edge for each. So each end becomes a node in a
    /// chain of moments, and each transaction gets one edge from the last moment before it began.
    pub fn add_time(&mut self, spans: impl Iterator<Item = (usize, u64, Option<u64>)>) {
        let spans: Vec<_> = spans.collect();
        let mut ends: Vec<(u64, usize)> =
            spans.iter().filter_map(|(number, _, end)| Some(((*end)?, *number))).collect();
        ends.sort_unstable();
        let first = self.nodes;
        self.nodes += ends.len();
        for (nth, (_, number)) in ends.iter().enumerate() {
            self.add(*number, first + nth, Why::Time);
            if nth > 0 {
                self.add(first + nth - 1, first + nth, Why::Time);
            }
        }
        for (number, begin, _) in spans {
            let before = ends.partition_point(|(end, _)| *end < begin);
            if let Some(last) = before.checked_sub(1) {
                self.add(first + last, number, Why::Time);
            }
        }
    }

    fn next_of(&self, at: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.edges.get(&at).into_iter().flat_map(|edges| edges.keys().copied())
    }

    /// Looks for a cycle. If there is one, returns a short cycle as the error. The search does not recurse, because
    /// histories are long.
    pub fn find_circle(&self) -> Result<(), Circle> {
        // The state of a node is 0 if the search has not visited it, 1 if it is on the current path, and 2 if it is
        // done.
        let mut state = vec![0_u8; self.nodes];
        for start in self.edges.keys() {
            let mut way: Vec<(usize, Vec<usize>)> = Vec::new();
            if state[*start] == 0 {
                state[*start] = 1;
                way.push((*start, self.next_of(*start).collect()));
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
                        return Err(self.told(&self.shorter(circle)));
                    }
                    Some(to) if state[to] == 0 => {
                        state[to] = 1;
                        way.push((to, self.next_of(to).collect()));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Returns a cycle that goes through a node of the given cycle and is as short as possible, because long cycles are
    /// hard to read.
    fn shorter(&self, circle: Vec<usize>) -> Vec<usize> {
        let others = circle.iter().take(64).filter_map(|start| self.back_to(*start));
        others.min_by_key(Vec::len).filter(|other| other.len() < circle.len()).unwrap_or(circle)
    }

    fn back_to(&self, start: usize) -> Option<Vec<usize>> {
        let mut came_from = vec![usize::MAX; self.nodes];
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for to in self.next_of(at) {
                if to == start {
                    let mut way = vec![at];
                    while let Some(last) = way.last().copied().filter(|last| *last != start) {
                        way.push(came_from[last]);
                    }
                    way.reverse();
                    return Some(way);
                }
                if came_from[to] == usize::MAX {
                    came_from[to] = at;
                    queue.push_back(to);
                }
            }
        }
        None
    }

    /// Returns the cycle without the moments, so that it has only transactions. One edge replaces all moments between
    /// two transactions.
    fn told(&self, circle: &[usize]) -> Circle {
        let first = circle.iter().position(|node| *node < self.transactions).unwrap_or(0);
        let turned = circle[first..].iter().chain(&circle[..first]).copied();
        let nodes: Vec<usize> = turned.collect();
        let edge = |nth: usize| self.edges[&nodes[nth]][&nodes[(nth + 1) % nodes.len()]];
        let transactions = nodes.iter().enumerate().filter(|(_, node)| **node < self.transactions);
        transactions.map(|(nth, node)| (*node, edge(nth))).collect()
    }

    /// Returns the order that follows from the present edges.
    pub fn order(&self) -> Order {
        let mut order = Order { after: vec![Vec::new(); self.nodes], before: vec![Vec::new(); self.nodes] };
        for (from, edges) in &self.edges {
            for to in edges.keys() {
                order.after[*from].push(*to);
                order.before[*to].push(*from);
            }
        }
        order
    }
}

/// The nodes directly after and directly before each node.
pub struct Order {
    after: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
}

impl Order {
    /// Returns for each node whether it comes after the given node.
    pub fn after(&self, node: usize) -> Vec<bool> {
        reached(&self.after, node)
    }

    /// Returns for each node whether it comes before the given node.
    pub fn before(&self, node: usize) -> Vec<bool> {
        reached(&self.before, node)
    }
}

fn reached(edges: &[Vec<usize>], from: usize) -> Vec<bool> {
    let mut is_reached = vec![false; edges.len()];
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for to in &edges[at] {
            if !std::mem::replace(&mut is_reached[*to], true) {
                open.push(*to);
            }
        }
    }
    is_reached
}
