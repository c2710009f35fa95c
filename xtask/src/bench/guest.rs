//! Our user-space edition beside the kernel's siw and rxe, all in one QEMU guest: a kernel driver needs a kernel of its own.
//!
//! The guest's CPU is emulated where there is no KVM, so these figures compare contenders and say nothing about speed elsewhere.

use super::case::{Place, Sample, Subject};
use super::{own, process};
use crate::{cmd, workspace};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// Where a guest is described.
const GUEST: &str = "interop/siw-guest";
/// What the guest runs before each measurement, so that its output can be told apart.
const MARK: &str = "@measure";
/// The guest's address on its only interface. siw does not serve 127.0.0.1.
const ADDRESS: &str = "10.0.2.15";

/// A kernel's RDMA driver.
struct Driver {
    name: &'static str,
    /// Makes it the only one on the interface, so that there is no other choice.
    before: &'static str,
    /// More options of perftest. iWARP knows only the connection manager; the listener of rxe's is no socket that
    /// one could wait for, so there queue pairs are connected by hand.
    options: &'static str,
    /// How many times fewer messages fill the time.
    slower: u32,
}

const DRIVERS: [Driver; 2] = [
    Driver { name: "siw", before: "", options: " -R", slower: 1 },
    Driver {
        name: "rxe",
        before: "rdma link del siw0\n\
                 modprobe -a crc32_generic rdma_rxe && rdma link add rxe0 type rxe netdev eth0\n",
        options: "",
        slower: 5,
    },
];

/// One program of perftest.
struct Perftest {
    program: &'static str,
    subject: Subject,
    size: u64,
    iterations: u32,
}

const fn perftest(program: &'static str, subject: Subject, size: u64, iterations: u32) -> Perftest {
    Perftest { program, subject, size, iterations }
}

/// What perftest measures of a kernel driver; about a second each.
const PERFTESTS: [Perftest; 8] = [
    perftest("ib_write_bw", Subject::WriteBandwidth, 64 << 10, 2000),
    perftest("ib_write_bw", Subject::WriteBandwidth, 1 << 20, 150),
    perftest("ib_read_bw", Subject::ReadBandwidth, 64 << 10, 1000),
    perftest("ib_read_bw", Subject::ReadBandwidth, 1 << 20, 100),
    perftest("ib_send_bw", Subject::SendBandwidth, 64 << 10, 2000),
    perftest("ib_send_bw", Subject::SendBandwidth, 1 << 20, 150),
    perftest("ib_write_lat", Subject::WriteLatency, 64, 1000),
    perftest("ib_send_lat", Subject::SendLatency, 64, 1000),
];

/// Builds the guest, or says how it is built.
pub(super) fn prepare(install: bool) -> Result<()> {
    let mut build = cmd::command(folder().join("build"));
    if install {
        build.arg("--install");
    }
    cmd::run(&mut build).context("the guest is not built; --install builds it, --no-guest leaves it out")
}

fn folder() -> PathBuf {
    workspace::root().join(GUEST)
}

/// Boots a guest, measures everything in it once, and ends it.
pub(super) fn round() -> Result<Vec<Sample>> {
    let share = workspace::Metadata::load()?.target_directory.join("bench").join("guest");
    fs::create_dir_all(&share)?;
    fs::copy(workspace::rnic_binary()?, share.join("rnic"))?;
    fs::write(share.join("measure"), script())?;
    let mut run = cmd::command(folder().join("run"));
    // The guest's own limit ends QEMU before ours would orphan it.
    run.args(["--mem", "1024", "--time", "240", "--share"]).arg(&share).args(["--", "sh", "/share/measure"]);
    samples(&process::run_within(&mut run, std::time::Duration::from_secs(270))?)
}

/// What runs in the guest.
fn script() -> String {
    let mut s = format!(
        ". /lib/siw/lib.sh\n\
         echo '{MARK} rnic'\n\
         /share/rnic perf --verb write,read,send --size 64,64K,1M --crc off --duration 0.5 --json 2>/dev/null\n"
    );
    for driver in DRIVERS {
        s.push_str(driver.before);
        for (i, t) in PERFTESTS.iter().enumerate() {
            let port = 18600 + i;
            let Driver { name, options, slower, .. } = driver;
            let line =
                format!("{}{options} -F -p {port} -s {} -n {}", t.program, t.size, t.iterations / slower);
            let _ = write!(
                s,
                "echo '{MARK} {name} {i}'\n\
                 serve {port} timeout 60 {line} >/dev/null 2>&1 && timeout 60 {line} {ADDRESS} 2>&1\n\
                 kill $SERVER 2>/dev/null; wait $SERVER 2>/dev/null || true\n"
            );
        }
    }
    s
}

/// All samples in what the guest printed.
fn samples(out: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for part in out.split(MARK).skip(1) {
        let (head, body) = part.split_once('\n').unwrap_or((part, ""));
        match head.split_whitespace().collect::<Vec<_>>()[..] {
            ["rnic"] => {
                samples.extend(own::parse(body)?.into_iter().filter(|s| s.subject != Subject::WriteRate))
            }
            [driver, index] => {
                let test =
                    index.parse::<usize>().ok().and_then(|i| PERFTESTS.get(i)).context("unknown mark")?;
                samples.push(test.sample(driver, body)?);
            }
            _ => bail!("the guest printed an unknown mark: {head}"),
        }
    }
    if samples.is_empty() {
        bail!("the guest measured nothing: {}", out.trim());
    }
    samples.iter_mut().for_each(|s| s.place = Place::Guest);
    Ok(samples)
}

impl Perftest {
    fn sample(&self, driver: &str, out: &str) -> Result<Sample> {
        let value =
            self.value(out).with_context(|| format!("{} over {driver}: {}", self.program, out.trim()))?;
        let contender = format!("{driver} ({})", self.program);
        Ok(Sample {
            place: Place::Guest,
            subject: self.subject,
            size: self.size,
            contender,
            value,
            cpu_s_per_gb: None,
        })
    }

    /// From the last row of numbers. Bandwidth: size, iterations, peak, average in 2^20 bytes a second, message rate.
    /// Latency: size, iterations, least, greatest, typical (median), ... in µs of half a round trip.
    fn value(&self, out: &str) -> Result<f64> {
        let row = out
            .lines()
            .rev()
            .map(|l| l.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>())
            .find_map(|l| l.ok().filter(|n| n.len() >= 5))
            .context("no result")?;
        Ok(if self.subject.smaller_is_better() { row[4] } else { row[3] * f64::from(1 << 20) * 8.0 / 1e9 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      2000             228.50             200.00             0.003200\n---\n";
    const LATENCY: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n 64      1000          34.10          8123.00      35.50              40.00        0.10           60.00                   90.00\n";

    #[test]
    fn rows_of_perftest_are_read() {
        assert!((PERFTESTS[0].value(BANDWIDTH).unwrap() - 1.677_721_6).abs() < 1e-9);
        assert_eq!(PERFTESTS[6].value(LATENCY).unwrap(), 35.5);
        assert!(PERFTESTS[0].value("Couldn't connect\n").is_err());
    }

    #[test]
    fn parts_of_the_output_go_to_their_contenders() {
        let out = format!("noise\n{MARK} siw 0\n{BANDWIDTH}{MARK} rxe 6\n{LATENCY}");
        let s = samples(&out).unwrap();
        assert_eq!(
            s.iter().map(|s| s.contender.as_str()).collect::<Vec<_>>(),
            ["siw (ib_write_bw)", "rxe (ib_write_lat)"]
        );
        assert!(s.iter().all(|s| s.place == Place::Guest));
        assert!(samples("").is_err());
        assert!(samples(&format!("{MARK} siw 0\nUnable to init\n")).is_err());
    }

    #[test]
    fn the_script_measures_both_drivers_alike() {
        let s = script();
        for driver in ["siw", "rxe"] {
            assert_eq!(s.matches(&format!("{MARK} {driver} ")).count(), PERFTESTS.len());
        }
    }
}
