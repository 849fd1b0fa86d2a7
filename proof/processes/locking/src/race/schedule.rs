//! Schedules of races, as text and as lists of choices.
//!
//! An example is `coarse 0010a1`, with one character for each stop. A digit lets the process with this number
//! take a step. The letter `a` kills process 0, `b` kills process 1 and so on, and `*` kills all. After the
//! end of the text, the process that took the last step runs to its end, and then the others do, in the order
//! of their numbers.

use std::fmt;
use std::str::FromStr;

use crate::grain::Grain;

/// The leader's decision at a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Let this process take a step.
    Step(u8),
    /// Kill this process.
    Kill(u8),
    /// Kill all processes.
    KillAll,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    pub grain: Grain,
    pub choices: Vec<Choice>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.grain == Grain::Coarse { "coarse " } else { "fine " })?;
        self.choices.iter().try_for_each(|choice| match choice {
            Choice::Step(process) => write!(f, "{process}"),
            Choice::Kill(process) => write!(f, "{}", char::from(b'a' + process)),
            Choice::KillAll => f.write_str("*"),
        })
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no schedule of a race; one reads like `coarse 0010a1`");
        let (grain, choices) = text.split_once(' ').ok_or_else(wrong)?;
        let grain = match grain {
            "coarse" => Grain::Coarse,
            "fine" => Grain::Fine,
            _ => return Err(wrong()),
        };
        let choice = |byte: u8| match byte {
            b'0'..=b'7' => Some(Choice::Step(byte - b'0')),
            b'a'..=b'h' => Some(Choice::Kill(byte - b'a')),
            b'*' => Some(Choice::KillAll),
            _ => None,
        };
        let choices: Option<Vec<Choice>> = choices.bytes().map(choice).collect();
        Ok(Self { grain, choices: choices.ok_or_else(wrong)? })
    }
}

/// The processes that can take the next step.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// The processes that can take the next step, as one bit for each process.
    pub bits: u8,
    /// The process that took the last step, if it can take the next one too.
    pub last: Option<u8>,
}

impl Ready {
    fn processes(self) -> impl Iterator<Item = u8> {
        (0..8).filter(move |process| self.bits >> process & 1 == 1)
    }

    fn default(self) -> Choice {
        Choice::Step(self.last.or_else(|| self.processes().next()).unwrap_or(0))
    }
}

/// Decides what happens at each stop.
pub trait Chooser {
    /// Decides what happens at a stop. At least one process is ready.
    fn choose(&mut self, ready: Ready) -> Choice;
}

/// Follows a schedule.
pub struct Follow<'a>(pub &'a [Choice]);

impl Chooser for Follow<'_> {
    fn choose(&mut self, ready: Ready) -> Choice {
        let Some((first, rest)) = self.0.split_first() else { return ready.default() };
        self.0 = rest;
        *first
    }
}

/// How many processes a schedule may kill, and how.
#[derive(Debug, Clone, Copy)]
pub struct Deaths {
    /// The largest number of deaths.
    pub most: usize,
    /// Whether all processes may die at once.
    pub of_all: bool,
}

/// Chooses so that all schedules run, one after the other.
pub struct Every {
    deaths: Deaths,
    /// The possible choices at each stop, and the index of the one that the present schedule takes.
    path: Vec<(Vec<Choice>, usize)>,
    at: usize,
    killed: usize,
    /// Whether a schedule made the same choices as an earlier one, but then found other processes ready.
    pub diverged: bool,
}

impl Every {
    /// Begins with the first schedule.
    pub fn new(deaths: Deaths) -> Self {
        Self { deaths, path: Vec::new(), at: 0, killed: 0, diverged: false }
    }

    /// Moves on to the next schedule. Returns whether there is one.
    pub fn advance(&mut self) -> bool {
        (self.at, self.killed) = (0, 0);
        while let Some((alternatives, taken)) = self.path.last_mut() {
            *taken += 1;
            if *taken < alternatives.len() {
                return true;
            }
            self.path.pop();
        }
        false
    }
}

impl Chooser for Every {
    fn choose(&mut self, ready: Ready) -> Choice {
        if self.at == self.path.len() {
            let mut alternatives: Vec<Choice> = ready.processes().map(Choice::Step).collect();
            if self.killed < self.deaths.most {
                alternatives.extend(ready.processes().map(Choice::Kill));
                alternatives.extend(self.deaths.of_all.then_some(Choice::KillAll));
            }
            self.path.push((alternatives, 0));
        }
        let (alternatives, taken) = &self.path[self.at];
        self.at += 1;
        let choice = alternatives[*taken];
        let steps = alternatives.iter().filter(|choice| matches!(choice, Choice::Step(_)));
        self.diverged |= !steps.copied().eq(ready.processes().map(Choice::Step));
        self.killed += usize::from(!matches!(choice, Choice::Step(_)));
        choice
    }
}

/// Draws schedules at random.
pub struct Draw {
    random: fastrand::Rng,
    deaths: Deaths,
    switches: Switches,
}

/// The rule that decides when another process continues.
enum Switches {
    /// After each step, another process continues with a probability of 1 divided by this number.
    Often(u32),
    /// One process takes several steps in a row, and then another process continues. The number says how many
    /// of these steps are left.
    Stretches(u32),
}

/// The largest number of steps that one process takes in a row. A whole transaction has about as many fine
/// steps.
const STRETCH: u32 = 60;

impl Draw {
    /// Makes a chooser that takes its random decisions from this seed, and kills no more than `deaths`
    /// allows.
    pub fn new(seed: u64, mut deaths: Deaths) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // In half of the schedules nobody dies.
        deaths.most *= usize::from(random.bool());
        let switches = match random.u32(0..6) {
            0 => Switches::Often(2),
            1 => Switches::Often(4),
            2 => Switches::Often(12),
            _ => Switches::Stretches(random.u32(0..STRETCH)),
        };
        Self { random, deaths, switches }
    }

    fn kill(&mut self, process: u8) -> Choice {
        self.deaths.most -= 1;
        if self.deaths.of_all && self.random.u32(0..5) == 0 { Choice::KillAll } else { Choice::Kill(process) }
    }
}

impl Chooser for Draw {
    fn choose(&mut self, ready: Ready) -> Choice {
        let all: Vec<u8> = ready.processes().collect();
        let any = all[self.random.usize(0..all.len())];
        match &mut self.switches {
            Switches::Often(steps) => {
                let steps = *steps;
                if self.deaths.most > 0 && self.random.u32(0..40) == 0 {
                    return self.kill(any);
                }
                let goes_on = self.random.u32(0..steps) > 0;
                Choice::Step(ready.last.filter(|_| goes_on).unwrap_or(any))
            }
            Switches::Stretches(left) => {
                let goes_on = *left > 0;
                *left = if goes_on { *left - 1 } else { self.random.u32(0..STRETCH) };
                match ready.last {
                    Some(last) if goes_on => Choice::Step(last),
                    Some(last) if self.deaths.most > 0 && self.random.u32(0..3) == 0 => self.kill(last),
                    _ => Choice::Step(any),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_what_its_text_says() {
        for text in ["coarse 0010a1", "fine 2*", "fine "] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
        assert!("coarse 0x".parse::<Schedule>().is_err());
    }

    /// Returns the texts of all schedules for two processes that take two steps each.
    fn schedules(most: usize) -> Vec<String> {
        let mut every = Every::new(Deaths { most, of_all: true });
        let mut all = Vec::new();
        loop {
            let (mut left, mut choices) = ([2_u8, 2], Vec::new());
            while left != [0, 0] {
                let bits = u8::from(left[0] > 0) | u8::from(left[1] > 0) << 1;
                let choice = every.choose(Ready { bits, last: None });
                match choice {
                    Choice::Step(process) => left[usize::from(process)] -= 1,
                    Choice::Kill(process) => left[usize::from(process)] = 0,
                    Choice::KillAll => left = [0, 0],
                }
                choices.push(choice);
            }
            all.push(Schedule { grain: Grain::Coarse, choices }.to_string());
            if !every.advance() {
                assert!(!every.diverged);
                return all;
            }
        }
    }

    #[test]
    fn every_interleaving_comes_once() {
        let expected = ["0011", "0101", "0110", "1001", "1010", "1100"];
        assert_eq!(schedules(0), expected.map(|text| format!("coarse {text}")));
        let with_deaths = schedules(1);
        let distinct: std::collections::BTreeSet<&String> = with_deaths.iter().collect();
        assert_eq!(distinct.len(), with_deaths.len());
        assert!(
            ["00b", "0a11", "*", "010*", "ab"]
                .iter()
                .all(|text| { with_deaths.contains(&format!("coarse {text}")) != (*text == "ab") })
        );
    }
}
