//! What goes on while the application does something else, or nothing.

use std::time::Duration;

use rnic_verbs::{
    Arm, Completion, ConnPolicy, DeviceConfig, QpInit, QueuePair, RecvWr, RemoteBuffer, SendWr, Status,
};

use crate::common::{PATIENCE, Side, join_qps, pair, pattern, side};

/// `a` writes to `b` and reads back, in a thread of its own, while this one is with `meanwhile`.
fn served_during(a: &Side, b: &Side, meanwhile: impl FnOnce(&std::thread::ScopedJoinHandle<'_, ()>)) {
    const LEN: usize = 50_000;
    let (src, back, dst) = (a.mr(LEN), a.mr(LEN), b.mr(LEN));
    let far = dst.remote();
    std::thread::scope(|s| {
        let peer = s.spawn(|| {
            for round in 0..100 {
                src.write_at(0, &pattern(LEN, round)).unwrap();
                let (out, into) = ([src.sge(0, LEN as u32)], [back.sge(0, LEN as u32)]);
                let wrs = [SendWr::write(0, &out, far).unsignaled(), SendWr::read(1, &into, far)];
                a.qp.post_send_list(&wrs).unwrap();
                assert_eq!(a.completion().status, Status::Success);
                assert!(Side::bytes(&back) == pattern(LEN, round));
            }
        });
        meanwhile(&peer);
    });
}

#[test]
fn one_sided_operations_are_served_while_the_target_computes() {
    let (a, b) = pair();
    served_during(&a, &b, |peer| {
        // It polls once, which takes the socket over from the library's thread, and never again.
        b.cq.poll(&mut [Completion::default(); 1]).unwrap();
        let mut x = 1u64;
        while !peer.is_finished() {
            for _ in 0..100_000 {
                x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
            }
        }
    });
}

#[test]
fn one_sided_operations_are_served_while_the_target_sleeps() {
    let (a, b) = pair();
    served_during(&a, &b, |peer| {
        while !peer.is_finished() {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    });
}

/// Waiting for a completion that does not come is no hindrance either.
#[test]
fn one_sided_operations_are_served_while_the_target_waits_for_something_else() {
    let (a, b) = pair();
    served_during(&a, &b, |peer| {
        while !peer.is_finished() {
            let n = b.cq.wait(&mut [Completion::default(); 1], Some(Duration::from_millis(20))).unwrap();
            assert_eq!(n, 0);
        }
    });
}

fn connected(a: &Side, b: &Side, n: usize) -> Vec<(QueuePair, QueuePair)> {
    (0..n)
        .map(|_| {
            let x = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
            let y = b.pd.create_qp(&QpInit::new(&b.cq)).unwrap();
            join_qps(&x, &b.device, &y, &ConnPolicy::default());
            y.post_recv(&RecvWr::new(0, &[])).unwrap();
            x.post_send(&SendWr::send(1, &[])).unwrap();
            (x, y)
        })
        .collect()
}

/// CPU time of the process so far.
fn cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// CPU time that the process uses in a second in which nothing happens.
fn in_an_idle_second() -> Duration {
    // Leases run out, and timers that were set while there was something to do.
    std::thread::sleep(Duration::from_millis(1500));
    let before = cpu();
    std::thread::sleep(Duration::from_secs(1));
    cpu() - before
}

/// A generous bound: a single busy thread would use twenty times as much.
const IDLE: Duration = Duration::from_millis(50);

#[test]
fn idle_connections_cost_no_cpu() {
    let (a, b) = (side(DeviceConfig::default(), |i| i), side(DeviceConfig::default(), |i| i));
    let qps = connected(&a, &b, 100);
    assert_eq!((a.completions(100).len(), b.completions(100).len()), (100, 100));
    // Unconnected ones, and a listener, are idle, too.
    let rest: Vec<_> = (0..100).map(|_| a.pd.create_qp(&QpInit::new(&a.cq)).unwrap()).collect();
    let used = in_an_idle_second();
    assert!(used < IDLE, "{used:?}");
    // They are alive.
    let mr = b.mr(8);
    for (x, _) in &qps {
        x.post_send(&SendWr::write_inline(2, b"12345678", mr.remote())).unwrap();
    }
    assert_eq!(a.completions(100).len(), 100);
    drop(rest);
}

/// Threads that wait cost as little as those that do not.
#[test]
fn waiting_costs_no_cpu() {
    let device = |n| {
        let s = side(DeviceConfig::default(), |i| i);
        let channel = s.device.create_channel().unwrap();
        let cq = s.device.create_cq(16, Some(&channel)).unwrap();
        (s, channel, cq, n)
    };
    let (a, b) = pair();
    let (c, channel, cq, _) = device(0);
    let far = c.pd.create_qp(&QpInit::new(&cq)).unwrap();
    let near = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    join_qps(&near, &c.device, &far, &ConnPolicy::default());
    far.post_recv(&RecvWr::new(0, &[])).unwrap();
    b.qp.post_recv(&RecvWr::new(0, &[])).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut got = [Completion::default(); 1];
            assert_eq!(b.cq.wait(&mut got, Some(PATIENCE)).unwrap(), 1);
        });
        s.spawn(|| {
            cq.arm(Arm::Next).unwrap();
            let mut got = [Completion::default(); 1];
            assert_eq!(cq.poll(&mut got).unwrap(), 0);
            channel.wait(Some(PATIENCE)).unwrap().unwrap().ack();
            assert_eq!(cq.poll(&mut got).unwrap(), 1);
        });
        let used = in_an_idle_second();
        assert!(used < IDLE, "{used:?}");
        a.qp.post_send(&SendWr::write(0, &[], RemoteBuffer::default())).unwrap();
        a.qp.post_send(&SendWr::send(1, &[])).unwrap();
        near.post_send(&SendWr::send(1, &[])).unwrap();
    });
}
