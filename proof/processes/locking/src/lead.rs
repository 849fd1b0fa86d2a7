//! Runs one schedule. Starts the processes, lets one of them run at a time, and lets auditors check the
//! result at the end.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tempfile::TempDir;

use crate::actor;
use crate::board::{Stop, board};
use crate::call::{Call, Kind};
use crate::child::Child;
use crate::clock;
use crate::plan::{Action, Chooser, Deviation, Follow, Plan};
use crate::scenario::{Actor, Scenario, Start, auditor};

/// The real time that a process may take until its next stop. If a process takes longer, the leader considers
/// it hung.
const PATIENCE: Duration = Duration::from_secs(30);

/// A step that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub process: u8,
    pub call: Call,
    pub kind: Kind,
    /// The result of the call.
    pub code: i32,
    /// The processes that could have taken the step, as one bit for each process.
    pub ready: u8,
}

/// The result of a schedule.
pub struct Outcome {
    /// The steps of the processes, except those of the auditors.
    pub steps: Vec<Step>,
    pub findings: Vec<String>,
}

/// Runs the schedules of a scenario, in a directory in memory that becomes the working directory.
pub struct Rig {
    pub scenario: &'static Scenario,
    /// The files with which a schedule begins.
    files: Vec<(String, Vec<u8>)>,
    /// The rows that are acknowledged when a schedule begins.
    acknowledged: u64,
    _dir: TempDir,
}

/// A process that runs an actor's program.
struct Player {
    child: Child,
    actor: Actor,
    is_second_life: bool,
}

/// The process that makes the scenario's files inserts rows from the number `MADE` on. The process that the
/// leader kills in the middle of a commit inserts rows from `INTERRUPTED` on.
const MADE: usize = 0;
const INTERRUPTED: usize = 3;

/// Starts a process of a schedule. The process waits for its turn. It inserts rows from the number
/// `first_row` on.
fn start(process: usize, actor: Actor, first_row: usize) -> Player {
    let child = Child::start(process, || actor::run(process, actor, first_row));
    Player { child, actor, is_second_life: false }
}

impl Player {
    /// Kills the process and starts its program again. The new process waits for its turn.
    fn restart(&mut self) {
        self.child.kill();
        let process = self.child.process;
        board().processes[process].close_all();
        let again = start(process, self.actor, actor::first_row_again(process));
        *self = Self { is_second_life: true, ..again };
    }
}

/// Runs a process to its end, while no other process runs.
fn run_alone(process: usize, actor: Actor, first_row: usize) {
    lead(&[process as u8], vec![start(process, actor, first_row)], &mut Follow { left: &[] });
}

/// What the leader knows about the processes of a schedule.
struct Led<'a> {
    order: &'a [u8],
    players: Vec<Player>,
    alive: u8,
    /// The processes that stand still until another process has ended an operation, as one bit for each
    /// process.
    stalled: u8,
}

impl Led<'_> {
    fn ready(&mut self) -> u8 {
        if self.alive & !self.stalled == 0 {
            self.stalled = 0;
        }
        self.alive & !self.stalled
    }

    /// Returns the first ready process that comes after `process` in the order; `process` itself if no
    /// process is ready.
    fn next(&mut self, process: u8) -> u8 {
        let ready = self.ready();
        let at = self.order.iter().position(|one| *one == process).unwrap_or(0);
        let behind = self.order.iter().cycle().skip(at + 1).take(self.order.len());
        behind.copied().find(|one| ready >> one & 1 == 1).unwrap_or(process)
    }

    fn player(&mut self, process: u8) -> &mut Player {
        self.players.iter_mut().find(|player| player.child.process == usize::from(process)).unwrap()
    }

    fn gone(&mut self, process: u8) {
        self.alive &= !(1 << process);
        self.stalled = 0;
    }

    fn act(&mut self, process: u8, action: Action) -> u8 {
        let is_ready = |led: &mut Self, to: u8| to < 8 && led.ready() >> to & 1 == 1;
        match action {
            Action::Preempt(to) if is_ready(self, to) => to,
            Action::Stall(to) if is_ready(self, to) && to != process => {
                self.stalled |= 1 << process;
                to
            }
            Action::Restart if !self.player(process).is_second_life => {
                self.player(process).restart();
                clock::let_death_be_noticed();
                self.stalled = 0;
                self.next(process)
            }
            Action::Kill | Action::Restart => {
                self.player(process).child.kill();
                clock::let_death_be_noticed();
                self.gone(process);
                self.next(process)
            }
            _ => process,
        }
    }
}

/// Leads the processes until all have ended.
fn lead(order: &[u8], players: Vec<Player>, chooser: &mut impl Chooser) {
    let alive = order.iter().fold(0, |alive, process| alive | 1 << process);
    let mut led = Led { order, players, alive, stalled: 0 };
    let mut current = order[0];
    while led.alive != 0 {
        let ready = led.ready();
        if ready >> current & 1 == 0 {
            current = led.next(current);
        }
        board().set_ready(ready, led.stalled != 0);
        let process = current;
        match board().run(usize::from(process), chooser.limit(), PATIENCE) {
            None => {
                board().finding(usize::from(process), format_args!("it hangs, or has crashed"));
                break;
            }
            Some(Stop::Limit) => {
                if let Some(action) = chooser.decide(board().steps(), process, ready) {
                    current = led.act(process, action);
                }
            }
            Some(Stop::Yield) => current = led.next(process),
            Some(Stop::Nap) => {
                led.stalled |= 1 << process;
                current = led.next(process);
            }
            // A barrier occurs only in a race.
            Some(Stop::Operation | Stop::Barrier) => led.stalled = 0,
            Some(Stop::Done) => {
                led.player(process).child.reap();
                led.gone(process);
                current = led.next(process);
            }
        }
        if board().is_full() {
            board().finding(usize::from(process), format_args!("the schedule does not end"));
            break;
        }
    }
    let left =
        led.players.iter().map(|player| &player.child).filter(|child| led.alive >> child.process & 1 == 1);
    left.for_each(Child::kill);
}

fn steps() -> Vec<Step> {
    let taken = board().trace().iter().filter(|entry| entry.step.load(SeqCst) != u32::MAX);
    taken
        .map(|entry| Step {
            process: entry.process.load(SeqCst),
            call: Call::of(entry.call.load(SeqCst)),
            kind: Kind::of(entry.kind.load(SeqCst)),
            code: entry.code.load(SeqCst),
            ready: entry.ready.load(SeqCst),
        })
        .collect()
}

impl Rig {
    /// Creates the directory, and in it the files with which each schedule of this scenario begins.
    pub fn new(scenario: &'static Scenario) -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("duralite-locking-").tempdir_in(parent).unwrap();
        std::env::set_current_dir(dir.path()).unwrap();
        let mut rig = Self { scenario, files: Vec::new(), acknowledged: 0, _dir: dir };
        rig.make(scenario.start);
        rig
    }

    fn make(&mut self, start_of: Start) {
        board().clear();
        std::fs::write("db", "").unwrap();
        run_alone(0, start_of.maker(), MADE);
        assert_eq!(board().findings(), Vec::<String>::new(), "the scenario does not begin");
        self.acknowledged = board().acknowledged.load(SeqCst);
        self.take_files();
        if let Some(interrupted) = start_of.interrupted() {
            // The first run finds out which step deletes the journal. The second run kills the process before
            // that step.
            let from = board().steps();
            run_alone(1, interrupted, INTERRUPTED);
            let at = steps().iter().rposition(|step| (step.call, step.kind) == (Call::Delete, Kind::Journal));
            let at = at.filter(|at| *at >= from as usize).unwrap() as u32;
            self.put_files();
            board().clear();
            let dies = [Deviation { step: at - from, action: Action::Kill }];
            lead(&[1], vec![start(1, interrupted, INTERRUPTED)], &mut Follow { left: &dies });
            self.take_files();
        }
    }

    fn take_files(&mut self) {
        let files =
            std::fs::read_dir(".").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        self.files = files.map(|name| (name.clone(), std::fs::read(&name).unwrap())).collect();
    }

    fn put_files(&self) {
        for entry in std::fs::read_dir(".").unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
        for (name, bytes) in &self.files {
            std::fs::write(name, bytes).unwrap();
        }
    }

    /// Runs a schedule in which the processes take turns in the order `order`.
    pub fn run(&self, order: &[u8], chooser: &mut impl Chooser) -> Outcome {
        self.put_files();
        board().clear();
        board().acknowledged.store(self.acknowledged, SeqCst);
        let actors = self.scenario.actors;
        let mut next = actors.len();
        if let Some(before) = self.scenario.before {
            run_alone(next, before, actor::first_row(next));
            next += 1;
        }
        let players: Vec<Player> = actors
            .iter()
            .enumerate()
            .map(|(process, actor)| start(process, *actor, actor::first_row(process)))
            .collect();
        let offset = board().steps();
        lead(order, players, &mut Shifted { chooser, offset });
        let steps = steps().split_off(offset as usize);
        for via in self.scenario.auditors {
            run_alone(next, auditor(*via), actor::first_row(next));
            next += 1;
        }
        Outcome { steps, findings: board().findings() }
    }

    /// Runs a schedule according to its plan.
    pub fn follow(&self, plan: &Plan) -> Outcome {
        self.run(&plan.order, &mut Follow { left: &plan.deviations })
    }

    /// Returns the number of processes in the scenario.
    pub fn processes(&self) -> u8 {
        self.scenario.actors.len() as u8
    }
}

/// Wraps a chooser that counts steps from 0, beginning with the schedule's own first step. Other processes
/// may have taken steps before that.
struct Shifted<'a, C> {
    chooser: &'a mut C,
    offset: u32,
}

impl<C: Chooser> Chooser for Shifted<'_, C> {
    fn limit(&self) -> u32 {
        self.chooser.limit().saturating_add(self.offset)
    }

    fn decide(&mut self, step: u32, process: u8, ready: u8) -> Option<Action> {
        self.chooser.decide(step - self.offset, process, ready)
    }
}

/// Prints the last schedule, with one line for each step and each note.
pub fn tell() {
    let mut offset = None;
    for entry in board().trace() {
        let (step, process) = (entry.step.load(SeqCst), entry.process.load(SeqCst));
        let (call, kind) = (Call::of(entry.call.load(SeqCst)), Kind::of(entry.kind.load(SeqCst)));
        let (argument, code) = (entry.argument.load(SeqCst), entry.code.load(SeqCst));
        let number = if step == u32::MAX {
            String::new()
        } else {
            (i64::from(step) - i64::from(*offset.get_or_insert(0))).to_string()
        };
        let indent = usize::from(process) * 34;
        println!("{number:>5} {:indent$}{process}: {call} {kind} {argument} -> {code}", "");
    }
}
