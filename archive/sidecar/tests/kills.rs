//! Writers, sidecars and S3 servers are killed at random moments. A restore that uses only the archive must have a
//! prefix of the committed transactions. With `replicated=on` it must have every acknowledged one.

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use duralite_testkit::{Actor, Engine, Ledger, Rng, for_seeds, one};

use crate::common::{FOR_EVER, Machine, NAME, Place, Sidecar, assert_equal, until};

/// Returns the number of rounds, summed over all engines. `make proof` asks for more rounds.
fn rounds() -> u64 {
    std::env::var("SIDECAR_KILLS").map_or(16, |rounds| rounds.parse().unwrap())
}

/// Returns the numbers that writers have recorded, beginning with the index `from`.
fn recorded(path: &Path, from: usize) -> Vec<i64> {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.as_chunks().0.iter().skip(from).map(|number| i64::from_le_bytes(*number)).collect()
}

/// Returns how many transactions a restored database has. Checks that these are the first committed transactions,
/// without a gap.
fn archived(place: &Place) -> i64 {
    let restored = place.restored(&[]);
    let conn = restored.open();
    match one::<i64>(&conn, "SELECT count(*) FROM sqlite_schema WHERE name = 'counter'") {
        0 => 0,
        _ => Ledger::prepare(&conn).unwrap().verify(&conn),
    }
}

/// How many writers, sidecars and servers the test has killed, and how many commits were acknowledged and committed
/// meanwhile.
#[derive(Default)]
struct Killed {
    writers: u64,
    sidecars: u64,
    servers: u64,
    acknowledged: i64,
    committed: i64,
}

/// A machine with a sidecar, and the place of its archive.
struct Scene {
    machine: Machine,
    place: Place,
    sidecar: Option<Sidecar>,
    killed: Killed,
}

impl Scene {
    /// Kills the sidecar, if it lives.
    fn kill_sidecar(&mut self) {
        if let Some(sidecar) = self.sidecar.take() {
            sidecar.kill();
            self.killed.sidecars += 1;
        }
    }

    fn start_sidecar(&mut self) {
        self.sidecar = Some(self.machine.sidecar(&self.place));
    }

    /// Kills the server, if the archive is on a server.
    fn kill_server(&mut self) {
        if let Some(server) = &mut self.place.server {
            server.kill();
            self.killed.servers += 1;
        }
    }

    fn start_server(&mut self) {
        if let Some(server) = &mut self.place.server {
            server.start_again();
        }
    }

    /// Kills the sidecar, the server or both while a writer commits, and starts them again.
    fn strike(&mut self, rng: &mut Rng) {
        let pause = Duration::from_millis(rng.below(100));
        match rng.below(3) {
            0 => {
                self.kill_sidecar();
                self.start_sidecar();
            }
            1 => {
                self.kill_server();
                std::thread::sleep(pause);
                self.start_server();
            }
            _ => {
                self.kill_server();
                std::thread::sleep(pause);
                self.kill_sidecar();
                self.start_sidecar();
                self.start_server();
            }
        }
    }

    /// Ends a round. Kills the writer, and perhaps also the sidecar and the server, in a random order. Starts the
    /// server again.
    fn end(&mut self, rng: &mut Rng, writer: Actor) {
        let (mut writer, mut order) = (Some(writer), vec![0, 1, 2]);
        order.rotate_left(rng.below(3) as usize);
        if rng.chance(2) {
            order.swap(0, 1);
        }
        for who in order {
            match who {
                0 => {
                    if let Some(writer) = writer.take() {
                        writer.kill();
                        self.killed.writers += 1;
                    }
                }
                1 if rng.chance(2) => self.kill_sidecar(),
                2 if rng.chance(2) => self.kill_server(),
                _ => continue,
            }
            std::thread::sleep(Duration::from_millis(rng.below(20)));
        }
        if self.place.server.is_some() {
            // If the server still runs, kill it too, so that each restore reads what a killed server has left.
            self.kill_server();
            self.start_server();
        }
    }
}

fn kill_and_restore(engine: Engine, seed: u64, settings: &str, rounds: u64) -> Killed {
    println!("{engine:?} seed {seed} {settings}");
    let mut rng = Rng::new(seed);
    let (machine, place) = (Machine::new(engine), Place::s3().unwrap_or_else(Place::new));
    let acknowledgements = machine.fixture.path("acknowledged");
    machine.session(&["CREATE TABLE first(x)"]);
    machine.once(&place);
    let uri = machine.fixture.uri(NAME, settings);
    let is_replicated = !settings.is_empty();
    let mut scene = Scene { machine, place, sidecar: None, killed: Killed::default() };
    let (mut had, mut acknowledged) = (0, 0);
    for round in 1..=rounds {
        scene.start_sidecar();
        let reopen_every = rng.below(3) * 5;
        let known = recorded(&acknowledgements, 0).len();
        let mut writer =
            Actor::start(&["write", &uri, acknowledgements.to_str().unwrap(), &reopen_every.to_string()]);
        if !rng.chance(5) {
            assert_eq!(writer.line(), "ready");
        }
        for _ in 0..rng.below(3) {
            std::thread::sleep(Duration::from_millis(rng.below(120)));
            scene.strike(&mut rng);
        }
        std::thread::sleep(Duration::from_millis(rng.below(200)));
        scene.end(&mut rng, writer);
        // A writer's first record is the number that it found when it started. The archive need not have that.
        let recorded = recorded(&acknowledgements, known + 1);
        scene.killed.acknowledged += recorded.len() as i64;
        acknowledged = recorded.last().copied().unwrap_or(0).max(acknowledged);
        let has = archived(&scene.place);
        assert!(has >= had, "{engine:?} seed {seed} round {round}: {has} transactions after {had}");
        if is_replicated {
            assert!(has >= acknowledged, "{engine:?} seed {seed} round {round}: {has} of {acknowledged}");
        }
        had = has;
        scene.kill_sidecar();
    }
    let Scene { machine, place, mut killed, .. } = scene;
    machine.session(&["SELECT 1"]);
    machine.once(&place);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("{engine:?} seed {seed}"));
    killed.committed = archived(&place);
    println!("{} transactions, {acknowledged} acknowledged, {:?}", killed.committed, place.lines());
    place.verify();
    killed
}

/// Kills processes on every engine, and prints a row for the table in `docs/fault-model.md`.
fn kills(what: &str, first_seed: u64, settings: &str) {
    let (began, engines) = (Instant::now(), Engine::all());
    let share = rounds().div_ceil(engines.len() as u64);
    let all = RefCell::new(Killed::default());
    for engine in &engines {
        for_seeds(1, |seed| {
            let killed = kill_and_restore(*engine, first_seed + seed, settings, share);
            let mut all = all.borrow_mut();
            all.writers += killed.writers;
            all.sidecars += killed.sidecars;
            all.servers += killed.servers;
            all.acknowledged += killed.acknowledged;
            all.committed += killed.committed;
        });
    }
    let Killed { writers, sidecars, servers, acknowledged, committed } = all.into_inner();
    println!(
        "| archive | deaths of writers, sidecars and S3 servers, {what} | {} rounds on {} engines: {writers} writers, {sidecars} sidecars, {servers} servers killed; {committed} commits in the archives, {acknowledged} of them acknowledged before a death, none lost | {} |",
        share * engines.len() as u64,
        engines.len(),
        began.elapsed().as_secs()
    );
}

#[test]
fn inv70_what_is_acknowledged_is_in_a_restore_whoever_dies() {
    kills("replicated=on", 0, FOR_EVER);
}

#[test]
fn a_restore_is_a_prefix_whoever_dies() {
    kills("replicated=off", 1000, "");
}

/// If a sidecar dies while it takes the first snapshot, the next sidecar begins anew.
#[test]
fn a_sidecar_that_dies_at_any_moment_of_its_first_snapshot_begins_again() {
    for_seeds(6, |seed| {
        let mut rng = Rng::new(seed);
        let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
        machine.session(&["CREATE TABLE t(x)", "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) INSERT INTO t SELECT randomblob(1000) FROM n"]);
        for _ in 0..4 {
            let sidecar = machine.sidecar(&place);
            std::thread::sleep(Duration::from_millis(rng.below(250)));
            sidecar.kill();
        }
        until("the database is busy", || {
            let output = machine.replicate(NAME, &place).arg("--once").output().unwrap();
            output.status.success()
        });
        assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("seed {seed}"));
    });
}
