//! The HTTP server of the metrics and of the page, in a thread of its own at a low priority. The
//! thread reads the latest status, and asks no other thread for figures. Only changes and
//! derivations of shares, which need the page's token, ask the daemon's main thread. So no client
//! without the token holds up the daemon.

use crate::metrics::{self, Pages};
use crate::web::{self, Asked, MAX_STREAMS, Token, Web};
use deepres_model::admin::Status;
use deepres_model::config::WebAddress;
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

/// The most connections at a time at each address. Further clients wait until a connection ends.
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
/// Pause between two tries to listen at the address, which another program can have.
const BIND_PAUSE: Duration = Duration::from_secs(3);
/// The priority of the thread. The daemon's other threads and the jobs come first.
const NICE: i32 = 10;
/// The most clients in the kernel's queue of a Unix socket.
const BACKLOG: i32 = 16;
/// The mode of the page's Unix socket: only the daemon's user and root may connect.
const SOCKET_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The most events that wait for a page: the first two, which go out together. While the page reads
/// none, the daemon leaves out further events. So a page on a slow line shows late figures, but
/// none that waited for long.
const WAITING_EVENTS: usize = 2;
/// The most events in a row that the daemon leaves out for a page. The daemon then ends the page's
/// connection, because the page is gone. An event comes each second, and a history of 1,000 tenants
/// (3 MB) takes 24 s at 1 Mbit/s.
const MOST_LEFT_OUT: u32 = 30;
const PLAIN: &str = "text/plain; charset=utf-8";

/// An HTTP answer, whose body is whole or a stream of events.
pub type Answer = Response<Either<Full<Bytes>, Events>>;

/// Returns an answer with a message for people.
pub fn text(status: StatusCode, message: &str) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::from(format!("{message}\n")))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PLAIN));
    answer
}

/// The streams of events to open pages.
pub struct Streams {
    most: usize,
    open: Mutex<Vec<Stream>>,
}

/// The server's end of a stream of events to an open page.
#[derive(Debug, Clone)]
pub struct Stream {
    events: mpsc::Sender<Bytes>,
    /// The events in a row that the daemon left out.
    left_out: u32,
    /// The mark by which the page's end sees that the server has not ended the stream.
    _alive: Arc<()>,
}

impl Stream {
    /// Sends an event, or leaves the event out if others wait. Returns whether the page still
    /// reads.
    pub fn send(&mut self, event: Bytes) -> bool {
        self.left_out = if self.events.try_send(event).is_ok() { 0 } else { self.left_out + 1 };
        self.left_out <= MOST_LEFT_OUT
    }
}

impl Streams {
    /// Returns an empty set of streams. At most `most` streams may be open at a time.
    pub fn new(most: usize) -> Self {
        Self { most, open: Mutex::default() }
    }

    fn open_ones(&self) -> MutexGuard<'_, Vec<Stream>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|stream| !stream.events.is_closed());
        open
    }

    /// Opens a stream. Returns both of its ends, or `None` if there are too many streams.
    pub fn open(&self) -> Option<(Stream, Events)> {
        let mut open = self.open_ones();
        if open.len() >= self.most {
            return None;
        }
        let (events, receiver) = mpsc::channel(WAITING_EVENTS);
        let alive = Arc::new(());
        let server = Arc::downgrade(&alive);
        let stream = Stream { events, left_out: 0, _alive: alive };
        open.push(stream.clone());
        Some((stream, Events { receiver, server }))
    }

    /// Returns whether no stream is open.
    pub fn is_empty(&self) -> bool {
        self.open_ones().is_empty()
    }

    /// Sends an event to all streams. Ends the streams whose pages do not read.
    pub fn send(&self, event: &Bytes) {
        self.open_ones().retain_mut(|stream| stream.send(event.clone()));
    }
}

/// The body of an answer that goes on until the client or the server ends it.
#[derive(Debug)]
pub struct Events {
    receiver: mpsc::Receiver<Bytes>,
    /// The server's end of the stream.
    server: Weak<()>,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.receiver.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

/// The page: its address, its token, and its channels to the rest of the daemon.
#[derive(Debug)]
pub struct Page {
    /// The address.
    pub address: WebAddress,
    /// The latest status.
    pub status: watch::Receiver<Arc<Status>>,
    /// The channel to the daemon's main thread, for changes and derivations of shares.
    pub orders: mpsc::Sender<Asked>,
    /// The secret that a request for a change must carry.
    pub token: String,
}

/// The HTTP server of the metrics and of the page. A drop of this value ends the server.
pub struct Server {
    shown: Option<watch::Sender<metrics::Shown>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve metrics at an address, and the page. If an address is not free, the server
    /// tries again until the address is free. Returns `None` without anything to serve.
    ///
    /// # Errors
    /// The system's error if the server's thread cannot start.
    pub fn start(metrics: Option<SocketAddr>, page: Option<Page>) -> io::Result<Option<Self>> {
        if metrics.is_none() && page.is_none() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (shown, status) = watch::channel(None);
        // If an address is free, clients reach it from the daemon's start on.
        let metrics = metrics.map(|address| {
            let place = Place::Tcp(address);
            (runtime.block_on(place.listen()), place)
        });
        let page = page.map(|page| {
            let place = match &page.address {
                WebAddress::Tcp(address) => Place::Tcp(*address),
                WebAddress::Unix(path) => Place::Unix(path.clone()),
            };
            (runtime.block_on(place.listen()), place, page)
        });
        let run = move || {
            // A higher priority does no harm but to the other threads.
            let _ = rustix::process::setpriority_process(None, NICE);
            runtime.block_on(serve(metrics, page, status));
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(run)?;
        Ok(Some(Self { shown: Some(shown), thread: Some(thread) }))
    }

    /// Shows a status in the metrics from now on. The state file must already have the status's
    /// counters.
    pub fn show(&self, status: Arc<Status>) {
        if let Some(shown) = &self.shown {
            shown.send_replace(Some(status));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server ends when the sender is gone.
        self.shown = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

/// Serves until the sender of `status` is gone.
async fn serve(
    metrics: Option<(io::Result<Listener>, Place)>,
    page: Option<(io::Result<Listener>, Place, Page)>,
    mut status: watch::Receiver<metrics::Shown>,
) {
    let is_local = matches!(&metrics, Some((_, Place::Tcp(address))) if address.ip().is_loopback());
    let metrics_pages = Arc::new(Pages::new(status.clone(), is_local));
    let ahead = Arc::clone(&metrics_pages);
    let ended = pin!(async {
        while status.changed().await.is_ok() {
            ahead.make_due(std::time::Instant::now());
        }
    });
    let metrics = async {
        let Some((first, place)) = metrics else { return std::future::pending().await };
        let listener = place.bound(first, BIND_PAUSE, "metrics").await;
        let answer = move |request: Request<Incoming>| {
            let answer = metrics_pages.answer(&request).map(Either::Left);
            std::future::ready(answer)
        };
        accept(&listener, answer).await
    };
    let page = async {
        let Some((first, place, page)) = page else { return std::future::pending().await };
        let Page { status, orders, token, .. } = page;
        let web = Arc::new(Web::new(status, orders, Token::new(token), MAX_STREAMS));
        let follower = Arc::clone(&web);
        let served = async {
            let listener = place.bound(first, BIND_PAUSE, "the page").await;
            let answer = move |request: Request<Incoming>| {
                let web = Arc::clone(&web);
                async move { web.answer(request).await }
            };
            accept(&listener, answer).await
        };
        tokio::select! {
            never = served => never,
            () = follower.follow() => {}
        }
    };
    tokio::select! {
        () = ended => {}
        () = metrics => {}
        () = page => {}
    }
}

/// A place at which the server listens.
#[derive(Debug)]
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Place {
    async fn listen(&self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(address) => Listener::Tcp(TcpListener::bind(*address).await?),
            Self::Unix(path) => Listener::Unix(unix_listener(path)?, path.clone()),
        })
    }

    /// Returns a listener at this place. `first` is the result of the first try to listen. Before
    /// each further try, the function waits for `pause`.
    async fn bound(&self, first: io::Result<Listener>, pause: Duration, what: &str) -> Listener {
        let mut tried = first;
        let mut is_told = false;
        loop {
            match tried {
                Ok(listener) => {
                    tracing::info!(address = %self, "the daemon serves {what}");
                    return listener;
                }
                Err(error) if !std::mem::replace(&mut is_told, true) => tracing::warn!(
                    address = %self,
                    %error,
                    "the daemon cannot serve {what} and tries again every few seconds; see docs/metrics.md and docs/web.md"
                ),
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            tried = self.listen().await;
        }
    }
}

/// Makes a Unix socket that only the daemon's user and root may use. Replaces the socket of a dead
/// daemon.
fn unix_listener(path: &Path) -> io::Result<UnixListener> {
    if StdUnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The kernel gives the file the mode of the socket, so the file never has another mode.
    fchmod(&socket, SOCKET_MODE)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// A socket at which the server listens. The drop removes the file of a Unix socket.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Somebody may have removed the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A connection of a client: a stream of bytes in both directions.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener, _) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Accepts connections, and answers their requests. Never returns.
async fn accept<F, A>(listener: &Listener, answer: F)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Answer> + Send,
{
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = Arc::clone(&room).acquire_owned().await;
        let Ok(connection) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            converse(connection, answer).await;
            drop(place);
        });
    }
}

/// Answers one request.
pub async fn converse<C, F, A>(connection: C, answer: F)
where
    C: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answer>,
{
    let stream = OnceLock::<Weak<()>>::new();
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(request);
        let stream = &stream;
        async move {
            let answer = answer.await;
            if let Either::Right(events) = answer.body() {
                stream.get_or_init(|| events.server.clone());
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut served = pin!(
        http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(MAX_HEAD_BYTES)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .serve_connection(TokioIo::new(connection), service)
    );
    loop {
        match timeout(CONNECTION_LIMIT, &mut served).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tracing::debug!(%error, "an HTTP connection failed"),
            // A page that does not read its events has lost the server's end.
            Err(_) if stream.get().is_some_and(|server| server.strong_count() > 0) => {}
            Err(_) => return tracing::debug!("an HTTP client was too slow"),
        }
    }
}

/// Serves one connection of a client that sends `input`: the page if `is_page`, else the metrics.
/// Returns the answer, and the orders that reached the daemon. For tests and fuzz targets.
pub fn exchange(input: &[u8], is_page: bool, token: &str) -> (Vec<u8>, Vec<deepres_model::admin::Request>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Default::default();
    };
    runtime.block_on(async {
        let (_shown, shown) = watch::channel(Some(Arc::default()));
        let (_status, status) = watch::channel(Arc::default());
        let (orders, mut asked) = web::orders();
        let pages = Pages::new(shown, true);
        // A stream of events would not end.
        let web = Web::new(status, orders, Token::new(token.to_owned()), 0);
        let (mut client, server) = tokio::io::duplex(input.len() + MAX_HEAD_BYTES);
        let served = async move {
            let answer = |request: Request<Incoming>| {
                let (web, pages) = (&web, &pages);
                async move {
                    match is_page {
                        true => web.answer(request).await,
                        false => pages.answer(&request).map(Either::Left),
                    }
                }
            };
            converse(server, answer).await;
        };
        let mut answer = Vec::new();
        let client = async {
            // The server can end the connection before it has read everything.
            let _ = client.write_all(input).await;
            let _ = client.shutdown().await;
            let _ = client.read_to_end(&mut answer).await;
        };
        let mut obeyed = Vec::new();
        let daemon = async {
            while let Some((order, reply)) = asked.recv().await {
                obeyed.push(order);
                let _ = reply.send(deepres_model::admin::Reply::Paused);
            }
        };
        tokio::join!(served, client, daemon);
        (answer, obeyed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_server_waits_for_its_address_and_leaves_the_address_at_its_end() {
        let runtime = runtime();
        runtime.block_on(async {
            let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let place = Place::Tcp(taken.local_addr().unwrap());
            let refused = place.listen().await;
            assert!(refused.is_err());
            let pause = Duration::from_millis(10);
            let leave = async {
                tokio::time::sleep(2 * pause).await;
                drop(taken);
            };
            let (listener, ()) = tokio::join!(place.bound(refused, pause, "metrics"), leave);
            assert!(matches!(listener, Listener::Tcp(_)));
        });
        drop(runtime);
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        drop(Server::start(Some(address), None).unwrap());
        drop(taken);
        for _ in 0..2 {
            let _server = Server::start(Some(address), None).unwrap();
            assert!(std::net::TcpStream::connect(address).is_ok());
        }
        assert!(Server::start(None, None).unwrap().is_none());
    }

    #[test]
    fn a_unix_socket_is_the_users_own_and_replaces_only_the_socket_of_a_dead_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.sock");
        runtime().block_on(async {
            let place = Place::Unix(path.clone());
            let listener = place.listen().await.unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(place.listen().await.is_err(), "somebody listens");
            // A dead server leaves its socket behind.
            let kept = folder.path().join("kept");
            std::fs::hard_link(&path, &kept).unwrap();
            drop(listener);
            assert!(!path.exists());
            std::fs::rename(&kept, &path).unwrap();
            drop(place.listen().await.unwrap());
            std::fs::write(&path, "a file").unwrap();
            assert!(place.listen().await.is_err() && path.exists(), "no other file is removed");
        });
    }

    #[test]
    fn a_page_that_reads_nothing_loses_its_stream() {
        let streams = Streams::new(2);
        let (_first, events) = streams.open().unwrap();
        let (_, gone) = streams.open().unwrap();
        assert!(streams.open().is_none(), "there are too many");
        drop(gone);
        let (_, other) = streams.open().unwrap();
        let unread = WAITING_EVENTS + MOST_LEFT_OUT as usize;
        (0..unread).for_each(|_| streams.send(&Bytes::from_static(b"event")));
        assert!(!streams.is_empty());
        streams.send(&Bytes::from_static(b"event"));
        assert!(streams.is_empty());
        drop(_first);
        assert_eq!((events.server.strong_count(), other.server.strong_count()), (0, 0));
    }

    #[test]
    fn a_page_on_a_slow_line_keeps_its_stream_and_gets_late_events_only() {
        let streams = Streams::new(1);
        let (_stream, mut events) = streams.open().unwrap();
        for number in 0..1_000u32 {
            streams.send(&Bytes::from(number.to_string()));
            // The page reads one of twenty events.
            if number % 20 == 19 {
                let read = events.receiver.try_recv().unwrap();
                let read: u32 = std::str::from_utf8(&read).unwrap().parse().unwrap();
                assert!(number - read < 20 * (WAITING_EVENTS as u32 + 1), "{read} at {number}");
            }
        }
        assert!(!streams.is_empty());
    }
}
