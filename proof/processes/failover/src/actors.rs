//! The actors: primaries with their databases, standbys that are promoted, followers, readers, and a pruner.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use duralite_archive::{
    Archive, ArchiveError, Begin, Claimed, Generation, Inherited, Line, Owner, Pauses, Policy, Primary,
    Resumed, Retry, Target, Times,
};
use futures_util::future::{BoxFuture, join, ready};
use futures_util::stream;
use object_store::path::Path;

use super::database::{self, History};
use super::judge::Judge;
use super::world::{World, hash_of};

/// The name of the transaction that is already in the database when the archive begins.
const BASE: u16 = 0x100;

/// The part of an actor that survives its death.
#[derive(Debug, Clone, Default, Hash)]
pub struct Disk {
    /// The generation that the actor owns.
    generation: Option<Generation>,
    /// The database, with the transactions that are durable in its log.
    history: History,
    /// The number of the transaction just before the first one in `history`.
    before: i64,
    /// The number of transactions that the actor has committed.
    committed: u16,
}

impl Disk {
    fn txid(&self) -> u64 {
        (self.before + self.history.len() as i64) as u64
    }

    /// Returns the history up to and including transaction `txid`.
    fn at(&self, txid: u64) -> &[u16] {
        &self.history[..(txid as i64 - self.before) as usize]
    }
}

/// What an actor uses in a schedule: its number, the store, the judge and its own disk.
pub struct Stage {
    actor: usize,
    world: Arc<World>,
    judge: Rc<RefCell<Judge>>,
    disk: Rc<RefCell<Disk>>,
}

/// The actions of a primary.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The number of transactions that the primary commits.
    pub transactions: u16,
    /// The time from one transaction to the next, in milliseconds.
    pub ms_each: i64,
    /// The number of transactions between two *looks*. In a look, the primary asks whether somebody has
    /// claimed the next generation. It also looks after the last transaction.
    pub looks_each: u16,
    /// Whether the look that acknowledges one transaction runs while the primary uploads the next one.
    pub is_pipelined: bool,
    /// Whether the primary uploads a snapshot of the base even if the archive does not need it.
    pub uploads_base: bool,
    /// Whether the primary uploads a snapshot after its last transaction.
    pub uploads_snapshot: bool,
    /// Whether the primary compacts after each transaction.
    pub compacts: bool,
    /// Whether the log loses two more transactions after the first `transactions`, so that the archive never
    /// gets these two. The primary then starts over, and commits one more transaction.
    pub has_gap: bool,
    /// Whether the primary's machine is a copy of the machine of actor 0, with the same token.
    pub is_copy: bool,
}

impl Plan {
    /// Returns a plan that commits some transactions and does nothing else.
    #[must_use]
    pub const fn of(transactions: u16) -> Self {
        Self {
            transactions,
            ms_each: 10_000,
            looks_each: 1,
            is_pipelined: false,
            uploads_base: false,
            uploads_snapshot: false,
            compacts: false,
            has_gap: false,
            is_copy: false,
        }
    }
}

/// A retry policy that repeats a request without a pause. It allows more attempts than there can be failures
/// in one schedule.
#[derive(Debug)]
struct AtOnce;

impl Pauses for AtOnce {
    fn pause<'a>(&'a self, attempts: u32, _reason: &'a ArchiveError) -> BoxFuture<'a, bool> {
        Box::pin(ready(attempts < 10))
    }
}

impl Stage {
    pub(crate) fn new(
        actor: usize,
        world: &Arc<World>,
        judge: &Rc<RefCell<Judge>>,
        disk: &Rc<RefCell<Disk>>,
    ) -> Self {
        Self { actor, world: Arc::clone(world), judge: Rc::clone(judge), disk: Rc::clone(disk) }
    }

    fn archive(&self) -> Archive {
        Archive::on(self.world.client(self.actor), Path::default())
    }

    fn owner(&self, plan: &Plan) -> Owner {
        let machine = if plan.is_copy { 0 } else { self.actor };
        Owner { token: format!("{machine:032x}"), node: format!("{machine}"), retry: Retry::new(AtOnce) }
    }

    fn disk(&self) -> RefMut<'_, Disk> {
        self.disk.borrow_mut()
    }

    fn promise(&self, txid: u64) {
        let disk = self.disk();
        if txid > 0 {
            self.judge.borrow_mut().promise(&format!("{}", self.actor), txid, disk.at(txid));
        }
    }

    fn commit(&self) {
        let mut disk = self.disk();
        disk.committed += 1;
        let name = (self.actor as u16 + 1) << 8 | disk.committed;
        disk.history.push(name);
    }
}

/// Runs one life of an actor. The life ends with success or with an error of the archive. Some errors must
/// not occur in any schedule. Reports such an error as a violation.
async fn ends(life: impl Future<Output = Result<(), ArchiveError>>, stage: &Stage) {
    let is_wrong = |error: &ArchiveError| match error {
        ArchiveError::Damaged { .. } | ArchiveError::Gap { .. } => true,
        // Only the owner of a claim creates the start record, so no other start record can exist.
        ArchiveError::Contradicted { key } => key.ends_with(".start"),
        _ => false,
    };
    if let Some(error) = life.await.err().filter(is_wrong) {
        let actor = stage.actor;
        stage.judge.borrow_mut().violate(format!("{actor} finds: {error}"));
    }
}

/// Runs the first primary. Its database exists before the archive does.
pub async fn first(stage: Stage, plan: Plan) {
    let life = async {
        let archive = stage.archive();
        let generation = stage.disk().generation;
        if let Some(generation) = generation {
            return resume(&stage, &plan, generation).await;
        }
        if stage.disk().history.is_empty() {
            stage.disk().history = vec![BASE];
        }
        let claimed = archive.claim(&stage.owner(&plan), 0).await?;
        // If the archive has a state already, the first primary does not begin a second history.
        if claimed.inherited().await?.is_some() {
            return Ok(());
        }
        begin(&stage, &plan, claimed, None, Line::First).await
    };
    ends(life, &stage).await;
}

/// Runs a machine that is a copy of the first primary's machine. The copy was made when the database had only
/// one transaction.
pub async fn copy(stage: Stage, plan: Plan) {
    let life = async {
        stage.disk().history = vec![BASE];
        match stage.archive().resume(&stage.owner(&plan), Generation::FIRST).await {
            // A sidecar continues only if the archive has no transaction that its log lacks.
            Ok(Resumed::Primary(primary)) if primary.uploaded() == stage.disk().txid() => {
                serve(&stage, &plan, primary).await
            }
            // Otherwise the copy is too old for this schedule, so it does nothing.
            _ => Ok(()),
        }
    };
    ends(life, &stage).await;
}

/// Runs a standby that is promoted.
pub async fn standby(stage: Stage, plan: Plan) {
    let life = async {
        let archive = stage.archive();
        let generation = stage.disk().generation;
        if let Some(generation) = generation {
            return resume(&stage, &plan, generation).await;
        }
        let claimed = archive.claim(&stage.owner(&plan), 0).await?;
        let Some(inherited) = claimed.inherited().await? else { return Ok(()) };
        let history = match database::make(&archive, &inherited.plan).await {
            Err(error) if error.is_missing() || error.is_temporary() => {
                database::restore(&archive, Target::Txid(inherited.end), 5).await?
            }
            history => history?,
        };
        let before = inherited.end as i64 - history.len() as i64;
        {
            let mut disk = stage.disk();
            disk.history = history;
            disk.before = before;
        }
        begin(&stage, &plan, claimed, Some(&inherited), Line::Continues).await
    };
    ends(life, &stage).await;
}

async fn begin(
    stage: &Stage,
    plan: &Plan,
    claimed: Claimed,
    inherited: Option<&Inherited>,
    line: Line,
) -> Result<(), ArchiveError> {
    let begin = {
        let disk = stage.disk();
        Begin {
            pages: disk.history.len() as u32,
            page_size: 512,
            checksum: hash_of(&disk.history),
            time_ms: 0,
        }
    };
    let primary = claimed.start(inherited, line, &begin).await?;
    {
        let mut disk = stage.disk();
        disk.before = primary.start().base.txid as i64 - disk.history.len() as i64;
        disk.generation = Some(primary.generation());
    }
    Box::pin(serve(stage, plan, primary)).await
}

async fn resume(stage: &Stage, plan: &Plan, generation: Generation) -> Result<(), ArchiveError> {
    let archive = stage.archive();
    let owner = stage.owner(plan);
    match archive.resume(&owner, generation).await? {
        Resumed::Fenced(_) => Ok(()),
        Resumed::Primary(primary) => {
            {
                let mut disk = stage.disk();
                // In the product, the sidecar learns the number of each transaction from the log. Here the
                // actor computes the numbers anew. If the generation began after a gap, its base is the
                // newest transaction of the history.
                if disk.generation != Some(primary.generation()) && disk.generation.is_some() {
                    disk.before = primary.start().base.txid as i64 - disk.history.len() as i64;
                }
                disk.generation = Some(primary.generation());
            }
            serve(stage, plan, primary).await
        }
        Resumed::Unbegun(unbegun) => {
            start_over(stage, plan, archive.claim_after(&owner, unbegun, 0).await?).await
        }
    }
}

/// Begins a claimed generation with a new base. The archive then has a gap in place of the transactions that
/// it lacks.
async fn start_over(stage: &Stage, plan: &Plan, claimed: Claimed) -> Result<(), ArchiveError> {
    let inherited = claimed.inherited().await?;
    begin(stage, plan, claimed, inherited.as_ref(), Line::Gap).await
}

async fn serve(stage: &Stage, plan: &Plan, primary: Primary) -> Result<(), ArchiveError> {
    let time = |txid: u64| txid as i64 * plan.ms_each;
    let upload = async |from: u64, upto: u64| {
        let content = {
            let disk = stage.disk();
            database::file(disk.at(upto), (from as i64 - 1 - disk.before) as usize, from, upto, time(upto))
        };
        primary.upload(content, from, upto, time(upto)).await
    };
    let snapshot = async |txid: u64| {
        let content = database::file(stage.disk().at(txid), 0, 1, txid, time(txid));
        primary.upload_snapshot(stream::iter([Ok(content)]), txid, time(txid)).await
    };
    let base = primary.start().base.txid;
    let acknowledge = async || primary.acknowledge().await.map(|txid| stage.promise(txid));
    if !primary.has_base() || plan.uploads_base {
        snapshot(base).await?;
    }
    acknowledge().await?;
    let mut times = Times::default();
    let rest = stage.disk().txid();
    if rest > primary.uploaded() {
        upload(primary.uploaded() + 1, rest).await?;
        acknowledge().await?;
    }
    while stage.disk().committed < plan.transactions {
        stage.commit();
        let txid = stage.disk().txid();
        upload(txid, txid).await?;
        if plan.is_pipelined && stage.disk().committed < plan.transactions {
            stage.commit();
            let (looked, uploaded) = join(acknowledge(), upload(txid + 1, txid + 1)).await;
            looked.and(uploaded)?;
        }
        let committed = stage.disk().committed;
        if committed.is_multiple_of(plan.looks_each) || committed >= plan.transactions {
            acknowledge().await?;
        }
        if plan.compacts {
            primary.compact(&mut times).await?;
        }
    }
    if plan.uploads_snapshot {
        let txid = stage.disk().txid();
        snapshot(txid).await?;
    }
    if plan.has_gap && stage.disk().committed == plan.transactions {
        // The log loses these two transactions before the primary uploads them.
        stage.commit();
        stage.commit();
        let claimed = primary.start_over(0).await?;
        let plan = Plan { transactions: plan.transactions + 3, has_gap: false, ..*plan };
        return start_over(stage, &plan, claimed).await;
    }
    Ok(())
}

/// Runs a follower. It lists the archive `times` times, and each time applies the settled transactions to its
/// copy.
pub async fn follower(stage: Stage, times: u32) {
    let life = async {
        let archive = stage.archive();
        for _ in 0..times {
            let settled = match archive.settled().await {
                Ok(Some(settled)) => settled,
                Ok(None) | Err(ArchiveError::Empty) => continue,
                Err(error) => return Err(error),
            };
            let plan = match settled.plan(Target::Latest).await {
                Err(ArchiveError::Empty) => continue,
                plan => plan?,
            };
            match database::make(&archive, &plan).await {
                Ok(history) => stage.judge.borrow_mut().promise("the follower", plan.txid, &history),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    ends(life, &stage).await;
}

/// Runs a reader, which restores the newest state in the archive.
pub async fn reader(stage: Stage) {
    let promised = stage.judge.borrow().promised().to_vec();
    stage.world.learn(stage.actor, hash_of(&promised));
    let life = async {
        match database::restore(&stage.archive(), Target::Latest, 3).await {
            Err(ArchiveError::Empty) => stage.judge.borrow_mut().has_read(&promised, &[]),
            history => stage.judge.borrow_mut().has_read(&promised, &history?),
        }
        Ok(())
    };
    ends(life, &stage).await;
}

/// Runs a pruner, which prunes `times` times.
pub async fn pruner(stage: Stage, policy: Policy, times: u32) {
    let life = async {
        for _ in 0..times {
            stage.archive().prune(&policy, &Retry::new(AtOnce), false).await?;
        }
        Ok(())
    };
    ends(life, &stage).await;
}
