//! The explorer decides in which order requests arrive, and what goes wrong.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::future::LocalBoxFuture;
use rustc_hash::FxHashSet;

use super::actors::{Disk, Stage};
use super::judge::{Judge, Seen};
use super::world::{World, hash_of};

/// The limits on what may go wrong in one schedule.
#[derive(Debug, Clone, Copy, Default, Hash)]
pub struct Limits {
    /// The largest number of requests that time out. Such a request may still arrive late, or never.
    pub timeouts: u32,
    /// The largest number of requests that arrive twice. Only requests that change the store can do that. The
    /// second arrival is late.
    pub duplicates: u32,
    /// The largest number of times that an actor is killed. A killed actor begins another life with what is
    /// on its disk.
    pub kills: u32,
}

/// One life of an actor.
pub type Life = LocalBoxFuture<'static, ()>;

/// The actors that take part, and the limits on what may happen to them.
pub struct Scenario {
    /// The actors. Each function begins a life of its actor.
    pub actors: Vec<Box<dyn Fn(Stage) -> Life>>,
    /// The limits on what may go wrong.
    pub limits: Limits,
    /// The number of keys that one answer to a list request has.
    pub keys_in_a_list: usize,
    /// For each of this many newest transactions, a restore must be able to stop exactly after it.
    pub kept: u64,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Arrive(usize),
    TimeOut(usize),
    Duplicate(usize),
    Late(usize),
    Kill(usize),
}

/// Chooses the steps of a schedule.
trait Choices {
    /// Chooses one of several steps, and returns its index. Returns `None` if all continuations of the
    /// present state have been tried. `steps` has one entry for each step: the actor that continues after the
    /// step, or `None` if the step is a failure.
    fn choose(&mut self, steps: &[Option<usize>], fingerprint: &dyn Fn() -> u64) -> Option<usize>;
}

struct Run<'a> {
    scenario: &'a Scenario,
    world: Arc<World>,
    judge: Rc<RefCell<Judge>>,
    disks: Vec<Rc<RefCell<Disk>>>,
    lives: Vec<Option<Life>>,
    left: Limits,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let actors = scenario.actors.len();
        Self {
            scenario,
            world: World::new(actors, scenario.keys_in_a_list),
            judge: Rc::new(RefCell::new(Judge::new(scenario.kept))),
            disks: (0..actors).map(|_| Rc::default()).collect(),
            lives: (0..actors).map(|_| None).collect(),
            left: scenario.limits,
        }
    }

    fn live(&mut self, actor: usize) {
        let stage = Stage::new(actor, &self.world, &self.judge, &self.disks[actor]);
        self.lives[actor] = Some((self.scenario.actors[actor])(stage));
        self.poll(actor);
    }

    fn poll(&mut self, actor: usize) {
        let Some(life) = &mut self.lives[actor] else { return };
        if life.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(()) {
            self.lives[actor] = None;
        }
    }

    fn steps(&self) -> Vec<Step> {
        self.world.waiting(|requests, late| {
            let mut steps: Vec<Step> = (0..requests.len()).map(Step::Arrive).collect();
            steps.extend((0..late.len()).map(Step::Late));
            if self.left.timeouts > 0 {
                steps.extend((0..requests.len()).map(Step::TimeOut));
            }
            if self.left.duplicates > 0 {
                steps.extend(
                    (0..requests.len()).filter(|i| requests[*i].ask.is_change()).map(Step::Duplicate),
                );
            }
            if self.left.kills > 0 {
                steps.extend((0..self.lives.len()).filter(|i| self.lives[*i].is_some()).map(Step::Kill));
            }
            steps
        })
    }

    /// Returns the actor that continues after a step; `None` if the step is a failure. All late requests
    /// together count as one more actor.
    fn goes_on(&self, step: Step) -> Option<usize> {
        match step {
            Step::Arrive(index) => Some(self.world.waiting(|requests, _| requests[index].actor)),
            Step::Late(_) => Some(self.lives.len()),
            Step::TimeOut(_) | Step::Duplicate(_) | Step::Kill(_) => None,
        }
    }

    fn text(&self, step: Step) -> String {
        self.world.waiting(|requests, late| match step {
            Step::Arrive(i) => format!("{}: {}", requests[i].actor, requests[i].ask),
            Step::TimeOut(i) => format!("{}: {}, which is not answered", requests[i].actor, requests[i].ask),
            Step::Duplicate(i) => format!("{}: {}, and once more later", requests[i].actor, requests[i].ask),
            Step::Late(i) => format!("late: {}", late[i]),
            Step::Kill(actor) => format!("{actor} is killed and begins anew"),
        })
    }

    fn step(&mut self, step: Step) {
        let actor = match step {
            Step::Arrive(index) => self.world.arrive(index, false),
            Step::Duplicate(index) => {
                self.left.duplicates -= 1;
                self.world.arrive(index, true)
            }
            Step::TimeOut(index) => {
                self.left.timeouts -= 1;
                self.world.time_out(index)
            }
            Step::Late(index) => return self.world.arrive_late(index),
            Step::Kill(actor) => {
                self.left.kills -= 1;
                self.lives[actor] = None;
                self.world.begin_anew(actor);
                return self.live(actor);
            }
        };
        self.poll(actor);
    }

    fn fingerprint(&self) -> u64 {
        let disks: Vec<Disk> = self.disks.iter().map(|disk| disk.borrow().clone()).collect();
        let alive: Vec<bool> = self.lives.iter().map(Option::is_some).collect();
        hash_of(&(self.world.fingerprint(), self.judge.borrow().fingerprint(), disks, alive, self.left))
    }

    /// Runs the schedule until no request waits and no request is late.
    fn run(
        &mut self,
        choices: &mut dyn Choices,
        seen: &mut Seen,
        mut trace: Option<&mut Vec<String>>,
    ) -> Result<(), String> {
        for actor in 0..self.lives.len() {
            self.live(actor);
        }
        loop {
            self.judge.borrow().check(&self.world, seen)?;
            let steps = self.steps();
            if steps.iter().all(|step| matches!(step, Step::Kill(_))) {
                return Ok(());
            }
            let actors: Vec<Option<usize>> = steps.iter().map(|step| self.goes_on(*step)).collect();
            let Some(chosen) = choices.choose(&actors, &|| self.fingerprint()) else { return Ok(()) };
            if let Some(trace) = &mut trace {
                trace.push(self.text(steps[chosen]));
            }
            self.step(steps[chosen]);
        }
    }
}

/// Tries all choices, depth first. Ends a schedule when it comes to a state that an earlier schedule has
/// reached.
#[derive(Default)]
struct DepthFirst {
    path: Vec<(usize, usize)>,
    at: usize,
    states: FxHashSet<u64>,
}

impl DepthFirst {
    /// Moves on to the next schedule. Returns whether there is one.
    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((chosen, steps)) = self.path.pop() {
            if chosen + 1 < steps {
                self.path.push((chosen + 1, steps));
                return true;
            }
        }
        false
    }
}

impl Choices for DepthFirst {
    fn choose(&mut self, steps: &[Option<usize>], fingerprint: &dyn Fn() -> u64) -> Option<usize> {
        if self.at == self.path.len() {
            if !self.states.insert(fingerprint()) {
                return None;
            }
            self.path.push((0, steps.len()));
        }
        self.at += 1;
        Some(self.path[self.at - 1].0)
    }
}

/// Repeats given choices.
struct Again(std::vec::IntoIter<usize>);

impl Choices for Again {
    fn choose(&mut self, _steps: &[Option<usize>], _fingerprint: &dyn Fn() -> u64) -> Option<usize> {
        self.0.next()
    }
}

/// Makes random choices, and remembers them. Mostly chooses the same actor several times in a row, so that
/// the others wait for a long time.
struct Drawn {
    state: u64,
    made: Vec<usize>,
    actor: usize,
}

impl Drawn {
    /// Returns a random number below `end`, by SplitMix64.
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) % end.max(1) as u64) as usize
    }
}

impl Choices for Drawn {
    fn choose(&mut self, steps: &[Option<usize>], _fingerprint: &dyn Fn() -> u64) -> Option<usize> {
        let own: Vec<usize> = (0..steps.len()).filter(|step| steps[*step] == Some(self.actor)).collect();
        let sound = steps.iter().filter(|actor| actor.is_some()).count();
        let chosen = if !own.is_empty() && self.below(8) > 0 {
            own[self.below(own.len())]
        } else {
            // The steps that make something go wrong are at the end of the list.
            let some = if sound > 0 && self.below(4) > 0 { sound } else { steps.len() };
            self.below(some)
        };
        self.actor = steps[chosen].unwrap_or(self.actor);
        self.made.push(chosen);
        Some(chosen)
    }
}

/// A schedule in which a promise was broken.
#[derive(Debug)]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// The steps that led to it.
    pub steps: Vec<String>,
    /// The seed, if the schedule was random.
    pub seed: Option<u64>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(seed) = self.seed {
            write!(f, "seed {seed}: ")?;
        }
        writeln!(f, "{}, after", self.what)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

fn violation(scenario: &Scenario, choices: Vec<usize>, what: String, seed: Option<u64>) -> Box<Violation> {
    let mut steps = Vec::new();
    let again =
        Run::new(scenario).run(&mut Again(choices.into_iter()), &mut Seen::default(), Some(&mut steps));
    let what = again.err().unwrap_or_else(|| format!("{what} (but not when it was repeated)"));
    Box::new(Violation { what, steps, seed })
}

/// The extent of an exploration.
#[derive(Debug, Clone, Copy, Default)]
pub struct Explored {
    /// The number of schedules that were run.
    pub schedules: u64,
    /// The number of different states that were reached; 0 if that is not known.
    pub states: usize,
    /// The number of different states that the judge has checked by a restore. A state consists of the
    /// contents of the store and the promises made so far.
    pub judged: usize,
}

/// Runs every schedule of a scenario.
///
/// # Errors
///
/// A schedule that breaks a promise.
///
/// # Panics
///
/// If there are more than `most` schedules.
pub fn explore(scenario: &Scenario, most: u64) -> Result<Explored, Box<Violation>> {
    let (mut choices, mut seen) = (DepthFirst::default(), Seen::default());
    let mut schedules = 0;
    loop {
        if let Err(what) = Run::new(scenario).run(&mut choices, &mut seen, None) {
            let made = choices.path[..choices.at].iter().map(|(chosen, _)| *chosen).collect();
            return Err(violation(scenario, made, what, None));
        }
        schedules += 1;
        assert!(schedules <= most, "the scenario has more than {most} schedules");
        if !choices.next() {
            return Ok(Explored { schedules, states: choices.states.len(), judged: seen.len() });
        }
    }
}

/// Runs `schedules` random schedules. The first one uses this seed, and each later one the next seed.
///
/// # Errors
///
/// A schedule that breaks a promise.
pub fn draw(scenario: &Scenario, seed: u64, schedules: u64) -> Result<Explored, Box<Violation>> {
    let mut seen = Seen::default();
    for seed in seed..seed + schedules {
        let mut choices = Drawn { state: seed, made: Vec::new(), actor: 0 };
        if let Err(what) = Run::new(scenario).run(&mut choices, &mut seen, None) {
            return Err(violation(scenario, choices.made, what, Some(seed)));
        }
    }
    Ok(Explored { schedules, states: 0, judged: seen.len() })
}
