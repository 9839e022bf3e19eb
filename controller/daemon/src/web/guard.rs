//! Decides which requests the page's server answers. A browser runs pages of strangers beside the
//! page of this daemon. A stranger's page can make the browser send requests to this machine, and
//! can make its own name lead to this machine (DNS rebinding). So the server checks:
//!
//! - The request names this machine by a loopback address or as `localhost`. After DNS rebinding,
//!   the browser sends the stranger's name.
//! - For figures and changes, the browser does not say that another page made the request.
//! - A change has a type of content that a form cannot have, and the token in a header that only
//!   this page's script sets. The server allows no other origin (CORS), so a browser sends no such
//!   header for a stranger's page.
//! - The derivation of a share needs the token too, because the arbiters compute it. So a user who
//!   is no administrator cannot keep the arbiters busy.

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{StatusCode, Uri};
use std::net::IpAddr;

/// The header in which a browser says which page made a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The values of [`FETCH_SITE`] for this page, and for an address that the user entered.
const OWN_SITES: [&str; 2] = ["same-origin", "none"];
const JSON: &str = "application/json";
const BEARER: &str = "Bearer ";

/// A refusal: the status and the message for the user.
pub type Refusal = (StatusCode, &'static str);

/// The secret with which a request may change tenants and ask for derivations of shares.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Returns the token with this text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns whether a text is the token. The time of the comparison says nothing about the
    /// token.
    fn is(&self, text: &str) -> bool {
        let (own, text) = (self.0.as_bytes(), text.as_bytes());
        let differences = own.iter().zip(text).fold(0, |sum, (own, other)| sum | (own ^ other));
        own.len() == text.len() && differences == 0
    }
}

/// Returns the only value of a header; `None` without a value, with several, or if it is no text.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).into_iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

/// Checks that a request names this machine. At a loopback address, the server of the metrics
/// checks this too.
///
/// # Errors
/// The refusal.
pub fn check_host(uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let authority = uri.authority().map(|authority| authority.as_str());
    let is_own = match (only(headers, HOST), authority) {
        (Some(host), None) => is_loopback(host),
        (Some(host), Some(authority)) => host == authority && is_loopback(host),
        (None, _) => false,
    };
    is_own.then_some(()).ok_or((
        StatusCode::MISDIRECTED_REQUEST,
        "this server answers only to localhost and loopback addresses; use http://localhost with the server's port",
    ))
}

/// Returns whether an authority names this machine, with any port.
fn is_loopback(authority: &str) -> bool {
    let Ok(parsed) = authority.parse::<Authority>() else { return false };
    let host = parsed.host();
    if authority.contains('@') {
        return false;
    }
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Checks that no other page made a request for figures or a change.
///
/// # Errors
/// The refusal.
pub fn check_site(parts: &Parts) -> Result<(), Refusal> {
    let headers = &parts.headers;
    let is_own_site = !headers.contains_key(FETCH_SITE)
        || only(headers, FETCH_SITE).is_some_and(|site| OWN_SITES.contains(&site));
    let is_own_origin = !headers.contains_key(ORIGIN)
        || only(headers, ORIGIN).zip(only(headers, HOST)).is_some_and(|(origin, host)| {
            origin.strip_prefix("http://").is_some_and(|origin| origin.eq_ignore_ascii_case(host))
        });
    if is_own_site && is_own_origin {
        return Ok(());
    }
    Err((StatusCode::FORBIDDEN, "another page made this request"))
}

/// Checks that a request may change tenants.
///
/// # Errors
/// The refusal.
pub fn check_change(parts: &Parts, token: &Token) -> Result<(), Refusal> {
    if only(&parts.headers, CONTENT_TYPE) != Some(JSON) {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "a change is application/json"));
    }
    check_token(parts, token)
}

/// Checks that a request may ask the daemon's other threads.
///
/// # Errors
/// The refusal.
pub fn check_token(parts: &Parts, token: &Token) -> Result<(), Refusal> {
    let given = only(&parts.headers, AUTHORIZATION).and_then(|value| value.strip_prefix(BEARER));
    if given.is_some_and(|given| token.is(given)) {
        return Ok(());
    }
    Err((
        StatusCode::UNAUTHORIZED,
        "this needs the daemon's token; the daemon's log names the file with the token",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        let check_host = |parts: &Parts| check_host(&parts.uri, &parts.headers);
        for host in ["localhost", "LOCALHOST:9443", "127.0.0.1:9443", "127.8.9.1:1", "[::1]:9443"] {
            assert!(check_host(&parts("/", &[("host", host)])).is_ok(), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9443",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "evil.example@localhost",
            "10.0.0.1:9443",
            "0.0.0.0:9443",
            "[::]:9443",
            "",
            "localhost/",
            "localhost localhost",
        ] {
            assert!(check_host(&parts("/", &[("host", host)])).is_err(), "{host}");
        }
        assert!(check_host(&parts("/", &[])).is_err());
        assert!(check_host(&parts("/", &[("host", "localhost"), ("host", "evil.example")])).is_err());
        assert!(check_host(&parts("http://evil.example/", &[("host", "localhost")])).is_err());
        assert!(check_host(&parts("http://localhost:9443/", &[("host", "localhost:9443")])).is_ok());
    }

    #[test]
    fn requests_that_another_page_made_are_refused() {
        let host = ("host", "localhost:9443");
        for own in [
            &[host][..],
            &[host, ("sec-fetch-site", "same-origin"), ("origin", "http://localhost:9443")],
            &[host, ("sec-fetch-site", "none")],
        ] {
            assert!(check_site(&parts("/events", own)).is_ok(), "{own:?}");
        }
        for other in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "http://evil.example"),
            ("origin", "http://localhost:8080"),
            ("origin", "https://localhost:9443"),
            ("origin", "null"),
        ] {
            assert!(check_site(&parts("/events", &[host, other])).is_err(), "{other:?}");
        }
        let twice = [host, ("origin", "http://localhost:9443"), ("origin", "http://evil.example")];
        assert!(check_site(&parts("/events", &twice)).is_err());
    }

    #[test]
    fn a_change_needs_the_token_and_a_type_that_no_form_has() {
        let token = Token::new("secret".to_owned());
        let change = |kind, authorization| {
            let headers = [("content-type", kind), ("authorization", authorization)];
            check_change(&parts("/change", &headers), &token)
        };
        assert!(change("application/json", "Bearer secret").is_ok());
        for authorization in ["Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret", ""] {
            assert!(change("application/json", authorization).is_err(), "{authorization}");
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
            assert!(change(kind, "Bearer secret").is_err(), "{kind}");
        }
        assert!(check_change(&parts("/change", &[("content-type", "application/json")]), &token).is_err());
    }
}
