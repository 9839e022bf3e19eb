//! The rule by which a session counts with its part of the SMs: NVML lists the process as a client
//! of MPS on the GPU. A process reports its part and its MPS server in its meter page, and the
//! report can be false. So the daemon asks the driver. All code that needs the MPS server of a
//! session calls [`Client::server`].
//!
//! If NVML does not tell the clients of MPS on a GPU, the daemon believes each report. If NVML
//! gives no answer, the earlier answer holds. Before the first answer, a session counts with all
//! SMs.

use crate::Shared;
use crate::nvml::{self, MpsClients};
use crate::registry::Registry;
use crate::tenant::Session;
use deepres_abi::MAX_GPUS;
use deepres_abi::meter::MeterPage;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// The time between two questions about all reports.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time between two looks while a new session has reported nothing, or NVML does not yet list a
/// process that reports an MPS server. A new client of MPS takes turns for this time.
const LOOK_SOON: Duration = Duration::from_millis(100);
/// The number of NVML's answers without a process after which the daemon asks for the process no
/// more than for others. The daemon counts answers once the process uses the GPU. The driver lists
/// a process from its first context on, so an honest process is in the first or second answer.
const MOST_MISSES: u32 = 10;

/// NVML's last answer about a session's process on one GPU.
#[derive(Debug, Default)]
struct OnGpu {
    /// Whether the process is a client of MPS. Also true if NVML does not tell.
    is_client: AtomicBool,
    /// The number of answers without the process since it used the GPU.
    misses: AtomicU32,
}

/// NVML's last answers about a session's process, by GPU.
#[derive(Debug, Default)]
pub struct Client([OnGpu; MAX_GPUS]);

impl Client {
    /// Returns the MPS server with which a session counts on a GPU. `page` is the session's meter
    /// page. Returns 0 if the session counts with all SMs: the session reports no server, or the
    /// session's process is no client of MPS.
    pub fn server(&self, page: &MeterPage, gpu: usize) -> u64 {
        let is_client = self.0.get(gpu).is_some_and(|on_gpu| on_gpu.is_client.load(Ordering::Relaxed));
        if is_client { reported(page, gpu) } else { 0 }
    }

    /// Returns whether the daemon soon asks again for the process, if the process uses the GPU.
    fn is_awaited(&self, gpu: usize) -> bool {
        self.0.get(gpu).is_some_and(|on_gpu| {
            !on_gpu.is_client.load(Ordering::Relaxed) && on_gpu.misses.load(Ordering::Relaxed) < MOST_MISSES
        })
    }

    /// Takes NVML's answer for a GPU. `pid` is the session's process, and `is_active` says whether
    /// the process uses the GPU. Returns whether the daemon gives up asking soon.
    fn learn(&self, gpu: usize, pid: u32, answer: &MpsClients, is_active: bool) -> bool {
        let Some(on_gpu) = self.0.get(gpu) else { return false };
        let is_client = match answer {
            MpsClients::Untold => true,
            MpsClients::Listed(pids) => pids.contains(&pid),
        };
        on_gpu.is_client.store(is_client, Ordering::Relaxed);
        let misses = match (is_client, is_active) {
            (true, _) => 0,
            (false, true) => on_gpu.misses.load(Ordering::Relaxed).saturating_add(1),
            (false, false) => return false,
        };
        on_gpu.misses.store(misses, Ordering::Relaxed);
        misses == MOST_MISSES
    }
}

/// Returns the MPS server that a session reports on a GPU; 0 without one. The report can be false.
fn reported(page: &MeterPage, gpu: usize) -> u64 {
    page.mps_server(gpu).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Returns the sessions that report an MPS server, each with a GPU of the report. Leaves out
/// tenants whose parts do not count.
fn reports(registry: &Registry) -> impl Iterator<Item = (&Session, usize)> {
    let tenants = registry.tenancy.tenants().iter().filter(|(_, tenant)| tenant.terms.caps().sm);
    let sessions = tenants.flat_map(|(_, tenant)| tenant.members.sessions().values());
    sessions.flat_map(|session| {
        let gpus = session.gpus.iter().copied();
        let has_report = move |gpu: &usize| reported(session.meter.page(), *gpu) != 0;
        gpus.filter(has_report).map(move |gpu| (session, gpu))
    })
}

/// Returns whether a session has launched anything on a GPU, or waits for the GPU. Its process then
/// has a context.
fn is_active(session: &Session, gpu: usize) -> bool {
    session.meter.page().slot(gpu).is_some_and(|slot| {
        let meter = slot.read();
        meter.wants() || (meter.kernel_launches | meter.graph_launches) != 0
    })
}

/// Returns the GPUs about which the daemon asks now, and whether the daemon soon looks again. With
/// `asks_all`, the daemon asks about each GPU with a report.
fn due(registry: &Registry, asks_all: bool) -> (BTreeSet<usize>, bool) {
    let (mut gpus, mut looks_soon) = (BTreeSet::new(), false);
    for (session, gpu) in reports(registry) {
        let is_awaited = session.mps.is_awaited(gpu);
        looks_soon |= is_awaited;
        if asks_all || (is_awaited && is_active(session, gpu)) {
            gpus.insert(gpu);
        }
    }
    (gpus, looks_soon)
}

/// Takes NVML's answers, by the places of GPUs in `gpus`.
fn take(shared: &Shared, gpus: &[usize], answers: &BTreeMap<usize, MpsClients>) {
    for (session, gpu) in reports(&shared.registry.borrow()) {
        let place = gpus.iter().position(|asked| *asked == gpu);
        let Some(answer) = place.and_then(|place| answers.get(&place)) else { continue };
        let gives_up = session.mps.learn(gpu, session.pid, answer, is_active(session, gpu));
        if gives_up && shared.lines.allows(&session.source) {
            tracing::info!(
                gpu,
                pid = session.pid,
                "a process counts with all SMs: it reports an MPS server, but NVML does not list it as a client of MPS"
            );
        }
    }
}

/// Asks NVML for the clients of MPS while sessions report MPS servers. Never returns.
pub async fn serve(shared: Rc<Shared>) {
    let mut ask_all_at = Instant::now();
    let mut is_new_until = Instant::now();
    let mut looks_soon = false;
    let mut is_told = false;
    loop {
        let is_soon = looks_soon || Instant::now() < is_new_until;
        let pause = if is_soon { LOOK_SOON } else { LOOK_EVERY };
        if timeout(pause, shared.came.notified()).await.is_ok() {
            // A process reports its MPS server a moment after it got its pages.
            is_new_until = Instant::now() + LOOK_EVERY;
            sleep(LOOK_SOON).await;
        }
        let asks_all = ask_all_at <= Instant::now();
        if asks_all {
            ask_all_at = Instant::now() + LOOK_EVERY;
        }
        let (gpus, is_awaited) = due(&shared.registry.borrow(), asks_all);
        looks_soon = is_awaited;
        if gpus.is_empty() {
            continue;
        }
        let uuids = shared.registry.borrow().tenancy.gpus().uuids();
        let gpus: Vec<usize> = gpus.into_iter().filter(|gpu| *gpu < uuids.len()).collect();
        let asked = gpus.iter().map(|gpu| uuids[*gpu].clone()).collect();
        let answers = nvml::mps_clients(asked).await;
        let is_untold = answers.values().any(|answer| *answer == MpsClients::Untold);
        if is_untold && !std::mem::replace(&mut is_told, true) {
            tracing::warn!(
                "NVML does not tell the clients of MPS: the daemon believes each process that reports a part of the SMs; set `mps = \"off\"` if users do not trust each other"
            );
        }
        take(&shared, &gpus, &answers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{SharedPage, Writer};

    const OWN: u32 = 7;
    const OTHER: u32 = 8;

    fn listed(pids: &[u32]) -> MpsClients {
        MpsClients::Listed(pids.iter().copied().collect())
    }

    #[test]
    fn a_session_counts_with_its_server_only_on_gpus_where_nvml_lists_its_process() {
        let meter = SharedPage::<MeterPage>::create("deepres-meter", Writer::Anyone).unwrap();
        let page = meter.page();
        for gpu in [0, 1] {
            page.mps_server(gpu).unwrap().store(9, Ordering::Relaxed);
        }
        let client = Client::default();
        let servers = || [client.server(page, 0), client.server(page, 1), client.server(page, MAX_GPUS)];
        assert_eq!(servers(), [0; 3], "NVML has not answered");
        client.learn(1, OWN, &listed(&[OTHER]), true);
        assert_eq!(servers(), [0; 3], "NVML lists another process");
        client.learn(1, OWN, &listed(&[OWN, OTHER]), true);
        assert_eq!(servers(), [0, 9, 0]);
        client.learn(1, OWN, &listed(&[]), false);
        assert_eq!(servers(), [0; 3], "the process is no client any more");
        client.learn(0, OWN, &MpsClients::Untold, false);
        assert_eq!(servers(), [9, 0, 0], "NVML does not tell");
        page.mps_server(0).unwrap().store(0, Ordering::Relaxed);
        assert_eq!(servers(), [0; 3], "the process reports no server");
    }

    #[test]
    fn the_daemon_gives_up_asking_soon_for_a_process_that_uses_the_gpu_and_is_never_listed() {
        let client = Client::default();
        let asks = |is_active| client.learn(0, OWN, &listed(&[]), is_active);
        assert!((0..2 * MOST_MISSES).all(|_| !asks(false)) && client.is_awaited(0), "no context yet");
        let given_up: Vec<bool> = (0..=MOST_MISSES).map(|_| asks(true)).collect();
        assert_eq!(given_up.iter().position(|gives_up| *gives_up), Some(MOST_MISSES as usize - 1));
        assert_eq!(given_up.iter().filter(|gives_up| **gives_up).count(), 1, "the log tells it once");
        assert!(!client.is_awaited(0) && client.is_awaited(1) && !client.is_awaited(MAX_GPUS));
        client.learn(0, OWN, &listed(&[OWN]), true);
        assert!(!client.is_awaited(0), "the process is listed");
        asks(true);
        assert!(client.is_awaited(0), "the daemon soon asks again");
    }
}
