//! The node's part of dynamic resource allocation: gives claims their GPUs by the same records as
//! the kubelet's devices.

use super::{Node, Refusal, State, to_its_end, unavailable};
use crate::daemon::Daemon;
use crate::plugin::Resource;
use crate::record::{ClaimRequest, Phase, Record};
use deepres_abi::PPM;
use deepres_policy::shares::SHARE_PPM;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// The devices that the scheduler gave to a claim's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The request.
    pub claim: ClaimRequest,
    /// The UUIDs of the GPUs, each once.
    pub gpus: Vec<String>,
    /// The share of each GPU, parts per million.
    pub share_ppm: u32,
    /// The memory on each GPU, bytes.
    pub memory_bytes: u64,
}

impl Grant {
    /// Returns whether a record is of this grant.
    fn is_of(&self, record: &Record) -> bool {
        let own = &record.allocation;
        record.claim.as_ref() == Some(&self.claim)
            && own.gpus == self.gpus
            && (own.share_ppm, own.memory_bytes) == (self.share_ppm, self.memory_bytes)
    }
}

impl State {
    /// Checks that the GPUs of a grant are there, have no fault, and have room beside all records.
    /// A new grant has no record yet.
    fn check(&self, grant: &Grant, is_new: bool) -> Result<(), Refusal> {
        for gpu in &grant.gpus {
            let Some(memory_bytes) = self.memory.get(gpu) else {
                let reason = format!("the daemon of this node does not manage the GPU {gpu}");
                return Err(Refusal::Impossible(reason));
            };
            if let Some(fault) = self.faults.get(gpu) {
                let reason = format!(
                    "the claim's GPU {gpu} has a fault ({fault}); delete pod and claim, and the next get another GPU"
                );
                return Err(Refusal::Unavailable(reason));
            }
            let runs = |record: &&Record| record.phase == Phase::Runs && record.allocation.gpus.contains(gpu);
            let others = self.records.iter().map(|held| &held.record).filter(runs);
            let (mut share_ppm, mut taken_bytes) = (0, 0_u64);
            for allocation in others.map(|record| &record.allocation) {
                share_ppm += allocation.share_ppm;
                taken_bytes = taken_bytes.saturating_add(allocation.memory_bytes);
            }
            if is_new && share_ppm + grant.share_ppm > PPM {
                let (wanted, has) = (grant.share_ppm / SHARE_PPM, (PPM - share_ppm.min(PPM)) / SHARE_PPM);
                let reason = format!(
                    "the claim waits for {wanted} shares of the GPU {gpu}, of which {has} are free; other containers still have the rest"
                );
                return Err(Refusal::Unavailable(reason));
            }
            if is_new && taken_bytes.saturating_add(grant.memory_bytes) > *memory_bytes {
                let (wanted, has) = (grant.memory_bytes, memory_bytes.saturating_sub(taken_bytes));
                let reason = format!(
                    "the claim waits for {wanted} bytes on the GPU {gpu}, of which {has} are free; other containers still have the rest"
                );
                return Err(Refusal::Unavailable(reason));
            }
        }
        Ok(())
    }
}

impl Node {
    /// Returns the daemon.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Returns the resources of which containers still have devices, from before the node had
    /// claims.
    pub async fn resources_left(&self) -> Vec<Resource> {
        let state = self.state.lock().await;
        let has = |resource: &Resource| {
            state.records.iter().any(|held| held.record.resource() == Some(resource.name()))
        };
        [Resource::Share, Resource::Gpu].into_iter().filter(has).collect()
    }

    /// Returns the UUIDs of the GPUs on which containers can start; `None` before the daemon has
    /// named its GPUs. While no daemon answers for long, no container can start.
    pub async fn open_gpus(&self) -> Option<BTreeSet<String>> {
        let state = self.state.lock().await;
        if state.answered.unwrap_or(self.began).elapsed() >= self.options.timing.daemon_timeout {
            return Some(BTreeSet::new());
        }
        state.answered?;
        Some(state.memory.keys().filter(|gpu| !state.faults.contains_key(*gpu)).cloned().collect())
    }

    /// Gives a claim what its grants say: one for each of its requests. Returns the CDI device of
    /// each grant. A claim that has its grants already keeps them.
    ///
    /// # Errors
    /// [`Refusal`]. The kubelet tries again later.
    pub async fn prepare(
        self: &Arc<Self>,
        claim: String,
        grants: Vec<Grant>,
    ) -> Result<Vec<String>, Refusal> {
        let node = Arc::clone(self);
        to_its_end(async move { node.grant(&claim, grants).await }).await
    }

    async fn grant(&self, claim: &str, mut grants: Vec<Grant>) -> Result<Vec<String>, Refusal> {
        let began = Instant::now();
        let mut state = loop {
            let state = self.state.lock().await;
            if state.answered.is_some() {
                break state;
            }
            drop(state);
            if began.elapsed() >= self.options.timing.wait {
                return Err(Refusal::Unavailable("the daemon of this node does not answer yet".to_owned()));
            }
            sleep(self.options.timing.look).await;
        };
        for grant in &mut grants {
            // The published memory is whole mebibytes, and a lost GPU has none.
            let memory = grant.gpus.iter().filter_map(|gpu| state.memory.get(gpu)).min();
            grant.memory_bytes = grant.memory_bytes.min(memory.copied().unwrap_or(u64::MAX));
        }
        // The scheduler may have given the claim anew. The claim's earlier records are over.
        let is_over = |record: &Record| !grants.iter().any(|grant| grant.is_of(record));
        self.end_claim(&mut state, claim, is_over).await?;
        let mut devices = Vec::new();
        for grant in grants {
            let held = state.records.iter().find(|held| grant.is_of(&held.record));
            let held = held.map(|held| held.record.clone());
            state.check(&grant, held.is_none())?;
            let record = match held {
                Some(record) => {
                    self.tell(&record).await?;
                    self.write(&record).await.map_err(unavailable)?;
                    record
                }
                None => {
                    let Grant { claim, gpus, share_ppm, memory_bytes } = grant;
                    let record =
                        Record::of_claim(claim, gpus, share_ppm, memory_bytes).map_err(unavailable)?;
                    self.admit(&mut state, record.clone()).await?;
                    record
                }
            };
            devices.push(record.device());
        }
        Ok(devices)
    }

    /// Takes from a claim what it has. Does nothing if the claim has nothing.
    ///
    /// # Errors
    /// [`Refusal`]. The kubelet tries again later.
    pub async fn unprepare(self: &Arc<Self>, claim: String) -> Result<(), Refusal> {
        let node = Arc::clone(self);
        to_its_end(async move {
            let mut state = node.state.lock().await;
            node.end_claim(&mut state, &claim, |_| true).await
        })
        .await
    }

    /// Ends those of a claim's allocations that are over.
    async fn end_claim(
        &self,
        state: &mut State,
        claim: &str,
        is_over: impl Fn(&Record) -> bool,
    ) -> Result<(), Refusal> {
        let is_claims = |record: &Record| record.claim.as_ref().is_some_and(|own| own.claim == claim);
        let of_claim = |record: &Record| is_claims(record) && is_over(record);
        while let Some(place) = state.records.iter().position(|held| of_claim(&held.record)) {
            self.end(&state.records[place].record).await.map_err(unavailable)?;
            state.records.remove(place);
        }
        Ok(())
    }
}
