//! A second process.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A `duralite-actor`, killed when dropped.
pub struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts an actor with a role and its arguments, without any setting from outside.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// As [`Actor::start`], with environment variables.
    #[must_use]
    pub fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DURALITE_") {
                command.env_remove(name);
            }
        }
        command.args(arguments).envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// An actor with a connection that runs what it is told.
    #[must_use]
    pub fn sql(uri: &str) -> Self {
        Self::start(&["sql", uri])
    }

    /// Runs one statement in the actor and returns its rows, with `|` between columns and a space
    /// between rows, or the error.
    pub fn run(&mut self, sql: &str) -> String {
        writeln!(self.stdin.as_mut().unwrap(), "{}", sql.replace('\n', " ")).unwrap();
        self.line()
    }

    /// The next line that the actor prints; empty when it has ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets it end by itself.
    ///
    /// # Panics
    /// When it fails.
    pub fn finish(mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "an actor failed: {status}");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, which cargo builds beside the directory of the test programs.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().with_file_name("duralite-actor");
    assert!(program.exists(), "{} is not built", program.display());
    program
}
