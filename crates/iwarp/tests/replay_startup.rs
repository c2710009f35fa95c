//! Captures of Linux's kernel siw, byte for byte through the codecs.
//!
//! Each Request and Reply is parsed, and written again from what was parsed; each FPDU is deframed,
//! its headers are parsed and written again, and it is sealed again. What comes out must be what was
//! captured. The opcode counts were taken from the same files with tshark.

use std::collections::BTreeMap;

use iwarp::mpa::crc;
use iwarp::mpa::deframe::Deframer;
use iwarp::mpa::frame::{Crc, fpdu_len, seal};
use iwarp::mpa::startup::{CrcPolicy, Initiator, MAX_FRAME, Policy, Reply, Request};
use iwarp::wire::ddp::{self, Segment, TAGGED_LEN, UNTAGGED_LEN};
use iwarp::wire::mpa::FLAG_SIW_GSO;
use iwarp::wire::rdmap::ReadRequest;
use iwarp::wire::terminate::{Phase, TerminateMessage};
use iwarp::{Fault, Opcode};
use rnic_testkit::pcap::{self, Connection};

/// A capture, and for each of its connections: what start-up said and which messages' segments followed.
const CAPTURES: &[(&str, &[&str])] = &[
    ("siw-crc-strict-reject", &["V2 crc 4/4+0 -> rejected+0: "]),
    ("siw-crc", &["V2 crc 4/4+0 -> 4/4+20: Write 3, ReadRequest 1, ReadResponse 3, Send 7"]),
    ("siw-gso", &["V2 4/4+0 -> 4/4+20: Write 2, ReadRequest 1, ReadResponse 2, Send 5"]),
    ("siw-mpa-v1", &["V1 +2 -> +20: Write 1, ReadRequest 1, ReadResponse 1, Send 7"]),
    ("siw-p2p-read-rtr", &["V2 4/4+0 -> Read 4/4+20: Write 1, ReadRequest 2, ReadResponse 2, Send 7"]),
    ("siw-p2p-write-rtr", &["V2 4/4+0 -> Write 4/4+20: Write 2, ReadRequest 1, ReadResponse 1, Send 7"]),
    (
        "siw-private-data",
        &[
            "V2 4/4+25 -> 4/4+20: Send 2",
            "V2 4/4+192 -> 4/4+20: Send 2",
            "V2 1/1+0 -> 1/1+20: Send 2",
            "V2 4/4+6 -> rejected+9: ",
        ],
    ),
    (
        "siw-rping",
        &[
            "V2 1/1+0 -> 1/1+0: Write 5, ReadRequest 5, ReadResponse 5, Send 20",
            "V2 4/4+9 -> 4/4+20: Write 6, ReadRequest 3, ReadResponse 6, Send 18, SendInvalidate 1",
        ],
    ),
    (
        "siw-terminate",
        &[
            "V2 4/4+0 -> 4/4+20: Write 1, Terminate 1",
            "V2 4/4+0 -> 4/4+20: ReadRequest 1, Terminate 1",
            "V2 4/4+0 -> 4/4+20: Write 1, Terminate 1",
            "V2 4/4+0 -> 4/4+20: ReadRequest 1, Terminate 1",
            "V2 4/4+0 -> 4/4+20: Send 3, Terminate 1",
            "V2 4/4+0 -> 4/4+20: Send 1, Terminate 1",
        ],
    ),
    (
        "siw-unsupported",
        &[
            "V2 4/4+0 -> 4/4+20: ",
            "V2 4/4+0 -> 4/4+20: ",
            "V2 4/4+0 -> 4/4+20: ",
            "V2 4/4+0 -> 4/4+20: ",
            "V2 4/4+0 -> 4/4+20: Send 1, SendInvalidate 1",
        ],
    ),
    (
        "siw-vs-peer",
        &[
            "V2 4/4+0 -> 4/4+20: Write 3, ReadRequest 1, ReadResponse 3, Send 7",
            "V1 crc +2 -> +20: Write 1, ReadRequest 1, ReadResponse 1, Send 7",
            "V2 markers 4/4+0 -> rejected+0: ",
            "V2 4/4+0 -> Read 4/4+20: ReadRequest 1, ReadResponse 1, Send 3",
            // The peer's bad CRC, DDP version 3, opcode 8 and bad rkey; siw's Terminate to each.
            "V2 crc 4/4+0 -> 4/4+20: Terminate 1, Crc 1",
            "V2 4/4+0 -> 4/4+20: Terminate 1, TaggedVersion(3) 1",
            "V2 4/4+0 -> 4/4+20: Terminate 1, Immediate 1",
            "V2 4/4+0 -> 4/4+20: ReadRequest 1, Terminate 1",
        ],
    ),
];

fn capture(name: &str) -> Vec<Connection> {
    let path = format!("{}/tests/data/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let all = pcap::connections(&std::fs::read(path).unwrap()).unwrap();
    for c in &all {
        assert!(!c.from_client.gap && !c.from_server.gap, "{name}: holes in the capture");
    }
    all
}

/// Start-up of a connection: parsed, checked to be complete only at its last byte, and the initiator's policy.
fn start(c: &Connection) -> (Request, Policy, Reply) {
    let (asked, answered) = (&c.from_client.bytes, &c.from_server.bytes);
    let request = Request::parse(asked).unwrap().unwrap();
    let policy = Policy {
        revision: request.revision,
        fallback: false,
        crc: if request.crc { CrcPolicy::On } else { CrcPolicy::Off },
        send_markers: true,
        want_markers: request.markers,
        ord: request.ord.unwrap_or(9),
        ird: request.ird.unwrap_or(9),
        p2p: request.rtr,
        extensions: request.extensions,
    };
    let initiator = Initiator::new(policy.clone(), &asked[request.private_data.clone()]).unwrap();
    let reply = initiator.reply(answered).unwrap().unwrap();
    for cut in 0..request.consumed {
        assert_eq!(Request::parse(&asked[..cut]), Ok(None));
    }
    for cut in 0..reply.consumed {
        assert_eq!(initiator.reply(&answered[..cut]), Ok(None));
    }
    (request, policy, reply)
}

/// The frame as captured, less the bit of siw's experiment, which we never send.
fn captured(bytes: &[u8]) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    frame[16] &= !FLAG_SIW_GSO;
    frame
}

/// Writes both frames again from what was parsed.
fn check_startup(c: &Connection) -> String {
    let (request, policy, reply) = start(c);
    let (asked, answered) =
        (&c.from_client.bytes[..request.consumed], &c.from_server.bytes[..reply.consumed]);
    let mut out = [0xee; MAX_FRAME];
    let n = Initiator::new(policy.clone(), &asked[request.private_data.clone()]).unwrap().request(&mut out);
    assert_eq!(out[..n], captured(asked));

    let data = &answered[reply.private_data.clone()];
    // The responder's words, read by hand: IRD before ORD.
    let depth = |at: usize| match request.ord {
        Some(_) => u16::from_be_bytes([answered[at], answered[at + 1]]) & 0x3fff,
        None => 9,
    };
    let responder = Policy { want_markers: false, ird: depth(20), ord: depth(22), ..policy.clone() };
    let n = if reply.rejected {
        request.reject(&responder, data, &mut out).unwrap()
    } else {
        let (n, agreed) = request.accept(&responder, responder.ord, responder.ird, data, &mut out).unwrap();
        let ours = reply.negotiated;
        assert_eq!((ours.crc, ours.rtr, ours.ord), (agreed.crc, agreed.rtr, agreed.ird));
        assert!(!ours.extensions && !agreed.extensions && !ours.tx_markers && !ours.rx_markers);
        n
    };
    let mut want = captured(answered);
    // siw states its whole IRD, we what the initiator's ORD can use of it; the depths stay below 256 here.
    if let Some(ord) = request.ord.filter(|_| !reply.rejected) {
        want[21] = want[21].min(ord as u8);
    }
    assert_eq!(out[..n], want);
    describe(&request, &reply, data.len())
}

fn describe(request: &Request, reply: &Reply, reply_data: usize) -> String {
    let mut text = format!("{:?} ", request.revision);
    for (set, word) in [(request.crc, "crc "), (request.markers, "markers ")] {
        text += if set { word } else { "" };
    }
    let depths = |ird: Option<u16>, ord: Option<u16>| {
        ird.zip(ord).map(|(i, o)| format!("{i}/{o}")).unwrap_or_default()
    };
    text += &format!("{}+{} -> ", depths(request.ird, request.ord), request.private_data.len());
    if reply.rejected {
        text += "rejected";
    } else {
        text += &reply.negotiated.rtr.map(|r| format!("{r:?} ")).unwrap_or_default();
        let n = &reply.negotiated;
        text += &depths(request.ird.map(|_| n.ird), request.ord.map(|_| n.ord));
    }
    text + &format!("+{reply_data}: ")
}

/// What stands in one direction's FPDUs.
#[derive(Default)]
struct Seen {
    opcodes: BTreeMap<u8, usize>,
    faults: BTreeMap<String, usize>,
    terminates: Vec<TerminateMessage>,
}

/// Takes every FPDU of a direction apart and makes it again.
fn check_fpdus(stream: &[u8], crc: bool, seen: &mut Seen) {
    let mut deframer = Deframer::new(crc, false);
    let mut rest = stream.to_vec();
    while !rest.is_empty() {
        let total = deframer.peek(&rest).unwrap().expect("the stream ends within a length field");
        assert!(total <= rest.len(), "the stream ends within an FPDU");
        for cut in [0, 1] {
            assert_eq!(deframer.peek(&rest[..cut]), Ok(None));
        }
        let wire = rest[..total].to_vec();
        let result = deframer.take(&mut rest, total, crc::update);
        let segment = result.and_then(|range| ddp::parse_segment(&rest[range]));
        match segment {
            Ok(segment) => {
                check_segment(segment, seen);
                assert_eq!(fpdu(segment, &wire, crc), wire);
            }
            Err(fault) => {
                assert!(matches!(fault, Fault::Crc | Fault::TaggedVersion(_)), "{fault}");
                *seen.faults.entry(format!("{fault:?}")).or_default() += 1;
            }
        }
        rest.drain(..total);
    }
}

/// Reads what RDMAP put behind the DDP header.
fn check_segment(segment: Segment<'_>, seen: &mut Seen) {
    let (opcode, payload) = match segment {
        Segment::Tagged(h, payload) => (h.opcode, payload),
        Segment::Untagged(h, payload) => (h.opcode, payload),
    };
    *seen.opcodes.entry(opcode).or_default() += 1;
    match Opcode::from_wire(opcode) {
        Some(Opcode::ReadRequest) => {
            let mut again = [0; ReadRequest::LEN];
            ReadRequest::parse(payload).unwrap().write(&mut again);
            assert_eq!(again, payload);
        }
        Some(Opcode::Terminate) => {
            seen.terminates.push(TerminateMessage::decode_in(payload, Phase::Operation).unwrap());
        }
        _ => {}
    }
}

/// The FPDU that carries a segment. siw pads with whatever lies in its memory (RFC 5044 §4.1 wants
/// zeros), so the padding, and the sum with it, is made as in `wire`.
fn fpdu(segment: Segment<'_>, wire: &[u8], crc: bool) -> Vec<u8> {
    let mut ulpdu = Vec::new();
    let payload = match segment {
        Segment::Tagged(h, payload) => {
            let mut header = [0; TAGGED_LEN];
            h.write(&mut header);
            ulpdu.extend(header);
            payload
        }
        Segment::Untagged(h, payload) => {
            let mut header = [0; UNTAGGED_LEN];
            h.write(&mut header);
            ulpdu.extend(header);
            payload
        }
    };
    ulpdu.extend(payload);
    let mut buf = vec![0xee; fpdu_len(ulpdu.len())];
    buf[2..2 + ulpdu.len()].copy_from_slice(&ulpdu);
    let sum: Crc<'_> = &crc::update;
    assert_eq!(seal(&mut buf, ulpdu.len(), crc.then_some(sum)), buf.len());
    let (body, pad) = (buf.len() - 4, 2 + ulpdu.len()..buf.len() - 4);
    if wire.len() == buf.len() && buf[pad.clone()] != wire[pad.clone()] {
        assert!(buf[pad.clone()].iter().all(|&b| b == 0));
        buf[pad.clone()].copy_from_slice(&wire[pad]);
        if crc {
            let state = crc::update(crc::INIT, &buf[..body]);
            buf[body..].copy_from_slice(&crc::to_wire(state));
        }
    }
    buf
}

fn replay(c: &Connection) -> (String, Seen) {
    let mut text = check_startup(c);
    let (request, _, reply) = start(c);
    let mut seen = Seen::default();
    let (asked, answered) =
        (&c.from_client.bytes[request.consumed..], &c.from_server.bytes[reply.consumed..]);
    if reply.rejected {
        assert!(asked.is_empty() && answered.is_empty());
    } else {
        check_fpdus(asked, reply.negotiated.crc, &mut seen);
        check_fpdus(answered, reply.negotiated.crc, &mut seen);
    }
    let opcodes = seen.opcodes.iter().map(|(&o, n)| format!("{:?} {n}", Opcode::from_wire(o).unwrap()));
    let faults = seen.faults.iter().map(|(f, n)| format!("{f} {n}"));
    text += &opcodes.chain(faults).collect::<Vec<_>>().join(", ");
    (text, seen)
}

#[test]
fn every_frame_and_fpdu_of_every_capture() {
    for (name, want) in CAPTURES {
        let got: Vec<String> = capture(name).iter().map(|c| replay(c).0).collect();
        assert_eq!(got, *want, "{name}");
    }
}

#[test]
fn no_capture_is_left_out() {
    let dir = std::fs::read_dir(format!("{}/tests/data", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut names: Vec<String> = dir.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|n| n.ends_with(".pcap"));
    names.sort();
    assert_eq!(names, CAPTURES.iter().map(|(n, _)| format!("{n}.pcap")).collect::<Vec<_>>());
}

// rule 5040-4.8-5
#[test]
fn terminates_of_siw_are_understood() {
    let of = |name: &str| -> Vec<(String, usize, bool, bool)> {
        let connections = capture(name);
        let messages = connections.iter().flat_map(|c| replay(c).1.terminates);
        messages
            .map(|m| {
                (
                    m.terminate.name().to_owned(),
                    m.header().len(),
                    m.read_header.is_some(),
                    ddp::parse(m.header()).is_ok(),
                )
            })
            .collect()
    };
    let row = |name: &str, header: usize, read: bool| (name.to_owned(), header, read, header != 0);
    assert_eq!(
        of("siw-terminate"),
        [
            row("DDP tagged buffer error: invalid STag", 14, false),
            row("RDMAP remote protection error: invalid STag", 18, true),
            row("DDP tagged buffer error: base or bounds violation", 14, false),
            row("RDMAP remote protection error: base or bounds violation", 18, true),
            row("DDP untagged buffer error: no buffer available", 18, false),
            row("DDP untagged buffer error: no buffer available", 18, false),
        ]
    );
    assert_eq!(
        of("siw-vs-peer"),
        [
            row("MPA: CRC error", 0, false),
            row("DDP tagged buffer error: invalid DDP version", 0, false),
            row("RDMAP remote operation error: unexpected opcode", 0, false),
            row("RDMAP remote protection error: invalid STag", 18, true),
        ]
    );
}
