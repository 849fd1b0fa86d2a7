//! What a generator remembers of the database that its statements make, and draws their values from.

use std::collections::BTreeMap;
use std::ops::Range;

use duralite_testkit::Rng;
use rusqlite::types::Value;

/// Consonants and vowels alternate in words.
const LETTERS: [&[u8]; 2] = [b"bcdfghklmnprstvz", b"aeiou"];
/// Milliseconds of the first thing that happens.
const EPOCH: i64 = 1_356_998_400_000;
/// An application stays with the same conversation, page or person for so many transactions.
const STAY: u64 = 6;

/// The rows that there are, a clock, and randomness that a seed reproduces.
pub struct Model {
    rng: Rng,
    rows: BTreeMap<&'static str, Range<i64>>,
    clock: i64,
    subject: u64,
}

impl Model {
    /// Of an empty database.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), rows: BTreeMap::new(), clock: EPOCH, subject: 0 }
    }

    /// What decisions are drawn from.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// To be called between transactions: now and then the application turns to something else.
    pub fn turn(&mut self) {
        if self.rng.chance(STAY) {
            self.subject = self.rng.draw();
        }
    }

    /// A row that is appended to a table; rows are numbered from 1.
    pub fn append(&mut self, table: &'static str) -> Value {
        let rows = self.rows.entry(table).or_insert(1..1);
        rows.end += 1;
        Value::Integer(rows.end - 1)
    }

    /// The oldest row of a table, which is there no longer then.
    pub fn remove_oldest(&mut self, table: &'static str) -> Value {
        let rows = self.rows.entry(table).or_insert(1..1);
        let oldest = rows.start;
        rows.start = (oldest + 1).min(rows.end);
        Value::Integer(oldest)
    }

    /// The newest row of a table.
    pub fn newest(&mut self, table: &'static str) -> Value {
        Value::Integer(self.rows.entry(table).or_insert(1..1).end - 1)
    }

    /// One of the newest rows of a table.
    pub fn recent(&mut self, table: &'static str, among: u64) -> Value {
        let rows = self.rows.get(table).cloned().unwrap_or(1..1);
        let count = u64::try_from(rows.end - rows.start).unwrap_or_default();
        let back = self.rng.below(among.min(count).max(1)).cast_signed();
        Value::Integer(rows.end - 1 - back)
    }

    /// Any row of a table.
    pub fn any(&mut self, table: &'static str) -> Value {
        self.recent(table, u64::MAX)
    }

    /// What the application is busy with now, one of so many.
    pub fn subject(&self, among: u64) -> Value {
        Value::Integer((self.subject % among.max(1)).cast_signed() + 1)
    }

    /// The time, in milliseconds; it passes.
    pub fn now(&mut self) -> Value {
        self.clock += self.rng.below(60_000).cast_signed();
        Value::Integer(self.clock)
    }

    /// A number below `bound`.
    pub fn number(&mut self, bound: u64) -> Value {
        Value::Integer(self.rng.below(bound).cast_signed())
    }

    /// An identifier as servers give them that number things in order.
    pub fn ordered_id(&mut self) -> Value {
        self.clock += 1 + self.rng.below(30_000).cast_signed();
        Value::Integer(self.clock << 8)
    }

    /// An identifier as servers give them: it says nothing.
    pub fn server_id(&mut self) -> Value {
        Value::Integer(self.rng.draw().cast_signed())
    }

    /// Words of so many letters together.
    pub fn text(&mut self, letters: Range<u64>) -> Value {
        let wanted = self.between(letters);
        let mut text = String::with_capacity(wanted);
        let mut word = 0;
        while text.len() < wanted {
            if word > 1 && self.rng.chance(6) {
                text.push(' ');
                word = 0;
                continue;
            }
            let letters = LETTERS[word % 2];
            text.push(char::from(letters[self.rng.below(letters.len() as u64) as usize]));
            word += 1;
        }
        Value::Text(text)
    }

    /// The address of a page of a site.
    pub fn url(&mut self, site: &Value, page: &Value) -> Value {
        let number = |value: &Value| if let Value::Integer(number) = value { *number } else { 0 };
        // The same page has the same address.
        let tail = (number(page) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Value::Text(format!("http://www.site{:03}.com/news/{:x}", number(site), tail))
    }

    /// So many bytes that look like a compressed picture.
    pub fn blob(&mut self, bytes: Range<u64>) -> Value {
        let wanted = self.between(bytes);
        Value::Blob((0..wanted).map(|_| self.rng.draw() as u8).collect())
    }

    fn between(&mut self, range: Range<u64>) -> usize {
        (range.start + self.rng.below((range.end - range.start).max(1))) as usize
    }
}
