//! One row as a JSON object.
use serde::Serialize;

use super::plan::Row;

/// One row's results. Rates are of payload; a value that was not measured is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    /// Operation.
    pub(crate) verb: &'static str,
    /// Bytes a message.
    pub(crate) size: u32,
    /// MPA CRC in both directions.
    pub(crate) crc: bool,
    /// MPA markers in both directions.
    pub(crate) markers: bool,
    /// `mss`, `large` or bytes.
    pub(crate) fpdu: String,
    /// Bandwidth, decimal gigabits a second: the median of the rounds.
    pub(crate) gbit_s: Option<f64>,
    /// Plain TCP's.
    pub(crate) tcp_gbit_s: Option<f64>,
    /// `gbit_s / tcp_gbit_s`.
    pub(crate) ratio: Option<f64>,
    /// Median latency in microseconds; of what, says `latency`.
    pub p50_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// Plain TCP's median.
    pub tcp_p50_us: Option<f64>,
    /// `p50_us / tcp_p50_us`.
    pub(crate) latency_ratio: Option<f64>,
    /// CPU seconds of both processes for 10^9 bytes of payload.
    pub(crate) cpu_s_per_gb: Option<f64>,
    /// Every byte of every round was checked and right, and no request failed.
    pub(crate) verified: bool,
    /// `half round trip` or `round trip`.
    pub(crate) latency: &'static str,
    /// Messages a second, from the median round.
    pub(crate) messages_s: Option<f64>,
    /// Plain TCP's, a write call a message.
    pub(crate) tcp_messages_s: Option<f64>,
    /// Plain TCP's 99th percentile.
    pub tcp_p99_us: Option<f64>,
    /// The connecting process's share of `cpu_s_per_gb`.
    pub(crate) cpu_initiator_s_per_gb: Option<f64>,
    /// The listening process's share.
    pub(crate) cpu_target_s_per_gb: Option<f64>,
    /// Plain TCP's, both processes.
    pub(crate) tcp_cpu_s_per_gb: Option<f64>,
    /// Bytes that were checked.
    pub(crate) bytes_verified: u64,
    /// Bytes that were wrong.
    pub(crate) bytes_wrong: u64,
    /// Work requests under way in the bandwidth part.
    pub(crate) depth: u32,
    /// Work requests a posting call.
    pub(crate) batch: u32,
    /// Queue pairs, and TCP connections.
    pub(crate) qps: u32,
    /// `poll` or `events`.
    pub(crate) completion: &'static str,
    /// Why the row is not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Report {
    /// An empty one for `row`.
    pub(crate) fn new(row: Row) -> Self {
        let latency = if row.verb.is_round_trip() { "round trip" } else { "half round trip" };
        Self { verb: row.verb.name(), size: row.size, crc: row.crc, latency, ..Self::default() }
    }

    /// Computes the ratios from what was measured, and rounds all to what is significant.
    pub(crate) fn finish(&mut self) {
        self.ratio = quotient(self.gbit_s, self.tcp_gbit_s);
        self.latency_ratio = quotient(self.p50_us, self.tcp_p50_us);
        for value in [
            &mut self.gbit_s,
            &mut self.tcp_gbit_s,
            &mut self.ratio,
            &mut self.p50_us,
            &mut self.p99_us,
            &mut self.tcp_p50_us,
            &mut self.latency_ratio,
            &mut self.cpu_s_per_gb,
            &mut self.messages_s,
            &mut self.tcp_messages_s,
            &mut self.tcp_p99_us,
            &mut self.cpu_initiator_s_per_gb,
            &mut self.cpu_target_s_per_gb,
            &mut self.tcp_cpu_s_per_gb,
        ] {
            *value = value.map(significant);
        }
    }

    /// One line.
    pub(crate) fn to_line(&self) -> String {
        // Plain numbers and strings: serialising them cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn quotient(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    Some(ours? / theirs.filter(|&value| value > 0.0)?)
}

/// Five significant digits.
fn significant(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::super::plan::Verb;
    use super::*;

    #[test]
    fn a_row_is_one_line_with_the_promised_fields() {
        let mut report = Report::new(Row { verb: Verb::Read, size: 64, crc: true });
        report.gbit_s = Some(1.234_567_89);
        report.tcp_gbit_s = Some(2.0);
        report.fpdu = "mss".to_owned();
        report.finish();
        let line = report.to_line();
        assert!(!line.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        for field in [
            "verb",
            "size",
            "crc",
            "markers",
            "fpdu",
            "gbit_s",
            "tcp_gbit_s",
            "ratio",
            "p50_us",
            "p99_us",
            "tcp_p50_us",
            "latency_ratio",
            "cpu_s_per_gb",
            "verified",
        ] {
            assert!(value.get(field).is_some(), "{field}");
        }
        assert_eq!(value["ratio"], 0.617_28);
        assert_eq!(value["gbit_s"], 1.2346);
        assert_eq!(value["latency"], "round trip");
        assert!(value["p50_us"].is_null());
        assert!(value.get("error").is_none());
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        assert_eq!(quotient(Some(1.0), None), None);
        assert_eq!(quotient(Some(1.0), Some(0.0)), None);
        assert_eq!(quotient(Some(1.0), Some(4.0)), Some(0.25));
    }
}
