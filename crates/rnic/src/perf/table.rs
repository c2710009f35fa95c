//! The table that people read.
use super::json::Report;

const HEADER: [&str; 2] = [
    "                    |    bandwidth, Gbit/s    |  1000    |         latency, us             |   CPU s/GB  |",
    "verb      size  crc |    rnic     TCP   ratio |  msg/s   |    p50     p99  TCP p50   ratio |  rnic   TCP | data",
];

/// The two header lines and a rule.
pub(crate) fn header() -> String {
    let rule: String = HEADER[1].chars().map(|c| if c == '|' { '+' } else { '-' }).collect();
    format!("{}\n{}\n{rule}", HEADER[0].trim_end(), HEADER[1])
}

/// One line.
pub(crate) fn line(report: &Report) -> String {
    let data = match (&report.error, report.verified) {
        (_, true) => "ok",
        (Some(_), false) if report.bytes_wrong == 0 => "FAILED",
        _ => "WRONG",
    };
    format!(
        "{:<9} {:>4}  {:<3} | {:>7} {:>7}  {:>6} | {:>8} | {:>6} {:>7}  {:>7}  {:>6} | {:>5} {:>5} | {data}",
        report.verb,
        size(report.size),
        if report.crc { "on" } else { "off" },
        number(report.gbit_s),
        number(report.tcp_gbit_s),
        ratio(report.ratio),
        number(report.messages_s.map(|rate| rate / 1e3)),
        number(report.p50_us),
        number(report.p99_us),
        number(report.tcp_p50_us),
        ratio(report.latency_ratio),
        number(report.cpu_s_per_gb),
        number(report.tcp_cpu_s_per_gb),
    )
}

/// What the reader has to know to read the table.
pub(crate) const LEGEND: &str = "\
ratio: rnic / TCP; above 1 is better for bandwidth, below 1 for latency. Latency is half a round trip, except a full one
for read, fetch-add, cmp-swap and swap (TCP: a request of 8 bytes and an answer of the size). TCP: one write a message;
bandwidth is the better of spinning and sleeping (with --events: sleeping).";

/// Bytes, in units of 1024 where that is exact.
pub(crate) fn size(bytes: u32) -> String {
    match bytes {
        _ if bytes != 0 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes != 0 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Three or four significant digits in at most seven places.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 0.1 => format!("{value:.4}"),
        Some(value) if value < 10.0 => format!("{value:.3}"),
        Some(value) if value < 100.0 => format!("{value:.2}"),
        Some(value) if value < 1000.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

fn ratio(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Row, Verb};
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(Row { verb: Verb::FetchAdd, size: 65_536, crc: true });
        report.gbit_s = Some(39.123);
        report.tcp_gbit_s = Some(40.0);
        report.messages_s = Some(74_600.0);
        report.p50_us = Some(12.345);
        report.p99_us = Some(1234.5);
        report.cpu_s_per_gb = Some(0.376);
        report.verified = true;
        report.finish();
        report
    }

    #[test]
    fn columns_stand_under_their_headings() {
        let header = header();
        let mut lines: Vec<&str> = header.lines().collect();
        let row = line(&report());
        lines.push(&row);
        let bars = |line: &str| -> Vec<usize> {
            line.char_indices().filter(|(_, c)| "|+".contains(*c)).map(|(at, _)| at).collect()
        };
        for line in &lines {
            assert_eq!(bars(line), bars(lines[1]), "{line}");
            assert!(line.len() <= 120, "{line}");
        }
        assert_eq!(
            row,
            "fetch-add  64K  on  |   39.12   40.00    0.98 |    74.60 |  12.35    1234        -       - | 0.376     - | ok"
        );
    }

    #[test]
    fn wrong_data_is_told_from_a_failure() {
        let mut report = report();
        report.verified = false;
        report.error = Some("flushed".to_owned());
        assert!(line(&report).ends_with("| FAILED"));
        report.bytes_wrong = 1;
        assert!(line(&report).ends_with("| WRONG"));
    }

    #[test]
    fn sizes_in_binary_units_only_where_exact() {
        assert_eq!([0, 8, 1024, 1500, 65_536, 1 << 20].map(size), ["0", "8", "1K", "1500", "64K", "1M"]);
    }
}
