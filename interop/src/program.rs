//! A program on this side, with its output kept and its time bounded.

use anyhow::{Context, Result, bail};
use std::{
    fmt,
    io::Read,
    net::{Ipv4Addr, TcpListener},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How a command ended and what it printed.
#[derive(Debug, Clone)]
pub struct Output {
    /// As in a shell: 128 + signal if it was killed.
    pub status: i32,
    /// stdout and stderr, in the order they came.
    pub text: String,
}

impl Output {
    /// The output of a command that ended with status 0.
    ///
    /// # Errors
    /// Any other status; the message has the output.
    pub fn success(self) -> Result<String> {
        if self.status == 0 { Ok(self.text) } else { bail!("{self}") }
    }

    /// The lines that start with `prefix`, without it.
    pub fn lines_after<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.text.lines().filter_map(move |l| l.strip_prefix(prefix))
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}\n{}", self.status, self.text.trim_end())
    }
}

/// Bytes that a reader thread appends and others wait on.
#[derive(Debug, Default)]
struct Log {
    bytes: Mutex<Vec<u8>>,
    grown: Condvar,
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn fill_from(&self, mut source: impl Read) {
        let mut buf = [0; 8192];
        while let Ok(n @ 1..) = source.read(&mut buf) {
            self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buf[..n]);
            self.grown.notify_all();
        }
        self.grown.notify_all();
    }
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Program {
    child: Child,
    name: String,
    log: Arc<Log>,
    readers: Vec<JoinHandle<()>>,
}

impl Program {
    /// Starts it with no input and its output kept.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let log = Arc::new(Log::default());
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            let log = Arc::clone(&log);
            readers.push(thread::spawn(move || log.fill_from(out)));
        }
        if let Some(err) = child.stderr.take() {
            let log = Arc::clone(&log);
            readers.push(thread::spawn(move || log.fill_from(err)));
        }
        Ok(Self { child, name, log, readers })
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// If it cannot be started or is not done within `limit`.
    pub fn run(command: &mut Command, limit: Duration) -> Result<Output> {
        Self::spawn(command)?.wait(limit)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it is not done within `limit`; it is killed then.
    pub fn wait(mut self, limit: Duration) -> Result<Output> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                for reader in self.readers.drain(..) {
                    let _ = reader.join();
                }
                let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                return Ok(Output { status, text: self.log.text() });
            }
            if Instant::now() >= until {
                bail!("{} is not done after {limit:?}; it printed:\n{}", self.name, self.log.text());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has printed `text`.
    ///
    /// # Errors
    /// If it ends or `limit` passes before that.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        loop {
            // The order matters: an ended program's output is looked at once more.
            let ended = self.child.try_wait()?.is_some();
            if self.log.text().contains(text) {
                return Ok(());
            }
            if ended || Instant::now() >= until {
                let how = if ended { "ended" } else { "is silent" };
                bail!("{} {how} without {text:?}; it printed:\n{}", self.name, self.log.text());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it has printed so far.
    pub fn text(&self) -> String {
        self.log.text()
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// If it cannot be signalled.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("kill {}", self.name))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if it has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `N` TCP ports of 127.0.0.1 that nobody listens on just now.
///
/// # Errors
/// If no socket can be bound.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn sh(script: &str) -> Command {
        let mut c = Command::new("sh");
        c.args(["-c", script]);
        c
    }

    #[test]
    fn status_and_both_outputs_are_kept() {
        let out = Program::run(&mut sh("echo a; echo b >&2; exit 3"), LIMIT).unwrap();
        assert_eq!(out.status, 3);
        let mut lines: Vec<&str> = out.text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["a", "b"]);
        assert!(out.success().is_err());
    }

    #[test]
    fn a_killed_program_has_the_shells_status() {
        let mut p = Program::spawn(&mut sh("echo up; exec sleep 60")).unwrap();
        p.wait_for("up", LIMIT).unwrap();
        p.kill().unwrap();
        assert_eq!(p.wait(LIMIT).unwrap().status, 128 + 9);
    }

    #[test]
    fn waiting_ends_with_the_program_and_with_the_limit() {
        let err = Program::spawn(&mut sh("echo no")).unwrap().wait_for("yes", LIMIT).unwrap_err();
        assert!(err.to_string().contains("ended without"), "{err}");
        let err = Program::run(&mut sh("exec sleep 60"), Duration::from_millis(20)).unwrap_err();
        assert!(err.to_string().contains("not done"), "{err}");
    }

    #[test]
    fn free_ports_differ() {
        let [a, b, c] = free_ports::<3>().unwrap();
        assert!(a != b && b != c && a != c);
    }
}
