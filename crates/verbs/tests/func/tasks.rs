//! The asynchronous interface: on a bare executor, and on tokio.

use std::future::{Future, poll_fn};
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use futures_core::Stream;
use rnic_verbs::{
    AsyncEvent, CompletionQueue, ConnParams, ConnPolicy, Device, DeviceConfig, End, Error, ListenConfig,
    Listener, MemoryRegion, ProtectionDomain, QpInit, QpState, QueuePair, RecvWr, SendWr, Status,
    connect_async,
};

use crate::common::{PATIENCE, REMOTE, join, pair, side, wait_for};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps until the future is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "nobody woke the task");
        std::thread::park_timeout(left);
    }
}

/// Two futures at once on one thread.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut x, mut y) = (None, None);
    poll_fn(move |cx| {
        if x.is_none()
            && let Poll::Ready(v) = a.as_mut().poll(cx)
        {
            x = Some(v);
        }
        if y.is_none()
            && let Poll::Ready(v) = b.as_mut().poll(cx)
        {
            y = Some(v);
        }
        if x.is_some() && y.is_some() { Poll::Ready(x.take().zip(y.take()).unwrap()) } else { Poll::Pending }
    })
    .await
}

/// One poll with a waker that does nothing.
fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// What a task needs for one connection.
struct Station {
    cq: CompletionQueue,
    qp: QueuePair,
    mr: MemoryRegion,
}

impl Station {
    fn new(device: &Device, pd: &ProtectionDomain) -> Self {
        let cq = device.create_cq(64, None).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        let mr = pd.register(64, REMOTE).unwrap();
        qp.post_recv(&RecvWr::new(0, &[mr.sge(0, 64)])).unwrap();
        Self { cq, qp, mr }
    }

    async fn receive(&self) -> u64 {
        let c = self.cq.next().await.unwrap();
        assert_eq!((c.status, c.len), (Status::Success, 8));
        let n = self.mr.load_u64(0).unwrap();
        self.qp.post_recv(&RecvWr::new(0, &[self.mr.sge(0, 64)])).unwrap();
        n
    }

    fn send(&self, n: u64) {
        self.qp.post_send(&SendWr::send_inline(1, &n.to_ne_bytes()).unsignaled()).unwrap();
    }
}

const ROUNDS: u64 = 200;

async fn serve_one(listener: &Listener, station: &Station) {
    let request = listener.accept_async().await;
    request.accept(&station.qp, ConnParams::default()).unwrap();
    for _ in 0..ROUNDS {
        let n = station.receive().await;
        station.send(n + 1);
    }
    assert_eq!(station.qp.disconnected().await, Some(End::Peer));
}

async fn play(addr: SocketAddr, station: &Station) {
    connect_async(&station.qp, addr, ConnParams::default()).await.unwrap();
    for i in 0..ROUNDS {
        station.send(10 * i);
        assert_eq!(station.receive().await, 10 * i + 1);
    }
    station.qp.disconnect();
    assert_eq!(station.qp.disconnected().await, Some(End::Local));
}

fn device() -> (Device, ProtectionDomain) {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd().unwrap();
    (device, pd)
}

fn listener(device: &Device) -> (Listener, SocketAddr) {
    let listener = Listener::bind(device, "127.0.0.1:0".parse().unwrap(), ListenConfig::default()).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

#[test]
fn both_ends_run_as_tasks_of_one_thread() {
    let ((a, pa), (b, pb)) = (device(), device());
    let (listener, addr) = listener(&b);
    let (x, y) = (Station::new(&a, &pa), Station::new(&b, &pb));
    block_on(both(serve_one(&listener, &y), play(addr, &x)));
}

#[test]
fn many_tasks_of_tokio_share_a_thread() {
    const CLIENTS: usize = 20;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ((a, pa), (b, pb)) = (device(), device());
    let (listener, addr) = listener(&b);
    runtime.block_on(async move {
        let server = tokio::spawn(async move {
            let tasks: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let (listener, station) = (listener.clone(), Station::new(&b, &pb));
                    tokio::spawn(async move { serve_one(&listener, &station).await })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let station = Station::new(&a, &pa);
                tokio::spawn(async move { play(addr, &station).await })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        server.await.unwrap();
    });
}

#[test]
fn a_connect_that_is_dropped_is_given_up() {
    let a = side(DeviceConfig::default(), |i| i);
    let b = side(DeviceConfig::default(), |i| i);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    {
        let mut attempt = pin!(connect_async(&a.qp, addr, ConnParams::default()));
        assert!(poll_once(attempt.as_mut()).is_pending());
        assert_eq!(a.qp.state(), QpState::Rtr);
    }
    assert_eq!(a.qp.state(), QpState::Init);
    let mut stream = silent.accept().unwrap().0;
    let mut said = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut said);
    // And never begun, it is nothing at all.
    drop(connect_async(&a.qp, addr, ConnParams::default()));
    join(&a, &b, &ConnPolicy::default());
}

#[test]
fn an_accept_that_is_dropped_leaves_the_request_to_the_next() {
    let ((a, pa), (b, pb)) = (device(), device());
    let (listener, addr) = listener(&b);
    let (x, y) = (Station::new(&a, &pa), Station::new(&b, &pb));
    {
        let mut accept = pin!(listener.accept_async());
        assert!(poll_once(accept.as_mut()).is_pending());
    }
    block_on(both(serve_one(&listener, &y), play(addr, &x)));
}

#[test]
fn a_wait_for_a_completion_that_is_dropped_has_taken_none() {
    let (a, b) = pair();
    let target = b.mr(8);
    {
        let mut wait = pin!(a.cq.next());
        assert!(poll_once(wait.as_mut()).is_pending());
        a.qp.post_send(&SendWr::write_inline(5, b"x", target.remote())).unwrap();
        wait_for(|| a.cq.queued() == 1);
    }
    assert_eq!(block_on(a.cq.next()).unwrap().wr_id, 5);
    assert!(poll_once(pin!(a.cq.next())).is_pending());
}

#[test]
fn tasks_that_wait_for_one_queue_get_each_completion_once() {
    const EACH: u64 = 50;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (a, b) = pair();
    let mr = b.mr(8);
    let target = mr.remote();
    let mut all = runtime.block_on(async {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let cq = a.cq.clone();
                tokio::spawn(async move {
                    let mut taken = Vec::new();
                    for _ in 0..EACH {
                        taken.push(cq.next().await.unwrap().wr_id);
                    }
                    taken
                })
            })
            .collect();
        for n in 0..8 * EACH {
            // The tasks make room.
            while a.qp.post_send(&SendWr::write_inline(n, b"x", target)).is_err() {
                tokio::task::yield_now().await;
            }
        }
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all
    });
    all.sort_unstable();
    assert_eq!(all, (0..8 * EACH).collect::<Vec<_>>());
}

#[test]
fn the_stream_of_completions_ends_with_its_error() {
    let mut a = side(DeviceConfig::default(), |i| i);
    a.cq = a.device.create_cq(3, None).unwrap();
    a.qp = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    let b = side(DeviceConfig::default(), |i| i);
    join(&a, &b, &ConnPolicy::default());
    let mr = b.mr(8);
    let target = mr.remote();
    let mut stream = a.cq.completions();
    let mut next = || block_on(poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)));
    for i in 0..10 {
        a.qp.post_send(&SendWr::write_inline(i, b"x", target)).unwrap();
        assert_eq!(next().unwrap().unwrap().wr_id, i);
    }
    for i in 0..4 {
        a.qp.post_send(&SendWr::write_inline(i, b"x", target)).unwrap();
    }
    for i in 0..3 {
        assert_eq!(next().unwrap().unwrap().wr_id, i);
    }
    assert!(matches!(next(), Some(Err(Error::CqOverflow { .. }))));
    assert!(next().is_none() && next().is_none());
}

#[test]
fn batches_are_taken_whole() {
    let (a, b) = pair();
    let mr = b.mr(8);
    let target = mr.remote();
    for i in 0..5 {
        a.qp.post_send(&SendWr::write_inline(i, b"x", target)).unwrap();
    }
    wait_for(|| a.cq.queued() == 5);
    let mut out = [rnic_verbs::Completion::default(); 8];
    assert_eq!(block_on(a.cq.next_batch(&mut out)).unwrap(), 5);
    assert_eq!(out[..5].iter().map(|c| c.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(block_on(a.cq.next_batch(&mut [])).unwrap(), 0);
}

#[test]
fn ends_and_events_wake_their_tasks() {
    let (a, b) = pair();
    let (events, qp_num) = (b.device.async_events(), b.qp.num());
    {
        let mut wait = pin!(events.next());
        assert!(poll_once(wait.as_mut()).is_pending());
    }
    let thread = std::thread::spawn(move || a.qp.disconnect());
    let (end, event) = block_on(both(b.qp.disconnected(), async {
        loop {
            let event = events.next().await.unwrap();
            if matches!(event, AsyncEvent::Disconnected { .. }) {
                return event;
            }
        }
    }));
    thread.join().unwrap();
    assert_eq!((end, event), (Some(End::Peer), AsyncEvent::Disconnected { qp_num }));
}
