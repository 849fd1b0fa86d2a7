//! TPC-C: all five transactions in the specified mix, without think time. All tables are scaled down in proportion.
//!
//! Names are stored as the numbers from which the specification derives their syllables. Amounts are in cents.

mod check;
mod load;
mod scale;
mod transactions;

use anyhow::Result;

use crate::kv::{Db, Outcome, Schema, Session, run};
use crate::workload::{Thread, Workload};
use scale::DISTRICTS_OF_A_WAREHOUSE;
pub(crate) use scale::TpcC;

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

    // Of a hundred transactions, clause 5.2.3 demands at least 43, 4, 4 and 4 of the four kinds other than new orders.
    // The rest are new orders.
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
