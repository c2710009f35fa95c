//! Completion queues and channels, end to end.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rnic_verbs::{
    Arm, AsyncEvent, Completion, CompletionChannel, ConnPolicy, Device, DeviceConfig, Error, QpInit,
    QueuePair, RecvWr, SendWr, Status,
};

use crate::common::{PATIENCE, Side, join, join_qps, pair, side, wait_for};

/// A side whose completion queue reports on a channel.
fn with_channel() -> (Side, CompletionChannel) {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let channel = device.create_channel().unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(1024, Some(&channel)).unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    (Side { device, pd, cq, qp }, channel)
}

fn many(side: &Side, n: usize) -> Vec<QueuePair> {
    (0..n).map(|_| side.pd.create_qp(&QpInit::new(&side.cq)).unwrap()).collect()
}

/// More connections than a waiting thread watches itself.
#[test]
fn one_queue_serves_many_queue_pairs() {
    const QPS: usize = 20;
    const EACH: u64 = 25;
    let (a, b) = (side(DeviceConfig::default(), |i| i), side(DeviceConfig::default(), |i| i));
    let (from, to) = (many(&a, QPS), many(&b, QPS));
    let mr = b.mr(64);
    for (x, y) in from.iter().zip(&to) {
        join_qps(x, &b.device, y, &ConnPolicy::default());
        for i in 0..EACH {
            y.post_recv(&RecvWr::new(i, &[mr.sge(0, 64)])).unwrap();
        }
    }
    for i in 0..EACH {
        for qp in &from {
            qp.post_send(&SendWr::send_inline(i, &i.to_ne_bytes())).unwrap();
        }
    }
    for (side, qps) in [(&a, &from), (&b, &to)] {
        let all = side.completions(QPS * EACH as usize);
        for qp in qps {
            let own: Vec<_> = all.iter().filter(|c| c.qp_num == qp.num()).collect();
            assert!(own.iter().all(|c| c.status == Status::Success));
            assert_eq!(own.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..EACH).collect::<Vec<_>>());
        }
    }
    assert_eq!((a.cq.queued(), b.cq.queued()), (0, 0));
}

#[test]
fn an_overflow_is_an_event_and_an_error_behind_what_was_kept() {
    let mut a = side(DeviceConfig::default(), |i| i);
    a.cq = a.device.create_cq(4, None).unwrap();
    a.qp = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    let b = side(DeviceConfig::default(), |i| i);
    join(&a, &b, &ConnPolicy::default());
    let target = b.mr(8);
    for i in 0..6 {
        a.qp.post_send(&SendWr::write_inline(i, b"12345678", target.remote())).unwrap();
    }
    let id = a.cq.id();
    a.event(|e| (e == AsyncEvent::CqError { cq: id }).then_some(()));
    let mut got = [Completion::default(); 8];
    assert_eq!(a.cq.poll(&mut got).unwrap(), 4);
    assert_eq!(got[..4].iter().map(|c| c.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(matches!(a.cq.poll(&mut got), Err(Error::CqOverflow { depth: 4 })));
    assert!(matches!(a.cq.wait(&mut got, None), Err(Error::CqOverflow { .. })));
    assert!(matches!(a.cq.arm(Arm::Next), Err(Error::CqOverflow { .. })));
    assert!(a.device.async_events().try_next().is_none());
    // The other queues of the device work on.
    let cq = a.device.create_cq(4, None).unwrap();
    let qp = a.pd.create_qp(&QpInit::new(&cq)).unwrap();
    let other = b.pd.create_qp(&QpInit::new(&b.cq)).unwrap();
    join_qps(&qp, &b.device, &other, &ConnPolicy::default());
    qp.post_send(&SendWr::write_inline(9, b"x", target.remote())).unwrap();
    assert_eq!(cq.wait(&mut got, Some(PATIENCE)).unwrap(), 1);
}

#[test]
fn an_event_comes_for_what_was_armed_for() {
    let (b, channel) = with_channel();
    let a = side(DeviceConfig::default(), |i| i);
    join(&a, &b, &ConnPolicy::default());
    for i in 0..8 {
        b.qp.post_recv(&RecvWr::new(i, &[])).unwrap();
    }
    let send = |solicited: bool| {
        let before = b.cq.queued();
        let wr = SendWr::send(0, &[]);
        a.qp.post_send(&if solicited { wr.solicited() } else { wr }).unwrap();
        wait_for(|| b.cq.queued() > before);
    };
    // Not armed: none.
    send(true);
    assert!(channel.try_get().is_none());
    // For solicited ones: not for others, once for several.
    assert!(b.cq.arm(Arm::Solicited).unwrap(), "one is queued already");
    send(false);
    assert!(channel.try_get().is_none());
    send(true);
    send(true);
    let event = channel.wait(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(event.cq(), &b.cq);
    event.ack();
    assert!(channel.try_get().is_none());
    assert_eq!(b.completions(4).len(), 4);
    // For any.
    assert!(!b.cq.arm(Arm::Next).unwrap());
    send(false);
    wait_for(|| is_readable(&channel));
    channel.wait(Some(PATIENCE)).unwrap().unwrap().ack();
    // Failures count as solicited.
    b.cq.arm(Arm::Solicited).unwrap();
    b.qp.disconnect();
    let event = channel.wait(Some(PATIENCE)).unwrap().unwrap();
    assert!(!is_readable(&channel), "that was the only event");
    drop(event);
    assert_eq!(b.completions(4).iter().filter(|c| c.status == Status::WrFlush).count(), 3);
    assert_eq!(b.cq.unacked_events(), 0);
}

/// The channel's descriptor as an event loop of the application's sees it.
fn is_readable(channel: &CompletionChannel) -> bool {
    let mut fds = [rustix::event::PollFd::new(channel, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
}

/// What a program does that sleeps on events: arm, take everything, sleep.
fn event_loop(side: &Side, channel: &CompletionChannel, mut handle: impl FnMut(Completion) -> bool) {
    let mut got = [Completion::default(); 4];
    loop {
        side.cq.arm(Arm::Next).unwrap();
        loop {
            let n = side.cq.poll(&mut got).unwrap();
            if n == 0 {
                break;
            }
            for c in &got[..n] {
                assert_eq!(c.status, Status::Success);
                if !handle(*c) {
                    return;
                }
            }
        }
        let event = channel.wait(Some(PATIENCE)).unwrap();
        event.expect("a wake-up was lost").ack();
    }
}

#[test]
fn no_wake_up_is_lost_between_two_event_loops() {
    const ROUNDS: u64 = 4000;
    let ((a, ca), (b, cb)) = (with_channel(), with_channel());
    join(&a, &b, &ConnPolicy::default());
    for side in [&a, &b] {
        for i in 0..8 {
            side.qp.post_recv(&RecvWr::new(1000 + i, &[])).unwrap();
        }
    }
    let play = |side: &Side, channel: &CompletionChannel, first: bool| {
        let mut rounds = 0;
        if first {
            side.qp.post_send(&SendWr::send(0, &[]).unsignaled()).unwrap();
        }
        event_loop(side, channel, |c| {
            side.qp.post_recv(&RecvWr::new(c.wr_id, &[])).unwrap();
            rounds += 1;
            side.qp.post_send(&SendWr::send(0, &[]).unsignaled()).unwrap();
            rounds < ROUNDS
        });
    };
    std::thread::scope(|s| {
        s.spawn(|| play(&a, &ca, true));
        s.spawn(|| play(&b, &cb, false));
    });
}

/// Waiters and pollers of one queue: each completion goes to one of them.
#[test]
fn threads_that_wait_and_threads_that_poll_share_a_queue() {
    const N: u64 = 6000;
    let (a, b) = pair();
    let taken = AtomicUsize::new(0);
    let seen = std::sync::Mutex::new(HashSet::new());
    for i in 0..100 {
        b.qp.post_recv(&RecvWr::new(i, &[])).unwrap();
    }
    let take = |wait: bool| {
        let mut got = [Completion::default(); 3];
        while taken.load(Ordering::SeqCst) < N as usize {
            let n = if wait {
                b.cq.wait(&mut got, Some(Duration::from_millis(100))).unwrap()
            } else {
                std::thread::yield_now();
                b.cq.poll(&mut got).unwrap()
            };
            for c in &got[..n] {
                assert_eq!(c.status, Status::Success);
                assert!(seen.lock().unwrap().insert(c.immediate.unwrap()));
                taken.fetch_add(1, Ordering::SeqCst);
                b.qp.post_recv(&RecvWr::new(c.wr_id, &[])).unwrap();
            }
        }
    };
    std::thread::scope(|s| {
        for wait in [true, true, false] {
            s.spawn(move || take(wait));
        }
        let mut got = [Completion::default(); 16];
        let mut sent = 0;
        while sent < N {
            match a.qp.post_send(&SendWr::immediate(sent, sent)) {
                Ok(()) => sent += 1,
                Err(Error::QueueFull(_)) => {
                    a.cq.wait(&mut got, Some(PATIENCE)).unwrap();
                }
                Err(e) => panic!("{e}"),
            }
        }
    });
    assert_eq!(seen.into_inner().unwrap().len(), N as usize);
}

#[test]
fn waiting_ends_with_its_time() {
    let (a, _b) = pair();
    let mut got = [Completion::default(); 1];
    assert_eq!(a.cq.wait(&mut got, Some(Duration::ZERO)).unwrap(), 0);
    assert_eq!(a.cq.wait(&mut got, Some(Duration::from_millis(20))).unwrap(), 0);
    assert_eq!(a.cq.wait(&mut [], None).unwrap(), 0);
}
