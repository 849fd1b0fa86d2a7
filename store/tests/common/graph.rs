//! A graph of the order of transactions: which came before which, and why.

use std::collections::BTreeMap;

/// The nodes are the transactions, by number, and after them the moments at which transactions ended.
pub struct Graph {
    transactions: usize,
    nodes: usize,
    edges: BTreeMap<usize, BTreeMap<usize, &'static str>>,
}

impl Graph {
    pub fn new(transactions: usize) -> Self {
        Self { transactions, nodes: transactions, edges: BTreeMap::new() }
    }

    pub fn add(&mut self, from: usize, to: usize, why: &'static str) {
        if from != to {
            self.edges.entry(from).or_default().insert(to, why);
        }
    }

    /// Adds edges for transactions that began and ended at these moments: a transaction that began after another one
    /// had ended comes after it. Each end is a node in a chain of moments. A transaction is reached from the last
    /// moment before its beginning, so the number of edges stays small.
    pub fn add_time(&mut self, spans: impl Iterator<Item = (usize, u64, Option<u64>)>) {
        let spans: Vec<_> = spans.collect();
        let mut ends: Vec<(u64, usize)> =
            spans.iter().filter_map(|(number, _, end)| Some(((*end)?, *number))).collect();
        ends.sort_unstable();
        let first = self.nodes;
        self.nodes += ends.len();
        for (nth, (_, number)) in ends.iter().enumerate() {
            self.add(*number, first + nth, "time");
            if nth > 0 {
                self.add(first + nth - 1, first + nth, "time");
            }
        }
        for (number, begin, _) in spans {
            let before = ends.partition_point(|(end, _)| *end < begin);
            if let Some(last) = before.checked_sub(1) {
                self.add(first + last, number, "time");
            }
        }
    }

    /// Returns an error that describes a cycle, if there is one. The search does not recurse, because histories are
    /// long.
    pub fn find_circle(&self) -> Result<(), String> {
        // 0: not visited; 1: on the current path; 2: done.
        let mut state = vec![0_u8; self.nodes];
        let next_of = |at: usize| -> Vec<usize> {
            self.edges.get(&at).map(|edges| edges.keys().copied().collect()).unwrap_or_default()
        };
        for start in self.edges.keys() {
            let mut way: Vec<(usize, Vec<usize>)> = Vec::new();
            if state[*start] == 0 {
                state[*start] = 1;
                way.push((*start, next_of(*start)));
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
                        return Err(self.told(&circle));
                    }
                    Some(to) if state[to] == 0 => {
                        state[to] = 1;
                        way.push((to, next_of(to)));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    fn told(&self, circle: &[usize]) -> String {
        let mut text = String::from("a circle:");
        for (nth, from) in circle.iter().enumerate() {
            let to = circle[(nth + 1) % circle.len()];
            // A run of moments is printed as one edge.
            if *from < self.transactions || to < self.transactions {
                let name = |node: usize| {
                    if node < self.transactions { node.to_string() } else { "later".to_owned() }
                };
                text += &format!(" {} -{}-> {};", name(*from), self.edges[from][&to], name(to));
            }
        }
        text
    }
}
