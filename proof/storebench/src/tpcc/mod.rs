//! TPC-C: all five transactions in the specified mix, without think time; the tables scaled down together.
//!
//! Names are the numbers that the specification makes syllables of, and amounts are in cents.

mod check;
mod load;
mod transactions;

use anyhow::Result;

use crate::kv::{Db, Outcome, Schema, Session, run};
use crate::workload::{Thread, Workload};

const WAREHOUSES: usize = 0;
const DISTRICTS: usize = 1;
const CUSTOMERS: usize = 2;
const CUSTOMERS_BY_NAME: usize = 3;
const HISTORY: usize = 4;
const ORDERS: usize = 5;
const ORDERS_BY_CUSTOMER: usize = 6;
const NEW_ORDERS: usize = 7;
const ORDER_LINES: usize = 8;
const ITEMS: usize = 9;
const STOCK: usize = 10;

/// Fields, by table.
mod warehouse {
    pub(super) const YTD: usize = 0;
}
mod district {
    pub(super) const NEXT_ORDER: usize = 0;
    pub(super) const YTD: usize = 1;
}
mod customer {
    pub(super) const BALANCE: usize = 0;
    pub(super) const YTD_PAYMENT: usize = 1;
    pub(super) const PAYMENTS: usize = 2;
    pub(super) const DELIVERIES: usize = 3;
    pub(super) const DISCOUNT: usize = 4;
    pub(super) const HAS_BAD_CREDIT: usize = 5;
    /// What a payment of somebody with bad credit is noted in.
    pub(super) const DATA: usize = 6;
}
mod order {
    pub(super) const CUSTOMER: usize = 0;
    pub(super) const CARRIER: usize = 2;
    pub(super) const LINES: usize = 3;
}
mod line {
    pub(super) const ITEM: usize = 0;
    pub(super) const AMOUNT: usize = 3;
    pub(super) const DELIVERED: usize = 4;
}
mod stock {
    pub(super) const QUANTITY: usize = 0;
    pub(super) const YTD: usize = 1;
    pub(super) const ORDERS: usize = 2;
    pub(super) const REMOTE: usize = 3;
}

const DISTRICTS_OF_A_WAREHOUSE: u32 = 10;

/// The scale: the specification has 3,000 customers of a district and 100,000 items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TpcC {
    pub(crate) warehouses: u32,
    pub(crate) customers_of_a_district: u32,
    pub(crate) items: u32,
}

/// The largest power of two up to `most`, less one.
fn mask(most: u32) -> u32 {
    (1 << most.max(1).ilog2()) - 1
}

/// Of `low..=high`, some more often than others (clause 2.1.6), with the constant of a run left at 0.
fn uneven(rng: &mut fastrand::Rng, mask: u32, low: u32, high: u32) -> u32 {
    (rng.u32(0..=mask) | rng.u32(low..=high)) % (high - low + 1) + low
}

impl TpcC {
    fn customer(&self, rng: &mut fastrand::Rng) -> u32 {
        let all = self.customers_of_a_district;
        uneven(rng, mask(all / 2), 1, all)
    }

    fn item(&self, rng: &mut fastrand::Rng) -> u32 {
        uneven(rng, mask(self.items / 12), 1, self.items)
    }

    /// So many names there are: three customers of each.
    fn names(&self) -> u32 {
        (self.customers_of_a_district / 3).max(1)
    }

    fn name_number(&self, rng: &mut fastrand::Rng) -> u32 {
        uneven(rng, mask(self.names() / 4), 0, self.names() - 1)
    }
}

impl Workload for TpcC {
    fn name(&self) -> &'static str {
        "TPC-C"
    }

    fn schema(&self) -> Schema {
        &[
            "warehouses",
            "districts",
            "customers",
            "customers_by_name",
            "history",
            "orders",
            "orders_by_customer",
            "new_orders",
            "order_lines",
            "items",
            "stock",
        ]
    }

    fn load(&self, db: &dyn Db) -> Result<()> {
        load::load(self, db)
    }

    // Clause 5.2.3: at least 43, 4, 4 and 4 of a hundred; the rest are new orders.
    fn step(&self, session: &mut dyn Session, thread: &mut Thread) -> Result<(usize, Outcome, u32)> {
        let home = (thread.number % u64::from(self.warehouses)) as u32 + 1;
        thread.serial += 1;
        let (kind, (outcome, retries)) = match thread.rng.u8(0..100) {
            0..45 => {
                let drawn = transactions::NewOrder::draw(self, home, &mut thread.rng);
                (0, run(session, true, &mut |tx| drawn.transact(tx))?)
            }
            45..88 => {
                let id = (thread.number as u32, thread.serial);
                let drawn = transactions::Payment::draw(self, home, id, &mut thread.rng);
                (1, run(session, true, &mut |tx| drawn.transact(tx))?)
            }
            88..92 => {
                let drawn = transactions::OrderStatus::draw(self, home, &mut thread.rng);
                (2, run(session, false, &mut |tx| drawn.transact(tx))?)
            }
            92..96 => {
                let carrier = thread.rng.i64(1..=10);
                (3, run(session, true, &mut |tx| transactions::deliver(tx, home, carrier))?)
            }
            _ => {
                let (district, least) =
                    (thread.rng.u32(1..=DISTRICTS_OF_A_WAREHOUSE), thread.rng.i64(10..=20));
                (4, run(session, false, &mut |tx| transactions::stock_level(tx, home, district, least))?)
            }
        };
        Ok((kind, outcome, retries))
    }

    fn check(&self, session: &mut dyn Session) -> Result<()> {
        check::check(self, session)
    }
}
