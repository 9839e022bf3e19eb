//! Debian's Chromium under the control of a test, by the DevTools protocol over two pipes.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

/// The program.
const PROGRAM: &str = "chromium";
/// The descriptors from which Chromium reads requests, and to which it writes answers.
const PIPES: [i32; 2] = [3, 4];
/// The end of a message.
const END: u8 = 0;
/// Time within which Chromium answers, however busy the machine is.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks at the page.
const POLL: Duration = Duration::from_millis(100);
/// The categories of the trace with the drawn frames.
const TRACED: &str = "disabled-by-default-devtools.timeline.frame";
/// The event of the trace for each frame that the page drew anew.
const DRAWN: &str = "DrawFrame";
/// Counts the frames in which a canvas has other pixels than in the frame before. The browser calls
/// `look` in each frame, after the functions that the page asked for earlier.
const COUNT_CHANGES: &str = r#"((canvas) => {
  let last = [];
  const look = () => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const pixels = new Uint32Array(data.buffer);
    if (pixels.findLastIndex((pixel, at) => pixel !== last[at]) >= 0) window.changes++;
    last = pixels;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"#;

/// A running browser with one page. The drop ends the browser.
pub struct Browser {
    child: Child,
    requests: File,
    answers: BufReader<File>,
    sent: u64,
    /// The session with the page; `None` before there is a page.
    session: Option<Value>,
    events: Vec<Value>,
}

/// Returns whether the machine has the browser.
pub fn is_there() -> bool {
    let mut version = Command::new(PROGRAM);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

impl Browser {
    /// Starts a browser with an empty page. The browser keeps its files in `folder`, and takes more
    /// options.
    ///
    /// # Errors
    /// The system's or the browser's error.
    pub fn start(folder: &Path, options: &[&str]) -> io::Result<Self> {
        let (from, requests) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (answers, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut command = Command::new(PROGRAM);
        // The tests run as root, and in containers without user namespaces.
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--remote-debugging-pipe", "--no-first-run", "--window-size=1280,1400"]);
        command.arg(format!("--user-data-dir={}", folder.join("chromium").display()));
        command.args(options).arg("about:blank").env("HOME", folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let pipes = [from, to];
        let give = move || give(&pipes);
        // SAFETY: between fork and exec the closure makes system calls only, and allocates nothing.
        unsafe { command.pre_exec(give) };
        let child = command.spawn()?;
        drop(command);
        let (requests, answers) = (requests.into(), BufReader::new(answers.into()));
        let mut browser = Self { child, requests, answers, sent: 0, session: None, events: Vec::new() };
        let page = browser.ask("Target.createTarget", json!({ "url": "about:blank" }))?;
        let target = json!({ "targetId": page["targetId"], "flatten": true });
        browser.session = Some(browser.ask("Target.attachToTarget", target)?["sessionId"].clone());
        for domain in ["Page", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Sends a request of the DevTools protocol. Returns its result.
    ///
    /// # Errors
    /// The system's or the browser's error.
    pub fn ask(&mut self, method: &str, parameters: Value) -> io::Result<Value> {
        self.sent += 1;
        let mut request = json!({ "id": self.sent, "method": method, "params": parameters });
        if let Some(session) = self.session.as_ref().filter(|_| !method.starts_with("Tracing.")) {
            request["sessionId"] = session.clone();
        }
        let mut bytes = request.to_string().into_bytes();
        bytes.push(END);
        self.requests.write_all(&bytes)?;
        loop {
            let message = self.message()?;
            if message["id"] != self.sent {
                self.events.push(message);
            } else if message["error"].is_null() {
                return Ok(message["result"].clone());
            } else {
                return Err(io::Error::other(format!("{method}: {}", message["error"])));
            }
        }
    }

    /// Returns the next message.
    fn message(&mut self) -> io::Result<Value> {
        let until = Instant::now() + ANSWER_LIMIT;
        let mut bytes = Vec::new();
        while bytes.last() != Some(&END) {
            if self.answers.buffer().is_empty() {
                let left = until.saturating_duration_since(Instant::now());
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                let answers = self.answers.get_ref().as_fd();
                if poll(&mut [PollFd::new(&answers, PollFlags::IN)], Some(&left))? == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            let there = self.answers.fill_buf()?;
            if there.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = there.iter().position(|byte| *byte == END).map_or(there.len(), |end| end + 1);
            bytes.extend_from_slice(&there[..taken]);
            self.answers.consume(taken);
        }
        bytes.pop();
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Opens an address in the page.
    ///
    /// # Errors
    /// The system's or the browser's error.
    pub fn open(&mut self, url: &str) -> io::Result<()> {
        self.ask("Page.navigate", json!({ "url": url })).map(drop)
    }

    /// Returns the value of an expression in the page, also of a promise.
    ///
    /// # Errors
    /// The system's error, or the error that the expression throws.
    pub fn value(&mut self, expression: &str) -> io::Result<Value> {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.ask("Runtime.evaluate", asked)?;
        match &answer["exceptionDetails"] {
            Value::Null => Ok(answer["result"]["value"].clone()),
            thrown => Err(io::Error::other(format!("{expression}: {thrown}"))),
        }
    }

    /// Waits until an expression in the page is true.
    ///
    /// # Errors
    /// The system's or the browser's error, or that the expression does not become true.
    pub fn await_true(&mut self, expression: &str) -> io::Result<()> {
        let until = Instant::now() + ANSWER_LIMIT;
        // The page may not be there yet.
        let tried =
            format!("(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()");
        while self.value(&tried)? != json!(true) {
            if Instant::now() > until {
                let page = self.value("document.body.innerText")?;
                return Err(io::Error::other(format!("{expression} does not become true: {page}")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Presses a key of this name, for example `Tab`.
    ///
    /// # Errors
    /// The system's or the browser's error.
    pub fn press(&mut self, key: &str) -> io::Result<()> {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            other => return Err(io::Error::other(format!("an unknown key {other}"))),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.ask("Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    /// Types a text.
    ///
    /// # Errors
    /// The system's or the browser's error.
    pub fn type_text(&mut self, text: &str) -> io::Result<()> {
        self.ask("Input.insertText", json!({ "text": text })).map(drop)
    }

    /// Shows the page with this preference of colours: `light` or `dark`.
    ///
    /// # Errors
    /// The system's or the browser's error.
    pub fn prefer(&mut self, colours: &str) -> io::Result<()> {
        let features = json!([{ "name": "prefers-color-scheme", "value": colours }]);
        self.ask("Emulation.setEmulatedMedia", json!({ "features": features })).map(drop)
    }

    /// Writes a picture of the page, without the empty room below its main part, into a file.
    ///
    /// # Errors
    /// The system's or the browser's error.
    pub fn picture(&mut self, file: &Path) -> io::Result<()> {
        let [width, height] = ["innerWidth", "document.querySelector('main').getBoundingClientRect().bottom"]
            .map(|length| self.value(length));
        let clip = json!({ "x": 0, "y": 0, "width": width?, "height": height?, "scale": 1 });
        let picture = self.ask("Page.captureScreenshot", json!({ "format": "png", "clip": clip }))?;
        let mut decode = Command::new("base64");
        decode.arg("--decode").stdin(Stdio::piped()).stdout(File::create(file)?);
        let mut decode = decode.spawn()?;
        if let Some(mut input) = decode.stdin.take() {
            input.write_all(picture["data"].as_str().unwrap_or_default().as_bytes())?;
        }
        if decode.wait()?.success() { Ok(()) } else { Err(io::Error::other("the picture is malformed")) }
    }

    /// Returns the errors that the page has logged so far.
    pub fn errors(&self) -> Vec<&Value> {
        let is_error = |event: &&Value| match event["method"].as_str() {
            Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
            Some("Runtime.exceptionThrown") => true,
            _ => false,
        };
        self.events.iter().filter(is_error).collect()
    }

    /// Returns the frames per second in which a canvas of the page changed in a time. The function
    /// counts no more frames than the page drew anew by the browser's trace.
    ///
    /// # Errors
    /// The system's or the browser's error.
    pub fn frames_per_s(&mut self, canvas: &str, time: Duration) -> io::Result<f64> {
        self.value(&format!("{COUNT_CHANGES}(document.getElementById('{canvas}'))"))?;
        let config = json!({ "includedCategories": [TRACED] });
        self.ask("Tracing.start", json!({ "transferMode": "ReportEvents", "traceConfig": config }))?;
        self.value("window.changes = 0")?;
        let began = Instant::now();
        thread::sleep(time);
        let changes = self.value("window.changes")?.as_f64().unwrap_or_default();
        let watched = began.elapsed();
        self.events.clear();
        self.ask("Tracing.end", json!({}))?;
        while !self.events.iter().any(|event| event["method"] == "Tracing.tracingComplete") {
            let event = self.message()?;
            self.events.push(event);
        }
        let events = self.events.iter().filter_map(|event| event["params"]["value"].as_array()).flatten();
        let drawn = events.filter(|event| event["name"] == DRAWN).count();
        Ok(changes.min(drawn as f64) / watched.as_secs_f64())
    }
}

/// Gives a child process its pipes.
fn give(pipes: &[OwnedFd; 2]) -> io::Result<()> {
    // The pipes can lie at each other's places, so they first go to places above.
    let [from, to] = pipes.each_ref().map(|pipe| {
        // SAFETY: the call only makes another descriptor of an open one.
        unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_DUPFD_CLOEXEC, PIPES[1] + 1) }
    });
    for (pipe, place) in [from, to].into_iter().zip(PIPES) {
        // SAFETY: the child has no use for another descriptor at this place.
        if pipe < 0 || unsafe { libc::dup2(pipe, place) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser's processes are in one group. The group may have ended already.
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
