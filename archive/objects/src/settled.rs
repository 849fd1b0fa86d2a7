//! Finds a settled line of generations. A line is a generation and its ancestors, as a listing of the archive shows
//! them. It is settled if every later primary inherits all of it.
//!
//! This code lists the archive, and then looks whether somebody has claimed a later generation. If nobody has, the line
//! is settled: a later primary lists the archive only after its own claim (invariant 66), so it finds everything that
//! this listing has shown. Followers and pruning use only settled lines.

use super::archive::Archive;
use super::confirm::confirmed;
use super::controls::{Rule, keep};
use super::error::ArchiveError;
use super::keys::{Generation, Key};
use super::plan::{Lineage, Plan, Step, Target};

/// A listing of an archive whose line of generations is settled: every later primary inherits all of its transactions.
#[derive(Debug)]
pub struct Settled {
    archive: Archive,
    lineage: Lineage,
}

/// What a copy of the database has to apply next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The pages of this object.
    Step(Step),
    /// The whole newest state. The copy needs it if a later generation has abandoned the copy's state, or if pruning
    /// has deleted the objects that would continue that state.
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

    /// Does the work of [`Archive::settled`]. `look` is the rule that this function must look for a later claim. A test
    /// may break the rule.
    pub(crate) async fn settled_lineage(&self, look: Rule) -> Result<Option<Lineage>, ArchiveError> {
        let list = async || {
            let lineage = Lineage::read(self).await?;
            // Litestream makes no claims, and no primary takes over an archive that Litestream made.
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
    /// Returns the newest transaction that can be restored.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Gap`]; [`ArchiveError::Empty`].
    pub fn newest(&self) -> Result<u64, ArchiveError> {
        self.lineage.latest().map(|(_, txid)| txid)
    }

    /// Returns the objects from which a restore makes the database as it was at a moment.
    ///
    /// # Errors
    ///
    /// As [`Archive::plan`].
    pub async fn plan(&self, target: Target) -> Result<Plan, ArchiveError> {
        self.lineage.plan(&self.archive, target).await
    }

    /// Returns what a copy needs next, if the copy is in the state after `txid` of `generation`. If a crash has cut
    /// short a step or a move, the copy may be in any state between `txid` and `applying`. The next step then leads
    /// on from all of them.
    #[must_use]
    pub fn after(&self, generation: Option<Generation>, txid: u64, applying: Option<u64>) -> Next {
        let links = &self.lineage.links;
        let Some(at) = links.iter().position(|link| link.generation == generation) else { return Next::Base };
        if links[at].limit.is_some_and(|limit| applying.unwrap_or(0).max(txid) >= limit) {
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
        // No object continues the copy's state. The copy is up to date only if it has not begun a step and the archive
        // has no later state. Otherwise it needs the whole newest state: pruning may have deleted the objects in
        // between, or only a snapshot leads to the later state.
        let is_behind = self.lineage.newest_until(u64::MAX).is_some_and(|newest| newest > txid);
        if is_behind || applying.is_some() { Next::Base } else { Next::Nothing }
    }
}
