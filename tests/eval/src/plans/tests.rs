use deepres_policy::granularity::Search;

use super::models::{self, Model};
use super::{Evaluation, Row, bars, name};

/// A search that takes little time without optimised code.
const SHORT: Search = Search { switch_ns: 10_000, cells: 50_000, beam: 20, kernels: 100_000 };

fn rows(search: Search, names: &[&str]) -> Vec<Row> {
    let [orion, _] = models::ours();
    let models = models::read(&orion).unwrap();
    let evaluation = Evaluation { search, ..Default::default() };
    let mixes = models::mixes(&models);
    assert_eq!(mixes.len(), 35);
    let row = |wanted: &&str| {
        let mix = mixes.iter().find(|mix| name(mix) == **wanted).unwrap();
        evaluation.row(mix).unwrap()
    };
    names.iter().map(row).collect()
}

#[test]
fn the_recorded_kernels_have_the_published_figures() {
    let none = Search { beam: 1, kernels: 0, ..SHORT };
    let rows = rows(none, &["R50+R101", "R101+TXL+EFF", "R50+BERT"]);
    // Sequential ms, and how many times as fast the bound and streams are.
    let figures = [(18.1, 1.56, 1.31), (46.8, 1.81, 1.66), (55.1, 1.08, 1.06)];
    for (row, (sequential_ms, bound, streams)) in rows.iter().zip(figures) {
        assert!((row.sequential_ms - sequential_ms).abs() < 0.05, "{row:?}");
        assert!((row.sequential_ms / row.bound_ms - bound).abs() < 0.005, "{row:?}");
        assert!((row.sequential_ms / row.streams_ms - streams).abs() < 0.005, "{row:?}");
        assert!(
            (row.temporal_ms - row.sequential_ms).abs() < 1e-6,
            "without pauses there is nothing to fill"
        );
    }
}

#[test]
fn a_short_search_plans_where_it_pays_and_there_only() {
    let rows = rows(SHORT, &["R50+R101+M2", "R50+BERT"]);
    let [three, full] = [&rows[0], &rows[1]];
    assert!(three.installed && three.of_bound() >= 0.88, "{three:?}");
    assert!(three.planned_ms < 0.9 * three.unplanned_ms(), "{three:?}");
    assert!(three.gain_beside_mps > 0.0 && three.gain_of_wrong_times > 0.0, "{three:?}");
    assert!(!full.installed && full.planned_ms == full.streams_ms, "{full:?}");
}

#[test]
fn a_row_below_a_bar_fails() {
    let rows = rows(Search { beam: 1, kernels: 0, ..SHORT }, &["TXL+EFF", "R50+BERT"]);
    let [named, full] = [rows[0].clone(), rows[1].clone()];
    let good = Row { installed: true, planned_ms: named.bound_ms * 1.05, gain_beside_mps: 0.1, ..named };
    let full = Row { installed: false, planned_ms: full.streams_ms, ..full };
    let misses = |row: Row| bars::missed(&[row]).len();
    // Three of the five mixes with a bar of their own are absent, and 33 of the 35.
    assert_eq!((bars::absent(&rows).len(), bars::absent(&[]).len()), (4, 6));
    assert_eq!((misses(good.clone()), misses(full.clone())), (0, 0));
    assert_eq!(misses(Row { installed: true, planned_ms: full.bound_ms * 1.001, ..full }), 1);
    assert_eq!(misses(Row { installed: false, ..good.clone() }), 1);
    assert_eq!(misses(Row { planned_ms: good.bound_ms * 0.9, ..good.clone() }), 1);
    assert_eq!(misses(Row { planned_ms: good.bound_ms / 0.89, ..good.clone() }), 1);
    assert_eq!(misses(Row { gain_of_wrong_times: -0.01, ..good.clone() }), 1);
    // Below the bar, and slower than streams.
    assert_eq!(misses(Row { planned_ms: good.streams_ms * 1.02, ..good }), 2);
}

#[test]
fn the_iterations_of_the_traces_are_found() {
    let [_, traces] = models::ours();
    let models = models::read(&traces).unwrap();
    let launches = |name: &str| {
        let Model { kernels, .. } = models.iter().find(|model| model.name == name).unwrap();
        assert!(kernels.iter().all(|kernel| (0.0..=100.0).contains(&kernel.width_percent)));
        assert!(kernels.iter().any(|kernel| kernel.pause_ns > 0), "the host waits for answers");
        kernels.len()
    };
    // A request, and a word of an answer.
    assert_eq!(launches("bert_base-infer"), 161);
    assert_eq!(launches("resnet50-infer"), 280);
    assert_eq!(launches("decoder-infer"), 804);
    let names: Vec<String> = models::mixes(&models).iter().map(|mix| name(mix)).collect();
    assert_eq!(names.len(), 20);
    assert!(names.contains(&"bert_base-train+decoder-train".to_owned()));
}

#[test]
fn files_that_are_none_get_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        let error = format!("{:#}", models::read(folder.path()).unwrap_err());
        std::fs::remove_file(folder.path().join(name)).unwrap();
        error
    };
    assert!(error("LICENSE", "").contains("has no model: give a folder"));
    assert!(error("a.csv", "").contains("no header"));
    assert!(
        error("a.csv", "# source\nName,Duration\n").contains("the last columns are not SM_usage,Duration")
    );
    assert!(error("a.csv", "Name,SM_usage,Duration\nConv,3,x\n").contains("line 2"));
    assert!(error("a.csv", "Name,SM_usage,Duration\n5\n").contains("line 2"));
    assert!(error("a.trace", "none").contains("this is no trace"));
    std::fs::write(folder.path().join("a.csv"), "Name,SM_usage,Duration\na, b,0,5\nc,160,7\n").unwrap();
    let models = models::read(folder.path()).unwrap();
    let widths: Vec<f64> = models[0].kernels.iter().map(|kernel| kernel.width_percent).collect();
    assert_eq!((models[0].name.as_str(), widths), ("a", vec![1.25, 100.0]));
}
