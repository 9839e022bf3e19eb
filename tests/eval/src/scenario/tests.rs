//! Tests of reading and refusing scenarios.

use super::*;
use proptest::prelude::*;

const GOOD: &str = r#"
    name = "two"
    shows = "nothing"
    duration_s = 10
    [[tenant]]
    name = "a"
    share = "30%"
    [tenant.steps]
    kernels = 10
    kernel_us = 1000
    [[tenant]]
    name = "b"
    count = 2
    class = "best-effort"
    active_s = [[0, 2], [4, 5.5]]
    [tenant.requests]
    arrival = "poisson"
    per_s = 20
    kernels = 5
    kernel_us = 100
    slo_ms = 50
"#;

#[test]
fn a_scenario_is_read_and_repeated_tenants_are_numbered() {
    let scenario = Scenario::parse(GOOD).unwrap();
    let names: Vec<_> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names, ["a", "b-1", "b-2"]);
    assert_eq!(scenario.tenants[0].share_ppm, Some(300_000));
    let phase = |from_ns, to_ns| Phase { from_ns, to_ns, load: 1.0 };
    let phases = [phase(0, 2 * SECOND), phase(4 * SECOND, 5 * SECOND + SECOND / 2)];
    assert_eq!(scenario.tenants[1].phases, phases);
    assert_eq!(scenario.tenants.iter().map(|tenant| tenant.number).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_tenant_has_the_part_of_its_widest_kernel() {
    let profile =
        "profile = [{ kernels = 1, kernel_us = 10, sm = \"30%\" }, { kernels = 1, kernel_us = 10 }]";
    let tenants = [("a", "sm = \"20%\"", profile), ("b", "", profile), ("c", "sm = \"40%\"", profile)];
    let scenario = Scenario::of("duration_s = 1", &tenants);
    let widest_ppm: Vec<u32> = scenario.tenants.iter().map(Tenant::widest_ppm).collect();
    assert_eq!(widest_ppm, [300_000, WHOLE, 400_000]);
}

#[test]
fn of_shares_that_do_not_fit_a_tenant_of_that_gpu_is_named() {
    let tenant = |name: &str, share: u32, gpu: u32| {
        format!(
            "[[tenant]]\nname = \"{name}\"\nclass = \"guaranteed\"\nshare = \"{share}%\"\ngpu = {gpu}\nsteps = {{ kernels = 1, kernel_us = 10 }}\n"
        )
    };
    let tenants = tenant("a", 60, 0) + &tenant("b", 60, 0) + &tenant("c", 10, 1);
    let text = format!("name = \"n\"\nshows = \"s\"\nduration_s = 10\ngpus = 2\n{tenants}");
    let refused = Scenario::parse(&text).unwrap_err().to_string();
    assert!(refused.starts_with("line 14, `tenant.share`: ") && refused.contains("by `gpu`"), "{refused}");
}

#[test]
fn every_key_of_the_format_is_read() {
    let text = r#"
        name = "all"
        shows = "every key"
        duration_s = 10
        gpus = 2
        [gpu]
        device = "mps"
        [policy]
        max_harm = "0.5%"
        urgency = 1
        size = 0
        criticality = 3
        [[tenant]]
        name = "a"
        cap = "40%"
        gpu = 1
        phases = [{ from_s = 1, to_s = 2, load = 0.5 }]
        steps = { profile = [{ kernels = 3, kernel_us = 10, sm = "20%" }, { kernels = 1, kernel_us = 500 }], pause_ms = 2, pauses = "exponential", slo_ms = 9 }
        [[tenant]]
        name = "b"
        count = 3
        requests = { arrival = "periodic", per_s = 3, profile = [{ kernels = 1, kernel_us = 10 }] }
    "#;
    let scenario = Scenario::parse(text).unwrap();
    assert_eq!((scenario.gpu.device, scenario.policy.max_harm_ppm), (Hardware::Mps, 5_000));
    assert_eq!(scenario.policy.weights(), Weights { urgency: 1.0, size: 0.0, criticality: 3.0 });
    let a = &scenario.tenants[0];
    let steps = a.steps.as_ref().unwrap();
    assert_eq!(
        (a.request(0).cap_ppm, a.slo_ns(), steps.pauses),
        (400_000, Some(9_000_000), Pauses::Exponential)
    );
    assert_eq!(steps.profile[0], Part { kernels: 3, kernel_ns: 10_000, sm_ppm: Some(200_000) });
    assert_eq!((a.phases[0].load, a.longest_kernel_ns()), (0.5, 500_000));
    // A tenant without a GPU goes to the GPU with the fewest tenants.
    let gpus: Vec<_> = scenario.tenants.iter().map(|tenant| tenant.gpu.unwrap()).collect();
    assert_eq!(gpus, [1, 0, 0, 1]);
    let second = scenario.on_gpu(1);
    assert_eq!(second.tenants.iter().map(|tenant| tenant.name.as_str()).collect::<Vec<_>>(), ["a", "b-3"]);
}

#[test]
fn an_unknown_or_impossible_key_is_named_with_its_line() {
    for (from, to, line, says) in [
        ("kernels = 10\n", "kernels = 10\n    kernel = 5\n", 10, "kernel"),
        ("kernel_us = 1000", "kernel_us = -3", 10, "out of range"),
        ("kernel_us = 1000", "", 8, "kernel_us"),
        ("share = \"30%\"", "share = \"130%\"", 7, "share"),
        ("share = \"30%\"", "cap = \"0%\"", 7, "share"),
        ("share = \"30%\"", "gpu = 1", 7, "`tenant.gpu`: there is no such GPU"),
        ("class = \"best-effort\"", "class = \"urgent\"", 14, "urgent"),
        ("arrival = \"poisson\"", "arrival = \"sometimes\"", 17, "sometimes"),
        (
            "active_s = [[0, 2], [4, 5.5]]",
            "active_s = [[2, 1]]",
            15,
            "`tenant.active_s`: the times are not in order",
        ),
        ("active_s = [[0, 2], [4, 5.5]]", "active_s = [[10, 12]]", 15, "only after the end"),
        ("active_s = [[0, 2], [4, 5.5]]", "phases = [{ to_s = 1, load = -1 }]", 15, "out of range"),
        ("share = \"30%\"", "trace = { file = \"no.trace\" }", 7, "cannot read the trace"),
        ("duration_s = 10", "duration_s = 10\n    warmup_s = 10", 5, "`warmup_s`: this is not below"),
        ("name = \"b\"\n    count = 2", "name = \"a\"", 12, "two tenants are called `a`"),
        ("[tenant.steps]\n    kernels = 10\n    kernel_us = 1000", "", 6, "nothing to do"),
        (
            "kernel_us = 1000",
            "kernel_us = 1000\n    profile = [{ kernels = 1, kernel_us = 1 }]",
            11,
            "keep one",
        ),
        ("slo_ms = 50", "slo_ms = nan", 21, "out of range"),
        ("share = \"30%\"", "class = \"guaranteed\"", 7, "asks for no share"),
        (
            "share = \"30%\"",
            "class = \"guaranteed\"\n    share = \"60%\"\n    count = 2",
            8,
            "add up to more",
        ),
        (
            "kernels = 10\n    kernel_us = 1000",
            "kernels = 1000000\n    kernel_us = 8e10",
            8,
            "longer than a day",
        ),
        ("count = 2", "count = 0", 13, "0 is out of range: give 1 to 4096"),
        ("count = 2", "count = -1", 13, "-1 is out of range"),
        ("count = 2", "count = 4096", 13, "more than 4096"),
        ("count = 2", "count = 1.5", 13, "expected a whole number from 1 to 4096"),
        (
            "duration_s = 10",
            "duration_s = 10\n    seed = 99999999999999999999",
            5,
            "99999999999999999999 is out of range",
        ),
        ("duration_s = 10", "duration_s = 10\n    gpu = 3", 5, "expected a table: `[gpu]`"),
        ("share = \"30%\"", "share = 0.3", 7, "expected a percentage in quotes"),
        (
            "share = \"30%\"",
            "share = \"30%\"\n    cap = \"10%\"",
            7,
            "`tenant.share`: it asks for more than its cap",
        ),
        ("kernel_us = 1000", "kernel_us = 1e300", 10, "1e300 us is out of range"),
        (
            "active_s = [[0, 2], [4, 5.5]]",
            "active_s = [[0, 2, 4]]",
            15,
            "a time is a pair, [from, to]; here are 3",
        ),
        ("duration_s = 10", "duration_s = 1e-8", 4, "`duration_s`: a hand-off takes as long"),
        ("per_s = 20", "per_s = 1000000", 12, "may come to"),
        ("kernel_us = 1000", "kernel_us = 0.001", 6, "may come to"),
        ("duration_s = 10", "duration_s = 10\n    gpus = 0", 5, "out of range"),
        (
            "[[tenant]]\n    name = \"a\"",
            "[policy]\n    urgency = 0\n    size = 0\n    criticality = 0\n    [[tenant]]\n    name = \"a\"",
            5,
            "weigh nothing",
        ),
        ("name = \"two\"", "name = \" \"", 2, "`name`: it is empty"),
        ("name = \"a\"", "name = \"\"", 6, "empty name"),
        ("name = \"a\"", "name = \"a\\u0007\"", 6, "control character"),
        ("name = \"a\"", "name = \"a\\uFFFE\"", 6, "no picture can have"),
        (
            "[[tenant]]",
            "[gpu]\n    slice_ms = 0.000001\n    switch_us = 0\n    [[tenant]]",
            6,
            "`gpu.slice_ms`: it may come to more than 20000000 slices",
        ),
        ("[[tenant]]", "[gpu]\n    handoff_us = 1e7\n    [[tenant]]", 6, "nobody would ever run"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = format!("{:#}", Scenario::parse(&GOOD.replacen(from, to, 1)).unwrap_err());
        assert!(error.contains(says) && error.contains(&format!("line {line}")), "{to}: {error}");
    }
}

#[test]
fn a_scenario_that_takes_more_than_minutes_is_refused_and_a_day_of_little_work_is_not() {
    let scenario = |duration_s: u32, rest: &str| {
        Scenario::parse(&format!("name = \"a\"\nshows = \"b\"\nduration_s = {duration_s}\n{rest}"))
    };
    let crowd = "[[tenant]]\nname = \"a\"\ncount = 4096\n\
                 requests = { arrival = \"poisson\", per_s = 1e-6, kernels = 1, kernel_us = 1 }";
    let error = format!("{:#}", scenario(86_400, crowd).unwrap_err());
    assert!(error.contains("line 6") && error.contains("make duration_s 24414 at most"), "{error}");
    assert!(scenario(24_414, crowd).is_ok());
    // Only work takes slices, and idle time does not.
    let idle = "[[tenant]]\nname = \"a\"\nsteps = { kernels = 1, kernel_us = 1000, pause_ms = 60000 }";
    assert!(scenario(86_400, idle).is_ok());
    let busy = idle.replace(", pause_ms = 60000", "0000");
    let error = format!("{:#}", scenario(86_400, &busy).unwrap_err());
    assert!(error.contains("line 3, `duration_s`: it may come to more than 20000000 slices"), "{error}");
    // Some policies look at each of many tenants for each kernel.
    let many =
        "[[tenant]]\nname = \"a\"\ncount = 4000\nsteps = { kernels = 1, kernel_us = 100, pause_ms = 1000 }";
    let error = format!("{:#}", scenario(1_000, many).unwrap_err());
    assert!(
        error.contains("line 5") && error.contains("1250000 are the most with 4000 tenants on a GPU"),
        "{error}"
    );
    assert!(scenario(300, many).is_ok());
}

#[test]
fn a_file_that_is_no_text_or_has_no_end_is_refused_with_the_line_where_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("latin.toml");
    std::fs::write(&file, b"name = \"a\"\nshows = \"caf\xe9\"\n").unwrap();
    let says = |file: &Path| format!("{:#}", Scenario::read(file).unwrap_err());
    assert!(says(&file).contains("latin.toml: line 2 is no UTF-8"), "{}", says(&file));
    let endless = Path::new("/dev/zero");
    assert!(says(endless).contains("more than 67108864 bytes"), "{}", says(endless));
}

/// Returns the parser's error for a scenario that contains this text.
fn refusal(text: &str) -> String {
    let text = format!("name = \"a\"\nshows = \"b\"\nduration_s = 1\n{text}");
    format!("{:#}", Scenario::parse(&text).unwrap_err())
}

/// Returns the words in backticks after `expected`.
fn expected(error: &str) -> Vec<String> {
    let list = error.split("expected").nth(1).unwrap_or_default();
    let mut words: Vec<String> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    words.sort();
    words
}

#[test]
fn the_schema_has_the_keys_and_words_that_the_parser_knows() {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/schema.json");
    let schema: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(schema).unwrap()).unwrap();
    let keys = |table: &serde_json::Value| {
        table["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(expected(&refusal("bogus = 1")), keys(&schema));
    for (table, text) in [
        ("gpu", "[gpu]\nbogus = 1"),
        ("policy", "[policy]\nbogus = 1"),
        ("tenant", "[[tenant]]\nbogus = 1"),
        ("steps", "[[tenant]]\nsteps = { bogus = 1 }"),
        ("requests", "[[tenant]]\nrequests = { bogus = 1 }"),
        ("trace", "[[tenant]]\ntrace = { bogus = 1 }"),
        ("phase", "[[tenant]]\nphases = [{ bogus = 1 }]"),
        ("part", "[[tenant]]\nsteps = { profile = [{ bogus = 1 }] }"),
    ] {
        assert_eq!(expected(&refusal(text)), keys(&schema["$defs"][table]), "{table}");
    }
    for (table, key, text) in [
        ("gpu", "device", "[gpu]\ndevice = \"bogus\""),
        ("steps", "pauses", "[[tenant]]\nsteps = { pauses = \"bogus\" }"),
        ("requests", "arrival", "[[tenant]]\nrequests = { arrival = \"bogus\" }"),
    ] {
        let words = schema["$defs"][table]["properties"][key]["enum"].as_array().unwrap();
        let mut words: Vec<_> = words.iter().map(|word| word.as_str().unwrap().to_owned()).collect();
        words.sort();
        assert_eq!(expected(&refusal(text)), words, "{key}");
    }
    let classes = &schema["$defs"]["tenant"]["properties"]["class"]["enum"];
    let names: Vec<_> = Class::ALL.iter().map(|class| class.name()).collect();
    assert_eq!(classes, &serde_json::json!(names));
}

/// Parts of scenarios, and some texts that are no parts of a scenario.
const PIECES: &[&str] = &[
    "=",
    "\n",
    "\"",
    "[",
    "]",
    "{",
    "}",
    ",",
    "-1",
    "0",
    "1e300",
    "nan",
    "inf",
    "9223372036854775807",
    "0.0000001",
    "\"100%\"",
    "\"0%\"",
    "true",
    "[[tenant]]\n",
    "[tenant.steps]\n",
    "kernels",
    "kernel_us",
    "count",
    "gpus",
    "gpu",
    "phases",
    "active_s",
    "[[0, 1], [2, 3]]",
    "size_s",
    "load",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused_and_what_is_read_ends(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..30usize, prop::sample::select(PIECES)), 0..4)
    ) {
        let mut text = GOOD.to_owned();
        for (at, length, piece) in cuts {
            let from = at.index(text.len() + 1);
            text.replace_range(from..(from + length).min(text.len()), piece);
        }
        if let Ok(scenario) = Scenario::parse(&text) {
            let kernels: f64 = scenario.tenants.iter().map(|tenant| tenant.most_kernels(scenario.duration_ns)).sum();
            prop_assert!(kernels.is_finite() && kernels <= 2.1e7, "{kernels}");
            prop_assert!(scenario.tenants.iter().all(|tenant| tenant.gpu.is_some_and(|gpu| gpu < scenario.gpus)));
        }
    }
}
