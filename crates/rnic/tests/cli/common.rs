//! Runs the real binary, for a bounded time.
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No command of a test takes longer than this unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running command, ended with this value at the latest.
pub(crate) struct Running {
    child: Child,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
    address: Option<SocketAddr>,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
    command.args(args).env_remove("RNIC_LOG").env_remove("RNIC_PCAP");
    command
}

/// Reads a pipe to its end in the background.
fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

impl Running {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::spawn(command(args), false)
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn listen(args: &[&str]) -> Self {
        Self::spawn(command(args), true)
    }

    fn spawn(mut command: Command, listens: bool) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = drain(child.stdout.take().unwrap());
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let address = listens.then(|| {
            let mut line = String::new();
            stderr.read_line(&mut line).unwrap();
            let (_, address) = line.trim().rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            address.parse().unwrap_or_else(|_| panic!("{line}"))
        });
        Self { child, stdout, stderr: drain(stderr), address }
    }

    /// Where a server listens, as an argument.
    pub(crate) fn address(&self) -> String {
        self.address.unwrap().to_string()
    }

    pub(crate) fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > deadline => panic!("a command did not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let stdout = self.stdout.recv().unwrap();
        let stderr = self.stderr.recv().unwrap();
        Ended::new(Output { status, stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    pub(crate) fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// An error of one line and a hint of one line.
    #[track_caller]
    pub(crate) fn expect_hint(self, cause: &str, hint: &str) -> Self {
        let mut lines = self.stderr.lines().skip_while(|line| !line.starts_with("error: "));
        let (first, second) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        assert!(first.contains(cause), "{self:#?}");
        assert!(second.starts_with("hint: ") && second.contains(hint), "{self:#?}");
        self
    }
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str]) -> Ended {
    Running::start(args).finish()
}
