//! A row of the table.

use anyhow::{Result, ensure};

use crate::report::number;

/// A measured value, its reference value, and the target.
pub(super) struct Line([String; 6]);

impl Line {
    /// Makes a row from a measured value and its reference value.
    ///
    /// # Errors
    /// An error if either value is not a finite number, as when nothing was measured.
    pub(super) fn beside(what: &str, figure: f64, reference: &str, its: f64, wanted: &str) -> Result<Self> {
        ensure!(figure.is_finite() && figure >= 0.0, "{what}: not measured");
        ensure!(its.is_finite() && its > 0.0, "{what}: {reference} was not measured");
        let ratio = format!("{:.2}x", figure / its);
        Ok(Self([what.into(), number(figure), reference.into(), number(its), ratio, wanted.into()]))
    }

    /// Makes a row from a measured value that has no reference value.
    ///
    /// # Errors
    /// An error if the value is not a finite number, as when nothing was measured.
    pub(super) fn alone(what: &str, figure: f64, wanted: &str) -> Result<Self> {
        ensure!(figure.is_finite() && figure >= 0.0, "{what}: not measured");
        let none = || "-".to_owned();
        Ok(Self([what.into(), number(figure), none(), none(), none(), wanted.into()]))
    }

    /// Makes a row that says how often something happened.
    pub(super) fn count(what: &str, count: u64, wanted: &str) -> Self {
        let none = || "-".to_owned();
        Self([what.into(), count.to_string(), none(), none(), none(), wanted.into()])
    }

    pub(super) fn cells(self) -> [String; 6] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_an_error() {
        assert!(Line::beside("x", f64::NAN, "y", 1.0, "-").is_err());
        assert!(Line::beside("x", 1.0, "y", 0.0, "-").is_err());
        assert!(Line::alone("x", f64::INFINITY, "-").is_err());
    }

    #[test]
    fn a_ratio_is_of_the_figure_to_its_reference() {
        let cells = Line::beside("x", 3.0, "y", 2.0, "at least 1x").map(Line::cells).unwrap_or_default();
        assert_eq!(cells, ["x", "3.00", "y", "2.00", "1.50x", "at least 1x"]);
    }
}
