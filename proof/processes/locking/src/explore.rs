//! Runs many schedules of a scenario. First come all schedules with few deviations, or a random sample of
//! them. Then come schedules with random deviations.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::call::Call;
use crate::lead::{Outcome, Rig, Step};
use crate::plan::{Action, Draw, Plan};

/// The limits of an exploration.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The largest number of preemptions in a schedule.
    pub preemptions: usize,
    /// The largest number of deaths in a schedule.
    pub deaths: usize,
    /// The largest number of schedules that the exploration runs with the same number of deviations. If there
    /// are more, it runs a random sample of this size.
    pub limit: usize,
    /// The number of additional random schedules.
    pub random: u64,
    pub seed: u64,
    /// A text. The exploration ends when a finding contains it. `None` if there is no such text.
    pub until: Option<String>,
}

/// The result of an exploration.
#[derive(Default)]
pub struct Report {
    pub schedules: u64,
    pub steps: u64,
    pub deaths: u64,
    /// The number of schedules within the bounds. If it is larger than `schedules`, the exploration has run
    /// only a sample.
    pub possible: u64,
    /// The number of schedules that should have begun with the same steps as an earlier schedule, but did
    /// not.
    pub diverged: u64,
    /// Each kind of finding, with the plan of the first schedule that showed it, and the number of schedules
    /// that showed it. The plans with the fewest deviations run first.
    pub findings: BTreeMap<String, (Plan, u64)>,
}

/// A schedule to run. It is a schedule that has already run, with one more deviation. `begins` is the hash of
/// the earlier schedule's steps before that deviation.
struct Candidate {
    plan: Plan,
    begins: u64,
}

/// A random sample of at most `limit` candidates. Every offered candidate is in the sample with the same
/// probability.
struct Sample {
    kept: Vec<Candidate>,
    limit: usize,
    seen: u64,
}

impl Sample {
    fn offer(&mut self, random: &mut fastrand::Rng, candidate: impl FnOnce() -> Candidate) {
        self.seen += 1;
        if self.kept.len() < self.limit {
            self.kept.push(candidate());
        } else {
            let at = random.u64(0..self.seen);
            if let Some(place) = usize::try_from(at).ok().and_then(|at| self.kept.get_mut(at)) {
                *place = candidate();
            }
        }
    }
}

const NO_STEPS: u64 = 0xcbf2_9ce4_8422_2325;

fn with_step(hash: u64, step: &Step, code: i32) -> u64 {
    let word = u64::from(step.process) << 16 | (step.call as u64) << 8 | step.kind as u64;
    (hash ^ word ^ (code as u64) << 24).wrapping_mul(0x0100_0000_01b3)
}

/// Returns a hash of the first steps of a schedule. It does not include the results of calls, because a
/// process that is killed within a call leaves no result.
fn beginning(steps: &[Step]) -> u64 {
    steps.iter().fold(NO_STEPS, |hash, step| with_step(hash, step, 0))
}

/// Returns for each step whether the exploration should try a deviation at this step. The steps of a process
/// between two sleeps form a *round*. A process that waits may repeat a round, with the same calls and the
/// same results. If no process has done anything new between two equal rounds, the exploration tries
/// deviations only in the first one.
fn worth_leaving_at(steps: &[Step]) -> Vec<bool> {
    let mut worth = vec![false; steps.len()];
    // The present round of each process: a hash of the round's steps, the number of different rounds that
    // were known when it began, and its steps.
    let mut rounds: HashMap<u8, (u64, usize, Vec<usize>)> = HashMap::new();
    let (mut kinds, mut seen) = (HashSet::new(), HashSet::new());
    let mut end =
        |process: u8, (hash, known, round): (u64, usize, Vec<usize>), kinds: &mut HashSet<(u8, u64)>| {
            if seen.insert((process, hash, known)) {
                round.iter().for_each(|at| worth[*at] = true);
            }
            kinds.insert((process, hash));
        };
    for (at, step) in steps.iter().enumerate() {
        let round = rounds.entry(step.process).or_insert_with(|| (NO_STEPS, kinds.len(), Vec::new()));
        round.0 = with_step(round.0, step, step.code);
        round.2.push(at);
        if matches!(step.call, Call::Sleep | Call::Nap)
            && let Some(round) = rounds.remove(&step.process)
        {
            end(step.process, round, &mut kinds);
        }
    }
    for (process, round) in rounds {
        end(process, round, &mut kinds);
    }
    worth
}

fn orders(processes: u8) -> Vec<Vec<u8>> {
    (0..processes).fold(vec![Vec::new()], |orders, one| {
        let with = |order: &Vec<u8>, at: usize| {
            let mut order = order.clone();
            order.insert(at, one);
            order
        };
        orders.iter().flat_map(|order| (0..=order.len()).map(move |at| with(order, at))).collect()
    })
}

/// Explores a scenario.
pub fn explore(rig: &Rig, bounds: Bounds) -> Report {
    let mut report = Report::default();
    let mut random = fastrand::Rng::with_seed(bounds.seed);
    let plans = orders(rig.processes()).into_iter().map(|order| Plan { order, deviations: Vec::new() });
    let mut level: Vec<Candidate> = plans.map(|plan| Candidate { plan, begins: 0 }).collect();
    report.possible = level.len() as u64;
    while !level.is_empty() {
        let mut next = Sample { kept: Vec::new(), limit: bounds.limit, seen: 0 };
        for candidate in &level {
            if report.is_enough(&bounds) {
                return report;
            }
            let outcome = rig.follow(&candidate.plan);
            let last = candidate.plan.deviations.last().map(|deviation| deviation.step as usize);
            if let Some(last) = last
                && outcome.steps.get(..last).map(beginning) != Some(candidate.begins)
            {
                report.diverged += 1;
            }
            report.take(&candidate.plan, &outcome);
            if outcome.findings.is_empty() {
                extend(&candidate.plan, &outcome.steps, &bounds, &mut next, &mut random);
            }
        }
        report.possible += next.seen;
        level = next.kept;
    }
    for seed in 0..bounds.random {
        if report.is_enough(&bounds) {
            return report;
        }
        let seed = bounds.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
        let mut order: Vec<u8> = (0..rig.processes()).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        let mut draw = Draw::new(seed, bounds.deaths as u32);
        let outcome = rig.run(&order, &mut draw);
        report.take(&Plan { order, deviations: draw.drawn }, &outcome);
        report.possible += 1;
    }
    report
}

/// Offers every schedule that has one more deviation than this one.
fn extend(plan: &Plan, steps: &[Step], bounds: &Bounds, next: &mut Sample, random: &mut fastrand::Rng) {
    let kills = plan.kills();
    let may_kill = kills < bounds.deaths;
    let may_preempt = plan.deviations.len() - kills < bounds.preemptions;
    let first = plan.deviations.last().map_or(0, |deviation| deviation.step as usize + 1);
    let worth = worth_leaving_at(steps);
    for at in (first..steps.len()).filter(|at| worth[*at]) {
        let step = steps[at];
        let mut offer = |action| {
            next.offer(random, || Candidate {
                plan: plan.with(at as u32, action),
                begins: beginning(&steps[..at]),
            });
        };
        if may_kill {
            offer(Action::Kill);
            offer(Action::Restart);
        }
        // After a nap another process runs in any case, so a preemption there would change nothing.
        if may_preempt && step.call != Call::Nap {
            for to in (0..8).filter(|to| step.ready >> to & 1 == 1 && *to != step.process) {
                offer(Action::Preempt(to));
                offer(Action::Stall(to));
            }
        }
    }
}

impl Report {
    fn is_enough(&self, bounds: &Bounds) -> bool {
        bounds.until.as_ref().is_some_and(|text| self.findings.keys().any(|found| found.contains(text)))
    }

    fn take(&mut self, plan: &Plan, outcome: &Outcome) {
        self.schedules += 1;
        self.steps += outcome.steps.len() as u64;
        self.deaths += plan.kills() as u64;
        for finding in &outcome.findings {
            let (_, count) = self.findings.entry(finding.clone()).or_insert_with(|| (plan.clone(), 0));
            *count += 1;
        }
    }
}
