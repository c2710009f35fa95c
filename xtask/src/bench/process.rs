//! Starting a server and a client, bounded in time, and ending exactly those two.

use crate::cmd;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// No single measurement takes longer.
const LIMIT: Duration = Duration::from_secs(60);
/// A server that does not listen by then will not.
const START: Duration = Duration::from_secs(10);
/// Linux counts CPU time of processes in hundredths of a second towards user space.
const TICKS_PER_SECOND: f64 = 100.0;

/// A child that does not outlive this value.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // Already gone is fine; waiting collects it and its CPU time.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A TCP port that was free a moment ago.
pub(super) fn free_port() -> Result<u16> {
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free TCP port on loopback")?;
    Ok(probe.local_addr()?.port())
}

/// Runs `client` against `server`: the client's standard output, and the CPU seconds of both.
pub(super) fn pair(mut server: Command, mut client: Command, port: u16) -> Result<(String, f64)> {
    let before = children_cpu_seconds()?;
    let server_line = cmd::line(&server);
    let child = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut server = Guard(child.with_context(|| format!("cannot start `{server_line}`"))?);
    wait_listening(&mut server.0, port).with_context(|| format!("`{server_line}`"))?;
    let out = run_bounded(&mut client)?;
    drop(server);
    Ok((out, children_cpu_seconds()? - before))
}

/// Standard output of a command that must end in time and with success.
pub(super) fn run_bounded(command: &mut Command) -> Result<String> {
    run_within(command, LIMIT)
}

/// The same for one that may take `limit`.
pub(super) fn run_within(command: &mut Command, limit: Duration) -> Result<String> {
    let line = cmd::line(command);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = Guard(child.with_context(|| format!("cannot start `{line}`"))?);
    let reader = drain(child.0.stdout.take());
    let errors = drain(child.0.stderr.take());
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            bail!("`{line}` did not end within {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = reader.join().unwrap_or_default();
    if !status.success() {
        bail!("`{line}` ended with {status}: {}", errors.join().unwrap_or_default().trim());
    }
    Ok(text)
}

/// Reads a pipe to its end aside, so that a full pipe never blocks the child.
fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits until somebody listens on `port`. Asking by connecting would use up servers that take one client.
fn wait_listening(server: &mut Child, port: u16) -> Result<()> {
    let deadline = Instant::now() + START;
    while Instant::now() < deadline {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| fs::read_to_string(t).unwrap_or_default());
        if tables.iter().any(|t| listens(t, port)) {
            return Ok(());
        }
        if let Some(status) = server.try_wait()? {
            bail!("ended with {status} before it listened");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("does not listen on port {port}")
}

/// Whether a table of `/proc/net` has a listening socket (state 0A) on `port`.
fn listens(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        local.is_some_and(|l| l.ends_with(&suffix)) && state == Some("0A")
    })
}

/// CPU seconds of all children that have been waited for.
fn children_cpu_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    children_ticks(&stat).map(|t| t / TICKS_PER_SECOND).context("/proc/self/stat has changed its form")
}

/// Fields 16 and 17 of `/proc/PID/stat`; the name in parentheses may hold anything.
fn children_ticks(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(13).map(str::parse::<f64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_told_from_connections() {
        let table = "  sl  local_address rem_address   st\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
            1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000\n";
        assert!(listens(table, 0x1F90));
        assert!(!listens(table, 0x1F91));
        assert!(!listens(table, 0x1F92));
    }

    #[test]
    fn cpu_time_of_children_is_read_behind_any_name() {
        let stat = "42 (a) b) c) S 1 1 1 0 -1 0 0 0 0 0 7 8 150 50 20 0 1 0 9 0";
        assert_eq!(children_ticks(stat), Some(200.0));
        assert_eq!(children_ticks("nonsense"), None);
    }

    #[test]
    fn a_client_is_read_and_its_failure_named() {
        let mut ok = cmd::command("sh");
        assert_eq!(run_bounded(ok.args(["-c", "echo fine"])).unwrap(), "fine\n");
        let mut bad = cmd::command("sh");
        let e = run_bounded(bad.args(["-c", "echo broken >&2; exit 2"])).unwrap_err().to_string();
        assert!(e.contains("broken"), "{e}");
    }

    #[test]
    fn a_server_that_ends_early_is_an_error() {
        let e = pair(cmd::command("true"), cmd::command("true"), free_port().unwrap()).unwrap_err();
        assert!(format!("{e:#}").contains("before it listened"), "{e:#}");
    }
}
