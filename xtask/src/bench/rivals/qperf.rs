//! qperf: blocking TCP, bandwidth and latency.

use super::{BANDWIDTH_SIZES, LATENCY_SIZES};
use crate::apt::Need;
use crate::bench::case::{Case, Reading, Subject};
use crate::cmd;
use anyhow::{Context, Result, bail};

/// Where it comes from.
pub(super) const TOOL: Need = Need { program: "qperf", package: "qperf" };

pub(super) fn cases() -> Vec<Case> {
    let bandwidth = BANDWIDTH_SIZES.map(|size| case(size, Subject::SendBandwidth, "tcp_bw", "TCP (qperf)"));
    let latency = LATENCY_SIZES.map(|size| case(size, Subject::SleepingLatency, "tcp_lat", "TCP (qperf)"));
    bandwidth.into_iter().chain(latency).collect()
}

fn case(size: u64, subject: Subject, test: &'static str, contender: &'static str) -> Case {
    Case {
        subject,
        size,
        contender,
        tool: TOOL,
        server: Box::new(|port| {
            let mut c = cmd::command("qperf");
            c.args(["-lp", &port.to_string()]);
            c
        }),
        client: Box::new(move |port| {
            let mut c = cmd::command("qperf");
            c.args(["127.0.0.1", "-lp", &port.to_string(), "-t", "1", "-m", &size.to_string(), test]);
            c
        }),
        read: Box::new(move |out| {
            let value = if test == "tcp_bw" { gigabits(out)? } else { microseconds(out)? };
            // The run lasts one second by `-t`.
            let bytes = (test == "tcp_bw").then_some(value * 1e9 / 8.0);
            Ok(Reading { value, bytes })
        }),
    }
}

/// The number and unit behind `name  =`.
fn field<'a>(out: &'a str, name: &str) -> Result<(f64, &'a str)> {
    let line = out
        .lines()
        .find(|l| l.trim_start().starts_with(name))
        .with_context(|| format!("qperf: no {name}"))?;
    let value = line.split_once('=').map_or("", |(_, v)| v.trim());
    let (number, unit) = value.split_once(' ').context("qperf: no unit")?;
    Ok((number.replace(',', "").parse()?, unit))
}

fn gigabits(out: &str) -> Result<f64> {
    let (number, unit) = field(out, "bw")?;
    Ok(8.0
        * number
        * match unit {
            "GB/sec" => 1.0,
            "MB/sec" => 1e-3,
            "KB/sec" => 1e-6,
            _ => bail!("qperf: unknown unit {unit}"),
        })
}

fn microseconds(out: &str) -> Result<f64> {
    let (number, unit) = field(out, "latency")?;
    Ok(number
        * match unit {
            "us" => 1.0,
            "ms" => 1e3,
            "ns" => 1e-3,
            _ => bail!("qperf: unknown unit {unit}"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_understood() {
        assert!((gigabits("tcp_bw:\n    bw  =  1.92 GB/sec\n").unwrap() - 15.36).abs() < 1e-9);
        assert!((gigabits("tcp_bw:\n    bw  =  850 MB/sec\n").unwrap() - 6.8).abs() < 1e-9);
        assert_eq!(microseconds("tcp_lat:\n    latency  =  5.02 us\n").unwrap(), 5.02);
        assert_eq!(microseconds("tcp_lat:\n    latency  =  1.5 ms\n").unwrap(), 1500.0);
        assert!(gigabits("failed to connect").is_err());
        assert!(gigabits("tcp_bw:\n    bw  =  1 furlong\n").is_err());
    }
}
