//! The output and exit status of a command.

use std::process::ExitCode;

/// Prints to standard output. If the pipe is closed, the program exits quietly with status 0, as users of `head`
/// expect.
///
/// # Errors
/// An error of the write.
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
/// An error of the write.
pub fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    print_text(&format!("{value:#}\n"))
}

/// Returns the exit status for a result. Prints an error to standard error.
#[must_use]
pub fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("duralite: {error:#}");
        ExitCode::FAILURE
    })
}
