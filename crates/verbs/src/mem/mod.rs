//! Registered memory: who may touch which bytes through which steering tag.
//!
//! ```text
//!   STag -> directory (index -> slot) -> slot's rundown word (key valid? then enter) -> Region -> bytes
//! ```
//!
//! Whoever touches bytes on behalf of a peer or a work request has *entered* the slot; withdrawing an
//! STag bars the entrance and waits until everyone has left. So nothing is placed after a deregistration
//! returns, and the fields of a region can be read without a lock.
//!
//! All unsafe code that reaches registered bytes is in this folder.

mod access;
mod bind;
mod buffer;
mod checked;
mod copy;
mod directory;
mod handle;
mod raw;
mod region;
mod rundown;
mod table;
mod window;

#[cfg(test)]
mod tests;

pub use access::Access;
pub(crate) use access::Who;
pub use buffer::Buffer;
pub use handle::MemoryRegion;
pub(crate) use region::{Backing, Grant, Segment};
pub(crate) use table::MemoryTable;
pub use window::{FastRegion, MemoryWindow, WindowKind};
