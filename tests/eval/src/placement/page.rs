//! The comparison with DLC in docs/evaluation.md.

use std::fmt::Write as _;

use anyhow::Result;

use super::policy::Policy;
use super::{arrivals, evaluate, matrices, ours};

/// The policies of the table. DLC's own code is not public, and gpu-manager has its tree.
const POLICIES: [Policy; 3] = [Policy::Deepres, Policy::GpuManager, Policy::Random];

/// Returns the section of the page.
///
/// # Errors
/// A matrix cannot be read.
pub fn page() -> Result<String> {
    let names: Vec<String> = POLICIES.iter().map(|policy| format!("`{}`", policy.name())).collect();
    let mut page = format!(
        "## DLC\n\n**Claim:** A container cloud gives a job GPUs by the machine's topology tree, so that the \
         GPUs\nreach each other directly.\nSource: the description of DLC; gpu-manager, whose tree is the closest \
         public code.\n\nJobs arrive at machines and leave them. The table has the bandwidth between the GPUs of \
         a job with\nseveral GPUs. Each number is a part of the best bandwidth among the free GPUs\n\
         ([placement.md](placement.md#comparison)).\n\n| matrix | GPUs | {} |\n|---|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for matrix in matrices(&ours())?.into_iter().filter_map(Result::ok) {
        let rows = evaluate(&matrix, arrivals::COUNT, &arrivals::SEEDS, &POLICIES);
        write!(page, "| {} | {} |", matrix.name, matrix.topology.len())?;
        for row in rows {
            write!(page, " {:.3} |", row.bandwidth_vs_best_mean)?;
        }
        writeln!(page)?;
    }
    page.push_str(
        "\n    cargo xtask eval --placement --json\n\n**Limits of this comparison:** The bandwidths come from a \
         table, and nobody measured them on these\nmachines. gpu-manager's tree has no NVLinks, but on most \
         machines NVLinks follow the tree.\n\n",
    );
    Ok(page)
}
