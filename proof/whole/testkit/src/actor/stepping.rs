//! Runs statements, and kills itself at the step that `die N` chooses.

use duralite_testkit::die_at_step;

use super::sql;

pub fn serve(uri: &str) {
    sql::serve_or(uri, |line| {
        let number = line.strip_prefix("die ").and_then(|number| number.parse().ok());
        number.map(die_at_step).is_some()
    });
}
