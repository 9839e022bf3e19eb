//! The drawing of a topology: the tree as boxes in boxes, and NVLinks as arcs below the GPUs. Links
//! through NVSwitches lead to one bar.

use super::name;
use deepres_policy::placement::{Branch, Topology};
use std::fmt::Write;

/// Distance between two GPUs, and the edge of a GPU's square.
const STEP: usize = 80;
const GPU: usize = 48;
/// Height of a box's title, and the distance between a box and its content.
const TITLE: usize = 22;
const GAP: usize = 8;
/// Depth of an arc for each GPU that it passes, and the least width of a line.
const ARC: usize = 24;

/// Returns the drawing as SVG.
pub fn draw(topology: &Topology) -> String {
    let tree = topology.tree();
    let mut order = Vec::new();
    leaves(&tree, &mut order);
    let top = GAP + depth(&tree) * TITLE;
    let middle = |gpu: usize| {
        let column = order.iter().position(|other| *other == gpu).unwrap_or(0);
        GAP + column * STEP + STEP / 2
    };
    let mut body = String::new();
    boxes(topology, &tree, &middle, 0, top + GPU + GAP, &mut body);
    for gpu in &order {
        let (x, middle_y) = (middle(*gpu), top + GPU / 2);
        push(
            &mut body,
            format_args!(
                r##"<rect x="{}" y="{top}" width="{GPU}" height="{GPU}" rx="6" fill="#76b900"/>"##,
                x - GPU / 2
            ),
        );
        push(&mut body, format_args!(r#"<text x="{x}" y="{middle_y}" class="gpu">{gpu}</text>"#));
    }
    let bottom = top + GPU + GAP * (1 + depth(&tree));
    let bar = bottom + order.len() * ARC;
    let mut is_switched = false;
    for (a, b, pair) in topology.links() {
        let (from, to) = (middle(a).min(middle(b)), middle(a).max(middle(b)));
        if pair.is_switched {
            is_switched = true;
            continue;
        }
        let low = bottom + (to - from) / STEP * ARC * 2;
        let title = format!("gpu {a} - gpu {b}: {} NVLinks", pair.links);
        push(
            &mut body,
            format_args!(
                r##"<path d="M{from} {bottom} Q{} {low} {to} {bottom}" fill="none" stroke="#1b6ac9" stroke-width="{}"><title>{title}</title></path>"##,
                (from + to) / 2,
                pair.links
            ),
        );
    }
    if is_switched {
        for (gpu, facts) in topology.gpus().iter().enumerate() {
            let (x, links) = (middle(gpu), facts.links.len());
            push(
                &mut body,
                format_args!(
                    r##"<line x1="{x}" y1="{bottom}" x2="{x}" y2="{bar}" stroke="#1b6ac9" stroke-width="4"><title>{links} NVLinks</title></line>"##
                ),
            );
        }
        let width = order.len() * STEP;
        push(
            &mut body,
            format_args!(r##"<rect x="{GAP}" y="{bar}" width="{width}" height="{TITLE}" fill="#1b6ac9"/>"##),
        );
        push(
            &mut body,
            format_args!(
                r##"<text x="{}" y="{}" class="gpu" fill="#fff">NVSwitch</text>"##,
                GAP + width / 2,
                bar + TITLE / 2
            ),
        );
    }
    let (width, height) = (2 * GAP + order.len() * STEP, bar + TITLE + GAP);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<style>text {{ font: 12px sans-serif }} .gpu {{ text-anchor: middle; dominant-baseline: central }}</style>
<rect width="{width}" height="{height}" fill="#fff"/>
{body}</svg>
"##
    )
}

fn push(body: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(body, "{line}");
}

/// Appends the GPUs of a branch, in the order of the tree.
fn leaves(branch: &Branch, order: &mut Vec<usize>) {
    branch.branches.iter().for_each(|part| leaves(part, order));
    if branch.branches.is_empty() {
        order.extend(branch.gpus.iter());
    }
}

/// Returns the number of boxes in each other.
fn depth(branch: &Branch) -> usize {
    1 + branch.branches.iter().map(depth).max().unwrap_or(0)
}

/// Draws the boxes of a branch. `low` is the lower edge of the innermost boxes.
fn boxes(
    topology: &Topology,
    branch: &Branch,
    middle: &dyn Fn(usize) -> usize,
    level: usize,
    low: usize,
    body: &mut String,
) {
    let mut order = Vec::new();
    leaves(branch, &mut order);
    // A GPU that is alone on its switch needs no box.
    let has_box = order.len() > 1 || level == 0;
    if let (Some(first), Some(last), true) = (order.first(), order.last(), has_box) {
        let (left, right) = (middle(*first) - STEP / 2, middle(*last) + STEP / 2);
        let (inset, top) = (2 * level, GAP / 2 + level * TITLE);
        let below = low + GAP * (depth(branch) - 1);
        let (x, width) = (left + inset, right - left - 2 * inset);
        push(
            body,
            format_args!(
                r##"<rect x="{x}" y="{top}" width="{width}" height="{}" rx="6" fill="none" stroke="#888"/>"##,
                below - top
            ),
        );
        push(
            body,
            format_args!(
                r#"<text x="{}" y="{}">{}</text>"#,
                x + GAP,
                top + TITLE - GAP,
                name(topology, branch)
            ),
        );
    }
    branch.branches.iter().for_each(|part| boxes(topology, part, middle, level + 1, low, body));
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine;
    use super::*;

    #[test]
    fn the_drawing_has_all_gpus_boxes_and_links() {
        let drawing = draw(&machine());
        assert!(drawing.starts_with("<svg ") && drawing.trim_end().ends_with("</svg>"));
        let count = |part: &str| drawing.matches(part).count();
        assert_eq!((count(r##"fill="#76b900""##), count(r##"stroke="#888""##)), (4, 3), "{drawing}");
        assert_eq!(count("<path "), 1);
        assert!(drawing.contains("gpu 0 - gpu 2: 4 NVLinks"));
        let opened = count("<path ") + count("<text ") + count("<line ");
        assert_eq!(opened, count("</path>") + count("</text>") + count("</line>"));
    }
}
