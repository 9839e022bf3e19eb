//! gRPC over Unix sockets, as the kubelet and its plugins speak it. tonic writes and reads the
//! messages, and hyper the connections.

use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::{Request, Response, Status, Streaming, client, server};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// The authority of requests. Over a Unix socket, it names no machine.
const AUTHORITY: &str = "http://localhost";
/// The time that a connection and the answer to a call may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of an answer, as the kubelet sends them at most.
const MOST_BYTES: usize = 16 << 20;
/// Pause after a failed accept, so that the failure does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A call with its body, as it comes over a connection.
pub type Call = http::Request<Incoming>;
/// The answer to a [`Call`].
pub type Answer = http::Response<Body>;

/// A message of gRPC.
pub trait Message: prost::Message + Default + Send + Sync + 'static {}

impl<M: prost::Message + Default + Send + Sync + 'static> Message for M {}

/// The service behind a socket.
pub trait Serve: Send + Sync + 'static {
    /// Answers a call, by [`unary`], [`streaming`] or [`unknown`].
    fn serve(self: Arc<Self>, call: Call) -> impl Future<Output = Answer> + Send;
}

/// Serves the connections of a socket until the future is dropped, which also ends the connections.
pub async fn serve(listener: UnixListener, service: Arc<impl Serve>) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let service = Arc::clone(&service);
        let answer = hyper::service::service_fn(move |call| {
            let service = Arc::clone(&service);
            async move { Ok::<_, Infallible>(service.serve(call).await) }
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), answer);
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection failed");
            }
        });
    }
}

/// A function in the form in which tonic calls it.
struct Handler<F>(F);

impl<F, M, R, Fut> Service<Request<M>> for Handler<F>
where
    F: FnMut(M) -> Fut,
    Fut: Future<Output = Result<R, Status>> + Send + 'static,
{
    type Response = Response<R>;
    type Error = Status;
    type Future = BoxFuture<Response<R>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<M>) -> Self::Future {
        let answer = self.0(request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

/// Answers a call that has one answer.
pub async fn unary<M: Message, R: Message, Fut>(call: Call, answer: impl FnMut(M) -> Fut) -> Answer
where
    Fut: Future<Output = Result<R, Status>> + Send + 'static,
{
    server::Grpc::new(ProstCodec::<R, M>::default()).unary(Handler(answer), call).await
}

/// Answers a call that has a stream of answers.
pub async fn streaming<M: Message, R: Message, S, Fut>(call: Call, answer: impl FnMut(M) -> Fut) -> Answer
where
    S: Stream<Item = Result<R, Status>> + Send + 'static,
    Fut: Future<Output = Result<S, Status>> + Send + 'static,
{
    server::Grpc::new(ProstCodec::<R, M>::default()).server_streaming(Handler(answer), call).await
}

/// Answers a call that the service does not have.
pub fn unknown(call: &Call) -> Answer {
    Status::unimplemented(format!("there is no call {}", call.uri().path())).into_http()
}

/// The client's end of a connection, in the form in which tonic uses it.
struct Sender(SendRequest<Body>);

impl Service<http::Request<Body>> for Sender {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A connection to a service.
pub struct Client(client::Grpc<Sender>);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the service at a socket.
    ///
    /// # Errors
    /// The socket cannot be reached.
    pub async fn connect(socket: &Path) -> Result<Self, Status> {
        Self::connect_as(socket, http::Uri::from_static(AUTHORITY)).await
    }

    /// Does the same as [`Self::connect`], with another authority of the requests.
    async fn connect_as(socket: &Path, authority: http::Uri) -> Result<Self, Status> {
        let failed = |error: &dyn std::fmt::Display| {
            Status::unavailable(format!("cannot reach {} ({error})", socket.display()))
        };
        let stream = within(UnixStream::connect(socket)).await?.map_err(|error| failed(&error))?;
        let handshake = Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
        let (sender, connection) = within(handshake).await?.map_err(|error| failed(&error))?;
        // The task ends when the client is dropped.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection failed");
            }
        });
        let client = client::Grpc::with_origin(Sender(sender), authority);
        Ok(Self(client.max_decoding_message_size(MOST_BYTES)))
    }

    /// Calls the service, and returns its one answer.
    ///
    /// # Errors
    /// The service's error, or the connection failed.
    pub async fn unary<M: Message, R: Message>(
        &mut self,
        path: &'static str,
        message: M,
    ) -> Result<R, Status> {
        self.ready().await?;
        let path = http::uri::PathAndQuery::from_static(path);
        let answer = self.0.unary(Request::new(message), path, ProstCodec::default());
        within(answer).await?.map(Response::into_inner)
    }

    /// Calls the service, and returns the stream of its answers.
    ///
    /// # Errors
    /// The service's error, or the connection failed.
    pub async fn streaming<M: Message, R: Message>(
        &mut self,
        path: &'static str,
        message: M,
    ) -> Result<Streaming<R>, Status> {
        self.ready().await?;
        let path = http::uri::PathAndQuery::from_static(path);
        let answer = self.0.server_streaming(Request::new(message), path, ProstCodec::default());
        within(answer).await?.map(Response::into_inner)
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.0.ready().await.map_err(|error| Status::unavailable(format!("the connection ended ({error})")))
    }
}

/// Bounds the time of an answer.
async fn within<T>(answer: impl Future<Output = T>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("no answer within {} s", PATIENCE.as_secs()));
    timeout(PATIENCE, answer).await.map_err(late)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{CdiDevice, Empty};

    /// A service whose answer has a text of this length.
    struct Wordy(usize);

    impl Serve for Wordy {
        async fn serve(self: Arc<Self>, call: Call) -> Answer {
            let answer = move |Empty {}| {
                let name = "x".repeat(self.0);
                async { Ok(CdiDevice { name }) }
            };
            unary(call, answer).await
        }
    }

    /// Asks a [`Wordy`] service with this authority. Returns the length of the answer.
    async fn answer(length: usize, authority: &'static str) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(async move { match serve(listener, Arc::new(Wordy(length))).await {} });
        let mut client = Client::connect_as(&socket, http::Uri::from_static(authority)).await.unwrap();
        let answer: CdiDevice = client.unary("/test/Call", Empty {}).await.unwrap();
        server.abort();
        answer.name.len()
    }

    #[tokio::test]
    async fn the_list_of_a_node_with_many_devices_is_not_too_long() {
        assert_eq!(answer(MOST_BYTES / 2, AUTHORITY).await, MOST_BYTES / 2);
    }

    #[tokio::test]
    async fn a_path_before_an_at_sign_is_an_authority() {
        assert_eq!(answer(1, "http://%2Fvar%2Flib%2Fdeepres.dev@reg.sock").await, 1);
    }
}
