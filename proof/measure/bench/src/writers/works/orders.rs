//! Orders as in TPC-C, on a smaller schema. Transactions place new orders, make payments, and ask for the
//! stock level.

use super::turn::{Effects, LONG, SHORT, Turn, Workload};
use crate::writers::client::{Client, Done};

/// The number of districts per warehouse. The next constants are the number of items in stock per warehouse,
/// and of customers per district.
const DISTRICTS: i64 = 10;
const ITEMS: i64 = 1000;
const CUSTOMERS: i64 = 100;
/// The number of keys that are reserved for the orders of a district. The next constant is the number of keys
/// that are reserved for the lines of an order.
const ORDERS: i64 = 1 << 32;
const LINES: i64 = 16;
/// A transaction that asks for the stock level looks at this many of the district's latest orders.
const RECENT: i64 = 20;

/// Each writer has a home warehouse. Of 23 transactions, eleven place an order, eleven make a payment, and
/// one asks for the stock level.
pub(super) struct Orders {
    pub(super) warehouses: i64,
    pub(super) spread: bool,
}

impl Workload for Orders {
    fn tables(&self) -> String {
        "CREATE TABLE warehouse(id INTEGER PRIMARY KEY, ytd INTEGER NOT NULL, pad TEXT NOT NULL);\
         CREATE TABLE district(id INTEGER PRIMARY KEY, ytd INTEGER NOT NULL, next INTEGER NOT NULL, pad TEXT NOT NULL);\
         CREATE TABLE customer(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, pad TEXT NOT NULL);\
         CREATE TABLE stock(id INTEGER PRIMARY KEY, quantity INTEGER NOT NULL, sold INTEGER NOT NULL, pad TEXT NOT NULL);\
         CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, lines INTEGER NOT NULL);\
         CREATE TABLE line(id INTEGER PRIMARY KEY, item INTEGER NOT NULL, quantity INTEGER NOT NULL)"
            .to_owned()
    }

    fn fill(&self, client: &mut dyn Client, _: i64) -> Done<Effects> {
        let pad = if self.spread { LONG } else { SHORT };
        let statements = [
            (self.warehouses, format!("INSERT INTO warehouse VALUES(?1, 0, {pad})")),
            (self.warehouses * DISTRICTS, format!("INSERT INTO district VALUES(?1, 0, 0, {pad})")),
            (
                self.warehouses * DISTRICTS * CUSTOMERS,
                format!("INSERT INTO customer VALUES(?1, 0, {SHORT}||{SHORT}||{SHORT}||{SHORT})"),
            ),
            (self.warehouses * ITEMS, format!("INSERT INTO stock VALUES(?1, 100, 0, {SHORT}||{SHORT})")),
        ];
        for (count, insert) in statements {
            for id in 0..count {
                client.run(&insert, &[id])?;
            }
        }
        Ok([0; 4])
    }

    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects> {
        let home = turn.writer % self.warehouses;
        let district = home * DISTRICTS + turn.random.i64(0..DISTRICTS);
        match turn.random.u32(0..23) {
            0..11 => self.order(turn, home, district),
            11..22 => self.pay(turn, home, district),
            _ => stock_level(turn, home, district),
        }
    }

    fn sums(&self) -> &'static [&'static str] {
        &[
            "SELECT count(*) FROM line",
            "SELECT sum(sold) FROM stock",
            "SELECT sum(ytd) FROM warehouse",
            "SELECT ((SELECT sum(ytd) FROM warehouse) <> (SELECT sum(ytd) FROM district)) \
             + ((SELECT sum(ytd) FROM warehouse) <> (SELECT -sum(balance) FROM customer)) \
             + ((SELECT sum(next) FROM district) <> (SELECT count(*) FROM orders)) \
             + ((SELECT coalesce(sum(lines), 0) FROM orders) <> (SELECT count(*) FROM line))",
        ]
    }
}

impl Orders {
    /// Returns another warehouse, if there is one.
    fn other(&self, turn: &mut Turn<'_>, home: i64) -> i64 {
        match self.warehouses {
            1 => home,
            all => (home + turn.random.i64(1..all)) % all,
        }
    }

    /// Places a new order of five to fifteen items. One item in a hundred comes from another warehouse.
    fn order(&self, turn: &mut Turn<'_>, home: i64, district: i64) -> Done<Effects> {
        let customer = district * CUSTOMERS + turn.random.i64(0..CUSTOMERS);
        turn.read("SELECT balance FROM customer WHERE id=?1", &[customer])?;
        let next = turn.read("SELECT next FROM district WHERE id=?1", &[district])?;
        turn.think();
        turn.write("UPDATE district SET next=?2 WHERE id=?1", &[district, next + 1])?;
        let order = district * ORDERS + next;
        let lines = turn.random.i64(5..=15);
        turn.write("INSERT INTO orders VALUES(?1, ?2, ?3)", &[order, customer, lines])?;
        let mut sold = 0;
        for line in 0..lines {
            let is_remote = turn.random.u32(0..100) == 0;
            let warehouse = if is_remote { self.other(turn, home) } else { home };
            let item = warehouse * ITEMS + turn.random.i64(0..ITEMS);
            let quantity = turn.random.i64(1..=10);
            let left = turn.read("SELECT quantity FROM stock WHERE id=?1", &[item])?;
            let left = if left >= quantity + 10 { left - quantity } else { left - quantity + 91 };
            let update = "UPDATE stock SET quantity=?2, sold=sold+?3 WHERE id=?1";
            turn.write(update, &[item, left, quantity])?;
            turn.write("INSERT INTO line VALUES(?1, ?2, ?3)", &[order * LINES + line, item, quantity])?;
            sold += quantity;
        }
        Ok([lines, sold, 0, 0])
    }

    /// Makes a payment. Fifteen payments in a hundred are by a customer of another warehouse.
    fn pay(&self, turn: &mut Turn<'_>, home: i64, district: i64) -> Done<Effects> {
        let is_remote = turn.random.u32(0..100) < 15;
        let warehouse = if is_remote { self.other(turn, home) } else { home };
        let customer = warehouse * DISTRICTS * CUSTOMERS + turn.random.i64(0..DISTRICTS * CUSTOMERS);
        let amount = turn.random.i64(1..5000);
        turn.read("SELECT balance FROM customer WHERE id=?1", &[customer])?;
        turn.think();
        turn.write("UPDATE warehouse SET ytd=ytd+?2 WHERE id=?1", &[home, amount])?;
        turn.write("UPDATE district SET ytd=ytd+?2 WHERE id=?1", &[district, amount])?;
        turn.write("UPDATE customer SET balance=balance-?2 WHERE id=?1", &[customer, amount])?;
        Ok([0, 0, amount, 0])
    }
}

/// Returns how many items of the latest orders are low in stock. Changes nothing.
fn stock_level(turn: &mut Turn<'_>, home: i64, district: i64) -> Done<Effects> {
    let next = turn.read("SELECT next FROM district WHERE id=?1", &[district])?;
    turn.think();
    let first = (district * ORDERS + (next - RECENT).max(0)) * LINES;
    let sql = "SELECT count(DISTINCT stock.id) FROM line JOIN stock ON stock.id=line.item \
               WHERE line.id >= ?1 AND line.id < ?2 AND stock.quantity < 20 AND stock.id >= ?3";
    turn.read(sql, &[first, (district * ORDERS + next) * LINES, home * ITEMS])?;
    Ok([0; 4])
}
