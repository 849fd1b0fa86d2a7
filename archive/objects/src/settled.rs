//! Finds a settled line of generations. A line is settled if every later line will contain everything that is in it.
//!
//! This code lists the archive, and then looks whether somebody has claimed a later generation. If nobody has, the
//! line is settled: a later primary lists only after its own claim (invariant 66), so it finds everything that this
//! list has shown. Followers and pruning use only settled lines.

use super::archive::Archive;
use super::confirm::confirmed;
use super::controls::{Rule, keep};
use super::error::ArchiveError;
use super::keys::{Generation, Key};
use super::plan::{Lineage, Plan, Step, Target};

/// A list of an archive. Every later line has all of its transactions too.
#[derive(Debug)]
pub struct Settled {
    archive: Archive,
    lineage: Lineage,
}

/// What a copy of the database needs next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The pages of this object.
    Step(Step),
    /// The newest state as a whole. Either the copy's own line has ended, or pruning has deleted the objects that led
    /// on from the copy's state.
    Base,
    /// Nothing, because the copy is up to date.
    Nothing,
}

impl Archive {
    /// Lists the archive, and looks for a later claim. Returns `None` if the newest claim has no start record, or if
    /// the look found a later claim. In both cases a new primary is about to begin.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Empty`]; [`ArchiveError::Store`]; [`ArchiveError::Damaged`].
    pub async fn settled(&self) -> Result<Option<Settled>, ArchiveError> {
        let lineage = self.settled_lineage(Rule::FollowerLooks).await?;
        Ok(lineage.map(|lineage| Settled { archive: self.clone(), lineage }))
    }

    /// Does the work of [`Archive::settled`]. If a test breaks the rule `look`, this leaves out the look.
    pub(crate) async fn settled_lineage(&self, look: Rule) -> Result<Option<Lineage>, ArchiveError> {
        let list = async || {
            let lineage = Lineage::read(self).await?;
            // Litestream knows no claims, and nobody takes its archive over.
            let Some(newest) = lineage.newest_claim else { return Ok(Some(lineage)) };
            let is_begun = lineage.head() == Some(newest);
            let is_passed =
                is_begun && keep(look) && self.exists(&self.key(Key::Claim(newest.next()))).await?;
            Ok((is_begun && !is_passed).then_some(lineage))
        };
        confirmed(list, |lineage| lineage.as_ref().and_then(Lineage::lack)).await
    }
}

impl Settled {
    /// Returns the newest transaction.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Gap`]; [`ArchiveError::Empty`].
    pub fn newest(&self) -> Result<u64, ArchiveError> {
        self.lineage.latest().map(|(_, txid)| txid)
    }

    /// Returns the objects that make the database of a moment.
    ///
    /// # Errors
    ///
    /// As [`Archive::plan`].
    pub async fn plan(&self, target: Target) -> Result<Plan, ArchiveError> {
        self.lineage.plan(&self.archive, target).await
    }

    /// Returns what a copy needs next, if the copy is in the state after `txid` of `generation`. If the copy may
    /// already have applied a part of a step that ends with `applying`, the next step reaches at least that far.
    #[must_use]
    pub fn after(&self, generation: Option<Generation>, txid: u64, applying: Option<u64>) -> Next {
        let links = &self.lineage.links;
        let Some(at) = links.iter().position(|link| link.generation == generation) else { return Next::Base };
        if links[at].limit.is_some_and(|limit| applying.unwrap_or(txid) >= limit) {
            return Next::Base;
        }
        if let Some(step) = links[at].step_after(txid, applying) {
            return Next::Step(step);
        }
        if applying.is_none()
            && let Some(newer) = at.checked_sub(1).map(|newer| &links[newer])
            && newer.continues()
            && newer.base() == txid
            && let Some(step) = newer.step_after(txid, None)
        {
            return Next::Step(step);
        }
        // No step leads on. The copy is up to date only if it is whole and the line has no later state. Otherwise the
        // copy needs a new base: pruning may have deleted the objects in between, and a snapshot does not count as a
        // step.
        let is_behind = self.lineage.newest_until(u64::MAX).is_some_and(|newest| newest > txid);
        if is_behind || applying.is_some() { Next::Base } else { Next::Nothing }
    }
}
