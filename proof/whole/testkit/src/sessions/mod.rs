//! Sessions that run random transactions on one database at the same time, and report what they did and saw.
//! A judge who sees only the reports decides whether a correct database could have given these answers.
//!
//! A process runs several sessions, each in a thread with its own connection. Before a session calls
//! `COMMIT`, it reports the transaction. If the process is killed after that, the transaction may be
//! committed or not. A transaction that no session has reported is not committed.

mod lists;
mod logic;
mod plan;
mod report;
mod session;

pub use lists::{LISTS_SCHEMA, read_lists};
pub use logic::{Did, Dids, answer, logic_schema};
pub use plan::{Reads, SessionPlan, Work};

use report::Report;
use session::Session;

/// Runs the sessions of a process to their end.
pub fn run_sessions(plan: &SessionPlan) {
    let report = Report::open(&plan.report);
    std::thread::scope(|scope| {
        for number in plan.first..plan.first + plan.threads {
            let report = &report;
            scope.spawn(move || {
                let session = Session::open(plan, number, report);
                match plan.work {
                    Work::Lists => lists::run(session),
                    Work::Logic => logic::run(session),
                }
            });
        }
    });
}
