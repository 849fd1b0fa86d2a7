//! Standard output.

/// Prints to standard output; a closed pipe ends the program quietly, as `head` expects.
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

pub(crate) fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    print_text(&format!("{value:#}\n"))
}
