//! Tests with random histories. The checker accepts transactions that ran one by one, and notices if a read
//! is changed afterwards.

use duralite_histories::{Fate, Last, Op, Property, Tx, check};

const KEYS: u64 = 6;

/// A random number generator, xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8) % bound
    }
}

/// Runs an operation on the state. Returns the operation as the history records it.
fn run(state: &mut Last, next: &mut u64, random: &mut Random) -> Vec<Op> {
    let key = random.below(KEYS);
    *next += 1;
    match random.below(7) {
        0 | 1 => {
            state.lists.entry(key).or_default().push(*next);
            vec![Op::Append(key, *next)]
        }
        2 => vec![Op::Read(key, state.lists.get(&key).cloned().unwrap_or_default())],
        3 => {
            let range = state.lists.range(key..KEYS);
            vec![Op::Scan(key, KEYS, range.map(|(list, seen)| (*list, seen.clone())).collect())]
        }
        4 => {
            let read = Op::Look(key, state.registers.insert(key, *next));
            vec![read, Op::Write(key, *next)]
        }
        5 => vec![Op::Look(key, state.registers.get(&key).copied())],
        _ => {
            let property = Property { from: 0, to: KEYS, divisor: 3, remainder: random.below(3) };
            let found = state.registers.iter().filter(|(_, value)| property.has(**value));
            vec![Op::Find(property, found.map(|(register, value)| (*register, *value)).collect())]
        }
    }
}

/// Returns a history of transactions that took effect one by one. Each transaction began before its effect and
/// ended after it.
fn history(seed: u64, transactions: u64) -> (Vec<Tx>, Last) {
    let (mut random, mut next, mut state) = (Random(seed * 2 + 1), 0, Last::default());
    let mut history = Vec::new();
    for nth in 1..=transactions {
        let mut after = state.clone();
        let ops = (0..1 + random.below(4)).flat_map(|_| run(&mut after, &mut next, &mut random)).collect();
        let fate = match random.below(10) {
            0 => Fate::Aborted,
            1 => Fate::Unknown,
            _ => Fate::Committed,
        };
        if fate == Fate::Committed || (fate == Fate::Unknown && random.below(2) == 0) {
            state = after;
        }
        let at = nth * 100;
        let span = (at.saturating_sub(random.below(500)), at + random.below(500));
        history.push(Tx { ops, fate, span: Some(span) });
    }
    (history, state)
}

#[test]
fn what_took_effect_one_after_the_other_is_accepted() {
    for seed in 1..=60 {
        let (history, last) = history(seed, 150);
        check(&history, &last).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// Some transactions read an old state, from before the last twenty transactions.
#[test]
fn reads_of_an_old_state_are_noticed() {
    let mut noticed = [0; 4];
    for seed in 1..=60 {
        let (mut history, last) = history(seed, 150);
        let mut random = Random(seed);
        let victim = 60 + random.below(60) as usize;
        let old = history[..victim - 20].iter().rev().filter(|tx| tx.fate == Fate::Committed);
        let old: Vec<Op> = old.flat_map(|tx| &tx.ops).cloned().collect();
        let kind = (seed % 4) as usize;
        let stale = old.into_iter().find(|op| match op {
            Op::Read(_, seen) => kind == 0 && !seen.is_empty(),
            Op::Scan(..) => kind == 1,
            Op::Look(_, value) => kind == 2 && value.is_some(),
            Op::Find(..) => kind == 3,
            _ => false,
        });
        let Some(stale) = stale else { continue };
        history[victim] = Tx { ops: vec![stale], fate: Fate::Committed, span: history[victim].span };
        noticed[kind] += u64::from(check(&history, &last).is_err());
    }
    // A read of an old state is harmless if no transaction has changed the value since. So the checker cannot
    // notice every one of these histories.
    assert!(noticed.iter().all(|times| *times >= 8), "{noticed:?}");
}
