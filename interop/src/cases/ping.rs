//! `rnic ping` against the distribution's `rping`, each in both roles. The protocol: docs/rping-protocol.md.

use crate::{
    case::{Bench, Case, STEP},
    need::{Need, rnic},
    program::{Output, Program, free_ports},
    tshark,
};
use anyhow::{Context, Result, bail, ensure};
use std::{fmt::Write, path::PathBuf, process::Command};

const SIZES: [usize; 6] = [23, 64, 100, 1000, 4096, 65535];
const COUNTS: [usize; 3] = [1, 5, 100];

/// Opcodes of RDMAP.
const WRITE: u8 = 0;
const READ_REQUEST: u8 = 1;
const READ_RESPONSE: u8 = 2;
const SEND: u8 = 3;

/// One session: how many pings of what size, with further words for `rnic ping`.
#[derive(Debug, Clone, Copy)]
struct Session {
    count: usize,
    size: usize,
    options: &'static [&'static str],
}

impl Session {
    const fn new(count: usize, size: usize, options: &'static [&'static str]) -> Self {
        Self { count, size, options }
    }

    /// The texts of its pings.
    fn texts(self) -> Vec<String> {
        (0..self.count).map(|n| text(n, self.size)).collect()
    }

    /// That these are the texts, each behind `prefix`.
    fn check(self, whose: &str, output: &Output, prefix: &str) -> Result<()> {
        let printed: Vec<&str> = output.lines_after(prefix).collect();
        let expected = self.texts();
        if printed != expected {
            let first = printed.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(printed.len());
            bail!(
                "{whose} has {} of {} texts, and the first wrong one is {first}: {output}",
                printed.len(),
                self.count
            );
        }
        Ok(())
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for count in COUNTS {
        let s = Session::new(count, 64, &[]);
        cases.push(client(&format!("count-{count}"), s));
        cases.push(server(&format!("count-{count}"), s));
    }
    for size in SIZES {
        let s = Session::new(3, size, &[]);
        cases.push(client(&format!("size-{size}"), s));
        cases.push(server(&format!("size-{size}"), s));
    }
    cases.extend(client_variants());
    cases.extend(server_variants());
    cases.push(ping_case("ping/client/capture", capture_of_client).needs(&[Need::Tshark]));
    cases.push(ping_case("ping/server/capture", capture_of_server).needs(&[Need::Tshark]));
    cases.push(ping_case("ping/client/peer-killed", client_loses_peer));
    cases.push(ping_case("ping/server/peer-killed", server_loses_peer));
    cases.push(ping_case("ping/client/killed", peer_loses_client));
    cases.push(ping_case("ping/server/killed", peer_loses_server));
    cases
}

fn client_variants() -> Vec<Case> {
    const LONG: usize = 5000;
    let s = |options| Session::new(3, LONG, options);
    vec![
        client("crc", s(&["--crc", "on"])),
        // Not with MPA revision 1: nothing tells siw's ORD there, so `rping -s` fails to post its Read, with siw
        // at the other end as well. The verbs cases cover revision 1.
        client("rtr-write", s(&["--rtr", "write"])),
        client("rtr-read", s(&["--rtr", "read"])),
        client("stock", s(&["--settle", "20"])).stock(),
        client("stock-crc", s(&["--settle", "20", "--crc", "on"])).stock(),
        client("stock-rtr-write", s(&["--settle", "20", "--rtr", "write"])).stock(),
        client("tap", s(&[])).tap(),
        client("tap-crc", s(&["--crc", "on"])).tap(),
        client("tap-65535", Session::new(3, 65535, &[])).tap(),
    ]
}

fn server_variants() -> Vec<Case> {
    const LONG: usize = 5000;
    let s = || Session::new(3, LONG, &[]);
    vec![
        server("crc", s()).params(&["mpa_crc_required=1"]),
        server("mpa-1", s()).params(&["mpa_version=1"]),
        server("mpa-1-crc", s()).params(&["mpa_version=1", "mpa_crc_required=1"]),
        server("rtr", s()).params(&["peer_to_peer=1"]),
        server("rtr-write", s()).params(&["peer_to_peer=1", "rtr_type=128"]),
        server("rtr-read", s()).params(&["peer_to_peer=1", "rtr_type=64"]),
        server("gso", s()).params(&["try_gso=1"]),
        server("stock", s()).stock(),
        server("tap", s()).tap(),
        server("tap-crc", s()).tap().params(&["mpa_crc_required=1"]),
        server("tap-65535", Session::new(3, 65535, &[])).tap(),
    ]
}

fn ping_case(name: &str, body: impl Fn(&Bench<'_>) -> Result<()> + 'static) -> Case {
    Case::new(name, body).needs(&[Need::Rnic])
}

/// `rnic ping` here, `rping -s` in the guest.
fn client(name: &str, session: Session) -> Case {
    ping_case(&format!("ping/client/{name}"), move |bench| run_client(bench, session, None))
}

/// `rnic ping --listen` here, `rping -c` in the guest.
fn server(name: &str, session: Session) -> Case {
    ping_case(&format!("ping/server/{name}"), move |bench| run_server(bench, session, None))
}

fn run_client(bench: &Bench<'_>, session: Session, capture: Option<PathBuf>) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(
        port,
        &format!("apart rping -s -v -a {} -p {} -S 65535", guest.own_ip(), port.port),
        STEP,
    )?;
    let mut ping = ping();
    ping.arg(port.addr.to_string()).args([
        "-v",
        "-C",
        &session.count.to_string(),
        "-S",
        &session.size.to_string(),
    ]);
    ping.args(session.options);
    if let Some(file) = capture {
        ping.env("RNIC_PCAP", file);
    }
    let ours = Program::run(&mut ping, STEP)?;
    ensure!(ours.status == 0, "rnic ping: {ours}");
    session.check("rnic ping", &ours, "ping data: ")?;
    let theirs = guest.wait(server, STEP)?;
    ensure!(theirs.status == 0, "rping -s: {theirs}");
    session.check("rping -s", &theirs, "server ping data: ")
}

fn run_server(bench: &Bench<'_>, session: Session, capture: Option<PathBuf>) -> Result<()> {
    let guest = bench.guest;
    let (mut ours, port) = listen(bench, session.options, capture)?;
    let Session { count, size, .. } = session;
    let theirs = guest
        .run(&format!("apart rping -c -v -V -a {} -p {port} -C {count} -S {size}", guest.host_ip()), STEP);
    let theirs = theirs.with_context(|| format!("rnic ping --listen printed: {}", ours.text()))?;
    session.check("rping -c", &theirs, "ping data: ")?;
    // With --once it ends with its client.
    ours.wait_for(&text(count - 1, size), STEP)?;
    let ours = ours.wait(STEP)?;
    ensure!(ours.status == 0, "rnic ping --listen: {ours}");
    session.check("rnic ping --listen", &ours, "server ping data: ")
}

/// Starts `rnic ping --listen` where the guest reaches it.
fn listen(bench: &Bench<'_>, options: &[&str], capture: Option<PathBuf>) -> Result<(Program, u16)> {
    let [port] = free_ports()?;
    let mut ping = ping();
    ping.args(["--listen", &format!("{}:{port}", bench.guest.listen_ip()), "--once", "-v"]).args(options);
    if let Some(file) = capture {
        ping.env("RNIC_PCAP", file);
    }
    let mut ours = Program::spawn(&mut ping)?;
    ours.wait_for("listening", STEP)?;
    Ok((ours, port))
}

fn ping() -> Command {
    let mut command = Command::new(rnic());
    command.arg("ping");
    command
}

/// Three pings: six Sends from each end... and what tshark finds in our capture of them.
fn check_capture(capture: &std::path::Path, session: Session) -> Result<()> {
    let d = tshark::decode(capture, "")?.clean()?;
    let n = session.count;
    ensure!(d.startups == 2, "{} start-up frames", d.startups);
    ensure!(d.good_crcs == d.fpdus, "{} of {} FPDUs with a good CRC", d.good_crcs, d.fpdus);
    ensure!(d.count(SEND) == 4 * n && d.count(READ_REQUEST) == n, "opcodes {:?}", d.opcodes);
    ensure!(d.count(WRITE) >= n && d.count(READ_RESPONSE) >= n, "opcodes {:?}", d.opcodes);
    ensure!(d.opcodes.len() == 4 && d.terminates.is_empty(), "opcodes {:?}", d.opcodes);
    Ok(())
}

fn capture_of_client(bench: &Bench<'_>) -> Result<()> {
    let session = Session::new(3, 20_001, &["--crc", "on"]);
    let file = bench.scratch.file("client.pcap");
    run_client(bench, session, Some(file.clone()))?;
    check_capture(&file, session)
}

fn capture_of_server(bench: &Bench<'_>) -> Result<()> {
    let session = Session::new(3, 20_001, &[]);
    let file = bench.scratch.file("server.pcap");
    bench.guest.set_siw(&["mpa_crc_required=1"])?;
    run_server(bench, session, Some(file.clone()))?;
    check_capture(&file, session)
}

/// Endless pings from here; `rping -s` is killed.
fn client_loses_peer(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("rping -s -a {} -p {}", guest.own_ip(), port.port), STEP)?;
    let mut ours = Program::spawn(ping().arg(port.addr.to_string()).args(["-v", "-i", "0"]))?;
    ours.wait_for("rdma-ping-20:", STEP)?;
    guest.kill(server, 9)?;
    let ours = ours.wait(STEP)?;
    ensure!(ours.status == 1, "rnic ping after its peer was killed: {ours}");
    guest.wait(server, STEP)?;
    Ok(())
}

/// Endless pings from the guest; `rping -c` is killed.
fn server_loses_peer(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (mut ours, port) = listen(bench, &[], None)?;
    let client = guest.spawn(&format!("rping -c -a {} -p {port}", guest.host_ip()))?;
    ours.wait_for("rdma-ping-20:", STEP)?;
    guest.kill(client, 9)?;
    guest.wait(client, STEP)?;
    // Between two pings this is how every session ends; within one it is a failure.
    let ours = ours.wait(STEP)?;
    ensure!(ours.status == 0 || ours.status == 1, "rnic ping --listen after its peer was killed: {ours}");
    Ok(())
}

/// Endless pings from here; our client is killed.
fn peer_loses_client(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("rping -s -a {} -p {}", guest.own_ip(), port.port), STEP)?;
    let mut ours = Program::spawn(ping().arg(port.addr.to_string()).args(["-v", "-i", "0"]))?;
    ours.wait_for("rdma-ping-20:", STEP)?;
    ours.kill()?;
    ours.wait(STEP)?;
    // Depending on the moment `rping -s` waits on after that event; it has had its time then.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let _ = guest.kill(server, 9);
    let theirs = guest.wait(server, STEP)?;
    ensure!(
        theirs.text.contains("server DISCONNECT EVENT"),
        "rping -s after our client was killed: {theirs}"
    );
    Ok(())
}

/// Endless pings from the guest; our server is killed.
fn peer_loses_server(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (mut ours, port) = listen(bench, &[], None)?;
    let client = guest.spawn(&format!("rping -c -a {} -p {port}", guest.host_ip()))?;
    ours.wait_for("rdma-ping-20:", STEP)?;
    ours.kill()?;
    ours.wait(STEP)?;
    let theirs = guest.wait(client, STEP)?;
    ensure!(
        theirs.text.contains("client DISCONNECT EVENT"),
        "rping -c after our server was killed: {theirs}"
    );
    Ok(())
}

/// The text of ping number `n`: a prefix, then characters from `A` to `z` in a ring, one further on at each ping.
fn text(n: usize, size: usize) -> String {
    let mut text = String::with_capacity(size);
    let _ = write!(text, "rdma-ping-{n}: ");
    let ring = (b'A'..=b'z').cycle().skip(n % 58).map(char::from);
    let letters = size - 1 - text.len();
    text.extend(ring.take(letters));
    text
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn texts_are_those_that_rping_prints() {
        assert_eq!(text(0, 30), "rdma-ping-0: ABCDEFGHIJKLMNOP");
        assert_eq!(text(10, 30), "rdma-ping-10: KLMNOPQRSTUVWXY");
        assert_eq!(text(57, 30), "rdma-ping-57: zABCDEFGHIJKLMN");
        assert_eq!(text(58, 30), "rdma-ping-58: ABCDEFGHIJKLMNO");
        assert_eq!(text(3, 65535).len(), 65534);
    }
}
