//! What timers, late findings of another thread and changes of state may do to a queue pair.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::QpState;
use super::close::Cause;
use crate::cm::{ConnParams, Role, convert};
use crate::mem::Access;
use crate::queue::{Completion, CompletionQueue, Status};
use crate::wr::{RecvWr, SendOp, SendWr, Sge};
use crate::{Device, DeviceConfig, Error, ProtectionDomain, QpInit, QueuePair};

struct Side {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

fn side(config: DeviceConfig) -> Side {
    let device = Device::open(config).unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(256, None).unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    Side { pd, cq, qp }
}

fn connect(a: &Side, b: &Side) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let passive = listener.accept().unwrap().0;
    std::thread::scope(|s| {
        s.spawn(|| convert(&b.qp, passive, Role::Responder, ConnParams::default()).unwrap());
        convert(&a.qp, active, Role::Initiator, ConnParams::default()).unwrap();
    });
}

fn pair(config: DeviceConfig) -> (Side, Side) {
    let (a, b) = (side(config.clone()), side(config));
    connect(&a, &b);
    (a, b)
}

impl Side {
    fn completions(&self, n: usize) -> Vec<Completion> {
        let mut out = vec![Completion::default(); n];
        let mut have = 0;
        while have < n {
            let got = self.cq.wait(&mut out[have..], Some(Duration::from_secs(20))).unwrap();
            assert!(got > 0, "only {have} of {n} completions");
            have += got;
        }
        out
    }
}

/// A thread may find the end of a connection that was reset and replaced meanwhile.
#[test]
fn what_was_found_before_a_reset_does_not_end_the_next_connection() {
    let (a, b) = pair(DeviceConfig::default());
    let inner = a.qp.inner();
    let life = inner.life();
    for side in [&a, &b] {
        side.qp.modify(QpState::Reset).unwrap();
        side.qp.modify(QpState::Init).unwrap();
    }
    connect(&a, &b);
    inner.fail(life, Cause::PeerClosed { clean: true });
    assert_eq!((a.qp.state(), a.qp.end()), (QpState::Rts, None));
    inner.fail(inner.life(), Cause::PeerClosed { clean: true });
    assert_eq!(a.qp.state(), QpState::Error);
}

/// Two threads read one socket: the Terminate that one of them took is the end, and not the end of the
/// stream behind it that the other one sees.
#[test]
fn the_end_that_was_read_first_is_the_end() {
    let (a, b) = pair(DeviceConfig::default());
    let inner = a.qp.inner();
    let sink = a.pd.register(8, Access::LOCAL_WRITE).unwrap();
    let mut rx = inner.lock_rx();
    let nowhere = crate::RemoteBuffer { rkey: 7, addr: 0, len: 8 };
    a.qp.post_send(&SendWr::read(1, &[sink.sge(0, 8)], nowhere)).unwrap();
    let found = loop {
        let out = inner.receive(&mut rx);
        if out.end.is_some() {
            break out;
        }
        std::thread::yield_now();
    };
    b.qp.wait_disconnected(Some(Duration::from_secs(20))).unwrap();
    for _ in 0..2000 {
        assert!(inner.receive(&mut rx).end.is_none(), "another end");
        std::thread::yield_now();
    }
    drop(rx);
    inner.after_receive(found);
    assert_eq!(a.completions(1)[0].status, Status::RemoteAccess);
}

/// Reset, disconnect and the drop of a queue pair wait for an end that another thread has begun.
#[test]
fn a_reset_waits_for_the_end_that_is_under_way() {
    let (a, _b) = pair(DeviceConfig::default());
    let inner = a.qp.inner();
    a.qp.post_recv(&RecvWr::new(9, &[])).unwrap();
    std::thread::scope(|s| {
        let rx = inner.lock_rx();
        s.spawn(|| inner.fail(inner.life(), Cause::PeerClosed { clean: true }));
        while inner.cause().is_none() {
            std::thread::yield_now();
        }
        let reset = s.spawn(|| a.qp.modify(QpState::Reset));
        drop(rx);
        reset.join().unwrap().unwrap();
        assert_eq!((a.qp.state(), a.qp.end()), (QpState::Reset, None));
        assert_eq!(a.cq.queued(), 1, "the receive is reported before the reset is over");
    });
    assert_eq!((a.qp.state(), a.completions(1)[0].wr_id), (QpState::Reset, 9));
}

/// Whoever sees the queue pair in error posts behind what is flushed: the state changes under the lock
/// of the send queue, and receives in error go through the queue.
#[test]
fn requests_are_flushed_in_the_order_of_posting() {
    for _ in 0..20 {
        let (a, b) = pair(DeviceConfig::default());
        // The responder may not send yet, so these wait.
        let mut sent = 0u64;
        std::thread::scope(|s| {
            for _ in 0..20 {
                b.qp.post_send(&SendWr::send_inline(sent, b"x")).unwrap();
                b.qp.post_recv(&RecvWr::new(1000 + sent, &[])).unwrap();
                sent += 1;
            }
            s.spawn(|| a.qp.disconnect());
            while sent < 60 {
                b.qp.post_send(&SendWr::send_inline(sent, b"x")).unwrap();
                b.qp.post_recv(&RecvWr::new(1000 + sent, &[])).unwrap();
                sent += 1;
            }
        });
        b.qp.wait_disconnected(Some(Duration::from_secs(20))).unwrap();
        let all = b.completions(2 * sent as usize);
        assert!(all.iter().all(|c| c.status == Status::WrFlush));
        let ids = |recv: bool| all.iter().map(|c| c.wr_id).filter(move |id| (*id >= 1000) == recv);
        assert!(ids(false).eq(0..sent) && ids(true).eq(1000..1000 + sent), "{all:?}");
    }
}

/// Nothing behind a request that failed is sent, whoever looks at the send queue next.
#[test]
fn nothing_is_begun_behind_a_request_that_failed() {
    let (a, b) = pair(DeviceConfig::default());
    let inner = a.qp.inner();
    let mut tx = inner.lock_tx();
    let resolve = |wr: &SendWr<'_>| inner.resolve_send(wr).unwrap();
    tx.enqueue(resolve(&SendWr::local(1, SendOp::LocalInvalidate(7))));
    tx.enqueue(resolve(&SendWr::send_inline(2, b"behind")));
    inner.outstanding.fetch_add(2, std::sync::atomic::Ordering::SeqCst);
    let cause = inner.transmit(&mut tx).unwrap();
    assert!(inner.transmit(&mut tx).is_none() && inner.counters.snapshot().tx_bytes == 0);
    drop(tx);
    inner.fail(inner.life(), cause);
    let all = a.completions(2);
    assert_eq!((all[0].wr_id, all[0].status), (1, Status::LocalProtection));
    assert_eq!((all[1].wr_id, all[1].status), (2, Status::WrFlush));
    b.qp.wait_disconnected(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(b.qp.counters().rx_held, 0, "only the Terminate came");
}

/// Which key would be invalidated is not to be guessed.
#[test]
fn a_read_with_invalidate_takes_one_element_of_memory() {
    let (a, b) = pair(DeviceConfig::default());
    let sink = a.pd.register(64, Access::LOCAL_WRITE).unwrap();
    let source = b.pd.register(64, Access::REMOTE_READ).unwrap().remote();
    let op = SendOp::ReadInvalidate { raddr: source.addr, rkey: source.rkey };
    let post = |sges: &[Sge]| a.qp.post_send(&SendWr::new(1, op, crate::Payload::Sges(sges)));
    for sges in [&[][..], &[sink.sge(0, 0)], &[sink.sge(0, 8), sink.sge(8, 8)]] {
        assert!(matches!(post(sges), Err(Error::Invalid(_))), "{} elements", sges.len());
    }
    post(&[sink.sge(0, 8)]).unwrap();
}
