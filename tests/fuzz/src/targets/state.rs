//! The state file that a daemon finds in place of its predecessor's.

use deepres_abi::PPM;
use deepres_daemon::state::{self, StateFile};
use deepres_daemon_harness::Daemon;
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use std::sync::{LazyLock, Mutex, PoisonError};

const GPUS: usize = 2;

/// The current one of a series of daemons. Each input is read by the next one.
static DAEMON: LazyLock<Mutex<Option<Daemon>>> = LazyLock::new(|| {
    Mutex::new(Some(Daemon::start(GPUS, Config { tenant_linger_s: 0, ..Config::default() })))
});

/// A state reads back as it was written, and a daemon that starts with it has possible accounts.
pub fn run(data: &[u8]) {
    let Ok(mut state) = state::parse(data) else { return };
    let bytes = state.to_bytes().expect("a state can be written");
    assert_eq!(state::parse(&bytes).expect("a written state can be read"), state);

    let mut daemon = DAEMON.lock().unwrap_or_else(PoisonError::into_inner);
    let last = daemon.take().unwrap_or_else(|| Daemon::start(GPUS, Config::default()));
    // The state must be of this boot of the machine and of these GPUs. Otherwise the daemon would
    // set all of it aside.
    let uuid = |number: usize| last.gpus[number % GPUS].uuid_text.clone();
    for (number, gpu) in state.gpus.iter_mut().enumerate() {
        gpu.uuid = uuid(number);
    }
    for tenant in &mut state.tenants {
        for (number, account) in tenant.accounts.iter_mut().enumerate() {
            account.uuid = uuid(number);
        }
        for (number, meter) in
            tenant.sessions.iter_mut().flat_map(|session| session.meters.iter_mut().enumerate())
        {
            meter.uuid = uuid(number);
        }
    }
    state.saved_ns = state.saved_ns.min(monotonic_ns());
    let next = last.restart_after(|directory| {
        let path = directory.state_file();
        state.boot = StateFile::at(path.clone()).boot().to_owned();
        std::fs::write(path, state.to_bytes().expect("a state can be written"))
            .expect("the directory is ours");
    });
    let status = next.status();
    for account in status.tenants.iter().flat_map(|tenant| &tenant.gpus) {
        assert!(account.gpu_ns <= status.now_ns, "{account:?}");
        assert!(
            account.entitled_ppm <= Some(PPM)
                && account.recent_share_ppm <= PPM
                && account.total_share_ppm <= PPM,
            "{account:?}"
        );
    }
    *daemon = Some(next);
}
