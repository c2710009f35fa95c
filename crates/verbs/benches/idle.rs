//! What idle connections cost: memory of this process for each queue pair, beyond what the kernel has for its
//! socket, and CPU time while all of them are silent. `cargo bench -p rnic-verbs --bench idle`
//!
//! Both ends are in this process. One JSON object a line, for `cargo xtask bench rdma`.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rnic_verbs::{
    Completion, CompletionQueue, ConnParams, Device, DeviceConfig, ListenConfig, Listener, ProtectionDomain,
    QpInit, QueuePair, RecvWr, SendWr, Status, connect,
};

/// Connections; each has two queue pairs here.
const CONNECTIONS: usize = 500;
/// How long they are watched doing nothing.
const WATCHED: Duration = Duration::from_secs(5);
/// Clock ticks a second that Linux shows to user space.
const TICKS: f64 = 100.0;

struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qps: Vec<QueuePair>,
}

impl End {
    fn new(device: &Device) -> Self {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4096, None).unwrap());
        Self { pd, cq, qps: Vec::new() }
    }

    fn qp(&self) -> QueuePair {
        self.pd.create_qp(&QpInit::new(&self.cq)).unwrap()
    }

    fn completed(&self) {
        let mut c = [Completion::default()];
        assert_eq!(self.cq.wait(&mut c, Some(Duration::from_secs(10))).unwrap(), 1);
        assert_eq!(c[0].status, Status::Success);
    }
}

fn main() {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let listener = Listener::bind(&device, "127.0.0.1:0".parse().unwrap(), ListenConfig::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let (mut a, mut b) = (End::new(&device), End::new(&device));
    // The first pair brings threads, staging buffers and the allocator's arenas into being.
    for connections in [8, CONNECTIONS] {
        let before = resident_bytes();
        for _ in 0..connections {
            let (near, far) = (a.qp(), b.qp());
            thread::scope(|s| {
                s.spawn(|| listener.accept(None).unwrap().accept(&far, ConnParams::default()).unwrap());
                connect(&near, address, ConnParams::default()).unwrap();
            });
            // Each has worked once: an idle connection is one that was used.
            far.post_recv(&RecvWr::new(1, &[])).unwrap();
            near.post_send(&SendWr::send(1, &[])).unwrap();
            a.completed();
            b.completed();
            a.qps.push(near);
            b.qps.push(far);
        }
        if connections == CONNECTIONS {
            let qps = 2 * connections;
            let memory = (resident_bytes() - before) / qps as f64;
            // Leases and naps run out first.
            thread::sleep(Duration::from_millis(500));
            let (start, cpu) = (Instant::now(), cpu_seconds());
            thread::sleep(WATCHED);
            let cpu = (cpu_seconds() - cpu) / start.elapsed().as_secs_f64();
            println!("{{\"idle_qps\":{qps},\"bytes_per_qp\":{memory:.0},\"cpu_share\":{cpu:.4}}}");
        }
    }
}

fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / TICKS
}
