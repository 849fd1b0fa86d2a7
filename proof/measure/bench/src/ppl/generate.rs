//! Generates workloads from a seed. For each application, the workload has as many statements of each kind as
//! the paper's table 3 reports.

use duralite_testkit::Rng;
use rusqlite::types::Value;

use super::app::{App, Order, Purpose};
use super::model::Model;
use super::paper::Trace;

/// A statement with its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// The category of the statement.
    pub purpose: Purpose,
    /// The SQL text.
    pub sql: &'static str,
    /// The values of the statement's parameters.
    pub values: Vec<Value>,
}

/// The statements of one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Transaction {
    /// Whether the transaction runs between `BEGIN` and `COMMIT`.
    pub batch: bool,
    /// The statements, in order.
    pub statements: Vec<Statement>,
}

/// The transactions of an application over some time.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The counts in the paper.
    pub paper: &'static Trace,
    /// Tables and indexes.
    pub schema: &'static str,
    /// The statements that fill the tables before the measurement.
    pub fill: Vec<Statement>,
    /// The transactions to measure.
    pub transactions: Vec<Transaction>,
}

impl Workload {
    /// Generates the workload of an application. The same seed gives the same statements on any machine.
    #[must_use]
    pub fn new(app: &App, seed: u64) -> Self {
        let mut model = Model::new(seed);
        let mut fill = Vec::new();
        for rows in app.fill {
            for _ in 0..rows.rows {
                model.turn();
                let values = (rows.bind)(&mut model);
                fill.push(Statement { purpose: Purpose::Update, sql: rows.sql, values });
            }
        }
        let mut chooser = Chooser { app, done: 0 };
        let shapes = shapes(app, model.rng());
        let transactions = shapes.into_iter().map(|shape| chooser.transaction(&mut model, shape)).collect();
        Self { paper: app.paper, schema: app.schema, fill, transactions }
    }

    /// Returns all statements, in order.
    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.transactions.iter().flat_map(|transaction| &transaction.statements)
    }

    /// Returns the number of statements.
    #[must_use]
    pub fn statement_count(&self) -> usize {
        self.statements().count()
    }
}

/// A transaction in an early stage: only the category of each statement is chosen.
struct Shape {
    batch: bool,
    purposes: Vec<Purpose>,
}

/// Draws transactions that have the counts of the paper's table 3, and shuffles them. Every batch has at
/// least one write.
fn shapes(app: &App, rng: &mut Rng) -> Vec<Shape> {
    let paper = app.paper;
    let alone = (paper.transactions - paper.batches) as usize;
    let in_batches = (f64::from(paper.batches) * paper.statements_per_batch).round() as usize;
    let total = alone + in_batches;
    let share = |percent: f64| (total as f64 * percent / 100.0).round() as usize;
    let joins = share(paper.joins);
    let reads = total - share(paper.updates);
    let reads_alone = (reads * app.reads_alone as usize / 100).min(alone);
    let mut purposes = vec![Purpose::Select; reads];
    purposes[..joins].fill(Purpose::Join);
    shuffle(&mut purposes, rng);

    let mut shapes: Vec<Shape> = sizes(paper.batches as usize, in_batches, rng)
        .into_iter()
        .map(|size| Shape { batch: true, purposes: vec![Purpose::Update; size] })
        .collect();
    shapes.extend((0..alone).map(|_| Shape { batch: false, purposes: vec![Purpose::Update] }));
    // The statements that may become reads. One list has those that run alone, and one has those in batches.
    // A statement is given by the index of its transaction, and by its index in the transaction. The last
    // statement of each batch is left out, so it stays an update.
    let mut places: [Vec<(usize, usize)>; 2] = Default::default();
    for (at, shape) in shapes.iter().enumerate() {
        let free = if shape.batch { shape.purposes.len() - 1 } else { 1 };
        places[usize::from(shape.batch)].extend((0..free).map(|statement| (at, statement)));
    }
    places.iter_mut().for_each(|places| shuffle(places, rng));
    let [of_alone, of_batches] = &places;
    let chosen = of_alone.iter().take(reads_alone).chain(of_batches);
    for (&(at, statement), purpose) in chosen.zip(purposes) {
        shapes[at].purposes[statement] = purpose;
    }
    shuffle(&mut shapes, rng);
    shapes
}

/// Draws the sizes of `batches` batches at random. Each size is at least 1, and their sum is `total`.
fn sizes(batches: usize, total: usize, rng: &mut Rng) -> Vec<usize> {
    let mean = total / batches.max(1);
    let mut sizes: Vec<usize> =
        (0..batches).map(|_| 1 + rng.below((2 * mean as u64).saturating_sub(1).max(1)) as usize).collect();
    let mut sum: usize = sizes.iter().sum();
    while sum != total {
        let size = &mut sizes[rng.below(batches as u64) as usize];
        if sum < total {
            (*size, sum) = (*size + 1, sum + 1);
        } else if *size > 1 {
            (*size, sum) = (*size - 1, sum - 1);
        }
    }
    sizes
}

fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for end in (1..items.len()).rev() {
        items.swap(end, rng.below(end as u64 + 1) as usize);
    }
}

/// Chooses the statements of transactions.
struct Chooser<'a> {
    app: &'a App,
    /// The number of statements already chosen.
    done: u32,
}

impl Chooser<'_> {
    fn transaction(&mut self, model: &mut Model, shape: Shape) -> Transaction {
        model.turn();
        let statements =
            shape.purposes.into_iter().map(|purpose| self.statement(model, purpose, shape.batch));
        Transaction { batch: shape.batch, statements: statements.collect() }
    }

    fn statement(&mut self, model: &mut Model, purpose: Purpose, batch: bool) -> Statement {
        let kind = match self.app.order {
            Order::Mixed => self.by_weight(model.rng(), purpose, batch),
            Order::Phases(counts) => self.by_phase(counts),
        };
        self.done += 1;
        let kind = &self.app.kinds[kind];
        Statement { purpose, sql: kind.sql, values: (kind.bind)(model) }
    }

    fn by_phase(&self, counts: &[u32]) -> usize {
        let mut left = self.done;
        let ended =
            counts.iter().take_while(|count| left.checked_sub(**count).map(|rest| left = rest).is_some());
        ended.count().min(counts.len() - 1)
    }

    fn by_weight(&self, rng: &mut Rng, purpose: Purpose, batch: bool) -> usize {
        let weight = |(alone, in_batch): (u64, u64)| if batch { in_batch } else { alone };
        let fitting: Vec<(usize, u64)> = (self.app.kinds.iter().enumerate())
            .filter(|(_, kind)| kind.purpose == purpose)
            .map(|(at, kind)| (at, weight(kind.weights)))
            .collect();
        let mut draw = rng.below(fitting.iter().map(|(_, weight)| weight).sum::<u64>().max(1));
        for (at, weight) in fitting {
            match draw.checked_sub(weight) {
                Some(rest) => draw = rest,
                None => return at,
            }
        }
        0
    }
}
