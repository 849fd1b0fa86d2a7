//! Does the work in the background: makes log objects persistent, writes pages home, and discards old log objects.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Error;
use crate::options::Durability;
use crate::running::Stop;

/// The interval at which the log thread makes waiting objects persistent.
const PERSIST_EVERY: Duration = Duration::from_micros(500);
/// The interval at which the log thread makes everything durable, in a store with eventual durability.
const FORCE_EVERY: Duration = Duration::from_millis(10);
/// The interval at which the page thread checks the log. The thread also runs whenever the cache has too few ready
/// frames and wakes it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Starts the two background threads.
pub(crate) fn start(engine: &Arc<Engine>, stop: &Arc<Stop>) -> Result<Vec<JoinHandle<()>>, Error> {
    let spawn = |name: &str, work: fn(&Engine, &Stop)| {
        let (engine, stop) = (Arc::clone(engine), Arc::clone(stop));
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&engine, &stop))
            .map_err(|source| Error::Io { what: "starting a thread".to_owned(), source })
    };
    Ok(vec![spawn("store-log", persist)?, spawn("store-pages", keep)?])
}

fn persist(engine: &Engine, stop: &Stop) {
    let is_eventual = engine.tuning.durability == Durability::Eventual;
    while !stop.sleep(if is_eventual { FORCE_EVERY } else { PERSIST_EVERY }) {
        let log = &engine.pager.log;
        if !is_eventual {
            log.persist_some();
        } else if log.next() > log.durable() {
            // `force` has poisoned the store if it failed, so the error need not be handled here.
            let _ = engine.force(log.next() - 1);
        }
    }
}

/// Returns whether a checkpoint is due: half of the log is in use (NV-Logging, section 4.5), or a thread waits for
/// room.
fn is_checkpoint_due(engine: &Engine) -> bool {
    let space = engine.pager.log.space();
    engine.admission.is_short()
        || space.free_bytes < space.all_bytes / 2
        || space.free_objects < space.all_objects / 2
}

fn keep(engine: &Engine, stop: &Stop) {
    let pool = &engine.pager.pool;
    let is_over = || stop.sleep(Duration::ZERO);
    let mut has_more = false;
    while !is_over() {
        if !has_more {
            pool.wait_for_need(LOOK_EVERY);
        }
        // Errors need no handling here, because either the error has poisoned the store, or the thread that needs
        // the page gets it too.
        has_more = !engine.poison.is_set() && pool.stay_ahead().unwrap_or(false);
        if !engine.poison.is_set() && is_checkpoint_due(engine) {
            let _ = engine.checkpoint(&is_over);
        }
    }
}
