//! Runs a second process for a test.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A process that runs `duralite-actor`. Dropping this value kills the process.
pub struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts an actor with a role and the role's arguments. The actor does not inherit the `DURALITE_`
    /// variables of this process's environment.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// Starts an actor as [`Actor::start`] does, with these environment variables.
    #[must_use]
    pub fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::spawn(Command::new(program()), arguments, environment)
    }

    fn spawn(mut command: Command, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DURALITE_") {
                command.env_remove(name);
            }
        }
        command.args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = loop {
            match command.spawn() {
                Ok(child) => break child,
                // The test has just copied the program. If another test has forked a child meanwhile, the
                // child keeps the copy open for writing until it runs its own program. So try again until it
                // does.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// Starts an actor with a connection. The actor runs the statements that the test sends.
    #[must_use]
    pub fn sql(uri: &str) -> Self {
        Self::start(&["sql", uri])
    }

    /// Starts an actor as [`Actor::sql`] does, under `strace`. `strace` writes all system calls to the file
    /// `calls`, with the paths of the descriptors. If `strace` is missing, prints a note and returns `None`.
    #[must_use]
    pub fn traced(uri: &str, calls: &Path) -> Option<Self> {
        if Command::new("strace").arg("-V").output().is_err() {
            eprintln!("skipped: there is no strace on this machine");
            return None;
        }
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-s", "200", "-o"]).arg(calls).arg(program());
        Some(Self::spawn(command, &["sql", uri], &[]))
    }

    /// Starts an actor as [`Actor::start`] does, but as another user. Copies the program into `dir`, where
    /// that user may run it.
    #[must_use]
    pub fn start_as(user: u32, dir: &Path, arguments: &[&str]) -> Self {
        let copy = dir.join("duralite-actor");
        if !copy.exists() {
            std::fs::copy(program(), &copy).unwrap();
        }
        let mut command = Command::new(copy);
        command.uid(user).gid(user).current_dir("/");
        Self::spawn(command, arguments, &[])
    }

    /// Runs one statement in the actor. Returns its rows, with `|` between columns and a space between rows,
    /// or the error.
    pub fn run(&mut self, sql: &str) -> String {
        self.tell(sql);
        self.line()
    }

    /// Runs a statement as [`Actor::run`] does. Returns `None` if the actor ends instead of answering.
    pub fn run_or_end(&mut self, sql: &str) -> Option<String> {
        writeln!(self.stdin.as_mut().unwrap(), "{sql}").ok()?;
        let mut line = String::new();
        self.stdout.read_line(&mut line).ok()?;
        line.strip_suffix('\n').map(str::to_owned)
    }

    /// Sends a statement to the actor. [`Actor::line`] returns the result.
    pub fn tell(&mut self, sql: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{}", sql.replace('\n', " ")).unwrap();
    }

    /// Returns the actor's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the actor has stopped itself with a signal.
    pub fn until_stopped(&self) {
        let stat = format!("/proc/{}/stat", self.child.id());
        let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
        while !is_stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the actor continue after it has stopped itself.
    pub fn go_on(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    }

    /// Returns the next line that the actor prints; empty when the actor has ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    /// Kills the actor with SIGKILL and waits until it has ended.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns whether the actor has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Closes the actor's input and waits until the actor exits.
    ///
    /// # Panics
    /// Panics if the actor fails.
    pub fn finish(mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "an actor failed: {status}");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // The actor may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of the program, which cargo builds one directory above the test programs.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().with_file_name("duralite-actor");
    assert!(program.exists(), "{} is not built", program.display());
    program
}
