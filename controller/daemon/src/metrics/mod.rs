//! Serves the metrics over HTTP, in a thread of their own. A scrape asks no other thread: it reads
//! the latest status whose counters the state file has. So no counter falls when a daemon is killed
//! and the next daemon goes on from the state file.
//!
//! | module | job |
//! |---|---|
//! | `page` | a status as text |
//! | `answer` | the answer to a request, with pages that are kept for the next request |

mod answer;
mod page;

use answer::Pages;
use deepres_model::admin::Status;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// The most connections at a time. Further clients wait until a connection ends.
const MAX_CONNECTIONS: usize = 16;
/// The most time for a connection: one request and its answer. A client that is slower gets no
/// answer, so that it does not keep others out. Prometheus gives up after ten seconds too.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of a request's head. Prometheus sends some hundred. hyper allows no lower limit.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Pause after a failed accept, so that the failure does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The priority of the thread. The daemon's other threads and the jobs come first.
const NICE: i32 = 10;

/// The reason why the daemon cannot serve metrics.
#[derive(Debug, thiserror::Error)]
#[error("the daemon cannot serve metrics at {address}: {source}; see docs/metrics.md")]
pub struct MetricsError {
    address: SocketAddr,
    source: io::Error,
}

/// The status that the metrics show; `None` before the first.
type Shown = Option<Arc<Status>>;

/// The server of metrics. Its drop ends the server.
pub struct Metrics {
    shown: Option<watch::Sender<Shown>>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Starts to serve metrics at an address.
    pub fn start(address: SocketAddr) -> Result<Self, MetricsError> {
        let failed = |source| MetricsError { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (shown, status) = watch::channel(None);
        let run = move || {
            // A higher priority does no harm but to the other threads.
            let _ = rustix::process::setpriority_process(None, NICE);
            if let Err(error) = runtime.block_on(serve(listener, status)) {
                tracing::error!(%error, "the daemon no longer serves metrics");
            }
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(run).map_err(failed)?;
        tracing::info!(%address, "serving metrics");
        Ok(Self { shown: Some(shown), thread: Some(thread) })
    }

    /// Shows a status from now on. The state file must already have the status's counters.
    pub fn show(&self, status: Arc<Status>) {
        if let Some(shown) = &self.shown {
            shown.send_replace(Some(status));
        }
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // The server ends when the sender is gone.
        self.shown = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

/// Serves metrics until the sender of `status` is gone.
async fn serve(listener: TcpListener, mut status: watch::Receiver<Shown>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let pages = Arc::new(Pages::new(status.clone()));
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut ended = pin!(async { while status.changed().await.is_ok() {} });
    loop {
        let accepted = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut ended => return Ok(()),
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            if timeout(CONNECTION_LIMIT, converse(stream, &pages)).await.is_err() {
                tracing::debug!("a client of the metrics was too slow");
            }
            drop(place);
        });
    }
}

/// Answers one request.
async fn converse(stream: TcpStream, pages: &Pages) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = pages.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection for metrics failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_named_and_a_server_that_ended_leaves_its_address() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let refused = Metrics::start(address).err().unwrap().to_string();
        assert!(refused.contains(&address.to_string()), "{refused}");
        drop(taken);
        for _ in 0..2 {
            drop(Metrics::start(address).unwrap());
        }
    }
}
