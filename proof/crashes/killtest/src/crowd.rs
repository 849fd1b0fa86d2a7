//! Starts, watches, stops, kills and reaps the processes of a run.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use duralite_testkit::Ended;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, waitpgid,
};

use crate::board::Board;
use crate::site::Site;
use crate::worker::{Answer, Orders, Question};
use crate::{Phase, Plan, Role, Worker, stacks};

/// While the killing process waits for one process, it checks the others at this interval.
const GLANCE: Duration = Duration::from_millis(50);
/// The killing process waits at most this long until a victim reaches the phase in which it is to be killed.
const AIM: Duration = Duration::from_millis(8);

/// A process. Dropping this value kills the process.
struct ProcessSlot {
    child: Child,
    role: Role,
    id: u64,
    stopped: bool,
    /// Whether the process was killed and has not been replaced yet.
    dead: bool,
    steps: u64,
    since: Instant,
}

impl ProcessSlot {
    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("cannot send a signal")
    }

    fn name(&self) -> String {
        format!("{} {} (process {})", self.role.name(), self.id, self.child.id())
    }
}

impl Drop for ProcessSlot {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An auditor and the ends of its pipes.
struct Audit {
    process: ProcessSlot,
    questions: ChildStdin,
    answers: Receiver<String>,
}

/// All processes of a run.
pub(crate) struct Crowd<'a> {
    plan: &'a Plan,
    worker: &'a Worker,
    site: &'a Site,
    board: Board,
    messages: File,
    processes: Vec<ProcessSlot>,
    audit: Option<Audit>,
    /// The process groups of killed forkers, whose children may still live.
    orphans: Vec<Pid>,
    next_id: u64,
    epoch: u32,
}

impl<'a> Crowd<'a> {
    pub(crate) fn new(plan: &'a Plan, worker: &'a Worker, site: &'a Site) -> Result<Self> {
        let messages = OpenOptions::new().create(true).append(true).open(site.messages())?;
        let board = Board::create(&site.board())?;
        site.make_shared(&site.board())?;
        // Makes this process the reaper of the children of processes that are killed.
        set_child_subreaper(Some(getpid())).context("cannot become a reaper")?;
        Ok(Self {
            plan,
            worker,
            site,
            board,
            messages,
            processes: Vec::new(),
            audit: None,
            orphans: Vec::new(),
            next_id: 1,
            epoch: 0,
        })
    }

    pub(crate) fn started(&self) -> u64 {
        self.next_id - 1
    }

    /// Returns whether processes write concurrently.
    pub(crate) fn is_concurrent(&self) -> bool {
        self.plan.concurrent > 0
    }

    /// Begins a new file of acknowledgements. With the plan's settings, transactions in the old file may be
    /// lost.
    pub(crate) fn begin_epoch(&mut self) {
        self.epoch += 1;
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    fn command(&mut self, role: Role, slot: usize) -> Result<(Command, u64)> {
        let id = self.next_id;
        self.next_id += 1;
        let orders = Orders {
            role,
            parent: std::process::id(),
            slot: slot as u64,
            id,
            seed: self.plan.seed,
            acknowledge: self.plan.acknowledge,
            busy: self.plan.busy_timeout,
            board: self.site.board(),
            acks: self.site.acks(self.epoch),
            lane_acks: self.site.lane_acks(self.epoch),
            concurrent: self.is_concurrent(),
            log_dir: self.site.log_dir().to_owned(),
            autocheckpoint: self.plan.autocheckpoint,
            journal: self.plan.journal.clone(),
            uris: self.site.uris().to_vec(),
        };
        self.site.make_shared(&orders.acks)?;
        self.site.make_shared(&orders.lane_acks)?;
        let mut command = Command::new(self.site.program(&self.worker.program)?);
        if let Some((user, group)) = self.site.user(slot).filter(|_| role != Role::Auditor) {
            command.uid(user).gid(group);
        }
        if role == Role::Forker {
            // A forker's children stay in the forker's process group, even if they outlive the forker.
            command.process_group(0);
        }
        command.args(&self.worker.arguments).arg(orders.argument()?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DURALITE_") {
                command.env_remove(name);
            }
        }
        command.env("DURALITE_LOG", "stderr");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(self.messages.try_clone()?);
        Ok((command, id))
    }

    fn spawn(&self, mut command: Command, role: Role, id: u64) -> Result<ProcessSlot> {
        let program = self.worker.program.display();
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        Ok(ProcessSlot { child, role, id, stopped: false, dead: false, steps: 0, since: Instant::now() })
    }

    fn process_slot(&mut self, role: Role, slot: usize) -> Result<ProcessSlot> {
        let (command, id) = self.command(role, slot)?;
        self.spawn(command, role, id)
    }

    /// Starts a process for each role. No process of an earlier cast may be alive.
    pub(crate) fn start(&mut self, cast: &[Role]) -> Result<()> {
        self.processes.clear();
        for (slot, role) in cast.iter().enumerate() {
            let process = self.process_slot(*role, slot)?;
            self.processes.push(process);
        }
        // A keeper has an effect only once it is connected.
        for slot in (0..cast.len()).filter(|slot| cast[*slot] == Role::Keeper) {
            if !self.comes_to(slot, Phase::Ready, self.plan.hang)? {
                let what = format!("has not come to phase {:?} in {:?}", Phase::Ready, self.plan.hang);
                return Err(self.hangs(&self.processes[slot], &what));
            }
        }
        Ok(())
    }

    /// Starts a new process in the place of a killed one.
    pub(crate) fn replace(&mut self, slot: usize) -> Result<()> {
        let role = self.processes[slot].role;
        self.processes[slot] = self.process_slot(role, slot)?;
        Ok(())
    }

    /// Waits until the process is in this phase, but for at most [`AIM`]. A process that is not in this phase by then is
    /// killed wherever it is, which tests something too.
    pub(crate) fn aim(&mut self, slot: usize, moment: Phase) -> Result<()> {
        self.comes_to(slot, moment, AIM).map(drop)
    }

    /// Waits until the process is in this phase. Returns `false` if it is not within `limit`.
    fn comes_to(&mut self, slot: usize, wanted: Phase, limit: Duration) -> Result<bool> {
        let start = Instant::now();
        while start.elapsed() < limit {
            let entry = self.board.entry(slot)?;
            if entry.id == self.processes[slot].id && entry.phase == wanted {
                return Ok(true);
            }
            if start.elapsed() < Duration::from_millis(1) {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
                self.watch()?;
            }
        }
        Ok(false)
    }

    pub(crate) fn stop(&mut self, slot: usize) -> Result<()> {
        self.processes[slot].stopped = true;
        self.processes[slot].signal(Signal::STOP)
    }

    pub(crate) fn go_on(&mut self, slot: usize) -> Result<()> {
        self.processes[slot].since = Instant::now();
        self.processes[slot].stopped = false;
        self.processes[slot].signal(Signal::CONT)
    }

    /// Kills these processes at the same moment. Returns their roles.
    pub(crate) fn kill(&mut self, slots: &[usize]) -> Result<Vec<Role>> {
        // A process that has ended by itself has failed, and must not count as killed.
        self.watch()?;
        for slot in slots {
            self.processes[*slot].signal(Signal::KILL)?;
        }
        slots.iter().map(|slot| self.bury(*slot)).collect()
    }

    fn bury(&mut self, slot: usize) -> Result<Role> {
        use std::os::unix::process::ExitStatusExt as _;
        let process = &mut self.processes[slot];
        let status = process.child.wait().context("cannot wait for a process")?;
        if status.signal() != Some(Signal::KILL.as_raw()) {
            let name = process.name();
            return Err(self.ended(&name, status));
        }
        process.dead = true;
        if process.role == Role::Forker {
            self.orphans.push(Pid::from_child(&process.child));
        }
        Ok(process.role)
    }

    /// Reaps the children of killed forkers. Fails if one of them has failed by itself.
    fn reap_orphans(&mut self) -> Result<()> {
        let mut left = Vec::new();
        for group in std::mem::take(&mut self.orphans) {
            loop {
                match waitpgid(group, WaitOptions::NOHANG) {
                    Ok(Some((_, status))) => {
                        if Ended::of(status) == Ended::Badly {
                            return Err(self.failed(&format!("a child of process {group} failed")));
                        }
                    }
                    Ok(None) => {
                        left.push(group);
                        break;
                    }
                    Err(Errno::CHILD) => break,
                    Err(error) => return Err(error).context("cannot wait for a child"),
                }
            }
        }
        self.orphans = left;
        Ok(())
    }

    /// Waits until no child of a killed forker lives.
    fn await_orphans(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            self.reap_orphans()?;
            if self.orphans.is_empty() {
                return Ok(());
            }
            if start.elapsed() > self.plan.hang {
                bail!("hang: children of processes {:?}, which were killed, do not end", self.orphans);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills all processes and the auditor at the same moment. Returns their roles.
    pub(crate) fn wipe(&mut self, order: &[usize]) -> Result<Vec<Role>> {
        self.watch()?;
        for (place, slot) in order.iter().enumerate() {
            if place == order.len() / 2
                && let Some(audit) = &self.audit
            {
                audit.process.signal(Signal::KILL)?;
            }
            self.processes[*slot].signal(Signal::KILL)?;
            if self.processes[*slot].role == Role::Forker {
                let group = Pid::from_child(&self.processes[*slot].child);
                kill_process_group(group, Signal::KILL).context("cannot kill a group")?;
            }
        }
        for group in &self.orphans {
            // The group may be empty.
            let _ = kill_process_group(*group, Signal::KILL);
        }
        let mut roles = order.iter().map(|slot| self.bury(*slot)).collect::<Result<Vec<_>>>()?;
        self.processes.clear();
        self.await_orphans()?;
        // Dropping the auditor reaps it.
        roles.extend(self.audit.take().map(|_| Role::Auditor));
        Ok(roles)
    }

    /// Asks all processes to close their connections and end, and waits until they have ended.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.board.ask_to_end(true)?;
        let start = Instant::now();
        for slot in 0..self.processes.len() {
            loop {
                if let Some(status) = self.processes[slot].child.try_wait()? {
                    if !status.success() {
                        return Err(self.ended(&self.processes[slot].name(), status));
                    }
                    break;
                }
                if start.elapsed() > self.plan.hang {
                    return Err(self.hangs(&self.processes[slot], "does not end"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.processes.clear();
        self.await_orphans()?;
        self.audit = None;
        self.board.ask_to_end(false)
    }

    /// Fails if a process has ended by itself, or makes no progress.
    pub(crate) fn watch(&mut self) -> Result<()> {
        self.reap_orphans()?;
        for slot in 0..self.processes.len() {
            let process = &mut self.processes[slot];
            if process.dead {
                continue;
            }
            if let Some(status) = process.child.try_wait()? {
                let name = process.name();
                return Err(self.ended(&name, status));
            }
            let entry = self.board.entry(slot)?;
            let process = &mut self.processes[slot];
            if process.stopped || (entry.id == process.id && entry.steps != process.steps) {
                process.steps = entry.steps;
                process.since = Instant::now();
            } else if process.since.elapsed() > self.plan.hang {
                let what = format!("makes no progress, in phase {:?}", entry.phase);
                return Err(self.hangs(&self.processes[slot], &what));
            }
        }
        Ok(())
    }

    /// Returns an error for a process that has ended by itself. The error quotes the first failure that any
    /// process has reported, because later ones are its consequences.
    fn ended(&self, name: &str, status: ExitStatus) -> anyhow::Error {
        self.failed(&format!("{name} ended by itself ({status})"))
    }

    fn failed(&self, what: &str) -> anyhow::Error {
        let bytes = std::fs::read(self.site.messages()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let first = text.lines().position(|line| line.starts_with("failure: "));
        let reasons = text.lines().take(first.map_or(usize::MAX, |at| at + 1));
        let reasons: Vec<&str> = reasons.filter(|line| !line.trim().is_empty()).collect();
        // SQLite replaces the library's error by one of its own. The line before SQLite's error has the
        // library's reason, so this returns both lines.
        let last = reasons[reasons.len().saturating_sub(2)..].join("; ");
        anyhow::anyhow!("{what}: {last}")
    }

    fn hangs(&self, process: &ProcessSlot, what: &str) -> anyhow::Error {
        // Another process may be the reason, so write the stacks of all processes.
        for other in self.processes.iter().chain(self.audit.iter().map(|audit| &audit.process)) {
            if other.id != process.id {
                stacks::describe(other.child.id(), &self.site.path(&format!("stacks-{}", other.id)));
            }
        }
        let stacks = stacks::describe(process.child.id(), &self.site.path(&format!("stacks-{}", process.id)));
        anyhow::anyhow!("hang: {} {what}; {stacks}", process.name())
    }

    fn audit(&mut self) -> Result<&mut Audit> {
        if self.audit.is_none() {
            // The auditor gets a slot number above those of all other processes.
            let (mut command, id) = self.command(Role::Auditor, 1000)?;
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = self.spawn(command, Role::Auditor, id)?;
            let questions = process.child.stdin.take().context("no pipe")?;
            let output = process.child.stdout.take().context("no pipe")?;
            let (sender, answers) = channel();
            // The thread ends when the auditor closes its pipe, or when nobody receives the lines any more.
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
            self.audit = Some(Audit { process, questions, answers });
        }
        self.audit.as_mut().context("no auditor")
    }

    /// Sends the auditor a question, and watches the other processes until the auditor answers.
    ///
    /// # Errors
    /// The auditor has found a loss, or a process hangs.
    pub(crate) fn ask(&mut self, question: Question) -> Result<()> {
        let start = Instant::now();
        let audit = self.audit()?;
        // If the auditor has ended, the loop below notices.
        let _ = writeln!(audit.questions, "{}", serde_json::to_string(&question)?);
        loop {
            let audit = self.audit()?;
            match audit.answers.recv_timeout(GLANCE) {
                Ok(line) => {
                    let said: Result<Answer, _> = serde_json::from_str(&line);
                    return said.map(drop).with_context(|| format!("the auditor said {line}"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let (status, name) = (audit.process.child.wait()?, audit.process.name());
                    return Err(self.ended(&name, status));
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() > self.plan.hang => {
                    let what = format!("does not answer {question:?}");
                    let Some(audit) = &self.audit else { bail!("no auditor") };
                    return Err(self.hangs(&audit.process, &what));
                }
                Err(RecvTimeoutError::Timeout) => self.watch()?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed helper is a failed test

    use super::*;
    use crate::board::Note;
    use duralite_testkit::Engine;

    /// The keeper goes on working but does not connect, so it is not what the run needs.
    #[test]
    fn a_keeper_that_never_connects_fails_the_run() {
        let limit = Duration::from_millis(300);
        let plan = Plan { hang: limit, ..Plan::new(Engine::WALDIO, 1, 1) };
        let site = Site::new(&plan).unwrap();
        // The shell ignores the orders, which follow as its `$0`.
        let arguments = vec!["-c".into(), "exec sleep 60".into()];
        let worker = Worker { program: "/bin/sh".into(), arguments };
        let mut crowd = Crowd::new(&plan, &worker, &site).unwrap();
        let note = Note::open(&site.board(), 0, 1).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let begun = Instant::now();
                while begun.elapsed() < 2 * limit {
                    note.phase(Phase::Opening).unwrap();
                    std::thread::sleep(limit / 30);
                }
            });
            let error = crowd.start(&[Role::Keeper]).unwrap_err().to_string();
            assert!(error.contains("keeper 1") && error.contains("phase Ready"), "{error}");
        });
    }
}
