//! Pictures of a scenario: shares over time, answer times, utilisation.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::metrics::Evaluated;
use crate::scenario::{SECOND, Scenario};

const SIZE: (u32, u32) = (900, 500);
const MARGIN: u32 = 12;
const LABELS: u32 = 45;
/// Number of points of a curve of answer times.
const CDF_POINTS: usize = 200;
/// Number of samples over which a share is taken.
const SMOOTHING: usize = 8;
/// The most tenants in a picture.
const MAX_CURVES: usize = 12;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the beginning of the file names of a scenario's pictures: the letters and digits of the
/// scenario's name. If another scenario has the same beginning, a number follows.
fn stem(name: &str, drawn: &mut BTreeSet<String>) -> String {
    /// The most bytes of the beginning. With the rest of the name, every file system allows a name
    /// of this length.
    const LONGEST: usize = 120;
    let mut plain = String::new();
    for c in name.chars().flat_map(char::to_lowercase) {
        if plain.len() + c.len_utf8() > LONGEST {
            break;
        }
        plain.push(if c.is_alphanumeric() { c } else { '-' });
    }
    let mut stem = plain.clone();
    for number in 2.. {
        if drawn.insert(stem.clone()) {
            break;
        }
        stem = format!("{plain}-{number}");
    }
    stem
}

/// Draws `SCENARIO-shares-POLICY.svg` for each policy, `SCENARIO-latency.svg` and
/// `SCENARIO-utilisation.svg`. `drawn` has the beginnings of the pictures in the folder, which the
/// function does not overwrite.
pub fn draw(
    scenario: &Scenario,
    runs: &[Evaluated],
    folder: &Path,
    drawn: &mut BTreeSet<String>,
) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let stem = stem(&scenario.name, drawn);
    for run in runs {
        let file = folder.join(format!("{stem}-shares-{}.svg", run.row.policy));
        picture(&file, |area| shares(area, scenario, run))?;
    }
    if runs.iter().any(|run| run.row.p50_ms.is_some()) {
        picture(&folder.join(format!("{stem}-latency.svg")), |area| latencies(area, scenario, runs))?;
    }
    picture(&folder.join(format!("{stem}-utilisation.svg")), |area| utilisation(area, scenario, runs))
}

fn picture(file: &Path, draw: impl Fn(&Area<'_>) -> Result<()>) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    draw(&area)?;
    area.present().map_err(failed)
}

fn failed<E: std::error::Error>(error: E) -> anyhow::Error {
    anyhow!("{error}")
}

fn color(index: usize) -> RGBColor {
    let color = Palette99::pick(index).to_rgba();
    let (red, green, blue) = color.rgb();
    RGBColor(red, green, blue)
}

fn shares(area: &Area<'_>, scenario: &Scenario, run: &Evaluated) -> Result<()> {
    let span_ns = scenario.duration_ns - scenario.warmup_ns;
    let span_s = span_ns as f64 / SECOND as f64;
    let beyond = match run.row.tenants.len() {
        tenants if tenants > MAX_CURVES => format!(" (the first {MAX_CURVES} of {tenants} tenants)"),
        _ => String::new(),
    };
    let title = format!("{} under {}: part of the GPU{beyond}", scenario.name, run.row.policy);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(MARGIN)
        .x_label_area_size(LABELS)
        .y_label_area_size(LABELS)
        .build_cartesian_2d(0.0..span_s, 0.0..1.05)
        .map_err(failed)?;
    chart.configure_mesh().x_desc("s").y_desc("share (dashed: owed)").draw().map_err(failed)?;
    for (index, (tenant, outcome)) in
        run.row.tenants.iter().zip(&run.run.outcomes).take(MAX_CURVES).enumerate()
    {
        let samples = outcome.curve_ns.len().saturating_sub(1).max(1);
        let sample_ns = span_ns as f64 / samples as f64;
        let points = outcome.curve_ns.windows(SMOOTHING + 1).enumerate().map(|(at, window)| {
            let used_ns = (window[SMOOTHING] - window[0]) as f64;
            let middle = at as f64 + SMOOTHING as f64 / 2.0;
            (middle * sample_ns / SECOND as f64, used_ns / (SMOOTHING as f64 * sample_ns))
        });
        let color = color(index);
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(failed)?
            .label(tenant.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        let owed = outcome.owed_ppm.iter().enumerate().map(|(at, ppm)| {
            (at as f64 * sample_ns / SECOND as f64, f64::from(*ppm) / f64::from(deepres_abi::PPM))
        });
        chart.draw_series(DashedLineSeries::new(owed, 5, 5, color.stroke_width(1))).map_err(failed)?;
    }
    legend(&mut chart)
}

fn latencies(area: &Area<'_>, scenario: &Scenario, runs: &[Evaluated]) -> Result<()> {
    let sorted = |run: &Evaluated| {
        let answering = scenario
            .tenants
            .iter()
            .zip(&run.run.outcomes)
            .filter(|(tenant, _)| tenant.requests.is_some() || tenant.slo_ns().is_some());
        let answers = answering.flat_map(|(_, outcome)| &outcome.latencies_ns);
        let mut values_ms: Vec<f64> = answers.map(|ns| *ns as f64 / 1e6).collect();
        values_ms.sort_by(f64::total_cmp);
        values_ms
    };
    let curves: Vec<_> = runs.iter().map(|run| (run.row.policy, sorted(run))).collect();
    let last = curves.iter().filter_map(|(_, values)| values.last()).fold(1.0f64, |a, b| a.max(*b));
    let first = curves.iter().filter_map(|(_, values)| values.first()).fold(last, |a, b| a.min(*b));
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: answer times", scenario.name), ("sans-serif", 18))
        .margin(MARGIN)
        .x_label_area_size(LABELS)
        .y_label_area_size(LABELS)
        .build_cartesian_2d((first.max(0.01)..last * 1.1).log_scale(), 0.0..1.0)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("ms")
        .y_desc("part of the requests, and of the steps that have an SLO")
        .draw()
        .map_err(failed)?;
    for (index, (policy, values)) in curves.iter().enumerate().filter(|(_, (_, values))| !values.is_empty()) {
        let points = (1..=CDF_POINTS).map(|point| {
            let part = point as f64 / CDF_POINTS as f64;
            let rank = ((values.len() as f64 * part).ceil() as usize).clamp(1, values.len());
            (values[rank - 1], part)
        });
        let color = color(index);
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(failed)?
            .label(*policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
    }
    legend(&mut chart)
}

fn utilisation(area: &Area<'_>, scenario: &Scenario, runs: &[Evaluated]) -> Result<()> {
    let names: Vec<&str> = runs.iter().map(|run| run.row.policy).collect();
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: part of the time in which the GPU runs", scenario.name), ("sans-serif", 18))
        .margin(MARGIN)
        .x_label_area_size(LABELS)
        .y_label_area_size(LABELS)
        .build_cartesian_2d((0..runs.len().max(1) - 1).into_segmented(), 0.0..1.05)
        .map_err(failed)?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(index) => names.get(*index).copied().unwrap_or_default().to_owned(),
        SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(runs.len())
        .x_label_formatter(&name)
        .draw()
        .map_err(failed)?;
    let bars = runs.iter().enumerate().map(|(index, run)| {
        let corners =
            [(SegmentValue::Exact(index), 0.0), (SegmentValue::Exact(index + 1), run.row.utilisation)];
        let mut bar = Rectangle::new(corners, color(index).filled());
        bar.set_margin(0, 0, 12, 12);
        bar
    });
    chart.draw_series(bars).map_err(failed)?;
    Ok(())
}

fn legend<'a, 'b: 'a, X, Y>(chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>) -> Result<()>
where
    X: Ranged,
    Y: Ranged,
{
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;
    use crate::policy::Policy;

    const TEXT: &str = r#"
        name = "Two & more"
        shows = "pictures"
        duration_s = 20
        [[tenant]]
        name = "due"
        deadline_s = 15
        size_s = 8
        steps = { kernels = 10, kernel_us = 1000 }
        [[tenant]]
        name = "service"
        requests = { arrival = "poisson", per_s = 10, kernels = 5, kernel_us = 1000 }
    "#;

    /// Returns the heights in the picture of the points of each curve with this stroke width, by
    /// curve.
    fn heights(svg: &str, stroke_width: u32) -> Vec<Vec<f64>> {
        let curves = svg.split("<polyline").skip(1);
        let like = curves.filter(|curve| curve.contains(&format!("stroke-width=\"{stroke_width}\"")));
        let points = like.map(|curve| curve.split("points=\"").nth(1).unwrap().split('"').next().unwrap());
        points
            .map(|points| {
                points
                    .split_whitespace()
                    .map(|point| point.split(',').nth(1).unwrap().parse().unwrap())
                    .collect()
            })
            .collect()
    }

    #[test]
    fn no_scenarios_pictures_take_the_place_of_anothers() {
        let mut drawn = BTreeSet::new();
        let stems = ["a b", "A-b", "a-b-2", "训练", "🚀", "🎉", "a b"].map(|name| stem(name, &mut drawn));
        assert_eq!(stems, ["a-b", "a-b-2", "a-b-2-2", "训练", "-", "--2", "a-b-3"]);
        assert!(stem(&"ж".repeat(10_000), &mut drawn).len() < 200, "it is a file's name");
    }

    #[test]
    fn pictures_are_drawn_and_show_what_was_had_and_what_was_owed_over_time() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let runs = metrics::evaluate(&scenario, &[Policy::Deepres, Policy::TimeSlice]);
        let folder = tempfile::tempdir().unwrap();
        draw(&scenario, &runs, folder.path(), &mut BTreeSet::new()).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let expected = ["latency", "shares-deepres", "shares-time-slice", "utilisation"];
        assert_eq!(names, expected.map(|what| format!("two---more-{what}.svg")));
        for name in &names {
            let svg = std::fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{name}");
            assert!(
                !svg.contains("NaN") && !svg.contains("Two & more"),
                "{name}: text is escaped, points are numbers"
            );
            // The picture closes each element that it opens, or the element closes itself.
            let opened = svg.matches('<').count() - svg.matches("</").count();
            assert_eq!(opened, svg.matches("/>").count() + svg.matches("</").count(), "{name}");
        }
        let shares = std::fs::read_to_string(folder.path().join("two---more-shares-deepres.svg")).unwrap();
        assert_eq!(heights(&shares, 2).len(), 2, "a curve for each tenant");
        assert!(heights(&shares, 2).iter().all(|curve| curve.len() > 100));
        // The entitlement changes as the deadline comes near, so the dashes are not all at one
        // height.
        let dashes: Vec<f64> = heights(&shares, 1).concat();
        let (least, most) = dashes.iter().fold((f64::MAX, f64::MIN), |(a, b), y| (a.min(*y), b.max(*y)));
        assert!(most - least > 5.0, "owed is drawn between {least} and {most}");
    }
}
