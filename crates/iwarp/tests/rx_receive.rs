//! Receives: a message waits for one, and goes on when it is posted, however the stream was cut.

use iwarp::rx::Progress;
use iwarp::{Fault, Stag};
use rnic_testkit::craft::{self, Control, Craft, Place};
use rnic_testkit::feeder::{self, Feeder, OPEN, OPEN_BASE, SINK, VICTIM};

fn stream(crc: bool, markers: bool, ulpdus: &[Vec<u8>]) -> Vec<u8> {
    let mut c = Craft::new(crc, markers);
    for u in ulpdus {
        c.ulpdu(u);
    }
    c.bytes().to_vec()
}

fn framings() -> impl Iterator<Item = (bool, bool)> {
    [(false, false), (true, false), (false, true), (true, true)].into_iter()
}

/// Sends of every kind and length, Writes among them, receives posted one at a time at the last moment.
#[test]
fn a_message_waits_for_its_receive_and_nothing_behind_it_is_looked_at() {
    // rule 5041-7.1-6, 5041-5.1.2-3
    let long = vec![9; 5000];
    for (crc, markers) in framings() {
        for piece in [1, 19, 20, 21, 1000, 4095, 6000, usize::MAX] {
            let n = feeder::agreed(crc, markers);
            let mut f = Feeder::new(&n, feeder::host(&n)).with_direct();
            let part = craft::untagged(Control::more(3), 0, Place { qn: 0, msn: 2, mo: 0 }, &long);
            let rest = craft::untagged(Control::last(3), 0, Place { qn: 0, msn: 2, mo: 5000 }, &long);
            let bytes = stream(
                crc,
                markers,
                &[
                    craft::send(1, b"one"),
                    part,
                    rest,
                    craft::immediate(3, 7),
                    craft::untagged(Control::last(6), VICTIM, Place { qn: 0, msn: 4, mo: 0 }, &long),
                    craft::write(OPEN, OPEN_BASE, b"behind"),
                ],
            );
            let mut waits = 0;
            for b in bytes.chunks(piece) {
                let mut progress = f.feed(b);
                while progress == Ok(Progress::NeedReceive) {
                    assert_eq!(f.host.region(OPEN).bytes[0], 0xaa, "the Write behind waits as well");
                    assert_eq!(f.host.delivered().len(), waits);
                    assert!(f.host.snapshot().regions.contains_key(&VICTIM));
                    assert_eq!(f.feed(&[]), Ok(Progress::NeedReceive), "and goes on waiting");
                    waits += 1;
                    f.host.post_receive(10_000);
                    progress = f.feed(&[]);
                }
                assert_eq!(progress, Ok(Progress::NeedBytes));
            }
            assert_eq!(waits, 4, "piece {piece} crc {crc} markers {markers}");
            let lens: Vec<_> = f.host.delivered().iter().map(|d| (d.cookie, d.data.len())).collect();
            assert_eq!(lens, [(1, 3), (2, 10_000), (3, 0), (4, 5000)]);
            assert_eq!(f.host.region(OPEN).bytes[..6], *b"behind");
            assert!(!f.host.snapshot().regions.contains_key(&VICTIM));
        }
    }
}

#[test]
fn what_needs_no_receive_does_not_wait_for_one() {
    // rule 5040-5.1-1, 5040-5.2-1
    let n = feeder::agreed(false, false);
    let mut host = feeder::host(&n);
    feeder::expect_read(&mut host, 1, 0, 4);
    let mut f = Feeder::new(&n, host);
    let ulpdus = [
        craft::write(OPEN, OPEN_BASE, &[1; 5000]),
        craft::read_request(1, (1, 2), 3, (OPEN, OPEN_BASE)),
        craft::read_response(SINK, 0, b"resp"),
        craft::terminate(&[0x12, 0x02, 0, 0]),
    ];
    assert_eq!(f.feed(&stream(false, false, &ulpdus)), Ok(Progress::Terminated));
}

#[test]
fn a_host_that_gives_up_ends_the_stream_and_the_terminate_names_the_message() {
    for (crc, piece) in [(false, usize::MAX), (false, 100), (true, 100)] {
        let n = feeder::agreed(crc, false);
        let mut f = Feeder::new(&n, feeder::host(&n));
        f.host.post_receive(10);
        let late = craft::send(2, &[5; 6000]);
        for b in stream(crc, false, &[craft::send(1, b"first"), late.clone()]).chunks(piece) {
            assert!(f.feed(b).is_ok());
        }
        assert_eq!(f.feed(&[]), Ok(Progress::NeedReceive));
        f.host.no_receive = Some(Fault::NoReceive);
        assert_eq!(f.feed(&[]), Err(Fault::NoReceive));
        let t = f.terminate().expect("a Terminate");
        assert_eq!((t.terminate.layer, t.terminate.etype, t.terminate.code), (1, 2, 2));
        assert_eq!((t.segment_len, t.header()), (Some(6018), &late[..18]), "not of the message before");
    }
}

#[test]
fn a_receive_of_exactly_the_message_is_enough() {
    // rule 5041-5.1.2-4
    let n = feeder::agreed(false, false);
    for (room, result) in [(4096 + 77, Ok(Progress::NeedBytes)), (4096 + 76, Err(Fault::MessageTooLong))] {
        for piece in [50, usize::MAX] {
            let mut f = Feeder::new(&n, feeder::host(&n));
            f.host.post_receive(room);
            let mut last = Ok(Progress::NeedBytes);
            for b in stream(false, false, &[craft::send(1, &[1; 4096 + 77])]).chunks(piece) {
                last = f.feed(b);
            }
            assert_eq!(last, result);
            let placed = if result.is_ok() { 4096 + 77 } else { 0 };
            assert_eq!(f.host.placed(), placed, "a segment too long is not placed in part");
        }
    }
}

#[test]
fn a_stream_that_ends_within_a_message_is_known_to() {
    // rule 5041-5.4-1
    let half = |ulpdu: Vec<u8>| stream(false, false, &[ulpdu]);
    let long = stream(false, false, &[craft::write(OPEN, OPEN_BASE, &[1; 5000])]);
    let cases = [
        half(craft::untagged(Control::more(3), 0, Place { qn: 0, msn: 1, mo: 0 }, b"a")),
        half(craft::tagged(Control::more(0), OPEN, OPEN_BASE, b"a")),
        half(craft::tagged(Control::more(2), SINK, 0, b"a")),
        long[..4000].to_vec(),
        long[..long.len() - 1].to_vec(),
    ];
    for (i, bytes) in cases.iter().enumerate() {
        let n = feeder::agreed(false, false);
        let mut host = feeder::host(&n);
        host.post_receive(10);
        feeder::expect_read(&mut host, 1, 0, 2);
        let mut f = Feeder::new(&n, host);
        assert!(f.rx.at_message_boundary());
        assert_eq!(f.feed(bytes), Ok(Progress::NeedBytes));
        assert!(!f.rx.at_message_boundary(), "case {i}");
        assert!(f.host.delivered().is_empty(), "a message is not delivered in part");
    }
    let n = feeder::agreed(false, false);
    let mut f = Feeder::new(&n, feeder::host(&n));
    f.host.post_receive(10);
    let whole = [
        craft::tagged(Control::more(0), OPEN, OPEN_BASE, b"a"),
        craft::untagged(Control::more(3), 0, Place { qn: 0, msn: 1, mo: 0 }, b"a"),
        craft::tagged(Control::last(0), OPEN, OPEN_BASE + 1, b"b"),
    ];
    assert_eq!(f.feed(&stream(false, false, &whole)), Ok(Progress::NeedBytes));
    assert!(!f.rx.at_message_boundary(), "the Send goes on");
    let end = craft::untagged(Control::last(3), 0, Place { qn: 0, msn: 1, mo: 1 }, b"b");
    assert_eq!(f.feed(&stream(false, false, &[end])), Ok(Progress::NeedBytes));
    assert!(f.rx.at_message_boundary());
}

/// Memory withdrawn while a long segment is half placed: the placement calls look again.
#[test]
fn memory_withdrawn_in_mid_segment_is_not_written_any_more() {
    // rule 5041-8.2-2
    for direct in [false, true] {
        let n = feeder::agreed(false, false);
        let mut f = Feeder::new(&n, feeder::host(&n));
        if direct {
            f = f.with_direct();
        }
        let bytes = stream(false, false, &[craft::write(OPEN, OPEN_BASE, &[1; 6000])]);
        assert_eq!(f.feed(&bytes[..3000]), Ok(Progress::NeedBytes));
        let placed = f.host.placed();
        assert_eq!(placed, 3000 - 16);
        f.host.deregister(OPEN);
        let fault = Fault::Write(Stag(OPEN), iwarp::TaggedFault::InvalidStag);
        assert_eq!(f.feed(&bytes[3000..]), Err(fault));
        assert_eq!(f.host.placed(), placed);
        let t = f.terminate().expect("a Terminate");
        assert_eq!((t.segment_len, t.header()), (Some(6014), &bytes[2..16]));
    }
}
