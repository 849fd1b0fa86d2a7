//! The sidecar needs as much memory for a large database as for a small one.

use duralite_testkit::{Engine, run};

use crate::common::{Machine, Place, assert_equal};

/// The largest amount of memory that the sidecar may need, in KiB.
const LIMIT: u64 = 64 << 10;

/// Returns the peak of a process's resident memory, in KiB.
fn most_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns a database of a hundred megabytes.
fn large() -> Machine {
    let machine = Machine::new(Engine::WALDIO);
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25000)";
    machine.session(&["CREATE TABLE t(x)", &format!("{rows} INSERT INTO t SELECT randomblob(3900) FROM n")]);
    machine
}

#[test]
fn a_database_of_a_hundred_megabytes_needs_less_than_64() {
    let (machine, place) = (large(), Place::new());
    let mut sidecar = machine.sidecar(&place);
    let conn = machine.open("");
    sidecar.until_archived(&conn);
    println!("{} KiB after the snapshot", most_memory(sidecar.pid()));
    for round in 0..20 {
        run(&conn, &format!("UPDATE t SET x = randomblob(3900) WHERE rowid % 20 = {round}")).unwrap();
    }
    sidecar.until_archived(&conn);
    println!("{} KiB after many commits", most_memory(sidecar.pid()));
    run(&conn, "UPDATE t SET x = randomblob(3900)").unwrap();
    sidecar.until_archived(&conn);
    let most = most_memory(sidecar.pid());
    println!("{most} KiB after a large one");
    assert!(most < LIMIT, "{most} KiB");
    sidecar.end_after(conn, &machine);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
}

/// The archive has only a snapshot. So when the sidecar starts, it compares the log with the snapshot.
#[test]
fn a_start_behind_a_snapshot_of_a_hundred_megabytes_needs_less_than_64() {
    let (machine, place) = (large(), Place::new());
    let conn = machine.open("");
    run(&conn, "UPDATE t SET x = randomblob(3900) WHERE rowid = 1").unwrap();
    let mut sidecar = machine.sidecar(&place);
    sidecar.until_archived(&conn);
    sidecar.kill();
    let mut sidecar = machine.sidecar(&place);
    sidecar.until_archived(&conn);
    let most = most_memory(sidecar.pid());
    println!("{most} KiB after the start");
    assert!(most < LIMIT, "{most} KiB");
    sidecar.end_after(conn, &machine);
    assert_eq!(place.lines(), ["first"]);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
}
