//! Our own figures and those of plain TCP in the same run: the rows of `rnic perf --json`.

use super::case::{Place, Sample, Subject};
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
    messages_s: Option<f64>,
    tcp_messages_s: Option<f64>,
    cpu_s_per_gb: Option<f64>,
    tcp_cpu_s_per_gb: Option<f64>,
    /// `poll` or `events`.
    completion: String,
    verified: bool,
}

/// The bench of idle connections.
const IDLE: [&str; 6] = ["bench", "--quiet", "-p", "rnic-verbs", "--bench", "idle"];

/// Builds what is measured, outside of what is measured.
pub(super) fn build() -> Result<()> {
    cmd::run(cmd::cargo().args(["build", "--quiet", "--release", "-p", "rnic"]))?;
    cmd::run(cmd::cargo().args(IDLE).arg("--no-run"))
}

/// What idle connections cost.
pub(super) fn idle() -> Result<Vec<Sample>> {
    idle_samples(&process::run_bounded(cmd::cargo().args(IDLE))?)
}

fn idle_samples(out: &str) -> Result<Vec<Sample>> {
    let line = out.lines().find(|l| l.starts_with('{')).context("the idle bench printed no result")?;
    let v: serde_json::Value = serde_json::from_str(line)?;
    let number = |name: &str| v[name].as_f64().with_context(|| format!("the idle bench names no {name}"));
    let sample = |subject, value| Sample {
        place: Place::Host,
        subject,
        size: 0,
        contender: "rnic".into(),
        value,
        cpu_s_per_gb: None,
    };
    let per_thousand = 1000.0 / number("idle_qps")?;
    Ok(vec![
        sample(Subject::IdleMemory, number("bytes_per_qp")? / 1024.0),
        sample(Subject::IdleCpu, 100.0 * number("cpu_share")? * per_thousand),
    ])
}

/// Bandwidth through 4 MiB of memory (the rivals send one buffer over and over) and polled latency; latency asleep; the rate of small messages with a deep queue.
const RUNS: [&[&str]; 3] = [
    &["--verb", "write,read,send", "--size", "8,64,64K,1M", "--region", "4M", "--duration", "0.2"],
    &["--verb", "send", "--size", "8,64", "--crc", "off", "--duration", "0.2", "--events"],
    &[
        "--verb",
        "write",
        "--size",
        "64",
        "--crc",
        "off",
        "--duration",
        "0.5",
        "--depth",
        "1024",
        "--batch",
        "64",
    ],
];

/// One round.
pub(super) fn round() -> Result<Vec<Sample>> {
    let rnic = workspace::rnic_binary()?;
    let mut samples = Vec::new();
    for (run, args) in RUNS.iter().enumerate() {
        let out = process::run_bounded(cmd::command(&rnic).args(["perf", "--json"]).args(*args))?;
        // The rate comes from the run with the deep queue alone.
        let keep = |s: &Sample| (s.subject == Subject::WriteRate) == (run == 2);
        samples.extend(parse(&out)?.into_iter().filter(keep));
    }
    Ok(samples)
}

/// The samples in the lines of `rnic perf --json`.
pub(super) fn parse(json_lines: &str) -> Result<Vec<Sample>> {
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
    /// The figures of this row that have a subject: ours, and plain TCP's beside it.
    fn samples(&self) -> Vec<Sample> {
        let large = self.size >= 4096;
        let asleep = self.completion == "events";
        let subject = match (self.verb.as_str(), large) {
            ("write", true) => Subject::WriteBandwidth,
            ("read", true) => Subject::ReadBandwidth,
            ("send", true) => Subject::SendBandwidth,
            ("write" | "send", false) if asleep => Subject::SleepingLatency,
            ("write", false) => Subject::WriteLatency,
            ("send", false) => Subject::SendLatency,
            _ => return Vec::new(),
        };
        let mut samples = if large {
            self.pair(subject, (self.gbit_s, self.cpu_s_per_gb), (self.tcp_gbit_s, self.tcp_cpu_s_per_gb))
        } else {
            self.pair(subject, (self.p50_us, None), (self.tcp_p50_us, None))
        };
        if self.verb == "write" && self.size == 64 && !asleep {
            let million = |rate: Option<f64>| rate.map(|r| r / 1e6);
            samples.extend(self.pair(
                Subject::WriteRate,
                (million(self.messages_s), self.cpu_s_per_gb),
                (million(self.tcp_messages_s), self.tcp_cpu_s_per_gb),
            ));
        }
        samples
    }

    /// Our sample and TCP's, each a value and its CPU cost.
    fn pair(
        &self,
        subject: Subject,
        ours: (Option<f64>, Option<f64>),
        tcp: (Option<f64>, Option<f64>),
    ) -> Vec<Sample> {
        let crc = if self.crc { "on" } else { "off" };
        let markers = if self.markers { ", markers" } else { "" };
        [(format!("rnic, CRC {crc}{markers}"), ours), ("TCP (same run)".to_owned(), tcp)]
            .into_iter()
            .filter_map(|(contender, (value, cpu_s_per_gb))| {
                Some(Sample {
                    place: Place::Host,
                    subject,
                    size: self.size,
                    contender,
                    value: value?,
                    cpu_s_per_gb,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"verb":"write","size":65536,"crc":false,"markers":false,"fpdu":"large","gbit_s":40.0,"tcp_gbit_s":42.0,"ratio":0.95,"p50_us":20.0,"p99_us":30.0,"tcp_p50_us":19.0,"latency_ratio":1.05,"cpu_s_per_gb":0.3,"verified":true,"latency":"half round trip","messages_s":2000000.0,"tcp_messages_s":null,"completion":"poll"}"#;

    fn subjects(row: &str) -> Vec<Subject> {
        parse(row).unwrap().iter().map(|s| s.subject).collect()
    }

    #[test]
    fn a_row_gives_our_figure_and_tcps() {
        let s = parse(ROW).unwrap();
        assert_eq!(s.len(), 2);
        assert_eq!((s[0].contender.as_str(), s[0].value), ("rnic, CRC off", 40.0));
        assert_eq!((s[1].contender.as_str(), s[1].value), ("TCP (same run)", 42.0));
    }

    #[test]
    fn small_writes_give_latency_and_rate() {
        let s = parse(&ROW.replace("65536", "64")).unwrap();
        let subjects: Vec<_> = s.iter().map(|s| s.subject).collect();
        assert_eq!(subjects, [Subject::WriteLatency, Subject::WriteLatency, Subject::WriteRate]);
        assert!((s[2].value - 2.0).abs() < 1e-9, "million messages a second");
    }

    #[test]
    fn what_sleeps_is_compared_with_what_sleeps() {
        let row = ROW.replace("65536", "64").replace("write", "send").replace("\"poll\"", "\"events\"");
        assert_eq!(subjects(&row), [Subject::SleepingLatency, Subject::SleepingLatency]);
        assert!(subjects(&format!("{ROW}\n{}", ROW.replace("write", "fetch-add"))).len() == 2);
    }

    #[test]
    fn idle_costs_are_scaled_to_a_thousand() {
        let s = idle_samples("x\n{\"idle_qps\":500,\"bytes_per_qp\":2048,\"cpu_share\":0.002}\n").unwrap();
        assert_eq!((s[0].subject, s[0].value), (Subject::IdleMemory, 2.0));
        assert!((s[1].value - 0.4).abs() < 1e-9);
        assert!(idle_samples("panicked").is_err());
    }

    #[test]
    fn wrong_bytes_are_no_figure() {
        assert!(parse(&ROW.replace("\"verified\":true", "\"verified\":false")).is_err());
        assert!(parse("progress\n").is_err());
    }
}
