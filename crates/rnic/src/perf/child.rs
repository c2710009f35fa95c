//! The other process of a self-contained run: this program again, listening on loopback.
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Failure, Result};

/// How long the child may take to end once its run is over.
const PATIENCE: Duration = Duration::from_secs(5);

/// The running child. Ends with this value, at the latest.
#[derive(Debug)]
pub(crate) struct Responder {
    child: Child,
    address: SocketAddr,
}

impl Responder {
    /// Starts it and waits for its port.
    pub(crate) fn start() -> Result<Self> {
        let start = || -> Result<Self> {
            let mut child = Command::new(std::env::current_exe()?)
                .args(["perf", "--listen", "127.0.0.1:0", "--once", "--child"])
                // One capture of the connection is enough, and two writers would spoil the file.
                .env_remove("RNIC_PCAP")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let mut line = String::new();
            if let Some(stdout) = child.stdout.take() {
                BufReader::new(stdout).read_line(&mut line)?;
            }
            let mut responder = Self { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
            match line.trim().parse() {
                Ok(port) => responder.address.set_port(port),
                Err(_) => return Err(Failure::failed("it ended before it listened")),
            }
            Ok(responder)
        };
        start().map_err(|failure| failure.during("cannot start the second process"))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for its end, after an orderly run, and for its own opinion of that.
    pub(crate) fn finish(mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(Failure::failed(format!("the second process failed ({status})"))),
                None if start.elapsed() > PATIENCE => {
                    return Err(Failure::failed("the second process did not end"));
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
