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
use ratatui::text::Span;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
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
/// The width of the screen for which names are cut without `--wide`, columns.
const COLUMNS: usize = 80;
/// The fields of `deepres ps`'s columns: a tenant's use of a GPU, its limits, and its memory.
type Columns = [&'static [&'static str]; 3];
/// Clears the screen of a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// The blanks between two columns of a table.
const GAP: &str = "  ";
/// The mark at the end of a text that is cut.
const CUT: char = '…';

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
    /// Show for each tenant its requests, its grants with their reasons, and how the daemon found
    /// the tenant
    #[arg(short, long)]
    verbose: bool,
    /// Show all columns and whole names, also beyond 80 columns of the screen
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
    let clears = args.watch.is_some() && !args.json && super::obeys(&out);
    let mut was_there = false;
    loop {
        let mut page = if clears { CLEAR.as_bytes().to_vec() } else { Vec::new() };
        let failed = match print_page(args, &mut page) {
            Err(error) if !was_there => return Err(error),
            printed => printed.err(),
        };
        was_there = true;
        match out.write_all(&page).and_then(|()| out.flush()) {
            // The reader has closed the pipe (`deepres ps | head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        // The daemon can be about to return.
        if let Some(error) = failed {
            eprintln!("deepres: {}", super::explain(&error));
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
pub struct Shown {
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
    for tenant in &mut status.tenants {
        tenant.user = name_of(tenant.uid);
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

/// Returns a user's name; `None` if this machine does not know the user. Asks the machine once for
/// each user: a directory of users can answer slowly, and `deepres top` looks each second.
pub fn name_of(uid: u32) -> Option<String> {
    static KNOWN: Mutex<BTreeMap<u32, Option<String>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let ask = || Some(nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok()??.name);
    known.entry(uid).or_insert_with(ask).clone()
}

fn print(status: &Status, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    let daemon = &status.daemon;
    let line = format!("daemon {} (deepres {}) in {}", daemon.pid, daemon.version, daemon.directory);
    writeln!(out, "{}", if shown.is_wide { line } else { cut(&line, COLUMNS) })?;
    for gpu in &status.gpus {
        print_gpu(gpu, shown, out)?;
    }
    let verbose = shown.is_verbose;
    writeln!(out)?;
    if status.tenants.is_empty() {
        writeln!(out, "no tenants; start one with `deepres run -- COMMAND`")?;
        print_waiting(status, shown, out)?;
        return print_others(status, shown, out);
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
    print_cut(std::iter::once(heads.concat()).chain(rows).collect(), &[0], shown, out)?;
    if !verbose {
        memory::print_brief(&status.tenants, out)?;
    }
    requests::print(status, shown, out)?;
    print_processes(status, shown, out)?;
    print_waiting(status, shown, out)?;
    print_overdue(status, out)?;
    print_lost(status, out)?;
    if verbose {
        why::print(&status.tenants, out)?;
    }
    print_others(status, shown, out)
}

/// Prints the processes that are metered from outside, and the unmanaged processes. If the user
/// wants the whole, also prints the calls of processes to the driver.
fn print_others(status: &Status, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    metered::print(status, shown, out)?;
    unmanaged::print(status, shown, out)?;
    if shown.is_verbose { activity::print(status, out) } else { Ok(()) }
}

/// Returns the phase of a GPU, with the holder, and the GPU's fault.
pub fn phase(gpu: &GpuStatus) -> String {
    let phase = match (&gpu.holder, gpu.phase.as_str()) {
        (Some(holder), phase) => format!("{phase} ({holder})"),
        (None, phase) => phase.to_owned(),
    };
    gpu.fault.as_ref().map_or(phase.clone(), |fault| format!("{phase}; fault: {fault}"))
}

/// Returns the first line about a GPU, with `uuid` behind its memory. Cuts the holder's name so
/// that the line takes at most `columns`.
fn gpu_line(gpu: &GpuStatus, uuid: &str, columns: usize) -> String {
    let kind = if gpu.simulated { ", simulated" } else { "" };
    let line = |gpu: &GpuStatus| {
        let (index, name, memory) = (gpu.index, &gpu.name, Bytes(gpu.memory_bytes));
        format!("gpu {index}: {name}, {memory}{kind}{uuid}: {}", phase(gpu))
    };
    let mut fitting = gpu.clone();
    if let Some(holder) = &mut fitting.holder {
        let excess = width(&line(gpu)).saturating_sub(columns);
        *holder = cut(holder, width(holder).saturating_sub(excess));
    }
    line(&fitting)
}

fn print_gpu(gpu: &GpuStatus, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    let (contended, idle, handoffs) = (time(gpu.contended_ns), time(gpu.idle_ns), gpu.handoffs);
    if !shown.is_wide && !shown.is_verbose {
        writeln!(out, "{}", gpu_line(gpu, "", COLUMNS))?;
        let p99 = time(gpu.handoff_p99_ns);
        return writeln!(out, "  contended {contended}, idle {idle}; {handoffs} hand-offs, 99 % below {p99}");
    }
    writeln!(out, "{}", gpu_line(gpu, &format!(", {}", gpu.uuid), usize::MAX))?;
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

/// Prints the processes.
fn print_processes(status: &Status, shown: Shown, out: &mut impl Write) -> io::Result<()> {
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
    const NAME: usize = 0;
    const COMMAND: usize = 1 + 1 + SUMS.len();
    writeln!(out)?;
    print_cut(rows, &[COMMAND, NAME], shown, out)
}

/// Prints the jobs that wait for memory, GPUs or caps, the next first.
fn print_waiting(status: &Status, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    const FIELDS: [&str; 4] = ["tenant", "uid", "memory_bytes", "gpus"];
    if status.waiting.is_empty() {
        return Ok(());
    }
    let heads = [heads::<WaitingStatus>(&FIELDS), vec!["FOR".to_owned()]].concat();
    let row = |job: &WaitingStatus| {
        [cells(job, &FIELDS), vec![time(status.now_ns.saturating_sub(job.since_ns))]].concat()
    };
    let rows = std::iter::once(heads).chain(status.waiting.iter().map(row)).collect();
    writeln!(out)?;
    print_cut(rows, &[0], shown, out)
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

/// Prints the processes whose launches can bypass deepres.
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

/// Prints rows as [`print_table`] does. Unless the user wants a wide output, cuts the texts in the
/// columns `names`, in this order, until the table fits on the screen. Of these columns, all but
/// the last keep the width of their heads.
fn print_cut(
    mut rows: Vec<Vec<String>>,
    names: &[usize],
    shown: Shown,
    out: &mut impl Write,
) -> io::Result<()> {
    if !shown.is_wide {
        let widths = widths(&rows);
        let taken = widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
        let mut excess = taken.saturating_sub(COLUMNS);
        for (place, column) in names.iter().copied().enumerate() {
            let head = rows.first().and_then(|heads| heads.get(column)).map_or(0, |head| width(head));
            let least = if place + 1 == names.len() { 1 } else { head };
            let less = excess.min(widths[column].saturating_sub(least));
            excess -= less;
            let room = widths[column] - less;
            rows.iter_mut().filter_map(|row| row.get_mut(column)).for_each(|cell| *cell = cut(cell, room));
        }
    }
    print_table(&rows, out)
}

/// Returns the width of each column.
fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max();
    (0..columns).map(|column| widest(column).unwrap_or(0)).collect()
}

/// Prints rows with aligned columns. The first column is aligned to the left, and the other columns
/// to the right. The last column is not aligned.
pub fn print_table(rows: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let widths = widths(rows);
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let blanks = " ".repeat(widths[column] - width(cell));
            match column {
                0 => write!(out, "{cell}{blanks}")?,
                last if last + 1 == widths.len() => write!(out, "{GAP}{cell}")?,
                _ => write!(out, "{GAP}{blanks}{cell}")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Returns the number of columns that a text takes on a screen. Some characters take two columns.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns a text that takes at most `columns` of a screen. A cut text ends with a mark.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut taken = width(CUT.encode_utf8(&mut [0; 4]));
    let fits = |letter: &char| {
        taken += width(letter.encode_utf8(&mut [0; 4]));
        taken <= columns
    };
    text.chars().take_while(fits).chain([CUT]).collect()
}

/// Returns a process's id as text. If the process has another id in its own namespace, the other id
/// follows in parentheses.
fn pid(pid: u32, container_pid: Option<u32>) -> String {
    container_pid.map_or_else(|| pid.to_string(), |inner| format!("{pid} ({inner})"))
}

/// Returns a time for people, with about three digits. So each column of times keeps its width.
pub fn time(ns: u64) -> String {
    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;
    const LONG: [(u64, &str); 3] = [(S, "s"), (60 * S, "min"), (3_600 * S, "h")];
    const DAY: (u64, &str) = (86_400 * S, "d");
    let in_units = |unit: u64| ns as f64 / unit as f64;
    match ns {
        0..10_000_000 => format!("{:.2} ms", in_units(MS)),
        10_000_000..1_000_000_000 => format!("{:.0} ms", in_units(MS)),
        _ => {
            // A value that would round to 100 takes the next unit.
            let fits = |(length, _): &(u64, &str)| ns.saturating_add(length / 20) < 100 * length;
            let (length, unit) = LONG.into_iter().find(fits).unwrap_or(DAY);
            format!("{:.1} {unit}", in_units(length))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::tests::status;
    use deepres_model::admin::{RequestStatus, UnmanagedStatus};

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

    #[test]
    fn a_long_command_line_is_cut_and_no_figure_is() {
        let shown = Shown { is_verbose: false, is_wide: false, order: Order::Tenant };
        let mut status = status();
        status.tenants[0].name = "n".repeat(60);
        status.tenants[0].sessions[0].client = "python ".repeat(20);
        status.unmanaged = vec![UnmanagedStatus {
            pid: 7,
            command: "python ".repeat(20),
            state: "reported".to_owned(),
            ..UnmanagedStatus::default()
        }];
        let printed = |shown| {
            let mut out = Vec::new();
            print(&status, shown, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let page = printed(shown);
        let process = page.lines().find(|line| line.contains(" 4712 ") && line.starts_with("nn")).unwrap();
        assert!(process.contains("0 B") && process.ends_with("  python…"), "{page}");
        let unmanaged = page.lines().find(|line| line.starts_with("reported")).unwrap();
        assert!(width(unmanaged) == COLUMNS && unmanaged.ends_with(CUT), "{page}");
        assert!(!printed(Shown { is_wide: true, ..shown }).contains(CUT));
    }

    #[test]
    fn the_page_fits_into_80_columns_with_long_names_and_large_figures_and_the_wide_page_cuts_nothing() {
        const NAME: &str = "vision/train-0/main";
        const LARGE_BYTES: u64 = (140 << 30) + (400 << 20);
        let mut status = status();
        status.daemon.directory = format!("/run/user/1000/{}", "deepres/".repeat(10));
        (status.gpus[0].holder, status.gpus[0].name) = (Some(NAME.repeat(3)), "NVIDIA H200 NVL".to_owned());
        (status.gpus[0].contended_ns, status.gpus[0].idle_ns) = (3_000_000_000_000, 2_000_000_000_000);
        (status.gpus[0].handoffs, status.gpus[0].handoff_p99_ns) = (12_345_678, 120_000);
        let tenant = &mut status.tenants[0];
        (tenant.name, tenant.memory_limit_bytes) = (NAME.to_owned(), Some(LARGE_BYTES));
        let account = &mut tenant.gpus[0];
        (account.entitled_ppm, account.is_lent) = (Some(333_333), true);
        (account.gpu_ns, account.wait_ns) = (3_000_000_000_000, 2_000_000_000_000);
        (account.memory_bytes, account.gate) = (LARGE_BYTES, Some("suspended".to_owned()));
        account.requests = Some(RequestStatus { ended: 1_234_567_890, ..RequestStatus::default() });
        status.waiting = vec![WaitingStatus {
            tenant: NAME.repeat(3),
            uid: 4_000_000_000,
            memory_bytes: LARGE_BYTES,
            gpus: None,
            since_ns: 0,
        }];
        status.unmanaged = vec![UnmanagedStatus {
            pid: 1_234_567,
            container_pid: Some(1_234_567),
            container: Some("1f2e3d4c5b6a".to_owned()),
            command: "python serve.py".to_owned(),
            kind: "compute".to_owned(),
            seen_by: ["ioctl", "descriptor"].map(str::to_owned).into(),
            state: "reported".to_owned(),
            started_by: Some(NAME.to_owned()),
            ..UnmanagedStatus::default()
        }];
        let printed = |is_wide| {
            let mut out = Vec::new();
            print(&status, Shown { is_verbose: false, is_wide, order: Order::Owed }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let page = printed(false);
        assert!(page.lines().all(|line| width(line) <= COLUMNS), "{page}");
        for text in ["140.4 GiB", "(33.3%)", "suspended", "1234567 (1234567)", "reported (of v", "(vision"] {
            assert!(page.contains(text), "no {text} in {page}");
        }
        let wide = printed(true);
        let state = format!("reported (of {NAME})");
        assert!(!wide.contains(CUT) && wide.contains(&state) && wide.contains("python serve.py"), "{wide}");
    }

    #[test]
    fn columns_stay_aligned_beside_wide_letters_and_a_cut_text_says_so() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let mut out = Vec::new();
        let rows = [row(["TENANT", "GPU", "GATE"]), row(["\u{4e2d}\u{6587}", "0", "open"])];
        print_table(&rows, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "TENANT  GPU  GATE\n\u{4e2d}\u{6587}      0  open\n");
        assert_eq!((cut("train", 5), cut("train-1", 5)), ("train".to_owned(), "trai…".to_owned()));
        assert_eq!(cut("\u{4e2d}\u{6587}\u{4e2d}", 5), "\u{4e2d}\u{6587}…");
        assert_eq!(cut("\u{4e2d}\u{6587}\u{4e2d}", 4), "\u{4e2d}…");
    }

    #[test]
    fn a_long_time_has_no_more_digits_than_a_short_one() {
        const S: u64 = 1_000_000_000;
        for (ns, text) in [
            (30_000, "0.03 ms"),
            (120_000_000, "120 ms"),
            (90 * S, "90.0 s"),
            (9_000 * S, "2.5 h"),
            (600 * S, "10.0 min"),
            (5_999 * S, "1.7 h"),
            (10 * 86_400 * S, "10.0 d"),
        ] {
            assert_eq!(time(ns), text);
        }
    }
}
