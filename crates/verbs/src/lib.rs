//! A software RDMA NIC in the process: protection domains, memory regions, queue pairs and completion
//! queues, over iWARP on ordinary TCP. No RDMA hardware, no kernel module, no privilege.
//!
//! ```no_run
//! use rnic_verbs::{Access, ConnParams, Device, DeviceConfig, QpInit, SendWr, connect};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open(DeviceConfig::default())?;
//! let pd = device.alloc_pd()?;
//! let cq = device.create_cq(64, None)?;
//! let qp = pd.create_qp(&QpInit::new(&cq))?;
//! connect(&qp, "127.0.0.1:7471".parse()?, ConnParams::default())?;
//! let mr = pd.register(4096, Access::LOCAL_WRITE)?;
//! mr.write_at(0, b"hello")?;
//! qp.post_send(&SendWr::send(1, &[mr.sge(0, 5)]))?;
//! # Ok(())
//! # }
//! ```
//!
//! What waits has a form that blocks, one that asks, a descriptor for an event loop, and one for tasks of any
//! executor: [`connect`] and [`connect_async`], [`Listener::accept`] and [`Listener::accept_async`],
//! [`CompletionQueue::wait`], [`CompletionQueue::next`] and [`CompletionQueue::completions`],
//! [`QueuePair::wait_disconnected`] and [`QueuePair::disconnected`].
//!
//! A signalled Send or Write completes when TCP has its bytes; a Read or atomic when its answer is in
//! local memory. Completions of one queue pair come in the order of posting.

mod cm;
mod counters;
mod crc;
mod device;
mod error;
mod event;
mod home;
mod mem;
mod net;
mod pcap;
mod pd;
mod qp;
mod queue;
mod shard;
mod signal;
mod srq;
mod staging;
mod wait;
mod wr;

pub use cm::{
    ConnParams, ConnPolicy, ConnRequest, Established, FpduPolicy, ListenConfig, Listener, Role, connect,
    connect_async, convert,
};
pub use counters::{DeviceCounts, QpCounts};
pub use device::{Device, DeviceAttr, DeviceConfig};
pub use error::{DeregisterError, Error, PostError, Result};
pub use event::{AsyncEvent, AsyncEvents, SrqId};
pub use iwarp;
pub use mem::{Access, Buffer, FastRegion, MemoryRegion, MemoryWindow, WindowKind};
pub use pd::ProtectionDomain;
pub use qp::{End, QpAttr, QpInit, QpState, QueuePair};
pub use queue::{
    Arm, Completion, CompletionChannel, CompletionOp, CompletionQueue, Completions, CqEvent, Status,
};
pub use srq::{SharedReceiveQueue, SrqAttr};
pub use wr::{BindWindow, FastRegister, Payload, RecvWr, RemoteBuffer, SendFlags, SendOp, SendWr, Sge};
