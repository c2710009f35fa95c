//! UCX's tcp transport: `ucx_perftest`.

use super::{BANDWIDTH_SIZES, LATENCY_SIZES, messages};
use crate::apt::Need;
use crate::bench::case::{Case, Reading, Subject};
use crate::cmd;
use anyhow::{Context, Result};
use std::process::Command;

/// Where it comes from.
pub(super) const TOOL: Need = Need { program: "ucx_perftest", package: "ucx-utils" };
const PINGPONGS: u64 = 20_000;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in BANDWIDTH_SIZES {
        let n = messages(size);
        cases.push(case(Subject::SendBandwidth, "ucx tcp (tag)", "tag_bw", size, n));
        cases.push(case(Subject::WriteBandwidth, "ucx tcp (put)", "ucp_put_bw", size, n / 4));
        cases.push(case(Subject::ReadBandwidth, "ucx tcp (get)", "ucp_get", size, n / 4));
    }
    for size in LATENCY_SIZES {
        cases.push(case(Subject::SendLatency, "ucx tcp (tag)", "tag_lat", size, PINGPONGS));
        cases.push(case(Subject::WriteLatency, "ucx tcp (put)", "ucp_put_lat", size, PINGPONGS));
    }
    cases.push(case(Subject::WriteRate, "ucx tcp (put)", "ucp_put_bw", 64, 300_000));
    cases
}

fn case(subject: Subject, contender: &'static str, test: &'static str, size: u64, count: u64) -> Case {
    Case {
        subject,
        size,
        contender,
        tool: TOOL,
        server: Box::new(command),
        client: Box::new(move |port| {
            let mut c = command(port);
            c.args([
                "127.0.0.1",
                "-f",
                "-w",
                "100",
                "-t",
                test,
                "-s",
                &size.to_string(),
                "-n",
                &count.to_string(),
            ]);
            // One Read at a time is a latency test; sixteen in flight are bandwidth.
            c.args((test == "ucp_get").then_some(["-O", "16"]).into_iter().flatten());
            c
        }),
        read: Box::new(move |out| {
            let row = row(out)?;
            #[expect(clippy::cast_precision_loss, reason = "byte counts far below 2^53")]
            let (size, bytes) = (size as f64, (size * count) as f64);
            Ok(match subject {
                Subject::WriteRate => Reading { value: row.messages / 1e6, bytes: None },
                s if s.smaller_is_better() => Reading { value: row.microseconds, bytes: None },
                // From the message rate: the column of bandwidth counts in 2^20 bytes.
                _ => Reading { value: row.messages * size * 8.0 / 1e9, bytes: Some(bytes) },
            })
        }),
    }
}

fn command(port: u16) -> Command {
    let mut c = cmd::command("ucx_perftest");
    c.env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", "lo").env("UCX_WARN_UNUSED_ENV_VARS", "n");
    c.args(["-p", &port.to_string()]);
    c
}

/// What the last row says.
#[derive(Debug, PartialEq)]
struct Row {
    /// Median of the latency or overhead.
    microseconds: f64,
    /// Messages a second over the whole run.
    messages: f64,
}

/// The last row of numbers: iterations, median, averages, bandwidths, message rates.
fn row(out: &str) -> Result<Row> {
    let numbers = out
        .lines()
        .rev()
        .map(|l| {
            l.trim_start_matches("Final:").split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()
        })
        .find_map(|l| l.ok().filter(|n| n.len() == 8))
        .context("ucx_perftest printed no result")?;
    Ok(Row { microseconds: numbers[1], messages: numbers[7] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_counts_in_either_form() {
        let progress = "[thread 0]    3760   5.204  137.204  137.204   0.44   0.44    7288    7288\n";
        let long =
            format!("{progress}Final:   20000   5.571   79.278   99.655   0.77   0.61   12614   10035\n");
        assert_eq!(row(&long).unwrap(), Row { microseconds: 5.571, messages: 10035.0 });
        let short = "|     Test     | # iterations |\n+---+---+\n   2000  11.295  126.930  126.930  492.40  492.40  7878  7878\n";
        assert_eq!(row(short).unwrap(), Row { microseconds: 11.295, messages: 7878.0 });
        assert!(row("Waiting for connection...\n").is_err());
    }
}
