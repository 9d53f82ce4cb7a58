//! Schedules and rates: when jobs come, and how many may start per period.

use turnwise_simulate::{Policy, RateResults, Results, Scenario, ScheduleResults, run};

fn simulated(text: &str) -> Results {
    run(&Scenario::parse(text).unwrap(), Policy::VirtualTime).unwrap()
}

/// One schedule in Berlin for 72 hours from the midnight before a change of clocks.
fn around_a_change(begins: &str, when: &str) -> ScheduleResults {
    let outcome = simulated(&format!(
        "name = 'x'\nslots = 1\nchurn = 0\ncycles = 4320\nbegins = '{begins}'\n[[tenants]]\nname = 't'\njobs = []\n\
         schedules = [{{ name = 's', {when}, run_ms = 5 }}]"
    ));
    assert_eq!(outcome.tenants[0].completed, outcome.schedules[0].fires, "each fire adds one job");
    outcome.schedules.into_iter().next().unwrap()
}

#[test]
fn a_change_of_clocks_neither_loses_nor_doubles_a_fire() {
    for begins in ["2026-03-28T00:00:00+01:00", "2026-10-24T00:00:00+02:00"] {
        let of = |when| {
            let ScheduleResults { fires, moved, .. } = around_a_change(begins, when);
            (fires, moved)
        };
        assert_eq!(of("cron = '30 2 * * *', zone = 'Europe/Berlin'"), (3, 1), "{begins}");
        assert_eq!(of("cron = '30 2 * * *'"), (3, 0), "{begins}: the clocks of UTC do not change");
        assert_eq!(of("cron = '0 * * * *', zone = 'Europe/Berlin'"), (72, 0), "{begins}");
        assert_eq!(of("every_ms = 3_600_000, offset_ms = 60_000"), (72, 0), "{begins}");
    }
    // The clocks show the hour of the change not at all, or twice.
    let of = |begins| around_a_change(begins, "cron = '0,15,30 2 * * *', zone = 'Europe/Berlin'").fires;
    assert_eq!(of("2026-03-28T00:00:00+01:00"), 7, "three times of one gap are one fire");
    assert_eq!(of("2026-10-24T00:00:00+02:00"), 9);
}

#[test]
fn jitter_shortens_the_wait_of_a_thousand_nightly_jobs() {
    let nightly = |jitter_ms: u64| {
        simulated(&format!(
            "name = 'x'\nslots = 20\nchurn = 0\ncycles = 1440\nbegins = '2026-11-29T00:00:00Z'\n\
             [[tenants]]\nname = 'nightly'\njobs = []\n\
             schedules = [{{ name = 's', count = 1000, cron = '30 2 * * *', run_ms = 30_000, jitter_ms = {jitter_ms} }}]"
        ))
    };
    let (at_once, spread) = (nightly(0), nightly(3_600_000));
    for outcome in [&at_once, &spread] {
        assert_eq!((outcome.tenants[0].completed, outcome.schedules[0].fires), (1_000, 1_000));
        assert_eq!(outcome.idle_slot_passes, 0);
    }
    // Fifty rounds of 30 s.
    assert_eq!(at_once.schedules[0].longest_delay_ms, 49 * 30_000);
    assert_eq!(at_once.longest_wait_cycles(), 24.5);
    // The slots need less than half of the hour.
    assert!(spread.longest_wait_cycles() < 1.0, "{}", spread.longest_wait_cycles());
    assert!((3_000_000..3_700_000).contains(&spread.schedules[0].longest_delay_ms), "{:?}", spread.schedules);
}

#[test]
fn overlap_decides_what_comes_of_a_fire_while_its_last_job_runs() {
    let day = |overlap: &str, run_minutes: u64| {
        let run_ms = run_minutes * 60_000;
        let outcome = simulated(&format!(
            "name = 'x'\nslots = 9\nchurn = 0\ncycles = 1440\nbegins = '2026-11-29T00:00:00Z'\n[[tenants]]\nname = 't'\njobs = []\n\
             schedules = [{{ name = 's', cron = '0 * * * *', run_ms = {run_ms}, overlap = '{overlap}' }}]"
        ));
        let ScheduleResults { fires, skipped, cancelled, longest_delay_ms, .. } =
            outcome.schedules[0].clone();
        assert_eq!(fires, 24);
        (outcome.tenants[0].starts, skipped, cancelled, longest_delay_ms / 60_000)
    };
    for overlap in ["skip", "allow", "queue", "cancel_running"] {
        assert_eq!(day(overlap, 50), (24, 0, 0, 0), "{overlap}: nothing overlaps");
    }
    assert_eq!(day("skip", 100), (12, 12, 0, 0));
    assert_eq!(day("allow", 100), (24, 0, 0, 0));
    assert_eq!(day("cancel_running", 100), (24, 0, 23, 0));
    // One job runs after the other. At most one waits, so it waits for less than the run of the one before it.
    let (starts, skipped, cancelled, delay) = day("queue", 100);
    assert_eq!((starts, cancelled), (15, 0), "1440 minutes have room for 14.4 runs");
    assert!((8..=9).contains(&skipped) && (40..100).contains(&delay), "{skipped} {delay}");
}

/// A backlog of three tenants in buckets of a rate, and a tenant without a rate.
fn limited(rate: &str, seed: u64) -> (RateResults, Results) {
    let outcome = simulated(&format!(
        "name = 'x'\nslots = 100\nchurn = 0\ninterval_ms = 1000\ncycles = 600\nseed = {seed}\n\
         rates = [{{ name = 'api', {rate} }}]\n\
         [[tenants]]\nname = 'many'\ncount = 3\n\
         jobs = [{{ count = 2000, run_ms = {{ exponential = 200 }}, rate = 'api' }}, {{ per_second = 1, run_ms = 10, rate = 'api' }}]\n\
         [[tenants]]\nname = 'free'\njobs = [{{ per_second = 20, run_ms = {{ exponential = 300 }} }}]\n"
    ));
    assert_eq!(outcome.idle_slot_passes, 0, "a slot is free only while rates refuse all jobs that wait");
    let free = &outcome.tenants[3];
    assert!(
        free.mean_wait_cycles < 0.01 && free.still_waiting == 0,
        "limited jobs are in nobody's way: {free:?}"
    );
    (outcome.rates[0].clone(), outcome)
}

#[test]
fn no_window_has_more_starts_than_its_rate_and_no_place_is_wasted() {
    for seed in [1, 2, 3] {
        let (all, outcome) = limited("at_most = 50, per_ms = 10_000", seed);
        // 60 periods, and the places that are free at the end.
        assert_eq!((all.highest_use, all.starts), (50, 61 * 50));
        assert!(all.reason_share > 0.999, "{all:?}");
        // The tenants have equal shares of the places.
        let starts: Vec<u64> = outcome.tenants[..3].iter().map(|tenant| tenant.starts).collect();
        assert!(starts.iter().all(|starts| (900..1_150).contains(starts)), "{starts:?}");

        let (heavy, _) = limited("at_most = 50, per_ms = 10_000, weight = 20", seed);
        assert_eq!((heavy.highest_use, heavy.starts), (40, 61 * 40));

        let (each, _) = limited("at_most = 20, per_ms = 7_000, key = 'tenant'", seed);
        assert_eq!((each.highest_use, each.starts), (20, 3 * 86 * 20));

        let (keys, _) = limited("at_most = 5, per_ms = 9_000, key = { values = 8 }", seed);
        assert_eq!((keys.highest_use, keys.starts), (5, 8 * 67 * 5));

        let (unused, _) = limited("at_most = 10_000, per_ms = 100", seed);
        assert_eq!(unused.reason_share, 0.0);
    }
}

#[test]
fn a_token_bucket_admits_up_to_twice_its_rate_after_a_pause() {
    let (bucket, _) = limited("at_most = 50, per_ms = 10_000, algorithm = 'bucket'", 1);
    assert!((51..=100).contains(&bucket.highest_use), "{bucket:?}");
    // The full bucket, and 5 a second.
    assert!((3_045..=3_050).contains(&bucket.starts), "{bucket:?}");
}

#[test]
fn all_policies_obey_a_rate() {
    let text = "name = 'x'\nslots = 8\nchurn = 2\ninterval_ms = 1000\ncycles = 100\n\
                rates = [{ name = 'r', at_most = 7, per_ms = 3_000 }]\n\
                [[tenants]]\nname = 'a'\njobs = [{ count = 12, rate = 'r' }]\nreadds_every = 17\n\
                [[tenants]]\nname = 'b'\njobs = [{ count = 500, run_ms = 40, rate = 'r' }]\nleaves_at = 30\ncomes_back_after = 9";
    for policy in Policy::ALL {
        let outcome = run(&Scenario::parse(text).unwrap(), policy).unwrap();
        assert_eq!(outcome.rates[0].highest_use, 7, "{policy}");
        assert_eq!(outcome.idle_slot_passes, 0, "{policy}");
        let starts: u64 = outcome.tenants.iter().map(|tenant| tenant.starts).sum();
        assert_eq!(starts, outcome.rates[0].starts, "{policy}: each start counts once");
    }
}

#[test]
fn a_schedule_fires_while_its_tenant_is_there() {
    let outcome = simulated(
        "name = 'x'\nslots = 1\nchurn = 0\ncycles = 60\nbegins = '2026-11-29T00:00:00Z'\n\
         [[tenants]]\nname = 't'\njobs = []\ncomes_at = 10\nleaves_at = 20\ncomes_back_after = 20\n\
         schedules = [{ name = 's', every_ms = 60_000, run_ms = 1_000, jitter_ms = 30_000 }]",
    );
    // Minutes 10 to 19 and 40 to 49. The job of the last minute may not have started yet when the tenant leaves.
    assert_eq!(outcome.schedules[0].fires, 20);
    assert!((18..=20).contains(&outcome.tenants[0].completed), "{:?}", outcome.tenants);
}

#[test]
fn what_if_this_cron_were_hourly() {
    let file = format!("{}/../../examples/scenarios/hourly-cron.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let nightly = simulated(&text);
    let hourly = simulated(&text.replace("\ncron = \"30 2 * * *\"", "\ncron = \"30 * * * *\""));
    let fired = |of: &Results| (of.schedules[0].fires, of.schedules[0].moved, of.schedules[0].skipped);
    // 100 start in the first hour, the other 20 in the second.
    assert_eq!(fired(&nightly), (3 * 120, 120, 0));
    assert_eq!(nightly.tenants[0].completed, 360);
    let delay = nightly.schedules[0].longest_delay_ms;
    assert!((3_600_000..5_400_000).contains(&delay), "{delay}");
    // Hour after hour, 20 find no place.
    let (fires, moved, skipped) = fired(&hourly);
    assert_eq!((fires, moved), (72 * 120, 0));
    assert!((1_350..1_450).contains(&skipped), "{skipped}");
    for (outcome, share) in [(&nightly, 0.0..0.1), (&hourly, 0.95..1.0)] {
        assert!(
            outcome.rates[0].highest_use <= 100 && share.contains(&outcome.rates[0].reason_share),
            "{:?}",
            outcome.rates
        );
        assert!(outcome.tenants[1].longest_wait_cycles < 3.0, "{:?}", outcome.tenants[1]);
    }
}
