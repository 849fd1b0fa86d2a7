//! Numbered transactions for connections that write concurrently. Most transactions stay within the area of
//! their connection, which has pages of its own. Some transactions can conflict with others: on a row that
//! all may change, on rows that another transaction has written, on the schema, and on the free list.

/// The number of areas. Each area has rows in a common table, and a table of its own. Transactions with
/// consecutive numbers belong to different areas.
pub const AREAS: u32 = 3;
/// The number of rows that each area has in the common table.
const SLOTS: u32 = 6;
/// The maximum age of a row in an area's table, as a difference of transaction numbers. A transaction deletes
/// older rows of its area.
const WINDOW: u32 = 30;
/// The number of keys that are reserved for one transaction.
const KEYS: u32 = 8;

/// The number of the last transaction that makes tables. The transactions after it belong to the areas.
pub const TABLES: u32 = 2;
/// Transactions with this number or a higher one can run on any content of the database.
pub const FIRST_AFTER: u32 = 1000;

/// Returns the statements of a transaction, without BEGIN and COMMIT. If one of these statements ran twice,
/// the content of the database would show it.
#[must_use]
pub fn statements(page_bytes: u32, seed: u64, number: u32) -> Vec<String> {
    drawn(page_bytes, seed, number, 20)
}

/// Like [`statements`], but this transaction neither reads nor changes rows outside its area. (The pages that
/// it changes may still hold rows of other areas.)
#[must_use]
pub fn statements_in_area(page_bytes: u32, seed: u64, number: u32) -> Vec<String> {
    drawn(page_bytes, seed, number, 15)
}

fn drawn(page_bytes: u32, seed: u64, number: u32, kinds: u8) -> Vec<String> {
    match number {
        1 => return tables(),
        TABLES => return vec![slots(page_bytes)],
        FIRST_AFTER.. => return after(number),
        _ => {}
    }
    let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(number));
    let area = number % AREAS;
    let slot = |random: &mut fastrand::Rng| area * SLOTS + random.u32(..SLOTS);
    let mut all = vec![count(slot(&mut random), number)];
    for nth in 0..random.u32(1..=3) {
        let key = number * KEYS + nth;
        let small = random.u32(10..=page_bytes / 4);
        all.push(match random.u8(..kinds) {
            0..5 => insert(area, key, number, small),
            // These rows have overflow pages, which SQLite allocates now and frees later.
            5..8 => insert(area, key, number, page_bytes / 2 * random.u32(2..=6)),
            8..11 => {
                let remainder = random.u32(..5);
                format!("DELETE FROM rows{area} WHERE k / {KEYS} % 5 = {remainder} AND by <> {number}")
            }
            11 | 12 => {
                let remainder = random.u32(..3);
                let bytes = page_bytes * random.u32(..3) + 9;
                format!("UPDATE rows{area} SET body = zeroblob({bytes}) WHERE k / {KEYS} % 3 = {remainder}")
            }
            13 | 14 => count(slot(&mut random), number),
            15 | 16 => {
                let other = random.u32(..AREAS * SLOTS);
                format!("INSERT INTO rows{area} SELECT {key}, w, NULL FROM slots WHERE id = {other}")
            }
            17 | 18 => format!("UPDATE hot SET w = (w * 31 + {number}) % 1000003"),
            _ if random.bool() => {
                format!("CREATE TABLE IF NOT EXISTS side{}(a, b)", random.u32(..3))
            }
            _ => format!("DROP TABLE IF EXISTS side{}", random.u32(..3)),
        });
    }
    // Keeps the database small, so that checking a state takes microseconds.
    all.push(format!("DELETE FROM rows{area} WHERE k < {}", number.saturating_sub(WINDOW) * KEYS));
    all
}

/// Returns queries that return all rows of an area.
#[must_use]
pub fn queries_of_area(area: u32) -> [String; 2] {
    let slots = area * SLOTS..(area + 1) * SLOTS;
    [
        format!("SELECT * FROM slots WHERE id >= {} AND id < {} ORDER BY id", slots.start, slots.end),
        format!("SELECT * FROM rows{area} ORDER BY k"),
    ]
}

fn tables() -> Vec<String> {
    let mut all = vec![
        "CREATE TABLE slots(id INTEGER PRIMARY KEY, v INTEGER, w INTEGER, body BLOB)".to_owned(),
        "CREATE TABLE hot(only INTEGER PRIMARY KEY, w INTEGER)".to_owned(),
        "INSERT INTO hot VALUES(0, 1)".to_owned(),
    ];
    for area in 0..AREAS {
        all.push(format!("CREATE TABLE rows{area}(k INTEGER PRIMARY KEY, by INTEGER, body BLOB)"));
        all.push(format!("CREATE INDEX by{area} ON rows{area}(by)"));
    }
    all
}

/// Returns the SQL that fills the common table, with three or four rows in a page.
fn slots(page_bytes: u32) -> String {
    let (last, bytes) = (AREAS * SLOTS - 1, page_bytes / 4);
    format!(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {last})
         INSERT INTO slots SELECT i, 2, i, zeroblob({bytes}) FROM n"
    )
}

fn after(number: u32) -> Vec<String> {
    vec![
        "CREATE TABLE IF NOT EXISTS after(n INTEGER PRIMARY KEY)".to_owned(),
        format!("INSERT INTO after VALUES({number})"),
    ]
}

fn count(slot: u32, number: u32) -> String {
    format!("UPDATE slots SET v = {number}, w = (w * 31 + {number}) % 1000003 WHERE id = {slot}")
}

fn insert(area: u32, key: u32, number: u32, bytes: u32) -> String {
    let body = format!("substr(replace(hex(zeroblob({bytes})), '00', '{number}, '), 1, {bytes})");
    format!("INSERT INTO rows{area} VALUES({key}, {number}, {body})")
}
