//! `deepres profile`: measures the GPU time of a program's requests by part of the SMs and batch.
//!
//! | module | job |
//! |---|---|
//! | `file` | the file, which one call at a time holds |
//! | `measure` | one point: the command runs, and the daemon counts its requests |
//! | `curve` | the fitted curve, and what follows from it, as text |
//! | `svg` | the drawing of the curve |

mod curve;
mod file;
mod measure;
mod svg;

use crate::mps;
use crate::run::{self, heed_children};
use anyhow::{Context, Result, bail, ensure};
use curve::Curve;
use deepres_abi::PPM;
use deepres_model::profile::{BATCH, Point, Profile};
use deepres_model::quantity::parse_time;
use deepres_policy::packing::knapsack::WHOLE_PERCENT;
use file::Held;
use measure::{Job, measure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::io::{self, ErrorKind, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Signals that end the command. The file keeps what was measured.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
/// Erases the rest of a terminal's line.
const ERASE: &str = "\x1b[K";
/// Nanoseconds in a millisecond.
const NS_PER_MS: f64 = 1e6;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command runs once for each part of the SMs and each batch, under `deepres run`, with {batch} replaced by \
the batch. It ends after --requests requests, or by itself. A request is a burst of GPU work between two \
pauses. Parts below 100 need a running MPS; without it the command measures all SMs alone. A second call with \
the same command measures what the file lacks. The curve T(S, b) = max(floor, (a0 + a1 b) / S + c0 + c1 b) is \
fitted to the times; docs/packing.md explains the figures.

Examples:
  deepres profile -- python infer.py --batch {batch}
  deepres profile --sm 20,40,60,80 --batch 1,4,16 --slo 20ms --out infer.toml -- ./infer {batch}
  deepres profile --batch 8 --sm 100 --svg curve.svg -- python infer.py")]
pub struct Args {
    /// Parts of the SMs, percent; the command always measures 100 too
    #[arg(
        long, value_name = "PARTS", value_delimiter = ',', value_parser = parse_part,
        default_value = "10,20,30,40,50,60,70,80,90,100"
    )]
    sm: Vec<usize>,
    /// Batches, which take the place of {batch} in the command
    #[arg(
        long, value_name = "BATCHES", value_delimiter = ',', default_value = "1,2,4,8,16",
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    batch: Vec<u32>,
    /// Requests of each measurement, after a tenth for the warm-up
    #[arg(
        long, value_name = "NUMBER", default_value = "100",
        value_parser = clap::value_parser!(u64).range(5..=1_000_000)
    )]
    requests: u64,
    /// Time within which a request is to be answered, for the best batch
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    slo: Option<u64>,
    /// Longest time without a new request, also at the start of the command
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = parse_time)]
    patience: u64,
    /// File of the profile (TOML)
    #[arg(long, visible_alias = "output", value_name = "FILE", default_value = "profile.toml")]
    out: PathBuf,
    /// Draw the curve into this file (SVG)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Reads a part of the SMs, percent, with or without a percent sign.
fn parse_part(text: &str) -> Result<usize, String> {
    let part = text.trim().trim_end_matches('%').parse().ok();
    part.filter(|part| (1..=WHOLE_PERCENT).contains(part))
        .ok_or_else(|| format!("`{text}` is not a part of the SMs; give whole percents from 1 to 100"))
}

/// Measures, prints the curve, and writes it.
pub fn run(args: &Args) -> Result<()> {
    heed_children();
    let has_batch = args.command.iter().any(|word| word.contains(BATCH));
    ensure!(
        has_batch || args.batch.len() == 1,
        "the command has no {BATCH}, so all batches would be alike; write {BATCH} where the command takes its batch, \
         or give one --batch"
    );
    let mut held = Held::hold(&args.out)?;
    let mut profile = held.earlier(&args.command)?;
    if let Some(slo_ns) = args.slo {
        profile.slo_ms = Some(slo_ns as f64 / NS_PER_MS);
    }
    // The daemon can start MPS.
    run::ensure()?;
    // The knee needs the time on all SMs.
    let mut parts = vec![WHOLE_PERCENT];
    if let Some(directory) = mps::running() {
        parts.extend(&args.sm);
        if let Some(ceiling) = mps::ceiling_below(&directory, PPM) {
            eprintln!("deepres: {ceiling}, so wider parts have the times of this part");
        }
    } else if args.sm != parts {
        eprintln!(
            "deepres: no MPS runs, and without it each program has all SMs; the command measures 100 % alone (start \
             MPS by `nvidia-cuda-mps-control -d`, or let the daemon start it by `mps = \"start\"`)"
        );
    }
    let signal = Arc::new(AtomicUsize::new(0));
    for number in ENDING {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
            .context("cannot catch signals")?;
    }
    let failed = sweep(args, parts, &mut profile, &mut held, &signal)?;
    if let number @ 1.. = signal.load(Ordering::Relaxed) {
        let kept = match profile.points.len() {
            0 => "no point was measured".to_owned(),
            points => format!("{} has the points measured so far ({points})", args.out.display()),
        };
        eprintln!("deepres: stopped; {kept}, and the same command line measures the rest");
        held.tidy();
        // The parent process sees the signal as the reason of the end.
        signal_hook::low_level::emulate_default_handler(number as i32)?;
    }
    held.save(&profile)?;
    let curve = Curve::of(&profile)?;
    match curve.print(&mut io::stdout().lock()) {
        // The reader has closed the pipe (`deepres profile … | head`).
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    curve.warnings().iter().for_each(|warning| eprintln!("deepres: {warning}"));
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::draw(&curve)).with_context(|| file::cannot_write(path))?;
    }
    match failed {
        0 => Ok(()),
        1 => bail!("one measurement failed"),
        _ => bail!("{failed} measurements failed"),
    }
}

/// Measures all points that the profile lacks: for each batch, the widest part first. After a
/// failure, goes on with the next batch. Returns the number of failures. Saves each point at once.
///
/// # Errors
/// The first measurement of all failed, or the file cannot be written.
fn sweep(
    args: &Args,
    mut parts: Vec<usize>,
    profile: &mut Profile,
    held: &mut Held,
    signal: &AtomicUsize,
) -> Result<usize> {
    let job = Job {
        command: &args.command,
        slo_ns: args.slo,
        requests: args.requests,
        patience: Duration::from_nanos(args.patience),
        signal,
    };
    parts.sort_unstable_by(|one, other| other.cmp(one));
    parts.dedup();
    let mut batches = args.batch.clone();
    batches.sort_unstable();
    batches.dedup();
    let all = batches.len() * parts.len();
    let is_terminal = io::stderr().is_terminal();
    let mut failed = 0;
    for (row, batch) in batches.into_iter().enumerate() {
        for (column, part_percent) in parts.iter().copied().enumerate() {
            if profile.point(batch, part_percent).is_some() {
                continue;
            }
            let number = row * parts.len() + column + 1;
            let begin = format!("[{number}/{all}] {}", place(batch, part_percent));
            let measured = measure(&job, batch, part_percent, |ended| {
                if is_terminal {
                    eprint!("\r{begin}: {ended} requests{ERASE}");
                }
            });
            if is_terminal {
                eprint!("\r{ERASE}");
            }
            let measurement = match measured {
                Ok(Some(measurement)) => measurement,
                Ok(None) => return Ok(failed),
                Err(error) if profile.points.is_empty() => return Err(error),
                Err(error) => {
                    eprintln!("deepres: {error:#}");
                    failed += 1;
                    break;
                }
            };
            ensure!(
                profile.points.is_empty() || profile.gpu == measurement.gpu,
                "{} has the profile of another GPU ({}, and this one is {}); name another file by --out",
                args.out.display(),
                profile.gpu,
                measurement.gpu
            );
            profile.gpu = measurement.gpu;
            profile.points.push(measurement.point);
            held.save(profile)?;
            let Point { ms, latency_ms, requests, .. } = measurement.point;
            eprintln!(
                "{begin}: {} of GPU time, {} in all; {} requests",
                curve::ms(ms),
                curve::ms(latency_ms.unwrap_or(ms)),
                requests.unwrap_or(0)
            );
            if measurement.is_disturbed {
                eprintln!(
                    "deepres: another tenant wanted the GPU at the same time, so this time may be too long; remove the \
                     point from {} to measure it again",
                    args.out.display()
                );
            }
        }
    }
    Ok(failed)
}

/// Returns a point in words.
fn place(batch: u32, part_percent: usize) -> String {
    format!("batch {batch} on {part_percent} % of the SMs")
}
