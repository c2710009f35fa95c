//! A hostile peer after start-up: what other implementations got wrong, byte by byte.

use iwarp::mpa::startup::Negotiated;
use iwarp::rx::Progress;
use iwarp::types::{InboundRead, Opcode};
use iwarp::{Event, Fault, Stag, TaggedFault};
use rnic_testkit::craft::{self, Atomic, Control, Craft, Place};
use rnic_testkit::feeder::{self, Feeder, OPEN, OPEN_BASE, SINK, TOP, TOP_BASE, VICTIM};
use rnic_testkit::host::ArrayHost;
use rnic_testkit::seed::Seed;

const SEND: Place = Place { qn: 0, msn: 1, mo: 0 };

fn stream(crc: bool, markers: bool, ulpdus: &[Vec<u8>]) -> Vec<u8> {
    let mut c = Craft::new(crc, markers);
    for u in ulpdus {
        c.ulpdu(u);
    }
    c.bytes().to_vec()
}

fn feeder(prepare: impl FnOnce(&mut ArrayHost)) -> Feeder {
    let n = feeder::agreed(false, false);
    let mut host = feeder::host(&n);
    prepare(&mut host);
    Feeder::new(&n, host)
}

fn feed(f: &mut Feeder, ulpdus: &[Vec<u8>]) -> Result<Progress, Fault> {
    f.feed(&stream(false, false, ulpdus))
}

/// Kernel siw once computed a payload length from the FPDU's length without looking whether it was
/// as long as its headers.
#[test]
fn every_length_shorter_than_its_headers() {
    // rule 5041-4.4-1
    for opcode in 0..16u8 {
        for len in 0..60usize {
            for tagged in [true, false] {
                let first = if tagged { 0xc1 } else { 0x41 };
                let mut ulpdu = vec![first, 0x40 | opcode, 0, 0, 0, 0];
                // Queue, MSN and offset that fit the opcode, so that only the length is odd.
                let qn = match opcode {
                    1 | 10 => 1,
                    7 => 2,
                    11 => 3,
                    _ => 0,
                };
                ulpdu.extend_from_slice(&[0, 0, 0, qn, 0, 0, 0, 1, 0, 0, 0, 0]);
                ulpdu.resize(len.max(18), 0);
                ulpdu.truncate(len);
                let mut f = feeder(|h| {
                    h.post_receive(100);
                });
                let result = feed(&mut f, &[ulpdu]);
                let header = if tagged { 14 } else { 18 };
                if len < header {
                    assert_eq!(result, Err(Fault::FpduLength(len as u32)), "opcode {opcode}, {len} bytes");
                    assert_eq!(f.host.receives_in_use(), 0, "no receive is spent on it");
                }
                assert_eq!(
                    f.host.snapshot().regions,
                    feeder::host(&feeder::agreed(false, false)).snapshot().regions
                );
            }
        }
    }
}

#[test]
fn a_header_cut_short_does_not_wait_for_a_receive() {
    // What follows such a ULPDU (its CRC field) must not be read as part of its header.
    for len in 14..18 {
        let mut f = feeder(|_| {});
        assert_eq!(feed(&mut f, &[craft::send(1, &[])[..len].to_vec()]), Err(Fault::FpduLength(len as u32)));
    }
}

#[test]
fn a_read_response_longer_than_its_read_stays_within_the_sink() {
    // rule 5040-5.2.2-2
    for (crc, piece) in [(false, 1), (false, 1000), (true, 1000), (false, usize::MAX)] {
        let n = feeder::agreed(crc, false);
        let mut host = feeder::host(&n);
        feeder::expect_read(&mut host, 1, 4000, 5000);
        let mut f = Feeder::new(&n, host);
        let bytes = stream(
            crc,
            false,
            &[
                craft::tagged(Control::more(2), SINK, 4000, &[1; 4500]),
                craft::tagged(Control::more(2), SINK, 8500, &[2; 4500]),
            ],
        );
        let results: Vec<_> = bytes.chunks(piece).map(|b| f.feed(b)).collect();
        assert_eq!(results.last(), Some(&Err(Fault::ResponseMismatch)));
        let sink = &f.host.region(SINK).bytes;
        assert!(sink[4000..8500].iter().all(|&b| b == 1), "what was asked for came");
        assert!(sink[8500..].iter().chain(&sink[..4000]).all(|&b| b == 0xaa), "and not a byte more");
        assert!(f.host.events().is_empty());
    }
}

#[test]
fn a_zero_length_read_answered_with_bytes_is_completed_and_they_are_dropped() {
    // rule 5040-5.2.1-4
    for len in [0, 1, 60, 5000] {
        for (piece, last) in [(usize::MAX, true), (700, true), (700, false)] {
            let mut f = feeder(|h| feeder::expect_read(h, 7, 0, 0)).with_direct();
            let mut ulpdus = vec![craft::read_response(0xdead_beef, 99, &vec![3; len])];
            if !last {
                ulpdus.insert(0, craft::tagged(Control::more(2), 1, 2, &[3; 4200]));
            }
            for b in stream(false, false, &ulpdus).chunks(piece) {
                assert_eq!(f.feed(b), Ok(Progress::NeedBytes));
            }
            assert_eq!(f.host.events(), [Event::ResponseDone { cookie: 7, len: 0 }]);
            assert_eq!((f.host.placed(), f.direct_bytes()), (0, 0));
        }
    }
}

#[test]
fn responses_out_of_order_or_twice_are_refused() {
    // rule 5040-5.2.2-1
    let two = |h: &mut ArrayHost| {
        feeder::expect_read(h, 1, 100, 4);
        feeder::expect_read(h, 2, 200, 4);
    };
    let mut f = feeder(two);
    assert_eq!(feed(&mut f, &[craft::read_response(SINK, 200, b"late")]), Err(Fault::ResponseMismatch));
    let mut f = feeder(two);
    let first = craft::read_response(SINK, 100, b"once");
    assert_eq!(feed(&mut f, &[first.clone(), first]), Err(Fault::ResponseMismatch));
    assert_eq!(f.host.events().len(), 1);
    let mut f = feeder(|h| {
        feeder::expect_atomic(h, 1, 0, 5);
        feeder::expect_read(h, 2, 200, 4);
    });
    let read = craft::read_response(SINK, 200, b"read");
    assert_eq!(feed(&mut f, &[read]), Err(Fault::UnexpectedResponse), "an atomic is due first");
    let mut f = feeder(|h| {
        feeder::expect_read(h, 2, 200, 4);
        feeder::expect_atomic(h, 1, 0, 5);
    });
    assert_eq!(feed(&mut f, &[craft::atomic_response(1, 5, 1)]), Err(Fault::UnexpectedResponse));
    let mut f = feeder(|h| feeder::expect_atomic(h, 1, 0, 5));
    // rule 7306-5.2.2-2
    assert_eq!(feed(&mut f, &[craft::atomic_response(1, 6, 1)]), Err(Fault::UnexpectedResponse));
    assert_eq!(f.host.placed(), 0);
}

#[test]
fn an_invalidated_stag_is_gone_for_good() {
    // rule 5040-5.3-4, 5040-8.1.1-4, 5041-8.2-2
    let invalidate = craft::untagged(Control::last(4), VICTIM, SEND, b"done");
    let cases = [
        (craft::write(VICTIM, 0, b"x"), Fault::Write(Stag(VICTIM), TaggedFault::InvalidStag)),
        (
            craft::read_request(1, (1, 1), 1, (VICTIM, 0)),
            Fault::ReadSource(Stag(VICTIM), TaggedFault::InvalidStag),
        ),
        (
            craft::untagged(Control::last(4), VICTIM, Place { msn: 2, ..SEND }, b"again"),
            Fault::Invalidate(Stag(VICTIM)),
        ),
    ];
    for (later, fault) in cases {
        let mut f = feeder(|h| {
            h.post_receive(10);
            h.post_receive(10);
        });
        assert_eq!(feed(&mut f, &[craft::write(VICTIM, 0, b"y"), invalidate.clone(), later]), Err(fault));
        assert_eq!(f.host.delivered().len(), 1);
        assert_eq!(f.host.delivered()[0].invalidated, Some(Stag(VICTIM)));
    }
}

#[test]
fn the_invalidated_stag_works_until_its_message_is_whole() {
    // rule 5040-4.7-1
    let part = |last: bool, mo, stag, data: &[u8]| {
        let c = if last { Control::last(6) } else { Control::more(6) };
        craft::untagged(c, stag, Place { mo, ..SEND }, data)
    };
    let mut f = feeder(|h| {
        h.post_receive(10);
    });
    let ulpdus = [part(false, 0, VICTIM, b"ab"), craft::write(VICTIM, 5, b"w"), part(true, 2, VICTIM, b"cd")];
    assert_eq!(feed(&mut f, &ulpdus), Ok(Progress::NeedBytes));
    assert_eq!(f.host.delivered()[0].data, b"abcd");
    // Another STag in a later segment: which one is meant?
    let mut f = feeder(|h| {
        h.post_receive(10);
    });
    let ulpdus = [part(false, 0, VICTIM, b"ab"), part(true, 2, OPEN, b"cd")];
    assert_eq!(feed(&mut f, &ulpdus), Err(Fault::UnexpectedOpcode(6)));
    assert!(f.host.delivered().is_empty() && f.host.snapshot().regions.contains_key(&VICTIM));
}

#[test]
fn a_refused_invalidate_delivers_nothing() {
    let mut f = feeder(|h| {
        h.post_receive(10);
    });
    let ulpdu = craft::untagged(Control::last(6), 0x4444, SEND, b"data");
    assert_eq!(feed(&mut f, &[ulpdu]), Err(Fault::Invalidate(Stag(0x4444))));
    assert!(f.host.delivered().is_empty() && f.host.events().is_empty());
}

#[test]
fn messages_of_one_queue_do_not_interleave_but_other_kinds_may() {
    // rule 5040-4.1-3, 5041-5.1.2-2, 5041-5.3-2
    let first = craft::untagged(Control::more(3), 0, SEND, b"one ");
    let rest = craft::untagged(Control::last(3), 0, Place { mo: 4, ..SEND }, b"two");
    let post = |h: &mut ArrayHost| {
        h.post_receive(20);
        h.post_receive(20);
        feeder::expect_read(h, 1, 0, 2);
    };
    let others = [
        craft::write(OPEN, OPEN_BASE, b"w"),
        craft::read_request(1, (1, 2), 3, (OPEN, OPEN_BASE)),
        craft::read_response(SINK, 0, b"rr"),
    ];
    let mut f = feeder(post);
    let mut all = vec![first.clone()];
    all.extend(others);
    all.push(rest);
    assert_eq!(feed(&mut f, &all), Ok(Progress::NeedBytes));
    assert_eq!(f.host.delivered()[0].data, b"one two");
    let intruders = [
        (craft::send(2, b"x"), Fault::MsnRange),
        (craft::send(1, b"x"), Fault::MessageOffset),
        (craft::untagged(Control::last(5), 0, Place { mo: 4, ..SEND }, b"x"), Fault::UnexpectedOpcode(5)),
        (craft::untagged(Control::last(4), OPEN, Place { mo: 4, ..SEND }, b"x"), Fault::UnexpectedOpcode(4)),
        (craft::immediate(1, 9), Fault::UnexpectedOpcode(8)),
        (craft::immediate(2, 9), Fault::MsnRange),
    ];
    for (ulpdu, fault) in intruders {
        let mut f = feeder(post);
        assert_eq!(feed(&mut f, &[first.clone(), ulpdu]), Err(fault), "{fault:?}");
        assert!(f.host.delivered().is_empty());
    }
}

#[test]
fn each_opcode_is_allowed_in_one_model_and_on_one_queue_only() {
    // rule 5040-4.2-1, 5040-4.2-2, 7306-4.2-1, 5040-3.1-1
    for extensions in [true, false] {
        let n = Negotiated { extensions, ..feeder::agreed(false, false) };
        for opcode in 0..16u8 {
            for qn in [None, Some(0), Some(1), Some(2), Some(3), Some(4)] {
                let body = match opcode {
                    1 => vec![0; 28],
                    8 | 9 => vec![0; 8],
                    10 => craft::atomic_request(1, Atomic { stag: OPEN, to: OPEN_BASE, ..Atomic::default() })
                        [18..]
                        .to_vec(),
                    11 => craft::atomic_response(1, 5, 0)[18..].to_vec(),
                    _ => Vec::new(),
                };
                let stag = if matches!(opcode, 4 | 6) { VICTIM } else { 0 };
                let ulpdu = match qn {
                    None => craft::tagged(Control::last(opcode), 0, 0, &[]),
                    Some(qn) => {
                        craft::untagged(Control::last(opcode), stag, Place { qn, msn: 1, mo: 0 }, &body)
                    }
                };
                let mut host = feeder::host(&n);
                host.post_receive(10);
                if qn.is_none() {
                    feeder::expect_read(&mut host, 1, 0, 0);
                } else {
                    feeder::expect_atomic(&mut host, 1, 0, 5);
                }
                let mut f = Feeder::new(&n, host);
                let right = match opcode {
                    0 | 2 => qn.is_none(),
                    1 => qn == Some(1),
                    3..=6 => qn == Some(0),
                    7 => qn == Some(2),
                    8 | 9 => extensions && qn == Some(0),
                    10 => extensions && qn == Some(1),
                    11 => extensions && qn == Some(3),
                    _ => false,
                };
                let no_queue = qn == Some(4) || qn == Some(3) && !extensions;
                let want = match (right, no_queue) {
                    (true, _) if opcode == 7 => Ok(Progress::Terminated),
                    (true, _) => Ok(Progress::NeedBytes),
                    (false, true) => Err(Fault::QueueNumber(qn.unwrap_or(0))),
                    (false, false) => Err(Fault::UnexpectedOpcode(opcode)),
                };
                let got = f.feed(&stream(false, false, &[ulpdu]));
                assert_eq!(got, want, "opcode {opcode} on {qn:?}, extensions {extensions}");
            }
        }
    }
}

#[test]
fn a_terminate_cut_short_or_odd_ends_the_stream_without_harm() {
    // rule 5040-4.8-5, 5040-5.4-3
    for body in (0..60).map(|n| vec![0xff; n]).chain((0..60).map(|n| vec![0; n])) {
        let mut f = feeder(|h| {
            h.post_receive(10);
        });
        assert_eq!(feed(&mut f, &[craft::terminate(&body)]), Ok(Progress::Terminated));
        let [Event::Terminated(message)] = f.host.events() else { panic!("one event") };
        assert_eq!(message.is_some(), body.len() >= 4, "{} bytes", body.len());
        // Nothing behind it is looked at.
        assert_eq!(feed(&mut f, &[craft::send(1, b"x"), vec![0]]), Ok(Progress::Terminated));
        assert_eq!(f.host.events().len(), 1);
    }
}

#[test]
fn boundaries_of_a_region() {
    // rule 5040-8.1.1-3, 5041-8.3-1
    let end = OPEN_BASE + 8192;
    let good = [
        (OPEN, OPEN_BASE, 1),
        (OPEN, end - 1, 1),
        (OPEN, OPEN_BASE, 8192),
        (OPEN, 0xffff_ffff, 2),
        (OPEN, 0x1_0000_0000, 4096),
        (TOP, TOP_BASE, 4096),
        (TOP, u64::MAX, 1),
    ];
    for (stag, to, len) in good {
        let mut f = feeder(|_| {});
        assert_eq!(feed(&mut f, &[craft::write(stag, to, &vec![5; len])]), Ok(Progress::NeedBytes));
        let region = f.host.region(stag);
        let at = (to - region.base) as usize;
        assert!(region.bytes[at..at + len].iter().all(|&b| b == 5));
        assert_eq!(region.bytes.iter().filter(|&&b| b == 5).count(), len);
    }
    let bad = [
        (OPEN, OPEN_BASE - 1, 1, TaggedFault::Bounds),
        (OPEN, OPEN_BASE - 1, 8193, TaggedFault::Bounds),
        (OPEN, end, 1, TaggedFault::Bounds),
        (OPEN, end - 1, 2, TaggedFault::Bounds),
        // The low 32 bits alone would fit.
        (OPEN, OPEN_BASE + (1 << 32), 1, TaggedFault::Bounds),
        (OPEN, OPEN_BASE | 1 << 63, 1, TaggedFault::Bounds),
        (TOP, u64::MAX, 2, TaggedFault::Wrap),
        (TOP, TOP_BASE, 4097, TaggedFault::Wrap),
    ];
    for (stag, to, len, tagged) in bad {
        let mut f = feeder(|_| {});
        let result = feed(&mut f, &[craft::write(stag, to, &vec![5; len])]);
        assert_eq!(result, Err(Fault::Write(Stag(stag), tagged)), "{to:#x}+{len}");
        assert_eq!(f.host.placed(), 0);
        let mut f = feeder(|_| {});
        let result = feed(&mut f, &[craft::read_request(1, (1, 1), len as u32, (stag, to))]);
        assert_eq!(result, Err(Fault::ReadSource(Stag(stag), tagged)), "{to:#x}+{len}");
    }
}

#[test]
fn empty_writes_and_reads_need_no_stag() {
    // rule 5040-5.1-2, 5040-5.2.1-4
    let mut f = feeder(|_| {});
    let ulpdus = [
        craft::write(0, u64::MAX, &[]),
        craft::write(0x999, 0, &[]),
        craft::read_request(1, (0, 0), 0, (0x999, u64::MAX)),
    ];
    assert_eq!(feed(&mut f, &ulpdus), Ok(Progress::NeedBytes));
    assert_eq!(f.host.events(), [Event::WriteDone { len: 0 }, Event::WriteDone { len: 0 }]);
    assert_eq!(f.host.inbound_waiting(), 1);
}

#[test]
fn atomics_happen_once_and_only_where_they_can_be_answered() {
    // rule 7306-5.3-2, 7306-5.2.1-3
    let add = |msn| {
        let a = Atomic { id: msn, stag: OPEN, to: OPEN_BASE, operands: [1, 0, 0, 0], ..Atomic::default() };
        craft::atomic_request(msn, a)
    };
    let n = feeder::agreed(true, false);
    let mut host = feeder::host(&n);
    host.region_mut(OPEN).unwrap().bytes[..8].copy_from_slice(&10u64.to_ne_bytes());
    let mut f = Feeder::new(&n, host);
    let bytes = stream(true, false, &(1..=5).map(add).collect::<Vec<_>>());
    for b in bytes.chunks(3) {
        let _ = f.feed(b);
    }
    assert_eq!(f.outcome().result, Err(Fault::IrdExceeded));
    assert_eq!(f.host.region(OPEN).bytes[..8], 14u64.to_ne_bytes(), "four were carried out, not the fifth");
    let originals: Vec<_> = std::iter::from_fn(|| f.host.next_inbound()).collect();
    let want: Vec<_> = (1..5).map(|id| InboundRead::Atomic { id, original: 9 + u64::from(id) }).collect();
    assert_eq!(originals, want);
}

#[test]
fn an_answered_request_makes_room_for_another() {
    // rule 5040-5.2.1-2
    let mut f = feeder(|_| {});
    let read = |msn| craft::read_request(msn, (1, 2), 1, (OPEN, OPEN_BASE));
    assert_eq!(feed(&mut f, &(1..=4).map(read).collect::<Vec<_>>()), Ok(Progress::NeedBytes));
    assert!(f.host.next_inbound().is_some());
    assert_eq!(feed(&mut f, &[read(5)]), Ok(Progress::NeedBytes));
    assert_eq!(feed(&mut f, &[read(6)]), Err(Fault::IrdExceeded));
}

#[test]
fn what_the_padding_holds_means_nothing() {
    // rule 5044-4.1-3
    for crc in [false, true] {
        let n = feeder::agreed(crc, false);
        let mut f = Feeder::new(&n, feeder::host(&n));
        let ulpdu = craft::write(OPEN, OPEN_BASE, b"x");
        let mut c = Craft::new(crc, false);
        c.declared(ulpdu.len() as u16, &[&ulpdu[..], &[1, 2, 3]].concat());
        assert_eq!(f.feed(c.bytes()), Ok(Progress::NeedBytes));
        assert_eq!(f.host.region(OPEN).bytes[..2], [b'x', 0xaa]);
    }
}

#[test]
fn the_crc_field_is_ignored_where_crcs_are_off() {
    // rule 5044-4.4-5
    let mut f = feeder(|_| {});
    let mut bytes = stream(false, false, &[craft::write(OPEN, OPEN_BASE, b"word")]);
    let n = bytes.len();
    bytes[n - 4..].fill(0x77);
    assert_eq!(f.feed(&bytes), Ok(Progress::NeedBytes));
    assert_eq!(f.host.region(OPEN).bytes[..4], *b"word");
}

/// Every single bit of a stream, flipped: with CRC nothing of the damaged FPDU or behind it is placed.
#[test]
fn single_bit_flips_everywhere() {
    // rule 5044-4.4-3, 5044-4.4-7
    for markers in [false, true] {
        let n = feeder::agreed(true, markers);
        let mut c = Craft::new(true, markers);
        c.ulpdu(craft::write(OPEN, OPEN_BASE, &[1; 30]))
            .ulpdu(craft::send(1, &[2; 500]))
            .ulpdu(craft::read_request(1, (1, 2), 3, (OPEN, OPEN_BASE)))
            .ulpdu(craft::atomic_request(
                2,
                Atomic { stag: OPEN, to: OPEN_BASE, operands: [1; 4], ..Atomic::default() },
            ));
        let fresh = || {
            let mut host = feeder::host(&n);
            host.post_receive(600);
            Feeder::new(&n, host)
        };
        // What each prefix of whole FPDUs comes to.
        let ends: Vec<usize> = c.starts()[1..].iter().copied().chain([c.bytes().len()]).collect();
        let after: Vec<_> = [0]
            .iter()
            .chain(&ends)
            .map(|&end| {
                let mut f = fresh();
                f.feed(&c.bytes()[..end]).expect("good");
                f.host.snapshot()
            })
            .collect();
        for bit in 0..c.bytes().len() * 8 {
            let mut bytes = c.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let hit = ends.iter().position(|&end| bit / 8 < end).unwrap();
            let mut f = fresh();
            let result = f.feed(&bytes);
            let waits = result == Ok(Progress::NeedBytes) && f.pending() > 0;
            let named = matches!(result, Err(Fault::Crc | Fault::FpduLength(_)));
            assert!(named || waits, "bit {bit}: {result:?}");
            let s = f.host.snapshot();
            assert_eq!(
                (&s.regions, &s.delivered, &s.events, &s.inbound),
                (&after[hit].regions, &after[hit].delivered, &after[hit].events, &after[hit].inbound),
                "bit {bit}"
            );
        }
    }
}

#[test]
fn damage_is_found_before_a_receive_is_waited_for() {
    // rule 5044-4.4-3
    let n = feeder::agreed(true, false);
    let mut bytes = stream(true, false, &[craft::send(1, b"damaged")]);
    bytes[22] ^= 1;
    let mut f = Feeder::new(&n, feeder::host(&n));
    assert_eq!(f.feed(&bytes), Err(Fault::Crc), "though nothing is posted");
}

#[test]
fn the_invalidate_field_of_a_plain_send_is_not_examined() {
    // rule 5040-4.1-4
    for opcode in [3, 5] {
        let mut f = feeder(|h| {
            h.post_receive(10);
        });
        let ulpdus = [
            craft::untagged(Control::more(opcode), 7, SEND, b"ab"),
            craft::untagged(Control::last(opcode), VICTIM, Place { mo: 2, ..SEND }, b"cd"),
        ];
        assert_eq!(feed(&mut f, &ulpdus), Ok(Progress::NeedBytes));
        assert_eq!(f.host.delivered()[0].data, b"abcd");
        assert!(f.host.snapshot().regions.contains_key(&VICTIM));
    }
}

/// Segments that say nothing cost nothing and end nothing.
#[test]
fn a_flood_of_empty_segments_changes_nothing() {
    let mut f = feeder(|h| {
        h.post_receive(10);
        feeder::expect_read(h, 1, 0, 3);
    });
    let empty = [
        craft::untagged(Control::more(3), 0, SEND, &[]),
        craft::tagged(Control::more(0), 0, 0, &[]),
        craft::tagged(Control::more(2), SINK, 0, &[]),
    ];
    for _ in 0..1000 {
        assert_eq!(feed(&mut f, &empty), Ok(Progress::NeedBytes));
    }
    assert_eq!((f.host.events().len(), f.host.placed(), f.pending()), (0, 0, 0));
    let end = [craft::send(1, b"end"), craft::read_response(SINK, 0, b"end")];
    assert_eq!(feed(&mut f, &end), Ok(Progress::NeedBytes));
    assert_eq!(f.host.events().len(), 2);
}

#[test]
fn noise_never_panics_and_touches_nothing_it_may_not() {
    let mut seed = Seed::new(77);
    for round in 0..3000 {
        let n = feeder::agreed(round % 2 == 1, round % 4 > 1);
        let mut host = feeder::host(&n);
        host.post_receive(2000);
        let closed = host.region(feeder::CLOSED).clone();
        let mut f = Feeder::new(&n, host);
        let len = seed.below(3000);
        let mut bytes = seed.bytes(len);
        if len > 4 {
            // A length that the noise can fill.
            bytes[0] = 0;
        }
        let _ = f.feed(&bytes);
        assert_eq!(*f.host.region(feeder::CLOSED), closed);
    }
}

#[test]
fn every_delivery_says_what_it_was() {
    // rule 5041-5.4-2, 5040-5.3-1, 5040-5.3-2, 5040-5.3-3, 7306-6.1-1, 7306-6.3-1, 7306-6.3-2
    let mut f = feeder(|h| {
        for _ in 0..6 {
            h.post_receive(10);
        }
    });
    let at = |msn| Place { msn, ..SEND };
    let ulpdus = [
        craft::send(1, &[]),
        craft::untagged(Control::last(5), 0, at(2), b"se"),
        craft::untagged(Control::last(4), VICTIM, at(3), b"inv"),
        craft::immediate(4, 0x0102_0304_0506_0708),
        craft::untagged(Control::last(9), 0, at(5), &[0xff; 8]),
        // The Invalidate STag field of a plain Send is not examined. rule 5040-4.1-4
        craft::untagged(Control::last(3), 0x5555, at(6), b"0123456789"),
    ];
    assert_eq!(feed(&mut f, &ulpdus), Ok(Progress::NeedBytes));
    let got: Vec<_> = f
        .host
        .delivered()
        .iter()
        .map(|d| (d.cookie, d.opcode, d.data.len(), d.invalidated, d.immediate))
        .collect();
    let want = [
        (1, Opcode::Send, 0, None, None),
        (2, Opcode::SendSe, 2, None, None),
        (3, Opcode::SendInvalidate, 3, Some(Stag(VICTIM)), None),
        (4, Opcode::Immediate, 0, None, Some(0x0102_0304_0506_0708)),
        (5, Opcode::ImmediateSe, 0, None, Some(u64::MAX)),
        (6, Opcode::Send, 10, None, None),
    ];
    assert_eq!(got, want);
}
