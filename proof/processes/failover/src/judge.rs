//! The judge knows what the actors have promised, and checks whether the store keeps the promises.
//!
//! An actor that acknowledges a transaction promises that the archive keeps the transaction and everything
//! before it. A follower that applies a transaction to its copy promises the same. From then on every
//! restored database must begin with that history. If neither of two promised histories begins with the
//! other, the history is split, and that is a violation.

use std::collections::BTreeMap;
use std::sync::Arc;

use duralite_archive::{Archive, Target};
use futures_util::FutureExt;
use object_store::path::Path;
use rustc_hash::FxHashSet;

use super::database::{self, History};
use super::world::{World, hash_of};

/// The promises so far, and the first violation.
#[derive(Debug, Default)]
pub struct Judge {
    promised: History,
    /// The histories that a restore must still be able to reach, keyed by their last transactions.
    moments: BTreeMap<u64, History>,
    /// For each of this many newest transactions, a restore must be able to stop exactly after it.
    kept: u64,
    violation: Option<String>,
}

/// Hashes of the states that the judge has found correct. A state consists of the contents of the store and
/// the promises made so far.
pub type Seen = FxHashSet<u64>;

impl Judge {
    /// Makes a judge that also checks that a restore can end with each of the last `kept` transactions.
    #[must_use]
    pub fn new(kept: u64) -> Self {
        Self { kept, ..Self::default() }
    }

    /// Records the promise of `who` that the archive keeps this history, which ends with the transaction
    /// `txid`.
    pub fn promise(&mut self, who: &str, txid: u64, history: &[u16]) {
        let is_longer = history.len() >= self.promised.len();
        let (long, short) = if is_longer { (history, &*self.promised) } else { (&*self.promised, history) };
        if !long.starts_with(short) {
            self.violate(format!("{who} promises {history:x?}, and {:x?} was promised", self.promised));
        } else if is_longer {
            self.promised = history.to_vec();
            self.moments.insert(txid, history.to_vec());
            let kept = self.kept;
            self.moments.retain(|old, _| old + kept > txid);
        }
    }

    /// Checks the history that a reader has read. `promised` is what was promised when the reader began.
    pub fn has_read(&mut self, promised: &[u16], history: &[u16]) {
        if !history.starts_with(promised) {
            self.violate(format!("a reader has {history:x?}, and {promised:x?} was promised before"));
        }
    }

    /// Returns the history that is promised now.
    #[must_use]
    pub fn promised(&self) -> &[u16] {
        &self.promised
    }

    /// Records that something is wrong. Only the first text counts.
    pub fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// Returns a hash of what the judge remembers.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        hash_of(&(&self.promised, &self.moments))
    }

    /// Restores a database from the store as it is now, and checks the result.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self, world: &Arc<World>, seen: &mut Seen) -> Result<(), String> {
        if let Some(violation) = &self.violation {
            return Err(violation.clone());
        }
        if self.promised.is_empty() || !seen.insert(hash_of(&(world.contents(), self.fingerprint()))) {
            return Ok(());
        }
        let restores = async {
            let archive = Archive::on(world.as_it_is().client(0), Path::default());
            let newest = database::restore(&archive, Target::Latest, 1).await;
            let history = newest.map_err(|error| format!("nothing can be restored: {error}"))?;
            if !history.starts_with(&self.promised) {
                return Err(format!("a restore has {history:x?}, and {:x?} was promised", self.promised));
            }
            for (txid, promised) in &self.moments {
                let history = database::restore(&archive, Target::Txid(*txid), 1).await;
                let history = history.map_err(|error| format!("a kept moment is lost: {error}"))?;
                if history != *promised {
                    return Err(format!(
                        "the moment {txid} was {promised:x?}, and is restored as {history:x?}"
                    ));
                }
            }
            Ok(())
        };
        restores.now_or_never().unwrap_or_else(|| Err("the judge waits".to_owned()))
    }
}
