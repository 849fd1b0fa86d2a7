//! Tests the explorer itself: the tests break each rule, and the explorer has to notice that.

use duralite_archive::{Rule, break_rule};
use duralite_failover::{Scenario, draw, explore};

use super::scenarios::{self, limits};

/// Checks that the explorer notices a broken rule when it tries all orders of a small scenario.
fn finds(rule: Rule, scenario: &Scenario) {
    break_rule(Some(rule));
    let explored = explore(scenario, 5_000_000);
    break_rule(None);
    match explored {
        Ok(explored) => panic!("{rule:?} is broken, and nothing is found: {explored:?}"),
        Err(violation) => println!("{rule:?} is broken: {violation}"),
    }
}

/// Checks that the explorer notices a broken rule when it tries random orders of a larger scenario.
fn draws(rule: Rule, scenario: &Scenario) {
    break_rule(Some(rule));
    let drawn = draw(scenario, 1, 20_000);
    break_rule(None);
    match drawn {
        Ok(explored) => panic!("{rule:?} is broken, and nothing is found: {explored:?}"),
        Err(violation) => println!("{rule:?} is broken: {violation}"),
    }
}

#[test]
fn control_inv65_claims_that_replace_others() {
    draws(Rule::ClaimIsCreated, &scenarios::two_standbys(limits(0, 0, 0)));
}

#[test]
fn control_inv65_claims_that_are_not_given_up() {
    draws(Rule::GiveUpClaims, &scenarios::gap(limits(0, 0, 1)));
}

#[test]
fn control_inv66_no_look() {
    finds(Rule::Look, &scenarios::failover(limits(0, 0, 0)));
}

#[test]
fn control_inv66_a_look_before_the_upload() {
    finds(Rule::LookAfterUpload, &scenarios::failover(limits(0, 0, 0)));
}

#[test]
fn control_inv66_no_base() {
    finds(Rule::BaseBeforeAcknowledging, &scenarios::gap(limits(0, 0, 0)));
}

#[test]
fn control_inv67_a_list_before_the_claim() {
    finds(Rule::ListAfterClaim, &scenarios::failover(limits(0, 0, 0)));
}

#[test]
fn control_inv68_everything_of_the_parent() {
    finds(Rule::EndOfParent, &scenarios::failover(limits(0, 0, 0)));
}

#[test]
fn control_inv68_a_follower_that_does_not_look() {
    finds(Rule::FollowerLooks, &scenarios::followed(limits(0, 0, 0)));
}

#[test]
fn control_inv69_contents_are_not_compared() {
    finds(Rule::CompareContents, &scenarios::copied(limits(0, 0, 0)));
}

#[test]
fn control_inv74_what_is_not_acknowledged_is_compacted_and_pruned() {
    draws(Rule::OnlyAcknowledged, &scenarios::seldom(limits(0, 0, 0)));
}

#[test]
fn control_inv74_transactions_are_deleted_that_were_not_compacted() {
    draws(Rule::DeleteAfterCompaction, &scenarios::pruned(limits(0, 0, 0)));
}

#[test]
fn control_inv74_the_oldest_base_is_deleted() {
    draws(Rule::KeepBase, &scenarios::days(limits(0, 0, 0)));
}
