//! sockperf: TCP ping-pong, spinning on non-blocking sockets and sleeping in the kernel.

use super::LATENCY_SIZES;
use crate::apt::Need;
use crate::bench::case::{Case, Reading, Subject};
use crate::cmd;
use anyhow::{Context, Result};
use std::process::Command;

/// Where it comes from.
pub(super) const TOOL: Need = Need { program: "sockperf", package: "sockperf" };

/// sockperf's own header needs 14 bytes.
const LEAST: u64 = 14;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in LATENCY_SIZES {
        cases.push(case(size, Subject::SendLatency, "TCP (sockperf, non-blocking)", &["--nonblocked"]));
        cases.push(case(size, Subject::SleepingLatency, "TCP (sockperf, blocking)", &[]));
    }
    cases
}

fn case(size: u64, subject: Subject, contender: &'static str, mode: &'static [&'static str]) -> Case {
    Case {
        subject,
        size,
        contender,
        tool: TOOL,
        server: Box::new(move |port| command("sr", port, mode)),
        client: Box::new(move |port| {
            let mut c = command("pp", port, mode);
            c.args(["-t", "1", "-m", &size.max(LEAST).to_string()]);
            c
        }),
        read: Box::new(read),
    }
}

fn command(role: &str, port: u16, mode: &[&str]) -> Command {
    let mut c = cmd::command("sockperf");
    c.args([role, "--tcp", "-i", "127.0.0.1", "-p", &port.to_string()]).args(mode);
    c
}

/// The median, which sockperf gives as half a round trip.
fn read(out: &str) -> Result<Reading> {
    let value = out
        .lines()
        .find(|l| l.contains("percentile 50.000"))
        .and_then(|l| l.rsplit('=').next())
        .and_then(|v| v.trim().parse().ok())
        .context("sockperf printed no median")?;
    Ok(Reading { value, bytes: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_read() {
        let out = "sockperf: Summary: Latency is 4.828 usec\n\
            sockperf: ---> percentile 90.000 =    5.257\n\
            sockperf: ---> percentile 50.000 =    4.626\n\
            sockperf: ---> <MIN> observation =    3.049\n";
        assert_eq!(read(out).unwrap().value, 4.626);
        assert!(read("sockperf: No messages were received").is_err());
    }
}
