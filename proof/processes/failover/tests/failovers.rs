//! Checks that the archive keeps every promise, whatever goes wrong meanwhile.

use duralite_failover::{Scenario, draw, explore};

use super::scenarios::{self, limits};

/// Returns the number of random schedules for each large scenario: `usual`, or the value of
/// `FAILOVER_SCHEDULES`.
fn schedules(usual: u64) -> u64 {
    std::env::var("FAILOVER_SCHEDULES").ok().and_then(|number| number.parse().ok()).unwrap_or(usual)
}

/// Returns the first seed: the value of `FAILOVER_SEED`, or 1.
fn seed() -> u64 {
    std::env::var("FAILOVER_SEED").ok().and_then(|number| number.parse().ok()).unwrap_or(1)
}

fn every_order(name: &str, scenario: &Scenario) {
    match explore(scenario, 5_000_000) {
        Ok(explored) => println!("{name}: {explored:?}"),
        Err(violation) => panic!("{name}: {violation}"),
    }
}

fn some_orders(name: &str, scenario: &Scenario, usual: u64) {
    println!("{name}: from seed {}", seed());
    match draw(scenario, seed(), schedules(usual)) {
        Ok(explored) => println!("{name}: {explored:?}"),
        Err(violation) => panic!("{name}: {violation}"),
    }
}

#[test]
fn inv66_orders_of_a_failover() {
    every_order("failover", &scenarios::failover(limits(0, 0, 0)));
    some_orders("failover with faults", &scenarios::failover(limits(2, 1, 1)), 3_000);
}

#[test]
fn inv66_orders_of_a_pipelined_primary() {
    every_order("pipelined", &scenarios::pipelined(limits(0, 0, 0)));
    some_orders("pipelined with faults", &scenarios::pipelined(limits(2, 1, 1)), 3_000);
}

#[test]
fn inv65_inv67_orders_of_two_promotions() {
    some_orders("two standbys", &scenarios::two_standbys(limits(2, 1, 1)), 3_000);
}

#[test]
fn inv67_orders_of_starting_over() {
    some_orders("gap", &scenarios::gap(limits(1, 1, 2)), 3_000);
}

#[test]
fn inv68_orders_beside_a_follower() {
    some_orders("followed", &scenarios::followed(limits(1, 1, 1)), 3_000);
}

#[test]
fn inv68_orders_beside_a_reader() {
    some_orders("read", &scenarios::read(limits(1, 1, 1)), 3_000);
}

#[test]
fn inv69_orders_of_two_machines_with_one_token() {
    every_order("copied", &scenarios::copied(limits(0, 0, 0)));
    some_orders("copied with faults", &scenarios::copied(limits(2, 1, 0)), 1_000);
}

#[test]
fn inv74_drawn_orders_of_pruning() {
    some_orders("pruned", &scenarios::pruned(limits(1, 1, 1)), 1_000);
    some_orders("seldom", &scenarios::seldom(limits(1, 1, 0)), 1_000);
    some_orders("days", &scenarios::days(limits(1, 1, 1)), 1_000);
}

#[test]
fn inv65_inv66_inv67_inv68_inv69_inv74_drawn_orders_of_everything() {
    some_orders("large", &scenarios::large(), 500);
}
