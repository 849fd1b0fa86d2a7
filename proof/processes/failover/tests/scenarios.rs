//! The scenarios. The explorer tries all orders of the small ones, and random orders of the large ones.

use std::time::Duration;

use duralite_archive::Policy;
use duralite_failover::actors::{self, Plan, Stage};
use duralite_failover::explorer::Life;
use duralite_failover::{Limits, Scenario};

pub type Actor = Box<dyn Fn(Stage) -> Life>;

pub fn first(plan: Plan) -> Actor {
    Box::new(move |stage| Box::pin(actors::first(stage, plan)))
}

pub fn standby(plan: Plan) -> Actor {
    Box::new(move |stage| Box::pin(actors::standby(stage, plan)))
}

pub fn copy(plan: Plan) -> Actor {
    Box::new(move |stage| Box::pin(actors::copy(stage, plan)))
}

pub fn follower(times: u32) -> Actor {
    Box::new(move |stage| Box::pin(actors::follower(stage, times)))
}

pub fn reader() -> Actor {
    Box::new(|stage| Box::pin(actors::reader(stage)))
}

pub fn pruner(policy: Policy, times: u32) -> Actor {
    Box::new(move |stage| Box::pin(actors::pruner(stage, policy, times)))
}

pub const fn limits(timeouts: u32, duplicates: u32, kills: u32) -> Limits {
    Limits { timeouts, duplicates, kills }
}

pub fn scenario(actors: Vec<Actor>, limits: Limits) -> Scenario {
    Scenario { actors, limits, keys_in_a_list: usize::MAX, kept: 1 }
}

/// Returns a pruning policy. A transaction takes ten seconds. Every moment is kept for as long as `keep`
/// transactions take, and every single transaction for as long as `transactions` transactions take.
pub fn policy(keep: u64, transactions: u64) -> Policy {
    Policy { keep: Duration::from_secs(10 * keep), transactions: Duration::from_secs(10 * transactions) }
}

/// Returns a scenario with a primary and a standby.
pub fn failover(limits: Limits) -> Scenario {
    scenario(vec![first(Plan::of(2)), standby(Plan::of(1))], limits)
}

/// Returns a scenario with a primary that looks and uploads at the same time, and a standby.
pub fn pipelined(limits: Limits) -> Scenario {
    let plan = Plan { is_pipelined: true, ..Plan::of(3) };
    scenario(vec![first(plan), standby(Plan::of(1))], limits)
}

/// Returns a scenario with a primary, and two standbys that are promoted at the same time.
pub fn two_standbys(limits: Limits) -> Scenario {
    scenario(vec![first(Plan::of(1)), standby(Plan::of(1)), standby(Plan::of(1))], limits)
}

/// Returns a scenario with a primary that loses transactions and starts over, and a standby.
pub fn gap(limits: Limits) -> Scenario {
    let plan = Plan { has_gap: true, ..Plan::of(1) };
    scenario(vec![first(plan), standby(Plan::of(1))], limits)
}

/// Returns a scenario with a primary, a standby and a follower.
pub fn followed(limits: Limits) -> Scenario {
    scenario(vec![first(Plan::of(2)), standby(Plan::of(1)), follower(1)], limits)
}

/// Returns a scenario with a primary, a standby and a reader.
pub fn read(limits: Limits) -> Scenario {
    scenario(vec![first(Plan::of(1)), standby(Plan::of(1)), reader()], limits)
}

/// Returns a scenario with the first primary and a copy of its machine.
pub fn copied(limits: Limits) -> Scenario {
    scenario(vec![first(Plan::of(1)), copy(Plan { is_copy: true, ..Plan::of(1) })], limits)
}

/// Returns a scenario with a primary that compacts, a standby, and a pruner.
pub fn pruned(limits: Limits) -> Scenario {
    let plan = Plan { compacts: true, ..Plan::of(5) };
    let actors = vec![first(plan), standby(Plan::of(1)), pruner(policy(1000, 0), 1)];
    scenario(actors, limits)
}

/// Returns a scenario like `pruned`, but the primary looks only after every third transaction. So it
/// continues to write for a while after another actor has replaced it.
pub fn seldom(limits: Limits) -> Scenario {
    let plan = Plan { compacts: true, looks_each: 3, ..Plan::of(6) };
    let actors = vec![first(plan), standby(Plan::of(1)), pruner(policy(1000, 0), 1)];
    let mut scenario = scenario(actors, limits);
    // Compaction may merge the newest acknowledged transaction with later ones. After that, no restore can
    // end with that transaction.
    scenario.kept = 0;
    scenario
}

/// Returns a scenario like `pruned`. It lasts several days, so that snapshots become too old.
pub fn days(limits: Limits) -> Scenario {
    let of_day = Plan { ms_each: 43_200_000, uploads_base: true, uploads_snapshot: true, ..Plan::of(3) };
    let plan = Plan { compacts: true, ..of_day };
    let day = Duration::from_secs(86_400);
    let policy = Policy { keep: day, transactions: day };
    let mut scenario = scenario(vec![first(plan), standby(of_day), pruner(policy, 2)], limits);
    scenario.kept = 2;
    scenario
}

/// Returns a scenario with the kinds of actors and events of the scenarios above. It is too large to try
/// every order.
pub fn large() -> Scenario {
    let plan = Plan { is_pipelined: true, compacts: true, uploads_snapshot: true, ..Plan::of(6) };
    let other = Plan { uploads_base: true, has_gap: true, ..plan };
    let actors = vec![
        first(plan),
        standby(Plan { uploads_base: true, ..plan }),
        standby(other),
        follower(6),
        reader(),
        pruner(policy(1000, 2), 4),
        reader(),
    ];
    let mut scenario = scenario(actors, limits(3, 2, 2));
    scenario.keys_in_a_list = 3;
    scenario.kept = 2;
    scenario
}
