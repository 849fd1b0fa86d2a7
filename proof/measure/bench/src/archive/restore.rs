//! Measures how fast a large database is restored, and how much memory it takes to replicate it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::memory::{self, Took};
use super::programs::{Programs, Server, command, url};
use super::proxy::Proxy;
use super::reached::objects;
use super::scale::{load_before, of_others, rounds};
use super::side::{Database, Side};
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::median;

/// The sizes of the databases in MB, if `--seconds` is at least 1. The benchmark restores the last of these databases.
const SIZES: [f64; 3] = [10.0, 100.0, 1000.0];
/// The number of commits to the restored database after its snapshot. Each becomes an object of its own.
const SMALL: u32 = 3000;
/// The time that the proxy adds to each request. Some rows of the table are measured through the proxy.
const ADDED: Duration = Duration::from_millis(20);
/// The number of bytes that are written at once.
const PIECE: usize = 1 << 20;
const PREFIX: &str = "restored";

/// Measures how fast Duralite and Litestream restore a large database from the same bucket. Also measures how much
/// memory they need to replicate databases of several sizes.
///
/// # Errors
/// An error of SQLite or of starting a program, or a restored database that differs from the original.
pub fn restore(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let Some(programs) = Programs::find()? else { return Ok(Vec::new()) };
    let load = load_before()?;
    let dir = tempfile::tempdir_in(dir)?;
    let server = Server::start(&programs, dir.path())?;
    let scale = effort.time.as_secs_f64().min(1.0);
    let mut memory = Table::new(
        "archive_memory",
        "Archive: memory by the size of the database",
        &["program", "MB of database", "most resident MiB", "wanted", "first snapshot s"],
    );
    let mut kept = None;
    for (nth, size) in SIZES.iter().enumerate() {
        let is_last = nth == SIZES.len() - 1;
        let made = dir.path().join("made.db");
        memory::make(&made, (size * scale * 1e6) as u64)?;
        let mb = std::fs::metadata(&made)?.len() as f64 / 1e6;
        for side in Side::all(&programs) {
            let database = Database::new(*side, dir.path())?;
            std::fs::copy(&made, &database.path)?;
            let is_kept = is_last && *side == Side::Duralite;
            let prefix = if is_kept {
                PREFIX.to_owned()
            } else {
                format!("memory-{nth}-{}", side.name().replace(' ', "-"))
            };
            let small = |_: &_| if is_kept { add_small_objects(&database) } else { Ok(()) };
            let Took { snapshot, most_mib } =
                memory::replicate((&programs, &server), &database, &prefix, small)
                    .with_context(|| format!("{}: {mb:.0} MB", side.name()))?;
            let wanted = if *side == Side::Duralite { "below 64" } else { "-" };
            memory.row([
                side.name().to_owned(),
                number(mb),
                number(most_mib),
                wanted.to_owned(),
                number(snapshot.as_secs_f64()),
            ]);
            if is_kept {
                kept = Some(database);
            } else {
                std::fs::remove_dir_all(server.files.join(&prefix))?;
            }
        }
        std::fs::remove_file(&made)?;
    }
    memory.note = format!(
        "Databases of orders, with an index. The most that was resident at any time of the first snapshot and 1,000 commits \
         that each change a random order, with what processes that it started have of their own. One run. {}",
        of_others(load)
    );
    let database = kept.context("no database was kept")?;
    let table = restores(&programs, &server, dir.path(), &database, effort, load)?;
    Ok(vec![table, memory])
}

/// Commits one transaction after the other, so that each becomes an object of its own.
fn add_small_objects(database: &Database) -> Result<()> {
    let conn = crate::concurrent::open(&database.uri("&replicated=on"))?;
    memory::change(&conn, SMALL, 2)?;
    conn.close().map_err(|(_, error)| error.into())
}

fn restores(
    programs: &Programs,
    server: &Server,
    dir: &Path,
    database: &Database,
    effort: Effort,
    load: f64,
) -> Result<Table> {
    let files = server.files.join(database.replica(PREFIX));
    // Meanwhile, compaction may have made objects of higher levels. A restore would read them instead of the small
    // objects, so remove them.
    for level in ["0001", "0002", "0003"] {
        if files.join(level).exists() {
            std::fs::remove_dir_all(files.join(level))?;
        }
    }
    let small = objects(&files.join("0000"))?.len();
    let mb = std::fs::metadata(&database.path)?.len() as f64 / 1e6;
    let stored = bytes_below(&files)? as f64 / 1e6;
    let sides = Side::all(programs);
    let proxy = Proxy::start(server.address, ADDED)?;
    let near: Vec<(Side, SocketAddr, u128)> = sides.iter().map(|side| (*side, server.address, 0)).collect();
    let far = sides.iter().map(|side| (*side, proxy.address, ADDED.as_millis()));
    let ways: Vec<_> = near.into_iter().chain(far).collect();
    let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let mut bound = Vec::new();
    for round in 0..rounds(effort) {
        bound.push(plain_write(dir, database)?);
        for turn in 0..ways.len() {
            let place = (round + turn) % ways.len();
            let (side, address, added) = ways[place];
            // A restore through the proxy takes long, because the proxy adds time to each request. The time hardly
            // varies, so one round suffices.
            if added > 0 && round > 0 {
                continue;
            }
            let out = dir.join("out.db");
            let (prefix, replica) = (url(PREFIX, address), url(&database.replica(PREFIX), address));
            let mut program = match (side, &programs.litestream) {
                (Side::Litestream, Some(litestream)) => {
                    let mut program = command(litestream);
                    program.arg("restore").arg("-o").arg(&out).arg(replica);
                    program
                }
                _ => {
                    let mut program = command(&programs.sidecar);
                    program.arg("restore").arg(prefix).arg(&out);
                    program
                }
            };
            rustix::fs::sync();
            let since = Instant::now();
            let done = program.output()?;
            seconds[place].push(since.elapsed().as_secs_f64());
            ensure!(done.status.success(), "{program:?}: {}", String::from_utf8_lossy(&done.stderr));
            ensure!(are_equal(&out, &database.path)?, "{} has restored something else", side.name());
            std::fs::remove_file(&out)?;
        }
    }
    let columns = ["what", "added ms", "s", "MB/s", "of Litestream's", "of the plain write", "wanted"];
    let mut table = Table::new("archive_restore", "Archive: restore of a large database", &columns);
    let bound = median(&bound);
    let plain = "plain write and fsync of as many bytes";
    table.row([plain, "-", &number(bound), &number(mb / bound), "-", "1.00x", "-"].map(str::to_owned));
    let medians: Vec<f64> = seconds.iter().map(median).collect();
    for ((side, _, added), took) in ways.iter().zip(&medians) {
        let litestreams =
            ways.iter().zip(&medians).find(|((side, _, of), _)| *side == Side::Litestream && of == added);
        let of = litestreams.map_or_else(|| "-".to_owned(), |(_, its)| format!("{:.2}x", its / took));
        table.row([
            side.name().replace("replicate", "restore"),
            added.to_string(),
            number(*took),
            number(mb / took),
            of,
            format!("{:.2}x", bound / took),
            if *side == Side::Duralite { "at least 3x" } else { "-" }.to_owned(),
        ]);
    }
    table.note = format!(
        "A database of {mb:.0} MB of orders with an index, as a snapshot and {small} objects of mostly one commit each behind \
         it, {stored:.0} MB in all, from versitygw on loopback. Both restore the same bucket, and what they make is compared \
         with the database. MB/s are of the database. The whole program, from its start to its end; both fsync what they \
         have made. Medians of {} rounds in turns with the plain write; one round with time added. {}",
        rounds(effort),
        of_others(load)
    );
    Ok(table)
}

/// Writes a file sequentially, with as many bytes as a database has, and makes it durable. Returns how many seconds
/// that took.
fn plain_write(dir: &Path, database: &Database) -> Result<f64> {
    let path = dir.join("plain");
    let mut from = File::open(&database.path)?;
    let mut piece = vec![0; PIECE];
    from.read_exact(&mut piece)?;
    let bytes = from.metadata()?.len();
    rustix::fs::sync();
    let since = Instant::now();
    let mut to = File::create(&path)?;
    for _ in 0..bytes / PIECE as u64 {
        to.write_all(&piece)?;
    }
    to.write_all(&piece[..(bytes % PIECE as u64) as usize])?;
    to.sync_all()?;
    let seconds = since.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(seconds)
}

fn are_equal(one: &PathBuf, other: &PathBuf) -> Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let bytes = one.metadata()?.len();
    if bytes != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut of_one, mut of_other) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(PIECE as u64) as usize;
        one.read_exact(&mut of_one[..len])?;
        other.read_exact(&mut of_other[..len])?;
        if of_one[..len] != of_other[..len] {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}

fn bytes_below(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { bytes_below(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}
