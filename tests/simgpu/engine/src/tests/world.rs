//! A host in a directory of its own, with a clock that the test sets.

use crate::{
    Clock, ContextId, Host, Options, StreamId, Ticket, Work,
    config::ALL_SMS_PPM,
    truth::{Observer, Snapshot},
};
use tempfile::TempDir;

/// Start time of the tests' clocks. Not 0, so that a missing time does not look right.
pub const START_NS: u64 = 1_000_000_000;
/// Simple figures: a slice of 1000, a switch of 100 or 10, and no latency, overhead or context
/// memory.
pub const PLAIN: &str = "slice_ns = 1000\npreempt_switch_ns = 100\nidle_switch_ns = 10\nlaunch_latency_ns = 0\n\
                         launch_overhead_ns = 0\ncontext_overhead_bytes = 0\ncopy_latency_ns = 0\nhost_to_device_bytes_per_us = 1000\n";

pub struct World {
    pub dir: TempDir,
    pub clock: Clock,
    config: String,
}

impl World {
    pub fn new() -> Self {
        Self::with("")
    }

    /// Returns a host with the configuration [`PLAIN`], in which `keys` replace some keys.
    pub fn with(keys: &str) -> Self {
        let replaced = |line: &str| keys.lines().any(|key| key.split(' ').next() == line.split(' ').next());
        let plain: String =
            PLAIN.lines().filter(|line| !replaced(line)).flat_map(|line| [line, "\n"]).collect();
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in shared memory");
        Self { dir, clock: Clock::virtual_at(START_NS), config: plain + keys }
    }

    /// Attaches a process for each of the clients.
    pub fn with_clients<const N: usize>(self) -> (Self, [Client; N]) {
        let clients = std::array::from_fn(|_| Client::new(&self));
        (self, clients)
    }

    pub fn options(&self) -> Options {
        Options {
            state_dir: Some(self.dir.path().to_owned()),
            config_toml: Some(self.config.clone()),
            clock: self.clock.clone(),
        }
    }

    /// Attaches one more process.
    pub fn process(&self) -> Host {
        Host::attach_with(self.options()).expect("attach")
    }

    /// Sets the clock to `ns` after [`START_NS`].
    pub fn go_to(&self, ns: u64) {
        self.clock.advance_to(START_NS + ns);
    }

    pub fn truth(&self) -> Snapshot {
        Observer::open_or_create(&self.options()).expect("open").snapshot()
    }
}

/// A process with a context and a stream.
pub struct Client {
    pub host: Host,
    pub context: ContextId,
    pub stream: StreamId,
}

impl Client {
    pub fn new(world: &World) -> Self {
        let host = world.process();
        let context = host.create_context(0).expect("context");
        let stream = host.create_stream(context).expect("stream");
        Self { host, context, stream }
    }

    pub fn kernel(&self, ns: u64) -> Ticket {
        self.part_kernel(self.stream, ns, ALL_SMS_PPM)
    }

    pub fn part_kernel(&self, stream: StreamId, ns: u64, sm_ppm: u32) -> Ticket {
        self.host.submit(stream, kernel(ns, sm_ppm), &[]).expect("submit")
    }

    pub fn another_stream(&self) -> StreamId {
        self.host.create_stream(self.context).expect("stream")
    }

    /// Returns the item's completion time after [`START_NS`].
    pub fn done(&self, ticket: Ticket) -> Option<u64> {
        self.host.query(ticket).map(|at_ns| at_ns - START_NS)
    }
}

pub fn kernel(ns: u64, sm_ppm: u32) -> Work {
    Work::Kernel { duration_ns: ns, sm_ppm, kernels: 1 }
}
