//! The admin socket: answers requests of the daemon's user, of root, and of the group that the
//! configuration names.

use super::gpus::answers;
use super::registry::{Changed, Registry, place_whole};
use super::reload::reload;
use super::state::{Saved, saver};
use super::{Shared, plans, residency, status};
use crate::probes::metering::{self, Purpose};
use deepres_model::admin::plan::PlanStatus;
use deepres_model::admin::{MAX_REQUEST_BYTES, Reply, Request, Status};
use deepres_model::peer::Peer;
use deepres_model::text::{harmless, is_name};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The most administrators connected at a time.
const MAX_CONNECTIONS: usize = 64;
/// The most further connections at a time to which the daemon answers that it has no room. The
/// daemon closes connections beyond this number without an answer.
const REFUSED_AT_A_TIME: usize = 64;
/// The time that a client without room may take to send its request. After this time, the daemon
/// closes the connection without an answer.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// The time after which the daemon drops the connection of an administrator who neither asks nor
/// reads.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait for the watching thread, which answers within milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// The longest wait for the deaths of the processes of a job that has ended.
const ENDING_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two looks for these deaths.
const LOOK_FOR_END: Duration = Duration::from_millis(20);
/// Pause after a failed accept, so that the failure does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections at the admin socket, and answers the requests of administrators. Returns
/// only with an error.
pub async fn serve(listener: std::os::unix::net::UnixListener, shared: Rc<Shared>) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let anteroom = Arc::new(Semaphore::new(REFUSED_AT_A_TIME));
    loop {
        let accepted = listener.accept().await;
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let shared = Rc::clone(&shared);
        if let Ok(place) = Arc::clone(&room).try_acquire_owned() {
            tokio::task::spawn_local(async move {
                if let Err(error) = converse(stream, &shared).await {
                    tracing::debug!(%error, "an administrator's connection failed");
                }
                drop(place);
            });
        } else if let Ok(place) = Arc::clone(&anteroom).try_acquire_owned() {
            tokio::task::spawn_local(async move {
                // A failure to deliver the message concerns only that client.
                let _ = timeout(ASK_LIMIT, turn_away(stream)).await;
                drop(place);
            });
        }
    }
}

/// Tells a client that the daemon has no room, after reading the client's request. If the daemon
/// closed the connection before the request, the client would see an error and not the reason.
async fn turn_away(stream: UnixStream) -> io::Result<()> {
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading).take(MAX_REQUEST_BYTES as u64);
    reading.read_until(b'\n', &mut Vec::new()).await?;
    let message = format!(
        "the daemon serves {MAX_CONNECTIONS} administrators already, the most that it allows; close some connections (`fuser` on the socket shows them) and try again"
    );
    writing.write_all(&line_of(&Reply::Error { message })?).await
}

fn line_of(reply: &Reply) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(reply)?;
    text.push(b'\n');
    Ok(text)
}

async fn converse(stream: UnixStream, shared: &Rc<Shared>) -> io::Result<()> {
    let peer = Peer::of(stream.as_fd())?;
    let own = rustix::process::getuid().as_raw();
    let may = peer.uid == 0
        || peer.uid == own
        || shared.admin_group.is_some_and(|group| peer.groups(stream.as_fd()).contains(&group));
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut reading).take(MAX_REQUEST_BYTES as u64);
        let Ok(read) = timeout(PATIENCE, limited.read_until(b'\n', &mut line)).await else { return Ok(()) };
        if read? == 0 {
            return Ok(());
        }
        if is_gone(reading.get_ref().as_ref()) {
            // The client stopped waiting, and took the request for failed.
            return Ok(());
        }
        let reply = if may {
            match serde_json::from_slice(&line) {
                Ok(request) => answer(request, shared, &|| is_gone(reading.get_ref().as_ref())).await,
                Err(error) => Reply::Error { message: format!("the line is not a request: {error}") },
            }
        } else {
            let group = shared.admin_group.map(|group| format!(", and so may group {group}"));
            Reply::Error {
                message: format!(
                    "user {} may not administer this daemon; user {own} and root may{}",
                    peer.uid,
                    group.unwrap_or_default()
                ),
            }
        };
        match timeout(PATIENCE, writing.write_all(&line_of(&reply)?)).await {
            Ok(written) => written?,
            Err(_) => return Ok(()),
        }
    }
}

/// Returns whether the client has closed the connection. A client that only ended its own output
/// still waits for the answer.
fn is_gone(stream: &UnixStream) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // The kernel reports the end of both directions, whatever the flags.
    poll(&mut [PollFd::new(stream, PollFlags::empty())], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Returns the answer to a request. `is_gone` says whether the client has stopped waiting for the
/// answer, and so has taken a change for failed.
pub async fn answer(request: Request, shared: &Rc<Shared>, is_gone: &dyn Fn() -> bool) -> Reply {
    match request {
        Request::Status => match status::publish(shared).await {
            Some(status) => Reply::Status(Box::new(Status::clone(&status))),
            None => no_answer(),
        },
        Request::Coverage => {
            Reply::Coverage { processes: status::coverage(shared.registry.borrow().tenancy.tenants()) }
        }
        Request::Config => {
            let loaded = &shared.configuration.borrow().loaded;
            Reply::Config { file: loaded.file.clone(), settings: loaded.settings() }
        }
        Request::Reload => reload(shared).await,
        Request::Adopt { tenant: Some(tenant), .. } if !is_name(&tenant) => {
            Reply::Error { message: format!("`{}` cannot name a tenant", harmless(&tenant)) }
        }
        Request::Adopt { pid, tenant } => {
            // If the process is held, metering begins before the process goes on.
            let is_listed = shared.watcher.board().unmanaged.iter().any(|user| user.pid == pid);
            let unmetered = if is_listed { meter(shared, pid, tenant.clone()).await } else { None };
            match timeout(ANSWER_LIMIT, shared.watcher.adopt(pid, tenant)).await {
                Ok(Ok(Ok(()))) => {
                    saver::save(shared).await;
                    Reply::Adopted { unmetered }
                }
                Ok(Ok(Err(message))) => Reply::Error { message },
                _ => Reply::Error {
                    message: "the watching thread does not answer; see the daemon's log".to_owned(),
                },
            }
        }
        Request::Explain { tenant } => {
            let pending = shared.registry.borrow().explain(&tenant);
            match pending {
                Ok(pending) => {
                    let Some(shares) = answers(pending).await else { return no_answer() };
                    let mut gpus: Vec<_> = shares.into_iter().flatten().collect();
                    if let Some(tenant) = shared.registry.borrow().tenancy.tenants().get(&tenant) {
                        gpus.iter_mut().for_each(|share| share.gate = status::gate(tenant, &share.gate));
                    }
                    Reply::Explained { gpus }
                }
                Err(message) => Reply::Error { message },
            }
        }
        Request::EndJob { job } => {
            let living = end_job(job, shared).await;
            saver::save(shared).await;
            status::publish(shared).await;
            Reply::JobEnded { living }
        }
        Request::Allocate { allocation } => {
            let recorded = shared.registry.borrow_mut().allocate(*allocation);
            persisted(recorded.map(|()| Reply::Allocated), shared).await
        }
        Request::Release { token } => {
            shared.registry.borrow_mut().release(&token);
            persisted(Ok(Reply::Released), shared).await
        }
        Request::Allocations => {
            let registry = shared.registry.borrow();
            let tokens = registry.allocations().iter().map(|allocation| allocation.token.clone());
            Reply::Allocations { tokens: tokens.collect(), faults: registry.tenancy.gpus().faults().all() }
        }
        Request::Places => Reply::Places { gpus: shared.registry.borrow().tenancy.gpus().places() },
        Request::Place { gpus, among } => {
            let placed = place_whole(shared.registry.borrow().tenancy.gpus(), gpus, &among);
            placed.map_or_else(|message| Reply::Error { message }, |(gpus, why)| Reply::Placed { gpus, why })
        }
        Request::PlanLearn { tenant, ms } => planned(plans::learn(&tenant, ms, shared)),
        Request::PlanShow { tenant } => planned(plans::show(&tenant, shared)),
        Request::PlanOn { tenant } => persisted(plans::on(&tenant, shared).map(plan), shared).await,
        Request::PlanOff { tenant } => persisted(plans::off(&tenant, shared).map(plan), shared).await,
        Request::Set { tenant, wish, unset } => {
            change(&tenant, shared, is_gone, |registry| registry.set(&tenant, *wish, &unset)).await
        }
        Request::Pause { tenant } => {
            change(&tenant, shared, is_gone, |registry| registry.pause(&tenant)).await
        }
        Request::Suspend { tenant } => match residency::suspend(&tenant, shared).await {
            Ok(()) => Reply::Suspended,
            Err(message) => Reply::Error { message },
        },
        Request::Resume { tenant } => {
            let resumption = match residency::resume(&tenant, shared).await {
                Ok(resumption) => resumption,
                Err(message) => return Reply::Error { message },
            };
            change(&tenant, shared, is_gone, |registry| registry.unpause(&tenant, resumption)).await
        }
    }
}

/// Forgets the tenants of a Slurm job that has ended. Returns the names of tenants that have
/// members still after [`ENDING_LIMIT`].
async fn end_job(job: u32, shared: &Shared) -> Vec<String> {
    let until = Instant::now() + ENDING_LIMIT;
    loop {
        let living = shared.registry.borrow_mut().end_job(job);
        if living.is_empty() || Instant::now() > until {
            return living;
        }
        // Slurm has just killed the job's processes. The daemon learns of each death by itself.
        tokio::time::sleep(LOOK_FOR_END).await;
    }
}

/// Changes a tenant. Returns the answer once the change is in force and saved. If the daemon cannot
/// save the change, the answer says that the change ends with the daemon.
async fn change(
    name: &str,
    shared: &Shared,
    is_gone: &dyn Fn() -> bool,
    change: impl FnOnce(&mut Registry) -> Result<Changed, String>,
) -> Reply {
    // One change follows another. So if the daemon takes a change back, no other change is lost.
    let _turn = shared.changes.lock().await;
    if is_gone() {
        return no_client();
    }
    let save = || async {
        let saved = saver::save(shared).await;
        status::publish(shared).await;
        saved
    };
    match make(name, &shared.registry, save, is_gone, change).await {
        Ok((_, Saved::Failed(error))) => Reply::Error {
            message: format!(
                "the change is in force, but ends with the daemon, because the daemon cannot write {} ({error}); make room there and repeat the command",
                shared.state.lock().await.path().display()
            ),
        },
        Ok((reply, _)) => reply,
        Err(refusal) => refusal,
    }
}

/// Changes a tenant, and saves the change by `save`. Returns the reply, and the outcome of the
/// saving. If an arbiter does not answer, or if the client `is_gone` once the change is saved, takes
/// the change back, because a change that failed must not come into force later.
///
/// # Errors
///
/// Returns the reply that says why there is no change.
async fn make<S: Future<Output = Saved>>(
    name: &str,
    registry: &RefCell<Registry>,
    save: impl Fn() -> S,
    is_gone: &dyn Fn() -> bool,
    change: impl FnOnce(&mut Registry) -> Result<Changed, String>,
) -> Result<(Reply, Saved), Reply> {
    let before = registry.borrow().tenancy.tenants().get(name).map(|tenant| tenant.terms.clone());
    let changed = change(&mut registry.borrow_mut());
    let (reply, orders) = changed.map_err(|message| Reply::Error { message })?;
    let is_in_force = answers(orders).await.is_some();
    let saved = if is_in_force { save().await } else { Saved::Nothing };
    let is_gone = is_gone();
    if saved != Saved::Nothing && !is_gone {
        return Ok((reply, saved));
    }
    if let Some(before) = before {
        registry.borrow_mut().take_back(name, &before);
    }
    if !is_gone {
        return Err(no_answer());
    }
    tracing::warn!(
        tenant = name,
        "the daemon took an administrator's change back: the administrator's command stopped waiting before the change was saved"
    );
    // The file can have the change.
    save().await;
    Err(no_client())
}

/// Returns an answer, after the state file has the present allocations and plans. If the daemon
/// cannot write the file, the log says so. An agent tells the next daemon its allocations.
async fn persisted(answer: Result<Reply, String>, shared: &Shared) -> Reply {
    match answer {
        Ok(reply) => {
            saver::save(shared).await;
            reply
        }
        Err(message) => Reply::Error { message },
    }
}

fn planned(answer: Result<PlanStatus, String>) -> Reply {
    answer.map_or_else(|message| Reply::Error { message }, plan)
}

fn plan(status: PlanStatus) -> Reply {
    Reply::Plan(Box::new(status))
}

/// Returns the answer for the case that an arbiter hangs.
pub fn no_answer() -> Reply {
    Reply::Error { message: "a GPU's arbiter does not answer; see the daemon's log".to_owned() }
}

/// Returns the answer for a client that no longer reads it.
fn no_client() -> Reply {
    Reply::Error { message: "the client stopped waiting".to_owned() }
}

/// Begins to meter an adopted process from outside. Returns the reason if the daemon cannot meter
/// the process; else `None`.
async fn meter(shared: &Shared, pid: u32, tenant: Option<String>) -> Option<String> {
    let purpose = Purpose { tenant, is_managed: false };
    match timeout(metering::LIMIT, shared.metering.meter(pid, purpose)).await {
        Ok(Ok(metered)) => metered.err(),
        _ => Some("the metering thread does not answer; see the daemon's log".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::registry_with_a_tenant;
    use deepres_model::authority::Wish;
    use std::cell::Cell;

    #[test]
    fn a_change_whose_client_stops_waiting_for_a_slow_disk_is_taken_back_in_the_file_too() {
        for gives_up in [false, true] {
            let registry = RefCell::new(registry_with_a_tenant());
            let granted = || registry.borrow().tenancy.tenants().get("t").unwrap().terms.granted();
            let share_ppm = || granted().share_ppm.value;
            let before = share_ppm();
            let (is_gone, saved) = (Cell::new(false), RefCell::new(Vec::new()));
            let save = || async {
                saved.borrow_mut().push(share_ppm());
                tokio::task::yield_now().await;
                is_gone.set(gives_up);
                Saved::Anew
            };
            let set = |registry: &mut Registry| {
                registry.set("t", Wish { share_ppm: Some(700_000), ..Wish::default() }, &[])
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let made = runtime.block_on(make("t", &registry, save, &|| is_gone.get(), set));
            let (in_force, in_file) = match gives_up {
                false => (Some(700_000), vec![Some(700_000)]),
                true => (before, vec![Some(700_000), before]),
            };
            assert_eq!((made.is_err(), share_ppm()), (gives_up, in_force));
            assert_eq!(saved.into_inner(), in_file);
        }
    }
}
