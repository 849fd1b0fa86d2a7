//! A random walk through the whole interface of a store, while its media crash. The walk checks what each crash leaves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use duralite_store::{Error, Options, Rule, Scheme, Store};

use super::backups::Backups;
use super::crash::{Crash, Images, OnRig, Rig};
use super::data::Data;
use super::model::{Content, Walker, Witness, content};

/// The number of states in which a crash may leave the store. It may have from none to three of the commits that were
/// not acknowledged: up to two for which the walk has not waited yet, and one that may be in progress.
const UNKNOWN: usize = 4;
/// The largest number of page reads that a recovery may need. If a recovery needs more, the test assumes that it never
/// ends.
const READS: u64 = 1 << 20;

/// The parameters of one walk.
#[derive(Clone, Debug)]
pub struct Course {
    pub data: Data,
    /// The options of the store, in the walk and in recoveries. They name an archive if the walk uses one.
    pub options: Options,
    pub seed: u64,
    pub steps: u64,
    /// On average, there is one crash in this many calls.
    pub crash_every: u8,
    /// A rule that each store breaks once it has recovered.
    pub then_broken: Option<Rule>,
}

/// What a recovery has left.
struct Recovered {
    content: Content,
    /// What the crashes during the recovery left. After another recovery the content has to be the same.
    in_recovery: Vec<Images>,
    /// What the crashes left while the recovered store was used.
    in_use: Vec<Crash>,
    /// The states through which the recovered store passed in that use.
    states: Vec<Content>,
}

/// The states through which the store passes in a walk, one for each commit.
struct States<'r> {
    rig: &'r Rig,
    all: Mutex<Vec<Content>>,
}

impl Witness for States<'_> {
    fn commits(&self, number: u64, state: &Content) {
        let mut all = self.all.lock().unwrap();
        assert_eq!(all.len() as u64, number);
        all.push(state.clone());
    }

    fn acknowledged(&self, number: u64) {
        self.rig.acknowledged.store(number, Ordering::SeqCst);
    }
}

/// Returns about how many writes, flushes and fences of the media (steps) one call of the store makes. A crash is
/// scheduled before a random one of these steps.
fn steps_of(scheme: Scheme) -> u64 {
    match scheme {
        Scheme::FlushOnInsert | Scheme::FlushOnCommit => 900,
        Scheme::Distributed => 300,
        _ => 30,
    }
}

/// Writes the media after a crash to the directory that the variable `STORE_KEEP` names, if it is set. The images help
/// to examine a failure that depends on timing, which the seed alone may not reproduce.
fn keep(images: &Images) {
    let Some(dir) = std::env::var_os("STORE_KEEP") else { return };
    let dir = std::path::Path::new(&dir);
    std::fs::create_dir_all(dir).unwrap();
    let all = [("pages", &images.pages), ("blocks", &images.blocks), ("memory", &images.memory)];
    all.iter().for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).unwrap());
}

impl Course {
    /// Does the walk, and checks each crash. Returns how many crashes were checked, or an error that says what is
    /// wrong.
    pub fn explore(&self) -> Result<u64, String> {
        let rig = self.data.rig(self.options.scheme);
        let states = States { rig: &rig, all: Mutex::default() };
        self.walk(&rig, &states).map_err(|error| format!("{self:?}: {error}"))?;
        let states = states.all.into_inner().unwrap();
        let mut looked = 0;
        for crash in rig.crashes() {
            let step = crash.step;
            let images = crash.images.clone();
            looked += self.judge(crash, &states).map_err(|why| {
                keep(&images);
                format!("{self:?}: step {step}: {why}")
            })?;
        }
        Ok(looked)
    }

    fn without_archive(&self) -> Options {
        let mut options = self.options.clone();
        options.archive = None;
        options
    }

    fn walk(&self, rig: &Arc<Rig>, states: &States<'_>) -> Result<(), Error> {
        let store = Store::open_on(OnRig(Arc::clone(rig)), self.options.clone())?;
        let now = content(&store)?;
        states.commits(0, &now);
        let mut walker = Walker::new(&store, self.seed, now, states);
        let archive = self.options.archive.as_ref().and_then(|archive| archive.parent());
        let mut backups = archive.map(|dir| Backups::new(dir, self.without_archive()));
        let mut random = fastrand::Rng::with_seed(self.seed);
        for _ in 0..self.steps {
            if random.u8(0..self.crash_every) == 0 {
                rig.crash_soon(steps_of(self.options.scheme), &mut random);
            }
            walker.step()?;
            if let Some(backups) = &mut backups {
                backups.step(&mut walker)?;
            }
        }
        if let Some(backups) = &mut backups {
            backups.restore(&mut walker)?;
        }
        Ok(())
    }

    /// Recovers from a crash, and checks the content. Also crashes during the recovery, and while the recovered store is
    /// used. Returns how many states were checked.
    fn judge(&self, crash: Crash, states: &[Content]) -> Result<u64, String> {
        let known = crash.acknowledged as usize;
        let recovered = self
            .recover(crash.images, Some(self.seed ^ crash.step))
            .map_err(|why| format!("{known} commits were acknowledged; {why}"))?;
        expect(&recovered.content, known, states)?;
        let mut looked = 1;
        for images in recovered.in_recovery {
            if self.recover(images, None)?.content != recovered.content {
                return Err("crashed again in recovery it is something else".to_owned());
            }
            looked += 1;
        }
        for crash in recovered.in_use {
            let known = crash.acknowledged as usize;
            let found = self.recover(crash.images, None).map(|again| again.content);
            found
                .and_then(|found| expect(&found, known, &recovered.states))
                .map_err(|why| format!("used on and crashed: {why}"))?;
            looked += 1;
        }
        Ok(looked)
    }

    /// Recovers a store. If there is a seed, then also uses the store a little, with crashes during both.
    fn recover(&self, images: Images, crashed: Option<u64>) -> Result<Recovered, String> {
        let told = |error: Error| error.to_string();
        let rig = Rig::new(Some(images));
        if let Some(seed) = crashed {
            rig.crash(2, 20 + steps_of(self.options.scheme), seed);
        }
        rig.page_reads_left.store(READS, Ordering::SeqCst);
        // Opens the store without its archive. The archive did not crash, so it would be ahead of the store.
        let store = Store::open_on(OnRig(Arc::clone(&rig)), self.without_archive()).map_err(told)?;
        let in_recovery = rig.crashes().into_iter().map(|crash| crash.images).collect();
        if let Some(rule) = self.then_broken {
            store.break_rule(rule);
        }
        store.verify().map_err(told)?;
        let found = content(&store).map_err(told)?;
        let states = States { rig: &rig, all: Mutex::default() };
        states.commits(0, &found);
        if crashed.is_some() {
            // Checks that the recovered store can still be used.
            let mut walker = Walker::new(&store, self.seed, found.clone(), &states);
            (0..4).try_for_each(|_| walker.step()).map_err(told)?;
            drop(walker);
            store.verify().map_err(|error| format!("used on: {error}"))?;
        }
        // Closing the store makes steps too.
        drop(store);
        let in_use = rig.crashes();
        let states = states.all.into_inner().unwrap();
        Ok(Recovered { content: found, in_recovery, in_use, states })
    }
}

/// Checks that a crash left one of the states in which it may leave the store, if `known` commits were acknowledged.
fn expect(found: &Content, known: usize, states: &[Content]) -> Result<(), String> {
    if states.iter().skip(known).take(UNKNOWN).any(|state| state == found) {
        return Ok(());
    }
    let near = states.iter().position(|state| state == found);
    Err(format!(
        "{known} commits were acknowledged of {}, and what is there is that of {near:?}",
        states.len() - 1
    ))
}
