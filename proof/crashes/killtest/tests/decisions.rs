//! Tests that the seed decides everything except how the system schedules the processes.

use duralite_killtest::{Engine, Plan, Role, Schedule, Step, soak_plan};

fn steps(plan: &Plan) -> Vec<Step> {
    Schedule::new(plan).take(2000).collect()
}

#[test]
fn the_same_seed_decides_the_same() {
    for engine in Engine::all() {
        for seed in 0..20 {
            let plan = Plan::varied(engine, 100, seed);
            assert_eq!(steps(&plan), steps(&Plan::varied(engine, 100, seed)));
            assert_ne!(steps(&plan), steps(&Plan { seed: seed + 1, ..plan }));
        }
    }
}

#[test]
fn the_text_of_a_plan_repeats_it() {
    for seed in 0..20 {
        let mut plan = Plan::varied(Engine::WALDIO, 300, seed);
        plan.allow_segments = seed % 2 == 0;
        if seed % 4 == 0 {
            plan = soak_plan(Engine::NVWAL, seed);
        } else if seed % 4 == 1 {
            plan = Plan::concurrent(Engine::WALDIO, 300, seed);
        }
        plan.directory = (seed % 3 == 0).then(|| "/somewhere".into());
        let text = plan.to_string();
        // These are the arguments as a shell would pass them.
        let arguments: Vec<String> = text.split(' ').map(|word| word.replace('\'', "")).collect();
        let again = Plan::parse(arguments.iter().map(String::as_str)).unwrap();
        assert_eq!(again.to_string(), text);
    }
    assert!(Plan::parse(["seed"]).is_err());
    assert!(Plan::parse(["colour=red"]).is_err());
    assert!(Plan::parse(["engine=none"]).is_err());
}

#[test]
fn everybody_is_killed_and_casts_are_complete() {
    let plan = Plan::new(Engine::WALDIO, 100, 7);
    let (mut cast, mut killed, mut wipes) = (Vec::new(), Vec::new(), 0);
    for step in steps(&plan) {
        match step {
            Step::Start(roles) => cast = roles,
            Step::Strike { victims, .. } => {
                assert!(!victims.is_empty());
                killed.extend(victims.iter().map(|slot| cast[*slot]));
            }
            Step::Pause { .. } => {}
            Step::Wipe { mut order, .. } => {
                order.sort_unstable();
                assert_eq!(order, (0..cast.len()).collect::<Vec<_>>());
                wipes += 1;
            }
        }
    }
    for role in [Role::Writer, Role::Checkpointer, Role::Opener, Role::Reader] {
        assert!(killed.contains(&role), "{role:?}");
    }
    assert!(wipes > 10);
}

#[test]
fn a_keeper_dies_only_with_all_others() {
    let settings = String::from("group_synch=8");
    let plan = Plan { settings, ..Plan::new(Engine::WALDIO, 100, 7) };
    assert!(plan.is_weak());
    let mut cast = Vec::new();
    for step in steps(&plan) {
        match step {
            Step::Start(roles) => {
                cast = roles;
                assert!(cast.contains(&Role::Keeper));
            }
            Step::Strike { victims, .. } => {
                assert!(victims.iter().all(|slot| cast[*slot] != Role::Keeper));
            }
            Step::Pause { .. } | Step::Wipe { .. } => {}
        }
    }
}

#[test]
fn a_soak_has_eight_processes_that_fork_and_are_stopped() {
    let (mut names, mut beside) = (0, 0);
    for seed in 0..50 {
        let plan = soak_plan(Engine::WALDIO, seed);
        assert_eq!(plan.roles().len(), 8, "{plan}");
        assert!(plan.roles().contains(&Role::Forker) && plan.roles().contains(&Role::Onlooker), "{plan}");
        names += u32::from(plan.names);
        beside += u32::from(plan.beside);
        let stopped = steps(&plan).iter().any(|step| matches!(step, Step::Pause { .. }));
        let renamed = steps(&plan).iter().any(|step| matches!(step, Step::Strike { renamed: true, .. }));
        assert!(stopped && renamed == plan.names, "{plan}");
    }
    assert!(names > 10 && beside > 10);
}
