//! What goes out, byte by byte, against FPDUs written by hand from the RFCs' figures.

use iwarp::mpa::marker::MarkerTx;
use iwarp::mpa::{crc, frame};
use iwarp::tx::{Message, Transmitter};
use iwarp::types::{AtomicOp, AtomicRequest, Stag};
use iwarp::wire::ddp::{self, Header};
use iwarp::wire::rdmap::{AtomicResponse, ReadRequest};
use iwarp::wire::terminate;
use rnic_testkit::craft::{self, Atomic, Control, Craft, Place};

/// A message as an engine would put it on the stream.
fn emit(
    tx: &mut Transmitter,
    markers: &mut Option<MarkerTx>,
    sum: bool,
    message: &Message,
    payload: &[u8],
) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(tx.begin(message));
    while let Some(segment) = tx.next_segment() {
        let from = segment.payload_offset as usize;
        let mut fpdu = segment.header().to_vec();
        fpdu.extend_from_slice(&payload[from..from + segment.payload_len as usize]);
        fpdu.resize(segment.fpdu_len(), 0x55);
        let crc: Option<frame::Crc<'_>> = if sum { Some(&crc::update) } else { None };
        frame::seal(&mut fpdu, segment.ulpdu_len(), crc);
        match markers {
            None => out.extend_from_slice(&fpdu),
            Some(m) => {
                let mut marked = vec![0; m.framed_len(segment.ulpdu_len())];
                assert_eq!(m.seal(&fpdu, &mut marked, crc), marked.len());
                out.extend_from_slice(&marked);
            }
        }
    }
    assert!(tx.is_idle());
    out
}

/// One message of each kind next to the ULPDUs that it must become, where all fit one segment.
fn each_kind() -> Vec<(Message, Vec<u8>, Vec<u8>)> {
    let send = |len, invalidate, solicited| Message::Send { len, invalidate, solicited };
    let at = |qn, msn| Place { qn, msn, mo: 0 };
    let data = b"payload".to_vec();
    let none = Vec::new;
    let read =
        ReadRequest { sink_stag: Stag(0x0a0b_0c0d), sink_to: 1 << 40, len: 77, src_stag: Stag(9), src_to: 5 };
    let operands = [u64::MAX, 1 << 63, 3, 4];
    let atomic = |op| AtomicRequest {
        op,
        id: 0x0102_0304,
        stag: Stag(8),
        to: 1 << 33,
        add_swap: operands[0],
        add_swap_mask: operands[1],
        compare: operands[2],
        compare_mask: operands[3],
    };
    let wire = |op| Atomic { op, id: 0x0102_0304, stag: 8, to: 1 << 33, operands };
    let mut body = [0; terminate::MAX_LEN];
    body[..4].copy_from_slice(&[0x12, 0x05, 0, 0]);
    vec![
        (send(7, None, false), data.clone(), craft::send(1, &data)),
        (send(7, None, true), data.clone(), craft::untagged(Control::last(5), 0, at(0, 2), &data)),
        (send(7, Some(Stag(6)), false), data.clone(), craft::untagged(Control::last(4), 6, at(0, 3), &data)),
        (send(0, Some(Stag(6)), true), none(), craft::untagged(Control::last(6), 6, at(0, 4), &[])),
        (
            Message::Write { stag: Stag(5), to: u64::MAX, len: 7 },
            data.clone(),
            craft::write(5, u64::MAX, &data),
        ),
        (Message::ReadRequest(read), none(), craft::read_request(1, (0x0a0b_0c0d, 1 << 40), 77, (9, 5))),
        (
            Message::ReadResponse { stag: Stag(5), to: 3, len: 7 },
            data.clone(),
            craft::read_response(5, 3, &data),
        ),
        (Message::ReadResponse { stag: Stag(0), to: 0, len: 0 }, none(), craft::read_response(0, 0, &[])),
        (Message::Atomic(atomic(AtomicOp::FetchAdd)), none(), craft::atomic_request(2, wire(0))),
        (Message::Atomic(atomic(AtomicOp::Swap)), none(), craft::atomic_request(3, wire(1))),
        (Message::Atomic(atomic(AtomicOp::CmpSwap)), none(), craft::atomic_request(4, wire(2))),
        (
            Message::AtomicResponse(AtomicResponse { id: 7, original: 1 << 60 }),
            none(),
            craft::atomic_response(1, 7, 1 << 60),
        ),
        (Message::Immediate { value: 0x1234, solicited: false }, none(), craft::immediate(5, 0x1234)),
        (
            Message::Immediate { value: 5, solicited: true },
            none(),
            craft::untagged(Control::last(9), 0, at(0, 6), &5u64.to_be_bytes()),
        ),
        (Message::Terminate { body, len: 4 }, none(), craft::terminate(&[0x12, 0x05, 0, 0])),
    ]
}

#[test]
fn every_message_byte_for_byte() {
    // rule 5040-4.3-1, 5040-4.4-1, 5040-4.5-1, 5040-4.6-1, 5040-5.4-1, 5041-4.2-1, 5041-4.3-1, 5041-4.1-1
    // rule 7306-4.1-1, 7306-5.2.1-1, 7306-5.2.2-1, 7306-6.2-1, 5040-4.1-4
    for (sum, marked) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut tx = Transmitter::new(1000);
        let mut markers = marked.then(MarkerTx::new);
        let mut want = Craft::new(sum, marked);
        let mut got = Vec::new();
        for (message, payload, ulpdu) in each_kind() {
            got.extend(emit(&mut tx, &mut markers, sum, &message, &payload));
            want.ulpdu(&ulpdu);
            assert_eq!(got, want.bytes(), "{message:?}, crc {sum}, markers {marked}");
        }
    }
}

#[test]
fn long_messages_of_every_length_around_the_limit() {
    // rule 5041-4.2-2, 5041-4.3-2, 5041-5.2-1, 5041-5.2-3, 5041-4.1-2, 5041-4.1-5
    for mulpdu in [80, 81, 82, 83, 120, 1442, 1443] {
        let payload: Vec<u8> = (0..6000u32).map(|i| (i * 7) as u8).collect();
        let room = (mulpdu - 18) & !3;
        for len in [0, 1, 3, room - 1, room, room + 1, 2 * room, 2 * room + 5, 6000] {
            let part = &payload[..len];
            let send = Message::Send { len: len as u32, invalidate: Some(Stag(3)), solicited: true };
            let got = emit(&mut Transmitter::new(mulpdu), &mut None, true, &send, part);
            let mut want = Craft::new(true, false);
            let pieces = part.chunks(room).count().max(1);
            for i in 0..pieces {
                let piece = part.chunks(room).nth(i).unwrap_or_default();
                let control = if i + 1 == pieces { Control::last(6) } else { Control::more(6) };
                let place = Place { qn: 0, msn: 1, mo: (i * room) as u32 };
                want.ulpdu(craft::untagged(control, 3, place, piece));
            }
            assert_eq!(got, want.bytes(), "Send of {len}, MULPDU {mulpdu}");
            let room = (mulpdu - 14) & !3;
            let to = u64::MAX - 100;
            let write = Message::Write { stag: Stag(9), to, len: len as u32 };
            let got = emit(&mut Transmitter::new(mulpdu), &mut None, false, &write, part);
            let mut want = Craft::new(false, false);
            let pieces = part.chunks(room).count().max(1);
            for i in 0..pieces {
                let piece = part.chunks(room).nth(i).unwrap_or_default();
                let control = if i + 1 == pieces { Control::last(0) } else { Control::more(0) };
                want.ulpdu(craft::tagged(control, 9, to.wrapping_add((i * room) as u64), piece));
            }
            assert_eq!(got, want.bytes(), "Write of {len}, MULPDU {mulpdu}");
        }
    }
}

#[test]
fn the_longest_message_is_cut_to_its_last_byte() {
    // rule 5041-5.2-2
    let messages = [
        Message::Send { len: u32::MAX, invalidate: None, solicited: false },
        Message::Write { stag: Stag(1), to: 1 << 62, len: u32::MAX },
        Message::ReadResponse { stag: Stag(1), to: 0, len: u32::MAX },
    ];
    for message in messages {
        let mut tx = Transmitter::new(frame::MAX_ULPDU);
        assert!(tx.begin(&message));
        let mut at = 0u64;
        while let Some(s) = tx.next_segment() {
            assert_eq!(u64::from(s.payload_offset), at);
            at += u64::from(s.payload_len);
            assert_eq!(s.last, at == u64::from(u32::MAX));
            assert!(s.ulpdu_len() <= frame::MAX_ULPDU);
            match ddp::parse(&s.header()[2..]) {
                Ok(Header::Untagged(u)) => assert_eq!((u.mo, u.msn), (s.payload_offset, 1)),
                Ok(Header::Tagged(t)) => assert_eq!(t.to & u64::from(u32::MAX), u64::from(s.payload_offset)),
                Err(e) => panic!("{e}"),
            }
        }
        assert_eq!(at, u64::from(u32::MAX));
    }
}

#[test]
fn a_new_limit_holds_from_the_next_segment_on() {
    // rule 5044-4.5-3, 5044-3-4, 5044-3-2
    let mut tx = Transmitter::new(1000);
    assert!(tx.begin(&Message::Write { stag: Stag(1), to: 0, len: 2000 }));
    let first = tx.next_segment().unwrap();
    assert_eq!((first.payload_len, first.ulpdu_len()), (984, 998));
    tx.set_mulpdu(500);
    let lens: Vec<u32> = std::iter::from_fn(|| tx.next_segment()).map(|s| s.payload_len).collect();
    assert_eq!(lens, [484, 484, 48]);
    // Too small for any message, too large for the length field: the nearest that works.
    for (mulpdu, most) in [(0, 100), (usize::MAX, frame::MAX_ULPDU)] {
        tx.set_mulpdu(mulpdu);
        assert!(tx.begin(&Message::Atomic(AtomicRequest {
            op: AtomicOp::Swap,
            id: 1,
            stag: Stag(1),
            to: 0,
            add_swap: 0,
            add_swap_mask: 0,
            compare: 0,
            compare_mask: 0,
        })));
        let s = tx.next_segment().unwrap();
        assert!(s.last && s.ulpdu_len() == 70, "a control message is one segment, whatever the limit");
        assert!(tx.begin(&Message::Write { stag: Stag(1), to: 0, len: 1 << 20 }));
        assert!(std::iter::from_fn(|| tx.next_segment()).all(|s| s.ulpdu_len() <= most && s.payload_len > 0));
    }
}
