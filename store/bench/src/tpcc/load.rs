//! The initial rows (clause 4.3.3). The scale decides how many there are.

use anyhow::Result;

use super::scale::{
    CUSTOMERS, CUSTOMERS_BY_NAME, DISTRICTS, DISTRICTS_OF_A_WAREHOUSE, HISTORY, ITEMS, NEW_ORDERS,
    ORDER_LINES, ORDERS, ORDERS_BY_CUSTOMER, STOCK, TpcC, WAREHOUSES,
};
use crate::kv::{Db, Loader};
use crate::row::{key, row};

/// The amount of each customer's first payment, in cents.
const FIRST_PAYMENT: i64 = 1000;

pub(super) fn load(scale: &TpcC, db: &dyn Db) -> Result<()> {
    let mut loader = Loader::new(db)?;
    let mut rng = fastrand::Rng::with_seed(7);
    for item in 1..=scale.items {
        loader.put(ITEMS, key(&[item]), row(82, &[rng.i64(100..=10_000)]))?;
    }
    let ytd = FIRST_PAYMENT * i64::from(scale.customers_of_a_district);
    for home in 1..=scale.warehouses {
        let all = ytd * i64::from(DISTRICTS_OF_A_WAREHOUSE);
        loader.put(WAREHOUSES, key(&[home]), row(89, &[all]))?;
        for item in 1..=scale.items {
            loader.put(STOCK, key(&[home, item]), row(306, &[rng.i64(10..=100), 0, 0, 0]))?;
        }
        for district in 1..=DISTRICTS_OF_A_WAREHOUSE {
            let next = i64::from(scale.customers_of_a_district) + 1;
            loader.put(DISTRICTS, key(&[home, district]), row(95, &[next, ytd]))?;
            customers(scale, &mut loader, &mut rng, [home, district])?;
            orders(scale, &mut loader, &mut rng, [home, district])?;
        }
    }
    loader.finish()
}

fn customers(
    scale: &TpcC,
    loader: &mut Loader<'_>,
    rng: &mut fastrand::Rng,
    [home, district]: [u32; 2],
) -> Result<()> {
    for id in 1..=scale.customers_of_a_district {
        let has_bad_credit = i64::from(rng.u8(0..10) == 0);
        let fields = [-FIRST_PAYMENT, FIRST_PAYMENT, 1, 0, rng.i64(0..=5000), has_bad_credit];
        loader.put(CUSTOMERS, key(&[home, district, id]), row(655, &fields))?;
        let name = (id - 1) % scale.names();
        loader.put(CUSTOMERS_BY_NAME, key(&[home, district, name, rng.u32(..), id]), key(&[id]))?;
        let paid = [FIRST_PAYMENT, home.into(), district.into(), home.into(), district.into(), id.into()];
        loader.put(HISTORY, key(&[home, district, id, u32::MAX, 0, 0]), row(48, &paid))?;
    }
    Ok(())
}

/// Makes one order for each customer. Seven out of ten orders are delivered.
fn orders(
    scale: &TpcC,
    loader: &mut Loader<'_>,
    rng: &mut fastrand::Rng,
    [home, district]: [u32; 2],
) -> Result<()> {
    let mut customers: Vec<u32> = (1..=scale.customers_of_a_district).collect();
    rng.shuffle(&mut customers);
    let delivered = scale.customers_of_a_district * 7 / 10;
    for (order, customer) in (1..).zip(customers) {
        let is_delivered = order <= delivered;
        let lines = rng.u32(5..=15);
        let carrier = if is_delivered { rng.i64(1..=10) } else { 0 };
        let fields = [customer.into(), 1, carrier, lines.into(), 1];
        loader.put(ORDERS, key(&[home, district, order]), row(40, &fields))?;
        loader.put(ORDERS_BY_CUSTOMER, key(&[home, district, customer, order]), Vec::new())?;
        if !is_delivered {
            loader.put(NEW_ORDERS, key(&[home, district, order]), Vec::new())?;
        }
        for line in 1..=lines {
            let amount = if is_delivered { 0 } else { rng.i64(1..=999_999) };
            let item = rng.u32(1..=scale.items);
            let fields = [item.into(), home.into(), 5, amount, i64::from(is_delivered)];
            loader.put(ORDER_LINES, key(&[home, district, order, line]), row(64, &fields))?;
        }
    }
    Ok(())
}
