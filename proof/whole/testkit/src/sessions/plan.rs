//! The plan of the sessions of a process. A test passes the plan to the process as arguments.

use std::path::PathBuf;
use std::str::FromStr;

use crate::Arguments;

/// The kind of work in the transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Appends to lists, and writes of registers.
    Lists,
    /// Tables with constraints, triggers and an index.
    Logic,
}

/// The connection on which a transaction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// On the session's own connection, where all reads see one snapshot.
    Inside,
    /// On another connection, where each read sees a different snapshot. Such a transaction is not isolated,
    /// and the judge must notice that.
    Outside,
}

/// The sessions of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPlan {
    /// The URI of the database.
    pub uri: String,
    /// The file for the reports.
    pub report: PathBuf,
    /// The kind of work in the transactions.
    pub work: Work,
    /// The connection on which the transactions read.
    pub reads: Reads,
    /// The seed of the random numbers. Each session adds its own number to the seed.
    pub seed: u64,
    /// The number of the first session. No other session on the database has the same number.
    pub first: u64,
    /// The number of sessions.
    pub threads: u64,
    /// The number of transactions that each session attempts.
    pub transactions: u64,
    /// The number of keys that all sessions use.
    pub keys: u64,
    /// The distance between neighbouring keys. The rows between them are noise.
    pub spread: u64,
    /// Additional URI parameters. Each session uses one entry of this list, and the next session the next
    /// entry.
    pub settings: Vec<String>,
}

impl SessionPlan {
    /// Returns the plan as arguments.
    #[must_use]
    pub fn to_arguments(&self) -> Vec<String> {
        let Self { seed, first, threads, transactions, keys, spread, .. } = self;
        let work = if self.work == Work::Lists { "lists" } else { "logic" };
        let reads = if self.reads == Reads::Inside { "inside" } else { "outside" };
        vec![
            format!("uri={}", self.uri),
            format!("report={}", self.report.display()),
            format!("work={work}"),
            format!("reads={reads}"),
            format!("seed={seed}"),
            format!("first={first}"),
            format!("threads={threads}"),
            format!("transactions={transactions}"),
            format!("keys={keys}"),
            format!("spread={spread}"),
            format!("settings={}", self.settings.join(";")),
        ]
    }

    /// Reads a plan from arguments.
    ///
    /// # Errors
    /// An argument is missing or wrong. The error names it.
    pub fn of_arguments(arguments: &[&str]) -> Result<Self, String> {
        let arguments = Arguments::new(arguments.iter().copied())?;
        let text = |name: &str| arguments.get(name).ok_or_else(|| format!("{name} is missing"));
        let number = |name: &str| u64::from_str(text(name)?).map_err(|error| format!("{name}: {error}"));
        Ok(Self {
            uri: text("uri")?.to_owned(),
            report: text("report")?.into(),
            work: if text("work")? == "lists" { Work::Lists } else { Work::Logic },
            reads: if text("reads")? == "inside" { Reads::Inside } else { Reads::Outside },
            seed: number("seed")?,
            first: number("first")?,
            threads: number("threads")?,
            transactions: number("transactions")?,
            keys: number("keys")?,
            spread: number("spread")?,
            settings: text("settings")?.split(';').map(str::to_owned).collect(),
        })
    }

    /// Returns the URI of a session.
    #[must_use]
    pub fn uri_of(&self, session: u64) -> String {
        let settings = &self.settings[usize::try_from(session).unwrap() % self.settings.len()];
        if settings.is_empty() { self.uri.clone() } else { format!("{}&{settings}", self.uri) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_the_same_as_arguments() {
        let plan = SessionPlan {
            uri: "file:/x.db?vfs=duralite&journal=nvwal".into(),
            report: "/report".into(),
            work: Work::Logic,
            reads: Reads::Outside,
            seed: 1,
            first: 2,
            threads: 3,
            transactions: 4,
            keys: 5,
            spread: 6,
            settings: vec![String::new(), "sync=eager&diff=off".into()],
        };
        let arguments = plan.to_arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert_eq!(SessionPlan::of_arguments(&arguments), Ok(plan.clone()));
        assert_eq!((plan.uri_of(4), plan.uri_of(5)), (plan.uri.clone(), plan.uri + "&sync=eager&diff=off"));
    }
}
