//! `cargo xtask eval`: runs scenarios in virtual time, under the policy of deepres and under common
//! alternatives, or compares policies that choose GPUs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use deepres_eval::bars::Bars;
use deepres_eval::policy::Policy;
use deepres_eval::scenario::{self, Scenario};
use deepres_eval::{cluster, metrics, packing, page, placement, plans, plot, report, sweep};

/// Evaluate sharing policies in virtual time
///
/// Each policy runs the same scenario and gets the same figures. The results are deterministic to
/// the bit.
#[derive(Parser)]
#[command(name = "cargo xtask eval")]
struct Options {
    /// A scenario (repeatable); without any, all that come with deepres.
    /// docs/evaluation-scenarios.md describes the format
    #[arg(long, value_name = "FILE")]
    scenario: Vec<PathBuf>,
    /// Run only this policy (repeatable)
    #[arg(long, value_name = "NAME")]
    policy: Vec<Policy>,
    /// Print JSON: {"rows": […]}
    #[arg(long)]
    json: bool,
    /// Write docs/evaluation.md: each system's claim with the figures of deepres beside it
    #[arg(long, conflicts_with_all = ["scenario", "policy", "json", "plots"])]
    report: bool,
    /// Draw each scenario into this folder: shares over time, latencies, utilisation (SVG)
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Fail if a figure of deepres is below its bar (without FILE: tests/scenarios/bars.toml)
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["policy", "report"])]
    bars: Option<Option<PathBuf>>,
    /// Draw this many mixes of programs at random, and show how deepres does in the worst of them
    #[arg(long, value_name = "MIXES", conflicts_with_all = ["scenario", "policy", "report", "plots"])]
    sweep: Option<u64>,
    /// The seed of the sweep's random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "sweep")]
    seed: u64,
    /// Write the scenarios of the worst mixes into this folder
    #[arg(long, value_name = "FOLDER", default_value = "target/eval-sweep", requires = "sweep")]
    sweep_dir: PathBuf,
    /// Compare policies that choose GPUs, on matrices of real machines
    #[arg(long, conflicts_with_all = ["scenario", "policy", "report", "plots", "bars", "sweep"])]
    placement: bool,
    /// The output of `nvidia-smi topo -m`, or a folder of such files; without any, all that come
    /// with deepres
    #[arg(long, value_name = "FILE_OR_DIR", requires = "placement")]
    matrix: Option<PathBuf>,
    /// Compare policies that share the SMs of a GPU. Without a scenario: all that come with
    /// deepres, and all mixes of the models of one table. docs/packing.md describes the scenarios
    #[arg(long, conflicts_with_all = ["policy", "report", "plots", "sweep", "placement"])]
    packing: bool,
    /// Let a day of jobs pass on a Kubernetes cluster. docs/scale.md explains the figures
    #[arg(long, conflicts_with_all = ["scenario", "policy", "report", "plots", "bars", "sweep", "placement", "packing"])]
    cluster: bool,
    /// The number of nodes of the cluster
    #[arg(long, value_name = "NUMBER", default_value_t = cluster::Size::LARGE.nodes, requires = "cluster", value_parser = at_least_one)]
    nodes: usize,
    /// The time for which the plugins of deepres publish freed shares, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = cluster::SURPLUS.as_secs(), requires = "cluster")]
    surplus: u64,
    /// Take the scenarios of packing from the published measurements in this folder
    #[arg(long, value_name = "DIR", requires = "packing", conflicts_with = "scenario")]
    profiles: Option<PathBuf>,
    /// Compare plans for models that repeat themselves with ways to run them without a plan
    #[arg(long, conflicts_with_all = ["scenario", "policy", "report", "plots", "sweep", "placement", "packing", "cluster"])]
    plans: bool,
    /// Take the models of plans from this folder: *.trace of `deepres run --record`, *.csv of Orion
    #[arg(long, value_name = "DIR", requires = "plans")]
    traces: Option<PathBuf>,
    /// Only the mixes of plans with this name, such as R50+R101 (repeatable)
    #[arg(long, value_name = "NAME", requires = "plans")]
    mix: Vec<String>,
    /// Show beside each plan the best one of a search with a hundred times the effort
    #[arg(long, requires = "plans")]
    offline: bool,
    /// The time from the end of a wait of a plan to the beginning of the kernel, us (default: 10)
    #[arg(long, value_name = "US", requires = "plans")]
    switch_us: Option<u32>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    if options.report {
        println!("{}", page::write()?.display());
        return Ok(());
    }
    if options.placement {
        let path = options.matrix.clone().unwrap_or_else(placement::ours);
        let report = placement::run(&path)?;
        return if options.json { placement::print_json } else { placement::print_table }(&report);
    }
    if options.cluster {
        let size = cluster::Size { nodes: options.nodes, ..cluster::Size::LARGE };
        let rows = cluster::evaluate(size, Duration::from_secs(options.surplus), &cluster::Policy::ALL);
        return if options.json { report::print_json(&rows) } else { cluster::print_table(&rows) };
    }
    if options.packing {
        return run_packing(options);
    }
    if options.plans {
        return run_plans(options);
    }
    let bars_file = options.bars.as_ref().map(|file| file.clone().unwrap_or_else(Bars::ours));
    let bars = bars_file.as_deref().map(Bars::read).transpose()?;
    let missed = |of: &dyn Fn(&Bars) -> Vec<String>| match bars.as_ref().map(of).unwrap_or_default() {
        missed if missed.is_empty() => Ok(()),
        missed => bail!("deepres is below {} of its bars:\n  {}", missed.len(), missed.join("\n  ")),
    };
    if let Some(mixes) = options.sweep {
        let sweep = sweep::run(mixes, options.seed, &options.sweep_dir)?;
        if options.json { report::print_sweep_json(&sweep) } else { report::print_sweep(&sweep) }?;
        return missed(&|bars| bars.missed_by_sweep(&sweep));
    }
    let files = if options.scenario.is_empty() { scenario::all()? } else { options.scenario.clone() };
    let policies = match (&options.bars, options.policy.is_empty()) {
        (Some(_), _) => vec![Policy::Deepres, Policy::TimeSlice],
        (None, true) => Policy::ALL.to_vec(),
        (None, false) => options.policy.clone(),
    };
    let mut rows = Vec::new();
    let mut drawn = BTreeSet::new();
    for file in files {
        let scenario = Scenario::read(&file)?;
        for tenant in &scenario.tenants {
            for flaw in tenant.trace.iter().flat_map(|recorded| &recorded.flaws) {
                eprintln!("warning: {}: the trace of tenant `{}`: {flaw}", file.display(), tenant.name);
            }
        }
        let runs = metrics::evaluate_in_full(&scenario, &policies);
        if let Some(folder) = &options.plots {
            plot::draw(&scenario, &runs, folder, &mut drawn)
                .with_context(|| format!("cannot draw {} into {}", scenario.name, folder.display()))?;
        }
        rows.extend(runs.into_iter().map(|run| run.row));
    }
    if options.json { report::print_json(&rows) } else { report::print_table(&rows) }?;
    missed(&|bars| bars.missed_by_rows(&rows))
}

/// Reads a number that is not 0.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "give a number of 1 or more".to_owned())
}

fn run_packing(options: &Options) -> Result<()> {
    if let Some(Some(file)) = &options.bars {
        bail!("the bars of packing come from no file: give --bars without {}", file.display());
    }
    let mut rows = Vec::new();
    if let Some(folder) = &options.profiles {
        rows.extend(packing::evaluate_all(&packing::profiles::scenarios(folder)?));
        rows.extend(packing::profiles::most_rates(folder)?);
    } else if options.scenario.is_empty() {
        rows.extend(packing::evaluate_all(&packing::ours()?));
        rows.extend(packing::subsets()?);
    } else {
        let read = |file: &PathBuf| packing::scenario::Scenario::read(file);
        rows.extend(packing::evaluate_all(&options.scenario.iter().map(read).collect::<Result<Vec<_>>>()?));
    }
    if options.json { report::print_json(&rows) } else { packing::print_table(&rows) }?;
    if options.bars.is_some() {
        // The bars are those of deepres, so a miss of the arbiter alone is no failure.
        for policy in packing::policy::ARBITERS {
            let missed = packing::bars::missed_by(&rows, policy);
            if !missed.is_empty() {
                eprintln!("{policy} is below {} of the bars:\n  {}", missed.len(), missed.join("\n  "));
            }
        }
    }
    match packing::bars::missed(&rows) {
        missed if options.bars.is_none() || missed.is_empty() => Ok(()),
        missed => bail!("deepres is below {} of its bars:\n  {}", missed.len(), missed.join("\n  ")),
    }
}

fn run_plans(options: &Options) -> Result<()> {
    if let Some(Some(file)) = &options.bars {
        bail!("the bars of plans come from no file: give --bars without {}", file.display());
    }
    let folders =
        options.traces.clone().map_or_else(|| plans::models::ours().to_vec(), |folder| vec![folder]);
    let read = |folder: &PathBuf| plans::models::read(folder);
    let models = folders.iter().map(read).collect::<Result<Vec<_>>>()?.concat();
    let mut evaluation = plans::Evaluation { is_offline: options.offline, ..Default::default() };
    if let Some(switch_us) = options.switch_us {
        evaluation.search.switch_ns = u64::from(switch_us) * 1_000;
    }
    let mut rows = Vec::new();
    for mix in plans::models::mixes(&models) {
        if options.mix.is_empty() || options.mix.contains(&plans::name(&mix)) {
            rows.push(evaluation.row(&mix)?);
        }
    }
    if rows.is_empty() {
        bail!("there is no such mix: `--plans` without --mix lists all of them");
    }
    if options.json { report::print_json(&rows) } else { plans::print_table(&rows) }?;
    let mut missed = plans::bars::missed(&rows);
    if options.mix.is_empty() && options.traces.is_none() {
        missed.extend(plans::bars::absent(&rows));
    }
    if options.bars.is_some() && !missed.is_empty() {
        bail!("plans are below {} of their bars:\n  {}", missed.len(), missed.join("\n  "));
    }
    Ok(())
}
