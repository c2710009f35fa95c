//! Shared receive queues.

use rnic_verbs::{
    AsyncEvent, CompletionOp, ConnPolicy, DeviceConfig, Error, QpInit, QpState, QueuePair, RecvWr, SendWr,
    SharedReceiveQueue, SrqAttr, Status,
};

use crate::common::{PATIENCE, Side, join_qps, pattern, side, wait_for};

struct Ground {
    a: Side,
    b: Side,
    srq: SharedReceiveQueue,
    /// Connected: `from[i]` with `to[i]`, the latter on the shared queue.
    from: Vec<QueuePair>,
    to: Vec<QueuePair>,
}

fn ground(qps: usize, max_wr: u32) -> Ground {
    let (a, b) = (side(DeviceConfig::default(), |i| i), side(DeviceConfig::default(), |i| i));
    let srq = b.pd.create_srq(SrqAttr { max_wr, limit: 0 }).unwrap();
    let (mut from, mut to) = (Vec::new(), Vec::new());
    for _ in 0..qps {
        from.push(a.pd.create_qp(&QpInit::new(&a.cq)).unwrap());
        to.push(b.pd.create_qp(&QpInit::new(&b.cq).srq(&srq)).unwrap());
        join_qps(from.last().unwrap(), &b.device, to.last().unwrap(), &ConnPolicy::default());
    }
    Ground { a, b, srq, from, to }
}

#[test]
fn several_queue_pairs_take_from_one_queue_each_in_its_own_order() {
    const EACH: u64 = 40;
    const LEN: u32 = 5000;
    let g = ground(3, 3 * EACH as u32);
    let slots = g.b.mr((3 * EACH * u64::from(LEN)) as usize);
    for i in 0..3 * EACH {
        g.srq.post_recv(&RecvWr::new(i, &[slots.sge(i * u64::from(LEN), LEN)])).unwrap();
    }
    assert!(matches!(g.srq.post_recv(&RecvWr::new(0, &[])), Err(Error::QueueFull("receive"))));
    let src = g.a.mr(3 * EACH as usize * LEN as usize);
    for n in 0..EACH {
        for (i, qp) in g.from.iter().enumerate() {
            let at = (i as u64 * EACH + n) * u64::from(LEN);
            src.write_at(at, &pattern(LEN as usize, i as u64 * 1000 + n)).unwrap();
            qp.post_send(&SendWr::send(n, &[src.sge(at, LEN)]).unsignaled()).unwrap();
        }
    }
    let mut seen = [0; 3];
    for c in g.b.completions(3 * EACH as usize) {
        assert_eq!((c.status, c.opcode, c.len), (Status::Success, CompletionOp::Recv, LEN));
        let i = g.to.iter().position(|qp| qp.num() == c.qp_num).unwrap();
        let mut got = vec![0; LEN as usize];
        slots.read_at(c.wr_id * u64::from(LEN), &mut got).unwrap();
        assert!(
            got == pattern(LEN as usize, i as u64 * 1000 + seen[i]),
            "queue pair {i}, message {}",
            seen[i]
        );
        seen[i] += 1;
    }
    assert_eq!(seen, [EACH; 3]);
    assert!(g.srq.is_empty());
    // The queue pairs have no receive queue of their own.
    assert!(matches!(g.to[0].post_recv(&RecvWr::new(0, &[])), Err(Error::Invalid(_))));
}

fn limit_events(g: &Ground) -> usize {
    let events = g.b.device.async_events();
    std::iter::from_fn(|| events.try_next()).filter(|e| *e == AsyncEvent::SrqLimitReached(g.srq.id())).count()
}

#[test]
fn the_limit_event_comes_once_when_fewer_are_left() {
    let g = ground(1, 10);
    for i in 0..8 {
        g.srq.post_recv(&RecvWr::new(i, &[])).unwrap();
    }
    g.srq.modify(None, Some(5)).unwrap();
    assert_eq!(g.srq.query(), SrqAttr { max_wr: 10, limit: 5 });
    let take = |n: u64| {
        for i in 0..n {
            g.from[0].post_send(&SendWr::send(i, &[]).unsignaled()).unwrap();
        }
        assert_eq!(g.b.completions(n as usize).len(), n as usize);
    };
    take(3);
    assert_eq!((g.srq.len(), limit_events(&g)), (5, 0));
    take(1);
    assert_eq!((g.srq.len(), limit_events(&g), g.srq.query().limit), (4, 1, 0));
    take(2);
    assert_eq!((g.srq.len(), limit_events(&g)), (2, 0));
    // Armed where fewer are left already it fires at once.
    g.srq.modify(None, Some(3)).unwrap();
    assert_eq!((limit_events(&g), g.srq.query().limit), (1, 0));
    assert!(matches!(g.srq.modify(None, Some(11)), Err(Error::Limit { limit: 10, .. })));
    assert!(matches!(g.srq.modify(Some(1), None), Err(Error::Busy(_))));
    g.srq.modify(Some(2), None).unwrap();
    assert!(matches!(g.srq.post_recv(&RecvWr::new(0, &[])), Err(Error::QueueFull(_))));
}

#[test]
fn a_queue_pair_that_fails_leaves_the_others_their_receives() {
    let g = ground(2, 16);
    let (slots, src) = (g.b.mr(800), g.a.mr(1000));
    for i in 0..8 {
        g.srq.post_recv(&RecvWr::new(i, &[slots.sge(i * 100, 100)])).unwrap();
    }
    g.from[0].post_send(&SendWr::send(1, &[src.sge(0, 101)])).unwrap();
    let c = g.b.completion();
    assert_eq!((c.wr_id, c.status, c.qp_num), (0, Status::LocalLengthError, g.to[0].num()));
    let qp_num = g.to[0].num();
    g.b.event(|e| (e == AsyncEvent::LastWqeReached { qp_num }).then_some(()));
    assert!(g.from[0].wait_disconnected(Some(PATIENCE)).is_some());
    assert_eq!((g.srq.len(), g.to[0].state(), g.to[1].state()), (7, QpState::Error, QpState::Rts));
    // Destroyed or reset it takes none with it either.
    g.to[0].modify(QpState::Reset).unwrap();
    for i in 1..8 {
        g.from[1].post_send(&SendWr::send(i, &[src.sge(0, 100)]).unsignaled()).unwrap();
        let c = g.b.completion();
        assert_eq!((c.wr_id, c.status, c.qp_num), (i, Status::Success, g.to[1].num()));
    }
    assert_eq!((g.b.cq.queued(), g.srq.len()), (0, 0));
}

#[test]
fn messages_that_found_the_queue_empty_are_delivered_when_it_is_filled() {
    let g = ground(3, 64);
    let (slots, src) = (g.b.mr(6000), g.a.mr(1000));
    for round in 0..2 {
        for (i, qp) in g.from.iter().enumerate() {
            src.fill(0, 1000, (round * 3 + i) as u8).unwrap();
            qp.post_send(&SendWr::send(0, &[src.sge(0, 1000)])).unwrap();
            assert_eq!(g.a.completion().status, Status::Success);
        }
    }
    wait_for(|| g.to.iter().map(|qp| qp.counters().rx_held).sum::<u64>() == 6);
    assert_eq!(g.b.cq.queued(), 0);
    let wrs: Vec<_> = (0..6).map(|i| [slots.sge(i * 1000, 1000)]).collect();
    let wrs: Vec<_> = wrs.iter().enumerate().map(|(i, sge)| RecvWr::new(i as u64, sge)).collect();
    g.srq.post_recv_list(&wrs).unwrap();
    let mut seen = [0; 3];
    for c in g.b.completions(6) {
        let i = g.to.iter().position(|qp| qp.num() == c.qp_num).unwrap();
        let mut byte = [0];
        slots.read_at(c.wr_id * 1000 + 999, &mut byte).unwrap();
        assert_eq!((c.len, byte[0]), (1000, (seen[i] * 3 + i) as u8));
        seen[i] += 1;
    }
    assert_eq!(seen, [2; 3]);
}
