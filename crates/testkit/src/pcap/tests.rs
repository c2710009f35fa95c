use super::*;

const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 1], 40000);
const SERVER: ([u8; 4], u16) = ([10, 0, 0, 2], 7471);

fn tcp(from: u16, to: u16, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut t = Vec::new();
    t.extend(from.to_be_bytes());
    t.extend(to.to_be_bytes());
    t.extend(seq.to_be_bytes());
    t.extend([0, 0, 0, 0, 0x60, flags, 0xff, 0xff, 0, 0, 0, 0, 1, 1, 1, 0]); // 4 bytes of options
    t.extend(payload);
    t
}

/// An Ethernet frame with padding behind the packet.
fn ethernet(from: ([u8; 4], u16), to: ([u8; 4], u16), seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let tcp = tcp(from.1, to.1, seq, flags, payload);
    let mut f = vec![0; 12];
    f.extend([8, 0, 0x45, 0]);
    f.extend((20 + tcp.len() as u16).to_be_bytes());
    f.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    f.extend(from.0);
    f.extend(to.0);
    f.extend(tcp);
    f.extend([0xee; 6]);
    f
}

fn file(link: u32, big: bool, frames: &[Vec<u8>]) -> Vec<u8> {
    let word = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let mut out = word(0xa1b2_c3d4).to_vec();
    out.extend([0; 16]);
    out.extend(word(link));
    for f in frames {
        out.extend([0; 8]);
        out.extend(word(f.len() as u32));
        out.extend(word(f.len() as u32));
        out.extend(f);
    }
    out
}

fn c(seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(CLIENT, SERVER, seq, flags, payload)
}

fn s(seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(SERVER, CLIENT, seq, flags, payload)
}

fn one(frames: &[Vec<u8>]) -> Connection {
    let mut all = connections(&file(LINK_ETHERNET, false, frames)).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn both_streams_of_a_connection() {
    for big in [false, true] {
        let frames = [
            c(100, SYN, b""),
            s(900, SYN | ACK, b""),
            c(101, ACK, b"hello "),
            s(901, ACK, b"answer"),
            c(107, ACK, b"there"),
            c(112, ACK | FIN, b""),
            s(907, ACK | RST, b""),
        ];
        let all = connections(&file(LINK_ETHERNET, big, &frames)).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].client.to_string(), all[0].server.port()), ("10.0.0.1:40000".into(), 7471));
        assert_eq!(all[0].from_client, Stream { bytes: b"hello there".to_vec(), end: End::Fin, gap: false });
        assert_eq!(all[0].from_server, Stream { bytes: b"answer".to_vec(), end: End::Reset, gap: false });
    }
}

#[test]
fn reordered_repeated_and_overlapping_segments() {
    let got = one(&[
        c(10, SYN, b""),
        c(10, SYN, b""),
        c(15, ACK, b"efgh"),
        c(11, ACK, b"abcd"),
        c(13, ACK, b"cdef"),
        c(10, ACK, b"X"), // keep-alive probe before the start
        c(19, ACK, b"ij"),
        c(18, ACK, b"hi"),
    ]);
    assert_eq!((&got.from_client.bytes[..], got.from_client.gap), (&b"abcdefghij"[..], false));
}

#[test]
fn sequence_numbers_wrap() {
    let got = one(&[c(u32::MAX - 2, SYN, b""), c(2, ACK, b"efg"), c(u32::MAX - 1, ACK, b"abcd")]);
    assert_eq!(got.from_client.bytes, b"abcdefg");
}

#[test]
fn a_hole_ends_the_stream_and_is_told() {
    let got = one(&[c(0, SYN, b""), c(1, ACK, b"abc"), c(5, ACK, b"xyz")]);
    assert_eq!((&got.from_client.bytes[..], got.from_client.gap), (&b"abc"[..], true));
}

#[test]
fn the_same_ports_again_are_another_connection() {
    let frames =
        [c(0, SYN, b""), c(1, ACK, b"one"), c(5000, SYN, b""), s(7, SYN | ACK, b""), c(5001, ACK, b"two")];
    let all = connections(&file(LINK_ETHERNET, false, &frames)).unwrap();
    assert_eq!(all.iter().map(|c| &c.from_client.bytes[..]).collect::<Vec<_>>(), [b"one", b"two"]);
}

#[test]
fn without_the_syn_the_answer_or_the_first_sender_tells_who_is_client() {
    let got = one(&[s(7, SYN | ACK, b""), c(1, ACK, b"a"), s(8, ACK, b"b")]);
    assert_eq!((got.client.port(), &got.from_server.bytes[..]), (CLIENT.1, &b"b"[..]));
    let got = one(&[c(1, ACK, b"a"), s(8, ACK, b"b")]);
    assert_eq!((got.client.port(), &got.from_server.bytes[..]), (CLIENT.1, &b"b"[..]));
}

#[test]
fn raw_ipv6_and_cooked_frames() {
    let tcp = tcp(1, 2, 5, SYN, b"data");
    let mut v6 = vec![0x60, 0, 0, 0];
    v6.extend((tcp.len() as u16).to_be_bytes());
    v6.extend([6, 64]);
    v6.extend(Ipv6Addr::LOCALHOST.octets());
    v6.extend(Ipv6Addr::UNSPECIFIED.octets());
    v6.extend(&tcp);
    let mut cooked = vec![0; 16];
    cooked.extend(&v6);
    for (link, frame) in [(LINK_RAW, v6), (LINK_COOKED, cooked)] {
        let all = connections(&file(link, false, &[frame])).unwrap();
        assert_eq!(
            (all[0].client.to_string(), &all[0].from_client.bytes[..]),
            ("[::1]:1".into(), &b"data"[..])
        );
    }
}

#[test]
fn what_is_no_capture_is_refused() {
    assert_eq!(connections(b""), Err(PcapError::Format));
    assert_eq!(connections(&[0x0a; 40]), Err(PcapError::Format));
    assert_eq!(connections(&file(147, false, &[])), Err(PcapError::LinkType(147)));
    let whole = file(LINK_ETHERNET, false, &[c(0, SYN, b"")]);
    for cut in 25..whole.len() {
        assert_eq!(connections(&whole[..cut]), Err(PcapError::Truncated), "{cut}");
    }
}

#[test]
fn other_traffic_and_runts_are_passed_over() {
    let mut udp = c(0, 0, b"");
    udp[14 + 9] = 17;
    let mut fragment = c(0, 0, b"");
    fragment[14 + 7] = 1;
    let whole = c(0, ACK, b"payload");
    let mut frames = vec![udp, fragment, vec![0; 60]];
    frames.extend((0..14 + 20 + 24).map(|cut| whole[..cut].to_vec()));
    assert_eq!(connections(&file(LINK_ETHERNET, false, &frames)), Ok(vec![]));
}
