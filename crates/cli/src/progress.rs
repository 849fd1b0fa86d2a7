//! Shows the progress of long work on a terminal. Elsewhere it writes nothing.

use std::io::IsTerminal as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long work must run before it shows progress.
const PATIENCE: Duration = Duration::from_millis(500);
const EVERY: Duration = Duration::from_millis(200);

const BAR: &str = "{prefix} [{bar:16}] {percent:>3} % {elapsed} {wide_msg}";
const SPINNER: &str = "{spinner} {prefix} {elapsed} {wide_msg}";

/// The progress of some work.
#[derive(Default)]
pub struct HowFar {
    /// The amount of work that is done, and the total amount, in the same unit; `None` if the total is not known. The
    /// terminal shows a bar.
    pub part: Option<(u64, u64)>,
    /// Text beside the bar, such as `12 rows`.
    pub text: String,
}

impl HowFar {
    /// Returns the value to show for work whose total is not known.
    #[must_use]
    pub fn counted(done: u64, unit: &str) -> Self {
        Self { part: None, text: format!("{done} {unit}") }
    }

    /// Returns the value to show for work whose total is known.
    #[must_use]
    pub fn of(done: u64, all: u64, unit: &str) -> Self {
        Self { part: Some((done, all)), text: format!("{done} of {all} {unit}") }
    }
}

/// Does the work. While it runs, a line on the terminal shows what the work is, how long it has taken, and its
/// progress. This function clears the line at the end, whether the work succeeds or fails.
pub fn with<T>(what: &str, how_far: impl Fn() -> HowFar + Send, work: impl FnOnce() -> T) -> T {
    with_on(ProgressDrawTarget::stderr(), PATIENCE, what, how_far, work)
}

/// Does work that prints lines to standard output as it proceeds. If standard output is a terminal, this function shows
/// no progress, because the lines themselves show it, and a progress line would disturb them. Otherwise it shows
/// progress as [`with`] does.
pub fn with_output<T>(what: &str, how_far: impl Fn() -> HowFar + Send, work: impl FnOnce() -> T) -> T {
    if std::io::stdout().is_terminal() { work() } else { with(what, how_far, work) }
}

fn with_on<T>(
    target: ProgressDrawTarget,
    patience: Duration,
    what: &str,
    how_far: impl Fn() -> HowFar + Send,
    work: impl FnOnce() -> T,
) -> T {
    if target.is_hidden() {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, is_done) = channel::<()>();
        scope.spawn(move || {
            if goes_on(&is_done, patience) {
                tell(target, patience, what, &how_far, &is_done);
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// Waits until the work is done, for at most `wait`. Returns whether the work still goes on.
fn goes_on(is_done: &Receiver<()>, wait: Duration) -> bool {
    is_done.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
}

fn tell(
    target: ProgressDrawTarget,
    since: Duration,
    what: &str,
    how_far: &dyn Fn() -> HowFar,
    is_done: &Receiver<()>,
) {
    let line = ProgressBar::with_draw_target(None, target).with_elapsed(since).with_prefix(what.to_owned());
    loop {
        let HowFar { part, text } = how_far();
        let part = part.filter(|(_, all)| *all > 0);
        line.set_style(style(if part.is_some() { BAR } else { SPINNER }));
        line.set_message(text);
        if let Some((done, all)) = part {
            line.set_length(all);
            line.set_position(done.min(all));
        }
        line.tick();
        if !goes_on(is_done, EVERY) {
            break;
        }
    }
    line.finish_and_clear();
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    // Use only characters that every terminal has. The middle one of `##.` is for the bar's current position.
    style.progress_chars("##.").tick_chars("-\\|/ ")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use indicatif::InMemoryTerm;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Runs work that lasts until the text on the terminal ends with `end`. Returns that text, and what the terminal
    /// shows after the work.
    fn shown(end: &str, how_far: impl Fn() -> HowFar + Send) -> (String, String) {
        let term = InMemoryTerm::new(3, 80);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let meanwhile = with_on(target, Duration::ZERO, "counting", how_far, || {
            loop {
                let contents = term.contents();
                if contents.ends_with(end) {
                    return contents;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        (meanwhile, term.contents())
    }

    #[test]
    fn work_of_a_known_size_has_a_bar_and_other_work_has_none() {
        let (meanwhile, after) = shown(" 10 of 40 rows", || HowFar::of(10, 40, "rows"));
        assert!(meanwhile.starts_with("counting [#####...........]  25 % "), "{meanwhile}");
        assert_eq!(after, "", "the line stays");
        let (meanwhile, after) = shown(" 10 rows", || HowFar::counted(10, "rows"));
        assert!(meanwhile.contains(" counting "), "{meanwhile}");
        assert!(!meanwhile.contains(['%', '[']), "{meanwhile}");
        assert_eq!(after, "");
    }

    #[test]
    fn what_is_larger_than_all_or_a_part_of_nothing_is_no_nonsense() {
        assert!(shown(" 60 of 40 rows", || HowFar::of(60, 40, "rows")).0.contains("100 %"));
        assert!(!shown(" 0 of 0 rows", || HowFar::of(0, 0, "rows")).0.contains('%'));
    }

    #[test]
    fn short_work_writes_nothing_and_its_result_is_handed_on() {
        let term = InMemoryTerm::new(3, 80);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let result: Result<(), &str> = with_on(target, LONG, "failing", HowFar::default, || Err("no"));
        assert_eq!(result, Err("no"));
        assert_eq!(term.moves_since_last_check(), "");
    }

    #[test]
    fn where_nobody_looks_work_is_only_done() {
        let looks = AtomicU64::new(0);
        let how_far = || HowFar::counted(looks.fetch_add(1, Ordering::Relaxed), "looks");
        let work = || std::thread::sleep(EVERY / 4);
        with_on(ProgressDrawTarget::hidden(), Duration::ZERO, "nothing", how_far, work);
        assert_eq!(looks.into_inner(), 0);
    }
}
