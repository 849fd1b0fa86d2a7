//! Checks an archive: fetches each object, and reports which states can be restored without the damaged ones.

use duralite_ltx::DatabaseChecksum;

use super::archive::Archive;
use super::chain::Missing;
use super::error::ArchiveError;
use super::fetch::{Objects, Report, fetch};
use super::keys::{Generation, Object};
use super::plan::{Lineage, Step};
use super::records::Base;
use super::restore::read_step;

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The object's key.
    pub key: String,
    /// What is wrong with the object.
    pub what: String,
}

/// The states of a generation that can be restored without its damaged or missing objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intact {
    /// The generation; `None` if Litestream made the archive.
    pub generation: Option<Generation>,
    /// The first state that can be restored.
    pub first: Option<u64>,
    /// The last state that can be restored.
    pub last: Option<u64>,
    /// The number of states that can be restored.
    pub states: u64,
    /// The gaps after the last state: transactions that no undamaged object has, although some object has later ones.
    pub missing: Vec<Missing>,
}

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The number of objects that were checked.
    pub objects: u64,
    /// The bytes of these objects.
    pub bytes: u64,
    /// One finding for each damaged or missing object.
    pub findings: Vec<Finding>,
    /// What can be restored without these objects, the newest generation first.
    pub intact: Vec<Intact>,
}

impl Verified {
    /// Returns whether no object is damaged and no transaction is missing.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty() && self.intact.iter().all(|intact| intact.missing.is_empty())
    }
}

impl Archive {
    /// Fetches and checks each object of those generations that a restore can use.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`] if the store does not answer; [`ArchiveError::Empty`]; [`ArchiveError::Damaged`] if a
    /// record cannot be read. What is wrong with an object is in the result.
    pub async fn verify(&self, parallel: usize, report: Option<Report>) -> Result<Verified, ArchiveError> {
        let mut lineage = Lineage::read_confirmed(self).await?;
        let mut work = Vec::new();
        for link in &lineage.links {
            let base = link.start.as_ref().map(|start| start.base.clone());
            work.extend(link.objects.iter().map(|object| {
                let step =
                    Step { key: link.replica.key(object), object: *object, generation: link.generation };
                let is_base =
                    object.is_snapshot() && base.as_ref().is_some_and(|base| base.txid == object.max);
                (step, base.clone().filter(|_| is_base))
            }));
        }
        let steps: Vec<Step> = work.iter().map(|(step, _)| step.clone()).collect();
        let bytes = steps.iter().map(|step| step.object.bytes).sum();
        let mut wrong: Vec<(Step, ArchiveError)> = fetch(self, &steps, parallel, report, move |objects| {
            work.iter().filter_map(|(step, base)| check(objects, step, base.as_ref()).transpose()).collect()
        })
        .await?;
        if wrong.iter().any(|(_, error)| error.is_missing()) {
            // If a new listing no longer shows a missing object, pruning has deleted it, and another object has its
            // transactions.
            lineage = Lineage::read_confirmed(self).await?;
            wrong.retain(|(step, error)| !error.is_missing() || lineage.has(step));
        }
        let without = lineage.without(|key| wrong.iter().any(|(step, _)| step.key == *key));
        let intact = without.links.iter().map(|link| Intact {
            generation: link.generation,
            first: link.chain.states().first().copied(),
            last: link.chain.states().last().copied(),
            states: link.chain.states().len() as u64,
            missing: link.chain.missing(),
        });
        let findings = wrong.into_iter().map(|(step, error)| match error {
            ArchiveError::Damaged { key, what } => Finding { key, what },
            error => Finding { key: step.key.to_string(), what: error.to_string() },
        });
        Ok(Verified {
            objects: steps.len() as u64,
            bytes,
            findings: findings.collect(),
            intact: intact.collect(),
        })
    }
}

/// Checks the next object, and returns what is wrong with it, if anything. Returns an error only if the store fails.
/// That says nothing about the object.
fn check(
    objects: &mut Objects,
    step: &Step,
    base: Option<&Base>,
) -> Result<Option<(Step, ArchiveError)>, ArchiveError> {
    let mut database = DatabaseChecksum::new();
    let checked = objects.next(|reader| {
        let summary = read_step(step, reader, |number, bytes| {
            if base.is_some() {
                database.add(number, bytes);
            }
            Ok(())
        })?;
        let (pages, page_size) = (summary.header.commit, summary.header.page_size);
        let is_base = base.is_none_or(|base| {
            (base.pages, base.page_size) == (pages, page_size)
                && base.checksum == format!("{:016x}", database.value())
        });
        let what = "it is not the database that the generation's start record says".to_owned();
        if is_base { Ok(()) } else { Err(ArchiveError::Damaged { key: step.key.to_string(), what }) }
    });
    match checked {
        Ok(()) => Ok(None),
        Err(error) if error.is_damage() || error.is_missing() => Ok(Some((step.clone(), error))),
        Err(error) => Err(error),
    }
}

impl Lineage {
    /// Returns whether the listing still shows an object.
    fn has(&self, step: &Step) -> bool {
        let is_it = |object: &Object| *object == step.object;
        self.links.iter().any(|link| link.generation == step.generation && link.objects.iter().any(is_it))
    }
}
