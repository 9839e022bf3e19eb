//! The answer to a request for metrics.

use super::Shown;
use super::page::{Format, page};
use crate::web::check_host;
use deepres_model::admin::Status;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Method, Request, Response, StatusCode};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The path of the metrics.
const PATH: &str = "/metrics";
const PLAIN: &str = "text/plain; charset=utf-8";
const GZIP: &str = "gzip";

/// The time within which the next status mostly comes.
const NEXT_STATUS: Duration = Duration::from_millis(1_100);

/// Pages made from the latest status. Further requests until the next status get the same bytes.
///
/// With a thousand tenants, the daemon makes a page in some ten milliseconds. A client that asks
/// again and again, as Prometheus does, finds the page made already.
pub struct Pages {
    status: watch::Receiver<Shown>,
    /// Whether the server listens at a loopback address. Only there does the server know its names.
    is_local: bool,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    of: Shown,
    pages: Vec<(Wanted, Bytes)>,
    asked: Vec<(Wanted, Asked)>,
}

/// The times of the latest requests for a page, the latest first.
#[derive(Debug, Clone, Copy)]
struct Asked(Instant, Option<Instant>, Option<Instant>);

impl Asked {
    /// Returns the time at which the next request probably comes, and the time after which the
    /// requests repeat. The first request tells neither.
    ///
    /// Two clients can take turns, because Prometheus often runs twice. So the requests repeat
    /// after two of them: also those of one client.
    fn next(&self) -> Option<(Instant, Duration)> {
        match *self {
            Self(_, None, _) => None,
            Self(latest, Some(before), None) => Some((latest + (latest - before), 2 * (latest - before))),
            Self(latest, Some(before), Some(first)) => Some((before + (latest - first), latest - first)),
        }
    }

    /// Returns whether the next request probably comes after `now` and before the next status. A
    /// client that has not come for a whole repetition is gone.
    fn is_due(&self, now: Instant) -> bool {
        let is_near = |(next, repeats): (Instant, Duration)| {
            now + NEXT_STATUS >= next && now <= next + repeats + NEXT_STATUS
        };
        self.next().is_some_and(is_near)
    }
}

/// The form in which a client wants the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    format: Format,
    is_compressed: bool,
}

impl Wanted {
    fn of(headers: &HeaderMap) -> Self {
        let has = |name: HeaderName, wanted: &str| {
            let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
            let mut choices = values.flat_map(|value| value.split(','));
            choices.any(|choice| is_accepted(choice, wanted))
        };
        let is_open = has(ACCEPT, Format::OPEN_METRICS);
        Self {
            format: if is_open { Format::OpenMetrics } else { Format::Prometheus },
            is_compressed: has(ACCEPT_ENCODING, GZIP),
        }
    }
}

/// Returns whether a choice of a client is `wanted`. A choice with the weight 0 is a refusal.
fn is_accepted(choice: &str, wanted: &str) -> bool {
    let mut parts = choice.split(';').map(str::trim);
    let is_wanted = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(wanted));
    let is_refusal = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or_default();
        name.eq_ignore_ascii_case("q") && value.parse::<f32>().is_ok_and(|weight| weight <= 0.0)
    };
    is_wanted && !parts.any(is_refusal)
}

impl Pages {
    /// Returns the pages of the statuses that come through `status`. If `is_local`, only requests
    /// that name this machine get them.
    pub fn new(status: watch::Receiver<Shown>, is_local: bool) -> Self {
        Self { status, is_local, made: Mutex::default() }
    }

    /// Returns the answer to a request.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if self.is_local
            && let Err((status, message)) = check_host(request.uri(), request.headers())
        {
            return plain(status, message);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "the metrics can only be read");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        if request.uri().path() != PATH {
            return plain(StatusCode::NOT_FOUND, "the metrics of deepres are at /metrics");
        }
        let Some(status) = self.status.borrow().clone() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "the daemon is starting");
        };
        let wanted = Wanted::of(request.headers());
        let Ok(bytes) = self.asked_page(status, wanted, Instant::now()) else {
            return plain(StatusCode::INTERNAL_SERVER_ERROR, "the daemon cannot write its metrics");
        };
        let mut answer = Response::new(Full::new(bytes));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(wanted.format.content_type()));
        if wanted.is_compressed {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(GZIP));
        }
        answer
    }

    /// Returns the bytes of a page for which a client asks, and notes the time.
    fn asked_page(&self, status: Arc<Status>, wanted: Wanted, now: Instant) -> io::Result<Bytes> {
        let mut made = self.made();
        let known = made.asked.iter_mut().find(|(form, _)| *form == wanted);
        match known {
            Some((_, asked)) => *asked = Asked(now, Some(asked.0), asked.1),
            None => made.asked.push((wanted, Asked(now, None, None))),
        }
        made.page(status, wanted)
    }

    /// Makes the pages of the latest status that clients probably ask for before the next status.
    pub fn make_due(&self, now: Instant) {
        let Some(status) = self.status.borrow().clone() else { return };
        let mut made = self.made();
        let due: Vec<_> = made.asked.iter().filter(|(_, asked)| asked.is_due(now)).collect();
        let due: Vec<Wanted> = due.into_iter().map(|(wanted, _)| *wanted).collect();
        for wanted in due {
            // A client that asks for the page gets the error.
            let _ = made.page(Arc::clone(&status), wanted);
        }
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        // A panic while a page was made left no half-made page.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Made {
    /// Returns the bytes of a page.
    fn page(&mut self, status: Arc<Status>, wanted: Wanted) -> io::Result<Bytes> {
        if !self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &status)) {
            (self.of, self.pages) = (Some(Arc::clone(&status)), Vec::new());
        }
        if let Some((_, bytes)) = self.pages.iter().find(|(form, _)| *form == wanted) {
            return Ok(bytes.clone());
        }
        let text = page(status, wanted.format).map_err(io::Error::other)?;
        let bytes = if wanted.is_compressed {
            let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
            compressed.write_all(text.as_bytes())?;
            compressed.finish()?.into()
        } else {
            Bytes::from(text)
        };
        self.pages.push((wanted, bytes.clone()));
        Ok(bytes)
    }
}

/// Returns an answer with a message for people.
fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PLAIN));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HOST;

    fn answer(
        pages: &Pages,
        method: Method,
        path: &str,
        headers: &[(HeaderName, &str)],
    ) -> Response<Full<Bytes>> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        pages.answer(&request.body(()).unwrap())
    }

    #[test]
    fn a_client_gets_the_format_and_the_compression_that_it_accepts() {
        let (shown, status) = watch::channel(None);
        let pages = Pages::new(status, false);
        let get = |headers: &[(HeaderName, &str)]| answer(&pages, Method::GET, PATH, headers);
        assert_eq!(get(&[]).status(), StatusCode::SERVICE_UNAVAILABLE);
        shown.send_replace(Some(Arc::default()));
        let plain = get(&[]);
        assert_eq!(plain.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
        assert!(!plain.headers().contains_key(CONTENT_ENCODING));
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
        let open = get(&[(ACCEPT, prometheus), (ACCEPT_ENCODING, "deflate, GZIP;q=0.5")]);
        assert!(open.headers()[CONTENT_TYPE].to_str().unwrap().starts_with(Format::OPEN_METRICS));
        assert_eq!(open.headers()[CONTENT_ENCODING], GZIP);
        assert_eq!(pages.made.lock().unwrap().pages.len(), 2);
        get(&[]);
        assert_eq!(pages.made.lock().unwrap().pages.len(), 2, "the same bytes serve again");
        shown.send_replace(Some(Arc::default()));
        get(&[]);
        assert_eq!(pages.made.lock().unwrap().pages.len(), 1);
    }

    #[test]
    fn a_client_does_not_get_what_it_refuses_with_the_weight_0() {
        let wanted = |weight: &str| {
            let mut headers = HeaderMap::new();
            let formats = format!("{};version=1.0.0;{weight}, text/plain", Format::OPEN_METRICS);
            headers.insert(ACCEPT, HeaderValue::from_str(&formats).unwrap());
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_str(&format!("gzip;{weight}")).unwrap());
            Wanted::of(&headers)
        };
        for weight in ["q=0", "q=0.0", " Q=0.000"] {
            let plain = Wanted { format: Format::Prometheus, is_compressed: false };
            assert_eq!(wanted(weight), plain, "{weight}");
        }
        for weight in ["q=1", "q=0.001"] {
            let open = Wanted { format: Format::OpenMetrics, is_compressed: true };
            assert_eq!(wanted(weight), open, "{weight}");
        }
    }

    #[test]
    fn at_a_loopback_address_only_a_request_that_names_this_machine_gets_the_metrics() {
        let (_shown, status) = watch::channel(Some(Arc::default()));
        for (is_local, host, expected) in [
            (true, "127.0.0.1:9442", StatusCode::OK),
            (true, "localhost:9442", StatusCode::OK),
            (true, "evil.example:9442", StatusCode::MISDIRECTED_REQUEST),
            (false, "gpu-server:9442", StatusCode::OK),
        ] {
            let pages = Pages::new(status.clone(), is_local);
            assert_eq!(answer(&pages, Method::GET, PATH, &[(HOST, host)]).status(), expected, "{host}");
        }
    }

    #[test]
    fn the_page_is_ready_when_a_client_comes_again_as_usual() {
        let (shown, status) = watch::channel(Some(Arc::default()));
        let pages = Pages::new(status, false);
        let wanted = Wanted { format: Format::Prometheus, is_compressed: true };
        let every = Duration::from_secs(15);
        let mut now = Instant::now();
        let show = |now| {
            shown.send_replace(Some(Arc::default()));
            pages.make_due(now);
            pages.made().of.as_ref().is_some_and(|of| Arc::ptr_eq(of, shown.borrow().as_ref().unwrap()))
        };
        for _ in 0..2 {
            let status = pages.status.borrow().clone().unwrap();
            pages.asked_page(status, wanted, now).unwrap();
            assert!(!show(now + every / 2), "the client does not ask so soon");
            now += every;
        }
        assert!(show(now - NEXT_STATUS / 2) && show(now + NEXT_STATUS / 2));
        assert!(!show(now + 4 * every), "the client is gone");
    }

    #[test]
    fn the_page_is_ready_for_two_clients_that_take_turns() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut asked = Asked(at(0), None, None);
        for seconds in [3, 15, 18, 30] {
            asked = Asked(at(seconds), Some(asked.0), asked.1);
        }
        assert!(asked.is_due(at(32)) && !asked.is_due(at(31)), "the other client comes after 3 s");
        asked = Asked(at(33), Some(asked.0), asked.1);
        assert!(asked.is_due(at(44)) && !asked.is_due(at(43)), "the first client comes after 12 s");
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        let (_shown, status) = watch::channel(Some(Arc::default()));
        let pages = Pages::new(status, false);
        for (method, path, expected) in [
            (Method::HEAD, "/metrics?name[]=up", StatusCode::OK),
            (Method::GET, "/", StatusCode::NOT_FOUND),
            (Method::GET, "/metrics/../state.json", StatusCode::NOT_FOUND),
            (Method::POST, PATH, StatusCode::METHOD_NOT_ALLOWED),
        ] {
            assert_eq!(answer(&pages, method, path, &[]).status(), expected, "{path}");
        }
    }
}
