//! The control program of MPS on the simulated GPU: takes commands as NVIDIA's does.
//!
//! - `-d` starts the control daemon in the background, `-f` in the foreground.
//! - `-multiuser-server` or `-M`, beside `-d` or `-f`, lets one server serve the clients of all
//!   users.
//! - Without an option, the program passes the commands of its standard input to the daemon.
//!
//! When a client connects, the daemon starts a server if none runs: this program, under the name
//! `nvidia-cuda-mps-server`. The server's standard input and output connect it to the daemon. If
//! the daemon ends, the server serves its clients to their ends, and then ends too.
//!
//! Without `-multiuser-server`, a server serves the clients of one user. While it has clients, the
//! clients of other users wait.
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cuda::mps;
use simgpu_engine::Host;

/// The forms of the option for a server of all users.
const ALL_USERS: [&str; 2] = ["-multiuser-server", "-M"];
/// The option by which the daemon starts a server.
const SERVER: &str = "--server";
/// The daemon's question for its server's clients.
const CLIENTS: &str = "clients";
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
const LOCK_FILE: &str = "control_lock";
/// Time within which a program that has connected sends its line.
const ASKS_WITHIN: Duration = Duration::from_secs(5);
/// Time within which a client becomes the client of the server whose number it got.
const JOINS_WITHIN: Duration = Duration::from_secs(1);
/// Time between two looks of a wait.
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let options: Vec<String> = env::args().skip(1).collect();
    let (for_all, others): (Vec<&str>, Vec<&str>) =
        options.iter().map(String::as_str).partition(|option| ALL_USERS.contains(option));
    let serves_all = !for_all.is_empty();
    let done = match (&others[..], serves_all) {
        ([], false) => pass_commands(),
        (["-f"], _) => Daemon::claim(serves_all).and_then(|daemon| {
            note(std::process::id())?;
            daemon.run()
        }),
        (["-d"], _) => start_in_background(serves_all),
        ([SERVER], false) => serve(),
        _ => {
            let options = options.join(" ");
            Err(io::Error::other(format!("unknown options {options}; give -d, -f or none")))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvidia-cuda-mps-control: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Passes commands to the daemon, and prints the answers.
fn pass_commands() -> io::Result<()> {
    for line in io::stdin().lines() {
        let daemon =
            mps::connect().map_err(|_| io::Error::other("Cannot find MPS control daemon process"))?;
        // `quit` waits for clients.
        daemon.set_read_timeout(None)?;
        print!("{}", mps::ask(&daemon, &line?)?);
    }
    Ok(())
}

/// Starts the daemon in the background, and returns when the daemon accepts connections.
fn start_in_background(serves_all: bool) -> io::Result<()> {
    let daemon = Daemon::claim(serves_all)?;
    // SAFETY: this process has one thread, so the child may go on as any process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
            // SAFETY: the calls take open descriptors and no memory.
            unsafe {
                libc::setsid();
                for standard in 0..=2 {
                    libc::dup2(null.as_raw_fd(), standard);
                }
            }
            daemon.run()
        }
        // Connections wait at the socket already, which the child has too.
        child => note(child as u32),
    }
}

fn pid_file() -> io::Result<PathBuf> {
    Ok(mps::pipe_directory()?.join(PID_FILE))
}

/// Notes the daemon's process id, by which other programs find the daemon.
fn note(daemon: u32) -> io::Result<()> {
    fs::write(pid_file()?, daemon.to_string())
}

/// A running server.
struct Server {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// The server's number among the processes of the GPUs, and their state's directory.
    number: String,
    directory: String,
    percent: f64,
    /// The user of the server's first client.
    user: u32,
    /// The time at which the last client got the server's number.
    given: Instant,
}

impl Server {
    /// Starts a server whose first client is this user's.
    fn start(percent: f64, user: u32) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg0("nvidia-cuda-mps-server").arg(SERVER);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the server has no pipes"));
        };
        let mut server = Self {
            child,
            to,
            from: BufReader::new(from),
            number: String::new(),
            directory: String::new(),
            percent,
            user,
            given: Instant::now(),
        };
        let ready = server.read_line()?;
        let (number, directory) =
            ready.split_once(' ').ok_or_else(|| io::Error::other("the server did not start"))?;
        (server.number, server.directory) = (number.to_owned(), directory.to_owned());
        Ok(server)
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn clients(&mut self) -> io::Result<String> {
        writeln!(self.to, "{CLIENTS}")?;
        self.read_line()
    }

    /// Returns whether the server has clients, or may get one of those that know its number.
    fn is_in_use(&mut self) -> io::Result<bool> {
        Ok(self.given.elapsed() < JOINS_WITHIN || !self.clients()?.is_empty())
    }

    /// Ends the server once it has no clients, or after `limit`.
    fn end(mut self, limit: Option<Duration>) -> io::Result<()> {
        drop(self.to);
        let deadline = limit.map(|limit| Instant::now() + limit);
        while self.child.try_wait()?.is_none() {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.child.kill()?;
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

/// The control daemon.
struct Daemon {
    listener: UnixListener,
    default_percent: f64,
    /// Whether a server serves the clients of all users.
    serves_all: bool,
    server: Option<Server>,
    /// The lock file, which is locked as long as the daemon runs.
    _lock: File,
}

impl Daemon {
    /// Takes the pipe directory, and begins to listen in it.
    fn claim(serves_all: bool) -> io::Result<Self> {
        let directory = mps::pipe_directory()?;
        fs::create_dir_all(&directory)?;
        let lock = File::create(directory.join(LOCK_FILE))?;
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let directory = directory.display();
            return Err(io::Error::other(format!("an instance of this daemon already runs for {directory}")));
        }
        let socket = directory.join(mps::SOCKET);
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
        Ok(Self { listener, default_percent: mps::own_percentage(), serves_all, server: None, _lock: lock })
    }

    fn run(mut self) -> io::Result<()> {
        let (_asker, limit) = loop {
            let (connection, _) = self.listener.accept()?;
            connection.set_read_timeout(Some(ASKS_WITHIN))?;
            let mut line = String::new();
            if BufReader::new(&connection).read_line(&mut line).is_err() {
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["quit", options @ ..] = &words[..] {
                let limit = match options {
                    ["-t", seconds] => seconds.parse().ok().map(Duration::from_secs),
                    _ => None,
                };
                break (connection, limit);
            }
            let answer = self.answer(&line, &words, user_of(&connection)?);
            // The asker may have ended meanwhile.
            let _ = (&connection).write_all(answer.as_bytes());
        };
        // `quit` answers by the end of the connection, once the servers have ended.
        drop(self.listener);
        let ended = self.server.take().map_or(Ok(()), |server| server.end(limit));
        fs::remove_file(pid_file()?)?;
        ended
    }

    /// Answers a command of a user. A client's directory can contain blanks, so the function takes
    /// the line too.
    fn answer(&mut self, line: &str, words: &[&str], user: u32) -> String {
        if let Some(directory) = line.strip_prefix(mps::JOIN).filter(|_| words.len() > 1) {
            return self.join(directory.trim(), user).unwrap_or_else(|error| format!("{error}\n"));
        }
        let percent = words.last().and_then(|text| mps::percentage(text));
        let shown = |percent: f64| format!("{percent:.1}\n");
        match (words, percent) {
            (["get_server_list"], _) => {
                self.server().map_or_else(String::new, |server| format!("{}\n", server.child.id()))
            }
            (["get_client_list", pid], _) => match self.server_of(pid).map(Server::clients) {
                Some(Ok(clients)) => clients.split_whitespace().map(|pid| format!("{pid}\n")).collect(),
                _ => unknown(pid),
            },
            (["get_default_active_thread_percentage"], _) => shown(self.default_percent),
            (["set_default_active_thread_percentage", _], Some(percent)) => {
                self.default_percent = percent;
                shown(percent)
            }
            (["get_active_thread_percentage", pid], _) => {
                self.server_of(pid).map_or_else(|| unknown(pid), |server| shown(server.percent))
            }
            (["set_active_thread_percentage", pid, _], Some(percent)) => match self.server_of(pid) {
                Some(server) => {
                    server.percent = percent;
                    shown(percent)
                }
                None => unknown(pid),
            },
            (["set_default_active_thread_percentage" | "set_active_thread_percentage", ..], None) => {
                "Failed to set active thread percentage: give a number above 0 and at most 100\n".to_owned()
            }
            _ => format!("Unknown command: {}\n", line.trim()),
        }
    }

    /// Returns the server, if one lives.
    fn server(&mut self) -> Option<&mut Server> {
        if self.server.as_mut().is_some_and(|server| !matches!(server.child.try_wait(), Ok(None))) {
            self.server = None;
        }
        self.server.as_mut()
    }

    fn server_of(&mut self, pid: &str) -> Option<&mut Server> {
        self.server().filter(|server| server.child.id().to_string() == pid)
    }

    /// Answers a client of this user with the server's number, after starting a server if none
    /// lives. If the server has clients of another user, the answer is that the client has to wait.
    fn join(&mut self, directory: &str, user: u32) -> io::Result<String> {
        let serves_all = self.serves_all;
        if let Some(server) = self.server().filter(|server| !serves_all && server.user != user) {
            if server.is_in_use()? {
                return Ok(format!("{}\n", mps::WAIT));
            }
            self.server.take().map_or(Ok(()), |server| server.end(None))?;
        }
        let server = match self.server.take() {
            Some(server) => server,
            None => Server::start(self.default_percent, user)?,
        };
        let server = self.server.insert(server);
        if Path::new(&server.directory) != Path::new(directory) {
            return Ok(format!("{}\n", mps::ELSEWHERE));
        }
        server.given = Instant::now();
        Ok(format!("{} {}\n", server.number, server.percent))
    }
}

/// Returns the user of the process at the other end of a connection.
fn user_of(connection: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut peer).cast();
    // SAFETY: the descriptor is open, and the kernel writes at most `size` bytes to the result.
    let code = unsafe {
        libc::getsockopt(connection.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut size)
    };
    if code == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

fn unknown(pid: &str) -> String {
    format!("No MPS server has PID {pid}\n")
}

/// Serves clients until the daemon has ended and no client lives.
fn serve() -> io::Result<()> {
    let host = Host::attach().map_err(io::Error::other)?;
    let number = host.serve().map_err(io::Error::other)?;
    let directory = host.directory().canonicalize()?;
    println!("{number} {}", directory.display());
    for question in io::stdin().lines() {
        if question? == CLIENTS {
            let clients: Vec<String> = host.clients().iter().map(u32::to_string).collect();
            println!("{}", clients.join(" "));
        }
    }
    while !host.clients().is_empty() {
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
