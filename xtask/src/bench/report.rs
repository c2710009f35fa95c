//! The table on the terminal and the JSON file.

use super::case::{Place, size_name};
use super::contest::Results;
use anyhow::Result;
use serde_json::json;
use std::fmt::Write;
use std::fs;

/// The whole table, what failed, and what is not installed.
pub(super) fn table(results: &Results) -> String {
    let mut out = String::new();
    for ((place, subject, size), figures) in results.blocks() {
        let at = if size == 0 { String::new() } else { format!(" at {}", size_name(size)) };
        let inside = if place == Place::Guest { "in a QEMU guest: " } else { "" };
        let _ = writeln!(out, "\n{inside}{}{at}", subject.title());
        let _ = writeln!(
            out,
            "  {:<28} {:>9} {:>9} {:>9} {:>8} {:>10}",
            "", "median", "least", "greatest", "we lead", "CPU s/GB"
        );
        for f in figures {
            let ratio = f.our_ratio.map_or_else(String::new, |r| format!("{r:.2}"));
            let cpu = f.cpu_s_per_gb.map_or_else(String::new, |c| format!("{c:.3}"));
            let _ = writeln!(
                out,
                "  {:<28} {:>9.2} {:>9.2} {:>9.2} {:>8} {:>10}",
                f.contender, f.median, f.least, f.greatest, ratio, cpu
            );
        }
    }
    for (name, why) in &results.failures {
        let _ = writeln!(out, "\nfailed: {name}: {why}");
    }
    if !results.missing.is_empty() {
        out.push_str("\nnot installed:\n");
        for (contender, remedy) in &results.missing {
            let _ = writeln!(out, "  {contender}: {remedy}");
        }
    }
    out
}

/// The same as JSON, with the machine it was measured on.
pub(super) fn json(results: &Results, rounds: usize) -> Result<String> {
    let blocks: Vec<_> = results
        .blocks()
        .into_iter()
        .map(|((place, subject, size), figures)| {
            json!({ "place": place, "subject": subject, "size": size, "figures": figures })
        })
        .collect();
    let all = json!({
        "machine": machine(),
        "rounds": rounds,
        "blocks": blocks,
        "failures": results.failures,
        "missing": results.missing,
    });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// What a reader needs to judge the figures.
fn machine() -> serde_json::Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("");
    json!({
        "cpu": model.trim_start_matches(['\t', ':', ' ']),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "congestion_control": read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load_before": read("/proc/loadavg"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::case::{Place, Sample, Subject};
    use super::*;

    fn results() -> Results {
        let mut r = Results::default();
        for (contender, value) in [("rnic, CRC off", 40.0), ("ucx put", 10.0)] {
            r.add(Sample {
                place: Place::Host,
                subject: Subject::WriteBandwidth,
                size: 65536,
                contender: contender.into(),
                value,
                cpu_s_per_gb: Some(0.25),
            });
        }
        r.missing("iperf3", crate::apt::Need { program: "iperf3", package: "iperf3" });
        r
    }

    #[test]
    fn the_table_shows_ratio_and_remedy() {
        let text = table(&results());
        assert!(text.contains("bandwidth of Write, Gbit/s at 64KiB"), "{text}");
        let ucx = text.lines().find(|l| l.contains("ucx put")).unwrap();
        assert!(ucx.contains("10.00") && ucx.contains("4.00") && ucx.contains("0.250"), "{ucx}");
        assert!(text.contains("iperf3: ") && text.contains("apt-get install"));
    }

    #[test]
    fn json_names_machine_and_figures() {
        let v: serde_json::Value = serde_json::from_str(&json(&results(), 5).unwrap()).unwrap();
        assert_eq!(v["rounds"], 5);
        assert_eq!(v["blocks"][0]["subject"], "write-bandwidth");
        assert_eq!(v["blocks"][0]["figures"][1]["our_ratio"], 4.0);
        assert!(v["machine"]["cores"].as_u64().unwrap() > 0);
    }
}
