//! The drawing of a profile: the measured times as dots, the fitted curve of each batch as a line,
//! and its knee as a ring. The axis of time is logarithmic.

use super::curve::{Curve, ms};
use deepres_policy::packing::knapsack::WHOLE_PERCENT;
use std::fmt::{Display, Write};

/// The size of the drawing, and of the space for axes and legend.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 96.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;
/// Distance between two lines of the legend.
const LINE: f64 = 18.0;
/// Percent between two marks of the axis of parts.
const MARK: usize = 20;
/// The marks of the axis of time in each power of ten.
const MARKS: [f64; 3] = [1.0, 2.0, 5.0];
/// Colours that are distinct for people with a weakness of colour vision too.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Returns the drawing as SVG.
pub fn draw(curve: &Curve<'_>) -> String {
    let profile = curve.profile;
    let least_part = curve.parts.first().copied().unwrap_or(WHOLE_PERCENT);
    let fitted = |batch: u32| (least_part..=WHOLE_PERCENT).map(move |part| (part, curve.ms(part, batch)));
    let lines: Vec<Vec<(usize, f64)>> = curve
        .batches
        .iter()
        .map(|batch| if curve.is_known() { fitted(*batch).collect() } else { Vec::new() })
        .collect();
    let times =
        || lines.iter().flatten().map(|(_, ms)| *ms).chain(profile.points.iter().map(|point| point.ms));
    let (low, high) = (times().fold(f64::INFINITY, f64::min) / 1.2, times().fold(0.0, f64::max) * 1.2);
    let x = |part: usize| LEFT + (WIDTH - LEFT - RIGHT) * part as f64 / WHOLE_PERCENT as f64;
    let y = |ms: f64| {
        let along = (ms / low).ln() / (high / low).ln();
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * along
    };
    let mut body = String::new();
    let title = format!("{} on {}", profile.command.join(" "), profile.gpu);
    text(&mut body, LEFT, TOP / 2.0, "", title);
    text(&mut body, LEFT, HEIGHT - 8.0, "", "part of the SMs, percent; GPU time of a request above it");
    for part in (0..=WHOLE_PERCENT).step_by(MARK) {
        axis(&mut body, (x(part), TOP), (x(part), HEIGHT - BOTTOM));
        text(&mut body, x(part), HEIGHT - BOTTOM + LINE, "middle", part);
    }
    let powers = low.log10().floor() as i32..=high.log10().floor() as i32;
    let marks = powers.flat_map(|power| MARKS.map(|mark| mark * 10_f64.powi(power)));
    for mark in marks.filter(|mark| (low..=high).contains(mark)) {
        axis(&mut body, (LEFT, y(mark)), (WIDTH - RIGHT, y(mark)));
        text(&mut body, LEFT - 4.0, y(mark), "end", ms(mark));
    }
    for (index, (batch, line)) in curve.batches.iter().zip(&lines).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        if !line.is_empty() {
            let points: Vec<String> =
                line.iter().map(|(part, ms)| format!("{:.1},{:.1}", x(*part), y(*ms))).collect();
            let points = points.join(" ");
            push(
                &mut body,
                format_args!(
                    r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>"#
                ),
            );
        }
        for point in profile.points.iter().filter(|point| point.batch == *batch) {
            let title = format!("batch {batch} on {} %: {}", point.part_percent, ms(point.ms));
            let (x, y) = (x(point.part_percent), y(point.ms));
            push(
                &mut body,
                format_args!(
                    r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"><title>{title}</title></circle>"#
                ),
            );
        }
        if let Some(knee) = curve.knee(*batch) {
            let (x, y) = (x(knee), y(curve.ms(knee, *batch)));
            push(
                &mut body,
                format_args!(
                    r#"<circle cx="{x:.1}" cy="{y:.1}" r="7" fill="none" stroke="{colour}"><title>knee of batch {batch}: {knee} %</title></circle>"#
                ),
            );
        }
        let below = TOP + LINE * index as f64;
        push(
            &mut body,
            format_args!(
                r#"<rect x="{}" y="{}" width="10" height="10" fill="{colour}"/>"#,
                WIDTH - RIGHT + 8.0,
                below - 5.0
            ),
        );
        text(&mut body, WIDTH - RIGHT + 24.0, below, "", format!("batch {batch}"));
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">
<style>text {{ font: 12px sans-serif; dominant-baseline: central }} .middle {{ text-anchor: middle }} .end {{ text-anchor: end }}</style>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
{body}</svg>
"##
    )
}

fn axis(body: &mut String, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    push(
        body,
        format_args!(r##"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="#ddd"/>"##),
    );
}

fn text(body: &mut String, x: f64, y: f64, class: &str, text: impl Display) {
    let text = text.to_string().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    push(body, format_args!(r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#));
}

fn push(body: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(body, "{line}");
}

#[cfg(test)]
mod tests {
    use super::super::curve::tests::profile;
    use super::*;

    #[test]
    fn the_drawing_has_all_points_curves_and_knees() {
        let mut profile = profile();
        let count = |drawing: &str, part: &str| drawing.matches(part).count();
        let drawing = draw(&Curve::of(&profile).unwrap());
        assert!(drawing.starts_with("<svg ") && drawing.trim_end().ends_with("</svg>"));
        assert_eq!((count(&drawing, r#"r="3""#), count(&drawing, "<polyline ")), (18, 3), "{drawing}");
        assert!(drawing.contains("knee of batch 1: 48 %"), "{drawing}");
        assert!(
            drawing.contains("./infer &lt;{batch}&gt; on H") && drawing.contains(">10.0 ms<"),
            "{drawing}"
        );
        assert!(!drawing.contains("NaN") && !drawing.contains("inf,"), "{drawing}");

        profile.points.truncate(1);
        let drawing = draw(&Curve::of(&profile).unwrap());
        assert_eq!((count(&drawing, "<circle "), count(&drawing, "<polyline ")), (1, 0), "{drawing}");
    }
}
