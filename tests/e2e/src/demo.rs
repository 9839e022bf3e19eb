//! The two clients of `cargo xtask demo`: unmodified PyTorch training scripts that share a GPU.

/// A client of the demo.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// The tenant's name.
    pub name: &'static str,
    /// The share for which the client asks, as `deepres run` takes it.
    share: &'static str,
}

/// The clients.
pub const CLIENTS: [Client; 2] =
    [Client { name: "train-70", share: "70%" }, Client { name: "train-30", share: "30%" }];
/// The script of both clients, relative to the repository. If PyTorch cannot be installed, or with
/// `--small`, the demo replaces this script by tinygrad's.
pub const TORCH_SCRIPT: &str = "tests/workloads/python/torch_train.py";
/// The script's arguments: a run time that is longer than any observation, because the observer
/// ends the clients.
pub const ARGUMENTS: [&str; 2] = ["--seconds", "1000000"];
/// Part of the line that the script prints when its warm-up is over and its steady state begins.
pub const TRAINS: &str = "; training with batches of";
/// Memory limit of each client.
const MEMORY: &str = "8GiB";

impl Client {
    /// Returns the client's options of `deepres run`.
    pub fn options(&self) -> [&'static str; 6] {
        ["--name", self.name, "--share", self.share, "--memory", MEMORY]
    }
}
