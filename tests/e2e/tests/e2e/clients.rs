//! Clients from PyPI and crates.io. deepres counts the same launches as the clients themselves. The
//! clients report the limit as their own out-of-memory error, and all their look-ups get hooks.

use std::path::PathBuf;

use deepres_e2e::artefacts::{clients_python, pycuda};
use deepres_e2e::clients::{cuda_program, cudarc_client};
use deepres_e2e::prelude::*;
use deepres_e2e::witness::{self, assert_every_look_up_is_answered_with_our_hook};
use simgpu_engine::Config;

/// Time limit of a client. Python clients import and compile first, on a machine with other work.
const CLIENT_LIMIT: Duration = Duration::from_secs(90);
/// Time within which the session's meter thread brings the meter page up to date.
const METER_SETTLES_WITHIN: Duration = Duration::from_secs(5);
/// Least part of its kernels' GPU time that a client is charged. These clients run for some
/// milliseconds, so the meter has few samples of their kernels. `metering.rs` tests the accuracy
/// for programs that run longer.
const METERED_AT_LEAST: f64 = 0.5;
const LIMIT_BYTES: u64 = 1 << 30;
/// Number of launches. So few launches suffice for the client to take its memory and to make all
/// its look-ups.
const FEW: &str = "3";

/// A client's program, and the script that precedes its other arguments.
struct Client {
    name: &'static str,
    program: PathBuf,
    script: Option<String>,
}

impl Client {
    fn python(name: &'static str) -> Self {
        let script = script(name).display().to_string();
        Self { name, program: clients_python().python(), script: Some(script) }
    }

    fn numba() -> Self {
        Self::python("numba_client")
    }

    fn cuda_python() -> Self {
        Self::python("cuda_client")
    }

    fn pycuda() -> Self {
        let script = script("pycuda_client").display().to_string();
        Self { name: "pycuda", program: pycuda().python(), script: Some(script) }
    }

    fn cudarc() -> Self {
        Self { name: "cudarc", program: cudarc_client(), script: None }
    }

    fn arguments<'a>(&'a self, launches: &'a str) -> Vec<&'a str> {
        self.script.iter().map(String::as_str).chain([launches]).collect()
    }
}

/// Runs a client under `deepres run` and checks its account. deepres must count the launches that
/// the client reports. The client must get all memory up to the limit, and then its own error for a
/// full device. Returns the client's output.
fn assert_counted_and_limited(client: &Client) -> Value {
    let (host, _daemon) = Host::new().with_daemon();
    let limit = LIMIT_BYTES.to_string();
    let options = ["--name", client.name, "--memory", &limit];
    let mut process = host.spawn(host.run(&options, &client.program, &client.arguments("1000")));
    let said = process.await_json_within(CLIENT_LIMIT);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number: {said}"));

    let launches = number(&said["kernel_launches"]);
    // The client has synchronised, so the record is complete.
    let truth = host.truth();
    let [record] =
        &truth.processes.iter().filter(|record| record.gpus[0].kernels > 0).collect::<Vec<_>>()[..]
    else {
        panic!("one process launched: {truth:?}")
    };
    assert_eq!(record.gpus[0].kernels, launches, "the GPU ran what was launched");
    let is_metered = |tenant: &Tenant| {
        tenant.kernel_launches == launches
            && tenant.gpu_ns as f64 >= record.gpus[0].kernel_busy_ns as f64 * METERED_AT_LEAST
    };
    let ps = host.await_ps_within(|ps| ps.find(client.name).is_some_and(is_metered), METER_SETTLES_WITHIN);
    let tenant = ps.tenant(client.name);
    println!("{}: metered {} ns of {} ns", client.name, tenant.gpu_ns, record.gpus[0].kernel_busy_ns);
    assert_eq!(tenant.pids(), [record.pid]);
    assert_eq!(tenant.graph_launches, 0);
    assert_eq!(tenant.memory_limit_bytes, Some(LIMIT_BYTES));
    assert_eq!(tenant.memory_bytes, LIMIT_BYTES, "{said}");
    assert!(tenant.refusals > 0, "the limit refused: {tenant:?}");
    let most = LIMIT_BYTES - Config::default().context_overhead_bytes;
    assert_eq!(number(&said["filled"]["bytes"]), most, "all that its context leaves of the limit can be had");
    process.finish().success();
    said
}

#[test]
fn numba_cuda_is_counted_and_meets_its_own_out_of_memory() {
    let said = assert_counted_and_limited(&Client::numba());
    assert_eq!(said["filled"]["error"], "CudaAPIError");
    assert_eq!(said["filled"]["code"], 2, "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(said["total"], LIMIT_BYTES, "the tenant's part is what it takes for the device's memory");
    assert!(
        said["elapsed_ms"].as_f64().is_some_and(|elapsed_ms| elapsed_ms > 0.0),
        "its events tell time: {said}"
    );
}

#[test]
fn cuda_bindings_and_cuda_core_are_counted_and_meet_their_own_out_of_memory() {
    let said = assert_counted_and_limited(&Client::cuda_python());
    assert_eq!(said["filled"]["error"], "CUDAError");
    let text = said["filled"]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("CUDA_ERROR_OUT_OF_MEMORY"), "{said}");
}

#[test]
#[ignore = "deep: PyCUDA is compiled first"]
fn pycuda_is_counted_and_meets_its_own_out_of_memory() {
    let said = assert_counted_and_limited(&Client::pycuda());
    assert_eq!(said["filled"]["error"], "MemoryError");
    assert_eq!(said["total"], LIMIT_BYTES, "the tenant's part is what it takes for the device's memory");
}

#[test]
fn cudarc_is_counted_and_meets_its_own_out_of_memory() {
    let said = assert_counted_and_limited(&Client::cudarc());
    assert_eq!(said["filled"]["error"], "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(said["total"], LIMIT_BYTES, "the tenant's part is what it takes for the device's memory");
}

#[test]
fn no_look_up_of_the_clients_goes_past_the_hooks() {
    // PyCUDA makes no look-ups, because it is linked to libcuda.
    for client in [Client::numba(), Client::cuda_python(), Client::cudarc()] {
        let (_, got) = assert_every_look_up_is_answered_with_our_hook(&witness::Client {
            arguments: &client.arguments(FEW),
            within: CLIENT_LIMIT,
            ..witness::Client::new(&client.program)
        });
        assert!(got.iter().any(|symbol| symbol.starts_with("cuLaunchKernel")), "{}: {got:?}", client.name);
    }
}

/// libcudart asks the driver for private tables, to verify that the driver is NVIDIA's. The
/// simulated driver has no such tables, so libcudart fails. All look-ups of libcudart come before
/// that check.
#[test]
fn no_look_up_of_a_static_libcudart_goes_past_the_hooks() {
    let program = cuda_program("static_runtime");
    let host = Host::new();
    let bare = host.finish(host.command(&program)).success();
    let said: Value = bare.json();
    for call in ["cudaGetDeviceCount", "cudaMalloc", "launch"] {
        assert!(
            said[call].as_str().is_some_and(|error| error != "cudaSuccess"),
            "{call} works now: test it as the other clients"
        );
    }
    let (stdout, got) = assert_every_look_up_is_answered_with_our_hook(&witness::Client::new(&program));
    assert_eq!(stdout, bare.stdout, "it fails as without deepres");
    for symbol in [
        "cuInit",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuGraphLaunch",
        "cuMemAlloc_v2",
        "cuMemAllocAsync",
        "cuMemFree_v2",
    ] {
        assert!(got.iter().any(|name| name == symbol), "{symbol} is not among {got:?}");
    }
}
