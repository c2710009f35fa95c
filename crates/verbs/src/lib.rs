//! A software RDMA NIC in the process: protection domains, memory regions, queue pairs and completion
//! queues, over iWARP on ordinary TCP.
#![allow(dead_code, unused_imports, reason = "the engine that drives these modules is not built in yet")]

mod error;
mod mem;
mod queue;
mod wr;

pub use error::{DeregisterError, Error, Result};
pub use mem::{Access, Buffer, FastRegion, MemoryRegion, MemoryWindow, WindowKind};
pub use queue::{Arm, Completion, CompletionChannel, CompletionOp, CompletionQueue, CqEvent, Status};
pub use wr::{BindWindow, FastRegister, Payload, RecvWr, RemoteBuffer, SendFlags, SendOp, SendWr, Sge};
