//! A fake API server over plain HTTP on loopback: nodes, claims, and slices with versions,
//! conflicts and watches.

use http::{Method, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// The path of slices.
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// The path of claims, before the namespace.
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/";
/// The UID of each node at first.
pub const NODE_UID: &str = "9a0c6a54-0000-0000-0000-000000000001";

type Body = UnsyncBoxBody<Bytes, Infallible>;

#[derive(Default)]
struct State {
    version: u64,
    slices: BTreeMap<String, Value>,
    /// The claims, by path.
    claims: BTreeMap<String, Value>,
    /// The events of slices, each with its version.
    events: Vec<(u64, Value)>,
    /// The writes of slices: the method and the name.
    writes: Vec<String>,
    /// Whether the server drops every connection.
    is_down: bool,
    /// Whether the server lacks the feature DRAConsumableCapacity.
    lacks_parts: bool,
    /// The UID of each node, if it is not [`NODE_UID`].
    node_uid: Option<String>,
}

impl State {
    fn put(&mut self, name: &str, mut slice: Value) -> Value {
        self.version += 1;
        let kind = if self.slices.contains_key(name) { "MODIFIED" } else { "ADDED" };
        slice["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if self.lacks_parts {
            for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten() {
                device.as_object_mut().unwrap().remove("allowMultipleAllocations");
            }
        }
        self.slices.insert(name.to_owned(), slice.clone());
        self.events.push((self.version, json!({"type": kind, "object": slice.clone()})));
        slice
    }

    fn delete(&mut self, name: &str) -> Option<Value> {
        let slice = self.slices.remove(name)?;
        self.version += 1;
        self.events.push((self.version, json!({"type": "DELETED", "object": slice.clone()})));
        Some(slice)
    }
}

/// The server, on a thread of its own.
pub struct ApiServer {
    /// The address at which the server listens.
    pub uri: http::Uri,
    server: Server,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Server {
    state: Arc<Mutex<State>>,
    /// Wakes the watches.
    changed: watch::Sender<()>,
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn serve(self, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let server = self.clone();
            let answer = hyper::service::service_fn(move |request| {
                let server = server.clone();
                async move { server.answer(request).await }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer),
            );
        }
    }

    async fn answer(&self, request: http::Request<Incoming>) -> io::Result<http::Response<Body>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if self.state().is_down {
            return Err(io::Error::other("the server is down"));
        }
        let path = head.uri.path();
        let query = Query::of(head.uri.query().unwrap_or_default());
        let name = path.strip_prefix(SLICES).map(|rest| rest.trim_start_matches('/'));
        Ok(match (head.method, name) {
            (Method::GET, Some("")) if query.watches => self.watch(query),
            (Method::GET, Some("")) => self.list(&query),
            (Method::POST, Some("")) => self.write(None, &body),
            (Method::PUT, Some(name)) => self.write(Some(name), &body),
            (Method::DELETE, Some(name)) => {
                let mut state = self.state();
                state.writes.push(format!("DELETE {name}"));
                let is_there = state.delete(name).is_some();
                self.changed.send_replace(());
                if is_there { found(&json!({"kind": "Status", "status": "Success"})) } else { missing(name) }
            }
            (Method::GET, None) if path.starts_with(CLAIMS) => {
                self.state().claims.get(path).map_or_else(|| missing(path), found)
            }
            (Method::GET, None) if path.starts_with("/api/v1/nodes/") => {
                let name = path.rsplit('/').next();
                let uid = self.state().node_uid.clone().unwrap_or_else(|| NODE_UID.to_owned());
                found(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": uid}}))
            }
            (method, _) => fault(StatusCode::FORBIDDEN, &format!("{method} {path} is not allowed")),
        })
    }

    fn list(&self, query: &Query) -> http::Response<Body> {
        let state = self.state();
        let items: Vec<&Value> = state.slices.values().filter(|slice| query.selects(slice)).collect();
        found(&json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList",
            "metadata": {"resourceVersion": state.version.to_string()}, "items": items}))
    }

    fn write(&self, name: Option<&str>, slice: &Value) -> http::Response<Body> {
        let own = slice["metadata"]["name"].as_str().unwrap().to_owned();
        let mut state = self.state();
        let method = if name.is_some() { "PUT" } else { "POST" };
        state.writes.push(format!("{method} {own}"));
        match (name, state.slices.get(&own)) {
            (None, Some(_)) => return fault(StatusCode::CONFLICT, "there is a slice of this name"),
            (Some(name), None) => return missing(name),
            (Some(_), Some(old))
                if old["metadata"]["resourceVersion"] != slice["metadata"]["resourceVersion"] =>
            {
                return fault(StatusCode::CONFLICT, "the slice is another by now");
            }
            _ => {}
        }
        let slice = state.put(&own, slice.clone());
        self.changed.send_replace(());
        found(&slice)
    }

    fn watch(&self, query: Query) -> http::Response<Body> {
        let (send, events) = mpsc::unbounded_channel::<String>();
        let (server, mut changed) = (self.clone(), self.changed.subscribe());
        tokio::spawn(async move {
            let mut seen = query.version;
            loop {
                {
                    let state = server.state();
                    let news = state.events.iter().filter(|(version, _)| *version > seen);
                    for (_, event) in news.filter(|(_, event)| query.selects(&event["object"])) {
                        if send.send(format!("{event}\n")).is_err() {
                            return;
                        }
                    }
                    seen = seen.max(state.version);
                    if state.is_down {
                        return;
                    }
                }
                tokio::select! {
                    woken = changed.changed() => if woken.is_err() { return },
                    () = send.closed() => return,
                }
            }
        });
        let frames = UnboundedReceiverStream::new(events).map(|line| Ok(Frame::data(Bytes::from(line))));
        http::Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

/// The query of a request.
struct Query {
    watches: bool,
    version: u64,
    /// The fields that objects must have.
    fields: Vec<(String, String)>,
}

impl Query {
    fn of(text: &str) -> Self {
        let value = |name: &str| text.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let fields = value("fieldSelector").unwrap_or_default().replace("%3D", "=").replace("%2C", ",");
        let fields = fields.split(',').filter_map(|field| field.split_once('='));
        Self {
            watches: value("watch").is_some(),
            version: value("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0),
            fields: fields.map(|(name, value)| (name.replace('.', "/"), value.to_owned())).collect(),
        }
    }

    fn selects(&self, object: &Value) -> bool {
        let has = |(field, value): &(String, String)| {
            object.pointer(&format!("/{field}")).and_then(Value::as_str) == Some(value.as_str())
        };
        !self.fields.is_empty() && self.fields.iter().all(has)
    }
}

fn found(object: &Value) -> http::Response<Body> {
    http::Response::new(Full::new(Bytes::from(object.to_string())).boxed_unsync())
}

fn missing(name: &str) -> http::Response<Body> {
    fault(StatusCode::NOT_FOUND, &format!("{name} not found"))
}

fn fault(code: StatusCode, message: &str) -> http::Response<Body> {
    // The client takes an object for missing by the reason, and not by the code.
    let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "" };
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16()});
    let mut response = found(&status);
    *response.status_mut() = code;
    response
}

impl ApiServer {
    pub fn start() -> Self {
        let server = Server { state: Arc::default(), changed: watch::Sender::new(()) };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let own = server.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = own.serve(TcpListener::from_std(listener).unwrap()) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { uri, server, stop: Some(stop), thread: Some(thread) }
    }

    /// Lets the server go or come back.
    pub fn set_down(&self, is_down: bool) {
        self.server.state().is_down = is_down;
        self.server.changed.send_replace(());
    }

    /// Lets the server lack the feature DRAConsumableCapacity.
    pub fn lack_parts(&self) {
        self.server.state().lacks_parts = true;
    }

    /// Lets each node have another UID, as after it was deleted and came back.
    pub fn set_node_uid(&self, uid: &str) {
        self.server.state().node_uid = Some(uid.to_owned());
    }

    /// Returns a slice.
    pub fn slice(&self, name: &str) -> Option<Value> {
        self.server.state().slices.get(name).cloned()
    }

    /// Returns the names of all slices.
    pub fn slices(&self) -> Vec<String> {
        self.server.state().slices.keys().cloned().collect()
    }

    /// Returns the writes of slices so far.
    pub fn writes(&self) -> Vec<String> {
        self.server.state().writes.clone()
    }

    /// Changes a slice, or makes it, as another client does.
    pub fn put_slice(&self, name: &str, slice: Value) {
        self.server.state().put(name, slice);
        self.server.changed.send_replace(());
    }

    /// Deletes a slice, as another client does.
    pub fn delete_slice(&self, name: &str) {
        self.server.state().delete(name).expect("the slice is there");
        self.server.changed.send_replace(());
    }

    /// Makes or changes a claim.
    pub fn put_claim(&self, namespace: &str, name: &str, claim: Value) {
        self.server.state().claims.insert(format!("{CLAIMS}{namespace}/resourceclaims/{name}"), claim);
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
