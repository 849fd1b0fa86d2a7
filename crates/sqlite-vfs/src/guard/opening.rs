//! Having the database alone for a moment, to open its log: beside the threads and processes that want the same.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use duralite_medium::process::PerProcess;
use duralite_sqlite_ffi as ffi;

use crate::database::Db;
use crate::errors::Failure;

/// How long a pending EXCLUSIVE waits, at most, for those it keeps from starting.
const PENDING: Duration = Duration::from_millis(50);
const PENDING_PAUSE: Duration = Duration::from_micros(100);

/// Lets one thread at a time open the log of a database.
#[derive(Default)]
struct Gate {
    taken: Mutex<bool>,
    freed: Condvar,
}

impl Gate {
    fn taken(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The databases whose logs this process is opening, by inode and birth time.
type Gates = HashMap<(u64, u64), Weak<Gate>>;
static GATES: PerProcess<Mutex<Gates>> = PerProcess::new();

fn gate_of(db: &Db) -> Result<Arc<Gate>, Failure> {
    let identity = db.identity()?;
    let mut gates = GATES.get().lock().unwrap_or_else(PoisonError::into_inner);
    gates.retain(|_, gate| gate.strong_count() > 0);
    let place = gates.entry((identity.inode, identity.birth_ns)).or_default();
    Ok(place.upgrade().unwrap_or_else(|| {
        let new = Arc::default();
        *place = Arc::downgrade(&new);
        new
    }))
}

/// Whose turn it is to open the log of a database, among the threads of this process.
pub enum Turn {
    /// This thread's, until it is dropped.
    Own(OwnTurn),
    /// It was another's: look again.
    Waited,
}

/// The turn.
pub struct OwnTurn(Arc<Gate>);

impl Drop for OwnTurn {
    fn drop(&mut self) {
        *self.0.taken() = false;
        self.0.freed.notify_all();
    }
}

/// Takes the turn, or lets go of SHARED and waits for whoever has it, who needs EXCLUSIVE.
pub fn turn(db: &Db) -> Result<Turn, Failure> {
    let gate = gate_of(db)?;
    let mut taken = gate.taken();
    if !*taken {
        *taken = true;
        drop(taken);
        return Ok(Turn::Own(OwnTurn(gate)));
    }
    drop(taken);
    release_shared(db)?;
    let start = Instant::now();
    let limit = db.patience.left();
    drop(gate.freed.wait_timeout_while(gate.taken(), limit, |taken| *taken));
    db.patience.spend(start.elapsed());
    take_shared(db)?;
    Ok(Turn::Waited)
}

/// Gives SHARED up for a moment: two that want EXCLUSIVE would block each other for ever. SQLite
/// reads nothing before the WAL is open, and what it knew is looked at again afterwards.
pub fn step_back(db: &Db, tries: u32) -> Result<(), Failure> {
    release_shared(db)?;
    // Not in step with the other one.
    let spread = Instant::now().elapsed().subsec_nanos() ^ std::process::id();
    if !db.patience.pause(tries + spread % 4) {
        take_shared(db)?;
        return Err(in_use(db));
    }
    take_shared(db)
}

fn release_shared(db: &Db) -> Result<(), Failure> {
    if db.lock_level() > ffi::LOCK_SHARED {
        return Err(in_use(db));
    }
    go_back(db, ffi::LOCK_NONE)
}

pub fn take_shared(db: &Db) -> Result<(), Failure> {
    for tries in 0.. {
        match db.base.lock(ffi::LOCK_SHARED) {
            ffi::OK => return Ok(()),
            code if code & 0xff == ffi::BUSY => {}
            code => return Err(Failure::new(code, format!("cannot lock {}", db.path.display()))),
        }
        if !db.patience.pause(tries) {
            break;
        }
    }
    Err(in_use(db))
}

/// Returns to a weaker lock.
pub fn go_back(db: &Db, level: c_int) -> Result<(), Failure> {
    match db.base.unlock(level) {
        ffi::OK => Ok(()),
        code => Err(Failure::new(code, format!("cannot unlock {}", db.path.display()))),
    }
}

/// Runs `work` under EXCLUSIVE and returns to the lock before. `None`: somebody is in the way.
pub fn under_exclusive<T>(db: &Db, work: impl FnOnce() -> T) -> Result<Option<T>, Failure> {
    let before = db.lock_level();
    if before >= ffi::LOCK_EXCLUSIVE {
        return Ok(Some(work()));
    }
    if !take_exclusive(db)? {
        return Ok(None);
    }
    let result = work();
    go_back(db, before.max(ffi::LOCK_SHARED))?;
    Ok(Some(result))
}

/// Takes EXCLUSIVE (invariant 2), from SHARED on. Who holds PENDING keeps others from starting, and waits for
/// those that are about to step back.
pub fn take_exclusive(db: &Db) -> Result<bool, Failure> {
    let start = Instant::now();
    loop {
        match db.base.lock(ffi::LOCK_EXCLUSIVE) {
            ffi::OK => return Ok(true),
            code if code & 0xff == ffi::BUSY => {}
            code => {
                db.base.unlock(ffi::LOCK_SHARED);
                return Err(Failure::new(code, format!("cannot lock {}", db.path.display())));
            }
        }
        let pending = db.base.lock_state().is_none_or(|state| state >= ffi::LOCK_PENDING);
        if !pending || start.elapsed() >= PENDING.min(db.patience.left()) {
            break;
        }
        std::thread::sleep(PENDING_PAUSE);
    }
    db.patience.spend(start.elapsed());
    db.base.unlock(ffi::LOCK_SHARED);
    Ok(false)
}

pub fn in_use(db: &Db) -> Failure {
    Failure::new(
        ffi::BUSY,
        format!(
            "{} is open in another program, or another connection, without this log; close that one, or open \
             it with the same settings",
            db.path.display()
        ),
    )
}
