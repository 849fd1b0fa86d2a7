//! Decides which processes the run kills, when it kills them, and what the auditor checks. Only the seed and
//! the plan affect these decisions.

use std::time::Duration;

use crate::{Phase, Plan, Role};

/// The check that the auditor makes after a strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The newest transactions, through a connection that stays open.
    Light,
    /// The newest transactions, through a connection that is opened for this check and closed again.
    Visit,
    /// All transactions.
    Full,
}

/// The way in which the run stops a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The time for which the process is stopped.
    pub time: Duration,
    /// Whether the process continues afterwards instead of being killed.
    pub goes_on: bool,
}

/// One step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The run starts processes of these roles. None are running before that.
    Start(Vec<Role>),
    /// The run kills some processes and replaces them.
    Strike {
        /// The indexes of the victims among the started processes.
        victims: Vec<usize>,
        /// The delay begins when the first victim reaches this phase, or after a time limit.
        aim: Option<Phase>,
        /// The time to wait before the kill.
        delay: Duration,
        /// How the run stops the first victim before the kill; `None` if it does not stop the victim.
        stop: Option<Stop>,
        /// Whether the database has another name during the strike.
        renamed: bool,
        /// Whether the run starts the replacements before the check.
        replace_first: bool,
        /// The check that the auditor makes.
        check: Check,
    },
    /// The run stops some processes for a while, and then lets them continue.
    Pause {
        /// The processes' indexes among the started processes.
        slots: Vec<usize>,
        /// The time for which the processes are stopped.
        time: Duration,
    },
    /// The run kills all processes at once, in this order.
    Wipe {
        /// The processes' indexes among the started processes.
        order: Vec<usize>,
        /// The time to wait before the kill.
        delay: Duration,
        /// Whether the auditor then opens, checks and closes the database, and checks it again with stock
        /// SQLite.
        settle: bool,
    },
}

/// From time to time the run kills all processes. The seed decides how many processes the run kills before
/// that: it chooses one of these ranges, and a number in that range. If the number is small, the victim is
/// often a process that recovers the log while others wait to attach the log.
const ROUNDS: [std::ops::RangeInclusive<u32>; 3] = [1..=3, 1..=8, 15..=70];
const LONGEST_AIMED: u64 = 3_000;
const LONGEST_STOP: u64 = 250;
/// The longest pause in milliseconds. A worker that finds the database busy repeats its statement for a
/// longer time than this.
const LONGEST_PAUSE: u64 = 1_500;

/// An endless sequence of the steps of a run.
pub struct Schedule {
    rng: fastrand::Rng,
    roles: Vec<Role>,
    weak: bool,
    full_check_every: u32,
    /// The longest delay, in microseconds.
    longest: u64,
    names: bool,
    pauses: bool,
    cast: Vec<Role>,
    left: u32,
    /// Whether all processes that the last `Step::Start` started are still alive.
    fresh: bool,
    since_full_check: u32,
}

impl Schedule {
    /// Returns the steps for a plan.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(plan.seed ^ 0x6b69_6c6c),
            roles: plan.roles(),
            weak: plan.is_weak(),
            full_check_every: plan.full_check_every.max(1),
            longest: plan.longest_ms * 1000,
            names: plan.names,
            pauses: plan.pauses,
            cast: Vec::new(),
            left: 0,
            fresh: false,
            since_full_check: 0,
        }
    }

    /// Chooses the roles of the processes to start. Most of the time these are all roles of the plan. Now and
    /// then there are few processes, because the run must also kill processes that are alone.
    fn choose_cast(&mut self) -> Vec<Role> {
        let only = |wanted: &[Role]| -> Vec<Role> {
            self.roles.iter().copied().filter(|role| wanted.contains(role)).collect()
        };
        let mut cast = match self.rng.u32(..10) {
            0 | 1 => only(&[Role::Opener]),
            2 => only(&[Role::Opener]).into_iter().take(1).collect(),
            3 => only(&[Role::Writer, Role::Concurrent]),
            5 => only(&[Role::Forker, Role::Onlooker]),
            4 => only(&[Role::Writer, Role::Concurrent, Role::Opener]),
            _ => Vec::new(),
        };
        // If the plan has concurrent writers, nearly every cast needs some, because the purpose of the plan
        // is to kill them.
        let lacks_concurrent = |role: &Role| *role == Role::Concurrent && !cast.contains(role);
        let is_poor = self.roles.iter().any(lacks_concurrent) && self.rng.u32(..8) > 0;
        if cast.is_empty() || is_poor {
            cast.clone_from(&self.roles);
        }
        if self.weak {
            // With these settings, commits may be lost only when no process has the log attached. The keeper
            // stays attached. So a loss before the keeper's death is a failure.
            cast.push(Role::Keeper);
        }
        cast
    }

    /// Returns a random delay. Its upper limit is `longest`, a tenth of `longest`, or a hundredth of it, each
    /// with the same chance.
    fn short_delay(&mut self, longest: u64) -> Duration {
        let longest = [longest, longest / 10, longest / 100][self.rng.usize(..3)];
        Duration::from_micros(self.rng.u64(..=longest))
    }

    fn strike(&mut self) -> Step {
        let mut victims: Vec<usize> =
            (0..self.cast.len()).filter(|slot| self.cast[*slot] != Role::Keeper).collect();
        self.rng.shuffle(&mut victims);
        let most = victims.len().saturating_sub(1).max(1);
        let wanted = if self.rng.u32(..5) == 0 { self.rng.usize(1..=most) } else { 1 };
        victims.truncate(wanted);
        let moments = victims.first().map_or(&[][..], |slot| self.cast[*slot].moments());
        let fresh = std::mem::take(&mut self.fresh);
        let aim = (self.rng.bool() && !moments.is_empty()).then(|| moments[self.rng.usize(..moments.len())]);
        // After a start, all processes open the database at the same time, and one of them recovers the log.
        let aim = if fresh && self.rng.u32(..4) > 0 { Some(Phase::Opening) } else { aim };
        let delay = self.short_delay(if aim.is_some() { LONGEST_AIMED } else { self.longest });
        let stop = (self.rng.u32(..12) == 0).then(|| {
            let time = self.short_delay(LONGEST_STOP * 1000);
            Stop { time, goes_on: self.rng.u32(..3) == 0 }
        });
        self.since_full_check += victims.len() as u32;
        let check = if self.since_full_check >= self.full_check_every {
            self.since_full_check = 0;
            Check::Full
        } else if self.rng.u32(..3) == 0 {
            Check::Visit
        } else {
            Check::Light
        };
        self.left = self.left.saturating_sub(victims.len() as u32);
        let replace_first = self.rng.bool();
        let renamed = self.names && self.rng.u32(..4) == 0;
        Step::Strike { victims, aim, delay, stop, renamed, replace_first, check }
    }

    fn pause(&mut self) -> Step {
        let mut slots: Vec<usize> = (0..self.cast.len()).collect();
        self.rng.shuffle(&mut slots);
        let most = self.cast.len().div_ceil(2);
        slots.truncate(self.rng.usize(1..=most));
        Step::Pause { slots, time: self.short_delay(LONGEST_PAUSE * 1000) }
    }

    fn wipe(&mut self) -> Step {
        let mut order: Vec<usize> = (0..self.cast.len()).collect();
        self.rng.shuffle(&mut order);
        self.cast.clear();
        Step::Wipe { order, delay: self.short_delay(self.longest), settle: self.rng.bool() }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.roles.is_empty() {
            return None;
        }
        if self.cast.is_empty() {
            self.cast = self.choose_cast();
            let round = ROUNDS[self.rng.usize(..ROUNDS.len())].clone();
            self.left = self.rng.u32(round);
            self.fresh = true;
            return Some(Step::Start(self.cast.clone()));
        }
        if self.pauses && self.rng.u32(..5) == 0 {
            return Some(self.pause());
        }
        Some(if self.left == 0 { self.wipe() } else { self.strike() })
    }
}
