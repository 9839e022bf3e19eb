//! The daemon's page in Debian's Chromium: its content, its keys, and pages of strangers beside it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;

use deepres_e2e::browser::Browser;
use deepres_e2e::host::free_address;
use deepres_e2e::prelude::*;
use deepres_e2e::venv;

/// The tenant of all tests.
const TENANT: &str = "train";
/// The variable for the folder in which the test leaves pictures of the page, for the README.
const PICTURES: &str = "DEEPRES_PICTURES";
/// The further tenants of the pictures: name, options, C client and its arguments. Each begins this
/// long after the tenant before it, so the chart of the last minute shows how the shares change.
const IN_PICTURES: [(&str, &[&str], &str, &[&str]); 2] = [
    ("finetune", &["--share", "30%"], "backlog", &BACKLOG),
    ("search", &["--share", "20%", "--slo", "50ms"], "pace", &["busy_1000usx4", "sync", "sleep:20000"]),
];
/// The arguments of a job that always has work.
const BACKLOG: [&str; 4] = ["--kernel", "busy_1000us", "--sync-every", "50"];
const BEGINS_AFTER: Duration = Duration::from_secs(20);
/// The preferences of colours.
const COLOURS: [&str; 2] = ["light", "dark"];
/// The most pages that may be open at a time (docs/web.md).
const OPEN_PAGES: usize = 8;
/// Most presses of a key until the focus is at the wanted place.
const MOST_PRESSES: usize = 60;

/// Returns a host with a daemon that serves the page, and a tenant that always has work.
fn served() -> (Host, Process, Process, SocketAddr) {
    let address = free_address();
    let (host, daemon) = Host::new().config(&format!("web = \"{address}\"\n")).with_daemon();
    let job = job(&host, TENANT, &["--share", "40%"], "backlog", &BACKLOG);
    (host, daemon, job, address)
}

fn job(host: &Host, tenant: &str, options: &[&str], client: &str, arguments: &[&str]) -> Process {
    let options = [&["--name", tenant], options].concat();
    host.start(host.run(&options, c_client(client), arguments), "ready")
}

fn browser(host: &Host, options: &[&str]) -> Browser {
    Browser::start(host.path(), options).expect("the browser starts")
}

#[test]
#[ignore = "deep: needs Debian's Chromium"]
fn the_page_shows_the_tenants_in_light_and_dark_without_an_error() {
    let (host, _daemon, _job, address) = served();
    let mut browser = browser(&host, &[]);
    browser.open(&format!("http://{address}/")).expect("the page opens");
    let chart = format!("document.getElementById('chart').ariaLabel.includes('now: {TENANT} ')");
    browser.await_true(&chart).expect("the chart has the tenant, also as a text");
    let row = format!(
        "[...document.querySelectorAll('#tenants tbody th')].some((row) => row.innerText === '{TENANT}')"
    );
    browser.await_true(&row).expect("the table has the tenant");
    let pictures = std::env::var_os(PICTURES).map(PathBuf::from);
    let mut others = Vec::new();
    if pictures.is_some() {
        for (tenant, options, client, arguments) in IN_PICTURES {
            thread::sleep(BEGINS_AFTER);
            others.push(job(&host, tenant, options, client, arguments));
        }
        thread::sleep(BEGINS_AFTER);
        browser.value("document.getElementById('span').value = 60").expect("a choice");
        let chosen = "document.getElementById('span').dispatchEvent(new Event('input'))";
        browser.value(chosen).expect("the chart changes");
    }
    for colours in COLOURS {
        browser.prefer(colours).expect("the browser has colours");
        let folder = pictures.as_deref().unwrap_or(host.path());
        browser.picture(&folder.join(format!("page-{colours}.png"))).expect("a picture");
    }
    assert_eq!(browser.errors(), Vec::<&Value>::new());
}

/// Runs axe-core. Returns the flaws: for each, the rule and the elements. If an element names a
/// label or a description that is missing or comes twice, axe-core asks for a review. The test
/// counts such an element as a flaw.
const FLAWS: &str = r#"axe.run(document, { preload: false }).then(({ violations, incomplete }) => {
  const unsure = incomplete.filter(({ id }) => ["aria-valid-attr-value", "duplicate-id-aria"].includes(id));
  return [...violations, ...unsure].map(({ id, nodes }) => [id, ...nodes.map(({ html }) => html)]);
})"#;

#[test]
#[ignore = "deep: needs Debian's Chromium"]
fn the_page_is_accessible_in_light_and_dark_with_and_without_a_chosen_tenant() {
    let (host, _daemon, _job, address) = served();
    let axe = venv::axe().and_then(|script| Ok(fs::read_to_string(script)?)).expect("axe-core");
    let mut browser = browser(&host, &[]);
    browser.open(&format!("http://{address}/")).expect("the page opens");
    browser.await_true("document.querySelector('#tenants tbody button')").expect("a tenant comes");
    browser.value(&axe).expect("axe-core loads");
    for is_chosen in [false, true] {
        if is_chosen {
            browser.value("document.querySelector('#tenants tbody button').click()").expect("a row");
            for shown in ["#curves canvas", "#explain p"] {
                browser.await_true(&format!("document.querySelector('{shown}')")).expect(shown);
            }
        }
        for colours in COLOURS {
            browser.prefer(colours).expect("the browser has colours");
            let flaws = browser.value(FLAWS).expect("axe-core checks the page");
            assert_eq!(flaws, json!([]), "{colours}, with a chosen tenant: {is_chosen}");
        }
    }
}

#[test]
#[ignore = "deep: needs Debian's Chromium"]
fn keys_alone_choose_a_tenant_explain_it_and_pause_it_with_the_token() {
    let (host, _daemon, _job, address) = served();
    let token = fs::read_to_string(host.deepres_dir().join("web-token")).expect("the daemon wrote a token");
    let mut browser = browser(&host, &[]);
    browser.open(&format!("http://{address}/")).expect("the page opens");
    browser.await_true("document.querySelector('#tenants tbody button')").expect("a tenant comes");
    let tab_to = |browser: &mut Browser, wanted: &str| {
        for _ in 0..MOST_PRESSES {
            browser.press("Tab").expect("a key");
            if browser.value(&format!("document.activeElement.matches(`{wanted}`)")).expect("a focus")
                == json!(true)
            {
                return;
            }
        }
        panic!("no key leads to {wanted}");
    };
    tab_to(&mut browser, "#tenants tbody button");
    browser.press("Enter").expect("a key");
    browser.await_true("document.getElementById('explain').innerText.includes('token')").expect("a refusal");
    browser.await_true("document.querySelectorAll('#curves canvas').length === 3").expect("the last minutes");
    tab_to(&mut browser, "#pause");
    browser.press("Enter").expect("a key");
    browser.await_true("document.getElementById('outcome').innerText.includes('token')").expect("a refusal");
    assert_eq!(host.tenant(TENANT)["paused"], json!(false));
    browser.value("document.getElementById('token').focus()").expect("a field");
    browser.type_text(token.trim()).expect("a text");
    tab_to(&mut browser, "#pause");
    browser
        .await_true(
            "document.getElementById('explain').innerText.includes('the share that the tenant asked for')",
        )
        .expect("an explanation");
    browser.press("Enter").expect("a key");
    browser.await_true("document.getElementById('outcome').innerText === 'paused'").expect("a pause");
    assert_eq!(host.tenant(TENANT)["paused"], json!(true));
    browser.press("Escape").expect("a key");
    browser.await_true("document.getElementById('details').hidden").expect("the tenant's part closes");
}

/// Opens the page's stream of events, and reads its beginning.
fn events(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the daemon listens");
    let request = format!("GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the daemon reads");
    let mut head = [0; 15];
    stream.read_exact(&mut head).expect("the daemon answers");
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    stream
}

#[test]
#[ignore = "deep: needs Debian's Chromium"]
fn a_refused_page_connects_later_and_an_entry_for_a_tenant_does_not_stay_for_the_next() {
    let (host, _daemon, _job, address) = served();
    let others: Vec<TcpStream> = (0..OPEN_PAGES).map(|_| events(address)).collect();
    let mut browser = browser(&host, &[]);
    browser.open(&format!("http://{address}/")).expect("the page opens");
    let says = |text: &str| format!("document.getElementById('state').innerText.includes('{text}')");
    browser.await_true(&says("refuses one more open page")).expect("a refusal");
    drop(others);
    browser.await_true(&says("live")).expect("the page tries again");
    browser.await_true("document.querySelector('#tenants tbody button')").expect("a tenant comes");
    let choose = "document.querySelector('#tenants tbody button').click()";
    browser.value(choose).expect("a row");
    browser.value("document.querySelector('[name=share]').value = '90%'").expect("a field");
    browser.value(choose).expect("a row");
    let entry = browser.value("document.querySelector('[name=share]').value").expect("a field");
    assert_eq!(entry, json!(""), "the next tenant must not get the share by mistake");
}

/// A page that tries to read the figures and to pause the tenant, in all ways of a browser without
/// the token. Shows `refused` for each way that failed at once.
fn hostile(address: SocketAddr) -> String {
    format!(
        r#"<!doctype html><title>hostile</title><body><ul id="list"></ul>
<form id="form" method="post" enctype="text/plain" action="http://{address}/change" target="frame">
<input name='{{"op":"pause","tenant":"{TENANT}","x":"' value='"}}'></form>
<iframe name="frame"></iframe><iframe src="http://{address}/"></iframe>
<script>
const note = (text) => document.getElementById("list").append(text + "; ");
const body = '{{"op":"pause","tenant":"{TENANT}"}}', to = "http://{address}";
for (const mode of ["no-cors", "cors"])
  for (const type of ["text/plain", "application/json"])
    for (const guess of [{{}}, {{ Authorization: "Bearer guess" }}])
      fetch(to + "/change", {{ method: "POST", mode, headers: {{ "Content-Type": type, ...guess }}, body, credentials: "include" }})
        .then((answer) => note(answer.type === "opaque" ? "sent" : "READ")).catch(() => note("refused"));
for (const path of ["/events", "/history?tenant={TENANT}", "/explain?tenant={TENANT}", "/"])
  fetch(to + path).then((answer) => answer.text()).then(() => note("READ")).catch(() => note("refused"));
navigator.sendBeacon(to + "/change", new Blob([body], {{ type: "text/plain" }}));
document.getElementById("form").submit();
const events = new EventSource(to + "/events");
for (const name of ["message", "history", "status"]) events.addEventListener(name, () => note("READ"));
</script></body>"#
    )
}

/// Serves a page at any path of a free address. Returns the address.
fn serve(page: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    // The thread ends with the tests' process.
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A browser can open connections that it does not use.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let _ = stream.read(&mut [0; 8192]);
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                page.len()
            );
            let _ = stream.write_all((head + &page).as_bytes());
        }
    });
    address
}

#[test]
#[ignore = "deep: needs Debian's Chromium"]
fn a_hostile_page_in_the_same_browser_reads_nothing_and_changes_nothing() {
    let (host, _daemon, _job, address) = served();
    let stranger = serve(hostile(address));
    let mut browser = browser(&host, &["--host-resolver-rules=MAP evil.example 127.0.0.1"]);
    // By another port of this machine, and by a name of the stranger's.
    for url in [format!("http://{stranger}/"), format!("http://evil.example:{}/", stranger.port())] {
        browser.open(&url).expect("the page opens");
        // Four requests that say so can be sent, and eight are refused at once.
        browser
            .await_true("document.getElementById('list').textContent.split('; ').length > 12")
            .expect("all tries end");
        let tries = browser.value("document.getElementById('list').textContent").expect("a list");
        let tries = tries.as_str().expect("a text");
        assert!(tries.contains("refused") && !tries.contains("READ"), "{url}: {tries}");
        assert_eq!(host.tenant(TENANT)["paused"], json!(false), "{url}");
        // If the page ran in the stranger's frame, it would hold one of the streams of events. A
        // frame that the browser refuses to fill also counts as loaded.
        browser.await_true("document.readyState === 'complete'").expect("the frames are loaded");
        let _others: Vec<TcpStream> = (0..OPEN_PAGES).map(|_| events(address)).collect();
    }
    // After DNS rebinding, the stranger's name leads to the daemon.
    for path in ["/", "/events", &format!("/explain?tenant={TENANT}")] {
        browser.open(&format!("http://evil.example:{}{path}", address.port())).expect("an answer");
        browser.await_true("document.body.innerText.includes('answers only to localhost')").expect(path);
        let page = browser.value("document.body.innerText").expect("a page");
        assert!(!page.to_string().contains(TENANT), "{page}");
    }
}
