//! Schedules as text: the order in which the processes take turns, and deviations from that order.
//!
//! An example is `order=1,0,2 57>0 80|2 91x`. Process 1 begins. When a process pauses or ends, the next one
//! in the order continues. Before step 57, process 0 continues instead. Before step 80, process 2 continues,
//! and the previous process stands still until another process has ended an operation. Before step 91, the
//! leader kills the process that was about to take that step. With `91r` the leader kills the process and
//! starts it again. Its program then begins at its first operation, and the process keeps its place in the
//! order.

use std::fmt;
use std::str::FromStr;

/// The effect of a deviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Another process, with this number, continues.
    Preempt(u8),
    /// The process with this number continues. The previous process stands still until another process has
    /// ended an operation.
    Stall(u8),
    /// The leader kills the process that was about to take the step.
    Kill,
    /// The leader kills the process and starts its program again. It restarts each process only once.
    Restart,
}

impl Action {
    fn kills(self) -> bool {
        matches!(self, Self::Kill | Self::Restart)
    }
}

/// A deviation of a schedule from its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deviation {
    /// The number of the step before which the deviation happens.
    pub step: u32,
    pub action: Action,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub order: Vec<u8>,
    /// The deviations, in ascending order of their steps.
    pub deviations: Vec<Deviation>,
}

impl Plan {
    /// Returns this plan with one more deviation at its end.
    pub fn with(&self, step: u32, action: Action) -> Self {
        let mut plan = self.clone();
        plan.deviations.push(Deviation { step, action });
        plan
    }

    /// Returns how many processes the plan kills.
    pub fn kills(&self) -> usize {
        self.deviations.iter().filter(|deviation| deviation.action.kills()).count()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order: Vec<String> = self.order.iter().map(u8::to_string).collect();
        write!(f, "order={}", order.join(","))?;
        for Deviation { step, action } in &self.deviations {
            match action {
                Action::Preempt(to) => write!(f, " {step}>{to}")?,
                Action::Stall(to) => write!(f, " {step}|{to}")?,
                Action::Kill => write!(f, " {step}x")?,
                Action::Restart => write!(f, " {step}r")?,
            }
        }
        Ok(())
    }
}

fn deviation(word: &str) -> Option<Deviation> {
    let at = word.find(|c: char| !c.is_ascii_digit())?;
    let (step, rest) = (word[..at].parse().ok()?, &word[at + 1..]);
    let action = match &word[at..=at] {
        ">" => Action::Preempt(rest.parse().ok()?),
        "|" => Action::Stall(rest.parse().ok()?),
        "x" if rest.is_empty() => Action::Kill,
        "r" if rest.is_empty() => Action::Restart,
        _ => return None,
    };
    Some(Deviation { step, action })
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no schedule; one reads like `order=0,1 57>1 80|0 91x`");
        let mut words = text.split_whitespace();
        let order = words.next().and_then(|word| word.strip_prefix("order=")).ok_or_else(wrong)?;
        let order: Result<Vec<u8>, _> = order.split(',').map(str::parse).collect();
        let deviations: Option<Vec<Deviation>> = words.map(deviation).collect();
        Ok(Self { order: order.map_err(|_| wrong())?, deviations: deviations.ok_or_else(wrong)? })
    }
}

/// Decides on deviations while a schedule runs.
pub trait Chooser {
    /// Returns the next step before which the chooser wants to decide.
    fn limit(&self) -> u32;
    /// Decides whether to deviate before the step that `process` is about to take. `ready` has a bit for each
    /// process that could take a step instead.
    fn decide(&mut self, step: u32, process: u8, ready: u8) -> Option<Action>;
}

/// Follows a plan.
pub struct Follow<'a> {
    pub left: &'a [Deviation],
}

impl Chooser for Follow<'_> {
    fn limit(&self) -> u32 {
        self.left.first().map_or(u32::MAX, |deviation| deviation.step)
    }

    fn decide(&mut self, _step: u32, _process: u8, _ready: u8) -> Option<Action> {
        let (first, left) = self.left.split_first()?;
        self.left = left;
        Some(first.action)
    }
}

/// Draws deviations at random.
pub struct Draw {
    random: fastrand::Rng,
    next: u32,
    kills: u32,
    /// The deviations drawn so far.
    pub drawn: Vec<Deviation>,
}

impl Draw {
    /// Makes a chooser whose random decisions come from this seed. It kills at most `kills` times.
    pub fn new(seed: u64, kills: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let next = random.u32(0..60);
        Self { random, next, kills, drawn: Vec::new() }
    }
}

impl Chooser for Draw {
    fn limit(&self) -> u32 {
        self.next
    }

    fn decide(&mut self, step: u32, process: u8, ready: u8) -> Option<Action> {
        self.next =
            step + 1 + if self.random.bool() { self.random.u32(0..12) } else { self.random.u32(0..80) };
        let others: Vec<u8> = (0..8).filter(|one| ready >> one & 1 == 1 && *one != process).collect();
        let action = match self.random.u32(0..16) {
            0 if self.kills > 0 => {
                self.kills -= 1;
                if self.random.bool() { Action::Restart } else { Action::Kill }
            }
            _ if others.is_empty() => return None,
            kind => {
                let to = others[self.random.usize(0..others.len())];
                if kind < 10 { Action::Preempt(to) } else { Action::Stall(to) }
            }
        };
        self.drawn.push(Deviation { step, action });
        Some(action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_what_its_text_says() {
        let text = "order=1,0,2 57>0 80|2 91x 95r";
        assert_eq!(text.parse::<Plan>().unwrap().to_string(), text);
        assert!("order=1 57?0".parse::<Plan>().is_err());
    }
}
