//! Runs one schedule of a race. Starts new processes, brings all of them to the start of the race, and then lets one
//! process at a time take a step.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tempfile::TempDir;

use super::judge::Judge;
use super::ledger::{End, ledger};
use super::mix::{Mix, SETUP};
use super::schedule::{Choice, Chooser, Ready, Schedule};
use super::session;
use crate::board::{Stop, board};
use crate::child::Child;
use crate::clock;
use crate::grain::{self, Grain};

/// The real time that a process may take until its next stop. If a process takes longer, the leader considers it hung.
const PATIENCE: Duration = Duration::from_secs(60);
/// The largest number of steps in a schedule. The leader treats a longer schedule as one that does not end.
const STEPS: usize = 5000;
/// The number of the process that makes the database. Later, the process that checks the database gets the same number.
const OUTSIDER: usize = 5;

/// The result of a schedule.
pub struct Outcome {
    pub schedule: Schedule,
    pub findings: Vec<String>,
    /// The number of transactions that committed a change. `refused` is the number of transactions that were refused,
    /// and `died` is the number of those whose process died.
    pub committed: u64,
    pub refused: u64,
    pub died: u64,
}

/// Runs the schedules of a race, in a directory in memory that becomes the working directory.
pub struct Rig {
    pub mix: &'static Mix,
    judge: Judge,
    /// The bytes of the database with which a schedule begins.
    database: Vec<u8>,
    _dir: TempDir,
}

impl Child {
    /// Lets the process run until it is about to take the step `limit`, reaches a barrier, or ends. If the process
    /// sleeps, its clock advances, and it continues.
    fn run_alone(&self, limit: u32) -> Stop {
        board().set_ready(1 << self.process, false);
        loop {
            match board().run(self.process, limit, PATIENCE) {
                Some(Stop::Yield | Stop::Nap | Stop::Operation) => {}
                Some(stop) => return stop,
                None => {
                    board().finding(self.process, format_args!("it hangs, or has crashed"));
                    return Stop::Done;
                }
            }
        }
    }

    /// Lets the process run to its end.
    fn finish(&self) {
        while self.run_alone(u32::MAX) != Stop::Done {}
        self.kill();
    }
}

/// What the leader knows about the processes of a race.
struct Race {
    children: Vec<Child>,
    /// The processes that are alive and have not ended their transactions yet, as one bit for each process.
    runs: u8,
    /// The processes that sleep until another process has taken a step, as one bit for each process.
    asleep: u8,
    last: Option<u8>,
    choices: Vec<Choice>,
}

impl Race {
    fn ready(&mut self) -> Ready {
        let mut bits = self.runs & !self.asleep;
        if bits == 0 {
            // All processes sleep, so time advances. The process that has slept the least in total wakes up.
            let running = (0..8).filter(|process| self.runs >> process & 1 == 1);
            let first = running.min_by_key(|process| board().processes[*process].clock_ns.load(SeqCst));
            bits = first.map_or(0, |process| 1 << process);
        }
        Ready { bits, last: self.last.filter(|last| bits >> last & 1 == 1) }
    }

    fn child(&self, process: u8) -> Option<usize> {
        self.children.iter().position(|child| child.process == usize::from(process))
    }

    fn kill(&mut self, process: u8) {
        if let Some(at) = self.child(process) {
            self.children.remove(at).kill();
            if self.runs != 1 << process {
                clock::let_death_be_noticed();
            }
        }
        self.gone(process);
    }

    fn gone(&mut self, process: u8) {
        self.runs &= !(1 << process);
        self.asleep = 0;
    }

    fn step(&mut self, process: u8) {
        let Some(at) = self.child(process) else { return };
        board().set_ready(self.runs, false);
        match board().run(usize::from(process), board().steps() + 1, PATIENCE) {
            Some(Stop::Limit | Stop::Operation) => self.asleep = 0,
            Some(Stop::Yield | Stop::Nap) => self.asleep |= 1 << process,
            Some(Stop::Barrier) => self.gone(process),
            Some(Stop::Done) => {
                board().finding(usize::from(process), format_args!("it has ended before its time"));
                self.children.remove(at).reap();
                self.gone(process);
            }
            None => {
                board().finding(usize::from(process), format_args!("it hangs, or has crashed"));
                self.kill(process);
            }
        }
    }

    fn run(&mut self, chooser: &mut impl Chooser) {
        while self.runs != 0 {
            let ready = self.ready();
            let choice = chooser.choose(ready);
            self.choices.push(choice);
            match choice {
                Choice::Step(process) if self.runs >> process & 1 == 1 => {
                    self.last = Some(process);
                    self.step(process);
                }
                // A schedule's text may name more steps of a process than the process takes.
                Choice::Step(_) => {}
                Choice::Kill(process) => self.kill(process),
                Choice::KillAll => {
                    for child in self.children.drain(..) {
                        child.kill();
                    }
                    self.runs = 0;
                }
            }
            if self.choices.len() > STEPS {
                board().finding(OUTSIDER, format_args!("the schedule does not end"));
                break;
            }
        }
    }
}

impl Rig {
    /// Creates the directory, and the database with which a schedule begins.
    pub fn new(mix: &'static Mix) -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("duralite-race-").tempdir_in(parent).unwrap();
        std::env::set_current_dir(dir.path()).unwrap();
        grain::set(Grain::Coarse);
        board().clear();
        std::fs::write("db", "").unwrap();
        Child::start(OUTSIDER, || session::make(OUTSIDER, SETUP)).finish();
        assert_eq!(board().findings(), Vec::<String>::new(), "the race does not begin");
        let database = std::fs::read("db").unwrap();
        Self { mix, judge: Judge::new(mix), database, _dir: dir }
    }

    fn put_database(&self) {
        for entry in std::fs::read_dir(".").unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        std::fs::write("db", &self.database).unwrap();
    }

    /// Runs a schedule.
    pub fn run(&self, grain: Grain, chooser: &mut impl Chooser) -> Outcome {
        self.put_database();
        board().clear();
        ledger().clear();
        grain::set(grain);
        let mix = self.mix;
        let all = 0..mix.programs.len();
        let children: Vec<Child> =
            all.map(|process| Child::start(process, || session::run(process, mix))).collect();
        for child in &children {
            if child.run_alone(u32::MAX) != Stop::Barrier {
                board().finding(child.process, format_args!("it does not come to the start"));
            }
        }
        let runs = children.iter().fold(0, |runs, child| runs | 1 << child.process);
        for child in &children {
            child.run_alone(board().steps());
        }
        let mut race = Race { children, runs, asleep: 0, last: None, choices: Vec::new() };
        race.run(chooser);
        // The processes that are still alive close their connections before the outsider starts.
        race.children.iter().for_each(Child::finish);
        Child::start(OUTSIDER, || session::audit(OUTSIDER)).finish();
        self.outcome(Schedule { grain, choices: race.choices })
    }

    fn outcome(&self, schedule: Schedule) -> Outcome {
        let mut findings = board().findings();
        let (seen, found) = ledger().read(sees_log());
        findings.extend(self.judge.judge(&seen, &found));
        let count = |is: fn(&End) -> bool| seen.iter().filter(|one| is(&one.end)).count() as u64;
        Outcome {
            schedule,
            findings,
            committed: count(|end| matches!(end, End::Committed { sealed: 1.., .. })),
            refused: count(|end| matches!(end, End::Refused)),
            died: count(|end| matches!(end, End::Died { .. })),
        }
    }
}

/// Returns whether the process stops at every change of the log. It does so if [`super::memory`] wraps the log's
/// memory.
fn sees_log() -> bool {
    session::engine() == "nvwal"
}

/// Prints what the processes have seen in the last schedule.
pub fn tell_seen() {
    for one in ledger().read(sees_log()).0 {
        println!("{one:?}");
    }
}
