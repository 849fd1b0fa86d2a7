//! Draws the live view.

use std::collections::VecDeque;
use std::path::Path;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};

use super::reading::{Reading, Recent};
use super::source::State;
use super::{text, units};

/// How many rates the view keeps for the chart. Each reading of the shared memory gives one rate.
const KEPT: usize = 300;

/// What the view shows.
pub(crate) struct View {
    database: String,
    state: Option<State>,
    recent: Option<Recent>,
    /// Commits per second, one value for each reading of the shared memory, newest last.
    rates: VecDeque<u64>,
}

impl View {
    pub(crate) fn new(database: &Path) -> Self {
        let database = database.display().to_string();
        Self { database, state: None, recent: None, rates: VecDeque::new() }
    }

    /// Adds the result of another reading.
    pub(crate) fn look(&mut self, state: State) {
        self.recent = match (&self.state, &state) {
            (Some(State::InUse(before)), State::InUse(now)) => now.since(before),
            _ => None,
        };
        let rate = self.recent.as_ref().map_or(0, |recent| (recent.commits as f64 / recent.seconds) as u64);
        self.rates.push_back(rate);
        if self.rates.len() > KEPT {
            self.rates.pop_front();
        }
        self.state = Some(state);
    }
}

/// Draws the view.
pub(crate) fn draw(view: &View, frame: &mut Frame<'_>) {
    let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(frame.area());
    let [name, help] = Layout::horizontal([Constraint::Min(0), Constraint::Length(8)]).areas(title);
    frame.render_widget(Line::from(format!("duralite top: {}", view.database)).bold(), name);
    frame.render_widget(Line::from("q: quit").dim().right_aligned(), help);
    match &view.state {
        Some(State::InUse(reading)) => draw_reading(view, reading, frame, body),
        Some(State::Idle { state, why }) => {
            let lines =
                vec![Line::from(*state).yellow(), Line::from(why.as_str()), Line::from("waiting").dim()];
            frame.render_widget(Paragraph::new(lines), body);
        }
        None => {}
    }
}

fn draw_reading(view: &View, reading: &Reading, frame: &mut Frame<'_>, area: Rect) {
    let facts = text::facts(reading);
    let heights = [
        Constraint::Length(4),
        Constraint::Length(10),
        Constraint::Length(1),
        Constraint::Length(facts.len() as u16),
        Constraint::Min(2),
    ];
    let [rate, latency, log, rest, processes] = Layout::vertical(heights).areas(area);
    draw_rate(view, reading, frame, rate);
    draw_latencies(view, reading, frame, latency);
    draw_log(reading, frame, log);
    let lines: Vec<Line<'_>> =
        facts.into_iter().map(|(name, value)| Line::from(format!("{name:<14} {value}"))).collect();
    frame.render_widget(Paragraph::new(lines), rest);
    draw_processes(reading, frame, processes);
}

fn draw_rate(view: &View, reading: &Reading, frame: &mut Frame<'_>, area: Rect) {
    let [line, chart] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let now = view.rates.back().copied().unwrap_or(0);
    let size = view.recent.as_ref().and_then(|recent| recent.counts.group_size());
    let size = size.map_or_else(String::new, |size| format!(", {size:.1} in a group"));
    let (rate, commits) = (units::count(now), units::count(reading.commits()));
    let engine = reading.engine;
    frame.render_widget(
        Line::from(format!("{rate} commits/s{size}   {engine}, {commits} commits so far")),
        line,
    );
    let shown = view.rates.len().saturating_sub(chart.width.into());
    let rates = view.rates.iter().skip(shown).copied();
    frame.render_widget(Sparkline::default().data(rates).style(Style::new().fg(Color::Green)), chart);
}

/// Draws the latencies of the last interval, or of all commits if the interval had none.
fn draw_latencies(view: &View, reading: &Reading, frame: &mut Frame<'_>, area: Rect) {
    let recent = view.recent.as_ref().filter(|recent| recent.commits > 0);
    let (latencies, of) =
        recent.map_or((&reading.latencies, "all commits"), |recent| (&recent.latencies, "now"));
    let block = Block::new()
        .title(Line::from(format!("commit latency, {of}: {}", text::percentiles(latencies))).bold());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let rows = octaves(latencies.buckets(), inner.height.into());
    let most = rows.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let width = u64::from(inner.width.saturating_sub(24));
    let lines: Vec<Line<'_>> = rows
        .into_iter()
        .map(|(limit, count)| {
            let bar = (u128::from(count) * u128::from(width)).div_ceil(u128::from(most.max(1)));
            Line::from(format!(
                "{:>10} {:>12} {}",
                units::time(limit),
                units::count(count),
                "█".repeat(bar as usize)
            ))
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Sums the buckets between two powers of two into one row. If there are more than `most` rows, drops rows at the two
/// ends, those with fewer commits first.
fn octaves(buckets: impl Iterator<Item = (u64, u64)>, most: usize) -> Vec<(u64, u64)> {
    let mut rows: Vec<(u64, u64)> = Vec::new();
    for (limit, count) in buckets {
        let octave = limit.next_power_of_two();
        match rows.last_mut() {
            Some((last, sum)) if *last == octave => *sum = sum.wrapping_add(count),
            _ => rows.push((octave, count)),
        }
    }
    let Some(first) = rows.iter().position(|(_, count)| *count > 0) else { return Vec::new() };
    let end = rows.iter().rposition(|(_, count)| *count > 0).map_or(rows.len(), |last| last + 1);
    let mut rows = rows[first..end].to_vec();
    // Each round of the loop drops the first or the last row, whichever has fewer commits.
    while rows.len() > most.max(1) {
        let is_last_rarer = rows.last().map(|row| row.1) <= rows.first().map(|row| row.1);
        rows.remove(if is_last_rarer { rows.len() - 1 } else { 0 });
    }
    rows
}

fn draw_log(reading: &Reading, frame: &mut Frame<'_>, area: Rect) {
    let Some((fill, limit)) = reading.fill.zip(reading.limit_bytes()) else { return };
    let part = (fill.used_bytes as f64 / limit.max(1) as f64).clamp(0.0, 1.0);
    let color = if part < 0.75 { Color::Blue } else { Color::Red };
    let label = format!("log {} of {}", units::bytes(fill.used_bytes), units::bytes(limit));
    frame.render_widget(Gauge::default().ratio(part).label(label).gauge_style(Style::new().fg(color)), area);
}

fn draw_processes(reading: &Reading, frame: &mut Frame<'_>, area: Rect) {
    let rows = reading.processes.iter().map(|process| {
        let reads = process.reads.map_or_else(String::new, units::age);
        Row::new([
            process.pid.to_string(),
            units::age(process.age),
            units::count(process.commits),
            reads,
            text::locks(process),
        ])
    });
    let widths = [
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(14),
        Constraint::Length(12),
        Constraint::Min(10),
    ];
    let header =
        Row::new(["process", "open for", "commits", "reads for", "holds"]).style(Style::new().bold());
    frame.render_widget(Table::new(rows, widths).header(header), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::reading::tests::reading;
    use super::*;

    fn in_use(seconds: u64, commits: u64) -> State {
        State::InUse(Box::new(reading(seconds, commits)))
    }

    /// Returns the lines that a terminal of this size shows.
    fn shown(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(view, frame)).unwrap();
        let cells = terminal.backend().buffer().content();
        let line =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
        cells.chunks(width.into()).map(|cells| line(cells).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_view_shows_rates_latencies_log_and_processes() {
        let mut view = View::new(Path::new("app.db"));
        view.look(in_use(10, 1000));
        view.look(in_use(12, 11_000));
        let lines = shown(&view, 100, 30);
        assert!(lines[0].starts_with("duralite top: app.db") && lines[0].ends_with("q: quit"), "{lines:#?}");
        assert_eq!(lines[1], "5,000 commits/s, 4.0 in a group   waldio, 11,000 commits so far");
        assert!(lines[4].ends_with('█'), "the newest rate is the highest: {lines:#?}");
        let percentiles = "p50 2.10 ms   p90 2.10 ms   p99 2.10 ms   p99.9 2.10 ms   max 2.10 ms";
        assert_eq!(lines[5], format!("commit latency, now: {percentiles}"));
        assert!(lines[6].starts_with("   2.10 ms       10,000 ████"), "{lines:#?}");
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(has("log 1.00 MiB of 2.00 MiB") && has("60 of 100 frames checkpointed"), "{lines:#?}");
        assert!(has("1, the oldest for 3.0 s"), "{lines:#?}");
        let process = lines.iter().find(|line| line.starts_with("4711")).unwrap();
        assert!(process.contains("11,000") && process.ends_with("WRITE READ1"), "{process}");
    }

    #[test]
    fn it_says_why_it_waits_and_goes_on_afterwards() {
        let mut view = View::new(Path::new("app.db"));
        view.look(in_use(10, 1000));
        view.look(State::Idle { state: "not in use", why: "nobody has it open".to_owned() });
        assert_eq!(shown(&view, 40, 5)[1..], ["not in use", "nobody has it open", "waiting", ""]);
        view.look(in_use(20, 1001));
        assert!(shown(&view, 80, 24)[1].starts_with("0 commits/s"), "no rate from before the pause");
    }

    #[test]
    fn every_size_of_a_terminal_is_drawn() {
        let mut view = View::new(Path::new("a path\u{1b}[2J with control characters"));
        (0..400).for_each(|at| view.look(in_use(10 + at, 1000 * (at + 1))));
        for (width, height) in [(1, 1), (7, 40), (200, 2), (30, 9), (80, 24)] {
            let lines = shown(&view, width, height);
            assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:#?}");
        }
    }

    #[test]
    fn the_rarest_end_goes_where_there_is_no_room() {
        let buckets = [(96, 1), (128, 8), (256, 9), (300, 3), (512, 2), (1024, 0)];
        assert_eq!(octaves(buckets.into_iter(), 9), [(128, 9), (256, 9), (512, 5)]);
        assert_eq!(octaves(buckets.into_iter(), 2), [(128, 9), (256, 9)]);
        assert_eq!(octaves([(64, 0)].into_iter(), 2), []);
    }
}
