//! The rules that this rig checks at every step.
//!
//! 1. After a successful call, SQLite never believes that it holds a stronger lock on the database file than the base
//!    VFS really holds. The same is true while a successful call reads or writes the file. (A failed call is different:
//!    normally SQLite releases its lock after it. In exclusive locking mode SQLite still believes that it holds the
//!    lock, but then no later call may succeed.)
//! 2. At each commit exactly one log is in use. A commit to a Duralite log finds the guard in the database's header,
//!    and a commit with a rollback journal finds no guard of such a log. Neither of them finds an ordinary `-wal` that
//!    has frames. A commit to an ordinary `-wal` finds a header in WAL mode, and the path of the `-wal` still leads to
//!    the file that the process has open.
//! 3. No process deletes a `-wal` or `-shm` that another living process has open.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use rusqlite::ffi::{
    SQLITE_FCNTL_COMMIT_PHASETWO, SQLITE_LOCK_NONE, SQLITE_NOTFOUND, SQLITE_OK, SQLITE_SHM_LOCK,
};

use crate::board::{Entry, FILES, PROCESSES, board};
use crate::call::{Call, Kind};
use crate::grain;
use crate::me;

/// Identifies one of the two VFSs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The lowest VFS of this rig, directly above SQLite's own VFS.
    Base,
    /// The VFS above Duralite's VFS.
    Top,
}

/// An open file of one of the two VFSs.
#[derive(Debug, Clone, Copy)]
pub struct Seat {
    pub layer: Layer,
    pub kind: Kind,
    /// The number of the file among the files of its VFS, counted from 0.
    pub handle: usize,
}

/// What SQLite believes about a database that it has opened through Duralite.
#[derive(Debug, Clone, Copy)]
struct Belief {
    held: i32,
    /// The number that the database's file has in the base VFS.
    base: Option<usize>,
    /// Whether a violation was recorded for this database. One is enough.
    is_found: bool,
}

thread_local! {
    static BELIEFS: RefCell<Vec<Belief>> = const { RefCell::new(Vec::new()) };
    /// SQLite's call that has not returned yet.
    static CURRENT: Cell<Option<(usize, Call)>> = const { Cell::new(None) };
    /// The database that the top VFS is opening. The next file that the base VFS opens belongs to this
    /// database.
    static OPENING: Cell<Option<usize>> = const { Cell::new(None) };
    /// Whether the base VFS has read or written during the present call under a weaker lock than SQLite believes that
    /// it holds.
    static UNLOCKED: Cell<bool> = const { Cell::new(false) };
    /// The number of files that SQLite has open as a `-wal`, including ordinary `-wal` files.
    static WALS_ABOVE: Cell<i32> = const { Cell::new(0) };
    /// The database file. The rules are checked against its header. The rig never closes this file, because closing it
    /// would release the process's locks.
    static HEADER: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// Opens the database file for the checks of the rules, before SQLite opens anything.
pub fn begin() {
    HEADER.with_borrow_mut(|header| *header = File::open("db").ok());
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.ino())
}

/// Describes a file that a VFS is about to open.
pub fn opening(layer: Layer, kind: Kind) -> Seat {
    let handle = match (layer, me::process()) {
        (Layer::Base, Some(process)) => {
            let handle = board().processes[process].opened.fetch_add(1, SeqCst) as usize;
            assert!(handle < FILES, "a process opens more files than there is room for");
            handle
        }
        (Layer::Base, None) => 0,
        (Layer::Top, _) if kind == Kind::Database => BELIEFS.with_borrow_mut(|beliefs| {
            beliefs.push(Belief { held: SQLITE_LOCK_NONE, base: None, is_found: false });
            beliefs.len() - 1
        }),
        (Layer::Top, _) => 0,
    };
    let seat = Seat { layer, kind, handle };
    if kind == Kind::Database {
        match layer {
            Layer::Top => OPENING.set(Some(handle)),
            Layer::Base => {
                if let Some(above) = OPENING.take() {
                    BELIEFS.with_borrow_mut(|beliefs| beliefs[above].base = Some(handle));
                }
            }
        }
    }
    seat
}

/// Notes that a file was opened.
pub fn opened(seat: Seat, path: &CStr) {
    match (seat.layer, me::process()) {
        (Layer::Base, Some(process)) => {
            let file = &board().processes[process].files[seat.handle];
            file.inode.store(inode(Path::new(OsStr::from_bytes(path.to_bytes()))), SeqCst);
            file.kind.store(seat.kind as u8, SeqCst);
        }
        (Layer::Top, _) if seat.kind == Kind::Wal => WALS_ABOVE.set(WALS_ABOVE.get() + 1),
        _ => {}
    }
}

/// Returns whether this call is a step. A call is a step if other processes can notice when it happens.
fn is_step(seat: Seat, call: Call, argument: i64) -> bool {
    if grain::is_race() {
        return grain::stops_below(call, seat.kind);
    }
    match (call, seat.kind) {
        (Call::Lock | Call::Unlock | Call::CheckReserved, Kind::Database) => true,
        (Call::Truncate, Kind::Database | Kind::Wal | Kind::Journal) => true,
        (Call::Read | Call::Write, Kind::Database) => argument < 100,
        (Call::Read | Call::Write, Kind::Wal) => argument < 32,
        (Call::Read | Call::Write, Kind::Journal) => argument < 28,
        (Call::ShmMap, _) => argument == 0,
        (Call::ShmLock | Call::ShmUnmap, _) => true,
        (Call::Control, Kind::Database) => argument == i64::from(SQLITE_FCNTL_COMMIT_PHASETWO),
        _ => false,
    }
}

fn step(process: usize, kind: Kind, call: Call, argument: i64) -> &'static Entry {
    board().step(process, call, kind, i32::try_from(argument).unwrap_or(i32::MAX))
}

/// Records that a call begins. If the call is a step, takes the step and returns its entry in the trace.
pub fn before(seat: Seat, call: Call, argument: i64) -> Option<&'static Entry> {
    let process = me::process()?;
    if seat.layer == Layer::Top {
        if seat.kind == Kind::Database {
            CURRENT.set(Some((seat.handle, call)));
            UNLOCKED.set(false);
        }
        // Duralite keeps the locks of a wal-index in memory, so the base VFS does not see them.
        let is_step = grain::is_race() && grain::stops_above(call, seat.kind);
        return is_step.then(|| step(process, seat.kind, call, argument));
    }
    let entry = is_step(seat, call, argument).then(|| step(process, seat.kind, call, argument));
    if matches!(call, Call::Read | Call::Write) && seat.kind == Kind::Database {
        look_at_belief(process, seat.handle);
    }
    if call == Call::Write && seat.kind == Kind::Wal && argument == 0 {
        check_wal_is_there(process, seat.handle);
    }
    entry
}

/// Records that a call has returned, and checks the rules. `held` is the lock that the base VFS holds now.
pub fn after(seat: Seat, entry: Option<&Entry>, call: Call, argument: i64, code: i32, held: Option<i32>) {
    let Some(process) = me::process() else { return };
    if let Some(entry) = entry {
        entry.code.store(code, SeqCst);
    }
    match seat.layer {
        Layer::Base => after_base(process, seat, call, code, held),
        Layer::Top => after_top(process, seat, call, argument, code),
    }
    let is_commit = call == Call::Control && argument == i64::from(SQLITE_FCNTL_COMMIT_PHASETWO);
    let is_topmost = seat.layer == Layer::Top || !is_below(seat.handle);
    if is_commit && is_topmost && seat.kind == Kind::Database && matches!(code, SQLITE_OK | SQLITE_NOTFOUND) {
        check_commit(process);
    }
}

fn after_base(process: usize, seat: Seat, call: Call, code: i32, held: Option<i32>) {
    let file = &board().processes[process].files[seat.handle];
    if let Some(held) = held {
        file.held.store(held, SeqCst);
    }
    match call {
        Call::ShmMap if code == SQLITE_OK => file.shm.store(inode(Path::new("db-shm")), SeqCst),
        Call::ShmUnmap => file.shm.store(0, SeqCst),
        Call::Close => {
            file.kind.store(0, SeqCst);
            file.held.store(SQLITE_LOCK_NONE, SeqCst);
            file.shm.store(0, SeqCst);
        }
        _ => {}
    }
}

fn after_top(process: usize, seat: Seat, call: Call, argument: i64, code: i32) {
    if seat.kind == Kind::Wal && call == Call::Close {
        WALS_ABOVE.set(WALS_ABOVE.get() - 1);
    }
    let has_succeeded = code == SQLITE_OK && relies_on_lock(call);
    if seat.kind != Kind::Database {
        if has_succeeded {
            check_beliefs(process, call);
        }
        return;
    }
    CURRENT.set(None);
    let level = i32::try_from(argument).unwrap_or(i32::MAX);
    BELIEFS.with_borrow_mut(|beliefs| {
        let belief = &mut beliefs[seat.handle];
        match call {
            Call::Lock if code == SQLITE_OK => belief.held = belief.held.max(level),
            Call::Unlock => belief.held = belief.held.min(level),
            Call::Close => belief.base = None,
            _ => {}
        }
    });
    if has_succeeded {
        if UNLOCKED.take() && !BELIEFS.with_borrow(|beliefs| beliefs[seat.handle].is_found) {
            BELIEFS.with_borrow_mut(|beliefs| beliefs[seat.handle].is_found = true);
            board().finding(process, format_args!("`{call}` for SQLite under less than it believes to hold"));
        }
        check_beliefs(process, call);
    }
}

/// Returns whether SQLite makes this call only under a lock, and relies on the result.
fn relies_on_lock(call: Call) -> bool {
    matches!(
        call,
        Call::Open
            | Call::Read
            | Call::Write
            | Call::Truncate
            | Call::Lock
            | Call::CheckReserved
            | Call::ShmMap
    )
}

/// Records that the top VFS has opened a file, or has failed to open one.
pub fn returned(code: i32) {
    OPENING.set(None);
    if let Some(process) = me::process().filter(|_| code == SQLITE_OK) {
        check_beliefs(process, Call::Open);
    }
}

fn is_below(handle: usize) -> bool {
    BELIEFS.with_borrow(|beliefs| beliefs.iter().any(|belief| belief.base == Some(handle)))
}

/// Checks rule 1 after a call has succeeded.
fn check_beliefs(process: usize, call: Call) {
    let count = BELIEFS.with_borrow(Vec::len);
    for at in 0..count {
        check_belief(process, at, call);
    }
}

/// Checks rule 1 when the base VFS reads or writes for SQLite.
fn look_at_belief(process: usize, handle: usize) {
    let Some((above, Call::Read | Call::Write)) = CURRENT.get() else { return };
    let belief = BELIEFS.with_borrow(|beliefs| beliefs[above]);
    let held = board().processes[process].files[handle].held.load(SeqCst);
    if belief.base == Some(handle) && belief.held > held {
        UNLOCKED.set(true);
    }
}

fn check_belief(process: usize, at: usize, call: Call) {
    let belief = BELIEFS.with_borrow(|beliefs| beliefs[at]);
    let Some(base) = belief.base.filter(|_| !belief.is_found) else { return };
    let held = board().processes[process].files[base].held.load(SeqCst);
    if belief.held > held {
        BELIEFS.with_borrow_mut(|beliefs| beliefs[at].is_found = true);
        let (believed, held) = (level_name(belief.held), level_name(held));
        board().finding(
            process,
            format_args!("SQLite believes to hold {believed} after `{call}`, and the base holds {held}"),
        );
    }
}

fn level_name(level: i32) -> &'static str {
    ["nothing", "SHARED", "RESERVED", "PENDING", "EXCLUSIVE"]
        .get(level as usize)
        .unwrap_or(&"an unknown lock")
}

/// Checks that the path of an ordinary `-wal` still leads to the file that this process has open.
fn check_wal_is_there(process: usize, handle: usize) {
    let open = board().processes[process].files[handle].inode.load(SeqCst);
    if inode(Path::new("db-wal")) != open {
        board().finding(process, format_args!("it writes to a -wal that has been deleted"));
    }
}

/// Checks rule 3.
pub fn deletes(process: usize, kind: Kind, path: &CStr) {
    let gone = inode(Path::new(OsStr::from_bytes(path.to_bytes())));
    if gone == 0 {
        return;
    }
    for other in (0..PROCESSES).filter(|other| *other != process) {
        let state = &board().processes[other];
        let files = state.files.iter().take(state.opened.load(SeqCst) as usize);
        let uses = |file: &crate::board::OpenFile| match kind {
            Kind::Wal => file.kind.load(SeqCst) == Kind::Wal as u8 && file.inode.load(SeqCst) == gone,
            Kind::Shm => file.shm.load(SeqCst) == gone,
            _ => false,
        };
        if state.alive.load(SeqCst) && files.into_iter().any(uses) {
            board().finding(process, format_args!("it deletes the {kind} that process {other} uses"));
        }
    }
}

/// The journal mode or guard in the header of the database file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Header {
    Rollback,
    Wal,
    Guard,
    GuardOfRollback,
    Other([u8; 2]),
}

fn header() -> Header {
    let mut versions = [0; 2];
    HEADER.with_borrow(|header| {
        let file = header.as_ref();
        let _ = file.map(|file| file.read_exact_at(&mut versions, 18));
    });
    match versions {
        [1, 1] => Header::Rollback,
        [2, 2] => Header::Wal,
        [2, 0xd7] => Header::Guard,
        [1, 0xd8] => Header::GuardOfRollback,
        other => Header::Other(other),
    }
}

/// Checks rule 2.
fn check_commit(process: usize) {
    let header = header();
    let wal = std::fs::metadata("db-wal").ok().filter(|wal| wal.len() > 0).map(|wal| wal.ino());
    let files = &board().processes[process].files;
    let own = files.iter().find(|file| file.kind.load(SeqCst) == Kind::Wal as u8);
    let own = own.map(|file| file.inode.load(SeqCst));
    let ours = WALS_ABOVE.get() > 0 && own.is_none();
    match (own, wal) {
        (Some(own), wal) => {
            if wal != Some(own) {
                board().finding(process, format_args!("it commits to a -wal that has been deleted"));
            }
            if header != Header::Wal {
                board().finding(
                    process,
                    format_args!("it commits to an ordinary -wal, and the header says {header:?}"),
                );
            }
        }
        (None, Some(_)) => {
            let what = if ours { "a log" } else { "a rollback journal" };
            board()
                .finding(process, format_args!("it commits with {what} beside an ordinary -wal with frames"));
        }
        (None, None) => {
            if ours && header != Header::Guard {
                board().finding(process, format_args!("it commits to a log, and the header says {header:?}"));
            }
            if !ours && matches!(header, Header::Guard | Header::Other(_)) {
                board().finding(
                    process,
                    format_args!("it commits with a rollback journal, and the header says {header:?}"),
                );
            }
        }
    }
}

/// Encodes a lock request on the wal-index as a number for the trace: 100 times the first slot, plus 10 times
/// the number of slots, plus 1 if the request takes the lock, plus 2 if the lock is exclusive.
pub fn shm_argument(offset: i32, count: i32, flags: i32) -> i64 {
    let takes = i32::from(flags & SQLITE_SHM_LOCK != 0);
    i64::from(offset * 100 + count * 10 + takes + (flags & 8) / 4)
}
