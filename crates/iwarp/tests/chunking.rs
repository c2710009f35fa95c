//! How TCP cuts the stream never matters: same events, same memory, same fault.

use proptest::prelude::*;
use rnic_testkit::craft::{self, Atomic, Control, Craft, Place};
use rnic_testkit::feeder::{self, Feeder, OPEN, OPEN_BASE, Outcome, SINK, TOP, TOP_BASE, VICTIM};
use rnic_testkit::host::ArrayHost;
use rnic_testkit::pipe::cut;
use rnic_testkit::seed::Seed;

/// A stream and the host that it meets.
struct Scene {
    crc: bool,
    markers: bool,
    bytes: Vec<u8>,
    prepare: fn(&mut ArrayHost),
}

impl Scene {
    fn run(&self, cuts: &[usize], direct: bool) -> Outcome {
        let n = feeder::agreed(self.crc, self.markers);
        let mut host = feeder::host(&n);
        (self.prepare)(&mut host);
        let mut feeder = Feeder::new(&n, host);
        if direct {
            feeder = feeder.with_direct();
        }
        for piece in cut(&self.bytes, cuts) {
            // A fault is in the outcome.
            let _ = feeder.feed(piece);
        }
        feeder.outcome()
    }

    fn same_at_every_cut(&self) -> Outcome {
        let whole = self.run(&[], false);
        for at in 1..self.bytes.len() {
            for direct in [false, true] {
                assert_eq!(
                    self.run(&[at], direct),
                    whole,
                    "cut at {at} of {}, direct {direct}",
                    self.bytes.len()
                );
            }
        }
        let bytewise: Vec<usize> = (1..self.bytes.len()).collect();
        assert_eq!(self.run(&bytewise, false), whole, "byte by byte");
        assert_eq!(self.run(&bytewise, true), whole, "byte by byte, direct");
        whole
    }
}

fn framings() -> impl Iterator<Item = (bool, bool)> {
    [(false, false), (true, false), (false, true), (true, true)].into_iter()
}

fn prepare(host: &mut ArrayHost) {
    for _ in 0..6 {
        host.post_receive(9000);
    }
    feeder::expect_read(host, 70, 5, 10);
    feeder::expect_read(host, 71, 100, 0);
    feeder::expect_atomic(host, 72, 200, 0xabcd);
}

/// Every opcode once, in small messages.
fn one_of_each(crc: bool, markers: bool) -> Vec<u8> {
    let mut c = Craft::new(crc, markers);
    c.ulpdu(craft::write(0, 0, &[]))
        .ulpdu(craft::write(OPEN, OPEN_BASE + 1, b"hello"))
        .ulpdu(craft::send(1, &[]))
        .ulpdu(craft::untagged(Control::more(3), 0, Place { qn: 0, msn: 2, mo: 0 }, b"first part, "))
        .ulpdu(craft::read_response(SINK, 5, b"0123456789"))
        .ulpdu(craft::untagged(Control::last(3), 0, Place { qn: 0, msn: 2, mo: 12 }, b"second part"))
        .ulpdu(craft::read_request(1, (7, 8), 100, (OPEN, OPEN_BASE)))
        .ulpdu(craft::read_response(SINK, 100, &[]))
        .ulpdu(craft::untagged(Control::last(6), VICTIM, Place { qn: 0, msn: 3, mo: 0 }, b"x"))
        .ulpdu(craft::atomic_request(
            2,
            Atomic { op: 0, id: 9, stag: OPEN, to: OPEN_BASE, operands: [1, 0, 0, 0] },
        ))
        .ulpdu(craft::atomic_response(1, 0xabcd, 77))
        .ulpdu(craft::immediate(4, 0x1122_3344_5566_7788))
        .ulpdu(craft::untagged(Control::last(9), 0, Place { qn: 0, msn: 5, mo: 0 }, &[1; 8]))
        .ulpdu(craft::untagged(Control::last(5), 0, Place { qn: 0, msn: 6, mo: 0 }, b"solicited"))
        .ulpdu(craft::terminate(&[0x12, 0x05, 0, 0]));
    c.bytes().to_vec()
}

#[test]
fn every_cut_of_one_message_of_each_opcode() {
    // rule 5044-5.2-2, 5041-3-1, 7306-5.4-1
    for (crc, markers) in framings() {
        let scene = Scene { crc, markers, bytes: one_of_each(crc, markers), prepare };
        let whole = scene.same_at_every_cut();
        assert_eq!(whole.result, Ok(iwarp::rx::Progress::Terminated), "crc {crc} markers {markers}");
        assert_eq!(whole.fpdus, 15);
        let s = whole.snapshot;
        assert_eq!((s.delivered.len(), s.inbound.len(), s.receives_left), (6, 2, 0));
        assert_eq!(s.delivered[1].data, b"first part, second part");
        assert_eq!(&s.regions[&OPEN].bytes[..2], [0xab, b'h'], "the atomic after the Write");
    }
}

#[test]
fn every_two_cuts_of_a_short_stream() {
    let mut c = Craft::new(false, false);
    c.ulpdu(craft::write(OPEN, OPEN_BASE, b"abc"))
        .ulpdu(craft::untagged(Control::more(3), 0, Place { qn: 0, msn: 1, mo: 0 }, b"de"))
        .ulpdu(craft::untagged(Control::last(3), 0, Place { qn: 0, msn: 1, mo: 2 }, b"f"));
    let scene = Scene { crc: false, markers: false, bytes: c.bytes().to_vec(), prepare };
    let whole = scene.run(&[], false);
    assert_eq!(whole.snapshot.delivered[0].data, b"def");
    for a in 1..scene.bytes.len() {
        for b in a..scene.bytes.len() {
            assert_eq!(scene.run(&[a, b], false), whole, "cuts at {a} and {b}");
        }
    }
}

/// Long FPDUs of each kind that carries payload, padded, back to back with short ones.
fn long_ones(crc: bool, markers: bool) -> Vec<u8> {
    let mut seed = Seed::new(9);
    let mut c = Craft::new(crc, markers);
    c.ulpdu(craft::write(OPEN, OPEN_BASE + 3, &seed.bytes(4101)))
        .ulpdu(craft::send(1, b"short"))
        .ulpdu(craft::untagged(Control::more(3), 0, Place { qn: 0, msn: 2, mo: 0 }, &seed.bytes(4300)))
        .ulpdu(craft::write(TOP, TOP_BASE, &seed.bytes(4096)))
        .ulpdu(craft::untagged(Control::last(3), 0, Place { qn: 0, msn: 2, mo: 4300 }, &seed.bytes(4095)))
        .ulpdu(craft::tagged(Control::more(2), SINK, 1, &seed.bytes(5000)))
        .ulpdu(craft::tagged(Control::last(2), SINK, 5001, &seed.bytes(4099)))
        .ulpdu(craft::read_response(0xdead, 5, &seed.bytes(4200)));
    c.bytes().to_vec()
}

fn prepare_long(host: &mut ArrayHost) {
    host.post_receive(10);
    host.post_receive(9000);
    feeder::expect_read(host, 1, 1, 9099);
    // The last response answers this one: its bytes are thrown away.
    feeder::expect_read(host, 2, 0, 0);
}

#[test]
fn every_cut_of_long_fpdus() {
    for (crc, markers) in framings() {
        let bytes = long_ones(crc, markers);
        let scene = Scene { crc, markers, bytes, prepare: prepare_long };
        let whole = scene.run(&[], false);
        assert_eq!((whole.fpdus, whole.result), (8, Ok(iwarp::rx::Progress::NeedBytes)));
        assert_eq!(whole.snapshot.delivered[1].data.len(), 8395);
        // Only where nothing is verified before it is placed does the place of a cut matter that much.
        let step = if crc || markers { 97 } else { 1 };
        for at in (1..scene.bytes.len()).step_by(step) {
            assert_eq!(scene.run(&[at], false), whole, "cut at {at}, crc {crc}, markers {markers}");
            assert_eq!(scene.run(&[at, at + 700, at + 1400], true), whole, "cut at {at}, direct");
        }
    }
}

#[test]
fn direct_placement_takes_the_payload_behind_the_first_piece() {
    let n = feeder::agreed(false, false);
    let payload = Seed::new(3).bytes(6000);
    let mut c = Craft::new(false, false);
    c.ulpdu(craft::write(OPEN, OPEN_BASE, &payload));
    let mut f = Feeder::new(&n, feeder::host(&n)).with_direct();
    for piece in c.bytes().chunks(1000) {
        assert_eq!(f.feed(piece), Ok(iwarp::rx::Progress::NeedBytes));
    }
    assert_eq!(f.direct_bytes(), 6000 - (1000 - 16), "all but what came with the header");
    assert_eq!(f.host.region(OPEN).bytes[..6000], payload);
    assert_eq!((f.rx.fpdus(), f.pending()), (1, 0));
}

#[test]
fn a_fault_behind_good_messages_is_the_same_wherever_the_cut_falls() {
    for (crc, markers) in framings() {
        let bad: [Vec<u8>; 6] = [
            craft::write(OPEN, OPEN_BASE + 8190, b"beyond"),
            craft::write(OPEN, OPEN_BASE + 100, &[1; 8500]),
            craft::untagged(Control::last(3), 0, Place { qn: 0, msn: 7, mo: 0 }, &[2; 5000]),
            craft::untagged(Control::last(1), 0, Place { qn: 3, msn: 1, mo: 0 }, &[3; 4500]),
            craft::untagged(Control::last(1), 0, Place { qn: 1, msn: 1, mo: 0 }, &[3; 4500]),
            craft::read_response(SINK, 5, &[4; 4100]),
        ];
        for ulpdu in &bad {
            let mut c = Craft::new(crc, markers);
            c.ulpdu(craft::write(OPEN, OPEN_BASE, b"good")).ulpdu(ulpdu).ulpdu(craft::send(1, b"behind"));
            let scene = Scene { crc, markers, bytes: c.bytes().to_vec(), prepare };
            let whole = scene.run(&[], false);
            assert!(whole.result.is_err());
            assert!(whole.snapshot.delivered.is_empty(), "nothing behind a fault is looked at");
            for at in (1..scene.bytes.len()).step_by(if scene.bytes.len() > 300 { 13 } else { 1 }) {
                assert_eq!(scene.run(&[at], false), whole, "cut at {at}");
                assert_eq!(scene.run(&[at], true), whole, "cut at {at}, direct");
            }
        }
    }
}

/// Random segments, some of them wrong, all within what the host knows.
fn random_stream(seed: &mut Seed, crc: bool, markers: bool, count: usize) -> Vec<u8> {
    let mut c = Craft::new(crc, markers);
    let mut msn = [1u32; 4];
    for _ in 0..count {
        let len = match seed.below(4) {
            0 => seed.below(4),
            1 => seed.below(9000),
            _ => seed.below(300),
        };
        let payload = seed.bytes(len);
        let wrong = seed.one_in(25);
        let mut place = |qn: usize, advance: bool| {
            let at = Place { qn: qn as u32, msn: msn[qn].wrapping_add(u32::from(wrong)), mo: 0 };
            msn[qn] += u32::from(advance);
            at
        };
        let ulpdu = match seed.below(6) {
            0 | 1 => craft::write(
                OPEN,
                OPEN_BASE + seed.below(if wrong { 9000 } else { 1 }) as u64,
                &payload[..len.min(8192)],
            ),
            2 => craft::untagged(Control::last(3), 0, place(0, true), &payload),
            3 => craft::read_request(place(1, true).msn, (1, 2), 5, (OPEN, OPEN_BASE)),
            4 => craft::immediate(place(0, true).msn, seed.u64()),
            _ => craft::atomic_request(
                place(1, true).msn,
                Atomic { stag: OPEN, to: OPEN_BASE, operands: [1; 4], ..Atomic::default() },
            ),
        };
        c.ulpdu(ulpdu);
    }
    let mut bytes = c.bytes().to_vec();
    if seed.one_in(4) && !bytes.is_empty() {
        let bit = seed.below(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}

fn prepare_many(host: &mut ArrayHost) {
    for i in 0..20 {
        host.post_receive(if i % 7 == 6 { 100 } else { 9000 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cuts_of_long_random_streams(
        seed in any::<u64>(), crc in any::<bool>(), markers in any::<bool>(), direct in any::<bool>(),
        count in 1usize..24, mut cuts in prop::collection::vec(0usize..30_000, 0..40),
    ) {
        cuts.sort_unstable();
        let bytes = random_stream(&mut Seed::new(seed), crc, markers, count);
        let scene = Scene { crc, markers, bytes, prepare: prepare_many };
        prop_assert_eq!(scene.run(&cuts, direct), scene.run(&[], false));
    }
}
