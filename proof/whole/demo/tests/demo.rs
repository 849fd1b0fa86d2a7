//! Runs the demonstration on a few rows, as a user would. The demonstration needs files in its own directory.
//! `cargo build -p duralite -p duralite-cli` must have built them.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_duralite-demo");
const MODES: [&str; 9] = [
    "stock WAL, log growing (cold)",
    "stock WAL, log recycled (warm)",
    "Duralite, nothing else set (waldio)",
    "Duralite nvwal",
    "Duralite nvwal, exclusive",
    "Duralite ppl",
    "Duralite scratchpad",
    "stock DELETE (rollback journal)",
    "Duralite scratchpad, DELETE",
];

fn in_directory(program: &Path, dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).env_remove("DURALITE_LIBRARY");
    // The kernel refuses to run the copied program as "busy" while a process has it open for writing. A child
    // that another thread has just forked may be such a process: it inherits the descriptor through which the
    // test wrote the copy. So the test tries again.
    loop {
        match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(10));
            }
            output => return output.unwrap(),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_run_shows_every_mode_and_leaves_the_chart_alone() {
    let dir = tempfile::tempdir().unwrap();
    let output = in_directory(Path::new(PROGRAM), dir.path(), &["--rows", "200", "--seed", "7"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));

    let (_, closing) = said.split_once("Figures from").unwrap();
    for mode in MODES {
        let start = format!("  {mode}  ");
        let lines: Vec<&str> = closing.lines().filter(|line| line.starts_with(&start)).collect();
        let [line] = lines[..] else { panic!("{mode}: {lines:?}") };
        let commits: u32 = line[start.len()..].split_whitespace().next().unwrap().parse().unwrap();
        assert!((64..=200).contains(&commits), "{line}");
    }
    assert_eq!(said.matches("acknowledged rows is there and equals that of the input").count(), 5, "{said}");
    assert_eq!(said.matches("file is not a database").count(), 5, "{said}");
    assert_eq!(said.matches("loaded): 200 rows, integrity_check ok").count(), 5, "{said}");

    let out = dir.path().join("out");
    let chart = std::fs::read_to_string(out.join("demo.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.trim_end().ends_with("</svg>"), "{chart}");
    assert!(MODES.iter().all(|mode| chart.contains(mode)), "{chart}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1, "databases are left");
}

#[test]
fn an_interrupt_ends_it_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.current_dir(dir.path()).args(["--rows", "1000000"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The program prints the directory of emulated memory after the first mode. In the next mode it kills a
    // process.
    let pool = lines.find_map(|line| Some(PathBuf::from(line.split_once("--nvram-dir ")?.1))).unwrap();
    assert!(pool.is_dir() && pool.starts_with("/dev/shm"), "{}", pool.display());
    assert!(lines.any(|line| line.contains("killed in the middle")));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    lines.for_each(drop);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("interrupted; nothing is left running"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(std::fs::read_dir(dir.path().join("out")).unwrap().count(), 0);
    assert!(!pool.exists(), "{}", pool.display());
}

#[test]
fn a_library_that_is_missing_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("duralite-demo");
    std::fs::copy(PROGRAM, &alone).unwrap();
    std::fs::write(dir.path().join("duralite"), "").unwrap();
    let output = in_directory(&alone, dir.path(), &["--rows", "200"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("libduralite.so is missing; run `make demo`") && said.lines().count() == 1,
        "{said}"
    );
    assert!(!dir.path().join("out").exists());
}

#[test]
fn wrong_usage_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let output = in_directory(Path::new(PROGRAM), dir.path(), &["--rows", "9"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--rows"), "{}", text(&output.stderr));
}

#[test]
fn a_child_says_what_it_cannot_open() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("nowhere/app.db");
    let arguments = ["insert", "nvwal", database.to_str().unwrap(), "/dev/shm", "10"];
    let output = in_directory(Path::new(PROGRAM), dir.path(), &arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("cannot open") && said.contains("nowhere/app.db") && output.stdout.is_empty(),
        "{said}"
    );
}
