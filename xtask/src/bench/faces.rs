//! `cargo xtask bench faces`: the cost of a scrape of the metrics, and of `deepres top`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::crowd::Crowd;
use super::daemon::{cpu_s, raise_descriptors};
use super::{bar, median};
use crate::build;
use crate::command;
use crate::host::{Device, Host};
use crate::process::{Interrupt, Running};

/// The longest median scrape, ms.
const LIMIT_SCRAPE_MS: f64 = 5.0;
/// The most bytes of a compressed answer.
const LIMIT_SCRAPE_BYTES: usize = 200_000;
/// The most CPU time of `deepres top`, percent of a core.
const LIMIT_TOP_PERCENT: f64 = 2.0;
/// Time between two scrapes. The daemon makes a new page each second.
const BETWEEN_SCRAPES: Duration = Duration::from_millis(1_050);
/// Time from the start of the last program, or of `deepres top`, until nothing starts any more.
const SETTLE: Duration = Duration::from_secs(3);

/// Options of `cargo xtask bench faces`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of tenants to start, with a program each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    tenants: u32,
    /// Number of simulated GPUs
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpus: u32,
    /// Number of scrapes, and seconds to watch `deepres top`
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

#[derive(Serialize)]
struct Report {
    tenants: usize,
    gpus: usize,
    /// The median scrape, ms.
    scrape_ms: f64,
    /// The bytes of the compressed answer.
    scrape_bytes: usize,
    /// The CPU time of `deepres top`, percent of a core.
    top_core_percent: f64,
}

/// Measures, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let interrupt = Interrupt::catch()?;
    raise_descriptors()?;
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let (simgpu, deepres) = (folder.path().join("simgpu.toml"), folder.path().join("deepres.toml"));
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?;
    fs::write(&simgpu, format!("gpus = {}\n", options.gpus))?;
    fs::write(&deepres, format!("metrics = \"{address}\"\n"))?;
    let device = Device::Simulated { config: Some(simgpu) };
    let host = Host::configured(&artefacts, device, &interrupt, Some(&deepres))?;
    let tenant = |number| Some(format!("tenant-{number}"));
    let gpu = |number| Some(number % options.gpus);
    let crowd = Crowd::start(&host, &artefacts, options.tenants, tenant, gpu, &interrupt)?;
    interrupt.sleep(SETTLE)?;

    let (mut scrapes_ms, mut scrape_bytes) = (Vec::new(), 0);
    for _ in 0..options.seconds {
        interrupt.sleep(BETWEEN_SCRAPES)?;
        let began = Instant::now();
        scrape_bytes = scrape(address)?;
        scrapes_ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let top_core_percent = top(&host, &interrupt, options.seconds)?;
    let ps = host.ps()?;
    crowd.end()?;
    Ok(Report {
        tenants: ps.tenants.len(),
        gpus: ps.gpus.len(),
        scrape_ms: median(&mut scrapes_ms),
        scrape_bytes,
        top_core_percent,
    })
}

/// Reads the metrics as Prometheus does. Returns the number of bytes of the compressed page.
fn scrape(address: SocketAddr) -> Result<usize> {
    let mut stream = TcpStream::connect(address).context("the daemon serves no metrics")?;
    let request = "GET /metrics HTTP/1.1\r\nHost: deepres\r\nAccept: application/openmetrics-text;version=1.0.0\r\nAccept-Encoding: gzip\r\n\r\n";
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = b"\r\n\r\n";
    let head = answer.windows(end.len()).position(|bytes| bytes == end).context("the answer has no head")?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "the daemon refuses the scrape");
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
        let Self { tenants, gpus, scrape_ms, scrape_bytes, top_core_percent } = self;
        println!(
            "{tenants} tenants on {gpus} GPUs: a scrape of {scrape_ms:.1} ms and {scrape_bytes} bytes (at most {LIMIT_SCRAPE_MS} ms and {LIMIT_SCRAPE_BYTES} bytes); deepres top {top_core_percent:.2} % of a core (at most {LIMIT_TOP_PERCENT} %)"
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        vec![
            bar("the time of a scrape", self.scrape_ms <= LIMIT_SCRAPE_MS),
            bar("the bytes of a scrape", self.scrape_bytes <= LIMIT_SCRAPE_BYTES),
            bar("the CPU time of deepres top", self.top_core_percent <= LIMIT_TOP_PERCENT),
        ]
    }
}
