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
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// The most connections at a time. Further clients wait until a connection ends.
const MAX_CONNECTIONS: usize = 16;
/// The most time until a client has sent the head of its request. Prometheus sends the head at
/// once. The limit is short, so that silent clients do not keep others out.
const HEAD_LIMIT: Duration = Duration::from_secs(1);
/// The most time for a connection: one request and its answer. A client that is slower gets no
/// answer, so that it does not keep others out. Prometheus gives up after ten seconds too.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of a request's head. Prometheus sends some hundred. hyper allows no lower limit.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Pause after a failed accept, so that the failure does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Pause between two tries to listen at the address, which another program may have.
const BIND_PAUSE: Duration = Duration::from_secs(3);
/// The priority of the thread. The daemon's other threads and the jobs come first.
const NICE: i32 = 10;

/// The status that the metrics show; `None` before the first.
type Shown = Option<Arc<Status>>;

/// The server of metrics. Its drop ends the server.
pub struct Metrics {
    shown: Option<watch::Sender<Shown>>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Starts to serve metrics at an address. If the address is not free, the server tries again
    /// until the address is free.
    ///
    /// # Errors
    /// The system's error if the server's thread cannot start.
    pub fn start(address: SocketAddr) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // If the address is free, clients reach the metrics from the daemon's start on.
        let first = runtime.block_on(TcpListener::bind(address));
        let (shown, status) = watch::channel(None);
        let run = move || {
            // A higher priority does no harm but to the other threads.
            let _ = rustix::process::setpriority_process(None, NICE);
            runtime.block_on(serve(address, first, status));
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(run)?;
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

/// Returns a listener at an address. `first` is the outcome of the first try. After each failure, a
/// pause precedes the next try.
async fn bound(address: SocketAddr, first: io::Result<TcpListener>, pause: Duration) -> TcpListener {
    let mut tried = first;
    let mut is_told = false;
    loop {
        match tried {
            Ok(listener) => {
                tracing::info!(%address, "serving metrics");
                return listener;
            }
            Err(error) if !std::mem::replace(&mut is_told, true) => tracing::warn!(
                %address,
                %error,
                "the daemon cannot serve metrics and tries again every few seconds; see docs/metrics.md"
            ),
            Err(_) => {}
        }
        tokio::time::sleep(pause).await;
        tried = TcpListener::bind(address).await;
    }
}

/// Serves metrics until the sender of `status` is gone.
async fn serve(address: SocketAddr, first: io::Result<TcpListener>, mut status: watch::Receiver<Shown>) {
    let pages = Arc::new(Pages::new(status.clone()));
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut ended = pin!(async { while status.changed().await.is_ok() {} });
    let listener = tokio::select! {
        listener = bound(address, first, BIND_PAUSE) => listener,
        () = &mut ended => return,
    };
    loop {
        let accepted = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut ended => return,
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
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection for metrics failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_waits_for_its_address_and_leaves_the_address_at_its_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = taken.local_addr().unwrap();
            let refused = TcpListener::bind(address).await;
            assert!(refused.is_err());
            let pause = Duration::from_millis(10);
            let leave = async {
                tokio::time::sleep(2 * pause).await;
                drop(taken);
            };
            let (listener, ()) = tokio::join!(bound(address, refused, pause), leave);
            assert_eq!(listener.local_addr().unwrap(), address);
        });
        drop(runtime);
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        drop(Metrics::start(address).unwrap());
        drop(taken);
        for _ in 0..2 {
            let _server = Metrics::start(address).unwrap();
            assert!(std::net::TcpStream::connect(address).is_ok());
        }
    }
}
