//! `duralite store`: each command on sound stores, on directories that are no store, and on a store that another
//! process has open.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use duralite_store::{Error, LogMedium, Options, Store};

struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes a store with two tables: one has a single row with unusual bytes, the other a thousand rows.
    fn store(&self, name: &str, options: Options) -> PathBuf {
        let store = Store::open(self.path(name), options).unwrap();
        let (odd, many) = (store.table("odd").unwrap(), store.table("many").unwrap());
        let put = |tx: &mut duralite_store::Transaction| -> Result<(), Error> {
            tx.put(&odd, b"\x00\t\n\\", &[0xff; 20_000])?;
            (0..1000_u32).try_for_each(|n| tx.put(&many, &n.to_be_bytes(), &n.to_le_bytes()))
        };
        store.run(put).unwrap();
        self.path(name)
    }

    /// Overwrites the middle of every page after the first space map.
    fn damage_pages(&self, name: &str) {
        let mut bytes = std::fs::read(self.path(name)).unwrap();
        // Recovery would repair the pages with their copies in the double-write area, so the test invalidates that
        // area.
        bytes[32_768..32_784].fill(0);
        let first = 32_768 / 8192 + 1 + 64 + 1;
        for page in bytes.chunks_exact_mut(8192).skip(first).filter(|page| page[..8] != [0; 8]) {
            page[4096..4112].fill(0x5a);
        }
        std::fs::write(self.path(name), bytes).unwrap();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    command.arg("store").args(arguments).env_remove("DURALITE_NVRAM_DIR").stdin(Stdio::null());
    command
}

/// Returns the exit status and the output.
fn said(output: Output) -> (i32, String) {
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn run(arguments: &[&str]) -> (i32, String) {
    said(command(arguments).output().unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs the command with this standard input.
fn run_with(arguments: &[&str], input: &[u8]) -> (i32, String) {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may end before it has read all of its input.
    drop(child.stdin.take().unwrap().write_all(input));
    said(child.wait_with_output().unwrap())
}

#[test]
fn info_tells_tables_and_log() {
    let fixture = Fixture::new();
    let store = fixture.store("s", Options::default());
    let (code, told) = run(&["info", text(&store)]);
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("many, odd"), "{told}");
    let (code, told) = run(&["info", "--json", text(&store)]);
    assert!(code == 0 && told.contains("\"many\""), "{told}");
}

#[test]
fn a_store_in_emulated_memory_stays_there() {
    let fixture = Fixture::new();
    let options = Options::default().log(LogMedium::Emulated);
    let store = fixture.store("s", options);
    let (code, told) = run(&["info", text(&store)]);
    assert!(code == 0 && told.contains("NVRAM"), "{told}");
    assert!(!store.join("log").exists());
}

#[test]
fn verify_says_what_is_sound_and_what_is_damaged() {
    let fixture = Fixture::new();
    let store = fixture.store("s", Options::default());
    let (code, told) = run(&["verify", text(&store)]);
    assert!(code == 0 && told.contains("sound"), "{told}");
    let (code, told) = run(&["verify", "--json", text(&store)]);
    assert!(code == 0 && told.contains("\"rows\": 1001"), "{told}");
    fixture.damage_pages("s/pages");
    let (code, told) = run(&["verify", text(&store)]);
    assert!(code == 1 && told.contains("damaged (page "), "{told}");
    let (code, told) = run(&["verify", "--json", text(&store)]);
    assert!(code == 1 && told.contains("\"sound\": false"), "{told}");
}

#[test]
fn a_log_that_is_damaged_in_its_middle_is_told_of_and_salvaged() {
    let fixture = Fixture::new();
    let (busy, crashed, out) = (fixture.path("busy"), fixture.path("crashed"), fixture.path("out"));
    let store = Store::open(&busy, Options::default()).unwrap();
    let table = store.table("t").unwrap();
    for n in 0..100_u8 {
        store.run(|tx| tx.put(&table, &[n], &[n])).unwrap();
    }
    // The store is still open, so this copy of its files is what a crash would leave.
    std::fs::create_dir(&crashed).unwrap();
    for name in ["pages", "log"] {
        std::fs::copy(busy.join(name), crashed.join(name)).unwrap();
    }
    let mut log = std::fs::read(crashed.join("log")).unwrap();
    // The log begins with its header and slots (12288 bytes). Each commit then takes one block of 4096 bytes.
    let middle = 12288 + 50 * 4096;
    assert_ne!(log[middle..middle + 4096], [0; 4096]);
    log[middle..middle + 4096].fill(0);
    std::fs::write(crashed.join("log"), log).unwrap();
    let (code, told) = run(&["verify", text(&crashed)]);
    let range = format!("bytes {middle} to {}", middle + 4096);
    assert!(code == 1 && told.contains(&range) && told.contains("duralite store salvage"), "{told}");
    assert!(told.contains("transactions of the log before it can be saved"), "{told}");
    let (code, told) = run(&["salvage", text(&crashed), text(&out)]);
    assert!(code == 0 && told.contains("lost: "), "{told}");
    assert_eq!(run(&["verify", text(&out)]).0, 0);
    let (code, told) = run(&["salvage", "--json", text(&out), text(&fixture.path("again"))]);
    assert!(code == 1 && told.contains("is not damaged"), "{told}");
}

#[test]
fn a_dump_loaded_is_the_same_store() {
    let fixture = Fixture::new();
    let store = fixture.store("s", Options::default());
    let (code, dump) = run(&["dump", text(&store)]);
    assert_eq!(code, 0, "{dump}");
    assert_eq!(dump.lines().count(), 1003);
    let again = fixture.path("again");
    let (code, told) = run_with(&["load", text(&again)], dump.as_bytes());
    assert!(code == 0 && told == "1001 rows loaded\n", "{told}");
    assert_eq!(run(&["dump", text(&again)]), (0, dump.clone()));
    // If the user loads the rows again, existing rows stay, unless the user asks to replace them.
    let (code, told) = run_with(&["load", text(&again)], dump.as_bytes());
    assert!(code == 1 && told.contains("--replace"), "{told}");
    let (code, told) = run_with(&["load", "--replace", text(&again)], dump.as_bytes());
    assert_eq!(code, 0, "{told}");
}

#[test]
fn a_dump_of_a_table_goes_to_a_file() {
    let fixture = Fixture::new();
    let store = fixture.store("s", Options::default());
    let file = fixture.path("dump");
    let arguments = ["dump", text(&store), "--table", "odd", "--output", text(&file)];
    let (code, told) = run(&arguments);
    assert!(code == 0 && told.starts_with("1 rows of 1 tables"), "{told}");
    assert!(std::fs::read_to_string(&file).unwrap().ends_with("# rows: 1\n"));
    // `dump` overwrites no file.
    assert_eq!(run(&arguments).0, 1);
    let (code, told) = run(&["dump", text(&store), "--table", "none"]);
    assert!(code == 1 && told.contains("there is no table none; there are: many, odd"), "{told}");
    assert_eq!(run(&["dump", "--json", text(&store)]).0, 1);
}

#[test]
fn what_is_no_whole_dump_is_refused() {
    let fixture = Fixture::new();
    let store = fixture.path("s");
    let (code, told) = run_with(&["load", text(&store)], b"hello\n");
    assert!(code == 1 && told.contains("is not a dump"), "{told}");
    assert!(!store.exists());
    let first = "# duralite store dump 1\n";
    for (rest, reason) in [
        ("t\tk\tv\n", "cut off"),
        ("t\tk\tv\n# rows: 2\n", "has 1"),
        ("t\tk\\\tv\n# rows: 1\n", "line 2"),
        ("t\tk\tv", "in the middle of line 2"),
    ] {
        let (code, told) =
            run_with(&["load", "--replace", text(&store)], format!("{first}{rest}").as_bytes());
        assert!(code == 1 && told.contains(reason), "{rest:?}: {told}");
    }
    let (code, told) = run(&["load", text(&store), text(&fixture.path("none"))]);
    assert!(code == 1 && told.contains("opening"), "{told}");
}

#[test]
fn a_backup_is_restored_to_a_moment() {
    let fixture = Fixture::new();
    let archive = fixture.path("archive");
    let options = || Options::default().archive(archive.clone());
    let dir = fixture.store("s", options());
    let (backup, place) = (fixture.path("backup"), text(&dir));
    let (code, told) = run(&["backup", "--archive", text(&archive), "--json", place, text(&backup)]);
    assert_eq!(code, 0, "{told}");
    let (_, number) = told.split_once("\"last\": ").unwrap();
    let last: u64 = number.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    {
        let store = Store::open(&dir, options()).unwrap();
        let table = store.table("odd").unwrap();
        store.run(|tx| tx.put(&table, b"later", b"1")).unwrap();
    }
    let lsn = last.to_string();
    for (name, to, wanted) in [("now", None, "later"), ("then", Some(lsn.as_str()), "")] {
        let to_dir = fixture.path(name);
        let mut arguments = vec!["restore", text(&backup), text(&to_dir), "--from-archive", text(&archive)];
        arguments.extend(to.iter().flat_map(|to| ["--to", to]));
        let (code, told) = run(&arguments);
        assert_eq!(code, 0, "{told}");
        let (code, dump) = run(&["dump", text(&to_dir)]);
        assert_eq!((code, dump.contains("later")), (0, !wanted.is_empty()), "{name}");
    }
    // The command refuses three things: to restore into an existing store, to restore from a directory that is no
    // backup, and to restore to an invalid moment.
    assert_eq!(run(&["restore", text(&backup), place]).0, 1);
    let (code, told) = run(&["restore", place, text(&fixture.path("new"))]);
    assert!(code == 1 && told.contains("is not a backup"), "{told}");
    assert_eq!(run(&["restore", text(&backup), text(&fixture.path("new")), "--to", "soon"]).0, 2);
    assert_eq!(run(&["backup", place, text(&backup)]).0, 1);
}

#[test]
fn a_directory_that_is_no_store_is_left_as_it_is() {
    let fixture = Fixture::new();
    let (empty, other, none) = (fixture.path("empty"), fixture.path("other"), fixture.path("none"));
    std::fs::create_dir(&empty).unwrap();
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("letter"), "dear").unwrap();
    let backup = fixture.path("backup");
    for dir in [&empty, &other, &none] {
        for arguments in [
            vec!["info", text(dir)],
            vec!["verify", text(dir)],
            vec!["dump", text(dir)],
            vec!["backup", text(dir), text(&backup)],
        ] {
            let (code, told) = run(&arguments);
            assert!(code == 1 && told.contains("is not a store"), "{arguments:?}: {told}");
        }
    }
    assert!(!none.exists() && !backup.exists());
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    let (code, told) = run_with(&["load", text(&other)], b"# duralite store dump 1\n# rows: 0\n");
    assert!(code == 1 && told.contains("is not a store"), "{told}");
}

#[test]
fn a_store_that_is_open_is_refused_with_who_has_it() {
    let fixture = Fixture::new();
    let dir = fixture.store("s", Options::default());
    let open = Store::open(&dir, Options::default()).unwrap();
    let backup = fixture.path("backup");
    for arguments in [
        vec!["info", text(&dir)],
        vec!["verify", text(&dir)],
        vec!["dump", text(&dir)],
        vec!["backup", text(&dir), text(&backup)],
    ] {
        let (code, told) = run(&arguments);
        let holder = format!("process {}", std::process::id());
        assert!(code == 1 && told.contains(&holder), "{arguments:?}: {told}");
    }
    let (code, told) = run_with(&["load", text(&dir)], b"# duralite store dump 1\n# rows: 0\n");
    assert!(code == 1 && told.contains("in use by"), "{told}");
    drop(open);
    assert_eq!(run(&["info", text(&dir)]).0, 0);
}

#[test]
fn wrong_usage_ends_with_2_and_help_names_every_command() {
    for arguments in [
        vec![],
        vec!["info"],
        vec!["frob", "x"],
        vec!["verify", "a", "b"],
        vec!["backup", "a"],
        vec!["restore", "a"],
        vec!["dump", "a", "--what"],
    ] {
        assert_eq!(run(&arguments).0, 2, "{arguments:?}");
    }
    let (code, told) = run(&["--help"]);
    assert_eq!(code, 0);
    for name in ["info", "verify", "dump", "load", "bench", "backup", "restore"] {
        assert!(told.contains(name), "{told}");
    }
}
