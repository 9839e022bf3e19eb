//! The comparison with GACER in docs/evaluation.md.

use std::fmt::Write as _;

use anyhow::Result;

use super::{Evaluation, Row, bars, models, name};

/// The mixes of the table: the named mixes, and a mix in which no plan can gain.
const SHOWN: [&str; 5] = [bars::NAMED[0], bars::NAMED[1], bars::NAMED[2], bars::NAMED[3], "R50+BERT"];

/// The heading of the section of the page.
pub const HEADING: &str = "## GACER";

/// Returns the section of the page.
///
/// # Errors
/// A model cannot be read.
pub fn page() -> Result<String> {
    let text = "\n\n**Claim:** Several models run on a GPU at once. GACER searches how finely the models are cut in\n\
                    space and in time, and claims speedups over other ways for all mixes. The abstract has no figure.\n\
                    The authors of deepres recall a figure, and found no source for it: 1.37 to 1.66 times as fast as\n\
                    one model after the other.\n\
                    Source: the abstract of GACER, arXiv 2304.11745.\n\n\
                    The models are ResNet-50 (R50), ResNet-101 (R101), MobileNetV2 (M2), Transformer-XL (TXL),\n\
                    EfficientNet (EFF) and BERT. Each model of a mix makes one iteration, on a model of a V100. The\n\
                    columns up to `bound` have times in ms. If a plan pays, `deepres` follows the plan.\n\n\
                    | mix | sequential | temporal | streams | MPS | `deepres` | bound | bound / `deepres` | sequential / `deepres` |\n\
                    |---|---|---|---|---|---|---|---|---|\n";
    let mut page = [HEADING, text].concat();
    let [orion, _] = models::ours();
    let models = models::read(&orion)?;
    for mix in models::mixes(&models) {
        let name = name(&mix);
        if !SHOWN.contains(&name.as_str()) {
            continue;
        }
        let row = Evaluation::default().row(&mix)?;
        let Row { sequential_ms, temporal_ms, streams_ms, mps_ms, planned_ms, bound_ms, .. } = row;
        let plan = if row.installed { "" } else { ", no plan" };
        writeln!(
            page,
            "| {name}{plan} | {sequential_ms:.2} | {temporal_ms:.2} | {streams_ms:.2} | {mps_ms:.2} | \
             {planned_ms:.2} | {bound_ms:.2} | {:.3} | {:.2} |",
            row.of_bound(),
            sequential_ms / planned_ms
        )?;
    }
    page.push_str(
        "\n    cargo xtask eval --plans --json\n\n\
         **Limits of this comparison:** The paper's text and code are not public. Orion recorded the kernels\n\
         and widths on a V100. [granularity.md](granularity.md) has the figures of other mixes, and the mixes\n\
         in which no plan gains. The evaluation leaves out caches, memory bandwidth and the waves of blocks,\n\
         and assumes that a wait at a cut costs 10 us. The figures are in virtual time, and no plan has run\n\
         on a real GPU. In the columns `streams` and `deepres`, all kernels slow down alike, which only the\n\
         streams of one process do. Plans of processes under MPS are further from the bound: the field\n\
         `planned_mps_ms` has their times ([granularity.md](granularity.md)).\n\n",
    );
    Ok(page)
}
