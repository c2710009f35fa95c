//! iperf3: one TCP stream, the figure that most people compare with.

use super::BANDWIDTH_SIZES;
use crate::apt::Need;
use crate::bench::case::{Case, Reading, Subject};
use crate::cmd;
use anyhow::{Context, Result};

/// Where it comes from.
pub(super) const TOOL: Need = Need { program: "iperf3", package: "iperf3" };

/// A stream has no messages: `-l` is the size of a write.
pub(super) fn cases() -> Vec<Case> {
    BANDWIDTH_SIZES.into_iter().map(case).collect()
}

fn case(size: u64) -> Case {
    Case {
        subject: Subject::SendBandwidth,
        size,
        contender: "iperf3",
        tool: TOOL,
        server: Box::new(|port| {
            let mut c = cmd::command("iperf3");
            c.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port.to_string()]);
            c
        }),
        client: Box::new(move |port| {
            let mut c = cmd::command("iperf3");
            c.args(["-c", "127.0.0.1", "-t", "1", "-J", "-p", &port.to_string(), "-l", &size.to_string()]);
            c
        }),
        read: Box::new(read),
    }
}

fn read(json: &str) -> Result<Reading> {
    let v: serde_json::Value = serde_json::from_str(json).context("iperf3 printed no JSON")?;
    let sum = &v["end"]["sum_received"];
    let bits = sum["bits_per_second"].as_f64().context("iperf3 names no rate")?;
    Ok(Reading { value: bits / 1e9, bytes: sum["bytes"].as_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_rate_counts() {
        let out = r#"{"end":{"sum_sent":{"bytes":935723008,"bits_per_second":7471707367.31997},
            "sum_received":{"start":0,"end":1.003832,"seconds":1.003832,"bytes":935723008,"bits_per_second":7457208042.7800665}}}"#;
        let r = read(out).unwrap();
        assert!((r.value - 7.4572).abs() < 1e-3);
        assert_eq!(r.bytes, Some(935_723_008.0));
        assert!(read("iperf3: error").is_err());
        assert!(read("{\"error\":\"unable to connect\"}").is_err());
    }
}
