//! Request and Reply Frames, and what two policies agree on.

use iwarp::Terminate;
use iwarp::mpa::startup::{
    CrcPolicy, Initiator, MAX_FRAME, Negotiated, Policy, Reply, Request, Revision, Rtr, RtrOffer,
    StartupError,
};
use proptest::prelude::*;

const NOTHING: RtrOffer = RtrOffer { write: false, read: false, send: false };
const ALL: RtrOffer = RtrOffer { write: true, read: true, send: true };

/// Revision 2, nothing special.
fn plain() -> Policy {
    Policy { extensions: false, ord: 4, ird: 5, ..Policy::default() }
}

fn v1() -> Policy {
    Policy { revision: Revision::V1, ..plain() }
}

fn request(policy: &Policy, private_data: &[u8]) -> Vec<u8> {
    let mut out = [0xee; MAX_FRAME];
    let n = Initiator::new(policy.clone(), private_data).unwrap().request(&mut out);
    out[..n].to_vec()
}

fn parse(bytes: &[u8]) -> Request {
    Request::parse(bytes).unwrap().unwrap()
}

fn accept(
    request: &[u8],
    policy: &Policy,
    private_data: &[u8],
) -> Result<(Vec<u8>, Negotiated), StartupError> {
    let mut out = [0xee; MAX_FRAME];
    let (n, agreed) = parse(request).accept(policy, policy.ord, policy.ird, private_data, &mut out)?;
    Ok((out[..n].to_vec(), agreed))
}

fn reply(policy: &Policy, bytes: &[u8]) -> Result<Reply, StartupError> {
    Initiator::new(policy.clone(), b"").unwrap().reply(bytes).map(Option::unwrap)
}

/// Both sides' view of one exchange.
fn negotiate(active: &Policy, passive: &Policy) -> Result<(Negotiated, Negotiated), StartupError> {
    let (bytes, theirs) = accept(&request(active, b"ask"), passive, b"answer")?;
    let ours = reply(active, &bytes)?;
    assert_eq!(ours.consumed, bytes.len());
    assert_eq!(bytes[ours.private_data.clone()], b"answer"[..]);
    Ok((ours.negotiated, theirs))
}

/// A frame by hand.
fn frame(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let mut out = key.to_vec();
    out.extend([flags, revision]);
    out.extend((private_data.len() as u16).to_be_bytes());
    out.extend(private_data);
    out
}

const REQ: &[u8; 16] = b"MPA ID Req Frame";
const REP: &[u8; 16] = b"MPA ID Rep Frame";

// --- bytes ---

// rule 5044-7.1.1-1, 6581-5-1, 6581-9-1
#[test]
fn request_bytes() {
    let policy = plain();
    assert_eq!(request(&policy, b"hi"), frame(REQ, 0x10, 2, &[0, 5, 0, 4, b'h', b'i']));
    assert_eq!(request(&v1(), b"hi"), frame(REQ, 0x00, 1, b"hi"));
    let all = Policy {
        crc: CrcPolicy::On,
        want_markers: true,
        p2p: Some(ALL),
        extensions: true,
        ord: 0x0123,
        ird: 0x0456,
        ..policy.clone()
    };
    assert_eq!(request(&all, b""), frame(REQ, 0x80 | 0x40 | 0x10 | 0x04, 2, &[0xc4, 0x56, 0xc1, 0x23]));
    for (offer, words) in [
        (RtrOffer { write: true, ..NOTHING }, [0x80, 5, 0x80, 4]),
        (RtrOffer { read: true, ..NOTHING }, [0x80, 5, 0x40, 4]),
        (RtrOffer { send: true, ..NOTHING }, [0xc0, 5, 0x00, 4]),
        (NOTHING, [0x00, 5, 0x00, 4]),
    ] {
        let policy = Policy { p2p: Some(offer), ..policy.clone() };
        assert_eq!(request(&policy, b""), frame(REQ, 0x10, 2, &words));
    }
}

#[test]
fn reply_bytes() {
    let (bytes, _) = accept(&request(&plain(), b""), &Policy { ord: 9, ird: 9, ..plain() }, b"yes").unwrap();
    assert_eq!(bytes, frame(REP, 0x10, 2, &[0, 4, 0, 5, b'y', b'e', b's']));
    let (bytes, _) = accept(&request(&v1(), b""), &plain(), b"yes").unwrap();
    assert_eq!(bytes, frame(REP, 0x00, 1, b"yes"));
}

#[test]
fn depths_stay_within_fourteen_bits_and_off_the_special_value() {
    for depth in [0x3fff, 0x4000, u16::MAX] {
        let policy = Policy { ord: depth, ird: depth, ..plain() };
        assert_eq!(request(&policy, b"")[20..], [0x3f, 0xfe, 0x3f, 0xfe]);
    }
}

// rule 5044-7.1.1-8, 5044-7.1.4-1
#[test]
fn private_data_arrives_unchanged_at_every_length() {
    for (policy, max) in [(plain(), 508), (v1(), 512)] {
        for len in (0..20).chain(max - 5..=max) {
            let data: Vec<u8> = (0..len).map(|i| i as u8 ^ 0xa5).collect();
            let bytes = request(&policy, &data);
            let got = parse(&bytes);
            assert_eq!((got.consumed, &bytes[got.private_data.clone()]), (bytes.len(), &data[..]));
            let (bytes, _) = accept(&bytes, &policy, &data).unwrap();
            let got = reply(&policy, &bytes).unwrap();
            assert_eq!((got.consumed, &bytes[got.private_data.clone()]), (bytes.len(), &data[..]));
        }
    }
}

// rule 6581-6-4
#[test]
fn too_much_private_data_is_refused() {
    for (policy, max) in [(plain(), 508), (v1(), 512)] {
        let too_long = Err(StartupError::PrivateDataTooLong { len: max + 1, max });
        let data = vec![0; max + 1];
        assert_eq!(Initiator::new(policy.clone(), &data).map(|_| ()), too_long);
        let asked = request(&policy, b"");
        assert_eq!(accept(&asked, &policy, &data).map(|_| ()), too_long);
        assert_eq!(parse(&asked).reject(&policy, &data, &mut [0; MAX_FRAME]).map(|_| ()), too_long);
    }
}

// --- malformed frames ---

// rule 5044-7.1.2-2, 5044-7.1.2-4, 5044-7.1.2-8
#[test]
fn every_prefix_of_a_frame_asks_for_more() {
    let asked = request(&plain(), b"some data");
    let (answered, _) = accept(&asked, &plain(), b"some data").unwrap();
    let initiator = Initiator::new(plain(), b"").unwrap();
    for cut in 0..asked.len() {
        assert_eq!(Request::parse(&asked[..cut]), Ok(None));
    }
    for cut in 0..answered.len() {
        assert_eq!(initiator.reply(&answered[..cut]), Ok(None));
    }
    // What follows is left for the next reader.
    let mut more = asked.clone();
    more.extend([1, 2, 3]);
    assert_eq!(parse(&more), parse(&asked));
}

// rule 5044-7.1.1-1, 5044-7.1.2-6
#[test]
fn a_wrong_key_is_told_at_the_first_wrong_byte() {
    let asked = request(&plain(), b"");
    let (answered, _) = accept(&asked, &plain(), b"").unwrap();
    let initiator = Initiator::new(plain(), b"").unwrap();
    for at in 0..16 {
        let (mut req, mut rep) = (asked.clone(), answered.clone());
        req[at] ^= 0x20;
        rep[at] ^= 0x20;
        assert_eq!(Request::parse(&req[..=at]), Err(StartupError::Key));
        assert_eq!(initiator.reply(&rep[..=at]), Err(StartupError::Key));
    }
    assert_eq!(Request::parse(b"GET / HTTP/1.1\r\n"), Err(StartupError::Key));
    assert_eq!(Request::parse(&answered), Err(StartupError::Key));
    assert_eq!(initiator.reply(&asked), Err(StartupError::Key));
}

// rule 5044-7.1.1-6
#[test]
fn unknown_revisions_are_refused() {
    for revision in (3..=255).chain([0]) {
        let asked = frame(REQ, 0x10, revision, &[0; 4]);
        assert_eq!(Request::parse(&asked), Err(StartupError::Revision(revision)));
        assert_eq!(
            reply(&plain(), &frame(REP, 0x10, revision, &[0; 4])),
            Err(StartupError::Revision(revision))
        );
    }
}

// rule 5044-7.1.1-7
#[test]
fn more_than_512_declared_bytes_are_refused_at_once() {
    for declared in [513u16, 1000, u16::MAX] {
        let mut asked = frame(REQ, 0, 1, b"");
        asked[18..20].copy_from_slice(&declared.to_be_bytes());
        assert_eq!(Request::parse(&asked), Err(StartupError::PrivateDataLength(declared)));
        let mut answered = frame(REP, 0, 1, b"");
        answered[18..20].copy_from_slice(&declared.to_be_bytes());
        assert_eq!(reply(&v1(), &answered), Err(StartupError::PrivateDataLength(declared)));
    }
    let mut asked = frame(REQ, 0, 1, &[]);
    asked[18..20].copy_from_slice(&512u16.to_be_bytes());
    assert_eq!(Request::parse(&asked), Ok(None));
}

// rule 6581-6-3, 6581-6-2
#[test]
fn enhanced_frames_need_room_for_their_words() {
    for len in 0..4u16 {
        let data = vec![0; len.into()];
        assert_eq!(Request::parse(&frame(REQ, 0x10, 2, &data)), Err(StartupError::EnhancedLength(len)));
        assert_eq!(reply(&plain(), &frame(REP, 0x10, 2, &data)), Err(StartupError::EnhancedLength(len)));
        // Revision 1 has no S flag, and a rejection has nothing to negotiate.
        assert!(Request::parse(&frame(REQ, 0x10, 1, &data)).unwrap().is_some());
        assert!(reply(&plain(), &frame(REP, 0x30, 2, &data)).unwrap().rejected);
    }
}

// rule 5044-7.1.1-4, 5044-7.1.1-5
#[test]
fn reserved_bits_and_a_requests_reject_bit_are_ignored() {
    let got = parse(&frame(REQ, 0x2f, 1, b"x"));
    assert_eq!(got, parse(&frame(REQ, 0x00, 1, b"x")));
    let answered = reply(&v1(), &frame(REP, 0x1f, 1, b"")).unwrap();
    assert_eq!(answered, reply(&v1(), &frame(REP, 0x00, 1, b"")).unwrap());
}

// --- revisions ---

// rule 6581-10-1, 6581-6-5
#[test]
fn revision_matrix() {
    use Revision::{V1, V2};
    for (active, passive, agreed) in
        [(V1, V1, Some(V1)), (V1, V2, Some(V1)), (V2, V2, Some(V2)), (V2, V1, None)]
    {
        let (a, p) = (Policy { revision: active, ..plain() }, Policy { revision: passive, ..plain() });
        match (negotiate(&a, &p), agreed) {
            (Ok((ours, theirs)), Some(agreed)) => {
                assert_eq!((ours.revision, theirs.revision), (agreed, agreed));
            }
            (got, None) => assert_eq!(got, Err(StartupError::Revision(2))),
            (got, _) => panic!("{active:?} {passive:?}: {got:?}"),
        }
    }
}

// rule 6581-10-2
#[test]
fn a_reply_of_another_revision_than_asked_for_is_no_connection() {
    for reject in [0, 0x20] {
        let older = reply(&plain(), &frame(REP, reject, 1, b"")).unwrap_err();
        assert_eq!((older, older.may_fall_back()), (StartupError::Revision(1), true));
        let newer = reply(&v1(), &frame(REP, reject | 0x10, 2, &[0; 4])).unwrap_err();
        assert_eq!((newer, newer.may_fall_back()), (StartupError::Revision(2), false));
    }
    assert!(!StartupError::Key.may_fall_back());
}

// rule 6581-6-1
#[test]
fn revision_2_without_enhanced_data_negotiates_nothing() {
    let asked = frame(REQ, 0x00, 2, b"data");
    let got = parse(&asked);
    assert_eq!((got.ord, got.ird, got.rtr, &asked[got.private_data]), (None, None, None, &b"data"[..]));
    let (bytes, agreed) = accept(&asked, &plain(), &[7; 512]).unwrap();
    assert_eq!(bytes, frame(REP, 0x00, 2, &[7; 512]));
    assert_eq!((agreed.ord, agreed.ird), (4, 5));
    let got = reply(&Policy { p2p: Some(ALL), ..plain() }, &frame(REP, 0x00, 2, b"data")).unwrap();
    assert_eq!((got.negotiated.ord, got.negotiated.ird, got.negotiated.rtr), (4, 5, None));
    assert_eq!(got.private_data, 20..24);
}

// --- CRC and markers ---

// rule 5044-4.4-4, 5044-7.1.1-3
#[test]
fn crc_matrix() {
    use CrcPolicy::{Never, Off, On, Required};
    let table = [
        (Off, Off, Ok(false)),
        (Off, On, Ok(true)),
        (Off, Required, Err(StartupError::CrcRequired)),
        (Off, Never, Ok(false)),
        (On, Off, Ok(true)),
        (On, On, Ok(true)),
        (On, Required, Ok(true)),
        (On, Never, Err(StartupError::CrcRefused)),
        (Required, Off, Ok(true)),
        (Required, On, Ok(true)),
        (Required, Required, Ok(true)),
        (Required, Never, Err(StartupError::CrcRefused)),
        (Never, Off, Ok(false)),
        (Never, On, Err(StartupError::CrcRefused)),
        (Never, Required, Err(StartupError::CrcRequired)),
        (Never, Never, Ok(false)),
    ];
    for (active, passive, want) in table {
        for revision in [Revision::V1, Revision::V2] {
            let a = Policy { crc: active, revision, ..plain() };
            let got = negotiate(&a, &Policy { crc: passive, ..plain() });
            assert_eq!(got.map(|(o, t)| (o.crc, t.crc)), want.map(|c| (c, c)), "{active:?} {passive:?}");
        }
    }
    // A responder that does not set C in its Reply has to use CRCs all the same, unless we insist on seeing it.
    let silent = frame(REP, 0x00, 1, b"");
    assert!(reply(&Policy { crc: On, ..v1() }, &silent).unwrap().negotiated.crc);
    assert_eq!(reply(&Policy { crc: Required, ..v1() }, &silent), Err(StartupError::CrcRequired));
}

// rule 5044-4.3-1, 5044-7.1.1-2
#[test]
fn markers_are_agreed_in_each_direction_by_its_receiver() {
    for bits in 0..64u8 {
        let bit = |n: u8| bits >> n & 1 != 0;
        let (crc, revision) = (if bit(4) { CrcPolicy::On } else { CrcPolicy::Off }, 1 + (bits >> 5));
        let revision = Revision::from_wire(revision).unwrap();
        let a = Policy { want_markers: bit(0), send_markers: bit(1), crc, revision, ..plain() };
        let p = Policy { want_markers: bit(2), send_markers: bit(3), ..plain() };
        let fits = (!a.want_markers || p.send_markers) && (!p.want_markers || a.send_markers);
        match negotiate(&a, &p) {
            Ok((ours, theirs)) => {
                assert!(fits);
                assert_eq!((ours.rx_markers, ours.tx_markers), (a.want_markers, p.want_markers));
                assert_eq!((theirs.rx_markers, theirs.tx_markers), (p.want_markers, a.want_markers));
                assert_eq!((ours.crc, theirs.crc), (bit(4), bit(4)));
            }
            Err(e) => assert_eq!((fits, e), (false, StartupError::MarkersRefused)),
        }
    }
}

// --- IRD and ORD ---

// rule 6581-9.1-1, 6581-9.1-2, 6581-12-1
#[test]
fn depths_meet_at_the_smaller_side() {
    let depths = [0u16, 1, 3, 16, 128, 0x3ffe];
    for ao in depths {
        for ai in depths {
            for po in depths {
                for pi in depths {
                    let a = Policy { ord: ao, ird: ai, ..plain() };
                    let p = Policy { ord: po, ird: pi, ..plain() };
                    let (ours, theirs) = negotiate(&a, &p).unwrap();
                    assert_eq!((ours.ord, theirs.ird), (ao.min(pi), ao.min(pi)));
                    assert_eq!((theirs.ord, ours.ird), (po.min(ai), ai));
                }
            }
        }
    }
}

// rule 6581-9.1-3
#[test]
fn a_responder_that_would_send_more_reads_than_we_serve_is_refused() {
    let got = reply(&plain(), &frame(REP, 0x10, 2, &[0, 4, 0, 6]));
    assert_eq!(got, Err(StartupError::InsufficientIrd(6)));
    assert_eq!(reply(&plain(), &frame(REP, 0x10, 2, &[0, 2, 0, 5])).unwrap().negotiated.ord, 2);
}

// rule 6581-9.1-4
#[test]
fn unspecified_depths_leave_each_side_its_own() {
    let asked = frame(REQ, 0x10, 2, &[0x3f, 0xff, 0x3f, 0xff]);
    assert_eq!((parse(&asked).ird, parse(&asked).ord), (None, None));
    let (bytes, agreed) = accept(&asked, &plain(), b"").unwrap();
    assert_eq!((agreed.ord, agreed.ird), (4, 5));
    assert_eq!(bytes[20..], [0x3f, 0xff, 0x3f, 0xff]);
    let got = reply(&plain(), &frame(REP, 0x10, 2, &[0x3f, 0xff, 0x3f, 0xff])).unwrap();
    assert_eq!((got.negotiated.ord, got.negotiated.ird), (4, 5));
}

// --- peer-to-peer ---

// rule 6581-9.2-1, 6581-9.2-2
#[test]
fn rtr_is_the_first_of_write_read_send_that_both_know() {
    for bits in 0..64u8 {
        let offer = |n: u8| RtrOffer {
            write: bits >> n & 1 != 0,
            read: bits >> n & 2 != 0,
            send: bits >> n & 4 != 0,
        };
        let (ours, theirs) = (offer(0), offer(3));
        let want = if ours.write && theirs.write {
            Some(Rtr::Write)
        } else if ours.read && theirs.read {
            Some(Rtr::Read)
        } else if ours.send && theirs.send {
            Some(Rtr::Send)
        } else {
            None
        };
        let (a, p) = (Policy { p2p: Some(ours), ..plain() }, Policy { p2p: Some(theirs), ..plain() });
        let got = negotiate(&a, &p).map(|(o, t)| (o.rtr, t.rtr));
        if ours == NOTHING {
            assert_eq!(got, Ok((None, None)), "not asked for");
        } else {
            assert_eq!(got, want.map(|r| (Some(r), Some(r))).ok_or(StartupError::NoMatchingRtr));
        }
    }
}

#[test]
fn a_responder_without_a_wish_takes_rtr_writes_and_reads() {
    let responder = plain();
    let send = RtrOffer { send: true, ..NOTHING };
    for (offer, want) in [
        (ALL, Ok(Some(Rtr::Write))),
        (RtrOffer { write: false, ..ALL }, Ok(Some(Rtr::Read))),
        (send, Err(StartupError::NoMatchingRtr)),
    ] {
        let got = negotiate(&Policy { p2p: Some(offer), ..plain() }, &responder);
        assert_eq!(got.map(|(o, _)| o.rtr), want);
    }
    let willing = Policy { p2p: Some(ALL), ..plain() };
    assert_eq!(negotiate(&plain(), &willing).unwrap().0.rtr, None);
    let asked = frame(REQ, 0x10, 2, &[0x80, 1, 0, 1]);
    assert_eq!(accept(&asked, &willing, b""), Err(StartupError::NoMatchingRtr));
}

#[test]
fn replies_about_rtr() {
    let write = Policy { p2p: Some(RtrOffer { write: true, ..NOTHING }), ..plain() };
    // Several bits: ours to choose. Another one than offered: no match. No A: client-server. A unasked: ignored.
    for (policy, words, want) in [
        (&Policy { p2p: Some(ALL), ..plain() }, [0xc0, 1, 0x40, 1], Ok(Some(Rtr::Read))),
        (&write, [0x80, 1, 0x40, 1], Err(StartupError::NoMatchingRtr)),
        (&write, [0x80, 1, 0x00, 1], Err(StartupError::NoMatchingRtr)),
        (&write, [0x00, 1, 0x80, 1], Ok(None)),
        (&plain(), [0x80, 1, 0x80, 1], Ok(None)),
    ] {
        let got = reply(policy, &frame(REP, 0x10, 2, &words));
        assert_eq!(got.map(|r| r.negotiated.rtr), want, "{words:02x?}");
    }
}

#[test]
fn an_rtr_read_has_its_place_in_ord_and_ird() {
    let read = Some(RtrOffer { read: true, ..NOTHING });
    let zero = Policy { ord: 0, ird: 0, p2p: read, ..plain() };
    let (ours, theirs) = negotiate(&zero, &zero).unwrap();
    assert_eq!((ours.ord, theirs.ird), (1, 1));
    assert_eq!((ours.ird, theirs.ord), (0, 0));
}

// --- rejection ---

// rule 5044-7.1.2-5
#[test]
fn rejection_carries_private_data() {
    for policy in [plain(), v1()] {
        let asked = request(&policy, b"please");
        let mut out = [0xee; MAX_FRAME];
        let n = parse(&asked).reject(&plain(), b"no thanks", &mut out).unwrap();
        let got = reply(&policy, &out[..n]).unwrap();
        assert!(got.rejected);
        assert_eq!((got.consumed, &out[got.private_data]), (n, &b"no thanks"[..]));
    }
    let mut out = [0; MAX_FRAME];
    let n = parse(&request(&plain(), b"")).reject(&plain(), b"no", &mut out).unwrap();
    assert_eq!(out[..n], frame(REP, 0x30, 2, &[0, 5, 0, 4, b'n', b'o']));
}

#[test]
fn a_rejection_is_one_whatever_else_it_says() {
    let strict = Policy { crc: CrcPolicy::Required, send_markers: false, p2p: Some(ALL), ..plain() };
    // No CRC, wants markers, ORD beyond our IRD, no RTR that we know.
    let got = reply(&strict, &frame(REP, 0xb0, 2, &[0x80, 1, 0, 99, b'x'])).unwrap();
    assert!(got.rejected);
    assert_eq!(got.private_data, 24..25);
}

// --- RFC 7306 discovery ---

// rule 7306-1.1-1
#[test]
fn only_a_peer_that_knows_rfc_7306_is_taken_for_one() {
    for revision in [Revision::V1, Revision::V2] {
        let knows = Policy { extensions: true, revision, ..plain() };
        let not = Policy { extensions: false, ..knows.clone() };
        for (active, passive, want) in
            [(&knows, &knows, true), (&knows, &not, false), (&not, &knows, false), (&not, &not, false)]
        {
            let (ours, theirs) = negotiate(active, passive).unwrap();
            assert_eq!((ours.extensions, theirs.extensions), (want, want));
        }
    }
}

// rule 7306-1.1-2
#[test]
fn a_peer_that_echoes_our_header_does_not_become_extended() {
    for revision in [Revision::V1, Revision::V2] {
        let policy = Policy { extensions: true, revision, ..plain() };
        let mut echo = request(&policy, b"");
        echo[..16].copy_from_slice(REP);
        assert_eq!(echo[16] & 0x04, 0x04);
        assert!(!reply(&policy, &echo).unwrap().negotiated.extensions);
        // Nor does one that sets every reserved bit, or answers what was not asked.
        echo[16] |= 0x0f;
        assert!(!reply(&policy, &echo).unwrap().negotiated.extensions);
        let shy = Policy { extensions: false, ..policy };
        echo[16] = echo[16] & !0x0f | 0x02;
        assert!(!reply(&shy, &echo).unwrap().negotiated.extensions);
    }
}

#[test]
fn a_request_with_other_reserved_bits_offers_nothing() {
    for low in 0..16u8 {
        let got = parse(&frame(REQ, 0x10 | low, 2, &[0; 4]));
        assert_eq!(got.extensions, low & 0x0e == 0x04, "{low:#x}");
    }
}

// --- errors ---

// rule 6581-8-1, 5044-8-1
#[test]
fn each_error_has_its_terminate_or_none() {
    let code = |e: StartupError| e.terminate().map(|t| (t.layer, t.etype, t.code));
    for e in [
        StartupError::Key,
        StartupError::PrivateDataLength(513),
        StartupError::EnhancedLength(3),
        StartupError::CrcRequired,
        StartupError::CrcRefused,
        StartupError::MarkersRefused,
    ] {
        assert_eq!(code(e), Some((2, 0, 4)), "{e}");
    }
    assert_eq!(code(StartupError::InsufficientIrd(9)), Some((2, 0, 6)));
    assert_eq!(code(StartupError::NoMatchingRtr), Some((2, 0, 7)));
    assert_eq!(code(StartupError::Revision(1)), None);
    assert_eq!(code(StartupError::PrivateDataTooLong { len: 600, max: 508 }), None);
    let named: Option<Terminate> = StartupError::NoMatchingRtr.terminate();
    assert_eq!(named.unwrap().name(), "MPA: no matching RTR option");
}

// --- properties ---

fn policies() -> impl Strategy<Value = Policy> {
    let crc = prop_oneof![
        Just(CrcPolicy::Off),
        Just(CrcPolicy::On),
        Just(CrcPolicy::Required),
        Just(CrcPolicy::Never)
    ];
    let revision = prop_oneof![Just(Revision::V1), Just(Revision::V2)];
    let rtr = proptest::option::of((any::<bool>(), any::<bool>(), any::<bool>()));
    (revision, crc, any::<[bool; 3]>(), any::<(u16, u16)>(), rtr).prop_map(
        |(revision, crc, bits, depths, rtr)| {
            let [send_markers, want_markers, extensions] = bits;
            let p2p = rtr.map(|(write, read, send)| RtrOffer { write, read, send });
            let (ord, ird) = depths;
            Policy { revision, fallback: true, crc, send_markers, want_markers, ord, ird, p2p, extensions }
        },
    )
}

proptest! {
    #[test]
    fn two_policies_agree_or_fail_by_name(a in policies(), p in policies(), cut in 0usize..540) {
        let asked = request(&a, b"ask");
        if cut < asked.len() {
            prop_assert_eq!(Request::parse(&asked[..cut]), Ok(None));
        }
        match negotiate(&a, &p) {
            Ok((ours, theirs)) => {
                prop_assert_eq!(ours.revision, theirs.revision);
                prop_assert_eq!(ours.crc, theirs.crc);
                prop_assert_eq!(ours.tx_markers, theirs.rx_markers);
                prop_assert_eq!(ours.rx_markers, theirs.tx_markers);
                prop_assert_eq!(ours.rtr, theirs.rtr);
                prop_assert_eq!(ours.extensions, theirs.extensions);
                prop_assert!(ours.revision == Revision::V1 || (ours.ord <= theirs.ird && theirs.ord <= ours.ird));
            }
            Err(e) => prop_assert!(!matches!(e, StartupError::Key | StartupError::PrivateDataLength(_)), "{}", e),
        }
    }

    // rule 5044-9.1-1
    #[test]
    fn garbage_never_panics(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600), keyed: bool, a in policies(),
    ) {
        if keyed {
            bytes.splice(..bytes.len().min(16), REQ.iter().copied());
        }
        if let Ok(Some(request)) = Request::parse(&bytes) {
            prop_assert!(bytes.get(request.private_data.clone()).is_some());
            let _ = request.accept(&a, a.ord, a.ird, b"", &mut [0; MAX_FRAME]);
            let _ = request.reject(&a, b"", &mut [0; MAX_FRAME]);
        }
        if keyed {
            bytes.splice(..bytes.len().min(16), REP.iter().copied());
        }
        if let Ok(Some(reply)) = Initiator::new(a, b"").unwrap().reply(&bytes) {
            prop_assert!(bytes.get(reply.private_data.clone()).is_some());
        }
    }
}
