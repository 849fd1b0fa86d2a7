//! The five transactions (clauses 2.4 to 2.8).

use std::collections::BTreeSet;

use super::scale::{
    CUSTOMERS, CUSTOMERS_BY_NAME, DISTRICTS, DISTRICTS_OF_A_WAREHOUSE, HISTORY, ITEMS, NEW_ORDERS,
    ORDER_LINES, ORDERS, ORDERS_BY_CUSTOMER, STOCK, TpcC, WAREHOUSES, customer, district, line, order, stock,
    warehouse,
};
use crate::kv::{Done, Fail, Tx};
use crate::row::{field, key, part, present, row, set};

/// Adds amounts to fields of a row. Returns the changed row.
fn add(tx: &mut dyn Tx, table: usize, at: &[u8], changes: &[(usize, i64)]) -> Done<Vec<u8>> {
    let mut found = present(tx.get_for_update(table, at)?, "a row of TPC-C")?;
    for (place, change) in changes {
        let value = field(&found, *place)? + change;
        set(&mut found, *place, value);
    }
    tx.put(table, at, &found)?;
    Ok(found)
}

pub(super) struct NewOrder {
    at: [u32; 2],
    customer: u32,
    /// The warehouse, the item and the quantity of each line. They are sorted, so that transactions cannot deadlock.
    items: Vec<(u32, u32, i64)>,
}

impl NewOrder {
    pub(super) fn draw(scale: &TpcC, home: u32, rng: &mut fastrand::Rng) -> Self {
        let count = rng.usize(5..=15);
        let mut items: Vec<_> = (0..count)
            .map(|_| {
                let is_remote = scale.warehouses > 1 && rng.u8(0..100) == 0;
                let from = if is_remote { other(home, scale, rng) } else { home };
                (from, scale.item(rng), rng.i64(1..=10))
            })
            .collect();
        items.sort_unstable();
        // In one order out of a hundred, the last line has an item that does not exist.
        if rng.u8(0..100) == 0 {
            items[count - 1].1 = scale.items + 1;
        }
        Self { at: [home, rng.u32(1..=DISTRICTS_OF_A_WAREHOUSE)], customer: scale.customer(rng), items }
    }

    pub(super) fn transact(&self, tx: &mut dyn Tx) -> Done<()> {
        let [home, of] = self.at;
        present(tx.get(WAREHOUSES, &key(&[home]))?, "a warehouse")?;
        let found = present(tx.get(CUSTOMERS, &key(&[home, of, self.customer]))?, "a customer")?;
        let discount = field(&found, customer::DISCOUNT)?;
        let changed = add(tx, DISTRICTS, &key(&[home, of]), &[(district::NEXT_ORDER, 1)])?;
        let id = (field(&changed, district::NEXT_ORDER)? - 1) as u32;
        let is_local = self.items.iter().all(|(from, ..)| *from == home);
        let fields = [self.customer.into(), 1, 0, self.items.len() as i64, i64::from(is_local)];
        tx.put(ORDERS, &key(&[home, of, id]), &row(40, &fields))?;
        tx.put(ORDERS_BY_CUSTOMER, &key(&[home, of, self.customer, id]), &[])?;
        tx.put(NEW_ORDERS, &key(&[home, of, id]), &[])?;
        for (number, &(from, item, count)) in (1..).zip(&self.items) {
            let found = tx.get(ITEMS, &key(&[item]))?.ok_or(Fail::RollBack)?;
            let amount = count * field(&found, 0)? * (10_000 - discount) / 10_000;
            self.take(tx, from, item, count)?;
            let fields = [item.into(), from.into(), count, amount, 0];
            tx.put(ORDER_LINES, &key(&[home, of, id, number]), &row(64, &fields))?;
        }
        Ok(())
    }

    /// Takes items from a stock, and refills the stock if few are left.
    fn take(&self, tx: &mut dyn Tx, from: u32, item: u32, count: i64) -> Done<()> {
        let at = key(&[from, item]);
        let mut found = present(tx.get_for_update(STOCK, &at)?, "a stock")?;
        let quantity = field(&found, stock::QUANTITY)? - count;
        set(&mut found, stock::QUANTITY, if quantity >= 10 { quantity } else { quantity + 91 });
        for (place, change) in
            [(stock::YTD, count), (stock::ORDERS, 1), (stock::REMOTE, i64::from(from != self.at[0]))]
        {
            let value = field(&found, place)? + change;
            set(&mut found, place, value);
        }
        tx.put(STOCK, &at, &found)
    }
}

/// Returns a random warehouse other than `home`.
fn other(home: u32, scale: &TpcC, rng: &mut fastrand::Rng) -> u32 {
    let drawn = rng.u32(1..scale.warehouses.max(2));
    if drawn >= home { drawn + 1 } else { drawn }.min(scale.warehouses)
}

/// How a transaction identifies a customer: by number, or by a name that several customers share.
enum Who {
    Number(u32),
    Name(u32),
}

impl Who {
    /// Draws a customer. Six customers out of ten are identified by name.
    fn draw(scale: &TpcC, rng: &mut fastrand::Rng) -> Self {
        if rng.u8(0..10) < 6 { Self::Name(scale.name_number(rng)) } else { Self::Number(scale.customer(rng)) }
    }

    /// Finds the customer. If several customers share the name, takes the one in the middle, ordered by first name.
    fn find(&self, tx: &mut dyn Tx, [home, of]: [u32; 2]) -> Done<u32> {
        let name = match self {
            Self::Number(number) => return Ok(*number),
            Self::Name(name) => *name,
        };
        let mut found = Vec::new();
        let (from, to) = (key(&[home, of, name]), key(&[home, of, name + 1]));
        tx.scan(CUSTOMERS_BY_NAME, &from, &to, false, &mut |_, id| {
            found.push(id.to_vec());
            true
        })?;
        let middle = found.get(found.len().saturating_sub(1).div_ceil(2)).cloned();
        part(&present(middle, "a customer of that name")?, 0)
    }
}

pub(super) struct Payment {
    at: [u32; 2],
    /// The customer's own warehouse and district.
    lives: [u32; 2],
    who: Who,
    amount: i64,
    id: (u32, u64),
}

impl Payment {
    pub(super) fn draw(scale: &TpcC, home: u32, id: (u32, u64), rng: &mut fastrand::Rng) -> Self {
        let at = [home, rng.u32(1..=DISTRICTS_OF_A_WAREHOUSE)];
        // Of 100 customers, 15 pay at a warehouse other than their own.
        let lives = if scale.warehouses > 1 && rng.u8(0..100) < 15 {
            [other(home, scale, rng), rng.u32(1..=DISTRICTS_OF_A_WAREHOUSE)]
        } else {
            at
        };
        Self { at, lives, who: Who::draw(scale, rng), amount: rng.i64(100..=500_000), id }
    }

    pub(super) fn transact(&self, tx: &mut dyn Tx) -> Done<()> {
        let ([home, of], [lives, lives_of]) = (self.at, self.lives);
        let id = self.who.find(tx, self.lives)?;
        add(tx, WAREHOUSES, &key(&[home]), &[(warehouse::YTD, self.amount)])?;
        add(tx, DISTRICTS, &key(&[home, of]), &[(district::YTD, self.amount)])?;
        let changes = [
            (customer::BALANCE, -self.amount),
            (customer::YTD_PAYMENT, self.amount),
            (customer::PAYMENTS, 1),
        ];
        let at = key(&[lives, lives_of, id]);
        let mut found = add(tx, CUSTOMERS, &at, &changes)?;
        if field(&found, customer::HAS_BAD_CREDIT)? != 0 {
            set(&mut found, customer::DATA, self.amount);
            tx.put(CUSTOMERS, &at, &found)?;
        }
        let (thread, serial) = self.id;
        let at = key(&[home, of, id, thread, (serial >> 32) as u32, serial as u32]);
        let fields = [self.amount, home.into(), of.into(), lives.into(), lives_of.into(), id.into()];
        tx.put(HISTORY, &at, &row(48, &fields))
    }
}

pub(super) struct OrderStatus {
    at: [u32; 2],
    who: Who,
}

impl OrderStatus {
    pub(super) fn draw(scale: &TpcC, home: u32, rng: &mut fastrand::Rng) -> Self {
        Self { at: [home, rng.u32(1..=DISTRICTS_OF_A_WAREHOUSE)], who: Who::draw(scale, rng) }
    }

    pub(super) fn transact(&self, tx: &mut dyn Tx) -> Done<()> {
        let [home, of] = self.at;
        let id = self.who.find(tx, self.at)?;
        present(tx.get(CUSTOMERS, &key(&[home, of, id]))?, "a customer")?;
        let mut last = None;
        let (from, to) = (key(&[home, of, id]), key(&[home, of, id + 1]));
        tx.scan(ORDERS_BY_CUSTOMER, &from, &to, true, &mut |at, _| {
            last = part(at, 3).ok();
            false
        })?;
        let Some(last) = last else { return Ok(()) };
        present(tx.get(ORDERS, &key(&[home, of, last]))?, "an order")?;
        let (from, to) = (key(&[home, of, last]), key(&[home, of, last + 1]));
        tx.scan(ORDER_LINES, &from, &to, false, &mut |_, _| true)
    }
}

/// Delivers the oldest new order of each district.
pub(super) fn deliver(tx: &mut dyn Tx, home: u32, carrier: i64) -> Done<()> {
    for of in 1..=DISTRICTS_OF_A_WAREHOUSE {
        let mut oldest = None;
        tx.scan(NEW_ORDERS, &key(&[home, of]), &key(&[home, of + 1]), false, &mut |at, _| {
            oldest = part(at, 2).ok();
            false
        })?;
        let Some(id) = oldest else { continue };
        let at = key(&[home, of, id]);
        // In a store whose scans take no locks, another thread may have delivered this order since the scan. Then
        // run the transaction again.
        if tx.get_for_update(NEW_ORDERS, &at)?.is_none() {
            return Err(Fail::Retry);
        }
        tx.delete(NEW_ORDERS, &at)?;
        let found = add(tx, ORDERS, &at, &[(order::CARRIER, carrier)])?;
        let buyer = field(&found, order::CUSTOMER)? as u32;
        let mut lines = Vec::new();
        tx.scan(ORDER_LINES, &at, &key(&[home, of, id + 1]), false, &mut |at, row| {
            lines.push((at.to_vec(), row.to_vec()));
            true
        })?;
        let mut sum = 0;
        for (at, mut found) in lines {
            sum += field(&found, line::AMOUNT)?;
            set(&mut found, line::DELIVERED, 1);
            tx.put(ORDER_LINES, &at, &found)?;
        }
        let changes = [(customer::BALANCE, sum), (customer::DELIVERIES, 1)];
        add(tx, CUSTOMERS, &key(&[home, of, buyer]), &changes)?;
    }
    Ok(())
}

/// Returns how many items of the last twenty orders have a stock of fewer than `least`. Counts each item only once.
pub(super) fn stock_level(tx: &mut dyn Tx, home: u32, of: u32, least: i64) -> Done<()> {
    let found = present(tx.get(DISTRICTS, &key(&[home, of]))?, "a district")?;
    let next = field(&found, district::NEXT_ORDER)? as u32;
    let mut items = BTreeSet::new();
    let (from, to) = (key(&[home, of, next.saturating_sub(20)]), key(&[home, of, next]));
    tx.scan(ORDER_LINES, &from, &to, false, &mut |_, row| {
        items.extend(field(row, line::ITEM));
        true
    })?;
    let mut low = 0;
    for item in items {
        let found = present(tx.get(STOCK, &key(&[home, item as u32]))?, "a stock")?;
        low += i64::from(field(&found, stock::QUANTITY)? < least);
    }
    std::hint::black_box(low);
    Ok(())
}
