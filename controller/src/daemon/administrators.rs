//! The admin socket: answers requests of this user and root.

use super::Shared;
use super::peer::Peer;
use crate::admin::{MAX_REQUEST_BYTES, Reply, Request};
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Administrators at a time.
const MAX_CONNECTIONS: usize = 64;
/// An administrator who neither asks nor reads for so long is dropped.
const PATIENCE: Duration = Duration::from_secs(30);
/// Arbiters answer within milliseconds; this is for one that is gone.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Pause after a failed accept, so that the failure does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers administrators, for ever.
pub async fn serve(listener: std::os::unix::net::UnixListener, shared: Rc<Shared>) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let room = Rc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = listener.accept().await;
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (shared, room) = (Rc::clone(&shared), Rc::clone(&room));
        tokio::task::spawn_local(async move {
            let Ok(_place) = room.try_acquire() else { return };
            if let Err(error) = converse(stream, &shared).await {
                tracing::debug!(%error, "an administrator's connection failed");
            }
        });
    }
}

async fn converse(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let peer = Peer::of(stream.as_fd())?;
    let own = rustix::process::getuid().as_raw();
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut reading).take(MAX_REQUEST_BYTES as u64);
        let Ok(read) = timeout(PATIENCE, limited.read_until(b'\n', &mut line)).await else { return Ok(()) };
        if read? == 0 {
            return Ok(());
        }
        let reply = if peer.uid != 0 && peer.uid != own {
            Reply::Error {
                message: format!("user {} may not administer this daemon; user {own} and root may", peer.uid),
            }
        } else {
            match serde_json::from_slice(&line) {
                Ok(request) => answer(request, shared).await,
                Err(error) => Reply::Error { message: format!("not a request: {error}") },
            }
        };
        let mut text = serde_json::to_vec(&reply)?;
        text.push(b'\n');
        match timeout(PATIENCE, writing.write_all(&text)).await {
            Ok(written) => written?,
            Err(_) => return Ok(()),
        }
    }
}

async fn answer(request: Request, shared: &Shared) -> Reply {
    match request {
        Request::Status => {
            let pending = shared.registry.borrow().reports();
            let mut reports = Vec::new();
            for report in pending {
                match timeout(ANSWER_LIMIT, report).await {
                    Ok(Ok(report)) => reports.push(report),
                    _ => {
                        return Reply::Error {
                            message: "a GPU's arbiter does not answer; see the daemon's log".to_owned(),
                        };
                    }
                }
            }
            Reply::Status(Box::new(shared.registry.borrow().status(&reports)))
        }
        Request::Coverage => Reply::Coverage { processes: shared.registry.borrow().coverage() },
        Request::Set { tenant, share_ppm, memory_bytes } => {
            let set = shared.registry.borrow_mut().set(&tenant, share_ppm, memory_bytes);
            match set {
                Ok((reply, in_force)) => {
                    for answer in in_force {
                        if !matches!(timeout(ANSWER_LIMIT, answer).await, Ok(Ok(()))) {
                            return Reply::Error {
                                message: "a GPU's arbiter does not answer; see the daemon's log".to_owned(),
                            };
                        }
                    }
                    // What was acknowledged outlives the daemon.
                    super::saving::save(shared).await;
                    reply
                }
                Err(message) => Reply::Error { message },
            }
        }
    }
}
