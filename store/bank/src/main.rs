//! 16 threads make bank transfers until their process is killed. After recovery no acknowledged transfer is lost, and
//! the sum of all accounts is unchanged.
//!
//! ```text
//! cargo run --release -p duralite-bank [SECONDS]
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use duralite_store::{Options, Store, Table, Transaction};

const THREADS: u64 = 16;
const ACCOUNTS: u64 = 1000;
const BALANCE: i64 = 100;
/// The environment variable that tells the child process where the store is.
const BANK: &str = "DURALITE_STORE_BANK";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    if let Some(bank) = std::env::var_os(BANK) {
        return work(Path::new(&bank));
    }
    let seconds = std::env::args().nth(1).map_or(Ok(2.0), |seconds| seconds.parse::<f64>())?;
    let bank = std::env::temp_dir().join(format!("duralite-bank-{}", std::process::id()));
    let shown = show(&bank, seconds);
    std::fs::remove_dir_all(&bank)?;
    shown
}

fn show(bank: &PathBuf, seconds: f64) -> Result<()> {
    {
        let store = Store::open(bank, Options::default())?;
        let accounts = store.table("accounts")?;
        store.table("transfers")?;
        store.run(|tx| {
            (0..ACCOUNTS).try_for_each(|n| tx.put(&accounts, &n.to_be_bytes(), &BALANCE.to_le_bytes()))
        })?;
    }
    println!(
        "{ACCOUNTS} accounts with {BALANCE} each; {THREADS} threads transfer for {seconds} s, then kill -9"
    );
    let mut child = Command::new(std::env::current_exe()?).env(BANK, bank).stdout(Stdio::piped()).spawn()?;
    let acknowledged = acknowledgements(&mut child, Duration::from_secs_f64(seconds))?;

    let begun = Instant::now();
    let store = Store::open(bank, Options::default())?;
    println!("recovered in {:.3} s", begun.elapsed().as_secs_f64());
    let verified = store.verify()?;
    let (accounts, transfers) = (store.table("accounts")?, store.table("transfers")?);
    let tx = store.begin();
    let mut sum = 0;
    for row in tx.scan(&accounts, ..) {
        sum += number(&row?.1)?;
    }
    let mut lost = 0;
    for (thread, acknowledged) in (0_u64..).zip(&acknowledged) {
        let made = tx.get(&transfers, &thread.to_be_bytes())?.map_or(Ok(0), |value| number(&value))?;
        lost += (acknowledged - made).max(0);
    }
    tx.commit()?;
    println!("{} pages verified", verified.pages);
    println!("{} transfers were acknowledged, {lost} of them are lost", acknowledged.iter().sum::<i64>());
    println!("the accounts have {sum} together");
    if lost == 0 && sum == ACCOUNTS as i64 * BALANCE { Ok(()) } else { Err("something is lost".into()) }
}

/// Reads the child's lines, and kills the child after a while. Returns how many transfers of each thread were reported
/// durable.
fn acknowledgements(child: &mut std::process::Child, after: Duration) -> Result<Vec<i64>> {
    let mut acknowledged = vec![0; THREADS as usize];
    let begun = Instant::now();
    let output = child.stdout.take().ok_or("the child has no output")?;
    let mut is_killed = false;
    for line in BufReader::new(output).lines() {
        let line = line?;
        // The kill may have cut the last line off, so skip a line without its final dot.
        let Some((thread, count)) = line.strip_suffix('.').and_then(|line| line.split_once(' ')) else {
            continue;
        };
        if let Some(slot) = acknowledged.get_mut(thread.parse::<usize>()?) {
            *slot = count.parse()?;
        }
        if !is_killed && begun.elapsed() > after {
            is_killed = true;
            child.kill()?;
        }
    }
    child.wait()?;
    Ok(acknowledged)
}

fn number(bytes: &[u8]) -> Result<i64> {
    Ok(i64::from_le_bytes(bytes.try_into()?))
}

/// Does the work of the child process: makes transfers until the process is killed.
fn work(bank: &Path) -> Result<()> {
    let store = Store::open(bank, Options::default())?;
    let (accounts, transfers) = (store.table("accounts")?, store.table("transfers")?);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (store, accounts, transfers) = (&store, &accounts, &transfers);
                scope.spawn(move || teller(store, accounts, transfers, thread))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

fn teller(store: &Store, accounts: &Table, transfers: &Table, thread: u64) -> Result<()> {
    let mut state = thread + 1;
    let mut random = |below: u64| {
        // The generator SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 27)) % below
    };
    for count in 1_i64.. {
        let (from, to, amount) = (random(ACCOUNTS), random(ACCOUNTS), random(20) as i64);
        // If the transaction gives way in a deadlock, `run` repeats it. The transfer is durable when `run` returns.
        store.run(|tx| {
            add(tx, accounts, from, -amount)?;
            add(tx, accounts, to, amount)?;
            tx.put(transfers, &thread.to_be_bytes(), &count.to_le_bytes())
        })?;
        std::io::stdout().lock().write_all(format!("{thread} {count}.\n").as_bytes())?;
    }
    Ok(())
}

fn add(
    tx: &mut Transaction,
    accounts: &Table,
    account: u64,
    amount: i64,
) -> std::result::Result<(), duralite_store::Error> {
    let key = account.to_be_bytes();
    let value = tx.get_for_update(accounts, &key)?.unwrap_or_default();
    let old = value.try_into().map_or(0, i64::from_le_bytes);
    tx.put(accounts, &key, &(old + amount).to_le_bytes())
}
