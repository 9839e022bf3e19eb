//! `deepres ps`: shows tenants, their shares, GPU time and memory.

mod activity;
mod coverage;
pub mod memory;
mod metered;
pub mod order;
pub mod requests;
mod unmanaged;
mod why;

use crate::top::parse_interval;
use anyhow::{Result, bail};
use deepres_model::admin::client::Client;
use deepres_model::admin::{
    AccountStatus, Declared, GpuStatus, Reply, Request, SessionGpuStatus, SessionStatus, Status,
    TenantStatus, Unit, WaitingStatus,
};
use deepres_model::quantity::{Bytes, Percent};
use order::{Order, Row};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// The precision of shares in `deepres ps`, parts per million: a tenth of a percent.
const SHOWN_PPM: u32 = 1_000;
/// The fields of a tenant's account whose columns come before the tenant's memory limit.
const USE: [&str; 6] = ["gpu", "entitled_ppm", "recent_share_ppm", "gpu_ns", "wait_ns", "memory_bytes"];
/// The fields in the place of [`USE`] with `--wide`.
const WIDE_USE: [&str; 10] = [
    "gpu",
    "entitled_ppm",
    "recent_share_ppm",
    "total_share_ppm",
    "gpu_ns",
    "wait_ns",
    "contended_ns",
    "kernel_launches",
    "graph_launches",
    "memory_bytes",
];
/// The place of the owed share in [`USE`] and [`WIDE_USE`].
const OWED: usize = 1;
/// The fields of a tenant whose columns come behind its use of the GPU.
const LIMITS: [&str; 1] = ["memory_limit_bytes"];
/// The fields in the place of [`LIMITS`] with `--wide`.
const WIDE_LIMITS: [&str; 2] = ["sm_ppm", "memory_limit_bytes"];
/// The fields of a tenant's account whose columns `deepres ps` prints to the right of the memory
/// limit.
const MEMORY: [&str; 1] = ["gate"];
/// The fields in the place of [`MEMORY`] with `--wide`.
const WIDE_MEMORY: [&str; 3] = ["memory_peak_bytes", "refusals", "gate"];
/// The width of the tables without `--wide`, columns. Only names can make them wider.
const COLUMNS: usize = 80;
/// The fields of `deepres ps`'s columns: a tenant's use of a GPU, its limits, and its memory.
type Columns = [&'static [&'static str]; 3];
/// Clears the screen of a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
OWED is the entitlement of a tenant, in parentheses while the tenant is idle and others have its part. \
LATELY is the tenant's part of the GPU's time in the last second, and TOTAL its part since it first \
appeared. Administrators see all tenants, and other users their own. A tenant stays in the list for a while after its last process ended, with - as its share and gate. \
All counters of --json are totals, and `now_ns` is their time, so two outputs give rates.

Examples:
  deepres ps
  deepres ps --wide --sort memory
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
    /// Show all columns, also beyond 80 columns of the screen
    #[arg(short, long)]
    wide: bool,
    /// Sort the tenants
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t)]
    sort: Order,
    /// Show everything again every SECONDS [default without a value: 1]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = parse_interval)]
    watch: Option<Duration>,
    /// Show how each process reaches the driver, and which launches or allocations bypassed deepres
    #[arg(long)]
    coverage: bool,
    /// Explain every field of --json, and of `deepres explain --json`
    #[arg(long)]
    fields: bool,
}

/// Prints the daemon's state, with `--watch` again and again.
pub fn run(args: &Args) -> Result<()> {
    let mut out = io::stdout().lock();
    let clears = args.watch.is_some() && !args.json && out.is_terminal();
    loop {
        let mut page = if clears { CLEAR.as_bytes().to_vec() } else { Vec::new() };
        print_page(args, &mut page)?;
        match out.write_all(&page).and_then(|()| out.flush()) {
            // The reader has closed the pipe (`deepres ps | head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        let Some(interval) = args.watch else { return Ok(()) };
        std::thread::sleep(interval);
    }
}

/// Prints the state once.
fn print_page(args: &Args, out: &mut impl Write) -> Result<()> {
    if args.fields {
        write!(out, "{}", deepres_model::admin::fields())?;
    } else if args.coverage {
        show(&coverage::ask()?, args.json, |processes, out| coverage::print(processes, out), out)?;
    } else {
        show(&ask()?, args.json, |status, out| print(status, args.shown(), out), out)?;
    }
    Ok(())
}

/// The part of the status to print.
#[derive(Debug, Clone, Copy)]
struct Shown {
    is_verbose: bool,
    is_wide: bool,
    order: Order,
}

impl Args {
    fn shown(&self) -> Shown {
        Shown { is_verbose: self.verbose, is_wide: self.wide, order: self.sort }
    }
}

/// Asks the daemon for the status. Adds the names of users.
pub fn ask() -> Result<Status> {
    let Reply::Status(mut status) = Client::question(&Request::Status)? else {
        bail!("the daemon sent an unexpected reply; use one deepres release for the daemon and this command")
    };
    // Each look-up reads the machine's list of users, and many tenants have the same user.
    let mut names = BTreeMap::new();
    for tenant in &mut status.tenants {
        tenant.user = names.entry(tenant.uid).or_insert_with(|| name_of(tenant.uid)).clone();
    }
    Ok(*status)
}

/// Prints a command's answer: as JSON if the user asked for JSON, else by the function `print`.
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

/// Returns a user's name; `None` if this machine does not know the user.
fn name_of(uid: u32) -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok()??;
    Some(user.name)
}

fn print(status: &Status, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    let daemon = &status.daemon;
    writeln!(out, "daemon {} (deepres {}) in {}", daemon.pid, daemon.version, daemon.directory)?;
    for gpu in &status.gpus {
        print_gpu(gpu, shown, out)?;
    }
    let verbose = shown.is_verbose;
    writeln!(out)?;
    if status.tenants.is_empty() {
        writeln!(out, "no tenants; start one with `deepres run -- COMMAND`")?;
        print_waiting(status, out)?;
        return print_others(status, verbose, out);
    }
    let columns: Columns = match shown.is_wide {
        true => [&WIDE_USE, &WIDE_LIMITS, &WIDE_MEMORY],
        false => [&USE, &LIMITS, &MEMORY],
    };
    let heads = [
        heads::<TenantStatus>(&["name"]),
        heads::<AccountStatus>(columns[0]),
        heads::<TenantStatus>(columns[1]),
        heads::<AccountStatus>(columns[2]),
    ];
    let rows = shown.order.rows(status);
    let rows = rows.iter().map(|Row { tenant, account }| match account {
        Some(account) => row(tenant, account, columns),
        None => vec![tenant.name.clone(), "-".to_owned()],
    });
    print_table(&std::iter::once(heads.concat()).chain(rows).collect::<Vec<_>>(), out)?;
    if !verbose {
        memory::print_brief(&status.tenants, out)?;
    }
    requests::print(status, out)?;
    print_processes(status, shown.is_wide, out)?;
    print_waiting(status, out)?;
    print_overdue(status, out)?;
    print_lost(status, out)?;
    if verbose {
        why::print(&status.tenants, out)?;
    }
    print_others(status, verbose, out)
}

/// Prints the processes that are metered from outside, and the unmanaged processes. With `verbose`,
/// also prints the calls of processes to the driver.
fn print_others(status: &Status, verbose: bool, out: &mut impl Write) -> io::Result<()> {
    metered::print(status, verbose, out)?;
    unmanaged::print(status, out)?;
    if verbose { activity::print(status, out) } else { Ok(()) }
}

/// Returns the phase of a GPU, with the holder, and the GPU's fault.
pub fn phase(gpu: &GpuStatus) -> String {
    let phase = match (&gpu.holder, gpu.phase.as_str()) {
        (Some(holder), phase) => format!("{phase} ({holder})"),
        (None, phase) => phase.to_owned(),
    };
    gpu.fault.as_ref().map_or(phase.clone(), |fault| format!("{phase}; fault: {fault}"))
}

fn print_gpu(gpu: &GpuStatus, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    let kind = if gpu.simulated { ", simulated" } else { "" };
    let (index, name, memory, phase) = (gpu.index, &gpu.name, Bytes(gpu.memory_bytes), phase(gpu));
    let (contended, idle, handoffs) = (time(gpu.contended_ns), time(gpu.idle_ns), gpu.handoffs);
    if !shown.is_wide && !shown.is_verbose {
        writeln!(out, "gpu {index}: {name}, {memory}{kind}: {phase}")?;
        let p99 = time(gpu.handoff_p99_ns);
        return writeln!(
            out,
            "  contended {contended}, idle {idle}; {handoffs} hand-offs, 99 % of them below {p99}"
        );
    }
    writeln!(out, "gpu {index}: {name}, {memory}{kind}, {}: {phase}", gpu.uuid)?;
    writeln!(
        out,
        "  contended {contended}, idle {idle}; {handoffs} hand-offs, each idle for {} (median) to {} (99 %); quantum {}, window {}",
        time(gpu.handoff_p50_ns),
        time(gpu.handoff_p99_ns),
        time(gpu.quantum_ns),
        time(gpu.window_ns),
    )?;
    if shown.is_verbose { why::print_gpu(gpu, out) } else { Ok(()) }
}

/// Returns the heads of the columns of `fields`.
pub fn heads<T: Declared>(fields: &[&str]) -> Vec<String> {
    fields.iter().map(|field| T::head(field).to_owned()).collect()
}

/// Returns one table cell for each of `fields`: the text of the field's value in `of`.
pub fn cells<T: Declared>(of: &T, fields: &[&str]) -> Vec<String> {
    let values = serde_json::to_value(of).unwrap_or_default();
    fields.iter().map(|field| cell(&values[field], Unit::of(field))).collect()
}

/// Returns the text of a value for a cell.
fn cell(value: &Value, unit: Unit) -> String {
    match (value, value.as_u64(), unit) {
        (Value::Null, ..) => "-".to_owned(),
        (Value::String(text), ..) => text.clone(),
        (Value::Array(all), ..) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        (_, Some(ns), Unit::Ns) => time(ns),
        (_, Some(bytes), Unit::Bytes) => Bytes(bytes).to_string(),
        (_, Some(ppm), Unit::Ppm) => {
            let ppm = u32::try_from(ppm).unwrap_or(u32::MAX).saturating_add(SHOWN_PPM / 2);
            Percent(ppm / SHOWN_PPM * SHOWN_PPM).to_string()
        }
        _ => value.to_string(),
    }
}

/// Returns the cell of the owed share, in parentheses while the share is lent.
pub fn owed(account: &AccountStatus, cell: String) -> String {
    if account.is_lent && account.entitled_ppm.is_some() { format!("({cell})") } else { cell }
}

fn row(tenant: &TenantStatus, account: &AccountStatus, [of_use, limits, memory]: Columns) -> Vec<String> {
    let mut used = cells(account, of_use);
    used[OWED] = owed(account, std::mem::take(&mut used[OWED]));
    [cells(tenant, &["name"]), used, cells(tenant, limits), cells(account, memory)].concat()
}

/// Prints the processes. Without `is_wide`, cuts their command lines at the width of the screen.
fn print_processes(status: &Status, is_wide: bool, out: &mut impl Write) -> io::Result<()> {
    const SUMS: [&str; 4] = ["gpu_ns", "kernel_launches", "graph_launches", "memory_bytes"];
    let heads = [
        heads::<TenantStatus>(&["name"]),
        heads::<SessionStatus>(&["pid"]),
        heads::<SessionGpuStatus>(&SUMS),
        heads::<SessionStatus>(&["client"]),
    ];
    let mut rows = vec![heads.concat()];
    for tenant in &status.tenants {
        for session in &tenant.sessions {
            let sum = SessionGpuStatus::sum(&session.gpus);
            let sums = cells(&sum, &SUMS);
            rows.push(
                [cells(tenant, &["name"]), cells(session, &["pid"]), sums, cells(session, &["client"])]
                    .concat(),
            );
        }
    }
    if rows.len() == 1 {
        return Ok(());
    }
    writeln!(out)?;
    if is_wide {
        return print_table(&rows, out);
    }
    let mut table = Vec::new();
    print_table(&rows, &mut table)?;
    for line in String::from_utf8_lossy(&table).lines() {
        let cut: String = line.chars().take(COLUMNS).collect();
        writeln!(out, "{cut}")?;
    }
    Ok(())
}

/// Prints the jobs that wait for guaranteed memory or GPUs, the next first.
fn print_waiting(status: &Status, out: &mut impl Write) -> io::Result<()> {
    const FIELDS: [&str; 4] = ["tenant", "uid", "memory_bytes", "gpus"];
    if status.waiting.is_empty() {
        return Ok(());
    }
    let heads = [heads::<WaitingStatus>(&FIELDS), vec!["FOR".to_owned()]].concat();
    let row = |job: &WaitingStatus| {
        [cells(job, &FIELDS), vec![time(status.now_ns.saturating_sub(job.since_ns))]].concat()
    };
    let rows: Vec<_> = std::iter::once(heads).chain(status.waiting.iter().map(row)).collect();
    writeln!(out)?;
    print_table(&rows, out)
}

/// Prints the names of the tenants that have work on a GPU which does not end.
fn print_overdue(status: &Status, out: &mut impl Write) -> io::Result<()> {
    for tenant in &status.tenants {
        for session in &tenant.sessions {
            for gpu in &session.gpus {
                let Some(overdue_ns) = gpu.overdue_ns else { continue };
                writeln!(
                    out,
                    "\n{} ({}) has work on gpu {} that does not end: it has run for {}. The daemon cannot share the GPU while a kernel spins or stays for good. Give the process a GPU of its own, or end it.",
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

/// Prints the processes whose launches may bypass deepres.
fn print_lost(status: &Status, out: &mut impl Write) -> io::Result<()> {
    for tenant in &status.tenants {
        for session in tenant.sessions.iter().filter(|session| session.lost_ways > 0) {
            writeln!(
                out,
                "\n{} ({}) finds the driver's own cuLaunchKernel by {} of its ways of look-up, so its launches bypass deepres. The first lines of its output name the ways.",
                tenant.name, session.pid, session.lost_ways
            )?;
        }
    }
    Ok(())
}

/// Prints rows with aligned columns. The first column is aligned to the left, and the other columns
/// to the right. The last column is not aligned.
pub fn print_table(rows: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
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

/// Returns a process's id as text. If the process has another id in its own namespace, the other id
/// follows in parentheses.
fn pid(pid: u32, container_pid: Option<u32>) -> String {
    container_pid.map_or_else(|| pid.to_string(), |inner| format!("{pid} ({inner})"))
}

/// Returns a time for people, with about three digits.
pub fn time(ns: u64) -> String {
    let duration = Duration::from_nanos(ns);
    match ns {
        0..10_000_000 => format!("{:.2} ms", duration.as_secs_f64() * 1e3),
        10_000_000..1_000_000_000 => format!("{:.0} ms", duration.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::tests::status;

    fn printed(shown: Shown) -> String {
        let mut out = Vec::new();
        print(&status(), shown, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_page_fits_into_80_columns_unless_it_is_wide_and_the_order_is_the_wanted() {
        let shown = Shown { is_verbose: false, is_wide: false, order: Order::Owed };
        let page = printed(shown);
        assert!(page.lines().all(|line| line.chars().count() <= COLUMNS), "{page}");
        let place = |name: &str| page.find(&format!("\n{name} ")).unwrap();
        assert!(place("train") < place("finetune"), "{page}");
        assert!(!page.contains("PEAK"));
        let wide = printed(Shown { is_wide: true, ..shown });
        assert!(wide.contains("PEAK") && wide.contains("window"), "{wide}");
    }
}
