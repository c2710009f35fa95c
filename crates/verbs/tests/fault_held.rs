//! Messages for which no receive is posted: bounded memory, order kept, the right end when patience is over.

mod common;

use std::time::Duration;

use common::raw::{Plays, Raw, Told, Wire};
use common::{PATIENCE, Side, pattern, side};
use rnic_testkit::craft::{Control, Place, read_response, send, untagged};
use rnic_verbs::{
    Completion, DeviceConfig, End, QpInit, RecvWr, RemoteBuffer, SendWr, SharedReceiveQueue, SrqAttr, Status,
    iwarp::Fault,
};

/// Bytes that the engine holds aside in these tests.
const HELD: usize = 64 * 1024;

fn config(rnr: Duration) -> DeviceConfig {
    let mut config = DeviceConfig::default();
    (config.held_per_qp, config.rnr_timeout) = (HELD, rnr);
    config
}

fn meet(rnr: Duration) -> (Side, Raw) {
    let engine = side(config(rnr), |i| i);
    let raw = Raw::join(&engine, Plays::Initiator, Wire::PLAIN, 32);
    (engine, raw)
}

fn segment(last: bool, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let control = if last { Control::last(3) } else { Control::more(3) };
    untagged(control, 0, Place { qn: 0, msn, mo }, payload)
}

/// All segments of one message.
fn message(msn: u32, data: &[u8]) -> Vec<Vec<u8>> {
    let n = data.chunks(8000).count();
    let segments = data.chunks(8000).enumerate();
    segments.map(|(i, part)| segment(i + 1 == n, msn, i as u32 * 8000, part)).collect()
}

/// Sends from a thread of its own, since the engine stops reading.
fn send_aside(raw: &Raw, bytes: Vec<u8>) -> std::thread::JoinHandle<bool> {
    use std::io::Write;
    let mut stream = raw.stream.try_clone().unwrap();
    std::thread::spawn(move || stream.write_all(&bytes).is_ok())
}

fn wait_for(what: &str, mut yes: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !yes() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_receive_posted_in_mid_message_takes_it() {
    let (engine, mut raw) = meet(PATIENCE);
    let data = pattern(30_000, 1);
    let segments = message(1, &data);
    raw.send(&segments[..2]);
    wait_for("the message begins", || engine.qp.counters().rx_held == 1);
    let mr = engine.mr(data.len());
    engine.qp.post_recv(&RecvWr::new(5, &[mr.sge(0, data.len() as u32)])).unwrap();
    raw.send(&segments[2..]);
    let c = engine.completion();
    assert_eq!((c.wr_id, c.status, c.len), (5, Status::Success, 30_000));
    let mut got = vec![0; data.len()];
    mr.read_at(0, &mut got).unwrap();
    assert!(got == data);
}

/// A message of any length is held only up to the cap: a receive that will not do ends it at once.
#[test]
fn a_receive_too_short_for_the_message_under_way_ends_it_before_it_is_whole() {
    let (engine, mut raw) = meet(PATIENCE);
    let segments: Vec<_> = (0..400).map(|i| segment(false, 1, i * 8000, &[3; 8000])).collect();
    let bytes = raw.fpdus(&segments);
    let sender = send_aside(&raw, bytes);
    wait_for("the cap", || engine.qp.counters().rx_bytes >= HELD as u64);
    let mr = engine.mr(100);
    engine.qp.post_recv(&RecvWr::new(5, &[mr.sge(0, 100)])).unwrap();
    assert_eq!(engine.completion().status, Status::LocalLengthError);
    assert_eq!(raw.terminate().what, (1, 2, 5));
    assert_eq!(engine.qp.end(), Some(End::Fault(Fault::MessageTooLong)));
    sender.join().unwrap();
    let mut got = [1; 100];
    mr.read_at(0, &mut got).unwrap();
    assert_eq!(got, [0; 100]);
}

/// Beyond the cap reading stops, in mid-message too, and goes on with the first receive posted.
#[test]
fn reading_goes_on_when_a_receive_is_posted() {
    for shared in [false, true] {
        let engine = side(config(PATIENCE), |i| i);
        let srq = engine.pd.create_srq(SrqAttr { max_wr: 8, limit: 0 }).unwrap();
        let engine = if shared { with_srq(engine, &srq) } else { engine };
        let mut raw = Raw::join(&engine, Plays::Initiator, Wire::PLAIN, 32);
        let data = pattern(800_000, 2);
        let bytes = raw.fpdus(&message(1, &data));
        let sender = send_aside(&raw, bytes);
        wait_for("the cap", || engine.qp.counters().rx_bytes >= HELD as u64);
        let mr = engine.mr(data.len());
        let sge = [mr.sge(0, data.len() as u32)];
        let wr = RecvWr::new(5, &sge);
        if shared {
            srq.post_recv(&wr).unwrap()
        } else {
            engine.qp.post_recv(&wr).unwrap()
        }
        let c = engine.completion();
        assert_eq!((c.wr_id, c.status, c.len), (5, Status::Success, 800_000), "shared {shared}");
        assert!(sender.join().unwrap());
        let mut got = vec![0; data.len()];
        mr.read_at(0, &mut got).unwrap();
        assert!(got == data, "shared {shared}");
    }
}

fn with_srq(side: Side, srq: &SharedReceiveQueue) -> Side {
    let qp = side.pd.create_qp(&QpInit::new(&side.cq).srq(srq)).unwrap();
    Side { qp, ..side }
}

/// Empty messages cost memory as well.
#[test]
fn empty_messages_do_not_pass_the_cap() {
    const N: u32 = 300_000;
    let (engine, mut raw) = meet(Duration::from_millis(300));
    let messages: Vec<_> = (1..=N).map(|msn| send(msn, b"")).collect();
    let bytes = raw.fpdus(&messages);
    let sender = send_aside(&raw, bytes);
    let want = Told { what: (1, 2, 2), segment_len: None, ddp: None, rdmap: None };
    assert_eq!(raw.terminate(), want);
    sender.join().unwrap();
    // One buffer of the engine may have been full of them when the cap was seen.
    let held = engine.qp.counters().rx_held;
    assert!(held < 15_000, "{held} messages held");
    assert_eq!(engine.qp.end(), Some(End::Fault(Fault::NoReceive)));
}

/// The time that reading may be stopped counts from when it was stopped, each time anew.
#[test]
fn patience_begins_anew_with_each_pause() {
    let rnr = Duration::from_secs(2);
    let (engine, mut raw) = meet(rnr);
    let (data, mr) = (pattern(HELD, 3), engine.mr(HELD));
    let mut stop_reading = |round: u32| {
        let before = engine.qp.counters().rx_bytes;
        raw.send(&message(2 * round + 1, &data));
        wait_for("the message is held", || engine.qp.counters().rx_bytes > before + HELD as u64);
        // What comes behind it is not read: the pause begins.
        raw.send(&[send(2 * round + 2, b"x")]);
    };
    for round in 0..3 {
        stop_reading(round);
        std::thread::sleep(rnr * 2 / 3);
        assert_eq!(engine.qp.end(), None, "round {round}");
        for _ in 0..2 {
            engine.qp.post_recv(&RecvWr::new(0, &[mr.sge(0, HELD as u32)])).unwrap();
        }
        assert!(engine.completions(2).iter().all(|c| c.status == Status::Success));
    }
    stop_reading(3);
    assert_eq!(raw.terminate().what, (1, 2, 2), "no receive at all");
}

/// The first message does not fit: those behind it are not delivered, and every receive completes once.
#[test]
fn nothing_is_delivered_behind_a_held_message_that_does_not_fit() {
    let (engine, mut raw) = meet(PATIENCE);
    raw.send(&[send(1, &[1; 100]), send(2, &[2; 10]), send(3, &[3; 10])]);
    wait_for("three messages", || engine.qp.counters().rx_held == 3);
    let mr = engine.mr(300);
    for n in 0..3 {
        engine.qp.post_recv(&RecvWr::new(n, &[mr.sge(n * 100, 50)])).unwrap();
    }
    let mut done: Vec<_> = engine.completions(3).iter().map(|c| (c.wr_id, c.status)).collect();
    done.sort_by_key(|c| c.0);
    assert_eq!(done, [(0, Status::LocalLengthError), (1, Status::WrFlush), (2, Status::WrFlush)]);
    assert_eq!(raw.terminate().what, (1, 2, 5));
    let mut more = [Completion::default()];
    assert_eq!(engine.cq.poll(&mut more).unwrap(), 0);
}

/// Responses behind held messages are seen: two sides that both Send first and Read then get along.
#[test]
fn a_response_behind_a_held_message_is_taken() {
    let (engine, mut raw) = meet(PATIENCE);
    raw.send(&[send(1, &[1; 100])]);
    let sink = engine.mr(8);
    let theirs = RemoteBuffer { rkey: 1, addr: 0, len: 8 };
    engine.qp.post_send(&SendWr::read(9, &[sink.sge(0, 8)], theirs)).unwrap();
    let request = raw.next().unwrap();
    let stag = u32::from_be_bytes(request[18..22].try_into().unwrap());
    raw.send(&[read_response(stag, 0, &[7; 8])]);
    let c = engine.completion();
    assert_eq!((c.wr_id, c.status), (9, Status::Success));
}
