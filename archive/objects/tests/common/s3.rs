//! A real S3 server (versitygw) for one test. The test can kill it and start it again at the same address.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the server may take to start, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The credentials of the server. The programs under test take them from the environment, as users' programs do.
pub const CREDENTIALS: [(&str, &str); 3] =
    [("AWS_ACCESS_KEY_ID", "judge"), ("AWS_SECRET_ACCESS_KEY", "of-a-test"), ("AWS_REGION", "us-east-1")];

/// Returns the path of a program that `scripts/judges` has built.
pub fn judge(name: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../out/judges");
    let is_there = dir.join(format!("{name}.version")).exists();
    if !is_there {
        println!("skipped: {name} is not there; scripts/judges builds it");
        assert!(std::env::var_os("DURALITE_REQUIRE_RIGS").is_none(), "{name} is missing: run scripts/judges");
    }
    is_there.then(|| dir.join(name))
}

/// The server, with a bucket `bucket`. Dropping this value ends the server.
pub struct Server {
    program: PathBuf,
    /// The directory that holds the objects of the bucket as files.
    pub files: PathBuf,
    address: String,
    child: Option<Child>,
}

impl Server {
    /// Starts a server that keeps its buckets and its log in this directory.
    pub fn start(dir: &Path) -> Option<Self> {
        let program = judge("versitygw")?;
        let files = dir.join("buckets/bucket");
        std::fs::create_dir_all(&files).unwrap();
        // The server listens on a loopback address that only this process uses. So no other process takes the port
        // while the server is down.
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let address = TcpListener::bind((format!("127.{}.{b}.{c}", 64 | a & 63), 0)).unwrap();
        let address = address.local_addr().unwrap().to_string();
        let mut server = Self { program, files, address, child: None };
        server.start_again();
        Some(server)
    }

    /// Starts the server at its address, and waits until it answers.
    pub fn start_again(&mut self) {
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let [(_, access), (_, secret), _] = CREDENTIALS;
        let mut command = Command::new(&self.program);
        command.args(["--access", access, "--secret", secret, "--port", &self.address, "--quiet", "posix"]);
        // Each directory below this one is a bucket of the server.
        command.arg(self.files.with_file_name("")).stdin(Stdio::null());
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        let began = Instant::now();
        while TcpStream::connect(&self.address).is_err() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            let said = || std::fs::read_to_string(self.log()).unwrap_or_default();
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "no server: {ended:?}\n{}", said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the server, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error means that the server has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns the server's host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn log(&self) -> PathBuf {
        self.files.with_file_name("server.log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
