//! Storms of `rnic perf`: every byte is checked, over all kinds of framing and many queue pairs at once.

use crate::stage::Stages;
use crate::{cmd, workspace};
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// What each storm adds to the common options.
const STORMS: &[(&str, &[&str])] = &[
    ("one queue pair, all verbs", &["--qps", "1", "--size", "8,64,4K,64K,1M"]),
    ("many queue pairs", &["--qps", "64", "--size", "64,64K", "--region", "1M", "--crc", "off"]),
    ("markers and CRC", &["--qps", "4", "--size", "64,1500,64K", "--markers", "on", "--crc", "on"]),
    ("FPDUs as large as a TCP segment", &["--qps", "4", "--size", "64,64K,1M", "--fpdu", "mss"]),
    ("small FPDUs", &["--qps", "2", "--size", "4K,64K", "--fpdu", "128", "--crc", "on"]),
    ("asleep between messages", &["--qps", "4", "--size", "64,64K", "--events"]),
    ("a deep queue", &["--qps", "1", "--size", "64", "--depth", "4096", "--batch", "64"]),
];

/// Seconds of each of a run's measurements: short, so that connections come and go.
const MEASURED: &str = "0.5";

pub(super) fn run(stages: &mut Stages, time: Duration) -> Result<()> {
    cmd::run(cmd::cargo().args(["build", "--quiet", "--release", "-p", "rnic"]))?;
    for (name, args) in STORMS {
        stages.run(&format!("storm: {name}"), |_| storm(args, time));
    }
    Ok(())
}

/// Repeats one kind of run until the time is over.
fn storm(args: &[&str], time: Duration) -> Result<()> {
    let rnic = workspace::rnic_binary()?;
    let end = Instant::now() + time;
    let (mut runs, mut bytes) = (0u64, 0u64);
    while runs == 0 || Instant::now() < end {
        let mut c = cmd::command(&rnic);
        c.args(["perf", "--json", "--no-tcp", "--duration", MEASURED]).args(args);
        bytes += verified_bytes(&cmd::output(&mut c)?)?;
        runs += 1;
    }
    println!("{runs} runs, {:.1} GB verified", bytes_in_gb(bytes));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn bytes_in_gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// The sum of `bytes_verified`; a row that is not verified is an error.
fn verified_bytes(json_lines: &str) -> Result<u64> {
    let mut sum = 0;
    for line in json_lines.lines().filter(|l| l.starts_with('{')) {
        let row: serde_json::Value = serde_json::from_str(line)?;
        if row["verified"] != true {
            bail!("wrong bytes or a failed request: {line}");
        }
        sum += row["bytes_verified"].as_u64().unwrap_or(0);
    }
    if sum == 0 {
        bail!("nothing was verified");
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_only_when_all_of_it_is_verified() {
        let good = "{\"verified\":true,\"bytes_verified\":10}\n";
        assert_eq!(verified_bytes(&good.repeat(2)).unwrap(), 20);
        assert!(verified_bytes(&format!("{good}{{\"verified\":false,\"bytes_verified\":10}}\n")).is_err());
        assert!(verified_bytes("").is_err());
    }
}
