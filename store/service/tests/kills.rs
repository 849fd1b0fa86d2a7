//! Kills the service in the middle of requests, again and again. Everything that was confirmed to a client must be in
//! the store. Money must be neither made nor lost. A repeated transfer must be made only once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

const ACCOUNTS: u64 = 20;
const EACH: u64 = 1000;

/// A running service. Dropping this kills the service, without asking it to stop.
struct Service {
    child: Child,
    address: String,
}

impl Service {
    fn start(dir: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_duralite-kvserver"))
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").expect("it says where it listens").to_owned();
        Self { child, address }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the status and the body of the response, if one arrives.
fn ask(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}

fn balances(address: &str) -> HashMap<String, u64> {
    let (status, body) = ask(address, "GET", "/accounts?prefix=a", "").unwrap();
    assert_eq!(status, 200, "{body}");
    let Value::Array(rows) = serde_json::from_str(&body).unwrap() else { panic!("{body}") };
    rows.iter().map(|row| (row[0].as_str().unwrap().to_owned(), row[1].as_u64().unwrap())).collect()
}

/// Lets clients send transfers until enough were confirmed in this round, or until the service is gone. Each client
/// remembers which of its transfers were confirmed.
fn clients(
    address: &str,
    round: u64,
    told: &Mutex<Vec<Value>>,
    untold: &Mutex<Vec<Value>>,
    enough: &AtomicU64,
) {
    std::thread::scope(|scope| {
        for client in 0..4_u64 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(round * 16 + client);
                for n in 0.. {
                    let from = random.u64(0..ACCOUNTS);
                    let to = (from + random.u64(1..ACCOUNTS)) % ACCOUNTS;
                    let transfer = json!({
                        "id": format!("{round}-{client}-{n}"),
                        "from": format!("a{from}"), "to": format!("a{to}"), "amount": random.u64(1..20),
                    });
                    match ask(address, "POST", "/transfers", &transfer.to_string()) {
                        Some((201, _)) => {
                            told.lock().unwrap().push(transfer);
                            enough.fetch_add(1, Ordering::SeqCst);
                        }
                        Some((409 | 503, _)) => {}
                        Some(answer) => panic!("{answer:?}"),
                        None => {
                            untold.lock().unwrap().push(transfer);
                            return;
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn what_clients_were_told_survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path());
    for n in 0..ACCOUNTS {
        let path = format!("/accounts/a{n}?amount={EACH}");
        assert_eq!(ask(&service.address, "POST", &path, "").unwrap().0, 201);
        assert_eq!(ask(&service.address, "POST", &path, "").unwrap().0, 409);
    }
    assert_eq!(ask(&service.address, "GET", "/accounts/nobody", "").unwrap().0, 404);
    drop(service);
    let (told, untold) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    for round in 0..4 {
        let mut service = Service::start(dir.path());
        let enough = AtomicU64::new(0);
        let address = service.address.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| clients(&address, round, &told, &untold, &enough));
            while enough.load(Ordering::SeqCst) < 30 + round * 13 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            service.child.kill().unwrap();
        });
    }
    let service = Service::start(dir.path());
    // The service may or may not have made the transfers that it did not answer. After the test has repeated them, each
    // must have been made exactly once.
    for transfer in untold.lock().unwrap().drain(..) {
        let (status, body) = ask(&service.address, "POST", "/transfers", &transfer.to_string()).unwrap();
        assert!([200, 201, 409].contains(&status), "{body}");
        if status != 409 {
            told.lock().unwrap().push(transfer);
        }
    }
    let mut expected: HashMap<String, u64> = (0..ACCOUNTS).map(|n| (format!("a{n}"), EACH)).collect();
    let of = |value: &Value| value.as_str().unwrap().to_owned();
    let told = told.into_inner().unwrap();
    for transfer in &told {
        let amount = transfer["amount"].as_u64().unwrap();
        let more = expected.get_mut(&of(&transfer["to"])).unwrap();
        *more += amount;
        let less = expected.get_mut(&of(&transfer["from"])).unwrap();
        *less = less.wrapping_sub(amount);
    }
    assert!(told.len() > 100, "{} transfers", told.len());
    assert_eq!(balances(&service.address), expected);
    assert_eq!(balances(&service.address).values().sum::<u64>(), ACCOUNTS * EACH);
    // The mark file shows that the backup is complete.
    assert_eq!(ask(&service.address, "POST", "/backups/one", "").unwrap().0, 200);
    assert!(ask(&service.address, "GET", "/metrics", "").unwrap().1.contains("commits "));
    assert!(dir.path().join("backups/one/backup").exists());
}
