//! libfabric's tcp provider: `fi_pingpong` from Debian, and fabtests where they are on the `PATH`.

use super::{BANDWIDTH_SIZES, LATENCY_SIZES, messages};
use crate::apt::Need;
use crate::bench::case::{Case, Reading, Subject};
use crate::cmd;
use anyhow::{Context, Result};

/// In Debian's package of tools.
pub(super) const PINGPONG: Need = Need { program: "fi_pingpong", package: "libfabric-bin" };
const PINGPONGS: u64 = 20_000;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in LATENCY_SIZES {
        cases.push(pingpong(size));
        cases.push(fabtest(
            "fi_msg_pingpong",
            &[],
            size,
            PINGPONGS,
            Subject::SendLatency,
            "libfabric tcp (fabtests)",
        ));
    }
    for size in BANDWIDTH_SIZES {
        let n = messages(size);
        cases.push(fabtest("fi_msg_bw", &[], size, n, Subject::SendBandwidth, "libfabric tcp"));
        cases.push(fabtest(
            "fi_rma_bw",
            &["-e", "msg", "-o", "write"],
            size,
            n,
            Subject::WriteBandwidth,
            "libfabric tcp",
        ));
        cases.push(fabtest(
            "fi_rma_bw",
            &["-e", "msg", "-o", "read"],
            size,
            n,
            Subject::ReadBandwidth,
            "libfabric tcp",
        ));
    }
    cases
}

fn pingpong(size: u64) -> Case {
    let args = move |extra: &str, port: u16| {
        let mut c = cmd::command("fi_pingpong");
        c.args(["-p", "tcp", "-e", "msg", "-I", &PINGPONGS.to_string(), "-S", &size.to_string()]);
        c.args([extra, &port.to_string()]);
        c
    };
    Case {
        subject: Subject::SendLatency,
        size,
        contender: "libfabric tcp (fi_pingpong)",
        tool: PINGPONG,
        server: Box::new(move |port| args("-B", port)),
        client: Box::new(move |port| {
            let mut c = args("-P", port);
            c.arg("127.0.0.1");
            c
        }),
        read: Box::new(|out| Ok(Reading { value: row(out)?.microseconds, bytes: None })),
    }
}

fn fabtest(
    program: &'static str,
    mode: &'static [&'static str],
    size: u64,
    count: u64,
    subject: Subject,
    contender: &'static str,
) -> Case {
    let args = move |port: u16| {
        let mut c = cmd::command(program);
        c.args(["-p", "tcp", "-S", &size.to_string(), "-I", &count.to_string()]).args(mode);
        // -B: the port to listen on; -P: the port to connect to.
        (c, port.to_string())
    };
    let latency = subject.smaller_is_better();
    Case {
        subject,
        size,
        contender,
        // No Debian package has fabtests.
        tool: Need { program, package: "" },
        server: Box::new(move |port| {
            let (mut c, port) = args(port);
            c.args(["-B", &port]);
            c
        }),
        client: Box::new(move |port| {
            let (mut c, port) = args(port);
            c.args(["-P", &port, "127.0.0.1"]);
            c
        }),
        read: Box::new(move |out| {
            let row = row(out)?;
            if latency {
                return Ok(Reading { value: row.microseconds, bytes: None });
            }
            #[expect(clippy::cast_precision_loss, reason = "a byte count far below 2^53")]
            let bytes = (size * count) as f64;
            Ok(Reading { value: row.megabytes * 8.0 / 1000.0, bytes: Some(bytes) })
        }),
    }
}

/// One row of the table that all of libfabric's tools print.
#[derive(Debug, PartialEq)]
struct Row {
    megabytes: f64,
    microseconds: f64,
}

/// The row below the heading with `MB/sec` and `usec/xfer`; columns are found by their names.
fn row(out: &str) -> Result<Row> {
    let mut lines = out.lines().skip_while(|l| !l.starts_with("bytes"));
    let heading: Vec<_> = lines.next().context("libfabric printed no table")?.split_whitespace().collect();
    let values: Vec<_> = lines.next().context("libfabric printed no row")?.split_whitespace().collect();
    let column = |name: &str| -> Result<f64> {
        let at = heading.iter().position(|h| *h == name).with_context(|| format!("no column {name}"))?;
        values.get(at).and_then(|v| v.parse().ok()).with_context(|| format!("no number in column {name}"))
    };
    Ok(Row { megabytes: column("MB/sec")?, microseconds: column("usec/xfer")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_read_by_column() {
        let out = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                   64      20k     =20k     2.4m        0.22s     11.60       5.51       0.18\n";
        assert_eq!(row(out).unwrap(), Row { megabytes: 11.6, microseconds: 5.51 });
        assert!(row("[error] util/pingpong.c:408 : failed to connect").is_err());
    }
}
