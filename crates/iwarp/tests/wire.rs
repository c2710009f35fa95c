//! Header codecs against bytes written by hand.

use iwarp::wire::ddp::{self, Header, Segment, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use iwarp::wire::rdmap::{self, AtomicResponse, ReadRequest};
use iwarp::wire::terminate::{self, MAX_LEN, Phase, TerminateMessage};
use iwarp::{AtomicOp, AtomicRequest, Fault, Opcode, Stag, Terminate};
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

const TAGGED: Tagged = Tagged { last: true, opcode: 0, stag: Stag(0x0102_0304), to: 0x1122_3344_5566_7788 };
const UNTAGGED: Untagged = Untagged {
    last: false,
    opcode: 4,
    inv_stag: Stag(0xa1a2_a3a4),
    qn: 1,
    msn: 0xb1b2_b3b4,
    mo: 0xc1c2_c3c4,
};

// --- DDP ---

// rule 5041-4.2-1, 5041-4.1-2
#[test]
fn tagged_header_bytes() {
    let mut out = [0xee; TAGGED_LEN];
    TAGGED.write(&mut out);
    assert_eq!(out.to_vec(), hex("c1 40 01020304 1122334455667788"));
    assert_eq!(ddp::parse(&out), Ok(Header::Tagged(TAGGED)));
    Tagged { last: false, opcode: 2, ..TAGGED }.write(&mut out);
    assert_eq!(out[..2], [0x81, 0x42]);
}

// rule 5041-4.3-1, 5041-4.1-5, 5040-4.1-4
#[test]
fn untagged_header_bytes() {
    let mut out = [0xee; UNTAGGED_LEN];
    UNTAGGED.write(&mut out);
    assert_eq!(out.to_vec(), hex("01 44 a1a2a3a4 00000001 b1b2b3b4 c1c2c3c4"));
    assert_eq!(ddp::parse(&out), Ok(Header::Untagged(UNTAGGED)));
    Untagged { last: true, ..UNTAGGED }.write(&mut out);
    assert_eq!(out[0], 0x41);
}

#[test]
fn opcode_beyond_four_bits_does_not_reach_the_version() {
    let mut out = [0; TAGGED_LEN];
    Tagged { opcode: 0xff, ..TAGGED }.write(&mut out);
    assert_eq!(out[1], 0x4f);
}

// rule 5041-4.1-1
#[test]
fn header_lengths() {
    for first in 0..=255u8 {
        assert_eq!(ddp::header_len(first), if first & 0x80 != 0 { 14 } else { 18 });
    }
    assert_eq!(Header::Tagged(TAGGED).len(), 14);
    assert_eq!(Header::Untagged(UNTAGGED).len(), 18);
}

// rule 5041-4.4-1
#[test]
fn short_headers_are_length_faults() {
    let tagged = hex("c1 40 01020304 1122334455667788");
    let untagged = hex("01 44 a1a2a3a4 00000001 b1b2b3b4 c1c2c3c4");
    for whole in [tagged, untagged] {
        for cut in 0..whole.len() {
            assert_eq!(ddp::parse(&whole[..cut]), Err(Fault::FpduLength(cut as u32)));
        }
    }
}

// rule 5041-4.1-4, 5040-4.1-1
#[test]
fn every_version_but_one_is_a_fault() {
    for dv in 0..4u8 {
        for rv in 0..4u8 {
            let mut tagged = [0u8; 18];
            (tagged[0], tagged[1]) = (0xc0 | dv, rv << 6);
            let mut untagged = [0u8; 18];
            (untagged[0], untagged[1]) = (0x40 | dv, rv << 6 | 3);
            let (t, u) = (ddp::parse(&tagged), ddp::parse(&untagged));
            match (dv, rv) {
                (1, 1) => assert!(t.is_ok() && u.is_ok()),
                (1, _) => assert_eq!((t, u), (Err(Fault::RdmapVersion(rv)), Err(Fault::RdmapVersion(rv)))),
                _ => assert_eq!((t, u), (Err(Fault::TaggedVersion(dv)), Err(Fault::UntaggedVersion(dv)))),
            }
        }
    }
}

// rule 5041-4.1-3, 5040-4.1-2
#[test]
fn reserved_bits_are_ignored_on_receipt() {
    let bytes = hex("fd 70 01020304 1122334455667788");
    assert_eq!(ddp::parse(&bytes), Ok(Header::Tagged(TAGGED)));
}

#[test]
fn segment_is_header_and_payload() {
    let bytes = hex("c1 40 01020304 1122334455667788 aabb");
    assert_eq!(ddp::parse_segment(&bytes), Ok(Segment::Tagged(TAGGED, &[0xaa, 0xbb])));
    assert_eq!(ddp::parse_segment(&bytes[..14]), Ok(Segment::Tagged(TAGGED, &[])));
    let bytes = hex("01 44 a1a2a3a4 00000001 b1b2b3b4 c1c2c3c4 cc");
    assert_eq!(ddp::parse_segment(&bytes), Ok(Segment::Untagged(UNTAGGED, &[0xcc])));
}

// --- RDMAP ---

const READ: ReadRequest = ReadRequest {
    sink_stag: Stag(0x0102_0304),
    sink_to: 0x1112_1314_1516_1718,
    len: 0x2122_2324,
    src_stag: Stag(0x3132_3334),
    src_to: 0x4142_4344_4546_4748,
};

// rule 5040-4.4-1
#[test]
fn read_request_bytes() {
    let mut out = [0; ReadRequest::LEN];
    READ.write(&mut out);
    assert_eq!(out.to_vec(), hex("01020304 1112131415161718 21222324 31323334 4142434445464748"));
    assert_eq!(ReadRequest::parse(&out), Some(READ));
    assert_eq!(ReadRequest::parse(&out[..27]), None);
    assert_eq!(ReadRequest::parse(&[0; 29]), None);
}

// rule 7306-5.2.1-1, 7306-5.2.1-2
#[test]
fn atomic_request_bytes() {
    let request = AtomicRequest {
        op: AtomicOp::CmpSwap,
        id: 0x0102_0304,
        stag: Stag(0x1112_1314),
        to: 0x2122_2324_2526_2728,
        add_swap: 0x31,
        add_swap_mask: 0x41,
        compare: 0x51,
        compare_mask: 0x61,
    };
    let mut out = [0; rdmap::ATOMIC_REQUEST_LEN];
    rdmap::write_atomic(&request, &mut out);
    let want = hex("00000002 01020304 11121314 2122232425262728 0000000000000031 0000000000000041 \
         0000000000000051 0000000000000061");
    assert_eq!(out.to_vec(), want);
    assert_eq!(rdmap::parse_atomic(&out), Ok(request));
    // The 28 bits above the operation are reserved.
    out[0] = 0xff;
    out[3] = 0xf2;
    assert_eq!(rdmap::parse_atomic(&out), Ok(request));
    for op in 3..16u8 {
        out[3] = op;
        assert_eq!(rdmap::parse_atomic(&out), Err(Fault::AtomicOpcode(op.into())));
    }
    let length = Err(Fault::MessageLength(Opcode::AtomicRequest));
    assert_eq!(rdmap::parse_atomic(&out[..51]), length);
    assert_eq!(rdmap::parse_atomic(&[0; 53]), length);
}

// rule 7306-5.2.2-1
#[test]
fn atomic_response_bytes() {
    let response = AtomicResponse { id: 0x0102_0304, original: 0x1112_1314_1516_1718 };
    let mut out = [0; AtomicResponse::LEN];
    response.write(&mut out);
    assert_eq!(out.to_vec(), hex("01020304 1112131415161718"));
    assert_eq!(AtomicResponse::parse(&out), Some(response));
    assert_eq!(AtomicResponse::parse(&out[1..]), None);
}

// --- Terminate ---

const WRITE_SEGMENT: &str = "c1 40 01020304 1122334455667788 aabbccdd";
const READ_SEGMENT: &str = "41 41 00000000 00000001 00000007 00000000 \
                            01020304 1112131415161718 21222324 31323334 4142434445464748";

fn encoded(t: Terminate, offending: Option<&[u8]>, len: usize) -> Vec<u8> {
    let mut out = [0xee; MAX_LEN];
    let n = terminate::encode(t, offending, len, &mut out);
    out[..n].to_vec()
}

// rule 5040-4.8-1, 5040-4.8-2
#[test]
fn terminate_of_a_write_carries_the_tagged_header() {
    let t = Terminate { layer: 1, etype: 1, code: 0 };
    let bytes = encoded(t, Some(&hex(WRITE_SEGMENT)), 1442);
    assert_eq!(bytes, hex("11 00 c000 05a2 c1 40 01020304 1122334455667788"));
    let got = TerminateMessage::decode(&bytes).unwrap();
    assert_eq!((got.terminate, got.swapped, got.segment_len), (t, false, Some(1442)));
    assert_eq!(got.header(), &hex(WRITE_SEGMENT)[..14]);
    assert_eq!(got.read_header, None);
}

// rule 5040-4.8-3
#[test]
fn terminate_of_a_read_carries_both_headers() {
    let t = Terminate { layer: 0, etype: 1, code: 1 };
    let segment = hex(READ_SEGMENT);
    let bytes = encoded(t, Some(&segment), segment.len());
    assert_eq!(bytes.len(), MAX_LEN);
    assert_eq!(bytes[..6], hex("01 01 e000 002e")[..]);
    assert_eq!(bytes[6..], segment[..]);
    let got = TerminateMessage::decode(&bytes).unwrap();
    assert_eq!((got.terminate, got.segment_len), (t, Some(46)));
    assert_eq!(got.header(), &segment[..18]);
    assert_eq!(got.read_header, Some(READ));
}

#[test]
fn terminate_of_ddp_carries_no_read_header() {
    let segment = hex(READ_SEGMENT);
    let bytes = encoded(Terminate { layer: 1, etype: 2, code: 3 }, Some(&segment), segment.len());
    assert_eq!(bytes[..6], hex("12 03 c000 002e")[..]);
    assert_eq!(bytes[6..], segment[..18]);
}

// rule 5040-4.8-3
#[test]
fn terminate_without_segment_or_of_mpa_and_local_errors_is_four_bytes() {
    let segment = hex(WRITE_SEGMENT);
    let cases = [
        (Terminate { layer: 2, etype: 0, code: 2 }, Some(&segment[..]), "20 02 0000"),
        (Terminate { layer: 0, etype: 0, code: 0 }, Some(&segment[..]), "00 00 0000"),
        (Terminate { layer: 1, etype: 0, code: 0 }, Some(&segment[..]), "10 00 0000"),
        (Terminate { layer: 1, etype: 1, code: 4 }, None, "11 04 0000"),
        (Terminate { layer: 1, etype: 1, code: 4 }, Some(&segment[..13]), "11 04 0000"),
        (Terminate { layer: 1, etype: 1, code: 4 }, Some(&[]), "11 04 0000"),
    ];
    for (t, offending, want) in cases {
        assert_eq!(encoded(t, offending, 100), hex(want));
        assert_eq!(TerminateMessage::decode(&hex(want)).unwrap().terminate, t);
    }
}

#[test]
fn terminate_as_siw_sends_it() {
    let cases = [
        // Bad rkey in a Write (control bytes swapped in the copy), bad rkey in a Read, receive too
        // short: as seen on the wire.
        ("11 00 0300 0000 40c1 40a9343c 0000007f4132e650", (1, 1, 0), Some(0), 14),
        ("10 00 0700 0000 4141 00000000 00000001 00000040 00000000", (0, 1, 0), Some(0), 18),
        ("21 02 0300 0590 0143 00000000 00000000 00000001 00000b20", (1, 2, 2), Some(0x590), 18),
        // No headers, so plausibility decides.
        ("02 02 0000", (2, 0, 2), None, 0),
        ("21 02 0000", (1, 2, 2), None, 0),
        ("10 03 0000", (0, 1, 3), None, 0),
    ];
    for (bytes, (layer, etype, code), segment_len, header_len) in cases {
        let got = TerminateMessage::decode(&hex(bytes)).unwrap();
        assert_eq!(got.terminate, Terminate { layer, etype, code }, "{bytes}");
        assert_eq!(got.segment_len, segment_len, "{bytes}");
        assert_eq!(got.header().len(), header_len, "{bytes}");
        if header_len != 0 {
            assert!(got.swapped && ddp::parse(got.header()).is_ok(), "{bytes}");
        }
    }
}

#[test]
fn ambiguous_terminate_is_read_by_the_age_of_the_connection() {
    let opcode = Terminate { layer: 0, etype: 2, code: 6 };
    let ird = Terminate { layer: 2, etype: 0, code: 6 };
    let read = |bytes: &str, phase| TerminateMessage::decode_in(&hex(bytes), phase).unwrap().terminate;
    assert_eq!(read("20 06 0000", Phase::Unknown), ird);
    assert_eq!(read("20 06 0000", Phase::Startup), ird);
    assert_eq!(read("20 06 0000", Phase::Operation), opcode);
    assert_eq!(read("02 06 0000", Phase::Unknown), opcode);
    assert_eq!(read("02 06 0000", Phase::Startup), ird);
    assert_eq!(read("02 06 0000", Phase::Operation), opcode);
    // With headers there is no doubt in any phase.
    for phase in [Phase::Unknown, Phase::Startup, Phase::Operation] {
        assert_eq!(read("02 06 c000", phase), opcode);
        assert_eq!(read("20 06 0300", phase), opcode);
    }
}

// rule 5040-4.8-5
#[test]
fn terminate_cut_short_keeps_what_is_there() {
    let segment = hex(READ_SEGMENT);
    let whole = encoded(Terminate { layer: 0, etype: 2, code: 7 }, Some(&segment), segment.len());
    for cut in 0..whole.len() {
        let got = TerminateMessage::decode(&whole[..cut]);
        let Some(got) = got else {
            assert!(cut < 4);
            continue;
        };
        assert_eq!(got.segment_len, (cut >= 6).then_some(46));
        assert_eq!(got.header().len(), if cut >= 24 { 18 } else { 0 });
        assert_eq!(got.read_header, None);
    }
}

#[test]
fn every_fault_round_trips_through_a_terminate_message() {
    let faults = [
        Fault::Crc,
        Fault::Marker,
        Fault::TaggedVersion(0),
        Fault::UntaggedVersion(0),
        Fault::QueueNumber(9),
        Fault::NoReceive,
        Fault::MsnRange,
        Fault::MessageOffset,
        Fault::MessageTooLong,
        Fault::RdmapVersion(2),
        Fault::UnexpectedOpcode(12),
        Fault::Invalidate(Stag(1)),
        Fault::IrdExceeded,
        Fault::LocalResource,
    ];
    for fault in faults {
        for segment in [WRITE_SEGMENT, READ_SEGMENT] {
            let bytes = encoded(fault.terminate(), Some(&hex(segment)), 46);
            let got = TerminateMessage::decode_in(&bytes, Phase::Operation).unwrap();
            assert_eq!((got.terminate, got.swapped), (fault.terminate(), false), "{fault}");
        }
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = ddp::parse_segment(&bytes);
        let _ = ReadRequest::parse(&bytes);
        let _ = rdmap::parse_atomic(&bytes);
        let _ = AtomicResponse::parse(&bytes);
        for phase in [Phase::Unknown, Phase::Startup, Phase::Operation] {
            let _ = TerminateMessage::decode_in(&bytes, phase);
        }
        let t = Terminate { layer: bytes.len() as u8 & 3, etype: 1, code: 1 };
        let _ = terminate::encode(t, Some(&bytes), usize::MAX, &mut [0; MAX_LEN]);
    }

    #[test]
    fn headers_round_trip(last: bool, opcode in 0u8..16, a: u32, b: u64, c: u32, d: u32) {
        let t = Tagged { last, opcode, stag: Stag(a), to: b };
        let mut out = [0; TAGGED_LEN];
        t.write(&mut out);
        prop_assert_eq!(ddp::parse(&out), Ok(Header::Tagged(t)));
        let u = Untagged { last, opcode, inv_stag: Stag(a), qn: b as u32, msn: c, mo: d };
        let mut out = [0; UNTAGGED_LEN];
        u.write(&mut out);
        prop_assert_eq!(ddp::parse(&out), Ok(Header::Untagged(u)));
        let r = ReadRequest { sink_stag: Stag(a), sink_to: b, len: c, src_stag: Stag(d), src_to: !b };
        let mut out = [0; ReadRequest::LEN];
        r.write(&mut out);
        prop_assert_eq!(ReadRequest::parse(&out), Some(r));
    }
}
