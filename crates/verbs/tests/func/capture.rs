//! `RNIC_PCAP`: what is recorded is what went over the wire, and tshark finds nothing wrong with it.

use std::path::{Path, PathBuf};

use rnic_testkit::pcap::{Connection, End, connections};
use rnic_verbs::iwarp::mpa::startup::{CrcPolicy, Policy, Revision};
use rnic_verbs::{
    Access, CompletionOp, ConnParams, ConnPolicy, Device, DeviceConfig, Error, FpduPolicy, ListenConfig,
    Listener, RecvWr, SendWr, Status, connect,
};

use crate::common::{PATIENCE, Side, join, pattern, side, wait_for};
use crate::tshark::decode;

/// A file of this test's own, in the build's directory for such things; gone when the test has passed.
struct Scratch(PathBuf);

fn scratch(name: &str) -> Scratch {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.pcap", std::process::id()));
    let _ = std::fs::remove_file(&path);
    Scratch(path)
}

impl std::ops::Deref for Scratch {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn recorded(path: &Path) -> DeviceConfig {
    let mut config = DeviceConfig::default();
    config.pcap = Some(path.to_path_buf());
    config
}

fn ends(a: &Path, b: &Path, policy: &ConnPolicy) -> (Side, Side) {
    let (a, b) = (side(recorded(a), |i| i), side(recorded(b), |i| i));
    join(&a, &b, policy);
    (a, b)
}

fn policies() -> Vec<ConnPolicy> {
    let mut all = Vec::new();
    for revision in [Revision::V1, Revision::V2] {
        for crc in [CrcPolicy::Off, CrcPolicy::On] {
            for want_markers in [false, true] {
                let mut policy = ConnPolicy::default();
                policy.mpa = Policy { revision, crc, want_markers, ..Policy::default() };
                if want_markers {
                    // tshark goes wrong where an FPDU has more than one marker: it takes them to lie 512 bytes
                    // apart from end to start, not from start to start (RFC 5044 §4.3).
                    policy.fpdu = FpduPolicy::Bytes(480);
                }
                all.push(policy);
            }
        }
    }
    all
}

fn mpa(revision: Revision, crc: CrcPolicy) -> ConnPolicy {
    let mut policy = ConnPolicy::default();
    policy.mpa = Policy { revision, crc, ..Policy::default() };
    policy
}

/// One message of every kind each way, all of them short, then a Write that `b` terminates.
fn exchange(a: &Side, b: &Side) {
    let extensions = a.qp.negotiated().unwrap().extensions;
    for (from, to) in [(a, b), (b, a)] {
        one_way(from, to, extensions);
    }
    let bad = rnic_verbs::RemoteBuffer { rkey: 0xdead_be00, addr: 0, len: 8 };
    let src = a.mr(8);
    a.qp.post_send(&SendWr::write(99, &[src.sge(0, 8)], bad)).unwrap();
    assert!(a.qp.wait_disconnected(Some(PATIENCE)).is_some());
    assert!(b.qp.wait_disconnected(Some(PATIENCE)).is_some());
}

fn one_way(from: &Side, to: &Side, extensions: bool) {
    let (src, dst) = (from.mr(64), to.mr(64));
    src.write_at(0, &pattern(64, 1)).unwrap();
    let sge = [src.sge(0, 61)];
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let victims = [to.pd.register(8, all).unwrap(), to.pd.register(8, all).unwrap()];
    let receives = if extensions { 6 } else { 4 };
    for i in 0..receives {
        to.qp.post_recv(&RecvWr::new(i, &[dst.sge(0, 64)])).unwrap();
    }
    let r = dst.remote();
    let mut wrs = vec![
        SendWr::write(0, &sge, r),
        SendWr::read(1, &sge, r),
        SendWr::send(2, &sge),
        SendWr::send(3, &sge).solicited(),
        SendWr::send_invalidate(4, &sge, victims[0].rkey()),
        SendWr::send_invalidate(5, &sge, victims[1].rkey()).solicited(),
    ];
    let word = src.sge(0, 8);
    if extensions {
        wrs.extend([
            SendWr::fetch_add(6, &word, r, 1),
            SendWr::cmp_swap(7, &word, r, 1, 2),
            SendWr::swap(8, &word, r, 3),
            SendWr::immediate(9, 0x1122_3344_5566_7788),
            SendWr::immediate(10, 5).solicited(),
        ]);
    }
    from.qp.post_send_list(&wrs).unwrap();
    for (i, c) in from.completions(wrs.len()).iter().enumerate() {
        assert_eq!((c.wr_id, c.status), (i as u64, Status::Success));
    }
    for c in to.completions(receives as usize) {
        assert_eq!(c.status, Status::Success);
        assert!(matches!(c.opcode, CompletionOp::Recv | CompletionOp::RecvImmediate));
    }
}

/// FPDUs of [`exchange`] by opcode: two rounds, and a Write with its Terminate.
fn expected(opcode: u8, extensions: bool) -> usize {
    match opcode {
        0 => 3,
        1..=6 => 2,
        7 => 1,
        8 | 9 if extensions => 2,
        10 | 11 if extensions => 6,
        _ => 0,
    }
}

#[test]
fn tshark_decodes_every_opcode_in_every_mode() {
    let path = scratch("modes");
    let mut plain = 0;
    let mut total = [0; 12];
    let (mut crcs, mut marked) = (0, 0);
    for policy in policies() {
        let (a, b) = ends(&path, &path, &policy);
        let n = a.qp.negotiated().unwrap();
        exchange(&a, &b);
        for (opcode, total) in total.iter_mut().enumerate() {
            *total += expected(opcode as u8, n.extensions);
        }
        let fpdus: usize = (0..12).map(|o| expected(o, n.extensions)).sum();
        crcs += if n.crc { fpdus } else { 0 };
        marked += usize::from(n.tx_markers) + usize::from(n.rx_markers);
        plain += 1;
    }
    settle(&path, plain);
    let Some(d) = decode(&path) else { return };
    assert_eq!(d.faults, Vec::<String>::new());
    for (opcode, total) in total.iter().enumerate() {
        assert_eq!(d.count(opcode as u8), *total, "opcode {opcode}: {d:?}");
    }
    assert_eq!((d.good_crcs, d.requests, d.replies), (crcs, plain, plain), "{d:?}");
    assert!(d.markers >= marked, "{d:?}");
    assert_eq!((d.syns, d.fins), (2 * plain, 2 * plain), "{d:?}");
    // One frame or FPDU each.
    assert_eq!(d.data_segments, 2 * plain + d.fpdus(), "{d:?}");
    assert_eq!(d.good_checksums, 2 * d.segments, "{d:?}");
}

/// Waits until the closing FINs of `n` connections are in: sockets linger in the background.
fn settle(path: &Path, n: usize) {
    wait_for(|| {
        let all = connections(&std::fs::read(path).unwrap()).unwrap();
        all.len() == n && all.iter().all(|c| c.from_client.end == End::Fin && c.from_server.end == End::Fin)
    });
}

/// The connections of a capture, once `n` of them are over.
fn recorded_connections(path: &Path, n: usize) -> Vec<Connection> {
    settle(path, n);
    connections(&std::fs::read(path).unwrap()).unwrap()
}

/// Each end records what it receives as well, where the other end is not in the same capture.
#[test]
fn both_ends_record_the_same_streams_byte_for_byte() {
    let (at_a, at_b) = (scratch("one"), scratch("other"));
    let (policies, mut fpdus) = (policies(), 0);
    let big = pattern(150_000, 9);
    for policy in &policies {
        let (a, b) = ends(&at_a, &at_b, policy);
        let (src, dst) = (a.mr(big.len()), b.mr(big.len()));
        src.write_at(0, &big).unwrap();
        let sge = [src.sge(0, big.len() as u32)];
        a.qp.post_send(&SendWr::write(0, &sge, dst.remote())).unwrap();
        a.qp.post_send(&SendWr::read(1, &sge, dst.remote())).unwrap();
        a.completions(2);
        exchange(&a, &b);
        fpdus += (a.qp.counters().tx_fpdus + b.qp.counters().tx_fpdus) as usize;
    }
    let n = policies.len();
    let (ones, others) = (recorded_connections(&at_a, n), recorded_connections(&at_b, n));
    for (one, other) in ones.iter().zip(&others) {
        assert_eq!((one.client, one.server), (other.client, other.server));
        assert!(!one.from_client.gap && !one.from_server.gap && !other.from_client.gap);
        assert!(one.from_client.bytes == other.from_client.bytes);
        assert!(one.from_server.bytes == other.from_server.bytes);
    }
    let Some((d, e)) = decode(&at_a).zip(decode(&at_b)) else { return };
    assert_eq!((d.faults, e.faults), (Vec::new(), Vec::new()));
    assert_eq!((&d.opcodes, d.opcodes.values().sum::<usize>()), (&e.opcodes, fpdus));
    assert_eq!((d.data_segments, e.data_segments), (fpdus + 2 * n, fpdus + 2 * n));
}

#[test]
fn the_longest_fpdus_are_one_packet_each() {
    let path = scratch("large");
    let mut policy = mpa(Revision::V2, CrcPolicy::On);
    policy.fpdu = FpduPolicy::Large;
    let (a, b) = ends(&path, &path, &policy);
    let (src, dst) = (a.mr(200_000), b.mr(200_000));
    a.qp.post_send(&SendWr::write(0, &[src.sge(0, 200_000)], dst.remote()).unsignaled()).unwrap();
    a.qp.post_send(&SendWr::read(1, &[src.sge(0, 8)], dst.remote())).unwrap();
    a.completion();
    drop((a, b));
    settle(&path, 1);
    let Some(d) = decode(&path) else { return };
    assert_eq!(d.faults, Vec::<String>::new());
    // 200,000 bytes are three of our longest FPDUs (RFC 5044 §4.5) and the rest.
    assert_eq!((d.count(0), d.good_crcs, d.data_segments), (4, 6, 2 + 6), "{d:?}");
    // The decoder would have noticed.
    let mut bytes = std::fs::read(&*path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&*path, bytes).unwrap();
    let faults = decode(&path).unwrap().faults;
    assert!(
        faults.iter().any(|f| f.contains("CRC")) && faults.iter().any(|f| f.contains("Checksum")),
        "{faults:?}"
    );
}

#[test]
fn ipv6_and_a_reject_are_recorded() {
    let path = scratch("six");
    let (a, b) = (side(recorded(&path), |i| i), side(recorded(&path), |i| i));
    let listener = Listener::bind(&b.device, "[::1]:0".parse().unwrap(), ListenConfig::default()).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| listener.accept(Some(PATIENCE)).unwrap().reject(b"no").unwrap());
        let refused = connect(&a.qp, addr, ConnParams::with_private_data(*b"may I?"));
        assert!(matches!(refused, Err(Error::Rejected { private_data, .. }) if private_data == b"no"));
    });
    let c = recorded_connections(&path, 1).remove(0);
    assert_eq!(c.server, addr);
    assert!(c.from_client.bytes.ends_with(b"may I?") && c.from_server.bytes.ends_with(b"no"));
    let Some(d) = decode(&path) else { return };
    assert_eq!(d.faults, Vec::<String>::new());
    assert_eq!((d.requests, d.replies, d.fpdus()), (1, 1, 0));
}

#[test]
fn the_error_names_the_file_and_the_cause() {
    let error = Device::open(recorded(Path::new("/nonexistent/dir/x.pcap"))).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/dir/x.pcap") && error.contains("No such file"), "{error}");
}

/// The other process of the test below: captures by the environment variable until it is killed.
#[test]
fn child() {
    let Some(stay) = std::env::var_os("RNIC_TEST_CAPTURE_CHILD") else { return };
    let (a, b) = (side(DeviceConfig::default(), |i| i), side(DeviceConfig::default(), |i| i));
    join(&a, &b, &mpa(Revision::V2, CrcPolicy::On));
    let (src, dst) = (a.mr(64), b.mr(64));
    for i in 0..100 {
        let sge = [src.sge(0, 64)];
        a.qp.post_send(&SendWr::write(i, &sge, dst.remote())).unwrap();
        a.completion();
    }
    std::fs::write(&stay, b"").unwrap();
    loop {
        std::thread::park();
    }
}

/// Two processes at once with one `RNIC_PCAP`: two captures, and SIGKILL takes nothing from either.
#[test]
fn killed_processes_leave_readable_captures() {
    let path = scratch("killed");
    let done = [scratch("done-1"), scratch("done-2")];
    let mut children: Vec<_> = Vec::new();
    for flag in &done {
        let mut c = std::process::Command::new(std::env::current_exe().unwrap());
        c.args(["--exact", "capture::child", "--nocapture"]);
        c.env("RNIC_PCAP", &*path).env("RNIC_TEST_CAPTURE_CHILD", &**flag);
        children.push(c.stdout(std::process::Stdio::null()).spawn().unwrap());
        wait_for(|| flag.exists());
    }
    let second = Scratch(format!("{}.{}", path.display(), children[1].id()).into());
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for capture in [&*path, &*second] {
        let all = connections(&std::fs::read(capture).unwrap()).unwrap();
        assert_eq!((all.len(), all[0].from_client.end), (1, End::Open));
        let Some(d) = decode(capture) else { return };
        assert_eq!((d.faults, d.opcodes[&0], d.good_crcs), (Vec::new(), 100, 100));
    }
}
