//! TATP: the subscriber register of a mobile network. Four out of five transactions only read.

use anyhow::{Result, ensure};

use crate::kv::{Db, Done, Fail, Loader, Outcome, Schema, Session, Tx, run};
use crate::row::{field, key, part, present, row, set};
use crate::workload::{Thread, Workload};

const SUBSCRIBERS: usize = 0;
const BY_NUMBER: usize = 1;
const ACCESS: usize = 2;
const FACILITIES: usize = 3;
const FORWARDING: usize = 4;
/// The fields of a subscriber.
const BIT: usize = 0;
const LOCATION: usize = 1;
/// The fields of a facility.
const IS_ACTIVE: usize = 0;
const DATA_A: usize = 1;
/// The hours at which a call forwarding may begin.
const HOURS: [u32; 3] = [0, 8, 16];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tatp {
    pub(crate) subscribers: u32,
}

/// The seven kinds of transaction. [`MIX`] has their shares in percent.
#[derive(Clone, Copy, Debug)]
enum Kind {
    SubscriberData,
    NewDestination,
    AccessData,
    UpdateSubscriber,
    UpdateLocation,
    InsertForwarding,
    DeleteForwarding,
}

const MIX: [(Kind, u32); 7] = [
    (Kind::SubscriberData, 35),
    (Kind::NewDestination, 10),
    (Kind::AccessData, 35),
    (Kind::UpdateSubscriber, 2),
    (Kind::UpdateLocation, 14),
    (Kind::InsertForwarding, 2),
    (Kind::DeleteForwarding, 2),
];

/// Returns a subscriber's phone number, which has 15 digits.
fn number(subscriber: u32) -> Vec<u8> {
    format!("{subscriber:015}").into_bytes()
}

/// The values that are drawn at random for a transaction.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    subscriber: u32,
    kind_of: u32,
    hour: u32,
    value: i64,
}

impl Tatp {
    /// Draws the values for a transaction. Subscribers are drawn from the specification's non-uniform distribution.
    fn draw(&self, rng: &mut fastrand::Rng) -> Drawn {
        let spread = match self.subscribers {
            0..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        };
        let subscriber = (rng.u32(0..=spread) | rng.u32(1..=self.subscribers)) % self.subscribers + 1;
        Drawn {
            subscriber,
            kind_of: rng.u32(1..=4),
            hour: HOURS[rng.usize(0..HOURS.len())],
            value: rng.i64(0..256),
        }
    }

    fn transact(kind: Kind, tx: &mut dyn Tx, drawn: Drawn) -> Done<()> {
        let Drawn { subscriber, kind_of, hour, value } = drawn;
        match kind {
            Kind::SubscriberData => {
                present(tx.get(SUBSCRIBERS, &key(&[subscriber]))?, "a subscriber").map(drop)
            }
            Kind::NewDestination => new_destination(tx, drawn),
            Kind::AccessData => tx.get(ACCESS, &key(&[subscriber, kind_of]))?.map(drop).ok_or(Fail::RollBack),
            Kind::UpdateSubscriber => {
                change(tx, SUBSCRIBERS, &key(&[subscriber]), BIT, value & 1)?;
                change(tx, FACILITIES, &key(&[subscriber, kind_of]), DATA_A, value)
            }
            Kind::UpdateLocation => {
                let found = present(tx.get(BY_NUMBER, &number(subscriber))?, "a number")?;
                change(tx, SUBSCRIBERS, &found, LOCATION, value)
            }
            Kind::InsertForwarding => {
                let found = present(tx.get(BY_NUMBER, &number(subscriber))?, "a number")?;
                let id = part(&found, 0)?;
                tx.scan(FACILITIES, &key(&[id]), &key(&[id + 1]), false, &mut |_, _| true)?;
                let at = key(&[id, kind_of, hour]);
                if tx.get(FACILITIES, &key(&[id, kind_of]))?.is_none()
                    || tx.get_for_update(FORWARDING, &at)?.is_some()
                {
                    return Err(Fail::RollBack);
                }
                tx.put(FORWARDING, &at, &row(24, &[i64::from(hour) + 1 + value % 8]))
            }
            Kind::DeleteForwarding => {
                let found = present(tx.get(BY_NUMBER, &number(subscriber))?, "a number")?;
                let at = key(&[part(&found, 0)?, kind_of, hour]);
                tx.get_for_update(FORWARDING, &at)?.ok_or(Fail::RollBack)?;
                tx.delete(FORWARDING, &at)
            }
        }
    }
}

/// Changes a field of a row. Rolls the transaction back if the row does not exist.
fn change(tx: &mut dyn Tx, table: usize, at: &[u8], place: usize, value: i64) -> Done<()> {
    let mut found = tx.get_for_update(table, at)?.ok_or(Fail::RollBack)?;
    set(&mut found, place, value);
    tx.put(table, at, &found)
}

/// Finds the number to which calls to a subscriber are forwarded at this hour.
fn new_destination(tx: &mut dyn Tx, Drawn { subscriber, kind_of, hour, value }: Drawn) -> Done<()> {
    let facility = tx.get(FACILITIES, &key(&[subscriber, kind_of]))?.ok_or(Fail::RollBack)?;
    if field(&facility, IS_ACTIVE)? == 0 {
        return Err(Fail::RollBack);
    }
    let end = i64::from(hour) + 1 + value % 8;
    let mut is_found = false;
    let (from, to) = (key(&[subscriber, kind_of]), key(&[subscriber, kind_of, hour + 1]));
    tx.scan(FORWARDING, &from, &to, false, &mut |_, row| {
        is_found |= field(row, 0).is_ok_and(|until| end < until);
        true
    })?;
    if is_found { Ok(()) } else { Err(Fail::RollBack) }
}

impl Workload for Tatp {
    fn name(&self) -> &'static str {
        "TATP"
    }

    fn schema(&self) -> Schema {
        &["subscribers", "by_number", "access_info", "facilities", "forwarding"]
    }

    fn load(&self, db: &dyn Db) -> Result<()> {
        let mut loader = Loader::new(db)?;
        let mut rng = fastrand::Rng::with_seed(1);
        for subscriber in 1..=self.subscribers {
            loader.put(SUBSCRIBERS, key(&[subscriber]), row(100, &[0, 0]))?;
            loader.put(BY_NUMBER, number(subscriber), key(&[subscriber]))?;
            let (mut kinds, mut facilities) = ([1, 2, 3, 4], [1, 2, 3, 4]);
            rng.shuffle(&mut kinds);
            rng.shuffle(&mut facilities);
            for kind in &kinds[..rng.usize(1..=4)] {
                loader.put(ACCESS, key(&[subscriber, *kind]), row(24, &[0]))?;
            }
            for facility in &facilities[..rng.usize(1..=4)] {
                let is_active = i64::from(rng.u8(0..100) < 85);
                loader.put(FACILITIES, key(&[subscriber, *facility]), row(32, &[is_active, 0]))?;
                let mut hours = HOURS;
                rng.shuffle(&mut hours);
                for hour in &hours[..rng.usize(0..=3)] {
                    let until = i64::from(*hour) + rng.i64(1..=8);
                    loader.put(FORWARDING, key(&[subscriber, *facility, *hour]), row(24, &[until]))?;
                }
            }
        }
        loader.finish()
    }

    fn step(&self, session: &mut dyn Session, thread: &mut Thread) -> Result<(usize, Outcome, u32)> {
        let mut left = thread.rng.u32(0..100);
        let mut kind = MIX[0].0;
        for (one, share) in MIX {
            kind = one;
            if left < share {
                break;
            }
            left -= share;
        }
        let writes = !matches!(kind, Kind::SubscriberData | Kind::NewDestination | Kind::AccessData);
        let drawn = self.draw(&mut thread.rng);
        let (outcome, retries) = run(session, writes, &mut |tx| Self::transact(kind, tx, drawn))?;
        Ok((kind as usize, outcome, retries))
    }

    fn check(&self, session: &mut dyn Session) -> Result<()> {
        let (mut subscribers, mut orphans) = (0, 0);
        run(session, false, &mut |tx| {
            (subscribers, orphans) = (0, 0);
            let mut facilities = std::collections::HashSet::new();
            tx.scan(SUBSCRIBERS, &[], &[0xff; 17], false, &mut |_, _| {
                subscribers += 1;
                true
            })?;
            tx.scan(FACILITIES, &[], &[0xff; 17], false, &mut |key, _| facilities.insert(key.to_vec()))?;
            tx.scan(FORWARDING, &[], &[0xff; 17], false, &mut |key, _| {
                orphans += u32::from(!facilities.contains(&key[..8]));
                true
            })
        })?;
        ensure!(subscribers == self.subscribers, "{subscribers} subscribers of {}", self.subscribers);
        ensure!(orphans == 0, "{orphans} calls are forwarded by facilities that are not there");
        Ok(())
    }
}
