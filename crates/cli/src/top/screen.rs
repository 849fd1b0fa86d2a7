//! The live view on a terminal: reads the shared memory at each interval, until the user presses q, Escape or Ctrl-C.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::source::Source;
use super::view::{self, View};

/// Shows the view until the user ends it. Restores the terminal at the end, and also after a panic.
pub(crate) fn run(source: &mut Source, interval: Duration) -> Result<()> {
    let mut terminal = ratatui::try_init().context("open the terminal")?;
    let result = show(&mut terminal, source, interval);
    ratatui::restore();
    result
}

fn show(terminal: &mut ratatui::DefaultTerminal, source: &mut Source, interval: Duration) -> Result<()> {
    let mut view = View::new(source.database());
    loop {
        view.look(source.look_on());
        let next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| view::draw(&view, frame))?;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            // Any other event, such as a new size of the terminal, only redraws the view.
            if let Event::Key(key) = event::read()?
                && ends(key)
            {
                return Ok(());
            }
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
