//! `deepres ps`: shows tenants, their shares, GPU time and memory.

mod activity;
mod coverage;
pub mod memory;
mod metered;
mod unmanaged;
mod why;

use anyhow::Result;
use deepres_model::admin::client::Client;
use deepres_model::admin::{AccountStatus, GpuStatus, Status, TenantStatus};
use deepres_model::quantity::{Bytes, Percent};
use std::io::{self, Write};
use std::time::Duration;

/// Parts per million in a tenth of a percent. Shares are rounded to this.
const SHOWN_PPM: u32 = 1_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
OWED is the share that a tenant is entitled to, in parentheses while the tenant is idle and lends the share \
to others. LATELY is its part of the GPU's time in the last second, and TOTAL its part since it began. A \
tenant stays in the list for a while after its last process ended, then without a share and a gate (-). In \
--json all counters are totals, and `now_ns` is their time: two answers give rates.

Examples:
  deepres ps
  deepres ps --json | jq '.tenants[].gpus[].gpu_ns'
  deepres ps -v
  deepres ps --coverage")]
pub struct Args {
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
    /// Show for each tenant its requests, its grants with their reasons, and how it was found
    #[arg(short, long)]
    verbose: bool,
    /// Show how each process reaches the driver, and which launches or allocations bypassed deepres
    #[arg(long)]
    coverage: bool,
}

/// Prints the daemon's state.
pub fn run(args: &Args) -> Result<()> {
    let mut out = io::stdout().lock();
    let printed = if args.coverage {
        show(&coverage::ask()?, args.json, |processes, out| coverage::print(processes, out), &mut out)
    } else {
        let mut status = Client::connect()?.status()?;
        for tenant in &mut status.tenants {
            tenant.user = name_of(tenant.uid);
        }
        show(&status, args.json, |status, out| print(status, args.verbose, out), &mut out)
    };
    match printed {
        // The reader has closed the pipe (`deepres ps | head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

/// Prints an answer, as JSON or with `print`.
fn show<T: serde::Serialize, W: Write>(
    answer: &T,
    json: bool,
    print: impl Fn(&T, &mut W) -> io::Result<()>,
    out: &mut W,
) -> io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, answer).map_err(io::Error::from).and_then(|()| writeln!(out))
    } else {
        print(answer, out)
    }
}

/// Returns a user's name if this machine knows it.
fn name_of(uid: u32) -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok()??;
    Some(user.name)
}

fn print(status: &Status, verbose: bool, out: &mut impl Write) -> io::Result<()> {
    let daemon = &status.daemon;
    writeln!(out, "daemon {} (deepres {}) in {}", daemon.pid, daemon.version, daemon.directory)?;
    for gpu in &status.gpus {
        print_gpu(gpu, verbose, out)?;
    }
    writeln!(out)?;
    if status.tenants.is_empty() {
        writeln!(out, "no tenants; start one with `deepres run -- COMMAND`")?;
        return print_others(status, verbose, out);
    }
    let mut rows = vec![
        [
            "TENANT",
            "GPU",
            "OWED",
            "LATELY",
            "TOTAL",
            "GPU TIME",
            "WAITED",
            "CONTENDED",
            "KERNELS",
            "GRAPHS",
            "MEMORY",
            "LIMIT",
            "PEAK",
            "REFUSED",
            "GATE",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for tenant in &status.tenants {
        if tenant.gpus.is_empty() {
            rows.push(vec![tenant.name.clone(), "-".to_owned()]);
        }
        rows.extend(tenant.gpus.iter().map(|account| row(tenant, account)));
    }
    print_table(&rows, out)?;
    if !verbose {
        memory::print_brief(&status.tenants, out)?;
    }
    print_processes(status, out)?;
    print_overdue(status, out)?;
    if verbose {
        why::print(&status.tenants, out)?;
    }
    print_others(status, verbose, out)
}

/// Prints processes that are metered from outside or unmanaged. With `verbose`, also prints the
/// calls of processes to the driver.
fn print_others(status: &Status, verbose: bool, out: &mut impl Write) -> io::Result<()> {
    metered::print(status, verbose, out)?;
    unmanaged::print(status, out)?;
    if verbose { activity::print(status, out) } else { Ok(()) }
}

fn print_gpu(gpu: &GpuStatus, verbose: bool, out: &mut impl Write) -> io::Result<()> {
    let kind = if gpu.simulated { ", simulated" } else { "" };
    let phase = match (&gpu.holder, gpu.phase.as_str()) {
        (Some(holder), phase) => format!("{phase} ({holder})"),
        (None, phase) => phase.to_owned(),
    };
    writeln!(
        out,
        "gpu {}: {}, {}{kind}, {}: {phase}",
        gpu.index,
        gpu.name,
        Bytes(gpu.memory_bytes),
        gpu.uuid
    )?;
    writeln!(
        out,
        "  contended {}, idle {}; {} hand-offs, each idle for {} (median) to {} (99 %); quantum {}, window {}",
        time(gpu.contended_ns),
        time(gpu.idle_ns),
        gpu.handoffs,
        time(gpu.handoff_p50_ns),
        time(gpu.handoff_p99_ns),
        time(gpu.quantum_ns),
        time(gpu.window_ns),
    )?;
    if verbose { why::print_gpu(gpu, out) } else { Ok(()) }
}

/// The text of an empty cell.
fn nothing() -> String {
    "-".to_owned()
}

fn row(tenant: &TenantStatus, account: &AccountStatus) -> Vec<String> {
    let shown = |ppm: u32| Percent((ppm + SHOWN_PPM / 2) / SHOWN_PPM * SHOWN_PPM).to_string();
    let owed = |ppm: u32| if account.is_lent { format!("({})", shown(ppm)) } else { shown(ppm) };
    vec![
        tenant.name.clone(),
        account.gpu.to_string(),
        account.entitled_ppm.map_or_else(nothing, owed),
        shown(account.recent_share_ppm),
        shown(account.total_share_ppm),
        time(account.gpu_ns),
        time(account.wait_ns),
        time(account.contended_ns),
        account.kernel_launches.to_string(),
        account.graph_launches.to_string(),
        Bytes(account.memory_bytes).to_string(),
        tenant.memory_limit_bytes.map_or_else(nothing, |bytes| Bytes(bytes).to_string()),
        Bytes(account.memory_peak_bytes).to_string(),
        account.refusals.to_string(),
        account.gate.clone().unwrap_or_else(nothing),
    ]
}

fn print_processes(status: &Status, out: &mut impl Write) -> io::Result<()> {
    let mut rows = vec![
        ["TENANT", "PID", "GPU TIME", "KERNELS", "GRAPHS", "MEMORY", "COMMAND"].map(str::to_owned).to_vec(),
    ];
    for tenant in &status.tenants {
        for session in &tenant.sessions {
            let sum = |of: fn(&deepres_model::admin::SessionGpuStatus) -> u64| {
                session.gpus.iter().map(of).fold(0, u64::saturating_add)
            };
            rows.push(vec![
                tenant.name.clone(),
                session.pid.to_string(),
                time(sum(|gpu| gpu.gpu_ns)),
                sum(|gpu| gpu.kernel_launches).to_string(),
                sum(|gpu| gpu.graph_launches).to_string(),
                Bytes(sum(|gpu| gpu.memory_bytes)).to_string(),
                session.client.clone(),
            ]);
        }
    }
    if rows.len() == 1 {
        return Ok(());
    }
    writeln!(out)?;
    print_table(&rows, out)
}

/// Names the tenants whose work on a GPU does not end.
fn print_overdue(status: &Status, out: &mut impl Write) -> io::Result<()> {
    for tenant in &status.tenants {
        for session in &tenant.sessions {
            for gpu in &session.gpus {
                let Some(overdue_ns) = gpu.overdue_ns else { continue };
                writeln!(
                    out,
                    "\n{} ({}) runs something on gpu {} for {} that does not end: a kernel that spins or stays for good cannot share the GPU in time. Give it a GPU of its own, or end it.",
                    tenant.name,
                    session.pid,
                    gpu.gpu,
                    time(overdue_ns)
                )?;
            }
        }
    }
    Ok(())
}

/// Prints rows with aligned columns: the first to the left, the others to the right, the last as it
/// is.
fn print_table(rows: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            match column {
                0 => write!(out, "{cell:<width$}")?,
                last if last + 1 == columns => write!(out, "  {cell}")?,
                _ => write!(out, "  {cell:>width$}")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Returns a process's id. If the process has another id in its own namespace, that id follows in
/// parentheses.
fn pid(pid: u32, container_pid: Option<u32>) -> String {
    container_pid.map_or_else(|| pid.to_string(), |inner| format!("{pid} ({inner})"))
}

/// Formats a time for people, with about three digits.
fn time(ns: u64) -> String {
    let duration = Duration::from_nanos(ns);
    match ns {
        0..10_000_000 => format!("{:.2} ms", duration.as_secs_f64() * 1e3),
        10_000_000..1_000_000_000 => format!("{:.0} ms", duration.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}
