//! The queue pair's states: what each allows, how it is left, and what becomes of what is posted.

use std::net::TcpListener;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rnic_verbs::{
    AsyncEvent, CompletionOp, ConnParams, ConnPolicy, DeviceConfig, End, Error, Established, QpInit, QpState,
    RecvWr, SendWr, Status, connect, connect_async,
};

use crate::common::raw::{Plays, Raw, Wire};
use crate::common::{PATIENCE, REMOTE, Side, join, pair, pair_with, pattern, side, wait_for};
use QpState::{Error as Failed, Init, Reset, Rtr, Rts, Sqd};

const ALL: [QpState; 6] = [Reset, Init, Rtr, Rts, Sqd, Failed];

/// A queue pair in a wanted state, and what keeps it there.
struct Held {
    side: Side,
    _peer: Option<Side>,
    _attempt: Option<Pin<Box<dyn Future<Output = rnic_verbs::Result<Established>>>>>,
    _silent: Option<TcpListener>,
}

fn held_in(state: QpState) -> Held {
    let bare = |side| Held { side, _peer: None, _attempt: None, _silent: None };
    let held = match state {
        Reset | Init | Failed => {
            let side = side(DeviceConfig::default(), |i| i);
            if state != Init {
                side.qp.modify(state).unwrap();
            }
            bare(side)
        }
        Rtr => {
            let side = side(DeviceConfig::default(), |i| i);
            let silent = TcpListener::bind("127.0.0.1:0").unwrap();
            let (qp, addr) = (side.qp.clone(), silent.local_addr().unwrap());
            let mut attempt: Pin<Box<dyn Future<Output = _>>> =
                Box::pin(async move { connect_async(&qp, addr, ConnParams::default()).await });
            assert!(attempt.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            Held { _attempt: Some(attempt), _silent: Some(silent), ..bare(side) }
        }
        Rts | Sqd => {
            let (a, b) = pair();
            if state == Sqd {
                a.qp.modify(Sqd).unwrap();
            }
            Held { _peer: Some(b), ..bare(a) }
        }
    };
    assert_eq!(held.side.qp.state(), state);
    held
}

#[test]
fn sends_may_be_posted_when_connected_and_are_flushed_in_error() {
    for state in ALL {
        let held = held_in(state);
        let mr = held.side.mr(8);
        let posted = held.side.qp.post_send(&SendWr::send(7, &[mr.sge(0, 8)]).unsignaled());
        match state {
            Reset | Init | Rtr => {
                assert!(matches!(posted, Err(Error::State { state: s, .. }) if s == state), "{state:?}");
                assert_eq!(held.side.cq.queued(), 0);
            }
            Rts | Sqd => posted.unwrap(),
            Failed => {
                posted.unwrap();
                let c = held.side.completion();
                assert_eq!((c.wr_id, c.status, c.opcode), (7, Status::WrFlush, CompletionOp::Send));
            }
        }
    }
}

#[test]
fn receives_may_be_posted_from_init_on_and_are_flushed_in_error() {
    for state in ALL {
        let held = held_in(state);
        let mr = held.side.mr(8);
        let posted = held.side.qp.post_recv(&RecvWr::new(7, &[mr.sge(0, 8)]));
        match state {
            Reset => assert!(matches!(posted, Err(Error::State { state: Reset, .. }))),
            Init | Rtr | Rts | Sqd => posted.unwrap(),
            Failed => {
                posted.unwrap();
                let c = held.side.completion();
                assert_eq!((c.wr_id, c.status, c.opcode), (7, Status::WrFlush, CompletionOp::Recv));
            }
        }
    }
}

#[test]
fn modify_makes_the_moves_that_exist_and_no_other() {
    for from in ALL {
        for to in ALL {
            let held = held_in(from);
            let exists = match to {
                Reset => true,
                Failed => from != Reset,
                Init => matches!(from, Reset | Init),
                Rtr => from == Rtr,
                Rts | Sqd => matches!(from, Rts | Sqd),
            };
            match held.side.qp.modify(to) {
                Ok(()) => assert!(exists, "{from:?} -> {to:?}"),
                Err(Error::State { state, .. }) => assert!(!exists && state == from, "{from:?} -> {to:?}"),
                Err(e) => panic!("{from:?} -> {to:?}: {e}"),
            }
            assert_eq!(held.side.qp.state(), if exists { to } else { from }, "{from:?} -> {to:?}");
        }
    }
}

#[test]
fn connections_begin_in_init_only_and_a_failed_attempt_leaves_it_so() {
    let refused = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for state in ALL {
        let held = held_in(state);
        let result = connect(&held.side.qp, refused, ConnParams::default());
        if state == Init {
            assert!(matches!(result, Err(Error::Connect { peer, .. }) if peer == refused), "{result:?}");
        } else {
            assert!(matches!(result, Err(Error::State { state: s, .. }) if s == state), "{state:?}");
        }
        assert_eq!(held.side.qp.state(), state);
    }
}

#[test]
fn disconnect_ends_what_there_is_to_end() {
    for state in ALL {
        let held = held_in(state);
        held.side.qp.disconnect();
        assert_eq!(held.side.qp.state(), if state == Reset { Reset } else { Failed });
        let expected = if state == Reset { None } else { Some(End::Local) };
        assert_eq!(held.side.qp.end(), expected, "{state:?}");
        if state != Reset {
            assert_eq!(held.side.qp.wait_disconnected(Some(PATIENCE)), Some(End::Local));
        }
        if let Some(peer) = &held._peer {
            assert_eq!(peer.qp.wait_disconnected(Some(PATIENCE)), Some(End::Peer));
            assert_eq!(peer.qp.state(), Failed);
        }
    }
}

/// An attempt whose queue pair was taken back does not come about.
#[test]
fn an_attempt_does_not_survive_its_queue_pair_being_reset() {
    let a = side(DeviceConfig::default(), |i| i);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let params = ConnParams::default();
    let mut attempt = Box::pin(connect_async(&a.qp, silent.local_addr().unwrap(), params));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(attempt.as_mut().poll(&mut cx).is_pending());
    a.qp.modify(Reset).unwrap();
    let mut stream = silent.accept().unwrap().0;
    use std::io::{Read, Write};
    let mut request = [0; 24];
    stream.read_exact(&mut request).unwrap();
    request[4..16].copy_from_slice(b"ID Rep Frame");
    stream.write_all(&request).unwrap();
    let mut result = None;
    wait_for(|| match attempt.as_mut().poll(&mut cx) {
        Poll::Ready(r) => {
            result = Some(r);
            true
        }
        Poll::Pending => false,
    });
    assert!(matches!(result, Some(Err(Error::State { state: Reset, .. }))), "{result:?}");
    assert_eq!(a.qp.state(), Reset);
    // The peer sees the connection closed.
    assert!(matches!(stream.read(&mut request), Ok(0) | Err(_)));
}

#[test]
fn dropped_busy_in_any_state_it_goes_without_a_trace() {
    for state in ALL {
        let held = held_in(state);
        let mr = held.side.mr(1 << 20);
        let target = held._peer.as_ref().map(|peer| peer.mr(1 << 20));
        if state != Reset {
            held.side.qp.post_recv(&RecvWr::new(1, &[mr.sge(0, 8)])).unwrap();
        }
        if matches!(state, Rts | Sqd) {
            for i in 0..64 {
                let to = target.as_ref().unwrap().remote();
                held.side.qp.post_send(&SendWr::write(i, &[mr.sge(0, 1 << 20)], to)).unwrap();
            }
        }
        let Held { side, _peer: peer, _attempt: attempt, .. } = held;
        drop(attempt);
        drop(side.qp);
        // Every request that was not done is flushed, and each once.
        let mut ids = Vec::new();
        let mut buf = [rnic_verbs::Completion::default(); 16];
        while side.cq.queued() > 0 {
            let n = side.cq.poll(&mut buf).unwrap();
            ids.extend(buf[..n].iter().filter(|c| c.opcode == CompletionOp::Write).map(|c| c.wr_id));
        }
        let sends: Vec<_> = if matches!(state, Rts | Sqd) { (0..64).collect() } else { Vec::new() };
        assert_eq!(ids, sends, "{state:?}");
        mr.deregister().unwrap();
        if let Some(peer) = peer {
            assert!(peer.qp.wait_disconnected(Some(PATIENCE)).is_some());
        }
    }
}

#[test]
fn flushes_come_in_order_on_both_queues() {
    let init = |side: &Side| QpInit::with_cqs(&side.cq, &side.device.create_cq(64, None).unwrap());
    let mut a = side(DeviceConfig::default(), |i| i);
    let init = init(&a);
    let recv_cq = init.recv_cq.clone();
    a.qp = a.pd.create_qp(&init).unwrap();
    let b = side(DeviceConfig::default(), |i| i);
    join(&a, &b, &ConnPolicy::default());
    a.qp.modify(Sqd).unwrap();
    let mr = a.mr(64);
    let sge = [mr.sge(0, 8)];
    let remote = b.mr(64);
    for i in 0..10 {
        a.qp.post_recv(&RecvWr::new(100 + i, &sge)).unwrap();
        let wr = match i % 3 {
            0 => SendWr::send(i, &sge).unsignaled(),
            1 => SendWr::write(i, &sge, remote.remote()),
            _ => SendWr::read(i, &sge, remote.remote()),
        };
        a.qp.post_send(&wr).unwrap();
    }
    a.qp.modify(Failed).unwrap();
    // And behind them what is posted later.
    a.qp.post_send(&SendWr::send(10, &sge)).unwrap();
    a.qp.post_recv(&RecvWr::new(110, &sge)).unwrap();
    let sends = a.completions(11);
    assert!(sends.iter().all(|c| c.status == Status::WrFlush && c.qp_num == a.qp.num()));
    assert_eq!(sends.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..=10).collect::<Vec<_>>());
    let mut receives = [rnic_verbs::Completion::default(); 20];
    assert_eq!(recv_cq.poll(&mut receives).unwrap(), 11);
    assert!(receives[..11].iter().all(|c| c.status == Status::WrFlush && c.opcode == CompletionOp::Recv));
    assert_eq!(receives[..11].iter().map(|c| c.wr_id).collect::<Vec<_>>(), (100..=110).collect::<Vec<_>>());
    assert_eq!(a.qp.query().outstanding, 0);
}

/// Requests that were done before the failure say so, the one under way has the error, the rest is flushed.
#[test]
fn a_failure_in_mid_queue_is_told_from_what_was_before_and_behind() {
    let (a, b) = pair();
    let (src, dst) = (a.mr(64), b.mr(64));
    let sge = [src.sge(0, 8)];
    let bad = rnic_verbs::RemoteBuffer { rkey: dst.rkey() ^ 0xff, addr: dst.addr(), len: 64 };
    let wrs = [
        SendWr::read(0, &sge, dst.remote()),
        SendWr::read(1, &sge, bad),
        SendWr::read(2, &sge, dst.remote()),
        SendWr::send(3, &sge).fenced(),
    ];
    a.qp.post_send_list(&wrs).unwrap();
    let statuses: Vec<_> = a.completions(4).iter().map(|c| (c.wr_id, c.status)).collect();
    use Status::{RemoteAccess, Success, WrFlush};
    assert_eq!(statuses, [(0, Success), (1, RemoteAccess), (2, WrFlush), (3, WrFlush)]);
}

#[test]
fn reset_forgets_what_is_posted_and_reports_nothing_of_it() {
    let (a, b) = pair();
    let mr = a.mr(64);
    a.qp.modify(Sqd).unwrap();
    for i in 0..5 {
        a.qp.post_recv(&RecvWr::new(i, &[mr.sge(0, 8)])).unwrap();
        a.qp.post_send(&SendWr::send(i, &[mr.sge(0, 8)])).unwrap();
    }
    a.qp.modify(Reset).unwrap();
    let mut none = [rnic_verbs::Completion::default(); 1];
    assert_eq!(a.cq.poll(&mut none).unwrap(), 0);
    let q = a.qp.query();
    assert_eq!((q.state, q.outstanding, q.negotiated, q.peer), (Reset, 0, None, None));
    assert!(b.qp.wait_disconnected(Some(PATIENCE)).is_some());
}

#[test]
fn a_queue_pair_is_used_again_after_reset() {
    let (a, b) = (side(DeviceConfig::default(), |i| i), side(DeviceConfig::default(), |i| i));
    let (src, dst) = (a.mr(100_000), b.mr(100_000));
    for round in 0..20 {
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        join(from, to, &ConnPolicy::default());
        src.write_at(0, &pattern(100_000, round)).unwrap();
        b.qp.post_recv(&RecvWr::new(round, &[dst.sge(0, 100_000)])).unwrap();
        // A responder's request waits for the initiator's first FPDU.
        from.qp.post_send(&SendWr::write(1000, &[], dst.remote())).unwrap();
        assert_eq!(from.completion().wr_id, 1000);
        a.qp.post_send(&SendWr::send(round, &[src.sge(0, 100_000)])).unwrap();
        let c = b.completion();
        assert_eq!((c.wr_id, c.status, c.len), (round, Status::Success, 100_000));
        assert!(Side::bytes(&dst) == pattern(100_000, round));
        assert_eq!(a.completion().status, Status::Success);
        // Each way to end it, receives and sends left over.
        b.qp.post_recv(&RecvWr::new(7, &[])).unwrap();
        match round % 3 {
            0 => a.qp.disconnect(),
            1 => b.qp.modify(Failed).unwrap(),
            _ => a.qp.modify(Reset).unwrap(),
        }
        assert!(b.qp.wait_disconnected(Some(PATIENCE)).is_some());
        assert_eq!(b.completion().status, Status::WrFlush);
        if round % 3 != 2 {
            assert!(a.qp.wait_disconnected(Some(PATIENCE)).is_some());
        }
        for side in [&a, &b] {
            side.qp.modify(Reset).unwrap();
            assert_eq!((side.qp.end(), side.cq.queued()), (None, 0));
            side.qp.modify(Init).unwrap();
        }
    }
    assert_eq!(a.device.counters().connections, 20);
}

fn drained(side: &Side) {
    let qp_num = side.qp.num();
    side.event(|e| (e == AsyncEvent::SendQueueDrained { qp_num }).then_some(()));
}

#[test]
fn sqd_begins_nothing_tells_when_it_is_drained_and_resumes() {
    let (a, b) = pair();
    let (src, dst) = (a.mr(4096), b.mr(4096));
    a.qp.post_send(&SendWr::write(100, &[], dst.remote())).unwrap();
    assert_eq!(a.completion().wr_id, 100);
    a.qp.modify(Sqd).unwrap();
    drained(&a);
    for i in 0..8 {
        b.qp.post_recv(&RecvWr::new(i, &[dst.sge(0, 4096)])).unwrap();
        a.qp.post_send(&SendWr::send(i, &[src.sge(0, 4096)])).unwrap();
    }
    a.qp.post_send(&SendWr::send(8, &[])).unwrap();
    // What the peer asks is served meanwhile; in the same stream, what is posted would have gone before it.
    b.qp.post_send(&SendWr::read(77, &[dst.sge(0, 4096)], src.remote())).unwrap();
    assert_eq!((b.completion().wr_id, a.qp.state()), (77, Sqd));
    assert_eq!((a.cq.queued(), b.cq.queued(), a.qp.query().outstanding), (0, 0, 9));
    b.qp.post_recv(&RecvWr::new(8, &[])).unwrap();
    a.qp.modify(Rts).unwrap();
    let order: Vec<_> = b.completions(9).iter().map(|c| c.wr_id).collect();
    assert_eq!(order, (0..9).collect::<Vec<_>>());
    assert_eq!(a.completions(9).len(), 9);
    assert!(a.device.async_events().try_next().is_none());
}

/// The event comes once, and not before TCP has what was begun.
#[test]
fn sqd_is_drained_when_the_last_byte_of_what_was_begun_is_out() {
    let (a, mut raw) = Raw::meet(Plays::Responder, Wire::PLAIN);
    let big = a.mr(32 << 20);
    a.qp.post_send(&SendWr::write(1, &[big.sge(0, 32 << 20)], big.remote())).unwrap();
    a.qp.post_send(&SendWr::write(2, &[big.sge(0, 1)], big.remote())).unwrap();
    a.qp.modify(Sqd).unwrap();
    assert!(a.device.async_events().try_next().is_none());
    assert_eq!(a.qp.query().outstanding, 2);
    let mut payload = 0;
    while payload < 32 << 20 {
        payload += raw.next().unwrap().len() - 14;
    }
    drained(&a);
    assert_eq!((a.completion().wr_id, a.qp.query().outstanding), (1, 1));
    a.qp.modify(Rts).unwrap();
    assert_eq!(a.completion().wr_id, 2);
    assert!(a.device.async_events().try_next().is_none());
}

/// Reads under way count as begun; those behind the ORD do not.
#[test]
fn sqd_waits_for_the_answers_of_reads() {
    let mut policy = ConnPolicy::default();
    (policy.mpa.ord, policy.mpa.ird) = (2, 2);
    let (a, b) = pair_with(&policy, |i| i);
    let (dst, src) = (a.mr(1 << 20), b.mr(1 << 20));
    src.write_at(0, &pattern(1 << 20, 3)).unwrap();
    for i in 0..20 {
        a.qp.post_send(&SendWr::read(i, &[dst.sge(0, 1 << 20)], src.remote())).unwrap();
    }
    a.qp.modify(Sqd).unwrap();
    drained(&a);
    let left = a.qp.query().outstanding;
    assert_eq!(a.cq.queued() as u32 + left, 20);
    assert!(left > 0);
    a.qp.modify(Rts).unwrap();
    assert!(a.completions(20).iter().all(|c| c.status == Status::Success));
    assert!(Side::bytes(&dst) == pattern(1 << 20, 3));
}

#[test]
fn a_query_tells_what_was_asked_for_and_what_came_of_it() {
    let (a, b) = pair_with(&ConnPolicy::default(), |i| i.depth(7, 9).sge(5).inline(33));
    let (qa, qb) = (a.qp.query(), b.qp.query());
    assert_eq!((qa.max_send_wr, qa.max_recv_wr, qa.max_sge, qa.max_inline), (7, 9, 5, 33));
    assert_eq!((qa.local, qa.peer), (qb.peer, qb.local));
    assert_eq!(qa.peer, a.qp.peer_addr());
    let (na, nb) = (qa.negotiated.unwrap(), qb.negotiated.unwrap());
    assert_eq!((na.ord, na.ird, na.crc, na.extensions), (nb.ird, nb.ord, nb.crc, nb.extensions));
    assert_eq!((qa.qp_num, qa.state), (a.qp.num(), Rts));
    // Full queues say so, and take no more.
    let mr = a.pd.register(8, REMOTE).unwrap();
    a.qp.modify(Sqd).unwrap();
    for i in 0..9 {
        a.qp.post_recv(&RecvWr::new(i, &[])).unwrap();
    }
    assert!(matches!(a.qp.post_recv(&RecvWr::new(9, &[])), Err(Error::QueueFull("receive"))));
    let sge = [mr.sge(0, 8)];
    let wrs = [SendWr::send(0, &sge); 9];
    let error = a.qp.post_send_list(&wrs).unwrap_err();
    assert!(error.index == 7 && matches!(error.error, Error::QueueFull("send")), "{error}");
    assert_eq!(a.qp.query().outstanding, 7);
}
