//! Runs transactions on lists and registers. The transactions append to lists, write registers, and look for
//! registers that have a given tag.
//!
//! A list is a text of numbers in one row. A register is a row with a number. The row's `tag` column, which
//! has an index, is that number modulo `TAGS`. Other rows, the noise, lie between the lists and registers, so
//! that lists and registers are spread over many pages.

use duralite_histories::{Fate, Last, Op, Property, commits, ended};
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::report::now;
use super::session::{Overtaken, Session, step};
use crate::Rng;

/// The tables and the index.
pub const LISTS_SCHEMA: &str = "
    CREATE TABLE lists(k INTEGER PRIMARY KEY, v TEXT NOT NULL);
    CREATE TABLE registers(k INTEGER PRIMARY KEY, v INTEGER NOT NULL, tag INTEGER);
    CREATE INDEX registers_tag ON registers(tag);
    CREATE TABLE noise(k INTEGER PRIMARY KEY, v BLOB NOT NULL);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
    INSERT INTO lists SELECT i, printf('%.*c', 300 + i * 37 % 500, 'x') FROM n WHERE i % :spread <> 0;
    INSERT INTO registers SELECT k, k, -1 - k / 8 FROM lists;";

/// The number of different tags. A value's tag is the value modulo this number.
const TAGS: u64 = 4;

/// Returns the lists and registers as the connection sees them now.
///
/// # Errors
/// An error of SQLite.
pub fn read_lists(conn: &Connection, spread: u64) -> Result<Last, Error> {
    let mut last = Last::default();
    let mut all = conn.prepare("SELECT k, v FROM lists WHERE k % ?1 = 0")?;
    for row in all.query_map([signed(spread)], |row| Ok((number(row, 0)?, row.get::<_, String>(1)?)))? {
        let (key, text) = row?;
        last.lists.insert(key / spread, elements(&text));
    }
    let mut all = conn.prepare("SELECT k, v, tag FROM registers WHERE k % ?1 = 0")?;
    for row in
        all.query_map([signed(spread)], |row| Ok((number(row, 0)?, number(row, 1)?, number(row, 2)?)))?
    {
        let (key, value, tag) = row?;
        assert_eq!(tag, value % TAGS, "register {key}");
        last.registers.insert(key / spread, value);
    }
    Ok(last)
}

fn signed(number: u64) -> i64 {
    number.try_into().unwrap()
}

fn number(row: &Row<'_>, column: usize) -> Result<u64, Error> {
    Ok(row.get::<_, i64>(column)?.try_into().unwrap())
}

fn elements(text: &str) -> Vec<u64> {
    text.split(',').filter(|one| !one.is_empty()).map(|one| one.parse().unwrap()).collect()
}

pub fn run(mut session: Session<'_>) {
    for _ in 0..session.plan.transactions {
        match session.rng.below(8) {
            0 => single_statement(&mut session),
            1 if !session.reads_outside() => snapshot(&mut session),
            _ => transaction(&mut session),
        }
        session.between();
    }
}

/// Runs a single statement outside `BEGIN` and `COMMIT`. The statement is a transaction of its own.
fn single_statement(session: &mut Session<'_>) {
    let (number, begin) = (session.fresh(), now());
    if session.rng.chance(2) {
        if let Ok(op) = read(session, &[]) {
            tell(session, number, begin, &[op], Fate::Committed, now());
        }
        return;
    }
    let (key, element) = (session.rng.below(session.plan.keys), session.fresh());
    let ops = [Op::Append(key, element)];
    // From here on the transaction may be committed, even if the process dies before it reports the end. So
    // the session reports the transaction now.
    session.report.tell(&commits(number, begin, &ops));
    let done = append(session, key, element);
    let fate = done.map_or(Fate::Aborted, |()| Fate::Committed);
    session.report.tell(&ended(number, fate, now()));
}

/// Runs a transaction that only reads.
fn snapshot(session: &mut Session<'_>) {
    let (number, begin) = (session.fresh(), now());
    session.execute("BEGIN").unwrap();
    let mut ops = Vec::new();
    for _ in 0..1 + session.rng.below(4) {
        match read(session, &[]) {
            Ok(op) => ops.push(op),
            Err(Overtaken) => break,
        }
        session.pause();
    }
    let (_, end) = session.commit();
    tell(session, number, begin, &ops, Fate::Committed, end);
}

/// Runs a transaction of up to six operations.
fn transaction(session: &mut Session<'_>) {
    let (number, begin) = (session.fresh(), now());
    let is_immediate = !session.reads_outside() && session.rng.chance(4);
    if session.execute(if is_immediate { "BEGIN IMMEDIATE" } else { "BEGIN" }).is_err() {
        return;
    }
    let mut ops = Vec::new();
    let mut done = Ok(());
    for _ in 0..1 + session.rng.below(6) {
        done = if session.rng.chance(12) {
            taken_back(session, begin, &mut ops)
        } else {
            operation(session, &mut ops)
        };
        if done.is_err() {
            break;
        }
        session.pause();
    }
    if done.is_err() || session.rng.chance(12) {
        session.roll_back();
        return tell(session, number, begin, &ops, Fate::Aborted, now());
    }
    // From here on the transaction may be committed, even if the process dies before it reports the end. So
    // the session reports the transaction now.
    session.report.tell(&commits(number, begin, &ops));
    let (is_there, end) = session.commit();
    let fate = if is_there { Fate::Committed } else { Fate::Aborted };
    session.report.tell(&ended(number, fate, end));
}

fn tell(session: &Session<'_>, number: u64, begin: u64, ops: &[Op], fate: Fate, end: u64) {
    session.report.tell(&(commits(number, begin, ops) + &ended(number, fate, end)));
}

/// Sets a savepoint, runs some operations, and rolls back to the savepoint. Reports the writes of these
/// operations as a transaction of their own that aborted.
fn taken_back(session: &mut Session<'_>, begin: u64, ops: &mut Vec<Op>) -> Result<(), Overtaken> {
    session.execute("SAVEPOINT inner")?;
    let mut inside = ops.clone();
    let mut done = Ok(());
    for _ in 0..1 + session.rng.below(3) {
        done = operation(session, &mut inside);
        if done.is_err() {
            break;
        }
    }
    let inside = &inside[ops.len()..];
    let (number, written) = (session.fresh(), inside.iter().filter(|op| !op.is_read()));
    tell(session, number, begin, &written.cloned().collect::<Vec<_>>(), Fate::Aborted, now());
    // A read after the first write may have seen that write, which is rolled back. So only the reads before
    // the first write belong in `ops`.
    ops.extend(inside.iter().take_while(|op| op.is_read()).cloned());
    done?;
    session.execute("ROLLBACK TO inner; RELEASE inner")
}

/// Runs one operation of a transaction and appends it to `ops`. Appends a write before running it, because a
/// write may take effect even if it fails.
fn operation(session: &mut Session<'_>, ops: &mut Vec<Op>) -> Result<(), Overtaken> {
    let key = session.rng.below(session.plan.keys);
    if session.reads_outside() {
        return torn(session, key, ops);
    }
    match session.rng.below(10) {
        0..=1 => {
            let element = session.fresh();
            ops.push(Op::Append(key, element));
            append(session, key, element)
        }
        2 => {
            let seen = read_list(session, key)?;
            let element = session.fresh();
            let mut text = String::new();
            if let Op::Read(_, seen) = &seen {
                text.extend(seen.iter().chain([&element]).map(|element| format!(",{element}")));
            }
            ops.extend([seen, Op::Append(key, element)]);
            set_list(session, key, &text)
        }
        3..=4 => {
            // Before the session writes a register with an even number, it always reads that register. So the
            // order of the register's values is known.
            if key.is_multiple_of(2) || session.rng.chance(2) {
                ops.push(look(session, key)?);
            }
            let value = session.fresh();
            ops.push(Op::Write(key, value));
            write(session, key, value)
        }
        5 => noise(session),
        _ => {
            ops.push(read(session, ops)?);
            Ok(())
        }
    }
}

/// Runs one operation of a transaction whose reads go through a second connection. The second connection does
/// not see what the transaction has written, and each of its reads may see newer values. So the transaction
/// uses each key only once. Then each single read is right, but the reads together do not come from one
/// snapshot.
fn torn(session: &mut Session<'_>, key: u64, ops: &mut Vec<Op>) -> Result<(), Overtaken> {
    let uses = |op: &Op| matches!(op, Op::Append(of, _) | Op::Read(of, _) | Op::Write(of, _) | Op::Look(of, _) if *of == key);
    if ops.iter().any(uses) {
        return Ok(());
    }
    let is_list = session.rng.chance(2);
    ops.push(if is_list { read_list(session, key)? } else { look(session, key)? });
    if session.rng.chance(2) {
        return Ok(());
    }
    session.pause();
    let number = session.fresh();
    if is_list {
        ops.push(Op::Append(key, number));
        append(session, key, number)
    } else {
        ops.push(Op::Write(key, number));
        write(session, key, number)
    }
}

fn append(session: &Session<'_>, key: u64, element: u64) -> Result<(), Overtaken> {
    let sql = "INSERT INTO lists VALUES(?1, ',' || ?2) ON CONFLICT(k) DO UPDATE SET v = v || excluded.v";
    let row = signed(key * session.plan.spread);
    step(|| session.conn.prepare_cached(sql)?.execute([row, signed(element)])).map(drop)
}

fn set_list(session: &Session<'_>, key: u64, text: &str) -> Result<(), Overtaken> {
    let sql = "INSERT INTO lists VALUES(?1, ?2) ON CONFLICT(k) DO UPDATE SET v = excluded.v";
    let row = signed(key * session.plan.spread);
    step(|| session.conn.prepare_cached(sql)?.execute(params![row, text])).map(drop)
}

fn write(session: &Session<'_>, key: u64, value: u64) -> Result<(), Overtaken> {
    let sql = "INSERT INTO registers VALUES(?1, ?2, ?3)
               ON CONFLICT(k) DO UPDATE SET v = excluded.v, tag = excluded.tag";
    let row = signed(key * session.plan.spread);
    step(|| session.conn.prepare_cached(sql)?.execute([row, signed(value), signed(value % TAGS)])).map(drop)
}

/// Changes rows that the judge does not check. These changes allocate pages and free them.
fn noise(session: &mut Session<'_>) -> Result<(), Overtaken> {
    let (row, bytes) = (session.rng.below(40), session.rng.below(9000));
    let sql = if session.rng.chance(3) {
        format!("DELETE FROM noise WHERE k = {row}")
    } else {
        format!("INSERT OR REPLACE INTO noise VALUES({row}, randomblob({bytes}))")
    };
    session.execute(&sql)
}

/// Reads a random key, and prefers one that the transaction has used before.
fn read(session: &mut Session<'_>, ops: &[Op]) -> Result<Op, Overtaken> {
    let keys = session.plan.keys;
    let key = match ops.last() {
        Some(Op::Read(key, _) | Op::Look(key, _)) if session.rng.chance(3) => *key,
        _ => session.rng.below(keys),
    };
    match session.rng.below(8) {
        0..=2 => read_list(session, key),
        3..=5 => look(session, key),
        6 => {
            let (from, to) = range(&mut session.rng, keys);
            scan(session, from, to)
        }
        _ => {
            let remainder = session.rng.below(TAGS);
            find(session, Property { from: 0, to: keys, divisor: TAGS, remainder })
        }
    }
}

fn range(rng: &mut Rng, keys: u64) -> (u64, u64) {
    let from = rng.below(keys);
    (from, from + 1 + rng.below(keys - from))
}

fn read_list(session: &Session<'_>, key: u64) -> Result<Op, Overtaken> {
    let sql = "SELECT v FROM lists WHERE k = ?1";
    let row = signed(key * session.plan.spread);
    let text: Option<String> =
        step(|| session.reader().prepare_cached(sql)?.query_row([row], |row| row.get(0)).optional())?;
    Ok(Op::Read(key, text.map_or(Vec::new(), |text| elements(&text))))
}

fn look(session: &Session<'_>, key: u64) -> Result<Op, Overtaken> {
    let sql = "SELECT v FROM registers WHERE k = ?1";
    let row = signed(key * session.plan.spread);
    let value =
        step(|| session.reader().prepare_cached(sql)?.query_row([row], |row| number(row, 0)).optional())?;
    Ok(Op::Look(key, value))
}

fn scan(session: &Session<'_>, from: u64, to: u64) -> Result<Op, Overtaken> {
    let sql = "SELECT k, v FROM lists WHERE k >= ?1 AND k < ?2 AND k % ?3 = 0 ORDER BY k";
    let spread = session.plan.spread;
    let rows: Vec<(u64, String)> = step(|| {
        let mut statement = session.reader().prepare_cached(sql)?;
        let rows = statement.query_map([from * spread, to * spread, spread].map(signed), |row| {
            Ok((number(row, 0)?, row.get(1)?))
        })?;
        rows.collect()
    })?;
    Ok(Op::Scan(from, to, rows.into_iter().map(|(row, text)| (row / spread, elements(&text))).collect()))
}

fn find(session: &Session<'_>, property: Property) -> Result<Op, Overtaken> {
    let sql = "SELECT k, v FROM registers INDEXED BY registers_tag WHERE tag = ?1";
    let rows: Vec<(u64, u64)> = step(|| {
        let mut statement = session.reader().prepare_cached(sql)?;
        let rows = statement
            .query_map([signed(property.remainder)], |row| Ok((number(row, 0)?, number(row, 1)?)))?;
        rows.collect()
    })?;
    let spread = session.plan.spread;
    Ok(Op::Find(property, rows.into_iter().map(|(row, value)| (row / spread, value)).collect()))
}
