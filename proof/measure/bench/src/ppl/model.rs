//! A model of the database that results from the generated statements. The values in the statements come from
//! this model.

use std::collections::BTreeMap;
use std::ops::Range;

use duralite_testkit::Rng;
use rusqlite::types::Value;

/// Consonants and vowels alternate in words.
const LETTERS: [&[u8]; 2] = [b"bcdfghklmnprstvz", b"aeiou"];
/// The time of the first event, in milliseconds since 1970.
const EPOCH: i64 = 1_356_998_400_000;
/// The mean number of transactions after which an application turns to another conversation, page or person.
const STAY: u64 = 6;

/// The rows that exist, a clock, and a random generator with a seed.
pub struct Model {
    rng: Rng,
    rows: BTreeMap<&'static str, Range<i64>>,
    clock: i64,
    subject: u64,
}

impl Model {
    /// Returns the model of an empty database.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), rows: BTreeMap::new(), clock: EPOCH, subject: 0 }
    }

    /// Returns the random generator.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// With a certain probability, moves the application to another subject. The generator calls this between
    /// transactions.
    pub fn turn(&mut self) {
        if self.rng.chance(STAY) {
            self.subject = self.rng.draw();
        }
    }

    /// Appends a row to a table, and returns its number. Rows are numbered from 1.
    pub fn append(&mut self, table: &'static str) -> Value {
        let rows = self.rows.entry(table).or_insert(1..1);
        rows.end += 1;
        Value::Integer(rows.end - 1)
    }

    /// Removes the oldest row of a table, and returns its number.
    pub fn remove_oldest(&mut self, table: &'static str) -> Value {
        let rows = self.rows.entry(table).or_insert(1..1);
        let oldest = rows.start;
        rows.start = (oldest + 1).min(rows.end);
        Value::Integer(oldest)
    }

    /// Returns the newest row of a table.
    pub fn newest(&mut self, table: &'static str) -> Value {
        Value::Integer(self.rows.entry(table).or_insert(1..1).end - 1)
    }

    /// Returns one of the newest `among` rows of a table.
    pub fn recent(&mut self, table: &'static str, among: u64) -> Value {
        let rows = self.rows.get(table).cloned().unwrap_or(1..1);
        let count = u64::try_from(rows.end - rows.start).unwrap_or_default();
        let back = self.rng.below(among.min(count).max(1)).cast_signed();
        Value::Integer(rows.end - 1 - back)
    }

    /// Returns any row of a table.
    pub fn any(&mut self, table: &'static str) -> Value {
        self.recent(table, u64::MAX)
    }

    /// Returns the number of the conversation, page or person with which the application is busy now, from 1
    /// to `among`.
    pub fn subject(&self, among: u64) -> Value {
        Value::Integer((self.subject % among.max(1)).cast_signed() + 1)
    }

    /// Returns the present time in milliseconds. Each call advances the clock.
    pub fn now(&mut self) -> Value {
        self.clock += self.rng.below(60_000).cast_signed();
        Value::Integer(self.clock)
    }

    /// Returns a random number below `bound`.
    pub fn number(&mut self, bound: u64) -> Value {
        Value::Integer(self.rng.below(bound).cast_signed())
    }

    /// Returns an identifier from a server that numbers objects in order.
    pub fn ordered_id(&mut self) -> Value {
        self.clock += 1 + self.rng.below(30_000).cast_signed();
        Value::Integer(self.clock << 8)
    }

    /// Returns an identifier from a server that draws numbers at random.
    pub fn server_id(&mut self) -> Value {
        Value::Integer(self.rng.draw().cast_signed())
    }

    /// Returns a text of random words. Its length is random, within `letters`.
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

    /// Returns the address of a page of a site.
    pub fn url(&mut self, site: &Value, page: &Value) -> Value {
        let number = |value: &Value| if let Value::Integer(number) = value { *number } else { 0 };
        // The same page always has the same address.
        let tail = (number(page) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Value::Text(format!("http://www.site{:03}.com/news/{:x}", number(site), tail))
    }

    /// Returns random bytes in place of a compressed picture. Their number is random, within `bytes`.
    pub fn blob(&mut self, bytes: Range<u64>) -> Value {
        let wanted = self.between(bytes);
        Value::Blob((0..wanted).map(|_| self.rng.draw() as u8).collect())
    }

    fn between(&mut self, range: Range<u64>) -> usize {
        (range.start + self.rng.below((range.end - range.start).max(1))) as usize
    }
}
