//! Our own figures and those of plain TCP in the same run: the rows of `rnic perf --json`.

use super::case::{Sample, Subject};
use super::process;
use crate::{cmd, workspace};
use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// One line of `rnic perf --json`; what a row does not measure is absent or null.
#[derive(Debug, Deserialize)]
struct Row {
    verb: String,
    size: u64,
    crc: bool,
    #[serde(default)]
    markers: bool,
    gbit_s: Option<f64>,
    tcp_gbit_s: Option<f64>,
    p50_us: Option<f64>,
    tcp_p50_us: Option<f64>,
    cpu_s_per_gb: Option<f64>,
    verified: bool,
}

/// Builds the release binary, outside of what is measured.
pub(super) fn build() -> Result<()> {
    cmd::run(cmd::cargo().args(["build", "--quiet", "--release", "-p", "rnic"]))
}

/// One round.
pub(super) fn round() -> Result<Vec<Sample>> {
    let mut c = cmd::command(workspace::root().join("target/release/rnic"));
    let out = process::run_bounded(c.args(["perf", "--json"]))?;
    parse(&out)
}

fn parse(json_lines: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for line in json_lines.lines().filter(|l| l.starts_with('{')) {
        let row: Row = serde_json::from_str(line).with_context(|| format!("rnic perf --json: {line}"))?;
        if !row.verified {
            bail!("rnic perf moved wrong bytes: {line}");
        }
        samples.extend(row.samples());
    }
    if samples.is_empty() {
        bail!("rnic perf --json printed no row");
    }
    Ok(samples)
}

impl Row {
    fn samples(&self) -> Vec<Sample> {
        let (bandwidth, latency) = match self.verb.as_str() {
            "write" => (Subject::WriteBandwidth, Some(Subject::WriteLatency)),
            "read" => (Subject::ReadBandwidth, None),
            "send" => (Subject::SendBandwidth, Some(Subject::SendLatency)),
            _ => return Vec::new(),
        };
        let mut variant = format!("rnic, CRC {}", if self.crc { "on" } else { "off" });
        if self.markers {
            variant += ", markers";
        }
        let sample = |subject, contender: &str, value: Option<f64>, cpu_s_per_gb| {
            value.map(|value| Sample {
                subject,
                size: self.size,
                contender: contender.into(),
                value,
                cpu_s_per_gb,
            })
        };
        let mut samples = Vec::new();
        if self.size >= 4096 {
            samples.extend(sample(bandwidth, &variant, self.gbit_s, self.cpu_s_per_gb));
            samples.extend(sample(bandwidth, "TCP (same run)", self.tcp_gbit_s, None));
        } else if let Some(latency) = latency {
            samples.extend(sample(latency, &variant, self.p50_us, None));
            samples.extend(sample(latency, "TCP (same run)", self.tcp_p50_us, None));
        }
        if self.verb == "write" && self.size == 64 {
            #[expect(clippy::cast_precision_loss, reason = "a message size")]
            let rate = self.gbit_s.map(|g| g * 1e3 / 8.0 / self.size as f64);
            samples.extend(sample(Subject::WriteRate, &variant, rate, self.cpu_s_per_gb));
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"verb":"write","size":65536,"crc":false,"markers":false,"fpdu":"large","gbit_s":40.0,"tcp_gbit_s":42.0,"ratio":0.95,"p50_us":20.0,"p99_us":30.0,"tcp_p50_us":19.0,"latency_ratio":1.05,"cpu_s_per_gb":0.3,"verified":true}"#;

    #[test]
    fn a_row_gives_our_figure_and_tcps() {
        let s = parse(ROW).unwrap();
        assert_eq!(s.len(), 2);
        assert_eq!((s[0].contender.as_str(), s[0].value), ("rnic, CRC off", 40.0));
        assert_eq!((s[1].contender.as_str(), s[1].value), ("TCP (same run)", 42.0));
    }

    #[test]
    fn small_writes_give_latency_and_rate() {
        let small = ROW.replace("65536", "64").replace("\"gbit_s\":40.0", "\"gbit_s\":1.024");
        let s = parse(&small).unwrap();
        let subjects: Vec<_> = s.iter().map(|s| s.subject).collect();
        assert_eq!(subjects, [Subject::WriteLatency, Subject::WriteLatency, Subject::WriteRate]);
        assert!((s[2].value - 2.0).abs() < 1e-9, "million messages a second");
    }

    #[test]
    fn wrong_bytes_are_no_figure() {
        assert!(parse(&ROW.replace("true}", "false}")).is_err());
        assert!(parse("progress\n").is_err());
    }
}
