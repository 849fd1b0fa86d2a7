//! The lock of the database file: the lock that SQLite believes it holds, the lock that the file really
//! holds, and what this library may conclude from them (invariant 44).
//!
//! SQLite takes SHARED before it reads. Everything that SQLite concludes is valid until SQLite gives SHARED
//! back. So while SQLite believes that it holds SHARED or EXCLUSIVE, the file must hold that lock without a
//! gap. [`FileLock`] has no operation that gives the lock back during that time. (RESERVED is an exception:
//! the file may hold only SHARED while SQLite believes that it holds RESERVED. RESERVED only announces a
//! transaction, and under SHARED no other connection can commit one. See [`FileLock::refuse_exclusive`].) A
//! lock that this library must be able to give up, because another connection may need the file for itself,
//! is an [`Own`] lock. This library takes such a lock only while SQLite believes that it holds nothing.
//!
//! What this library itself concludes under a lock is a [`Concluded`] value, which borrows from that lock,
//! and so cannot outlive the lock. The compiler rejects code that uses such a value after the lock was given
//! back:
//!
//! ```compile_fail,E0505
//! # use duralite_locks::file::{FileLock, LockedFile};
//! # fn example<F: LockedFile>(lock: &FileLock<F>) -> Result<(), i32> {
//! let own = lock.own()?;
//! let in_wal_mode = own.held().conclude(true);
//! drop(own); // another process may change the mode from here on
//! assert!(*in_wal_mode);
//! # Ok(())
//! # }
//! ```
//!
//! Nor can the value be used after the owner of the lock has taken EXCLUSIVE, because the owner may then
//! change what was concluded:
//!
//! ```compile_fail,E0502
//! # use duralite_locks::file::{FileLock, LockedFile};
//! # fn example<F: LockedFile>(lock: &FileLock<F>) -> Result<(), i32> {
//! let mut own = lock.own()?;
//! let in_wal_mode = own.held().conclude(true);
//! drop(own.held_mut().exclusive(|_| false)?);
//! assert!(*in_wal_mode);
//! # Ok(())
//! # }
//! ```
//!
//! While the lock is held, the value can be used:
//!
//! ```
//! # use duralite_locks::file::{FileLock, LockedFile};
//! # fn example<F: LockedFile>(lock: &FileLock<F>) -> Result<(), i32> {
//! let own = lock.own()?;
//! let in_wal_mode = own.held().conclude(true);
//! assert!(*in_wal_mode);
//! own.pass_to_sqlite();
//! # Ok(())
//! # }
//! ```

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// SQLite's result code for an operation that failed.
pub type Code = i32;

/// SQLite's locks of a database file, from weak to strong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// No lock. What the connection has read may have changed since.
    None,
    /// Other connections may read too, and none changes the file.
    Shared,
    /// One connection is about to write. Others may still read.
    Reserved,
    /// A connection waits for EXCLUSIVE, and no other connection begins to read.
    Pending,
    /// No other connection has a lock on the file.
    Exclusive,
}

impl Level {
    /// Returns the lock with this number in SQLite's interface. A number that is too large stands for
    /// [`Level::Exclusive`].
    #[must_use]
    pub fn of_code(level: i32) -> Self {
        match level {
            i32::MIN..=0 => Self::None,
            1 => Self::Shared,
            2 => Self::Reserved,
            3 => Self::Pending,
            _ => Self::Exclusive,
        }
    }

    /// Returns the number of this lock in SQLite's interface.
    #[must_use]
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }
}

/// A file with the locks that SQLite uses for databases. The methods are those of `xLock`, `xUnlock` and
/// `SQLITE_FCNTL_LOCKSTATE`.
pub trait LockedFile {
    /// Takes a lock. From [`Level::None`] only SHARED can be taken.
    ///
    /// # Errors
    /// SQLite's code. After EXCLUSIVE was refused the file may hold PENDING.
    fn lock(&self, level: Level) -> Result<(), Code>;

    /// Lowers the lock to `level`, which is SHARED or no lock.
    ///
    /// # Errors
    /// SQLite's code. The file then holds the previous lock, or a weaker one that is at least `level`.
    fn unlock(&self, level: Level) -> Result<(), Code>;

    /// Returns the lock that the file holds, or `None` if the file does not report it.
    fn level(&self) -> Option<Level>;
}

/// The lock of one open database file.
#[derive(Debug)]
pub struct FileLock<F> {
    file: F,
    /// The lock that SQLite believes it holds.
    believed: AtomicU8,
    /// The strongest lock that this type has taken through `file` and has not given back. It is used if
    /// `file` does not report which lock it holds.
    taken: AtomicU8,
    /// Whether SQLite has taken RESERVED, and has not gone back to SHARED or to no lock since.
    reserved: AtomicBool,
}

fn level_of(word: &AtomicU8) -> Level {
    Level::of_code(i32::from(word.load(Ordering::Relaxed)))
}

impl<F: LockedFile> FileLock<F> {
    /// Makes the lock of a file that is not locked yet.
    pub fn new(file: F) -> Self {
        let none = || AtomicU8::new(Level::None as u8);
        Self { file, believed: none(), taken: none(), reserved: AtomicBool::new(false) }
    }

    /// Returns the lock that SQLite believes it holds.
    #[inline]
    pub fn believed(&self) -> Level {
        level_of(&self.believed)
    }

    /// Returns the lock that the file holds.
    pub fn held(&self) -> Level {
        self.file.level().unwrap_or_else(|| level_of(&self.taken))
    }

    /// Returns whether SQLite is writing with a rollback journal. SQLite takes RESERVED for such a
    /// transaction, and for nothing else: not in WAL mode, and not to roll back a journal that another
    /// process has left.
    pub fn in_rollback_transaction(&self) -> bool {
        self.reserved.load(Ordering::Relaxed)
    }

    fn believe(&self, level: Level) {
        self.believed.store(level as u8, Ordering::Relaxed);
        if level <= Level::Reserved {
            self.reserved.store(level == Level::Reserved, Ordering::Relaxed);
        }
        #[cfg(not(feature = "controls"))]
        debug_assert!(self.is_held(level), "inv44: SQLite believes in {level:?}, held is {:?}", self.held());
    }

    /// Returns whether the lock that the file holds is strong enough if SQLite believes that it holds
    /// `level`. For RESERVED and PENDING, SHARED is enough.
    fn is_held(&self, level: Level) -> bool {
        self.held() >= if level == Level::Exclusive { level } else { level.min(Level::Shared) }
    }

    fn take(&self, level: Level) -> Result<(), Code> {
        self.file.lock(level)?;
        self.taken.fetch_max(level as u8, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, level: Level) -> Result<(), Code> {
        self.file.unlock(level)?;
        self.taken.fetch_min(level as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a lock for SQLite (`xLock`). On success SQLite believes that it holds the lock.
    ///
    /// # Errors
    /// SQLite's code. What SQLite believes does not change.
    pub fn lock_for_sqlite(&self, level: Level) -> Result<(), Code> {
        self.take(level)?;
        self.believe(level.max(self.believed()));
        Ok(())
    }

    /// Gives a lock back for SQLite (`xUnlock`).
    ///
    /// # Errors
    /// SQLite's code. SQLite then nevertheless believes that it has given the lock back, although the file
    /// may still hold the stronger lock.
    pub fn unlock_for_sqlite(&self, level: Level) -> Result<(), Code> {
        let given_back = self.give_back(level);
        self.believe(level.min(self.believed()));
        given_back
    }

    /// Makes SQLite believe that it has lowered its lock to `level`, although the file keeps the stronger
    /// lock until SQLite's next `xUnlock` or [`Self::end_keeping`].
    pub fn keep_for_sqlite(&self, level: Level) {
        self.believe(level.min(self.believed()));
    }

    /// Lowers the file's lock to SHARED, if [`Self::keep_for_sqlite`] has kept a stronger lock and SQLite
    /// believes that it holds only SHARED.
    pub fn end_keeping(&self) {
        if self.believed() == Level::Shared && self.held() > Level::Shared {
            // A failure only leaves a stronger lock than needed.
            let _ = self.give_back(Level::Shared);
        }
    }

    /// Gives back EXCLUSIVE, which [`Self::lock_for_sqlite`] has just taken. SQLite then believes that it
    /// holds `before`, the lock that it held before that call. The file keeps SHARED all the time, so no
    /// other connection commits. During this call another connection may take RESERVED. Then two connections
    /// believe that they are writing, but neither can commit before the other one has ended its transaction.
    pub fn refuse_exclusive(&self, before: Level) {
        if before < Level::Exclusive && self.give_back(Level::Shared).is_ok() && before > Level::Shared {
            let _ = self.take(Level::Reserved);
        }
        self.believe(before);
    }

    /// Returns the lock that SQLite holds. Returns `None` if SQLite holds no lock, or if the file holds a
    /// weaker lock than SQLite believes. In the second case the caller may conclude nothing, and must make
    /// SQLite repeat its transaction (`SQLITE_BUSY`).
    pub fn sqlites(&self) -> Option<Held<'_, F>> {
        self.is_held(self.believed().max(Level::Shared)).then_some(Held { lock: self })
    }

    /// Returns EXCLUSIVE if the file holds it, or `None` if the file does not. What SQLite believes does not
    /// matter here.
    pub fn sqlites_exclusive(&self) -> Option<Exclusive<'_, F>> {
        (self.held() >= Level::Exclusive).then_some(Exclusive { lock: self, goes_back: false })
    }

    /// Returns EXCLUSIVE even if the file does not hold it. A caller that uses this trusts SQLite's claim to
    /// hold the lock. That is a deliberate bug, which a test must notice.
    #[cfg(feature = "controls")]
    pub fn believed_exclusive(&self) -> Exclusive<'_, F> {
        Exclusive { lock: self, goes_back: false }
    }

    /// Takes SHARED for this library, while SQLite believes that it holds nothing. Dropping the returned
    /// value gives the lock back.
    ///
    /// # Errors
    /// SQLite's code, or `SQLITE_MISUSE` if SQLite believes that it holds a lock. On an error the file holds
    /// no more than before.
    pub fn own(&self) -> Result<Own<'_, F>, Code> {
        const MISUSE: Code = 21;
        if self.believed() > Level::None {
            return Err(MISUSE);
        }
        self.take(Level::Shared)?;
        Ok(Own { held: Held { lock: self }, is_passed_on: false })
    }
}

/// The proof that the file holds at least SHARED. The file holds it without interruption as long as this
/// value exists.
#[derive(Debug)]
pub struct Held<'l, F: LockedFile> {
    lock: &'l FileLock<F>,
}

impl<F: LockedFile> Held<'_, F> {
    /// Binds a conclusion to the lock under which it was drawn.
    pub fn conclude<T>(&self, value: T) -> Concluded<'_, T> {
        Concluded { value, lock: PhantomData }
    }

    /// Takes EXCLUSIVE. Returns `None` if another connection keeps its lock. While this function waits,
    /// PENDING keeps other connections from beginning to read, so it waits only for connections that are
    /// reading already. Between two attempts this function calls `wait`, which sleeps, and returns whether to
    /// try again. No conclusion that was drawn before this call can be used after it.
    ///
    /// # Errors
    /// SQLite's code. The file still holds the lock that it held before.
    pub fn exclusive(&mut self, mut wait: impl FnMut(u32) -> bool) -> Result<Option<Exclusive<'_, F>>, Code> {
        const BUSY: Code = 5;
        let before = self.lock.held();
        if before >= Level::Exclusive {
            return Ok(Some(Exclusive { lock: self.lock, goes_back: false }));
        }
        for tries in 0.. {
            let refused = match self.lock.take(Level::Exclusive) {
                Ok(()) => return Ok(Some(Exclusive { lock: self.lock, goes_back: before <= Level::Shared })),
                Err(code) => code,
            };
            let is_busy = refused & 0xff == BUSY;
            let is_pending = self.lock.file.level().is_none_or(|level| level >= Level::Pending);
            if is_busy && is_pending && wait(tries) {
                continue;
            }
            if before <= Level::Shared {
                // A failure only leaves a stronger lock than needed.
                let _ = self.lock.give_back(Level::Shared);
            }
            if !is_busy {
                return Err(refused);
            }
            break;
        }
        Ok(None)
    }
}

/// A SHARED lock that this library has taken for itself, while SQLite believes that it holds nothing.
#[derive(Debug)]
pub struct Own<'l, F: LockedFile> {
    held: Held<'l, F>,
    is_passed_on: bool,
}

impl<'l, F: LockedFile> Own<'l, F> {
    /// Returns the lock, for drawing conclusions from it.
    pub fn held(&self) -> &Held<'l, F> {
        &self.held
    }

    /// Returns the lock, for taking EXCLUSIVE.
    pub fn held_mut(&mut self) -> &mut Held<'l, F> {
        &mut self.held
    }

    /// Passes the lock on to SQLite, without giving it back in between.
    pub fn pass_to_sqlite(mut self) {
        self.is_passed_on = true;
        self.held.lock.believe(Level::Shared);
    }
}

impl<F: LockedFile> Drop for Own<'_, F> {
    fn drop(&mut self) {
        if !self.is_passed_on {
            // Ignore an error, because a lock that cannot be given back only hinders other connections, and
            // does not contradict what SQLite believes.
            let _ = self.held.lock.give_back(Level::None);
        }
    }
}

/// The proof that the file holds EXCLUSIVE. If EXCLUSIVE was taken to make this value, dropping the value
/// lowers the lock to SHARED.
#[derive(Debug)]
pub struct Exclusive<'h, F: LockedFile> {
    lock: &'h FileLock<F>,
    goes_back: bool,
}

impl<F: LockedFile> Drop for Exclusive<'_, F> {
    fn drop(&mut self) {
        if self.goes_back {
            // A failure only leaves a stronger lock than needed.
            let _ = self.lock.give_back(Level::Shared);
        }
    }
}

/// A conclusion that was drawn under a lock. The lock lasts at least as long as this value.
#[derive(Debug, Clone, Copy)]
pub struct Concluded<'h, T> {
    value: T,
    lock: PhantomData<&'h ()>,
}

impl<'h, T> Concluded<'h, T> {
    /// Returns the value itself. The caller must not use the value after the lock was given back.
    pub fn keep(self) -> T {
        self.value
    }

    /// Returns a conclusion that follows from this one, under the same lock.
    pub fn map<U>(self, then: impl FnOnce(T) -> U) -> Concluded<'h, U> {
        Concluded { value: then(self.value), lock: PhantomData }
    }
}

impl<T> Deref for Concluded<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    const BUSY: Code = 5;
    const FAILED: Code = 10;

    /// The locks that all processes hold on one file.
    type Locks = Rc<RefCell<Vec<Level>>>;

    /// The file as one process sees it, with the rules of SQLite's unix VFS.
    struct File {
        locks: Locks,
        process: usize,
        tells: bool,
        fails: RefCell<bool>,
    }

    impl LockedFile for File {
        fn lock(&self, level: Level) -> Result<(), Code> {
            let mut locks = self.locks.borrow_mut();
            let own = locks[self.process];
            if own >= level {
                return Ok(());
            }
            if self.fails.replace(false) {
                return Err(FAILED);
            }
            assert!(own >= Level::Shared || level == Level::Shared, "only SHARED from nothing");
            let strongest = |locks: &[Level]| {
                let others = locks.iter().enumerate().filter(|(process, _)| *process != self.process);
                others.map(|(_, level)| *level).max().unwrap_or(Level::None)
            };
            let others = strongest(&locks);
            if others >= Level::Pending || level >= Level::Reserved && others >= Level::Reserved {
                return Err(BUSY);
            }
            if level == Level::Exclusive && others > Level::None {
                locks[self.process] = Level::Pending;
                return Err(BUSY);
            }
            locks[self.process] = level;
            Ok(())
        }

        fn unlock(&self, level: Level) -> Result<(), Code> {
            if self.fails.replace(false) {
                return Err(FAILED);
            }
            let mut locks = self.locks.borrow_mut();
            locks[self.process] = locks[self.process].min(level);
            Ok(())
        }

        fn level(&self) -> Option<Level> {
            self.tells.then(|| self.locks.borrow()[self.process])
        }
    }

    fn processes(count: usize, tells: bool) -> (Locks, Vec<FileLock<File>>) {
        let locks = Locks::new(RefCell::new(vec![Level::None; count]));
        let file = |process| File { locks: Rc::clone(&locks), process, tells, fails: RefCell::new(false) };
        let all = (0..count).map(|process| FileLock::new(file(process))).collect();
        (locks, all)
    }

    #[test]
    fn inv44_an_own_lock_is_taken_only_while_sqlite_believes_in_none() {
        for tells in [true, false] {
            let (locks, all) = processes(1, tells);
            drop(all[0].own().unwrap());
            assert_eq!(locks.borrow()[0], Level::None);
            assert!(all[0].sqlites().is_none(), "nobody holds anything");
            all[0].own().unwrap().pass_to_sqlite();
            assert_eq!((locks.borrow()[0], all[0].believed()), (Level::Shared, Level::Shared));
            assert_eq!(all[0].own().err(), Some(21));
            assert!(all[0].sqlites().is_some() && all[0].sqlites_exclusive().is_none());
            all[0].unlock_for_sqlite(Level::None).unwrap();
            assert_eq!((locks.borrow()[0], all[0].believed()), (Level::None, Level::None));
        }
    }

    #[test]
    fn inv44_a_refused_exclusive_leaves_shared_and_lets_others_begin() {
        for tells in [true, false] {
            let (locks, all) = processes(3, tells);
            let mut own = all[0].own().unwrap();
            let other = all[1].own().unwrap();
            let mut waited = 0;
            let is_refused = own.held_mut().exclusive(|tries| {
                waited = tries + 1;
                assert!(all[2].own().is_err(), "PENDING lets nobody begin");
                tries < 2
            });
            assert!(is_refused.unwrap().is_none());
            assert_eq!((waited, locks.borrow()[0]), (3, Level::Shared));
            drop(all[2].own().unwrap());
            drop(other);
            let alone = own.held_mut().exclusive(|_| false).unwrap().unwrap();
            assert_eq!(locks.borrow()[0], Level::Exclusive);
            drop(alone);
            assert_eq!(locks.borrow()[0], Level::Shared);
        }
    }

    #[test]
    fn inv44_what_sqlite_believes_in_stays_held_whatever_is_done_with_it() {
        let (locks, all) = processes(2, true);
        all[0].own().unwrap().pass_to_sqlite();
        all[1].own().unwrap().pass_to_sqlite();
        for level in [Level::Shared, Level::Reserved] {
            all[0].lock_for_sqlite(level).unwrap();
            assert!(matches!(all[0].sqlites().unwrap().exclusive(|_| false), Ok(None)));
            assert!(locks.borrow()[0] >= level);
        }
        all[1].unlock_for_sqlite(Level::None).unwrap();
        all[0].lock_for_sqlite(Level::Exclusive).unwrap();
        drop(all[0].sqlites().unwrap().exclusive(|_| false).unwrap().unwrap());
        assert_eq!(locks.borrow()[0], Level::Exclusive, "not taken for that, not given back with that");
        all[0].refuse_exclusive(Level::Reserved);
        assert_eq!((locks.borrow()[0], all[0].believed()), (Level::Reserved, Level::Reserved));
        assert!(all[0].in_rollback_transaction());
        all[0].lock_for_sqlite(Level::Exclusive).unwrap();
        all[0].keep_for_sqlite(Level::Shared);
        assert_eq!((locks.borrow()[0], all[0].believed()), (Level::Exclusive, Level::Shared));
        all[0].unlock_for_sqlite(Level::Shared).unwrap();
        assert_eq!((locks.borrow()[0], all[0].believed()), (Level::Shared, Level::Shared));
    }

    #[test]
    fn inv44_a_file_that_holds_less_than_sqlite_believes_in_serves_nothing() {
        let (locks, all) = processes(1, true);
        all[0].own().unwrap().pass_to_sqlite();
        all[0].lock_for_sqlite(Level::Exclusive).unwrap();
        locks.borrow_mut()[0] = Level::Shared;
        assert!(all[0].sqlites().is_none() && all[0].sqlites_exclusive().is_none());
        locks.borrow_mut()[0] = Level::None;
        assert!(all[0].sqlites().is_none());
    }

    #[test]
    fn a_failed_call_leaves_what_was_held() {
        let (locks, all) = processes(1, true);
        let mut own = all[0].own().unwrap();
        all[0].file.fails.replace(true);
        assert_eq!(own.held_mut().exclusive(|_| true).err(), Some(FAILED));
        assert_eq!(locks.borrow()[0], Level::Shared);
        own.pass_to_sqlite();
        all[0].file.fails.replace(true);
        assert_eq!(all[0].unlock_for_sqlite(Level::None), Err(FAILED));
        assert_eq!((all[0].believed(), all[0].held()), (Level::None, Level::Shared));
    }
}
