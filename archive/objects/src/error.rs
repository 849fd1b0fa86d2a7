//! The only error type of this crate. No error text contains credentials: this crate takes credentials only from the
//! environment, and refuses a location with credentials in it.

use std::io;
use std::path::Path as FilePath;

use duralite_ltx::LtxError;
use object_store::path::Path;

use super::keys::Generation;
use super::records::Claim;

/// Why something could not be done with an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The text is not the location of an archive.
    #[error("not the location of an archive: {0}")]
    Location(String),
    /// The environment does not say which credentials to use for the store.
    #[error(
        "{missing} in the environment; for the role of this machine set AWS_METADATA_ENDPOINT=http://169.254.169.254, and \
         for a bucket that everybody may read AWS_SKIP_SIGNATURE=true"
    )]
    Credentials {
        /// What is missing.
        missing: &'static str,
    },
    /// The object store has failed, or refuses the request.
    #[error("{doing} {key}: {source}")]
    Store {
        /// What the request was to do.
        doing: &'static str,
        /// The object's key, or the prefix.
        key: String,
        /// What the store said.
        source: object_store::Error,
    },
    /// An object is not what its name says, or contradicts itself.
    #[error("{key}: {what}")]
    Damaged {
        /// The object's key.
        key: String,
        /// What is wrong with the object.
        what: String,
    },
    /// Nothing can be restored: there is no archive at this place, or it has no state yet.
    #[error("there is no archive, or nothing in it yet")]
    Empty,
    /// Objects are missing in the middle.
    #[error("transactions {first} to {last} are missing in the archive; {}", instead(*had, None))]
    Gap {
        /// The first transaction that is missing.
        first: u64,
        /// The last transaction that is missing.
        last: u64,
        /// The last transaction before the gap. A restore can still reach this transaction.
        had: Option<u64>,
    },
    /// The archive changed during every listing, so that no two listings agreed.
    #[error("the archive was changed each time while it was listed; try again")]
    Changing,
    /// No restore can end with this transaction. Either the transaction is not archived yet, or an object has it
    /// together with later transactions.
    #[error("the archive has no state after transaction {txid}; {}", instead(*before, *after))]
    NotThere {
        /// The transaction.
        txid: u64,
        /// The last state before the transaction.
        before: Option<u64>,
        /// The first state after the transaction.
        after: Option<u64>,
    },
    /// The oldest state in the archive is newer than this time.
    #[error("the archive begins later; {}", instead(None, *oldest))]
    TooEarly {
        /// The first state.
        oldest: Option<u64>,
    },
    /// An object that a restore needs is damaged or missing.
    #[error("{cause}; {}", instead(*had, None))]
    Broken {
        /// The object and what is wrong with it.
        cause: Box<ArchiveError>,
        /// The last transaction that a restore can reach without that object.
        had: Option<u64>,
    },
    /// Another owner has taken a later generation, and is the primary.
    #[error(
        "another is the primary: {node} has taken generation {generation}; this one acknowledges nothing any more"
    )]
    Fenced {
        /// The generation.
        generation: Generation,
        /// The machine, as it names itself.
        node: String,
    },
    /// The owner itself has claimed a later generation, and has not begun that generation.
    #[error(
        "generation {generation} was claimed in order to start over, and has not begun; another has to be claimed"
    )]
    Passed {
        /// The generation.
        generation: Generation,
    },
    /// An object with this key exists already, and its contents differ from what this primary wants to write.
    #[error("{key} exists with other contents: another primary writes there as this one")]
    Contradicted {
        /// The object's key.
        key: String,
    },
    /// The store lets a second request create the same object again.
    #[error(
        "this object store does not refuse to create an object that exists, so it cannot tell two primaries apart"
    )]
    Unfit,
    /// A file exists at the place where the restored database is to be.
    #[error("{path} exists; restore never replaces a file: choose another path, or move it away")]
    Exists {
        /// The file.
        path: String,
    },
    /// A task of the program ended without an answer.
    #[error("a task of the program ended without an answer")]
    Task,
    /// An operation on a local file has failed.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

impl ArchiveError {
    pub(crate) fn store(
        doing: &'static str,
        key: &object_store::path::Path,
    ) -> impl FnOnce(object_store::Error) -> Self {
        move |source| Self::Store { doing, key: key.to_string(), source }
    }

    pub(crate) fn of_file(path: &FilePath) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { path: path.display().to_string(), source }
    }

    pub(crate) fn of_object(key: &Path) -> impl FnOnce(LtxError) -> Self {
        move |error| Self::Damaged { key: key.to_string(), what: error.to_string() }
    }

    /// Returns whether the error says that the requested object does not exist.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Store { source: object_store::Error::NotFound { .. }, .. })
    }

    /// Returns whether the error says that something is missing in a listing of the archive. A second listing may show
    /// it.
    pub(crate) const fn is_lack(&self) -> bool {
        matches!(self, Self::Empty | Self::Gap { .. } | Self::NotThere { .. } | Self::TooEarly { .. })
    }

    /// Returns whether the object itself is damaged. If it is, another request does not help.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    pub(crate) fn fenced(by: &Claim) -> Self {
        Self::Fenced { generation: by.generation, node: by.node.clone() }
    }

    /// Returns whether the same request may succeed later, because the network failed or the store is overloaded. A
    /// refusal is permanent. The store refuses a request that has no permission or wrong credentials, or that names
    /// another region or a bucket that does not exist.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        let source = match self {
            Self::Store { source: source @ object_store::Error::Generic { .. }, .. } => source,
            Self::Changing => return true,
            _ => return false,
        };
        // Only the error's text contains the status of the store's answer.
        let text = source.to_string();
        let is_refused = text.contains("status code: 4") || text.contains("redirect");
        let is_to_repeat = ["status code: 408", "status code: 429", "RequestTimeout", "SlowDown"];
        !is_refused || is_to_repeat.iter().any(|status| text.contains(status))
    }

    /// If the error says that an object does not exist, turns it into a temporary error. The caller uses this when the
    /// store has just said that the object exists.
    pub(crate) fn into_temporary(self) -> Self {
        match self {
            Self::Store { doing, key, source: source @ object_store::Error::NotFound { .. } } => {
                let source = object_store::Error::Generic { store: "archive", source: Box::new(source) };
                Self::Store { doing, key, source }
            }
            other => other,
        }
    }
}

/// Returns a text that says which states can be restored instead.
fn instead(before: Option<u64>, after: Option<u64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => {
            format!("the next ones are those after transactions {before} and {after}")
        }
        (Some(last), None) => format!("the last state that can be had is that after transaction {last}"),
        (None, Some(first)) => format!("the first state that can be had is that after transaction {first}"),
        (None, None) => "no state can be had".to_owned(),
    }
}
