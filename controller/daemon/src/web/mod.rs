//! The page for people: live figures of all tenants, and changes for administrators.
//!
//! | path | answer |
//! |---|---|
//! | `/`, `/page.css`, `/page.js` | the page, which needs nothing from elsewhere |
//! | `/events` | server-sent events: `history` once, and `status` each second |
//! | `/history?tenant=NAME` | the last ten minutes of one tenant |
//! | `/explain?tenant=NAME` | the derivation of a tenant's share, with the token |
//! | `/change` | a request of the admin socket, with the token |
//!
//! | module | job |
//! |---|---|
//! | `guard` | which requests the server answers |
//! | `history` | the figures of the last ten minutes |
//! | `figures` | the parts of the status that the page shows |
//! | `token` | the secret for changes and derivations |

mod figures;
mod guard;
mod history;
pub mod token;

pub use guard::{Token, check_host};

use crate::http::{Answer, Streams, text};
use crate::{Shared, administrators};
use deepres_model::admin::{MAX_REQUEST_BYTES, Reply, Request as Order, Status};
use guard::{Refusal, check_change, check_site, check_token};
use history::{EVERY_NS, History};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::json;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
/// The most time for a change or an explanation. A change that takes longer goes on.
const ORDER_LIMIT: Duration = Duration::from_secs(8);
/// The most web pages that may be open at a time. Each open page has one stream of events.
pub const MAX_STREAMS: usize = 8;
const NS_PER_MS: u64 = 1_000_000;

/// The content security policy of the page. The page loads nothing from other servers, and runs
/// only its own script. No other page can frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Headers of every answer: other pages may not read, frame or keep it.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The files of the page: path, type and content.
pub const FILES: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
];

/// A request to the daemon's main thread, and the way back for the reply.
pub type Asked = (Order, oneshot::Sender<Reply>);

/// The page's server, except for the sockets.
pub struct Web {
    status: watch::Receiver<Arc<Status>>,
    orders: mpsc::Sender<Asked>,
    token: Token,
    history: Mutex<History>,
    streams: Streams,
}

impl Web {
    /// Returns the server of the statuses that come through `status`. Sends requests about tenants
    /// to `orders`. At most `streams` pages may be open at a time.
    pub fn new(
        status: watch::Receiver<Arc<Status>>,
        orders: mpsc::Sender<Asked>,
        token: Token,
        streams: usize,
    ) -> Self {
        Self { status, orders, token, history: Mutex::default(), streams: Streams::new(streams) }
    }

    /// Takes in each status, and tells the open pages. Returns when no more status can come.
    pub async fn follow(&self) {
        let mut status = self.status.clone();
        loop {
            let latest = Arc::clone(&status.borrow_and_update());
            if self.history().note(&latest) && !self.streams.is_empty() {
                self.streams.send(&event("status", &figures::of(&latest)));
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // A panic leaves a history that the next sample corrects.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to a request.
    pub async fn answer<B>(&self, request: Request<B>) -> Answer
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let mut answer =
            self.route(&parts, body).await.unwrap_or_else(|(status, message)| text(status, message));
        for (name, value) in HEADERS {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    async fn route<B>(&self, parts: &Parts, body: B) -> Result<Answer, Refusal>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        check_host(&parts.uri, &parts.headers)?;
        let path = parts.uri.path();
        let is_change = path == "/change";
        let is_allowed = match parts.method {
            Method::POST => is_change,
            Method::GET | Method::HEAD => !is_change,
            _ => false,
        };
        if !is_allowed {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method");
            let allowed = if is_change { "POST" } else { "GET, HEAD" };
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            return Ok(answer);
        }
        if let Some((_, kind, content)) = FILES.iter().find(|(own, ..)| *own == path) {
            return Ok(content_of(kind, Bytes::from_static(content.as_bytes())));
        }
        check_site(parts)?;
        match path {
            "/events" if parts.method == Method::GET => self.events(),
            "/history" => {
                let name = tenant(parts)?;
                let told = json!({ "every_ms": EVERY_NS / NS_PER_MS, "series": self.history().of(&name) });
                Ok(content_of(JSON, told.to_string().into()))
            }
            "/explain" => {
                check_token(parts, &self.token)?;
                self.ask(Order::Explain { tenant: tenant(parts)? }).await
            }
            "/change" => {
                check_change(parts, &self.token)?;
                let body = Limited::new(body, MAX_REQUEST_BYTES).collect().await;
                let body = body.map_err(|_| (StatusCode::PAYLOAD_TOO_LARGE, "the change is too long"))?;
                let refused = (StatusCode::BAD_REQUEST, "the page can set, pause and resume a tenant");
                match serde_json::from_slice(&body.to_bytes()).map_err(|_| refused)? {
                    order @ (Order::Set { .. } | Order::Pause { .. } | Order::Resume { .. }) => {
                        self.ask(order).await
                    }
                    _ => Err(refused),
                }
            }
            _ => Err((StatusCode::NOT_FOUND, "the page of deepres is at /")),
        }
    }

    /// Returns the stream of events for one open page.
    fn events(&self) -> Result<Answer, Refusal> {
        let full =
            (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open; close one, and load this page again");
        let (mut stream, events) = self.streams.open().ok_or(full)?;
        let history = json!({ "every_ms": EVERY_NS / NS_PER_MS, "series": self.history().shares() });
        let latest = Arc::clone(&self.status.borrow());
        stream.send(event("history", &history));
        stream.send(event("status", &figures::of(&latest)));
        let mut answer = Response::new(Either::Right(events));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
        Ok(answer)
    }

    /// Asks the daemon's main thread. Returns its reply.
    async fn ask(&self, order: Order) -> Result<Answer, Refusal> {
        let late =
            (StatusCode::GATEWAY_TIMEOUT, "the daemon has not finished yet; the page shows the outcome");
        let (answer, reply) = oneshot::channel();
        let asked = async {
            self.orders.send((order, answer)).await.ok()?;
            reply.await.ok()
        };
        let reply = timeout(ORDER_LIMIT, asked).await.map_err(|_| late)?;
        let reply = reply.ok_or((StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending"))?;
        let told = serde_json::to_vec(&reply)
            .map_err(|_| (StatusCode::INTERNAL_SERVER_ERROR, "the daemon cannot write its reply"))?;
        Ok(content_of(JSON, told.into()))
    }
}

/// Returns an event as bytes of the stream; without data if the data cannot be written.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    // JSON has no line breaks outside of strings, and escapes them in strings.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

fn content_of(kind: &'static str, content: Bytes) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(content)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Returns the tenant's name in a request's query.
fn tenant(parts: &Parts) -> Result<String, Refusal> {
    let query = parts.uri.query().unwrap_or_default();
    let name = query.strip_prefix("tenant=").and_then(decoded);
    name.ok_or((StatusCode::BAD_REQUEST, "the query is tenant=NAME"))
}

/// Returns a text without percent-encoding; `None` if the text is malformed.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || (rest.next()? as char).to_digit(16);
                (digit()? << 4 | digit()?) as u8
            }
            byte => byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

/// Carries out the orders of pages. Returns when no more can come.
pub async fn obey(mut asked: mpsc::Receiver<Asked>, shared: Rc<Shared>) {
    while let Some((order, reply)) = asked.recv().await {
        let shared = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            // The page's server may have stopped waiting. The page then shows the outcome.
            let _ = reply.send(administrators::answer(order, &shared, &|| false).await);
        });
    }
}

/// The most orders of pages that wait for the main thread.
const MAX_ORDERS: usize = 16;

/// Returns a channel for the orders of pages.
pub fn orders() -> (mpsc::Sender<Asked>, mpsc::Receiver<Asked>) {
    mpsc::channel(MAX_ORDERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{AUTHORIZATION, HOST};

    const BYTES: usize = 60 << 10;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Returns the status and the body of the answer to a request, and the orders of the request.
    fn ask(
        method: Method,
        path: &str,
        headers: &[(HeaderName, &str)],
        body: &str,
    ) -> (StatusCode, String, Vec<Order>) {
        runtime().block_on(async {
            let (orders, mut asked) = orders();
            let (_status, status) = watch::channel(Arc::default());
            let web = Web::new(status, orders, Token::new("secret".to_owned()), 1);
            let mut request = Request::builder().method(method).uri(path).header(HOST, "localhost:9443");
            for (name, value) in headers {
                request = request.header(name, *value);
            }
            let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
            let mut got = Vec::new();
            let daemon = async {
                while let Some((order, reply)) = asked.recv().await {
                    got.push(order);
                    reply.send(Reply::Paused).unwrap();
                }
            };
            let answer = async {
                let answer = web.answer(request).await;
                drop(web);
                answer
            };
            let (answer, ()) = tokio::join!(answer, daemon);
            assert!(HEADERS.iter().all(|(name, value)| answer.headers()[name] == *value));
            let status = answer.status();
            let mut body = answer.into_body();
            let mut text = Vec::new();
            // The stream of events goes on, but the server has gone.
            while let Some(Ok(frame)) = body.frame().await {
                text.extend_from_slice(frame.data_ref().unwrap());
            }
            (status, String::from_utf8(text).unwrap(), got)
        })
    }

    const TYPE: (HeaderName, &str) = (CONTENT_TYPE, JSON);
    const TOKEN: (HeaderName, &str) = (AUTHORIZATION, "Bearer secret");
    const PAUSE: &str = r#"{"op":"pause","tenant":"a"}"#;

    #[test]
    fn the_page_is_small_and_loads_nothing_from_elsewhere() {
        let bytes: usize = FILES.iter().map(|(_, _, content)| content.len()).sum();
        assert!(bytes <= BYTES, "{bytes}");
        for (path, _, content) in FILES {
            let (status, body, orders) = ask(Method::GET, path, &[], "");
            assert_eq!((status, body.as_str(), orders.len()), (StatusCode::OK, content, 0));
            assert!(!content.contains("//cdn") && !content.contains("https://"), "{path}");
            assert!(!content.contains("innerHTML") && !content.contains("style="), "{path}");
        }
    }

    #[test]
    fn every_answer_forbids_foreign_content_frames_forms_and_copies() {
        // `ask` checks that each answer has these headers.
        assert_eq!(
            HEADERS.map(|(name, value)| format!("{name}: {value}")),
            [
                "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                 connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                 frame-ancestors 'none'",
                "x-content-type-options: nosniff",
                "referrer-policy: no-referrer",
                "cache-control: no-store",
                "cross-origin-resource-policy: same-origin",
                "cross-origin-opener-policy: same-origin",
            ]
        );
    }

    #[test]
    fn only_a_request_with_the_token_changes_a_tenant() {
        let order = |headers: &[(HeaderName, &str)], body| ask(Method::POST, "/change", headers, body);
        let (status, body, orders) = order(&[TYPE, TOKEN], PAUSE);
        assert_eq!((status, body.as_str()), (StatusCode::OK, r#"{"reply":"paused"}"#));
        assert_eq!(orders, [Order::Pause { tenant: "a".to_owned() }]);
        let site = |site| (HeaderName::from_static("sec-fetch-site"), site);
        let origin = |origin| (hyper::header::ORIGIN, origin);
        let form = (CONTENT_TYPE, "text/plain");
        for headers in [
            &[][..],
            &[TYPE],
            &[TOKEN],
            &[form, TOKEN],
            &[TYPE, (AUTHORIZATION, "Bearer guess")],
            &[TYPE, TOKEN, site("cross-site")],
            &[TYPE, TOKEN, origin("http://evil.example")],
            &[TYPE, TOKEN, (HOST, "evil.example")],
        ] {
            let (status, _, orders) = order(headers, PAUSE);
            assert!(status.is_client_error() && orders.is_empty(), "{headers:?}: {status}");
        }
        let long = format!(r#"{{"op":"pause","tenant":"{}"}}"#, "a".repeat(MAX_REQUEST_BYTES));
        for body in ["", "{}", r#"{"op":"status"}"#, r#"{"op":"adopt","pid":1}"#, &long] {
            let (status, _, orders) = order(&[TYPE, TOKEN], body);
            assert!(status.is_client_error() && orders.is_empty(), "{body}");
        }
        for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let (status, _, orders) = ask(method, "/change", &[TYPE, TOKEN], PAUSE);
            assert_eq!((status, orders.len()), (StatusCode::METHOD_NOT_ALLOWED, 0));
        }
    }

    #[test]
    fn figures_go_to_this_page_and_not_to_other_pages() {
        let (status, body, _) = ask(Method::GET, "/events", &[], "");
        assert_eq!(status, StatusCode::OK);
        assert!(
            body.starts_with("event: history\ndata: {") && body.contains("\n\nevent: status\n"),
            "{body}"
        );
        let path = "/explain?tenant=a%20%C3%A9";
        let (status, _, orders) = ask(Method::GET, path, &[], "");
        assert_eq!((status, orders.len()), (StatusCode::UNAUTHORIZED, 0), "a derivation needs the token");
        let (status, _, orders) = ask(Method::GET, path, &[TOKEN], "");
        assert_eq!((status, orders), (StatusCode::OK, vec![Order::Explain { tenant: "a é".to_owned() }]));
        let cross = (HeaderName::from_static("sec-fetch-site"), "cross-site");
        for path in ["/events", "/history?tenant=a", "/explain?tenant=a"] {
            let (status, _, orders) = ask(Method::GET, path, std::slice::from_ref(&cross), "");
            assert_eq!((status, orders.len()), (StatusCode::FORBIDDEN, 0), "{path}");
        }
        for (path, expected) in [
            ("/explain", StatusCode::BAD_REQUEST),
            ("/explain?tenant=%f", StatusCode::BAD_REQUEST),
            ("/explain?tenant=%ff", StatusCode::BAD_REQUEST),
            ("/metrics", StatusCode::NOT_FOUND),
            ("/../state.json", StatusCode::NOT_FOUND),
        ] {
            assert_eq!(ask(Method::GET, path, &[TOKEN], "").0, expected, "{path}");
        }
    }
}
