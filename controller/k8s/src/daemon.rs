//! The connection to the daemon, by its admin socket.

use deepres_model::admin::client::Client;
use deepres_model::admin::{GpuPlace, GpuStatus, Reply, Request};
use deepres_model::allocation::{Allocation, Token};
use deepres_model::directory::Directory;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The reason for which the daemon did not do what the plugin asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DaemonError {
    /// The daemon refused. Another attempt would fail too.
    #[error("{0}")]
    Refused(String),
    /// The daemon does not answer now.
    #[error("{0}")]
    Away(String),
}

/// The daemon of this node. Each connection is one conversation with one daemon; when the
/// connection breaks, another daemon can come.
#[derive(Debug, Clone)]
pub struct Daemon {
    directory: Directory,
    client: Arc<Mutex<Option<Client>>>,
}

impl Daemon {
    /// Returns the daemon of a directory. Nothing is connected yet.
    pub fn new(directory: Directory) -> Self {
        Self { directory, client: Arc::default() }
    }

    /// Returns the daemon's directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Asks the daemon, and connects if there is no connection.
    async fn ask(&self, request: Request) -> Result<Reply, DaemonError> {
        let Self { directory, client } = self.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
            let connected = match client.take() {
                Some(connected) => Ok(connected),
                None => Client::connect_to(&directory),
            };
            let mut connected = connected.map_err(|error| DaemonError::Away(error.to_string()))?;
            match connected.ask(&request) {
                Err(deepres_model::admin::client::ClientError::Refused(reason)) => {
                    *client = Some(connected);
                    Err(DaemonError::Refused(reason))
                }
                Err(error) => Err(DaemonError::Away(error.to_string())),
                Ok(reply) => {
                    *client = Some(connected);
                    Ok(reply)
                }
            }
        });
        asked.await.unwrap_or_else(|error| Err(DaemonError::Away(error.to_string())))
    }

    /// Returns the GPUs that the daemon manages.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn gpus(&self) -> Result<Vec<GpuStatus>, DaemonError> {
        match self.ask(Request::Status).await? {
            Reply::Status(status) => Ok(status.gpus),
            other => Err(strange(&other)),
        }
    }

    /// Returns the tokens of the allocations on the daemon's record, and the faults of its GPUs by
    /// UUID.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn allocations(&self) -> Result<(Vec<Token>, BTreeMap<String, String>), DaemonError> {
        match self.ask(Request::Allocations).await? {
            Reply::Allocations { tokens, faults } => Ok((tokens, faults)),
            other => Err(strange(&other)),
        }
    }

    /// Puts an allocation on the daemon's record.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn allocate(&self, allocation: Allocation) -> Result<(), DaemonError> {
        match self.ask(Request::Allocate { allocation: Box::new(allocation) }).await? {
            Reply::Allocated => Ok(()),
            other => Err(strange(&other)),
        }
    }

    /// Removes an allocation from the daemon's record.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn release(&self, token: Token) -> Result<(), DaemonError> {
        match self.ask(Request::Release { token }).await? {
            Reply::Released => Ok(()),
            other => Err(strange(&other)),
        }
    }

    /// Returns where each GPU is in the machine.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn places(&self) -> Result<Vec<GpuPlace>, DaemonError> {
        match self.ask(Request::Places).await? {
            Reply::Places { gpus } => Ok(gpus),
            other => Err(strange(&other)),
        }
    }

    /// Returns the UUIDs of the whole GPUs that a container should get, by the machine's topology.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn place(&self, gpus: usize, among: Vec<String>) -> Result<Vec<String>, DaemonError> {
        match self.ask(Request::Place { gpus, among }).await? {
            Reply::Placed { gpus, .. } => Ok(gpus),
            other => Err(strange(&other)),
        }
    }
}

fn strange(reply: &Reply) -> DaemonError {
    DaemonError::Refused(format!("the daemon's answer belongs to another question: {reply:?}"))
}
