//! A proxy between the real sidecar and a real server makes the bucket unreachable or slow for a while, or loses
//! answers.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duralite_testkit::{Actor, Engine, Ledger, one, run, stock};

use crate::common::{FOR_EVER, Machine, NAME, Place, assert_equal, done, program, until};

/// What the proxy does to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storm {
    /// The proxy passes requests on.
    None,
    /// The proxy answers 503, and the requests do not reach the server.
    Unavailable,
    /// The requests arrive late, and their answers come late.
    Slow,
    /// The requests arrive, but every second answer is lost, because the proxy cuts the connection before the answer.
    LosesAnswers,
    /// All the storms above, one after the other.
    All,
}

/// What the proxy does to requests that list objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lists {
    /// The proxy passes lists on.
    Pass,
    /// The proxy will hold back the next request that lists objects.
    Hold,
    /// The proxy is holding back a request that lists objects, until the test lets such requests pass again.
    Held,
}

/// The present storm (one of the failures above), and the number of requests that the proxy got during it.
struct Weather {
    storm: Mutex<Storm>,
    lists: Mutex<Lists>,
    /// A part of a key. The proxy answers 404 to the next request for an object whose key contains it.
    gone: Mutex<Option<&'static str>>,
    met: AtomicU64,
    upstream: String,
}

/// A proxy between the sidecar and the server, with an address of its own.
struct Proxy {
    weather: Arc<Weather>,
    address: String,
}

impl Proxy {
    fn before(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let weather = Arc::new(Weather {
            storm: Mutex::new(Storm::None),
            lists: Mutex::new(Lists::Pass),
            gone: Mutex::new(None),
            met: AtomicU64::new(0),
            upstream: upstream.to_owned(),
        });
        let shared = Arc::clone(&weather);
        // The thread accepts connections as long as the test's process lives.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let weather = Arc::clone(&shared);
                // If either connection breaks, that is one more failure that the sidecar has to survive.
                std::thread::spawn(move || pass(client, &weather).is_ok());
            }
        });
        Self { weather, address }
    }

    fn set(&self, storm: Storm) {
        *self.weather.storm.lock().unwrap() = storm;
        self.weather.met.store(0, Ordering::Relaxed);
    }

    /// Returns the number of requests that came to the proxy during the present storm.
    fn met(&self) -> u64 {
        self.weather.met.load(Ordering::Relaxed)
    }
}

/// Passes one request to the server, and the answer back, if the present storm allows that. Then both connections end.
fn pass(mut client: TcpStream, weather: &Weather) -> std::io::Result<()> {
    let request = request_of(&mut client)?;
    let is_gone = weather.gone.lock().unwrap().take_if(|gone| {
        let line = String::from_utf8_lossy(&request[..request.len().min(1000)]).into_owned();
        line.lines().next().is_some_and(|line| line.starts_with("GET ") && line.contains(*gone))
    });
    if is_gone.is_some() {
        return client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    if String::from_utf8_lossy(&request[..request.len().min(1000)]).contains("list-type=2") {
        let lists = || *weather.lists.lock().unwrap();
        if lists() == Lists::Hold {
            *weather.lists.lock().unwrap() = Lists::Held;
        }
        until("no list passes", || lists() == Lists::Pass);
    }
    let nth = weather.met.fetch_add(1, Ordering::Relaxed);
    let storm = match *weather.storm.lock().unwrap() {
        Storm::All => [Storm::Unavailable, Storm::Slow, Storm::LosesAnswers][(nth / 2 % 3) as usize],
        storm => storm,
    };
    let late = Duration::from_millis(if storm == Storm::Slow { 200 } else { 0 });
    if storm == Storm::Unavailable {
        return client.write_all(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    std::thread::sleep(late / 2);
    let mut server = TcpStream::connect(&weather.upstream)?;
    server.write_all(&request)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    if storm == Storm::LosesAnswers && nth.is_multiple_of(2) {
        return client.shutdown(Shutdown::Both);
    }
    std::thread::sleep(late / 2);
    client.write_all(&answer)
}

/// Reads a whole request. Changes it, so that the server ends the connection after its answer.
fn request_of(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut request, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    let mut read = |request: &mut Vec<u8>| {
        let bytes = client.read(&mut piece)?;
        request.extend_from_slice(&piece[..bytes]);
        if bytes > 0 { Ok(()) } else { Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)) }
    };
    let head = loop {
        if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        read(&mut request)?;
    };
    let text = String::from_utf8_lossy(&request[..head]).into_owned();
    let field = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok();
    let length: usize = text.lines().find_map(field).unwrap_or(0);
    while request.len() < head + 4 + length {
        read(&mut request)?;
    }
    request.splice(head..head, *b"\r\nConnection: close");
    Ok(request)
}

/// Restores a database from nothing but the server's objects, and returns the rows of its table `hasty`.
fn rows_archived(place: &Place) -> Vec<i64> {
    let restored = place.restored(&[]);
    let rows = run(&restored.open(), "SELECT x FROM hasty ORDER BY x").unwrap();
    let number = |row: &Vec<rusqlite::types::Value>| match row[0] {
        rusqlite::types::Value::Integer(number) => number,
        ref other => panic!("{other:?}"),
    };
    rows.iter().map(number).collect()
}

/// Makes a storm of some seconds. Meanwhile one writer waits for the archive as long as it takes, and another one only
/// for a short time.
fn storm(engine: Engine, storm: Storm) {
    println!("{engine:?} {storm:?}");
    let (machine, Some(mut place)) = (Machine::new(engine), Place::s3()) else { return };
    let proxy = Proxy::before(place.server.as_ref().unwrap().address());
    place.proxy = Some(proxy.address.clone());
    machine.session(&["CREATE TABLE hasty(x INTEGER PRIMARY KEY)"]);
    let mut sidecar = machine.sidecar(&place);
    let conn = machine.open("");
    sidecar.until_archived(&conn);
    let acknowledgements = machine.fixture.path("acknowledged");
    let recorded = || std::fs::read(&acknowledgements).unwrap_or_default().len() / 8;
    let patient = machine.fixture.uri(NAME, FOR_EVER);
    let mut writer = Actor::start(&["write", &patient, acknowledgements.to_str().unwrap(), "0"]);
    assert_eq!(writer.line(), "ready");
    sidecar.until("nothing is written", || recorded() > 3);
    proxy.set(storm);
    let mut hasty = Actor::sql(&machine.fixture.uri(NAME, "replicated=on&replicated_timeout=300"));
    let (began, mut failed, mut acknowledged) = (Instant::now(), 0, Vec::new());
    for number in 1.. {
        if began.elapsed() > Duration::from_secs(4) && proxy.met() > 4 {
            break;
        }
        let said = hasty.run(&format!("INSERT INTO hasty VALUES({number})"));
        if said.contains("database is locked") {
            // The other writer has the WRITE lock, and this connection has no busy timeout. So nothing was committed.
        } else if said.starts_with("error") {
            let why = hasty.run("SELECT duralite_last_error()");
            assert!(why.starts_with("committed here, not in the archive"), "{why}");
            failed += 1;
        } else {
            acknowledged.push(number);
        }
        // Each acknowledged commit must be in the archive at the moment of its acknowledgement, and not only later.
        if number % 8 == 0 || storm == Storm::Slow && number % 3 == 0 {
            let has = rows_archived(&place);
            assert!(acknowledged.iter().all(|number| has.contains(number)), "{acknowledged:?}, {has:?}");
        }
    }
    println!("{} requests, {failed} failed, {} acknowledged", proxy.met(), acknowledged.len());
    // Only in `Storm::Unavailable` is the outcome certain: no request reaches the archive, so every commit fails to be
    // acknowledged. In the other storms the numbers depend on the speed of the machine.
    assert!(storm != Storm::Unavailable || failed > 0 && acknowledged.is_empty());
    proxy.set(Storm::None);
    let (before, has) = (recorded(), rows_archived(&place));
    assert!(acknowledged.iter().all(|number| has.contains(number)), "{acknowledged:?}, {has:?}");
    // The sidecar recovers by itself, and so do the writers that wait for it.
    sidecar.until("the writer does not go on", || recorded() > before + 3);
    hasty.finish();
    writer.kill();
    sidecar.until_archived(&conn);
    let rows: i64 = one(&conn, "SELECT count(*) FROM hasty");
    assert_eq!(rows, failed + acknowledged.len() as i64, "a commit that failed is here all the same");
    conn.close().unwrap();
    sidecar.until_plain(&machine);
    sidecar.end();
    let restored = place.restored(&[]);
    assert_equal(&restored.bytes, &machine.bytes(), &format!("{engine:?} {storm:?}"));
    let recorded = std::fs::read(&acknowledgements).unwrap();
    let newest = recorded.as_chunks().0.last().map_or(0, |number| i64::from_le_bytes(*number));
    let ledger = restored.open();
    assert!(Ledger::prepare(&ledger).unwrap().verify(&ledger) >= newest);
    assert_eq!(place.lines(), ["first"], "a storm costs no snapshot");
    place.verify();
}

#[test]
fn inv70_a_bucket_that_answers_503_for_a_while_is_waited_for() {
    storm(Engine::under_test(), Storm::Unavailable);
}

#[test]
fn inv70_a_bucket_that_is_slow_acknowledges_truly() {
    storm(Engine::under_test(), Storm::Slow);
}

#[test]
fn inv70_a_bucket_that_loses_answers_is_asked_again() {
    storm(Engine::under_test(), Storm::LosesAnswers);
}

#[test]
fn inv70_a_bucket_with_all_of_it_keeps_what_it_acknowledges() {
    storm(Engine::under_test(), Storm::All);
}

/// After a follower has listed the archive, an object that it needs is pruned before the follower fetches it.
#[test]
fn a_copy_lists_again_when_an_object_is_gone() {
    let (machine, Some(mut place)) = (Machine::new(Engine::under_test()), Place::s3()) else { return };
    let proxy = Proxy::before(place.server.as_ref().unwrap().address());
    place.proxy = Some(proxy.address.clone());
    machine.session(&["CREATE TABLE t(x)"]);
    machine.once(&place);
    let replica = machine.fixture.path("replica.db");
    let follow = || {
        let mut command = program();
        command.args(["follow", "--once", &place.url_of_sidecar()]).arg(&replica);
        command
    };
    done(&mut follow());
    machine.session(&["INSERT INTO t VALUES(1)"]);
    machine.once(&place);
    *proxy.weather.gone.lock().unwrap() = Some("/0000/");
    done(&mut follow());
    assert_eq!(*proxy.weather.gone.lock().unwrap(), None, "it was asked for");
    assert_eq!(one::<i64>(&stock(&replica), "SELECT count(*) FROM t"), 1);
}

/// A sidecar was killed while it uploaded a commit. The next sidecar has looked for later claims, and is about to list.
/// At this moment another machine takes the archive over, and only then does the upload arrive.
#[test]
fn inv66_what_a_sidecar_finds_after_a_takeover_is_not_acknowledged() {
    let (old, new) = (Machine::new(Engine::under_test()), Machine::new(Engine::under_test()));
    let Some(mut place) = Place::s3() else { return };
    let proxy = Proxy::before(place.server.as_ref().unwrap().address());
    place.proxy = Some(proxy.address.clone());
    old.session(&["CREATE TABLE t(x)"]);
    old.once(&place);
    let sidecar = old.sidecar(&place);
    let mut writer = Actor::sql(&old.fixture.uri(NAME, FOR_EVER));
    assert_eq!(writer.run("INSERT INTO t VALUES(1)"), "");
    writer.kill();
    sidecar.kill();
    let files = &place.server.as_ref().unwrap().files;
    let mut commits = std::fs::read_dir(files.join("archive/g0000000000000001/0000")).unwrap();
    let (upload, late) = (commits.next().unwrap().unwrap().path(), files.with_file_name("late"));
    assert!(commits.next().is_none(), "one commit");
    std::fs::rename(&upload, &late).unwrap();
    // No sidecar runs now, so none has announced itself in the log's shared memory.
    let conn = old.open("");
    assert_eq!(old.announced().position, 0);
    *proxy.weather.lists.lock().unwrap() = Lists::Hold;
    let mut sidecar = old.sidecar(&place);
    sidecar.until("nothing is listed", || *proxy.weather.lists.lock().unwrap() == Lists::Held);
    done(&mut new.promote(&place));
    std::fs::rename(&late, &upload).unwrap();
    *proxy.weather.lists.lock().unwrap() = Lists::Pass;
    assert!(sidecar.failed().contains("another is the primary"));
    assert_eq!(old.announced().position, 0, "the new primary has no such commit");
    conn.close().unwrap();
    assert_eq!(one::<i64>(&place.restored(&[]).open(), "SELECT count(*) FROM t"), 0);
}
