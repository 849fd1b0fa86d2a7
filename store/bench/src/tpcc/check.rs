//! The twelve consistency conditions (clause 3.3.2). The specification demands condition 11 only of the initial rows.
//! Here it has another form: an order has a carrier if and only if it is not new.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::scale::{
    CUSTOMERS, DISTRICTS, HISTORY, NEW_ORDERS, ORDER_LINES, ORDERS, TpcC, WAREHOUSES, customer, district,
    line, order, warehouse,
};
use crate::kv::{Done, Session, Tx, run};
use crate::row::{field, part};

type Place = [u32; 2];
type Person = [u32; 3];

/// The rows and sums that the conditions compare.
#[derive(Default)]
struct Facts {
    warehouses: BTreeMap<u32, i64>,
    /// For each district, the next order number and the sum of payments.
    districts: BTreeMap<Place, (i64, i64)>,
    /// For each customer, the balance and the sum of payments.
    customers: BTreeMap<Person, (i64, i64)>,
    /// For each order, its customer, its carrier, and how many lines it should have.
    orders: BTreeMap<Person, (u32, i64, i64)>,
    new_orders: BTreeSet<Person>,
    /// For each order, how many lines it has, how many of them are delivered, and the amount of the delivered ones.
    lines: BTreeMap<Person, (i64, i64, i64)>,
    paid_at: BTreeMap<Place, i64>,
    paid_by: BTreeMap<Person, i64>,
}

type Each<'a> = dyn FnMut(&[u8], &[u8]) -> Done<()> + 'a;

/// Calls `each` for every row of a table.
fn all(tx: &mut dyn Tx, table: usize, each: &mut Each<'_>) -> Done<()> {
    let mut failure = None;
    tx.scan(table, &[], &[0xff; 33], false, &mut |key, row| {
        failure = each(key, row).err();
        failure.is_none()
    })?;
    failure.map_or(Ok(()), Err)
}

fn place(key: &[u8]) -> Done<Place> {
    Ok([part(key, 0)?, part(key, 1)?])
}

fn person(key: &[u8]) -> Done<Person> {
    Ok([part(key, 0)?, part(key, 1)?, part(key, 2)?])
}

impl Facts {
    fn read(tx: &mut dyn Tx) -> Done<Self> {
        let mut facts = Self::default();
        all(tx, WAREHOUSES, &mut |key, row| {
            facts.warehouses.insert(part(key, 0)?, field(row, warehouse::YTD)?);
            Ok(())
        })?;
        all(tx, DISTRICTS, &mut |key, row| {
            let about = (field(row, district::NEXT_ORDER)?, field(row, district::YTD)?);
            facts.districts.insert(place(key)?, about);
            Ok(())
        })?;
        all(tx, CUSTOMERS, &mut |key, row| {
            let about = (field(row, customer::BALANCE)?, field(row, customer::YTD_PAYMENT)?);
            facts.customers.insert(person(key)?, about);
            Ok(())
        })?;
        all(tx, ORDERS, &mut |key, row| {
            let of = field(row, order::CUSTOMER)? as u32;
            let about = (of, field(row, order::CARRIER)?, field(row, order::LINES)?);
            facts.orders.insert(person(key)?, about);
            Ok(())
        })?;
        all(tx, NEW_ORDERS, &mut |key, _| {
            facts.new_orders.insert(person(key)?);
            Ok(())
        })?;
        all(tx, ORDER_LINES, &mut |key, row| {
            let is_delivered = field(row, line::DELIVERED)?;
            let about = facts.lines.entry(person(key)?).or_default();
            about.0 += 1;
            about.1 += is_delivered;
            about.2 += is_delivered * field(row, line::AMOUNT)?;
            Ok(())
        })?;
        all(tx, HISTORY, &mut |_, row| {
            let amount = field(row, 0)?;
            let id = |place| Ok::<_, crate::kv::Fail>(field(row, place)? as u32);
            *facts.paid_at.entry([id(1)?, id(2)?]).or_default() += amount;
            *facts.paid_by.entry([id(3)?, id(4)?, id(5)?]).or_default() += amount;
            Ok(())
        })?;
        Ok(facts)
    }

    /// Checks conditions 1 and 8.
    fn check_warehouses(&self) -> Result<()> {
        for (home, ytd) in &self.warehouses {
            let of = |place: &Place| place[0] == *home;
            let districts: i64 =
                self.districts.iter().filter(|(at, _)| of(at)).map(|(_, about)| about.1).sum();
            ensure!(*ytd == districts, "condition 1: warehouse {home} has {ytd}, its districts {districts}");
            let paid: i64 = self.paid_at.iter().filter(|(at, _)| of(at)).map(|(_, paid)| paid).sum();
            ensure!(*ytd == paid, "condition 8: warehouse {home} has {ytd}, its history {paid}");
        }
        Ok(())
    }

    /// Checks conditions 2, 3, 4 and 9.
    fn check_districts(&self) -> Result<()> {
        for (at @ [home, of], (next, ytd)) in &self.districts {
            let range = [*home, *of, 0]..[*home, *of + 1, 0];
            let orders: Vec<_> = self.orders.range(range.clone()).collect();
            let new: Vec<u32> = self.new_orders.range(range.clone()).map(|id| id[2]).collect();
            let last = orders.last().map_or(0, |(id, _)| i64::from(id[2]));
            ensure!(next - 1 == last, "condition 2: district {at:?} is at order {next}, its last is {last}");
            if let (Some(first), Some(newest)) = (new.first(), new.last()) {
                ensure!(
                    i64::from(*newest) == last,
                    "condition 2: district {at:?} has order {last}, the newest new one is {newest}"
                );
                let span = (newest - first + 1) as usize;
                ensure!(span == new.len(), "condition 3: district {at:?} lacks new orders");
            }
            let told: i64 = orders.iter().map(|(_, about)| about.2).sum();
            let lines: i64 = self.lines.range(range).map(|(_, about)| about.0).sum();
            ensure!(told == lines, "condition 4: district {at:?} should have {told} lines and has {lines}");
            let paid = self.paid_at.get(at).copied().unwrap_or_default();
            ensure!(*ytd == paid, "condition 9: district {at:?} has {ytd}, its history {paid}");
        }
        Ok(())
    }

    /// Checks conditions 5, 6 and 7.
    fn check_orders(&self) -> Result<()> {
        for (at, (_, carrier, told)) in &self.orders {
            let is_new = self.new_orders.contains(at);
            ensure!(is_new == (*carrier == 0), "condition 5: order {at:?} has carrier {carrier}");
            let (lines, delivered, _) = self.lines.get(at).copied().unwrap_or_default();
            ensure!(lines == *told, "condition 6: order {at:?} should have {told} lines and has {lines}");
            let wanted = if is_new { 0 } else { lines };
            ensure!(
                delivered == wanted,
                "condition 7: order {at:?} has {delivered} of {lines} lines delivered"
            );
        }
        Ok(())
    }

    /// Checks condition 11.
    fn check_carriers(&self) -> Result<()> {
        for at @ [home, of] in self.districts.keys() {
            let range = [*home, *of, 0]..[*home, *of + 1, 0];
            let orders = self.orders.range(range.clone()).count();
            let carried = self.orders.range(range.clone()).filter(|(_, about)| about.1 != 0).count();
            let new = self.new_orders.range(range).count();
            ensure!(
                orders == new + carried,
                "condition 11: district {at:?} has {orders} orders, {new} new and {carried} with a carrier"
            );
        }
        Ok(())
    }

    /// Checks conditions 10 and 12.
    fn check_customers(&self) -> Result<()> {
        let mut bought: BTreeMap<Person, i64> = BTreeMap::new();
        for (at, (buyer, ..)) in &self.orders {
            let cost = self.lines.get(at).map_or(0, |about| about.2);
            *bought.entry([at[0], at[1], *buyer]).or_default() += cost;
        }
        for (at, (balance, paid)) in &self.customers {
            let bought = bought.get(at).copied().unwrap_or_default();
            let history = self.paid_by.get(at).copied().unwrap_or_default();
            ensure!(
                *balance == bought - history,
                "condition 10: customer {at:?} has {balance}, bought for {bought} and paid {history}"
            );
            ensure!(
                balance + paid == bought,
                "condition 12: customer {at:?} has {balance} and paid {paid}, bought for {bought}"
            );
        }
        Ok(())
    }
}

pub(super) fn check(scale: &TpcC, session: &mut dyn Session) -> Result<()> {
    let mut facts = Facts::default();
    run(session, false, &mut |tx| {
        facts = Facts::read(tx)?;
        Ok(())
    })?;
    ensure!(facts.warehouses.len() == scale.warehouses as usize, "a warehouse is missing");
    facts.check_warehouses()?;
    facts.check_districts()?;
    facts.check_orders()?;
    facts.check_carriers()?;
    facts.check_customers()
}
