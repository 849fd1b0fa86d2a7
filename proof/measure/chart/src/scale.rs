//! Computes an axis: the position of each value, and the values that label the axis.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::style::short;

/// If an axis has at most this many distinct values, they label the axis. Otherwise round numbers label it.
const MOST_TICKS: usize = 8;
/// The minimum distance between two labels, as a fraction of the axis.
const APART: f64 = 0.07;

/// A linear or logarithmic axis.
#[derive(Clone)]
pub(crate) struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
    ticks: Vec<f64>,
}

impl Scale {
    /// Makes an axis for values that the experimenter chose. If there are few values, they label the axis.
    pub(crate) fn of_choices(values: &[f64], is_log: bool) -> Option<Self> {
        let (least, most) = extent(values)?;
        let margin = (most - least).max(1.0) * 0.04;
        let (from, to) = if is_log { (least / 1.2, most * 1.2) } else { (least - margin, most + margin) };
        let mut ticks = values.to_vec();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let mut scale = Self { from, to, is_log, ticks: Vec::new() };
        if ticks.len() > MOST_TICKS {
            ticks = scale.round_numbers();
        }
        for tick in ticks {
            let is_far = |last: &f64| scale.place(tick) - scale.place(*last) >= APART;
            if scale.ticks.last().is_none_or(is_far) {
                scale.ticks.push(tick);
            }
        }
        Some(scale)
    }

    /// Makes an axis for measured values. A linear axis starts at 0.
    pub(crate) fn of_measures(values: &[f64], is_log: bool) -> Option<Self> {
        let (least, most) = extent(values)?;
        let (from, to) = if is_log { (least / 1.2, most * 1.2) } else { (0.0, most.max(1e-9) * 1.08) };
        let mut scale = Self { from, to, is_log, ticks: Vec::new() };
        scale.ticks = scale.round_numbers();
        Some(scale)
    }

    /// Returns the position of a value on the axis, between 0 and 1.
    fn place(&self, value: f64) -> f64 {
        let (from, to, value) = if self.is_log {
            (self.from.log10(), self.to.log10(), value.max(f64::MIN_POSITIVE).log10())
        } else {
            (self.from, self.to, value)
        };
        (value - from) / (to - from)
    }

    /// Returns about five numbers with a single significant digit each.
    fn round_numbers(&self) -> Vec<f64> {
        if self.is_log {
            let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            let digits: &[f64] = if (self.to / self.from).log10() > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let numbers =
                decades.flat_map(|decade| digits.iter().map(move |digit| digit * 10_f64.powi(decade)));
            return numbers.filter(|number| (self.from..=self.to).contains(number)).collect();
        }
        let rough = (self.to - self.from) / 5.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step).floor() as i64;
        (first..=last).map(|number| number as f64 * step).collect()
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (begin, end): (i32, i32)) -> i32 {
        begin + (self.place(*value) * f64::from(end - begin)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        short(*value)
    }
}

/// Returns the least and the largest value.
fn extent(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().fold(least, f64::max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_chosen_is_written_beside_the_axis_and_what_was_measured_in_round_numbers() {
        let threads = Scale::of_choices(&[1.0, 2.0, 4.0, 2.0, 32.0], true).expect("an axis");
        assert_eq!(threads.ticks, [1.0, 2.0, 4.0, 32.0]);
        let close = Scale::of_choices(&[1.0, 2.0, 100.0], false).expect("an axis");
        assert_eq!(close.ticks, [1.0, 100.0], "numbers do not run into each other");
        let rates = Scale::of_measures(&[410.0, 95.0], false).expect("an axis");
        assert_eq!(rates.ticks, [0.0, 100.0, 200.0, 300.0, 400.0]);
        let wide = Scale::of_measures(&[3.0, 40_000.0], true).expect("an axis");
        assert_eq!(wide.ticks, [10.0, 100.0, 1000.0, 10_000.0]);
        assert!(Scale::of_measures(&[], true).is_none());
    }

    #[test]
    fn a_number_stands_where_it_belongs() {
        let log = Scale::of_choices(&[1.0, 10.0, 100.0], true).expect("an axis");
        assert_eq!(log.map(&10.0, (0, 200)), 100);
        let linear = Scale::of_measures(&[100.0], false).expect("an axis");
        assert_eq!((linear.map(&0.0, (300, 0)), linear.map(&108.0, (300, 0))), (300, 0));
    }
}
