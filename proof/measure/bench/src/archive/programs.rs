//! Finds the programs that the benchmark measures, runs them, and says which resources they use.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The directory in which `scripts/judges` builds the programs of other projects.
const JUDGES: &str = "out/judges";
/// The time that a program may take to start, and to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// The credentials of the server, which only the programs of this measurement reach.
const CREDENTIALS: [(&str, &str); 3] =
    [("AWS_ACCESS_KEY_ID", "bench"), ("AWS_SECRET_ACCESS_KEY", "of-a-bench"), ("AWS_REGION", "us-east-1")];

/// The programs that the benchmark needs to measure the archive, and Litestream if it is there.
pub(super) struct Programs {
    pub(super) sidecar: PathBuf,
    server: PathBuf,
    pub(super) litestream: Option<PathBuf>,
    /// Litestream's version, or a note that Litestream is missing.
    pub(super) litestream_version: String,
}

impl Programs {
    /// Finds the programs, and names each missing one on standard error. Litestream may be missing. If any
    /// other program is missing, no measurement is possible, and the result is `None`.
    pub(super) fn find() -> Result<Option<Self>> {
        let beside = std::env::current_exe()?.with_file_name("duralite-archive");
        let dir = Path::new(JUDGES);
        let judge = |name: &str| {
            let program = dir.join(name);
            // The script makes the file with the version only when the program is complete.
            let is_there = dir.join(format!("{name}.version")).exists();
            if !is_there {
                eprintln!("{} is missing: scripts/judges builds it", program.display());
            }
            is_there.then_some(program)
        };
        let sidecar = beside.exists().then_some(beside.clone());
        if sidecar.is_none() {
            eprintln!("{} is missing: cargo build --release -p duralite-sidecar builds it", beside.display());
        }
        let (server, litestream) = (judge("versitygw"), judge("litestream"));
        let (Some(sidecar), Some(server)) = (sidecar, server) else {
            eprintln!("so nothing of the archive is measured");
            return Ok(None);
        };
        if litestream.is_none() {
            eprintln!("so the rows of Litestream are left out");
        }
        // This file has the program's name and version as Go writes them, such as
        // `github.com/x/litestream@v0.5.0`.
        let version = std::fs::read_to_string(dir.join("litestream.version")).unwrap_or_default();
        let version = version.trim().rsplit_once("@v").map_or("", |(_, version)| version);
        let litestream_version = match &litestream {
            Some(_) => format!("Litestream {version}"),
            None => "Litestream (it was missing)".to_owned(),
        };
        Ok(Some(Self { sidecar, server, litestream, litestream_version }))
    }
}

/// Returns a command with the credentials of the server. It inherits this process's environment without the
/// variables of Duralite, AWS and Litestream.
pub(super) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if ["DURALITE_", "AWS_", "LITESTREAM_"].iter().any(|start| name.to_string_lossy().starts_with(start))
        {
            command.env_remove(name);
        }
    }
    command.envs(CREDENTIALS).stdin(Stdio::null());
    command
}

/// The resources that a program has used.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) cpu_seconds: f64,
    /// The largest resident memory of the program in MiB. It is the peak of the program's own process, plus
    /// the memory that its child processes do not share with it.
    pub(super) most_mib: f64,
}

/// A program that runs until this process asks it to end.
pub(super) struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
    most_mib: f64,
}

impl Running {
    pub(super) fn start(name: &'static str, command: &mut Command, log: PathBuf) -> Result<Self> {
        let output = File::create(&log)?;
        let child = command.stdout(output.try_clone()?).stderr(output).spawn();
        Ok(Self { name, child: child.with_context(|| format!("start {name}"))?, log, most_mib: 0.0 })
    }

    /// Waits until `is_so` returns true, while the program runs.
    pub(super) fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        let since = Instant::now();
        while !is_so()? {
            if let Some(status) = self.child.try_wait()? {
                bail!("{what}: {} has ended, {status}\n{}", self.name, self.said());
            }
            ensure!(since.elapsed() < PATIENCE, "{what}: {}\n{}", self.name, self.said());
            self.look_at_memory();
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the last lines that the program has written.
    fn said(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn look_at_memory(&mut self) {
        let own = memory_kib(self.child.id(), &["VmHWM"]);
        // Child processes run the same program and share its file pages, so only their own memory counts.
        let of_child = |pid| memory_kib(pid, &["RssAnon", "RssShmem"]);
        let all = own + children(self.child.id()).into_iter().map(of_child).sum::<u64>();
        self.most_mib = self.most_mib.max(all as f64 / 1024.0);
    }

    pub(super) fn usage(&mut self) -> Result<Usage> {
        self.look_at_memory();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name of the program comes before these fields, in parentheses, and may contain blanks.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        // These fields are the times of the process itself, and of the processes for which it has waited,
        // each in user mode and in the kernel.
        let ticks: u64 =
            fields.split_whitespace().skip(11).take(4).filter_map(|f| f.parse::<u64>().ok()).sum();
        let cpu_seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Ok(Usage { cpu_seconds, most_mib: self.most_mib })
    }

    /// Asks the program to end, and waits until it has ended.
    pub(super) fn end(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let since = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(since.elapsed() < PATIENCE, "{} does not end\n{}", self.name, self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the sum of the fields `names` of a process's status in KiB; 0 if the process is gone.
fn memory_kib(pid: u32, names: &[&str]) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let figures =
        status.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| names.contains(name));
    figures.filter_map(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

/// Returns the processes that the threads of a process have started.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// An S3 server on loopback. It keeps its objects as files in a directory of its own.
pub(super) struct Server {
    /// The directory with the objects' files.
    pub(super) files: PathBuf,
    pub(super) address: SocketAddr,
    _running: Running,
    _dir: TempDir,
}

impl Server {
    pub(super) fn start(programs: &Programs, dir: &Path) -> Result<Self> {
        let dir = tempfile::tempdir_in(dir)?;
        let buckets = dir.path().join("buckets");
        // The server makes each directory a bucket.
        let files = buckets.join("bucket");
        std::fs::create_dir_all(&files)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let [(_, access), (_, secret), _] = CREDENTIALS;
        let mut command = command(&programs.server);
        command.args([
            "--access",
            access,
            "--secret",
            secret,
            "--port",
            &address.to_string(),
            "--quiet",
            "posix",
        ]);
        command.arg(&buckets);
        let mut running = Running::start("versitygw", &mut command, dir.path().join("server.log"))?;
        running.wait_until("the server does not start", || Ok(TcpStream::connect(address).is_ok()))?;
        Ok(Self { files, address, _running: running, _dir: dir })
    }
}

/// Returns the URL of a prefix in the server's bucket. `address` is the address of the server, or of a
/// proxy before it.
pub(super) fn url(prefix: &str, address: SocketAddr) -> String {
    format!("s3://bucket/{prefix}?endpoint=http://{address}&region=us-east-1")
}
