//! Development tasks of deepres: `cargo xtask --help` lists them.

mod bench;
mod build;
mod codegen;
mod command;
mod compatibility;
mod conformance;
mod demo;
mod dist;
mod ebpf;
mod elf;
mod eval;
mod fuzz;
mod host;
mod process;
mod sanitize;
mod test;
mod trace_models;
mod training;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Development tasks of deepres
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Let two unmodified training programs share one GPU, 70 to 30, and show the time of each
    ///
    /// Builds everything, prepares the programs (kept for the next run), starts a daemon of its
    /// own, measures, and ends everything that it started. Uses this machine's GPU if there is one,
    /// and a simulated GPU if not.
    Demo(demo::Options),
    /// Install the needs of the tests, and run the quick tests: units, models, end to end, style
    ///
    /// With --deep, runs all tests. The last line of the output is `N passed, N failed`.
    Test(test::Options),
    /// Feed hostile inputs to the code at trust boundaries (libFuzzer), and report the edges
    /// reached
    ///
    /// The corpus is kept in target/fuzz/corpus for the next run. An input that breaks something is
    /// put into target/fuzz/findings. Once the bug is fixed, put the input into tests/fuzz/seeds.
    Fuzz(fuzz::Options),
    /// Run tests under AddressSanitizer and ThreadSanitizer
    Sanitize(sanitize::Options),
    /// Measure the costs of deepres
    Bench(bench::Options),
    /// Check that a CUDA driver behaves as deepres and its simulated GPU assume
    ///
    /// Checks this machine's driver if there is one, or else the simulated one. Prints a line for
    /// each check.
    Conformance(conformance::Options),
    /// Run the tests of other makers' programs, and write docs/compatibility.md
    Compatibility(compatibility::Options),
    /// Build the product into dist/, for old distributions too, and pack it
    ///
    /// Puts stripped `libdeepres.so`, `deepres` and `deepres-k8s` into dist/ and the simulated GPU
    /// into dist/simgpu/. Puts a package for Debian, a wheel for pip, an archive and their
    /// checksums into dist/. Fails if the product needs a glibc newer than 2.28.
    Dist(dist::Options),
    /// Evaluate the policy in virtual time, beside common alternatives
    Eval(eval::Options),
    /// Record known models in PyTorch on the simulated GPU, as traces for the evaluation
    ///
    /// Writes tests/eval/traces. docs/traces.md describes the models and the cost model.
    TraceModels,
    /// Build the programs that run in the kernel, for the next build of deepres to embed
    ///
    /// Installs the tools for that: bpf-linker into the cache, and the source of Rust's core by
    /// rustup. If rustup has no source, it installs Debian's toolchain with its source.
    Ebpf,
    /// Generate the driver API table from NVIDIA's published headers
    Codegen(codegen::Options),
}

fn main() -> Result<ExitCode> {
    match Cli::parse().task {
        Task::Demo(options) => demo::run(&options)?,
        Task::Test(options) => return test::run(&options),
        Task::Fuzz(options) => fuzz::run(&options)?,
        Task::Sanitize(options) => sanitize::run(&options)?,
        Task::Bench(options) => bench::run(&options)?,
        Task::Conformance(options) => conformance::run(&options)?,
        Task::Compatibility(options) => compatibility::run(&options)?,
        Task::Dist(options) => dist::run(&options)?,
        Task::Eval(options) => eval::run(&options)?,
        Task::TraceModels => trace_models::run()?,
        Task::Ebpf => println!("{}", ebpf::build()?.display()),
        Task::Codegen(options) => codegen::run(&options)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the root of the workspace, in any current directory.
fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask is a folder of the workspace").to_owned()
}
