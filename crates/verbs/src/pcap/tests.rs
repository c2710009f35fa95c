//! Cutting at FPDU boundaries, and packets read back by another parser.

use etherparse::SlicedPacket;
use iwarp::mpa::{frame, marker::MarkerTx};
use proptest::prelude::*;

use super::cut::Cutter;
use super::*;

/// FPDUs of these ULPDU lengths, as they are on the wire.
fn stream(lengths: &[usize], markers: bool) -> Vec<Vec<u8>> {
    let mut tx = MarkerTx::new();
    let one = |len: usize, tx: &mut MarkerTx| {
        let mut fpdu = vec![0x41; frame::fpdu_len(len)];
        frame::seal(&mut fpdu, len, None);
        if !markers {
            return fpdu;
        }
        let mut framed = vec![0; tx.framed_len(len)];
        tx.seal(&fpdu, &mut framed, None);
        framed
    };
    lengths.iter().map(|len| one(*len, &mut tx)).collect()
}

proptest! {
    #[test]
    fn received_bytes_are_cut_into_fpdus_however_they_come(
        lengths in prop::collection::vec(14usize..2000, 1..12),
        markers: bool,
        chunk in 1usize..700,
    ) {
        let fpdus = stream(&lengths, markers);
        let mut cutter = Cutter::default();
        cutter.start(markers);
        let mut got = Vec::new();
        for part in fpdus.concat().chunks(chunk) {
            cutter.push(part);
            got.extend(std::iter::from_fn(|| cutter.next()));
        }
        prop_assert_eq!(got, fpdus);
        prop_assert!(cutter.rest().is_empty());
    }
}

/// A stream that is no FPDUs (a faulty peer's) is recorded all the same, each byte once.
#[test]
fn nonsense_is_given_as_it_comes() {
    let mut cutter = Cutter::default();
    cutter.start(false);
    let mut got = Vec::new();
    for part in [&[0u8, 1, 2, 3][..], &[4, 5], &[6]] {
        cutter.push(part);
        got.extend(std::iter::from_fn(|| cutter.next()));
    }
    assert_eq!(got.concat(), [0, 1, 2, 3, 4, 5, 6]);
}

fn capture(name: &str) -> (Pcap, PathBuf) {
    let path = std::env::temp_dir().join(format!("rnic-{name}-{}.pcap", std::process::id()));
    (Pcap::create(&path).unwrap(), path)
}

/// The packets of a capture, each without its record header.
fn packets(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let _ = std::fs::remove_file(path);
    let mut rest = &bytes[24..];
    let mut all = Vec::new();
    while let Some(len) = rest.get(8..12) {
        let len = u32::from_ne_bytes(len.try_into().unwrap()) as usize;
        all.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    all
}

/// Source port, sequence number, acknowledgement, flags (S, A, F) and payload length of each packet.
fn read_back(packets: &[Vec<u8>]) -> Vec<(u16, u32, u32, String, usize)> {
    packets
        .iter()
        .map(|packet| {
            let sliced = SlicedPacket::from_ip(packet).unwrap();
            let Some(etherparse::TransportSlice::Tcp(tcp)) = sliced.transport else {
                panic!("no TCP: {packet:?}")
            };
            let flags = [(tcp.syn(), 'S'), (tcp.ack(), 'A'), (tcp.fin(), 'F')];
            let flags = flags.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
            let seq = (tcp.sequence_number(), tcp.acknowledgment_number());
            (tcp.source_port(), seq.0, seq.1, flags, tcp.payload().len())
        })
        .collect()
}

#[test]
fn one_end_records_both_directions_of_its_connection() {
    let (pcap, path) = capture("one-end");
    let (a, b) = ("192.0.2.1:1000".parse().unwrap(), "192.0.2.2:2000".parse().unwrap());
    let flow = pcap.0.open(a, b, Side::Initiator);
    flow.sent(&[1; 20]);
    flow.startup_received(&[2; 24]);
    lock(&flow.cutter).start(false);
    let fpdu = stream(&[30], false).concat();
    flow.received(&fpdu[..10]);
    flow.received(&fpdu[10..]);
    flow.received(&fpdu[..3]);
    drop(flow);
    let got = read_back(&packets(&path));
    let (x, y) = (got[0].1, got[1].1);
    let at = |base: u32, n: u32| base.wrapping_add(n);
    let len = fpdu.len();
    let expected = [
        (1000, x, 0, "S", 0),
        (2000, y, at(x, 1), "SA", 0),
        (1000, at(x, 1), at(y, 1), "A", 0),
        (1000, at(x, 1), at(y, 1), "A", 20),
        (2000, at(y, 1), at(x, 21), "A", 24),
        (2000, at(y, 25), at(x, 21), "A", len),
        // Cut off in mid-FPDU.
        (2000, at(y, 25 + len as u32), at(x, 21), "A", 3),
        (1000, at(x, 21), at(y, 28 + len as u32), "AF", 0),
        (2000, at(y, 28 + len as u32), at(x, 22), "AF", 0),
        (1000, at(x, 22), at(y, 29 + len as u32), "A", 0),
    ];
    let got: Vec<_> = got.iter().map(|(p, s, a, f, l)| (*p, *s, *a, f.as_str(), *l)).collect();
    assert_eq!(got, expected);
}

/// A peer's FPDU may have 65,544 bytes, and markers; an IP packet has room for less.
#[test]
fn what_exceeds_a_packet_is_split() {
    let (pcap, path) = capture("split");
    let flow = pcap.0.open("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap(), Side::Initiator);
    lock(&flow.cutter).start(false);
    let fpdu = stream(&[65_535], false).concat();
    fpdu.chunks(50_000).for_each(|part| flow.received(part));
    drop(flow);
    let all = packets(&path);
    let lengths: Vec<_> = read_back(&all).iter().map(|p| p.4).filter(|len| *len > 0).collect();
    assert_eq!(lengths, [65_495, fpdu.len() - 65_495]);
    assert_eq!(all.iter().map(Vec::len).max(), Some(65_535));
}

/// Both ends here: what one receives is what the other sent, so it is recorded once.
#[test]
fn two_ends_in_one_process_are_one_connection() {
    let (pcap, path) = capture("two-ends");
    let (a, b) = ("[::1]:1000".parse().unwrap(), "[::1]:2000".parse().unwrap());
    let one = pcap.0.open(a, b, Side::Initiator);
    one.sent(&[1; 20]);
    let two = pcap.0.open(b, a, Side::Responder);
    two.startup_received(&[1; 20]);
    two.sent(&[2; 20]);
    one.startup_received(&[2; 20]);
    let fpdu = stream(&[30], false).concat();
    one.sent(&fpdu);
    two.received(&fpdu);
    drop(one);
    two.sent(&fpdu);
    drop(two);
    // The same ports again: another connection.
    drop(pcap.0.open(a, b, Side::Initiator));
    let got = read_back(&packets(&path));
    let shown: Vec<_> = got.iter().map(|(port, _, _, flags, len)| format!("{port} {flags} {len}")).collect();
    let n = fpdu.len();
    let mut expected = vec!["1000 S 0".into(), "2000 SA 0".into(), "1000 A 0".into()];
    expected.extend(["1000 A 20".into(), "2000 A 20".into(), format!("1000 A {n}")]);
    expected.extend(["1000 AF 0".into(), format!("2000 A {n}"), "2000 AF 0".into(), "1000 A 0".into()]);
    expected.extend(["1000 S 0", "2000 SA 0", "1000 A 0"].map(String::from));
    expected.extend(["1000 AF 0", "2000 AF 0", "1000 A 0"].map(String::from));
    assert_eq!(shown, expected);
    assert_ne!(got[0].1, got[10].1);
}

#[test]
fn devices_that_name_one_path_share_a_file() {
    let (one, path) = capture("shared");
    let two = Pcap::create(&path).unwrap();
    assert!(Arc::ptr_eq(&one.0, &two.0));
    assert_eq!(packets(&path).len(), 0);
}
