//! Two connected queue pairs over loopback, each on a device of its own.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part")]

pub mod child;
pub mod raw;

use std::time::Duration;

use rnic_verbs::{
    Access, AsyncEvent, Completion, CompletionQueue, ConnParams, ConnPolicy, Device, DeviceConfig,
    ListenConfig, Listener, MemoryRegion, ProtectionDomain, QpInit, QueuePair, connect,
};

/// Long enough for a busy machine, short enough to notice a hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Side {
    pub device: Device,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    pub qp: QueuePair,
}

pub fn side(config: DeviceConfig, init: impl Fn(QpInit) -> QpInit) -> Side {
    let device = Device::open(config).unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(1024, None).unwrap();
    let qp = pd.create_qp(&init(QpInit::new(&cq))).unwrap();
    Side { device, pd, cq, qp }
}

pub fn pair_with(policy: &ConnPolicy, init: impl Fn(QpInit) -> QpInit) -> (Side, Side) {
    let a = side(DeviceConfig::default(), &init);
    let b = side(DeviceConfig::default(), &init);
    join(&a, &b, policy);
    (a, b)
}

/// Connects `a` (initiator) to `b` (responder).
pub fn join(a: &Side, b: &Side, policy: &ConnPolicy) {
    join_qps(&a.qp, &b.device, &b.qp, policy);
}

/// Likewise for single queue pairs; `device` is that of `b`.
pub fn join_qps(a: &QueuePair, device: &Device, b: &QueuePair, policy: &ConnPolicy) {
    let listener =
        Listener::bind(device, "127.0.0.1:0".parse().unwrap(), ListenConfig::with_policy(policy.clone()))
            .unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let request = listener.accept(Some(PATIENCE)).unwrap();
            request.accept(b, ConnParams::with_policy(policy.clone())).unwrap();
        });
        connect(a, addr, ConnParams::with_policy(policy.clone())).unwrap();
    });
}

/// Every right that a peer can have.
pub const REMOTE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

pub fn pair() -> (Side, Side) {
    pair_with(&ConnPolicy::default(), |i| i)
}

impl Side {
    pub fn mr(&self, len: usize) -> MemoryRegion {
        self.pd.register(len, REMOTE).unwrap()
    }

    /// The bytes of a region.
    pub fn bytes(mr: &MemoryRegion) -> Vec<u8> {
        let mut out = vec![0; mr.len() as usize];
        mr.read_at(0, &mut out).unwrap();
        out
    }

    /// The next asynchronous event that `wanted` picks.
    pub fn event<T>(&self, wanted: impl Fn(AsyncEvent) -> Option<T>) -> T {
        let events = self.device.async_events();
        loop {
            let event = events.wait(Some(PATIENCE)).unwrap().expect("no such event");
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    }

    /// The next `n` completions.
    pub fn completions(&self, n: usize) -> Vec<Completion> {
        let mut out = Vec::new();
        let mut buf = [Completion::default(); 16];
        while out.len() < n {
            let want = (n - out.len()).min(16);
            let got = self.cq.wait(&mut buf[..want], Some(PATIENCE)).unwrap();
            assert!(got > 0, "no completion in {PATIENCE:?}; have {out:?}");
            out.extend_from_slice(&buf[..got]);
        }
        out
    }

    pub fn completion(&self) -> Completion {
        self.completions(1)[0]
    }
}

/// Waits until something that happens in the background has happened.
pub fn wait_for(mut happened: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !happened() {
        assert!(std::time::Instant::now() < deadline, "did not happen within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Bytes that differ by position and seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 3) as u8).collect()
}
