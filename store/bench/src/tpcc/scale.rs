//! The tables, their fields, and how many rows they have.

pub(super) const WAREHOUSES: usize = 0;
pub(super) const DISTRICTS: usize = 1;
pub(super) const CUSTOMERS: usize = 2;
pub(super) const CUSTOMERS_BY_NAME: usize = 3;
pub(super) const HISTORY: usize = 4;
pub(super) const ORDERS: usize = 5;
pub(super) const ORDERS_BY_CUSTOMER: usize = 6;
pub(super) const NEW_ORDERS: usize = 7;
pub(super) const ORDER_LINES: usize = 8;
pub(super) const ITEMS: usize = 9;
pub(super) const STOCK: usize = 10;

/// The indexes of the fields in the rows of each table.
pub(super) mod warehouse {
    pub(crate) const YTD: usize = 0;
}
pub(super) mod district {
    pub(crate) const NEXT_ORDER: usize = 0;
    pub(crate) const YTD: usize = 1;
}
pub(super) mod customer {
    pub(crate) const BALANCE: usize = 0;
    pub(crate) const YTD_PAYMENT: usize = 1;
    pub(crate) const PAYMENTS: usize = 2;
    pub(crate) const DELIVERIES: usize = 3;
    pub(crate) const DISCOUNT: usize = 4;
    pub(crate) const HAS_BAD_CREDIT: usize = 5;
    /// The field that holds the payments of a customer with bad credit.
    pub(crate) const DATA: usize = 6;
}
pub(super) mod order {
    pub(crate) const CUSTOMER: usize = 0;
    pub(crate) const CARRIER: usize = 2;
    pub(crate) const LINES: usize = 3;
}
pub(super) mod line {
    pub(crate) const ITEM: usize = 0;
    pub(crate) const AMOUNT: usize = 3;
    pub(crate) const DELIVERED: usize = 4;
}
pub(super) mod stock {
    pub(crate) const QUANTITY: usize = 0;
    pub(crate) const YTD: usize = 1;
    pub(crate) const ORDERS: usize = 2;
    pub(crate) const REMOTE: usize = 3;
}

pub(super) const DISTRICTS_OF_A_WAREHOUSE: u32 = 10;

/// The sizes of the tables. The specification demands 3,000 customers per district, and 100,000 items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TpcC {
    pub(crate) warehouses: u32,
    pub(crate) customers_of_a_district: u32,
    pub(crate) items: u32,
}

/// Returns the largest power of two up to `most`, minus one.
fn mask(most: u32) -> u32 {
    (1 << most.max(1).ilog2()) - 1
}

/// Returns a number in `low..=high` from the non-uniform distribution of clause 2.1.6. The clause demands a constant
/// for each run; here it is 0.
fn uneven(rng: &mut fastrand::Rng, mask: u32, low: u32, high: u32) -> u32 {
    (rng.u32(0..=mask) | rng.u32(low..=high)) % (high - low + 1) + low
}

impl TpcC {
    pub(super) fn customer(&self, rng: &mut fastrand::Rng) -> u32 {
        let all = self.customers_of_a_district;
        uneven(rng, mask(all / 2), 1, all)
    }

    pub(super) fn item(&self, rng: &mut fastrand::Rng) -> u32 {
        uneven(rng, mask(self.items / 12), 1, self.items)
    }

    /// Returns how many different names there are. Three customers share each name.
    pub(super) fn names(&self) -> u32 {
        (self.customers_of_a_district / 3).max(1)
    }

    pub(super) fn name_number(&self, rng: &mut fastrand::Rng) -> u32 {
        uneven(rng, mask(self.names() / 4), 0, self.names() - 1)
    }
}
