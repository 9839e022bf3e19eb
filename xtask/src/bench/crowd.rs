//! Many programs that start at once, connect with a session each, and then stay idle.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::now_ns;
use crate::build::{self, Artefacts};
use crate::command;
use crate::host::Host;
use crate::process::{Interrupt, Running};

/// The running programs of the crowd. Drop kills all programs.
pub struct Crowd {
    running: Vec<Running>,
    /// Time before the first start, `CLOCK_MONOTONIC`, ns.
    pub begin_ns: u64,
    /// Time after the last start, `CLOCK_MONOTONIC`, ns.
    pub started_ns: u64,
    /// The report of each program, made once the program had its session.
    pub served: Vec<Served>,
}

/// Report of a program once it has its session.
#[derive(Deserialize)]
pub struct Served {
    /// Duration of `cuInit` with the handshake, ns.
    pub init_ns: u64,
    /// Time when `cuInit` returned, `CLOCK_MONOTONIC`, ns.
    pub at_ns: u64,
}

impl Crowd {
    /// Starts `count` programs with the interposer preloaded, and waits until all have a session.
    /// `tenant` returns the tenant of each program, by the program's number, and `gpu` its only
    /// GPU, if it has only one.
    pub fn start(
        host: &Host,
        artefacts: &Artefacts,
        count: u32,
        tenant: impl Fn(u32) -> Option<String>,
        gpu: impl Fn(u32) -> Option<u32>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let client = build::c_client("boot")?;
        // This run creates the state of the simulated GPU. So no figure includes this work.
        command::run(host.command(&client).stdin(Stdio::null()).stdout(Stdio::null()))?;

        let sessions =
            || -> Result<usize> { Ok(host.ps()?.tenants.iter().map(|tenant| tenant.sessions.len()).sum()) };
        let before = sessions()?;
        let begin_ns = now_ns();
        let mut running = Vec::new();
        for number in 0..count {
            interrupt.check()?;
            let mut program = host.command(&client);
            program.env("LD_PRELOAD", artefacts.library()).stdin(Stdio::piped()).stdout(Stdio::piped());
            if let Some(tenant) = tenant(number) {
                program.env("DEEPRES_TENANT", tenant);
            }
            if let Some(gpu) = gpu(number) {
                program.env("CUDA_VISIBLE_DEVICES", gpu.to_string());
            }
            running.push(Running::start(&mut program)?);
        }
        let started_ns = now_ns();
        let served = running.iter_mut().map(served).collect::<Result<Vec<_>>>()?;
        let served_ones = sessions()?.saturating_sub(before);
        ensure!(
            served_ones == running.len(),
            "only {served_ones} of {} programs have a session",
            running.len()
        );
        Ok(Self { running, begin_ns, started_ns, served })
    }

    /// Closes the programs' input, and waits until all programs have ended.
    pub fn end(self) -> Result<()> {
        for mut program in self.running {
            drop(program.child().stdin.take());
            program.finish()?;
        }
        Ok(())
    }
}

fn served(program: &mut Running) -> Result<Served> {
    let output = program.child().stdout.take().context("the output was piped")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.is_empty() {
        bail!("the program printed nothing: {}", program.shown());
    }
    serde_json::from_str(&line)
        .with_context(|| format!("cannot read the line {line:?} of {}", program.shown()))
}
