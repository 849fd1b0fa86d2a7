//! Carries out a plan.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::acks::RECORD;
use crate::crowd::Crowd;
use crate::schedule::{Check, Schedule, Step};
use crate::site::Site;
use crate::worker::Question;
use crate::{Plan, Report, Role, Worker};

/// How long the process spins at the end of a wait, because a sleep is not exact enough.
const SPIN: Duration = Duration::from_micros(150);

/// Carries out a plan, and calls `progress` after each step. When this function returns, all processes that
/// it has started have ended.
///
/// # Errors
/// A text of one line. It says what was lost, hung, starved or left behind, where the files are kept, and
/// which arguments repeat the run.
pub fn run(plan: &Plan, worker: &Worker, progress: &mut dyn FnMut(&Report)) -> Result<Report> {
    let site = Site::new(plan)?;
    let mut report = Report::default();
    let result = attack(plan, worker, &site, &mut report, progress);
    match result {
        Ok(()) => Ok(report),
        Err(error) => {
            let kills = report.total_kills();
            let kept = site.keep();
            Err(anyhow::anyhow!("{error:#}; after {kills} kills; {kept}; to repeat: {plan}"))
        }
    }
}

fn attack(
    plan: &Plan,
    worker: &Worker,
    site: &Site,
    report: &mut Report,
    progress: &mut dyn FnMut(&Report),
) -> Result<()> {
    let start = Instant::now();
    let mut crowd = Crowd::new(plan, worker, site)?;
    let auto_vacuum = [0, 1, 2][(plan.seed % 3) as usize];
    crowd.ask(Question::Create(plan.page_bytes, auto_vacuum))?;
    site.give_names()?;
    for step in Schedule::new(plan) {
        let late = plan.seconds > 0 && start.elapsed().as_secs() >= plan.seconds;
        let over = late || report.total_kills() >= u64::from(plan.kills);
        match step {
            Step::Start(cast) => {
                if over {
                    break;
                }
                crowd.start(&cast)?;
            }
            Step::Strike { .. } if over => break,
            step @ Step::Strike { .. } => strike(&mut crowd, site, report, step)?,
            Step::Pause { slots, time } => pause(&mut crowd, report, &slots, time)?,
            Step::Wipe { order, delay, settle } => {
                pass(delay);
                wipe(plan, &mut crowd, report, &order, settle)?;
            }
        }
        let bytes = site.log_bytes()?;
        report.log_bytes = report.log_bytes.max(bytes);
        let limit = plan.log_bytes;
        ensure!(limit == 0 || bytes <= limit, "unbounded: the logs have {bytes} bytes, the limit is {limit}");
        report.elapsed = start.elapsed();
        report.started = crowd.started();
        report.acknowledged = acknowledged(site, crowd.epoch());
        progress(report);
    }
    // The surviving processes close their connections in no particular order. After that no log may be left.
    crowd.end().context("at the end")?;
    crowd.ask(Question::Settle(plan.allow_segments)).context("at the end")?;
    report.settled += 1;
    report.full_checks += 1;
    report.elapsed = start.elapsed();
    report.acknowledged = acknowledged(site, crowd.epoch());
    progress(report);
    Ok(())
}

/// Kills some processes in the middle of their work, and replaces them. Asks the auditor for a check before
/// or after that.
fn strike(crowd: &mut Crowd<'_>, site: &Site, report: &mut Report, step: Step) -> Result<()> {
    let Step::Strike { victims, aim, delay, stop, renamed, replace_first, check } = step else {
        return Ok(());
    };
    if let (Some(first), Some(moment)) = (victims.first(), aim) {
        crowd.aim(*first, moment)?;
    }
    if renamed {
        site.rename_away()?;
        report.renamed += 1;
    }
    pass(delay);
    let mut victims = &victims[..];
    if let (Some(stop), Some((first, others))) = (stop, victims.split_first()) {
        crowd.stop(*first)?;
        pass(stop.time);
        if stop.goes_on {
            crowd.go_on(*first)?;
            victims = others;
            report.continued += 1;
        } else {
            report.stopped += 1;
        }
    }
    count(report, &crowd.kill(victims)?);
    if renamed {
        site.rename_back()?;
    }
    if !replace_first {
        if crowd.is_concurrent() {
            // The dead processes are not replaced yet. None of them may block the auditor's commit.
            crowd.ask(Question::Commit)?;
        }
        ask(crowd, check, report)?;
    }
    for slot in victims {
        crowd.replace(*slot)?;
    }
    if replace_first {
        ask(crowd, check, report)?;
    }
    Ok(())
}

/// Stops some processes for a while.
fn pause(crowd: &mut Crowd<'_>, report: &mut Report, slots: &[usize], time: Duration) -> Result<()> {
    for slot in slots {
        crowd.stop(*slot)?;
    }
    pass(time);
    for slot in slots {
        crowd.go_on(*slot)?;
    }
    report.paused += slots.len() as u64;
    crowd.watch()?;
    Ok(())
}

/// Kills all processes.
fn wipe(
    plan: &Plan,
    crowd: &mut Crowd<'_>,
    report: &mut Report,
    order: &[usize],
    settle: bool,
) -> Result<()> {
    count(report, &crowd.wipe(order)?);
    report.wipes += 1;
    if plan.is_weak() {
        crowd.begin_epoch();
    }
    if settle {
        crowd.ask(Question::Settle(plan.allow_segments))?;
        report.full_checks += 1;
        report.settled += 1;
    }
    Ok(())
}

fn ask(crowd: &mut Crowd<'_>, check: Check, report: &mut Report) -> Result<()> {
    match check {
        Check::Light => crowd.ask(Question::Light)?,
        Check::Visit => crowd.ask(Question::Visit)?,
        Check::Full => crowd.ask(Question::Full)?,
    }
    if check == Check::Full {
        report.full_checks += 1;
    } else {
        report.light_checks += 1;
    }
    Ok(())
}

fn count(report: &mut Report, roles: &[Role]) {
    for role in roles {
        report.kills[role.index()] += 1;
    }
}

fn acknowledged(site: &Site, epoch: u32) -> u64 {
    let length = |path| std::fs::metadata(path).map_or(0, |file| file.len());
    let lengths = (0..=epoch).map(|epoch| length(site.acks(epoch)) + length(site.lane_acks(epoch)));
    lengths.sum::<u64>() / RECORD
}

/// Waits for this time, as exactly as possible.
fn pass(time: Duration) {
    let start = Instant::now();
    if let Some(most) = time.checked_sub(SPIN) {
        std::thread::sleep(most);
    }
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
