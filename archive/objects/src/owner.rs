//! The owner of generations of an archive.

use super::error::ArchiveError;
use super::retry::Retry;

/// A machine that claims generations.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The random number by which the owner recognises its own claims; see [`random_token`].
    pub token: String,
    /// A name of the machine, which only people read.
    pub node: String,
    /// How the owner's requests are repeated.
    pub retry: Retry,
}

/// Returns a random number of 128 bits, as 32 hexadecimal digits.
///
/// # Errors
///
/// [`ArchiveError::File`] if the system cannot supply random numbers.
pub fn random_token() -> Result<String, ArchiveError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| ArchiveError::File {
        path: "random numbers".to_owned(),
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
