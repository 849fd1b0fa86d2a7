//! Chooses between non-temporal stores and ordinary stores that are flushed.
//!
//! The paper assumes that a non-temporal store is cheaper for a line that is written once (Xu et al., JCST 2016,
//! section 5.2). But the costs depend on the memory, and no documentation states them. So the process sometimes tries
//! both ways and measures the time. The choice affects only speed, not durability.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::media::HomeSync;

/// A trial uses each of the two ways for this many units of work.
const TRIED: u32 = 16;
/// The most measurements that a [`Price`] keeps.
const MEASURED: usize = 1024;
/// The number of units from the end of one trial to the beginning of the next. It is so large that only one unit of 128
/// uses the more expensive way.
const INTERVAL: u32 = 126 * TRIED;

/// The measured cost of a line. `per_line` ignores the most expensive quarter of the measurements, because the machine
/// may have been busy with something else during these.
#[derive(Debug, Default)]
pub(crate) struct Price(Vec<(u64, Duration)>);

impl Price {
    /// Records that storing or flushing `lines` took `elapsed`.
    pub(crate) fn paid(&mut self, lines: u64, elapsed: Duration) {
        if lines > 0 && self.0.len() < MEASURED {
            self.0.push((lines, elapsed));
        }
    }

    /// Returns the cost in nanoseconds per line; `None` without measurements.
    pub(crate) fn per_line(&self) -> Option<f64> {
        let per_line = |(lines, elapsed): &(u64, Duration)| elapsed.as_nanos() as f64 / *lines as f64;
        let mut paid = self.0.clone();
        paid.sort_by(|one, other| per_line(one).total_cmp(&per_line(other)));
        paid.truncate((paid.len() * 3).div_ceil(4));
        let lines: u64 = paid.iter().map(|(lines, _)| lines).sum();
        let elapsed: Duration = paid.iter().map(|(_, elapsed)| elapsed).sum();
        (lines > 0).then(|| per_line(&(lines, elapsed)))
    }
}

/// One unit of work: the stores up to the next fence.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Whether to use non-temporal stores.
    pub(crate) through: bool,
    timed: bool,
    lines: u64,
    elapsed: Duration,
}

impl Work {
    /// Runs a part of the work that stores this many cache lines. Measures the part if this unit is timed.
    pub(crate) fn part<T>(&mut self, lines: u64, work: impl FnOnce() -> T) -> T {
        if !self.timed {
            return work();
        }
        let start = Instant::now();
        let result = work();
        self.elapsed += start.elapsed();
        self.lines += lines;
        result
    }
}

/// The choice for lines that are all written once, such as the lines of a log.
#[derive(Debug)]
pub(crate) struct Choice {
    /// The trial between the two ways; `None` where the setting fixes the choice.
    trial: Option<Mutex<Trial>>,
    through: AtomicBool,
}

#[derive(Debug, Default)]
struct Trial {
    units: u32,
    back: Price,
    through: Price,
}

impl Choice {
    /// Returns the choice that the setting asks for. By the paper's rule ([`HomeSync::Average`]), a log is always
    /// written through, because each of its pages is written less often than an average page.
    pub(crate) fn new(sync: HomeSync) -> Self {
        let trial = (sync == HomeSync::Adaptive).then(Mutex::default);
        let through = matches!(sync, HomeSync::WriteThrough | HomeSync::Average);
        Self { trial, through: AtomicBool::new(through) }
    }

    /// Returns a choice that always uses ordinary stores, which are flushed.
    pub(crate) fn write_back() -> Self {
        Self::new(HomeSync::WriteBack)
    }

    fn trial(&self) -> Option<MutexGuard<'_, Trial>> {
        self.trial.as_ref().map(|trial| trial.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins the next unit of work.
    pub(crate) fn begin(&self) -> Work {
        let timed = self.trial().is_some_and(|trial| trial.units < 2 * TRIED);
        Work { through: self.through.load(Ordering::Relaxed), timed, ..Work::default() }
    }

    /// Ends a unit of work. The caller has made all cache lines of the unit durable.
    pub(crate) fn end(&self, work: &Work) {
        let Some(mut trial) = self.trial() else { return };
        trial.units += 1;
        if work.timed {
            let Trial { back, through, .. } = &mut *trial;
            (if work.through { through } else { back }).paid(work.lines, work.elapsed);
        }
        match trial.units {
            TRIED => self.through.store(true, Ordering::Relaxed),
            units if units == 2 * TRIED => {
                let prices = trial.through.per_line().zip(trial.back.per_line());
                self.through.store(prices.is_some_and(|(through, back)| through < back), Ordering::Relaxed);
            }
            units if units >= 2 * TRIED + INTERVAL => {
                *trial = Trial::default();
                self.through.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paid(lines: u64, nanoseconds: u64) -> Price {
        let mut price = Price::default();
        price.paid(lines, Duration::from_nanos(nanoseconds));
        price
    }

    #[test]
    fn a_price_is_without_what_came_between() {
        let mut price = paid(2, 200);
        for _ in 0..6 {
            price.paid(1, Duration::from_nanos(100));
        }
        price.paid(1, Duration::from_secs(1));
        price.paid(0, Duration::from_secs(1));
        assert_eq!(price.per_line(), Some(100.0));
        assert_eq!(Price::default().per_line(), None);
    }

    /// Runs units of one line each. `back` and `through` are the costs of the two ways. Returns for each unit whether
    /// it used non-temporal stores.
    fn run(choice: &Choice, units: u32, (back, through): (u64, u64)) -> Vec<bool> {
        let one = || {
            let mut work = choice.begin();
            work.lines = 1;
            work.elapsed = Duration::from_nanos(if work.through { through } else { back });
            choice.end(&work);
            work.through
        };
        (0..units).map(|_| one()).collect()
    }

    #[test]
    fn the_cheaper_way_is_taken_until_both_are_tried_again() {
        let choice = Choice::new(HomeSync::Adaptive);
        for (prices, through) in [((500, 250), true), ((250, 500), false), ((300, 300), false)] {
            let ways = run(&choice, 2 * TRIED + INTERVAL, prices);
            let (back, rest) = ways.split_at(TRIED as usize);
            let (tried, rest) = rest.split_at(TRIED as usize);
            assert!(back.iter().all(|through| !through) && tried.iter().all(|through| *through));
            assert!(rest.iter().all(|way| *way == through), "{prices:?}");
        }
    }

    #[test]
    fn what_is_said_is_done() {
        let ways = [HomeSync::WriteBack, HomeSync::WriteThrough, HomeSync::Average];
        for (sync, through) in ways.into_iter().zip([false, true, true]) {
            let choice = Choice::new(sync);
            assert!(!choice.begin().timed);
            assert!(run(&choice, 4 * TRIED, (1, 2)).iter().all(|way| *way == through));
        }
    }
}
