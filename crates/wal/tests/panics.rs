//! Tests that a panic in the middle of an operation, which the C boundary catches, poisons the log (invariant 9).
//! Whatever the operation has left unfinished, nobody acknowledges a later commit.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::{Model, Rng, directory};
use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Counters, Guarantee, Latency, MediumError, Nvm};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engines::{nvwal, waldio};
use duralite_wal::placement::{FileStep, Hook, hook};
use duralite_wal::{DatabaseIdentity, Descriptor, EngineOptions, Log, LogError, LogPlacement};

/// The number of writes to the medium until a panic. A negative number means that there is no panic.
#[derive(Debug, Default)]
struct Fuse(AtomicI64);

impl Fuse {
    fn set(&self, writes: i64) {
        self.0.store(writes, Ordering::SeqCst);
    }

    fn burn(&self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 0 {
            panic!("as ordered");
        }
    }
}

struct FuseHook(Arc<Fuse>);

impl Hook for FuseHook {
    fn step(&self, _step: FileStep, _log: &Path) -> io::Result<()> {
        Ok(())
    }
    fn nvm(&self, _log: &Path, nvm: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        Ok(Arc::new(Fused(nvm, self.0.clone())))
    }
    fn block(&self, _log: &Path, block: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
        Ok(Arc::new(Fused(block, self.0.clone())))
    }
}

#[derive(Debug)]
struct Fused<M>(M, Arc<Fuse>);

impl Block for Fused<Arc<dyn Block>> {
    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        self.0.preallocate(len)
    }
    fn refresh_len(&self) -> Result<(), MediumError> {
        self.0.refresh_len()
    }
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.0.read(at, buf)
    }
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.1.burn();
        self.0.write(at, blocks)
    }
    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.1.burn();
        self.0.write_durably(at, blocks, durability)
    }
    fn flush(&self) -> Result<(), MediumError> {
        self.0.flush()
    }
    fn counters(&self) -> BlockCounters {
        self.0.counters()
    }
    fn guarantee(&self) -> Guarantee {
        self.0.guarantee()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

impl Nvm for Fused<Arc<dyn Nvm>> {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn capacity(&self) -> u64 {
        self.0.capacity()
    }
    fn grow(&self, len: u64) -> Result<(), MediumError> {
        self.0.grow(len)
    }
    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError> {
        self.0.refresh_len(at_least)
    }
    fn read(&self, at: u64, buf: &mut [u8]) {
        self.0.read(at, buf);
    }
    fn load_u64(&self, at: u64) -> u64 {
        self.0.load_u64(at)
    }
    fn store(&self, at: u64, bytes: &[u8]) {
        self.1.burn();
        self.0.store(at, bytes);
    }
    fn store_u64(&self, at: u64, value: u64) {
        self.1.burn();
        self.0.store_u64(at, value);
    }
    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.1.burn();
        self.0.compare_exchange_u64(at, current, new)
    }
    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        self.0.shrink(len)
    }
    fn check(&self) -> Result<(), MediumError> {
        self.0.check()
    }
    fn is_durable_on_store(&self) -> bool {
        self.0.is_durable_on_store()
    }
    fn stream(&self, at: u64, bytes: &[u8]) {
        self.0.stream(at, bytes);
    }
    fn flush(&self, at: u64, len: u64) {
        self.0.flush(at, len);
    }
    fn fence(&self) {
        self.0.fence();
    }
    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.0.system_allocate(at, len)
    }
    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.0.system_free(at, len)
    }
    fn counters(&self) -> Counters {
        self.0.counters()
    }
    fn guarantee(&self) -> Guarantee {
        self.0.guarantee()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn set_latency(&self, latency: Latency) {
        self.0.set_latency(latency);
    }
    fn latency(&self) -> Latency {
        self.0.latency()
    }
}

struct Rig {
    log: Log,
    fuse: Arc<Fuse>,
    placement: LogPlacement,
    identity: DatabaseIdentity,
    _hooked: duralite_wal::placement::Hooked,
    _dir: tempfile::TempDir,
}

fn rig(engine: &'static Descriptor) -> Rig {
    let dir = tempfile::tempdir().expect("directory");
    let database = dir.path().join("app.db");
    std::fs::write(&database, [0; 4096]).expect("database");
    let placement = directory(engine, dir.path());
    let identity = DatabaseIdentity::of(&database).expect("identity");
    let fuse = Arc::new(Fuse::default());
    fuse.set(-1);
    let hooked = hook(dir.path(), Arc::new(FuseHook(fuse.clone())));
    let log =
        Log::create(&NoDatabase, &placement, &EngineOptions::default(), &identity, 512).expect("create");
    Rig { log, fuse, placement, identity, _hooked: hooked, _dir: dir }
}

/// Writes a transaction and makes it durable.
fn write(log: &mut Log, writes: &[(u64, Vec<u8>)]) -> Result<(), LogError> {
    for (offset, data) in writes {
        let ticket = log.write(&NoDatabase, *offset, data)?.and_then(|sealed| sealed.ticket);
        if let (Some(ticket), Some(waiter)) = (ticket, log.durability_waiter()) {
            waiter.wait(ticket)?;
        }
    }
    Ok(())
}

fn contents(log: &mut Log) -> Vec<u8> {
    let mut bytes = vec![0; log.size().expect("size") as usize];
    log.read(&NoDatabase, 0, &mut bytes).expect("read");
    bytes
}

#[test]
fn inv09_after_a_panic_in_an_operation_nothing_is_acknowledged() {
    for engine in [&nvwal::DESCRIPTOR, &waldio::DESCRIPTOR] {
        // Panic in each write of a commit, and in each write of starting the log over.
        for at in 0..12 {
            let Rig { mut log, fuse, placement, identity, _hooked, _dir } = rig(engine);
            let (mut model, mut rng) = (Model::new(512, 20), Rng(at as u64 + 1));
            let restart = model.restart();
            write(&mut log, &[restart]).expect("restart");
            let first = model.transaction(&mut rng, false);
            write(&mut log, &first.writes).expect("commit");
            model.commit(first);
            let before = model.committed.clone();
            fuse.set(at);
            let next = model.transaction(&mut rng, false);
            let committed = catch_unwind(AssertUnwindSafe(|| write(&mut log, &next.writes)));
            let panicked = committed.is_err();
            let after = model.after(&next).to_vec();
            model.commit(next);
            if !panicked {
                committed.expect("no panic").expect("commit");
                let (offset, data) = model.restart();
                let again = catch_unwind(AssertUnwindSafe(|| log.write(&NoDatabase, offset, &data)));
                if again.is_ok() {
                    // There was no panic, because the fuse was longer than both operations.
                    continue;
                }
            }
            fuse.set(-1);
            let (offset, data) = model.clone().restart();
            for refused in [
                log.write(&NoDatabase, offset, &data).map(|_| ()),
                log.check(),
                log.size().map(|_| ()),
                log.retire(),
            ] {
                assert!(matches!(refused, Err(LogError::Poisoned(_))), "{engine:?} at {at}: {refused:?}");
            }
            let id = log.id();
            drop(log);
            let mut again =
                Log::attach(&NoDatabase, &placement, &EngineOptions::default(), &identity, id, &|_| false)
                    .expect("attach");
            let found = contents(&mut again);
            let whole = if panicked { found == before || found == after } else { found == after };
            assert!(whole || found == model.committed, "{engine:?} at {at}");
        }
    }
}

#[test]
fn inv09_a_panic_while_leading_frees_the_others_and_stops_this_process() {
    let Rig { mut log, fuse, _hooked, _dir, .. } = rig(&waldio::DESCRIPTOR);
    let (mut model, mut rng) = (Model::new(512, 20), Rng(7));
    let restart = model.restart();
    write(&mut log, &[restart]).expect("restart");
    let next = model.transaction(&mut rng, false);
    let mut sealed = None;
    for (offset, data) in &next.writes {
        sealed = log.write(&NoDatabase, *offset, data).expect("write").or(sealed);
    }
    let ticket = sealed.and_then(|sealed| sealed.ticket).expect("a ticket");
    let waiter = log.durability_waiter().expect("a waiter");
    fuse.set(0);
    assert!(catch_unwind(AssertUnwindSafe(|| waiter.wait(ticket))).is_err());
    // The panicking thread has released its lock, so no thread waits for it. But no commit continues.
    assert!(matches!(waiter.wait_all(), Err(LogError::Poisoned(_))));
    assert!(matches!(log.size(), Err(LogError::Poisoned(_))));
}
