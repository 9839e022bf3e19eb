use std::path::Path;

use deepres_policy::packing::capacity::{self, Work};
use proptest::prelude::*;

use super::bound::{self, Rectangle};
use super::curve::{Curve, WHOLE};
use super::policy::{self, served_vs_owed};
use super::scenario::{self, Arrivals, Scenario};
use super::sim::{self, Candidate, Outcome, Place, Policy};
use super::{Row, bars, evaluate, profiles};

/// The scenarios that come with deepres, cut to this length for the quick tests, ms.
const SHORT_MS: f64 = 500.0;

fn read(name: &str) -> Scenario {
    let file = scenario::ours().join(format!("{name}.toml"));
    Scenario { duration_ms: SHORT_MS, ..Scenario::read(&file).unwrap() }
}

fn row(scenario: &Scenario, policy: &'static str) -> Row {
    evaluate(scenario, &[policy]).remove(0)
}

fn parse(tenants: &str) -> Scenario {
    Scenario::parse("test".to_owned(), &format!("duration_s = 1\n{tenants}")).unwrap()
}

fn error(text: &str) -> String {
    format!("{:#}", Scenario::parse("test".to_owned(), text).unwrap_err())
}

fn rectangle(part: usize, time: f64) -> Rectangle {
    Rectangle { part, instances: 1, time }
}

/// The four models of the table, in 100 ms.
fn four() -> [Rectangle; 4] {
    [rectangle(30, 0.32), rectangle(20, 0.40), rectangle(40, 0.56), rectangle(50, 0.55)]
}

/// Gives each run the part of its tenant.
struct Fixed {
    parts: Vec<usize>,
    handoff_ms: f64,
}

impl Policy for Fixed {
    fn choose(&mut self, _: f64, candidates: &[Candidate], places: &mut Vec<Place>) {
        let part = |candidate: usize| self.parts[candidates[candidate].tenant];
        places.extend((0..candidates.len()).map(|candidate| Place { candidate, part: part(candidate) }));
    }
    fn batch(&self, _: usize) -> u32 {
        1
    }
    fn part(&self, tenant: usize) -> usize {
        self.parts[tenant]
    }
    fn handoff_ms(&self) -> f64 {
        self.handoff_ms
    }
}

fn fixed(scenario: &Scenario, parts: &[usize], handoff_ms: f64) -> Outcome {
    sim::run(scenario, &mut Fixed { parts: parts.to_vec(), handoff_ms })
}

#[test]
fn bounds_are_those_of_the_published_table() {
    let is =
        |has: Option<f64>, least: f64| assert!((has.unwrap() - least).abs() < 1e-6, "{has:?} is not {least}");
    is(bound::least_time(&four()), 0.755);
    is(bound::least_time(&four().map(|one| Rectangle { instances: 2, ..one })), 0.675);
    is(bound::most_filled(&four()), 0.944);
    is(bound::most_served(&four()), 0.675);
    let three = [rectangle(30, 10.3), rectangle(40, 14.6), rectangle(60, 15.4)];
    is(bound::least_time(&three), 20.15);
    assert_eq!(bound::most_filled(&three), None, "the work does not fit into the time 1");
    is(bound::most_served(&[rectangle(60, 0.8), rectangle(60, 0.8)]), 0.6);
}

#[test]
fn the_exact_search_finds_schedules_and_what_has_to_be_left_out() {
    let exact = |scenario: &Scenario| {
        let points = policy::reference_points(scenario);
        bound::exact(scenario, &super::rectangles(scenario, &points))
    };
    let c4 = exact(&read("c4")).unwrap();
    assert_eq!((c4.all_in_time, c4.served), (true, 1.0));
    let two = "[[tenants]]\nname = \"a\"\npart_percent = 60\nrun_ms = 6\nslo_ms = 10\n\
               [[tenants]]\nname = \"b\"\npart_percent = 60\nrun_ms = 5\nslo_ms = 10\n";
    let two = exact(&parse(two)).unwrap();
    assert!(!two.all_in_time);
    assert!((two.served - 6.0 / 11.0).abs() < 1e-9);
    let late = "[[tenants]]\nname = \"long\"\npart_percent = 100\nrun_ms = 7\nslo_ms = 20\n\
                [[tenants]]\nname = \"short\"\npart_percent = 100\nrun_ms = 5\nslo_ms = 10\n";
    let late = exact(&parse(late)).unwrap();
    assert!(late.all_in_time, "the long run fits between the short ones");
    assert_eq!(exact(&read("all-eight")), None, "the session has too many runs");
}

#[test]
fn a_curve_goes_through_its_points_and_keeps_its_area_below_them() {
    let curve = Curve::new([(1, 50, 4.0), (1, 100, 3.0), (3, 50, 8.0), (3, 100, 5.0)]).unwrap();
    assert_eq!(curve.time_ms(50, 1), 4.0);
    assert_eq!(curve.time_ms(100, 3), 5.0);
    assert_eq!(curve.time_ms(25, 1), 8.0);
    assert_eq!(curve.time_ms(50, 2), 6.0);
    assert_eq!(curve.time_ms(50, 6), 16.0);
    assert!((curve.time_ms(75, 1) - (3.0 + 1.0 / 3.0)).abs() < 1e-9);
    assert_eq!(curve.area_ms(1), 2.0);
    assert_eq!(curve.parts(20), [50, 60, 80, 100]);
    assert!(
        Curve::new([]).is_err() && Curve::new([(0, 1, 1.0)]).is_err() && Curve::new([(1, 101, 1.0)]).is_err()
    );
}

#[test]
fn runs_beyond_all_sms_slow_down_alike_and_hand_offs_cost_time() {
    let two = parse(
        "full = true\n[[tenants]]\nname = \"a\"\npart_percent = 80\nrun_ms = 10\nslo_ms = 100\n\
         [[tenants]]\nname = \"b\"\npart_percent = 80\nrun_ms = 10\nslo_ms = 100\nslower_beside_percent = 50\n",
    );
    let free = fixed(&two, &[WHOLE, WHOLE], 0.0);
    // 1.6 times all SMs are asked for: each run takes 16 ms, and 24 ms with the interference.
    assert_eq!(free.tenants[0].ended, 62.0);
    assert_eq!(free.tenants[1].ended, 41.0);
    let one = Scenario { tenants: two.tenants[..1].to_vec(), ..two.clone() };
    assert_eq!(fixed(&one, &[WHOLE], 0.0).tenants[0].ended, 100.0);
    assert_eq!(fixed(&one, &[40], 0.0).tenants[0].ended, 50.0);
    assert_eq!(fixed(&one, &[WHOLE], 10.0).tenants[0].ended, 50.0);
    let mut pauses = one;
    pauses.tenants[0].pause_ms = 10.0;
    assert_eq!(fixed(&pauses, &[WHOLE], 0.0).tenants[0].ended, 50.0);
}

#[test]
fn requests_that_the_next_run_cannot_answer_in_time_are_left_out() {
    let slow =
        parse("[[tenants]]\nname = \"a\"\npart_percent = 100\nrun_ms = 20\nslo_ms = 30\nrate_hz = 500\n");
    let outcome = fixed(&slow, &[WHOLE], 0.0);
    let figures = &outcome.tenants[0];
    assert!((400.0..600.0).contains(&figures.requests));
    assert!(figures.ended <= 50.0);
    assert!(figures.answered >= figures.ended - 1.0, "no run is for a late request");
    assert!(served_vs_owed(&slow, &outcome) < 0.11);
}

#[test]
fn the_published_mixes_reach_their_bars() {
    let mut rows = Vec::new();
    for file in scenario::all().unwrap() {
        rows.extend(evaluate(&Scenario::read(&file).unwrap(), &["deepres", "temporal-kernel"]));
    }
    assert_eq!(bars::missed(&rows), [""; 0]);
}

#[test]
fn mixes_of_the_table_reach_their_bars() {
    let mut rows = Vec::new();
    // Few models, all models, mixes that fill the GPU to the last percent, and one beyond it.
    for bits in [0b11, 0b1111, 0b10_1110, 0b1101_1001, 0b1111_0111] {
        for full in [false, true] {
            let mix = Scenario { duration_ms: SHORT_MS, ..scenario::of_table(bits, full).unwrap() };
            rows.extend(evaluate(&mix, &["deepres"]));
        }
    }
    assert_eq!(bars::missed(&rows), [""; 0]);
}

#[test]
fn a_row_below_a_bar_is_named_with_its_figure() {
    let good = row(&read("c4"), "deepres");
    let missed = |change: fn(&mut Row)| {
        let mut row = good.clone();
        change(&mut row);
        bars::missed(&[row]).join("\n")
    };
    assert_eq!(missed(|_| {}), "");
    assert!(
        missed(|row| row.run_misses = Some(0.01)).contains("c4: runs in time is 0.9900, and the bar is 1")
    );
    assert!(missed(|row| row.vs_lp = Some(0.9)).contains("vs_lp is 0.9000, and the bar is 0.9500"));
    assert!(missed(|row| row.filled_vs_lp = Some(0.9)).contains("filled_vs_lp"));
    assert!(missed(|row| row.throughput_vs_temporal = 3.0).contains("bound by area"));
    let mut temporal = good.clone();
    temporal.policy = "temporal-kernel";
    temporal.throughput_vs_temporal *= 1.1;
    let rows = [good, temporal];
    assert!(bars::missed(&rows).join("\n").contains("beside that of temporal-kernel"));
    assert_eq!(bars::missed_by(&rows, "lease-core"), [""; 0], "no row is of this policy");
}

#[test]
fn overload_is_shared_without_a_collapse() {
    for name in ["c7", "all-eight"] {
        let overload = Scenario { duration_ms: 2_000.0, ..read(name) };
        let row = row(&overload, "deepres");
        assert!(row.served_vs_owed > 0.5, "{name}: {row:?}");
    }
}

#[test]
fn the_arbiter_shares_overload_without_a_collapse() {
    for name in ["c7", "all-eight"] {
        let overload = Scenario { duration_ms: 2_000.0, ..read(name) };
        let row = row(&overload, "lease-core-shares");
        assert!(row.served_vs_owed > 0.3, "{name}: {row:?}");
    }
}

#[test]
fn the_arbiter_runs_models_at_once_if_their_parts_fit_and_in_turns_if_they_do_not() {
    // A run takes 5 ms, on all SMs or also on a half of them, and each tenant owes a run in 20 ms.
    let two = |parts: &[usize]| {
        let point = |part: &usize| format!("{{ batch = 1, part_percent = {part}, ms = 5 }}");
        let points = parts.iter().map(point).collect::<Vec<_>>().join(", ");
        let model =
            |name: &str| format!("[[tenants]]\nname = \"{name}\"\nslo_ms = 20\npoints = [{points}]\n");
        parse(&format!("full = true\n{}{}", model("a"), model("b")))
    };
    for policy in policy::ARBITERS {
        let beside = row(&two(&[50, WHOLE]), policy);
        assert!(beside.area_utilisation > 0.9 && beside.served_vs_owed > 3.6, "{beside:?}");
        let in_turns = row(&two(&[WHOLE]), policy);
        assert!(in_turns.area_utilisation > 0.9, "{in_turns:?}");
        assert!((1.6..=2.1).contains(&in_turns.served_vs_owed), "{in_turns:?}");
    }
}

#[test]
fn every_policy_keeps_to_the_sms_and_to_what_is_possible() {
    let scenario = parse(
        "handoff_us = 100\n[[tenants]]\nname = \"a\"\nslo_ms = 40\nrate_hz = 200\n\
         points = [{ batch = 1, part_percent = 20, ms = 9 }, { batch = 1, part_percent = 100, ms = 3 }, \
         { batch = 8, part_percent = 20, ms = 40 }, { batch = 8, part_percent = 100, ms = 10 }]\n\
         [[tenants]]\nname = \"b\"\npart_percent = 40\nrun_ms = 5\nslo_ms = 30\ngaps_ms = [1, 20, 9]\ninstances = 2\n",
    );
    for name in policy::NAMES {
        let row = row(&scenario, name);
        assert!(row.area_utilisation <= 1.0 + 1e-9, "{row:?}");
        assert!(row.throughput_vs_temporal <= row.bound_area + 1e-9, "{row:?}");
        assert!((0.0..=1.0).contains(&row.served_vs_owed), "{row:?}");
        let again = evaluate(&scenario, &[name]).remove(0);
        assert_eq!(row, again, "{name} is not deterministic");
    }
}

#[test]
fn errors_name_the_key_and_what_to_give() {
    let tenant = "duration_s = 1\n[[tenants]]\nname = \"a\"\n";
    for (text, says) in [
        ("duration_s = 0\ntenants = []", "`duration_s` is 0: give more than 0, and at most 3600"),
        ("duration_s = 1\ntenants = []", "0 tenants: give 1 to 12"),
        (&format!("{tenant}slo_ms = 5\n"), "tenant `a`: give `part_percent` and `run_ms`, or `points`"),
        (
            &format!("{tenant}slo_ms = 0\npart_percent = 5\nrun_ms = 1\n"),
            "tenant `a`: `slo_ms` is 0: give more than 0",
        ),
        (
            &format!("{tenant}slo_ms = 5\npart_percent = 101\nrun_ms = 1\n"),
            "tenant `a`: a part of 101 %: give 1 to 100",
        ),
        (
            &format!("{tenant}slo_ms = 5\npart_percent = 5\nrun_ms = 1\nrate_hz = 1\ngaps_ms = [1]\n"),
            "tenant `a`: give either `rate_hz` or `gaps_ms`",
        ),
        (&format!("{tenant}slo = 5\n"), "unknown field `slo`"),
    ] {
        let has = error(text);
        assert!(has.contains(says), "{has:?} does not say {says:?}");
    }
    let missing = profiles::scenarios(Path::new("/nowhere")).unwrap_err();
    assert_eq!(missing.to_string(), "/nowhere is no folder");
    let folder = tempfile::tempdir().unwrap();
    let missing = format!("{:#}", profiles::scenarios(folder.path()).unwrap_err());
    assert!(missing.contains("v100-tensorrt-fit-points.csv"), "{missing}");
}

#[test]
fn a_folder_of_profiles_is_one_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let points = |ms: f64| {
        let point = |part: usize, ms: f64| {
            let latency_ms = ms + 2.0;
            format!(
                "[[points]]\nbatch = 4\npart_percent = {part}\nms = {ms}\nlatency_ms = {latency_ms}\nrequests = 100\n"
            )
        };
        point(50, ms) + &point(100, 0.75 * ms)
    };
    put("narrow.toml", &format!("command = [\"a\"]\ngpu = \"H\"\nslo_ms = 40\n{}", points(8.0)));
    put("wide.toml", &points(16.0));
    put("notes.txt", "no profile");
    let found = profiles::scenarios(folder.path()).unwrap();
    let [wrong, scenario] = found.as_slice() else { panic!("{} scenarios", found.len()) };
    assert!(wrong.name.ends_with(bars::WRONG_PROFILES));
    let [narrow, wide] = scenario.tenants.as_slice() else { panic!("not two tenants") };
    assert_eq!((narrow.name.as_str(), narrow.slo_ms, narrow.pause_ms), ("narrow", 40.0, 2.0));
    assert_eq!((wide.slo_ms, wide.curve.time_ms(100, 4)), (24.0, 12.0), "two runs");
    // The area of a run is 4 ms and 8 ms; both fill the same part of the GPU.
    assert!((narrow.rate_hz() - 300.0).abs() < 1e-6, "{}", narrow.rate_hz());
    assert!((wide.rate_hz() - 150.0).abs() < 1e-6, "{}", wide.rate_hz());
    let rows = evaluate(scenario, &["deepres"]);
    assert!(rows[0].request_slo > Some(0.5), "the programs run: {rows:?}");

    put("narrow.toml", &format!("rate_hz = 70\n{}", points(8.0)));
    put("wide.toml", &format!("rate_hz = 30\n{}", points(16.0)));
    let found = profiles::scenarios(folder.path()).unwrap();
    assert_eq!((found[1].tenants[0].rate_hz(), found[1].tenants[1].rate_hz()), (70.0, 30.0));
    put("wide.toml", "points = 3\n");
    let refused = format!("{:#}", profiles::scenarios(folder.path()).unwrap_err());
    assert!(refused.contains("wide.toml") && refused.contains("no profile"), "{refused}");
}

#[test]
fn requests_come_at_their_rates() {
    let text = "slo_ms = 10\npart_percent = 5\nrun_ms = 1\n";
    let of = |more: &str| parse(&format!("[[tenants]]\nname = \"a\"\n{text}{more}")).tenants.remove(0);
    assert_eq!(of("batch = 4\n").rate_hz(), 400.0);
    assert_eq!(of("gaps_ms = [2, 6]\n").rate_hz(), 250.0);
    assert_eq!(of("rate_hz = 70\n").arrivals, Arrivals::Poisson(70.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Two programs of different origin find the same least time.
    #[test]
    fn the_least_time_of_the_policy_is_that_of_the_bound(
        work in proptest::collection::vec((1_usize..=100, 1_usize..3, 0.1_f64..10.0), 1..7),
    ) {
        let ours: Vec<Work> = work
            .iter()
            .map(|&(part_percent, instances, time)| Work { part_percent, instances, time })
            .collect();
        let bounds: Vec<Rectangle> =
            work.iter().map(|&(part, instances, time)| Rectangle { part, instances, time }).collect();
        let (ours, bound) = (capacity::least_time(&ours), bound::least_time(&bounds).unwrap());
        prop_assert!((ours / bound - 1.0).abs() < 1e-6, "{ours} is not {bound}");
    }
}
