//! Carries out a round.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::site::Site;
use crate::slices::now_ns;
use crate::worker::{Orders, Task};
use crate::{Plan, Report, Side, Worker};

/// How long processes may take to close their databases after the round.
const ENDING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(1);
const STOPS_MS: std::ops::Range<u64> = 1..150;

/// Runs a round. When this returns, all processes of the round have ended.
///
/// # Errors
/// A loss or another violation. The error names the directories that are kept, and the arguments that repeat
/// the round.
pub fn run(plan: &Plan, worker: &Worker) -> Result<Report> {
    let site = Site::new(plan)?;
    let mut round = Round {
        plan,
        worker,
        site: &site,
        start_ns: 0,
        crowd: Vec::new(),
        rng: fastrand::Rng::with_seed(plan.seed ^ 0x5eed),
        report: Report::default(),
    };
    let result = round.carry_out();
    round.end_all();
    let mut report = std::mem::take(&mut round.report);
    let counted = report.count(&site.paths);
    match result.and(counted) {
        Ok(()) => Ok(report),
        Err(error) => Err(anyhow::anyhow!("{error:#}; {report}; {}; to repeat: {plan}", site.keep())),
    }
}

/// A process of the round.
struct Member {
    child: Child,
    side: Side,
    number: u32,
    /// If the process is stopped: the end of the stop, and whether the round then kills the process or lets
    /// it continue.
    stopped: Option<(Instant, bool)>,
}

struct Round<'a> {
    plan: &'a Plan,
    worker: &'a Worker,
    site: &'a Site,
    start_ns: u64,
    crowd: Vec<Member>,
    rng: fastrand::Rng,
    report: Report,
}

impl Round<'_> {
    fn carry_out(&mut self) -> Result<()> {
        self.run_alone(Task::Create, Side::Stock)?;
        self.start_ns = now_ns();
        for (side, count) in [(Side::Ours, self.plan.ours), (Side::Stock, self.plan.stock)] {
            for _ in 0..count {
                let member = self.start(Task::Work, side)?;
                self.crowd.push(member);
            }
        }
        let over = Instant::now() + Duration::from_millis(self.plan.millis);
        let mut next = Instant::now() + self.until_next();
        while Instant::now() < over {
            std::thread::sleep(LOOK);
            self.watch()?;
            self.go_on(Instant::now())?;
            if Instant::now() >= next {
                self.strike()?;
                next = Instant::now() + self.until_next();
            }
        }
        self.wait_for_all()?;
        if self.plan.engine.is_some() {
            self.run_alone(Task::Audit, Side::Ours)?;
        }
        // No process has the databases open now, so they must be ordinary SQLite databases.
        self.run_alone(Task::Audit, Side::Stock)
    }

    fn until_next(&mut self) -> Duration {
        Duration::from_millis(self.rng.u64(3..=self.plan.longest_ms.max(3)))
    }

    fn start(&mut self, task: Task, side: Side) -> Result<Member> {
        self.report.started += 1;
        let number = u32::try_from(self.report.started)?;
        let orders = Orders {
            task,
            side,
            parent: std::process::id(),
            number,
            start_ns: self.start_ns,
            paths: self.site.paths.clone(),
        };
        let messages = File::options().append(true).create(true).open(self.site.paths.messages())?;
        let mut command = Command::new(&self.worker.program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DURALITE_") {
                command.env_remove(name);
            }
        }
        command.args(&self.worker.arguments).arg(orders.argument()?).args(self.plan.arguments());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages).spawn();
        let child = child.with_context(|| format!("cannot start {}", self.worker.program.display()))?;
        Ok(Member { child, side, number, stopped: None })
    }

    /// Runs a process to its end.
    fn run_alone(&mut self, task: Task, side: Side) -> Result<()> {
        let member = self.start(task, side)?;
        self.crowd.push(member);
        self.wait_for_all()
    }

    /// Returns the failures that the processes have reported, joined into one line.
    fn said(&self) -> String {
        let text = fs::read_to_string(self.site.paths.messages()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("failure: ")).collect();
        lines.join("; ")
    }

    /// Checks that each process is alive or has ended successfully.
    fn watch(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(member) = self.crowd.get_mut(at) {
            let Some(status) = member.child.try_wait()? else {
                at += 1;
                continue;
            };
            let member = self.crowd.swap_remove(at);
            let (side, number) = (member.side.name(), member.number);
            ensure!(status.success(), "process {number} of {side} ended, {status}: {}", self.said());
        }
        Ok(())
    }

    fn strike(&mut self) -> Result<()> {
        if self.crowd.is_empty() || !(self.plan.kills || self.plan.stops) {
            return Ok(());
        }
        let at = self.rng.usize(..self.crowd.len());
        let stops = self.plan.stops && (!self.plan.kills || self.rng.bool());
        if !stops {
            return self.kill(at);
        }
        if self.crowd[at].stopped.is_none() {
            signal(&self.crowd[at].child, Signal::STOP)?;
            let time = Duration::from_millis(self.rng.u64(STOPS_MS));
            let dies = self.plan.kills && self.rng.u32(..4) == 0;
            self.crowd[at].stopped = Some((Instant::now() + time, dies));
            self.report.stops += 1;
        }
        Ok(())
    }

    /// Kills a process, and starts another one in its place.
    fn kill(&mut self, at: usize) -> Result<()> {
        // A process that has already failed must count as a failure. So check for failures before the kill.
        self.watch()?;
        let Some(member) = self.crowd.get_mut(at) else { return Ok(()) };
        member.child.kill()?;
        let (status, side) = (member.child.wait()?, member.side);
        let number = member.number;
        ensure!(status.code() != Some(1), "process {number} of {} failed: {}", side.name(), self.said());
        self.report.kills += 1;
        self.crowd[at] = self.start(Task::Work, side)?;
        Ok(())
    }

    /// When the stop of a process is over, lets the process continue or kills it.
    fn go_on(&mut self, now: Instant) -> Result<()> {
        for at in 0..self.crowd.len() {
            match self.crowd.get(at).and_then(|member| member.stopped) {
                Some((until, dies)) if now >= until => {
                    self.crowd[at].stopped = None;
                    if dies {
                        self.kill(at)?;
                    } else {
                        signal(&self.crowd[at].child, Signal::CONT)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn wait_for_all(&mut self) -> Result<()> {
        for member in &mut self.crowd {
            if member.stopped.take().is_some() {
                signal(&member.child, Signal::CONT)?;
            }
        }
        let start = Instant::now();
        while !self.crowd.is_empty() {
            self.watch()?;
            if start.elapsed() > ENDING {
                let hung: Vec<_> = self.crowd.iter().map(|member| where_is(&member.child)).collect();
                bail!("hung: {}", hung.join("; "));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn end_all(&mut self) {
        for member in &mut self.crowd {
            // The process may have ended already.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
        self.crowd.clear();
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    Ok(kill_process(Pid::from_child(child), signal)?)
}

/// Describes what a process that does not end is waiting for.
fn where_is(child: &Child) -> String {
    let pid = child.id();
    let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    format!("process {pid} waits in {}, call {}", file("wchan").trim(), file("syscall").trim())
}
