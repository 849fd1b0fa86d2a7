//! What a command prints, and what it ends with.

use std::process::ExitCode;

/// Prints to standard output; a closed pipe ends the program quietly, as `head` expects.
///
/// # Errors
/// That of the write.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

/// Prints a value to standard output, as [`print_text`] does.
///
/// # Errors
/// That of the write.
pub fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    print_text(&format!("{value:#}\n"))
}

/// The exit status of a command; an error goes to standard error.
#[must_use]
pub fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("duralite: {error:#}");
        ExitCode::FAILURE
    })
}
