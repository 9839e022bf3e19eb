//! `cargo xtask bench faces`: the cost of a scrape of the metrics and of `deepres top`, the delay
//! of an arbiter by scrapes, and the size of the page.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use deepres_e2e::browser::{self, Browser};
use deepres_e2e::host::free_address;
use serde::Serialize;

use super::crowd::Crowd;
use super::daemon::{cpu_s, raise_descriptors};
use super::{bar, median};
use crate::build;
use crate::command;
use crate::host::{Admin, Device, Host};
use crate::process::{Interrupt, Running};

/// The longest median scrape, ms.
const LIMIT_SCRAPE_MS: f64 = 5.0;
/// The most bytes of a compressed answer.
const LIMIT_SCRAPE_BYTES: usize = 200_000;
/// The most CPU time of `deepres top`, percent of a core.
const LIMIT_TOP_PERCENT: f64 = 2.0;
/// Time between two scrapes. The daemon makes a new page each second.
const BETWEEN_SCRAPES: Duration = Duration::from_millis(1_050);
/// The most growth of the 99th percentile of an arbiter's turns by ten scrapes a second, percent.
const LIMIT_TURN_PERCENT: f64 = 5.0;
/// Time between two scrapes while the arbiter's turns are measured.
const BETWEEN_MANY_SCRAPES: Duration = Duration::from_millis(100);
/// Time between two looks at the latest turns. This time is no multiple of
/// [`BETWEEN_MANY_SCRAPES`], so the looks come at all moments between two scrapes.
const BETWEEN_LOOKS: Duration = Duration::from_millis(330);
/// The number of looks that count, in each time with or without scrapes.
const LOOKS: u32 = 20;
/// The number of looks that do not count, at the beginning of each time with or without scrapes.
/// For 1.4 s after the last scrape, the daemon still makes pages, because it expects further
/// scrapes.
const UNCOUNTED_LOOKS: u32 = 5;
/// The most bytes of the page's files.
const LIMIT_PAGE_BYTES: usize = 60 << 10;
/// The fewest frames a second in which the page's chart changes.
const LIMIT_PAGE_FPS: f64 = 30.0;
/// The number of idle tenants on the page whose frames are counted.
const PAGE_TENANTS: u32 = 200;
/// The number of tenants that work meanwhile: more than the chart shows singly.
const PAGE_RIVALS: u32 = 12;
/// The page's chart.
const CHART: &str = "chart";
/// Chooses the shortest time that the chart can show. So the chart moves fastest.
const SHORTEST_SPAN: &str = "((span) => {
  span.value = '60';
  span.dispatchEvent(new Event('input'));
})(document.getElementById('span'))";
const METRICS: &str = "/metrics";
/// The files of the page.
const PAGE_FILES: [&str; 3] = ["/", "/page.css", "/page.js"];
/// The number of tenants whose turns are measured: jobs that always have work.
const RIVALS: u32 = 2;
/// Time from the start of the last program, or of `deepres top`, until nothing starts any more.
const SETTLE: Duration = Duration::from_secs(3);

const NS_PER_US: f64 = 1e3;

/// Options of `cargo xtask bench faces`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of tenants to start, with a program each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    tenants: u32,
    /// Number of simulated GPUs
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpus: u32,
    /// Number of scrapes, and seconds to watch `deepres top` and the page
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of times, of 17 seconds each, to watch the arbiter's turns with scrapes and without
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    pairs: u32,
}

#[derive(Serialize)]
struct Report {
    tenants: usize,
    gpus: usize,
    /// The median scrape, ms. The daemon prepared the pages beforehand.
    scrape_ms: f64,
    /// The first scrape after a rest, ms. The daemon prepared no page, because no client had asked
    /// for one.
    first_scrape_ms: f64,
    /// The bytes of the compressed answer.
    scrape_bytes: usize,
    /// The CPU time of `deepres top`, percent of a core.
    top_core_percent: f64,
    /// The 99th percentile of an arbiter's latest turns without scrapes, us: the median of all
    /// looks.
    turn_p99_us: f64,
    /// The growth of this median by ten scrapes a second, percent.
    turn_growth_percent: f64,
    /// The bytes of the page's files.
    page_bytes: usize,
    /// The frames a second in which the page's chart changes, with at most 200 idle tenants and
    /// twelve that work; `None` without Chromium, which counts as past the bar.
    page_fps: Option<f64>,
}

/// Measures, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let interrupt = Interrupt::catch()?;
    raise_descriptors()?;
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let (simgpu, deepres) = (folder.path().join("simgpu.toml"), folder.path().join("deepres.toml"));
    let (address, page) = (free_address(), free_address());
    fs::write(&simgpu, format!("gpus = {}\n", options.gpus))?;
    fs::write(&deepres, format!("metrics = \"{address}\"\nweb = \"{page}\"\n"))?;
    let device = Device::Simulated { config: Some(simgpu) };
    let host = Host::configured(&artefacts, device, &interrupt, Some(&deepres))?;
    let start = |first: u32, count: u32| {
        let tenant = |number: u32| Some(format!("tenant-{}", first + number));
        let gpu = |number: u32| Some((first + number) % options.gpus);
        Crowd::start(&host, &artefacts, count, tenant, gpu, &interrupt)
    };
    let of_page = options.tenants.min(PAGE_TENANTS);
    let mut crowds = vec![start(0, of_page)?];
    let page_bytes = PAGE_FILES.iter().map(|path| get(page, path)).sum::<Result<usize>>()?;
    let page_fps =
        browser::is_there().then(|| frames(&host, &interrupt, page, options.seconds)).transpose()?;
    if options.tenants > of_page {
        crowds.push(start(of_page, options.tenants - of_page)?);
    }
    interrupt.sleep(SETTLE)?;

    let scrape = || -> Result<(f64, usize)> {
        let began = Instant::now();
        let bytes = get(address, METRICS)?;
        Ok((began.elapsed().as_secs_f64() * 1e3, bytes))
    };
    let (first_scrape_ms, mut scrape_bytes) = scrape()?;
    let mut scrapes_ms = Vec::new();
    for _ in 0..options.seconds {
        interrupt.sleep(BETWEEN_SCRAPES)?;
        let (scrape_ms, bytes) = scrape()?;
        scrapes_ms.push(scrape_ms);
        scrape_bytes = bytes;
    }
    let top_core_percent = top(&host, &interrupt, options.seconds)?;
    let (turn_p99_us, turn_growth_percent) = turns(&host, &interrupt, address, options.pairs)?;
    crowds.into_iter().try_for_each(Crowd::end)?;
    Ok(Report {
        tenants: options.tenants as usize,
        gpus: options.gpus as usize,
        scrape_ms: median(&mut scrapes_ms),
        first_scrape_ms,
        scrape_bytes,
        top_core_percent,
        turn_p99_us,
        turn_growth_percent,
        page_bytes,
        page_fps,
    })
}

/// Starts `count` jobs that always have work on the first GPU, and waits until they run.
fn rivals(host: &Host, interrupt: &Interrupt, count: u32) -> Result<Vec<Running>> {
    let client = build::c_client("backlog")?;
    let start = |number: u32| {
        let mut job = host.deepres(&[]);
        job.args(["run", "--name"]).arg(format!("rival-{number}")).arg("--").arg(&client);
        job.args(["--sync-every", "50"]).env("CUDA_VISIBLE_DEVICES", "0");
        Running::start(job.stdin(Stdio::null()).stdout(Stdio::null()))
    };
    let rivals = (1..=count).map(start).collect();
    interrupt.sleep(SETTLE)?;
    rivals
}

/// Returns the frames a second in which the page's chart changes.
fn frames(host: &Host, interrupt: &Interrupt, page: SocketAddr, seconds: u32) -> Result<f64> {
    let _rivals = rivals(host, interrupt, PAGE_RIVALS)?;
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut browser = Browser::start(folder.path(), &[]).context("cannot start Chromium")?;
    browser.open(&format!("http://{page}/"))?;
    browser.await_true("document.querySelector('#legend li')")?;
    browser.value(SHORTEST_SPAN)?;
    Ok(browser.frames_per_s(CHART, Duration::from_secs(seconds.into()))?)
}

/// Measures the turns of an arbiter whose GPU two jobs want, with scrapes and without, `pairs`
/// times. Returns the median 99th percentile without scrapes, us, and its growth by scrapes,
/// percent.
///
/// Each look tells the 99th percentile of the latest 256 turns, which is the third longest of them.
/// One look depends on chance. So the medians of all looks with scrapes and of all looks without
/// decide, and the sides alternate.
fn turns(host: &Host, interrupt: &Interrupt, address: SocketAddr, pairs: u32) -> Result<(f64, f64)> {
    let _rivals = rivals(host, interrupt, RIVALS)?;
    // An open connection spares the arbiter the start of a process at each look.
    let mut admin = Admin::connect(host)?;
    let mut scrape_at = Instant::now();
    let mut looks_us = |has_scrapes: bool| -> Result<Vec<f64>> {
        let mut looks = Vec::new();
        for _ in 0..UNCOUNTED_LOOKS + LOOKS {
            let look_at = Instant::now() + BETWEEN_LOOKS;
            while scrape_at < look_at {
                interrupt.sleep(scrape_at.saturating_duration_since(Instant::now()))?;
                if has_scrapes {
                    get(address, METRICS)?;
                }
                scrape_at += BETWEEN_MANY_SCRAPES;
            }
            interrupt.sleep(look_at.saturating_duration_since(Instant::now()))?;
            let gpu = admin.status()?.gpus.into_iter().next().context("the host has no GPU")?;
            looks.push(gpu.turn_p99_ns as f64 / NS_PER_US);
        }
        Ok(looks.split_off(UNCOUNTED_LOOKS as usize))
    };
    let [mut without_us, mut with_us] = [const { Vec::new() }; 2];
    for pair in 0..pairs {
        // A machine that becomes slower or faster meanwhile favours neither side.
        let is_first = pair % 2 == 0;
        for has_scrapes in [is_first, !is_first] {
            let side = if has_scrapes { &mut with_us } else { &mut without_us };
            side.append(&mut looks_us(has_scrapes)?);
        }
    }
    let without_us = median(&mut without_us);
    Ok((without_us, (median(&mut with_us) / without_us - 1.0) * 100.0))
}

/// Reads the content at a path as Prometheus does. Returns the number of its bytes, compressed if
/// the daemon compresses it.
fn get(address: SocketAddr, path: &str) -> Result<usize> {
    let mut stream = TcpStream::connect(address).context("the daemon does not listen")?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/openmetrics-text;version=1.0.0\r\nAccept-Encoding: gzip\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = b"\r\n\r\n";
    let head = answer.windows(end.len()).position(|bytes| bytes == end).context("the answer has no head")?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "the daemon refuses {path}");
    Ok(answer.len() - head - end.len())
}

/// Runs `deepres top` in a terminal. Returns its CPU time, percent of a core.
fn top(host: &Host, interrupt: &Interrupt, seconds: u32) -> Result<f64> {
    let deepres = host.deepres(&[]);
    // The program `script` makes a terminal.
    let mut script = Command::new("script");
    script.args(["--quiet", "--flush", "--command"]);
    script.arg(format!(
        "stty columns 200 rows 50; exec {} top",
        command::shown(&Command::new(deepres.get_program()))
    ));
    script.arg("/dev/null").stdin(Stdio::null()).stdout(Stdio::null()).env("TERM", "xterm-256color");
    script.envs(deepres.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let script = Running::start(&mut script)?;
    interrupt.sleep(SETTLE)?;
    let pid = script.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let top: u32 = children.split_whitespace().next().context("`deepres top` has ended")?.parse()?;
    let (before, began) = (cpu_s(top)?, Instant::now());
    interrupt.sleep(Duration::from_secs(seconds.into()))?;
    Ok((cpu_s(top)? - before) * 100.0 / began.elapsed().as_secs_f64())
}

impl super::Report for Report {
    fn print(&self) {
        let Self { tenants, gpus, scrape_ms, first_scrape_ms, scrape_bytes, top_core_percent, .. } = self;
        let Self { turn_p99_us, turn_growth_percent, page_bytes, .. } = self;
        let fps = self.page_fps.map_or_else(
            || "no Chromium".to_owned(),
            |fps| format!("{fps:.0} frames a second with a changed chart"),
        );
        println!(
            "{tenants} tenants on {gpus} GPUs: a scrape of {scrape_ms:.1} ms (prepared beforehand; the first scrape after a rest takes {first_scrape_ms:.1} ms) and {scrape_bytes} bytes (at most {LIMIT_SCRAPE_MS} ms and {LIMIT_SCRAPE_BYTES} bytes); deepres top {top_core_percent:.2} % of a core (at most {LIMIT_TOP_PERCENT} %); 99 % of an arbiter's turns take at most {turn_p99_us:.0} us, {turn_growth_percent:+.1} % with ten scrapes a second (at most {LIMIT_TURN_PERCENT:+} %); the page has {page_bytes} bytes (at most {LIMIT_PAGE_BYTES}), {fps} (at least {LIMIT_PAGE_FPS})"
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        vec![
            bar("the time of a scrape", self.scrape_ms <= LIMIT_SCRAPE_MS),
            bar("the bytes of a scrape", self.scrape_bytes <= LIMIT_SCRAPE_BYTES),
            bar("the CPU time of deepres top", self.top_core_percent <= LIMIT_TOP_PERCENT),
            bar("the arbiter's turns during scrapes", self.turn_growth_percent <= LIMIT_TURN_PERCENT),
            bar("the bytes of the page", self.page_bytes <= LIMIT_PAGE_BYTES),
            bar("the frames of the page", self.page_fps.is_some_and(|fps| fps >= LIMIT_PAGE_FPS)),
        ]
    }
}
