//! Connections to the HTTP server of the metrics and of the page.

use deepres_daemon::exchange;
use deepres_model::admin::Request;

/// The secret for changes. No input contains it by accident.
const TOKEN: &str = "Cgd4Zf1v";

/// The first byte chooses between the metrics and the page, and the rest is what the client sends.
/// For any bytes of the client, the server answers in HTTP or not at all. The server passes on no
/// change without the token.
pub fn run(data: &[u8]) {
    let Some((service, input)) = data.split_first() else { return };
    let is_page = service & 1 == 1;
    let (answer, orders) = exchange(input, is_page, TOKEN);
    // A client of HTTP/1.0 gets an answer of this version.
    let is_http = [b"HTTP/1.0 ", b"HTTP/1.1 "].iter().any(|version| answer.starts_with(*version));
    assert!(answer.is_empty() || is_http, "the server does not speak HTTP");
    let has_token = input.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes());
    for order in orders {
        assert!(is_page, "the metrics change nothing: {order:?}");
        match order {
            Request::Explain { .. } => {}
            Request::Set { .. } | Request::Pause { .. } | Request::Resume { .. } => {
                assert!(has_token, "a change without the token: {order:?}");
            }
            other => panic!("the page may not ask for {other:?}"),
        }
    }
}
