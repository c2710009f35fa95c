//! Depths, receives, fences and the first message: what holds an endpoint back, and what does not.

use iwarp::mpa::startup::Rtr;
use iwarp::rx::Progress;
use iwarp::types::AtomicOp;
use iwarp::{Event, Fault};
use rnic_testkit::host::{Region, Rights};
use rnic_testkit::pair::{Config, Done, End, Pair, Work};
use rnic_testkit::pipe::Chunking;
use rnic_testkit::seed::Seed;

const TARGET: u32 = 0x0101;
const SINK: u32 = 0x0202;

fn connected(config: &Config) -> Pair {
    let mut pair = Pair::new(config);
    for side in [true, false] {
        pair.host(side).register(TARGET, Region::new(0, 0).with_bytes(Seed::new(1).bytes(4096)));
        pair.host(side).register(SINK, Region::new(0, 4096).with_rights(Rights::NONE));
    }
    pair
}

#[test]
fn no_more_reads_at_once_than_agreed() {
    // rule 5040-5.2.1-1, 7306-5.2.1-3, 6581-9.1-5
    for depth in 1..5 {
        let mut pair = connected(&Config { depth, seed: u64::from(depth), ..Config::default() });
        for i in 0..40u64 {
            if i % 3 == 0 {
                let target = (TARGET, 8 * i);
                pair.initiator.post(Work::atomic(AtomicOp::FetchAdd, target, [0; 4], (SINK, 8 * i)));
            } else {
                pair.initiator.post(Work::read((SINK, 8 * i), 8, (TARGET, 8 * i)));
            }
        }
        let (mut most, mut served) = (0, 0);
        while pair.step() {
            most = most.max(pair.initiator.host.outstanding());
            served = served.max(pair.responder.host.inbound_waiting());
        }
        assert_eq!(pair.faults(), (None, None));
        assert_eq!(most, usize::from(depth), "used up, and not exceeded");
        assert!(served <= usize::from(depth));
        assert_eq!(pair.initiator.done().len(), 40);
        assert_eq!(
            pair.initiator.host.region(SINK).bytes[..320],
            pair.responder.host.region(TARGET).bytes[..320]
        );
    }
}

#[test]
fn a_fence_waits_for_the_reads_before_it() {
    // rule 5040-5.5-5, 7306-5.4-3
    let mut pair = connected(&Config { chunking: Chunking::Whole, latency: 50, ..Config::default() });
    pair.initiator.post(Work::read((SINK, 0), 100, (TARGET, 0)));
    pair.initiator.post(Work::write(TARGET, 0, vec![1; 100]).fenced());
    pair.initiator.post(Work::read((SINK, 100), 100, (TARGET, 0)));
    pair.initiator.post(Work::write(TARGET, 200, vec![2; 100]));
    assert_eq!(pair.run(), End::Idle);
    let done: Vec<(u64, bool)> = pair.initiator.done().iter().map(|d| (d.index, d.answered)).collect();
    assert_eq!(done, [(0, true), (1, false), (3, false), (2, true)], "only the fenced Write waited");
    assert_eq!(pair.host(true).region(SINK).bytes[..100], Seed::new(1).bytes(100));
    assert_eq!(pair.host(true).region(SINK).bytes[100..200], [1; 100]);
}

#[test]
fn a_read_request_sees_what_came_before_it() {
    // rule 5040-5.5-4, 5040-5.5-2
    for seed in 0..20 {
        let mut pair = connected(&Config { seed, mulpdu: 120, ..Config::default() });
        pair.host(false).post_receive(500);
        pair.initiator.post(Work::write(TARGET, 0, vec![3; 1000]));
        pair.initiator.post(Work::send(vec![4; 500]));
        pair.initiator.post(Work::read((SINK, 0), 1000, (TARGET, 0)));
        while pair.responder.host.delivered().is_empty() && pair.step() {}
        assert!(pair.host(false).region(TARGET).bytes[..1000].iter().all(|&b| b == 3), "placed before");
        assert_eq!(pair.run(), End::Idle);
        assert!(pair.host(true).region(SINK).bytes[..1000].iter().all(|&b| b == 3));
    }
}

#[test]
fn a_message_without_a_receive_stops_one_direction_until_it_is_posted() {
    for config in [Config::default(), Config { crc: true, direct: true, mulpdu: 9000, ..Config::default() }] {
        let mut pair = connected(&config);
        pair.initiator.post(Work::write(0, 0, Vec::new()));
        pair.initiator.post(Work::send(vec![5; 3000]));
        pair.initiator.post(Work::write(TARGET, 0, vec![6; 10]));
        pair.responder.post(Work::write(TARGET, 0, vec![7; 3000]));
        assert_eq!(pair.run(), End::Stuck);
        assert_eq!(pair.responder.progress(), Progress::NeedReceive);
        assert_ne!(pair.host(false).region(TARGET).bytes[..10], [6; 10]);
        assert_eq!(pair.host(true).region(TARGET).bytes[..3000], [7; 3000], "the other direction runs");
        pair.host(false).post_receive(3000);
        assert_eq!(pair.run(), End::Idle);
        assert_eq!(pair.host(false).delivered()[0].data, [5; 3000]);
        assert_eq!(pair.host(false).region(TARGET).bytes[..10], [6; 10]);
    }
}

#[test]
fn a_small_pipe_and_a_slow_reader_lose_nothing() {
    let slow = Config { capacity: 100, latency: 9, chunking: Chunking::Fixed(13), ..Config::default() };
    let mut pair = connected(&slow);
    pair.host(false).post_receive(4000);
    pair.initiator.post(Work::send(Seed::new(2).bytes(4000)));
    pair.initiator.post(Work::read((SINK, 0), 4096, (TARGET, 0)));
    assert_eq!(pair.run(), End::Idle);
    assert!(pair.host(false).delivered()[0].data == Seed::new(2).bytes(4000));
    assert_eq!(pair.initiator.host.region(SINK).bytes, pair.responder.host.region(TARGET).bytes);
    assert!(pair.now() > 8000 / 13, "the clock went on");
}

#[test]
fn the_responder_is_silent_until_the_initiator_has_spoken() {
    // rule 5044-7.1.2-3, 6581-9.2-8
    let mut pair = connected(&Config::default());
    pair.host(true).post_receive(5);
    pair.responder.post(Work::send(b"early".to_vec()));
    assert_eq!(pair.run(), End::Stuck);
    assert_eq!(pair.carried(), (0, 0));
    pair.initiator.post(Work::write(0, 0, Vec::new()));
    assert_eq!(pair.run(), End::Idle);
    assert_eq!(pair.host(true).delivered()[0].data, b"early");
}

#[test]
fn each_ready_to_receive_frame_opens_the_responders_direction() {
    // rule 6581-9.2-4, 6581-9.2-3, 6581-9.2-5, 6581-9.2-6, 6581-9.2-7
    for rtr in [Rtr::Write, Rtr::Read, Rtr::Send] {
        for crc in [false, true] {
            let mut pair = connected(&Config { rtr: Some(rtr), crc, ..Config::default() });
            pair.host(true).post_receive(5);
            pair.host(false).post_receive(5);
            pair.responder.post(Work::send(b"first".to_vec()));
            assert_eq!(pair.run(), End::Idle, "{rtr:?}");
            assert_eq!(pair.host(true).delivered()[0].data, b"first");
            assert!(pair.host(false).delivered().is_empty(), "{rtr:?} shows no message");
            // Sequence numbers go on behind it.
            pair.initiator.post(Work::send(b"later".to_vec()));
            pair.initiator.post(Work::read((SINK, 0), 9, (TARGET, 0)));
            assert_eq!(pair.run(), End::Idle, "{rtr:?}");
            assert_eq!(pair.host(false).delivered()[0].data, b"later");
            let answered: Vec<Done> = pair.initiator.done().iter().copied().filter(|d| d.answered).collect();
            assert_eq!(answered.len(), if rtr == Rtr::Read { 2 } else { 1 });
        }
    }
}

#[test]
fn a_fault_is_told_to_the_peer_once_and_nothing_follows_it() {
    // rule 5040-5.4-1, 5040-5.4-2, 5040-5.4-3
    for (crc, markers) in [(false, false), (true, true)] {
        for direct in [false, true] {
            let config = Config {
                crc,
                markers_to_initiator: markers,
                markers_to_responder: markers,
                direct,
                mulpdu: 9000,
                ..Config::default()
            };
            let mut pair = connected(&config);
            pair.host(false).post_receive(10);
            pair.initiator.post(Work::write(TARGET, 0, vec![1; 100]));
            pair.initiator.post(Work::write(TARGET, 1, vec![2; 8000]));
            pair.initiator.post(Work::send(vec![3; 10]));
            for _ in 0..50 {
                pair.responder.post(Work::write(TARGET, 0, vec![4; 4000]));
            }
            pair.run();
            let bounds = Fault::Write(iwarp::Stag(TARGET), iwarp::TaggedFault::Bounds);
            assert_eq!(pair.faults(), (None, Some(bounds)), "and the Terminate itself is no fault");
            assert_eq!(pair.initiator.progress(), Progress::Terminated);
            let told: Vec<_> = pair
                .initiator
                .host
                .events()
                .iter()
                .filter_map(|e| match e {
                    Event::Terminated(t) => Some(t.expect("with its reason")),
                    _ => None,
                })
                .collect();
            let [t] = told[..] else { panic!("one Terminate, not {}", told.len()) };
            assert_eq!((t.terminate, t.swapped), (bounds.terminate(), false));
            assert_eq!((t.segment_len, t.header().len()), (Some(8014), 14));
            assert!(pair.host(false).delivered().is_empty(), "nothing behind the fault was delivered");
            assert_eq!(pair.host(false).placed(), 100);
            let carried = pair.carried();
            pair.responder.post(Work::write(TARGET, 0, vec![5; 10]));
            pair.initiator.post(Work::write(TARGET, 0, vec![6; 10]));
            pair.run();
            assert_eq!(pair.carried(), carried, "neither side says more");
        }
    }
}

#[test]
fn a_read_beyond_its_source_comes_back_with_the_request() {
    // rule 5040-4.8-3
    let mut pair = connected(&Config::default());
    pair.initiator.post(Work::read((SINK, 7), 5000, (TARGET, 3)));
    pair.run();
    let Some(Event::Terminated(Some(t))) = pair.initiator.host.events().last() else { panic!("told") };
    let read = t.read_header.expect("the Read Request");
    assert_eq!((read.len, read.src_to, read.sink_to, read.src_stag.0), (5000, 3, 7, TARGET));
    assert_eq!((t.terminate.layer, t.terminate.etype, t.terminate.code), (0, 1, 1));
}

#[test]
fn long_segments_go_straight_to_memory_where_nothing_is_verified() {
    for (crc, markers, expected) in [(false, false, true), (true, false, false), (false, true, false)] {
        let config = Config {
            crc,
            markers_to_responder: markers,
            direct: true,
            mulpdu: 32_000,
            chunking: Chunking::Fixed(700),
            ..Config::default()
        };
        let mut pair = Pair::new(&config);
        pair.host(false).register(TARGET, Region::new(0, 100_000));
        let data = Seed::new(4).bytes(100_000);
        pair.initiator.post(Work::write(TARGET, 0, data.clone()));
        assert_eq!(pair.run(), End::Idle);
        assert!(pair.host(false).region(TARGET).bytes == data);
        assert_eq!(pair.responder.direct_bytes() > 90_000, expected, "{}", pair.responder.direct_bytes());
    }
}
