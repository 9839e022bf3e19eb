//! The bars of plans. Each bar is a part of the best possible figure.

use super::Row;

/// The mixes whose bound leaves most to a plan, in the order of the six models.
pub const NAMED: [&str; 4] = ["R50+R101+M2", "R50+R101+EFF", "R101+TXL+EFF", "TXL+EFF"];
/// The mix in which no plan may be installed: the GPU is full without one.
const FULL: &str = "R50+BERT";
/// The number of pairs and triples of the six models.
const MIXES_OF_SIX: usize = 35;
/// The least part of the bound in a named mix, and in the mean over all mixes of the six.
const OF_BOUND: f64 = 0.90;
const OF_BOUND_MEAN: f64 = 0.92;
/// Instead: the least part of the best plan of the long search.
const OF_OFFLINE: f64 = 0.97;
/// The most by which a mix may be slower than the best way without a plan.
const SLOWER: f64 = 0.01;

/// Returns whether a row is one of the mixes of the six models.
pub fn is_of_six(row: &Row) -> bool {
    row.mix.split('+').all(|name| super::models::SIX.iter().any(|(six, _)| *six == name))
}

/// Returns the mean of a figure over the mixes of the six models. Returns nothing if one is
/// missing.
pub fn mean_of_six(rows: &[Row], figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    let figures: Vec<f64> = rows.iter().filter(|row| is_of_six(row)).filter_map(figure).collect();
    (figures.len() == MIXES_OF_SIX).then(|| figures.iter().sum::<f64>() / MIXES_OF_SIX as f64)
}

/// Returns the best plan of the long search, as a part of what deepres does.
pub fn of_offline(row: &Row) -> Option<f64> {
    row.offline_ms.map(|offline_ms| offline_ms.min(row.found_ms) / row.planned_ms)
}

/// Returns a message for each mix with a bar that the rows lack.
pub fn absent(rows: &[Row]) -> Vec<String> {
    let is_there = |name: &&&str| rows.iter().any(|row| row.mix == **name);
    let names = NAMED.iter().chain([&FULL]).filter(|name| !is_there(name));
    let mut absent: Vec<String> = names.map(|name| format!("{name}: there is no such mix")).collect();
    let of_six = rows.iter().filter(|row| is_of_six(row)).count();
    if of_six != MIXES_OF_SIX {
        absent
            .push(format!("all mixes: {of_six} mixes of the six models, and there should be {MIXES_OF_SIX}"));
    }
    absent
}

/// Returns a message for each bar that rows miss.
pub fn missed(rows: &[Row]) -> Vec<String> {
    let mut missed = Vec::new();
    for row in rows {
        let mix = &row.mix;
        if row.planned_ms < row.bound_ms * (1.0 - 1e-9) {
            missed.push(format!("{mix}: {:.3} ms is less than the bound", row.planned_ms));
        }
        let worse = row.planned_ms / row.unplanned_ms() - 1.0;
        if row.installed && row.gain_of_wrong_times < 0.0 {
            missed.push(format!("{mix}: a loss if kernels take other times than the plan knows"));
        }
        if row.installed && (worse > 0.0 || row.gain_beside_mps < 0.0) || is_of_six(row) && worse > SLOWER {
            missed.push(format!("{mix}: {:.1} % slower than without a plan", 100.0 * worse));
        }
        if NAMED.contains(&mix.as_str()) {
            if row.of_bound() < OF_BOUND && of_offline(row).is_none_or(|part| part < OF_OFFLINE) {
                missed.push(format!("{mix}: {:.3} of the bound, and the bar is {OF_BOUND}", row.of_bound()));
            }
            if !row.installed {
                missed.push(format!("{mix}: no plan is installed"));
            }
        }
        if mix == FULL && row.installed {
            missed.push(format!("{mix}: a plan is installed, and nothing can be won"));
        }
    }
    let mean = mean_of_six(rows, |row| Some(row.of_bound()));
    let beside = mean_of_six(rows, of_offline);
    if let Some(mean) = mean.filter(|mean| *mean < OF_BOUND_MEAN)
        && beside.is_none_or(|part| part < OF_OFFLINE)
    {
        missed.push(format!("all mixes: {mean:.3} of the bound in the mean, and the bar is {OF_BOUND_MEAN}"));
    }
    missed
}
