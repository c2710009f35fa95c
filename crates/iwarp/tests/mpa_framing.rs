//! FPDUs: CRC, framing, markers and back.

use iwarp::Fault;
use iwarp::mpa::crc;
use iwarp::mpa::deframe::Deframer;
use iwarp::mpa::frame::{self, Crc, MAX_ULPDU, fpdu_len, mulpdu, pad_len, seal};
use iwarp::mpa::marker::{self, MarkerTx};
use proptest::prelude::*;

const SUM: Crc<'static> = &crc::update;

/// The sum bit by bit, from the polynomial's definition.
fn slow_crc(bytes: &[u8]) -> u32 {
    let mut c = !0u32;
    for &b in bytes {
        c ^= u32::from(b);
        for _ in 0..8 {
            c = if c & 1 != 0 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 };
        }
    }
    !c
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + seed) as u8).collect()
}

fn fpdu(ulpdu: &[u8], crc: Option<Crc<'_>>) -> Vec<u8> {
    let mut buf = vec![0xee; fpdu_len(ulpdu.len())];
    buf[2..2 + ulpdu.len()].copy_from_slice(ulpdu);
    let n = seal(&mut buf, ulpdu.len(), crc);
    assert_eq!(n, buf.len());
    buf
}

/// Markers put in byte by byte, straight from the rule: one wherever the position is a multiple of
/// 512, pointing back to the length field of the FPDU whose next byte follows it.
fn slow_markers(fpdus: &[Vec<u8>], crc: bool) -> Vec<Vec<u8>> {
    let mut pos = 0usize;
    let mut out = Vec::new();
    for fpdu in fpdus {
        let (mut bytes, mut start) = (Vec::new(), None);
        let body = fpdu.len() - 4;
        for (i, &byte) in fpdu.iter().enumerate() {
            if pos.is_multiple_of(512) {
                let back = start.map_or(0, |s| pos - s) as u16;
                bytes.extend([0, 0, (back >> 8) as u8, back as u8]);
                pos += 4;
            }
            start.get_or_insert(pos);
            if i == body && crc {
                let sum = slow_crc(&bytes).to_le_bytes();
                bytes.extend(sum);
                pos += 4;
                break;
            }
            bytes.push(byte);
            pos += 1;
        }
        out.push(bytes);
    }
    out
}

// --- CRC ---

// rule 5044-4.4-1
#[test]
fn crc_vectors() {
    // RFC 3720 appendix B.4, whose CRC MPA takes over.
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    for (bytes, wire) in [
        (vec![0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (vec![0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (ascending, [0x4e, 0x79, 0xdd, 0x46]),
        (descending, [0x5c, 0xdb, 0x3f, 0x11]),
    ] {
        assert_eq!(crc::to_wire(crc::update(crc::INIT, &bytes)), wire);
    }
    assert_eq!(!crc::update(crc::INIT, b"123456789"), 0xe306_9283);
    assert_eq!(!crc::update(crc::INIT, b""), 0);
}

#[test]
fn crc_is_the_polynomials_at_every_length_and_split() {
    let bytes = pattern(100, 3);
    for len in 0..bytes.len() {
        let whole = slow_crc(&bytes[..len]);
        for cut in 0..=len {
            let state = crc::update(crc::update(crc::INIT, &bytes[..cut]), &bytes[cut..len]);
            assert_eq!(!state, whole);
        }
    }
}

// --- framing ---

// rule 5044-4.1-1, 5044-4.1-4, 5044-4.4-2
#[test]
fn fpdu_bytes_as_seen_on_the_wire() {
    // siw's Terminate for a bad CRC, with CRCs on.
    let want = [
        0x00, 0x16, 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0x75, 0xd3,
        0x67, 0xed,
    ];
    assert_eq!(fpdu(&want[2..24], Some(SUM)), want);
    let mut off = want;
    off[24..].fill(0);
    assert_eq!(fpdu(&want[2..24], None), off);
}

// rule 5044-4.1-2, 5044-4.1-3
#[test]
fn lengths_and_padding_for_every_remainder() {
    for (ulpdu, pad, total) in [(14, 0, 20), (15, 3, 24), (16, 2, 24), (17, 1, 24), (18, 0, 24), (0, 2, 8)] {
        assert_eq!((pad_len(ulpdu), fpdu_len(ulpdu)), (pad, total));
        let bytes = fpdu(&vec![0xff; ulpdu], None);
        assert_eq!(bytes[..2], (ulpdu as u16).to_be_bytes());
        assert_eq!(bytes[2 + ulpdu..2 + ulpdu + pad], [0, 0, 0][..pad]);
    }
    assert_eq!(fpdu_len(MAX_ULPDU), 65544);
    assert_eq!(fpdu_len(usize::MAX) & 3, 0);
}

#[test]
fn trailer_is_the_end_of_a_sealed_fpdu() {
    for len in 14..40 {
        let whole = fpdu(&pattern(len, 0), Some(SUM));
        let sum = crc::to_wire(crc::update(crc::INIT, &whole[..whole.len() - 4]));
        let (bytes, n) = frame::trailer(len, sum);
        assert_eq!(whole[2 + len..], bytes[..n]);
    }
}

#[test]
fn seal_refuses_what_does_not_fit() {
    let mut buf = [0x55u8; 24];
    assert_eq!(seal(&mut buf, 19, Some(SUM)), 0);
    assert_eq!(seal(&mut buf, MAX_ULPDU + 1, Some(SUM)), 0);
    assert_eq!(seal(&mut [], 14, None), 0);
    assert_eq!(buf, [0x55; 24]);
    assert_eq!(seal(&mut buf, 18, Some(SUM)), 24);
}

// rule 5044-4.5-1, 5044-4.5-2
#[test]
fn mulpdu_fits_the_segment_and_wastes_less_than_a_word() {
    assert_eq!(mulpdu(1448, false), 1442);
    assert_eq!(mulpdu(1460, true), 1460 - 6 - 12);
    assert_eq!(mulpdu(1461, false), mulpdu(1460, false));
    for mss in 160..4000 {
        let plain = mulpdu(mss, false);
        assert!(fpdu_len(plain) <= mss && fpdu_len(plain) + 4 > mss);
        let marked = mulpdu(mss, true);
        let worst = positions().map(|pos| at_position(pos).framed_len(marked)).max();
        assert!(worst.unwrap() <= mss);
    }
    for markers in [false, true] {
        for small in [0, 3, 88, 128] {
            assert_eq!(mulpdu(small, markers), 128);
        }
        for large in [65535, 65544, 1 << 20, usize::MAX] {
            assert!((64_000..=frame::MAX_MULPDU).contains(&mulpdu(large, markers)), "{large} {markers}");
        }
        assert_eq!(pad_len(mulpdu(usize::MAX, markers)), 0);
    }
}

// --- deframing without markers ---

// rule 5044-3-1, 5044-6-1
#[test]
fn deframe_every_length_with_and_without_crc() {
    for crc in [false, true] {
        for len in (14..200).chain([1442, 16000, MAX_ULPDU]) {
            let ulpdu = pattern(len, len);
            let mut bytes = fpdu(&ulpdu, crc.then_some(SUM));
            bytes.extend([1, 2, 3]);
            let mut deframer = Deframer::new(crc, false);
            let total = deframer.peek(&bytes).unwrap().unwrap();
            assert_eq!(total, bytes.len() - 3);
            let range = deframer.take(&mut bytes, total, crc::update).unwrap();
            assert_eq!(bytes[range], ulpdu);
        }
    }
}

// rule 5044-5.2-1
#[test]
fn a_cut_fpdu_is_never_judged_early() {
    let bytes = fpdu(&pattern(30, 0), Some(SUM));
    for markers in [false, true] {
        let deframer = Deframer::new(true, markers);
        let mut stream = if markers { vec![0; 4] } else { vec![] };
        stream.extend(&bytes);
        let head = if markers { 6 } else { 2 };
        for cut in 0..head {
            assert_eq!(deframer.peek(&stream[..cut]), Ok(None));
        }
        for cut in head..=stream.len() {
            assert_eq!(deframer.peek(&stream[..cut]), Ok(Some(stream.len())));
        }
    }
}

// rule 5044-6-3
#[test]
fn ulpdu_too_short_for_a_ddp_header_is_a_length_fault() {
    for len in 0..14u16 {
        let deframer = Deframer::new(false, false);
        assert_eq!(deframer.peek(&len.to_be_bytes()), Err(Fault::FpduLength(len.into())));
    }
    assert!(Deframer::new(false, false).peek(&[0, 14]).is_ok());
}

#[test]
fn take_with_another_total_than_peeks_is_a_fault() {
    let whole = fpdu(&pattern(30, 0), None);
    for total in (0..whole.len()).chain([whole.len() + 1, usize::MAX]) {
        let mut bytes = whole.clone();
        let taken = Deframer::new(false, false).take(&mut bytes, total, crc::update);
        assert_eq!(taken, Err(Fault::FpduLength(total as u32)), "{total}");
    }
}

// rule 5044-4.4-3, 5044-4.4-7
#[test]
fn every_flipped_bit_is_caught() {
    for len in [14, 15, 16, 17, 18, 61, 300] {
        let whole = fpdu(&pattern(len, 1), Some(SUM));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            let mut deframer = Deframer::new(true, false);
            // What follows in the stream, so that a longer length finds bytes.
            bytes.resize(70_000, 0x5a);
            let outcome =
                deframer.peek(&bytes).map(|total| deframer.take(&mut bytes, total.unwrap(), crc::update));
            match outcome {
                Err(Fault::FpduLength(_)) => assert!(bit < 16),
                other => assert_eq!(other, Ok(Err(Fault::Crc)), "length {len} bit {bit}"),
            }
        }
    }
}

// rule 5044-4.4-5
#[test]
fn without_crc_the_field_is_not_looked_at() {
    let mut bytes = fpdu(&pattern(20, 0), Some(SUM));
    *bytes.last_mut().unwrap() ^= 1;
    let mut deframer = Deframer::new(false, false);
    let total = deframer.peek(&bytes).unwrap().unwrap();
    assert!(deframer.take(&mut bytes, total, |_, _| panic!("summed")).is_ok());
}

// --- markers ---

/// Every stream position (modulo 512) at which an FPDU can start: multiples of four, and not four
/// itself, since no FPDU ends right behind a marker.
fn positions() -> impl Iterator<Item = usize> {
    (0..512).step_by(4).filter(|&pos| pos != 4)
}

/// Bytes of the FPDU that leads from position zero to this one.
fn filler(pos: usize) -> usize {
    // Short of 24 bytes there is no room for an FPDU: go round once, past one more marker.
    if pos < 28 { pos + 512 - 8 } else { pos - 4 }
}

/// A transmitter whose next FPDU starts at this position.
fn at_position(pos: usize) -> MarkerTx {
    let mut tx = MarkerTx::new();
    if pos != 0 {
        assert_eq!(advance(&mut tx, filler(pos)) % 512, pos);
    }
    tx
}

/// A receiver at this position.
fn deframer_at(pos: usize) -> Deframer {
    let mut rx = Deframer::new(true, true);
    if pos != 0 {
        let ulpdu = vec![0; filler(pos) - 6];
        let mut stream = vec![0; MarkerTx::new().framed_len(ulpdu.len())];
        let n = MarkerTx::new().seal(&fpdu(&ulpdu, None), &mut stream, Some(SUM));
        rx.take(&mut stream, n, crc::update).unwrap();
    }
    rx
}

/// Sends an FPDU of `len` bytes and tells the bytes that it took.
fn advance(tx: &mut MarkerTx, len: usize) -> usize {
    let mut plain = vec![0; len];
    assert_eq!(seal(&mut plain, len - 6, None), len);
    tx.seal(&plain, &mut vec![0; 2 * len + 16], None)
}

// rule 5044-4.3-3, 5044-4.2-3, 5044-4.4-2
#[test]
fn the_first_fpdu_has_a_marker_of_zero_before_it() {
    let plain = fpdu(&pattern(14, 0), Some(SUM));
    let mut out = [0xee; 24];
    assert_eq!(MarkerTx::new().seal(&plain, &mut out, Some(SUM)), 24);
    assert_eq!(out[..4], [0; 4]);
    assert_eq!(out[4..20], plain[..16]);
    // The sum covers that marker. RFC 5044 §4.3.
    assert_eq!(out[20..], slow_crc(&out[..20]).to_le_bytes());
}

// rule 5044-4.2-1, 5044-4.2-2
#[test]
fn later_markers_point_to_the_length_field_not_to_the_marker_before_it() {
    let plain = fpdu(&pattern(1100, 0), None);
    let mut out = vec![0; MarkerTx::new().framed_len(1100)];
    let n = MarkerTx::new().seal(&plain, &mut out, None);
    assert_eq!((n, out.len()), (1108 + 12, 1108 + 12));
    assert_eq!(out[512..516], [0, 0, 508u16.to_be_bytes()[0], 508u16.to_be_bytes()[1]]);
    assert_eq!(out[1024..1028], [0, 0, 1020u16.to_be_bytes()[0], 1020u16.to_be_bytes()[1]]);
}

// rule 5044-4.2-3
#[test]
fn a_marker_between_fpdus_belongs_to_the_second() {
    // 4 (marker) + 508: the first FPDU ends right where a marker is due.
    let mut tx = MarkerTx::new();
    assert_eq!(advance(&mut tx, 508), 512);
    let mut out = [0xee; 24];
    assert_eq!(tx.seal(&fpdu(&pattern(14, 0), None), &mut out, None), 24);
    assert_eq!(out[..4], [0; 4]);
}

// rule 5044-4.3-4
#[test]
fn a_marker_can_lie_between_padding_and_crc() {
    // 4 (marker) + 508 bytes of body, then a marker, then the CRC.
    let ulpdu = pattern(505, 0);
    let plain = fpdu(&ulpdu, Some(SUM));
    assert_eq!(plain.len(), 512);
    let mut out = vec![0; MarkerTx::new().framed_len(505)];
    assert_eq!(MarkerTx::new().seal(&plain, &mut out, Some(SUM)), 520);
    assert_eq!(out[512..516], [0, 0, 1, 0xfc]);
    assert_eq!(out[516..], slow_crc(&out[..516]).to_le_bytes());
    let mut deframer = Deframer::new(true, true);
    let range = deframer.take(&mut out, 520, crc::update).unwrap();
    assert_eq!(out[range], ulpdu);
}

// rule 5044-4.3-2, 5044-4.3-4
#[test]
fn markers_at_every_alignment_and_length_round_trip() {
    for pos in positions() {
        for len in (14..64).chain((64..1100).step_by(7)).chain(480..520) {
            let (mut tx, ulpdu) = (at_position(pos), pattern(len, pos));
            let mut stream = vec![0; tx.framed_len(len)];
            let n = tx.seal(&fpdu(&ulpdu, Some(SUM)), &mut stream, Some(SUM));
            assert_eq!(n, stream.len());
            let mut rx = deframer_at(pos);
            assert_eq!(rx.peek(&stream), Ok(Some(n)));
            let range = rx.take(&mut stream, n, crc::update).unwrap();
            assert_eq!(stream[range], ulpdu, "position {pos} length {len}");
        }
    }
}

// rule 5044-4.3-5, 5044-6-2, 5044-4.2-1
#[test]
fn every_flipped_marker_bit_is_caught_with_and_without_crc() {
    let ulpdu = pattern(1100, 0);
    for crc in [true, false] {
        let sum = crc.then_some(SUM);
        let mut whole = vec![0; MarkerTx::new().framed_len(ulpdu.len())];
        MarkerTx::new().seal(&fpdu(&ulpdu, sum), &mut whole, sum);
        for at in [0usize, 512, 1024] {
            for bit in 0..32 {
                let mut bytes = whole.clone();
                bytes[at + bit / 8] ^= 0x80 >> (bit % 8);
                let mut rx = Deframer::new(crc, true);
                let total = rx.peek(&bytes).unwrap().unwrap();
                let got = rx.take(&mut bytes, total, crc::update);
                match bit {
                    _ if crc => assert_eq!(got, Err(Fault::Crc)),
                    // Reserved bits and FPDUPTR's low two are not checked. RFC 5044 §4.3.
                    0..16 | 30 | 31 => assert_eq!(bytes[got.unwrap()], ulpdu),
                    _ => assert_eq!(got, Err(Fault::Marker)),
                }
            }
        }
    }
}

#[test]
fn marker_seal_refuses_and_stays_in_place() {
    let mut tx = MarkerTx::new();
    let plain = fpdu(&pattern(14, 0), None);
    assert_eq!(tx.seal(&plain, &mut [0; 23], None), 0);
    assert_eq!(tx.seal(&plain[..19], &mut [0; 99], None), 0);
    assert_eq!(tx.seal(&[], &mut [0; 99], None), 0);
    let huge = fpdu(&pattern(65019, 0), None);
    assert_eq!(tx.seal(&huge, &mut vec![0; 1 << 17], None), 0);
    assert_eq!(tx, MarkerTx::new());
}

#[test]
fn the_largest_fpdu_with_markers_fits_at_every_alignment() {
    let ulpdu = pattern(mulpdu(usize::MAX, true), 0);
    for pos in positions() {
        let mut out = vec![0; marker::MAX_FRAMED];
        let n = at_position(pos).seal(&fpdu(&ulpdu, None), &mut out, Some(SUM));
        assert!(n > ulpdu.len(), "position {pos}");
        let range = deframer_at(pos).take(&mut out, n, crc::update).unwrap();
        assert_eq!(out[range], ulpdu, "position {pos}");
    }
}

#[test]
fn a_peer_that_sends_no_markers_is_found_out() {
    let mut bytes = fpdu(&pattern(14, 0), None);
    bytes.extend(fpdu(&pattern(14, 0), None));
    let mut rx = Deframer::new(false, true);
    // The "length" is taken from behind the place of the marker that is not there.
    match rx.peek(&bytes) {
        Ok(Some(total)) => assert!(total > bytes.len() || rx.take(&mut bytes, total, crc::update).is_err()),
        other => assert!(matches!(other, Err(Fault::FpduLength(_)))),
    }
}

// --- properties ---

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(prop_oneof![14..80usize, 14..1600usize, 490..520usize], 1..40)
}

proptest! {
    #[test]
    fn marker_streams_match_the_rule_and_come_back(lens in lengths(), crc: bool) {
        let ulpdus: Vec<Vec<u8>> = lens.iter().enumerate().map(|(i, &n)| pattern(n, i)).collect();
        let sum = crc.then_some(SUM);
        let plain: Vec<Vec<u8>> = ulpdus.iter().map(|u| fpdu(u, sum)).collect();
        let want = slow_markers(&plain, crc);
        let mut tx = MarkerTx::new();
        let mut stream = Vec::new();
        for (p, w) in plain.iter().zip(&want) {
            let mut out = vec![0; w.len()];
            prop_assert_eq!(tx.framed_len(p.len() - 6), w.len());
            prop_assert_eq!(tx.seal(p, &mut out, sum), w.len());
            prop_assert_eq!(&out, w);
            stream.extend(out);
        }
        let mut rx = Deframer::new(crc, true);
        let mut rest = &mut stream[..];
        for u in &ulpdus {
            let total = rx.peek(rest).unwrap().unwrap();
            let range = rx.take(rest, total, crc::update).unwrap();
            prop_assert_eq!(&rest[range], &u[..]);
            rest = &mut rest[total..];
        }
        prop_assert!(rest.is_empty());
    }

    // rule 5044-9.1-1
    #[test]
    fn garbage_never_panics(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        crc: bool, markers: bool, total in 0usize..2100,
    ) {
        let mut rx = Deframer::new(crc, markers);
        if let Ok(Some(total)) = rx.peek(&bytes) {
            let got = rx.take(&mut bytes, total, crc::update);
            prop_assert!(got.is_err() || bytes.get(got.unwrap()).is_some());
        }
        let got = rx.take(&mut bytes, total, crc::update);
        prop_assert!(got.is_err() || bytes.get(got.unwrap()).is_some());
        let _ = MarkerTx::new().seal(&bytes, &mut [0; 3000], Some(SUM));
        let _ = seal(&mut bytes, total, Some(SUM));
    }
}
