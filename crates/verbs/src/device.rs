//! The device: limits, memory table, shards, events. Everything else is made from it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use crate::counters::{DeviceCounters, DeviceCounts};
use crate::error::{Error, Result};
use crate::event::{AsyncEvent, AsyncEvents, EventQueue};
use crate::home::Home;
use crate::mem::MemoryTable;
use crate::pcap::Pcap;
use crate::pd::ProtectionDomain;
use crate::queue::{CompletionChannel, CompletionQueue};
use crate::shard::Shard;
use crate::staging::Pool;

/// How a device is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// Shown by tools.
    pub name: String,
    /// Threads that serve connections while the application does something else.
    pub shards: usize,
    /// File (classic pcap) that records what the connections send and receive, for Wireshark or tshark; the
    /// environment variable `RNIC_PCAP` by default. Devices of a process that name one file share it; where
    /// another process is recording to it, this one's number is put behind the name. Costs a copy of every
    /// byte and a system call per FPDU.
    pub pcap: Option<std::path::PathBuf>,
    /// Bytes of messages without a posted receive that one queue pair holds aside.
    pub held_per_qp: usize,
    /// The same for the whole device.
    pub held_total: usize,
    /// How long such a message may stop a connection's reception before it is terminated.
    pub rnr_timeout: Duration,
    /// How long a connection with data under way may hear nothing from the peer's TCP.
    pub path_timeout: Duration,
    /// How long a closing connection waits for the peer's end of stream.
    pub linger: Duration,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            name: "rnic_iw0".into(),
            shards: 1,
            pcap: std::env::var_os("RNIC_PCAP").filter(|p| !p.is_empty()).map(Into::into),
            held_per_qp: 1 << 20,
            held_total: 64 << 20,
            rnr_timeout: Duration::from_secs(10),
            path_timeout: Duration::from_secs(20),
            linger: Duration::from_secs(2),
        }
    }
}

/// Limits and abilities of a device. Counts are maxima.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Device name.
    pub name: String,
    /// Version of this crate.
    pub version: &'static str,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests per send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements per work request (the sink of a Read included).
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries per completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests per shared receive queue.
    pub max_srq_wr: u32,
    /// Outbound Reads and atomics at once per queue pair (ORD).
    pub max_ord: u16,
    /// Inbound Reads and atomics at once per queue pair (IRD).
    pub max_ird: u16,
    /// Bytes of a message.
    pub max_msg: u32,
    /// Private data of a connection request, in bytes (508 with MPA revision 2).
    pub max_private_data: u32,
}

/// The limits; none is lower than Linux siw's.
pub(crate) mod limits {
    pub(crate) const QP: u32 = 131_072;
    pub(crate) const WR: u32 = 65_536;
    pub(crate) const SGE: u32 = 32;
    pub(crate) const INLINE: u32 = 512;
    pub(crate) const CQE: u32 = 4_194_304;
    pub(crate) const MR: u32 = 1_048_576;
    pub(crate) const SRQ_WR: u32 = 655_360;
    pub(crate) const DEPTH: u16 = 255;
}

/// The numbers of queue pairs.
#[derive(Debug, Default)]
struct Numbers {
    last: u32,
    live: HashSet<u32>,
}

#[derive(Debug)]
pub(crate) struct DeviceInner {
    pub(crate) config: DeviceConfig,
    pub(crate) table: Arc<MemoryTable>,
    shards: Vec<Arc<Shard>>,
    next_shard: AtomicUsize,
    next_id: AtomicU32,
    numbers: Mutex<Numbers>,
    pub(crate) qps: AtomicU32,
    pub(crate) events: Arc<EventQueue>,
    pub(crate) counters: DeviceCounters,
    pub(crate) staging: Pool,
    pub(crate) held: AtomicUsize,
    pub(crate) pcap: Option<Pcap>,
    pub(crate) home: Home,
}

impl DeviceInner {
    /// The shard for the next connection, in turn.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        let n = self.next_shard.fetch_add(1, Ordering::Relaxed);
        Arc::clone(&self.shards[n % self.shards.len()])
    }

    pub(crate) fn report(&self, event: AsyncEvent) {
        tracing::debug!(?event, "async event");
        self.events.push(event);
    }

    /// A number for a protection domain or shared receive queue, never given twice.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a queue pair: 24 bits, not 0, and no other's while it is not given back.
    pub(crate) fn take_number(&self) -> u32 {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            numbers.last = (numbers.last + 1) & 0x00ff_ffff;
            let n = numbers.last;
            if n != 0 && numbers.live.insert(n) {
                return n;
            }
        }
    }

    /// Gives a queue pair's number back.
    pub(crate) fn give_number_back(&self, number: u32) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).live.remove(&number);
    }

    pub(crate) fn is_forked(&self) -> bool {
        !self.home.is_here()
    }

    pub(crate) fn check_fork(&self) -> Result<()> {
        self.home.check()
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // The child's threads are not there to be stopped, and its event descriptors are the parent's.
        for shard in self.shards.iter().filter(|_| self.home.is_here()) {
            shard.stop();
        }
    }
}

/// A software RNIC. Cheap to clone; its threads end when the last object made from it is gone.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<DeviceInner>);

impl Device {
    /// Opens a device. No thread starts before the first connection.
    ///
    /// # Errors
    /// [`Error::FileDescriptors`] or [`Error::Os`] if descriptors cannot be had; [`Error::Capture`]
    /// if the capture file cannot be created.
    pub fn open(config: DeviceConfig) -> Result<Self> {
        static HOOKS: Once = Once::new();
        HOOKS.call_once(crate::qp::exit::install);
        let shards = (0..config.shards.clamp(1, 64))
            .map(|_| Shard::new().map_err(|e| Error::os("create a shard", e)))
            .collect::<Result<Vec<_>>>()?;
        let pcap = config.pcap.as_deref().map(Pcap::create).transpose()?;
        Ok(Self(Arc::new(DeviceInner {
            table: Arc::new(MemoryTable::new()),
            shards,
            next_shard: AtomicUsize::new(0),
            next_id: AtomicU32::new(1),
            numbers: Mutex::default(),
            qps: AtomicU32::new(0),
            events: EventQueue::new()?,
            counters: DeviceCounters::default(),
            staging: Pool::default(),
            held: AtomicUsize::new(0),
            pcap,
            home: Home::here(),
            config,
        })))
    }

    /// Limits and abilities.
    pub fn attr(&self) -> DeviceAttr {
        DeviceAttr {
            name: self.0.config.name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            max_qp: limits::QP,
            max_qp_wr: limits::WR,
            max_sge: limits::SGE,
            max_inline: limits::INLINE,
            max_cq: limits::QP,
            max_cqe: limits::CQE,
            max_mr: limits::MR,
            max_mr_size: isize::MAX as u64,
            max_mw: limits::MR,
            max_pd: limits::QP,
            max_srq: limits::QP,
            max_srq_wr: limits::SRQ_WR,
            max_ord: limits::DEPTH,
            max_ird: limits::DEPTH,
            max_msg: u32::MAX,
            max_private_data: 512,
        }
    }

    /// Totals since the device was opened.
    pub fn counters(&self) -> DeviceCounts {
        self.0.counters.snapshot()
    }

    /// The device's asynchronous events.
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents(Arc::clone(&self.0.events))
    }

    /// A protection domain: what memory and queue pairs must share to work together.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of the process that opened the device.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        self.0.check_fork()?;
        Ok(ProtectionDomain::new(Arc::clone(&self.0)))
    }

    /// A completion channel: a descriptor that tells of completion queues with news.
    ///
    /// # Errors
    /// [`Error::FileDescriptors`] or [`Error::Os`] if no descriptor can be had.
    pub fn create_channel(&self) -> Result<CompletionChannel> {
        self.0.check_fork()?;
        CompletionChannel::new()
    }

    /// A completion queue of `depth` entries.
    ///
    /// # Errors
    /// [`Error::Limit`] for a depth of 0 or above [`DeviceAttr::max_cqe`].
    pub fn create_cq(&self, depth: u32, channel: Option<&CompletionChannel>) -> Result<CompletionQueue> {
        self.0.check_fork()?;
        if depth == 0 || depth > limits::CQE {
            return Err(Error::Limit { what: "cqe", value: depth.into(), limit: limits::CQE.into() });
        }
        let cq = CompletionQueue::new(depth, channel)?;
        let (events, id) = (Arc::clone(&self.0.events), cq.id());
        cq.on_overflow(move || events.push(AsyncEvent::CqError { cq: id }));
        Ok(cq)
    }
}
