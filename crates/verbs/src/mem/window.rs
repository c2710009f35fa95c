//! The application's hold on memory windows and fast regions.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use iwarp::Stag;

use super::access::Access;
use super::directory::{Purpose, SlotRef};
use super::handle::MemoryRegion;
use super::region::Kind;
use super::table::MemoryTable;
use crate::error::{Error, Result};
use crate::wr::{BindWindow, FastRegister, RemoteBuffer, SendOp, Sge};

/// Who may use a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowKind {
    /// Any queue pair of the protection domain.
    Type1,
    /// The queue pair on which it was bound; may be invalidated by work request and by that peer.
    Type2,
}

/// An allocated slot with the keys it hands out.
struct Handle {
    table: Arc<MemoryTable>,
    slot: SlotRef,
    pd: u32,
    /// Index part of all its tags.
    index: u32,
    /// Key last handed out.
    key: AtomicU8,
}

impl Handle {
    fn allocate(table: &Arc<MemoryTable>, purpose: Purpose) -> Result<Self> {
        let (slot, stag) = table.allocate(purpose)?;
        let key = AtomicU8::new(stag.0 as u8);
        Ok(Self { table: table.clone(), slot, pd: purpose.pd, index: stag.0 & !0xff, key })
    }

    /// The tag for the next binding; each call gives another.
    fn next(&self) -> u32 {
        self.index | u32::from(self.key.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    /// The tag that is or was last valid.
    fn stag(&self) -> Stag {
        Stag(self.slot.cell.tag())
    }

    fn is_valid(&self) -> bool {
        self.slot.cell.is_valid(self.stag().0)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.table.home.is_here() {
            self.table.deallocate(&self.slot);
        }
    }
}

/// The part `offset..offset + len` of a region as `(address, length)`.
fn part(region: &MemoryRegion, offset: u64, len: u64) -> Result<u64> {
    if offset.checked_add(len).is_none_or(|end| end > region.len()) {
        return Err(Error::OutOfRange { offset, len, size: region.len() });
    }
    Ok(region.addr().wrapping_add(offset))
}

/// A memory window: lends a part of a region to peers under a key of its own that is cheap to change.
///
/// Bound and unbound by requests on a send queue, in order with others. Dropped, it is invalid.
pub struct MemoryWindow {
    handle: Handle,
    kind: WindowKind,
}

impl MemoryWindow {
    pub(crate) fn allocate(table: &Arc<MemoryTable>, pd: u32, kind: WindowKind) -> Result<Self> {
        let slot = match kind {
            WindowKind::Type1 => Kind::Window1,
            WindowKind::Type2 => Kind::Window2,
        };
        Ok(Self { handle: Handle::allocate(table, Purpose { kind: slot, pd, max_len: 0 })?, kind })
    }

    /// Type 1 or 2.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// The key that is or was last bound.
    pub fn rkey(&self) -> u32 {
        self.handle.stag().0
    }

    /// Whether peers can use it now.
    pub fn is_bound(&self) -> bool {
        self.handle.is_valid()
    }

    /// A request that binds the window to `len` bytes of `region` from `offset` on, under a new key, and
    /// what a peer needs to know once the request has completed. A type 2 window must be invalid then; a
    /// type 1 window is moved.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::OtherDomain`]; [`Error::AccessRights`] when the region or windows at
    /// all cannot lend these rights.
    pub fn bind(
        &self,
        region: &MemoryRegion,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<(SendOp, RemoteBuffer)> {
        if region.region.pd() != self.handle.pd {
            return Err(Error::OtherDomain);
        }
        let addr = part(region, offset, len)?;
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let why = if !(Access::REMOTE | Access::ZERO_BASED).contains(access)
            || !access.intersects(Access::REMOTE)
        {
            "a window grants REMOTE_READ, REMOTE_WRITE and REMOTE_ATOMIC, and may be ZERO_BASED"
        } else if !region.access().contains(Access::MW_BIND) {
            "the region was registered without MW_BIND"
        } else if writes && !region.access().contains(Access::LOCAL_WRITE) {
            "the region was registered without LOCAL_WRITE"
        } else {
            let rkey = self.handle.next();
            let base = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
            let op = BindWindow { rkey, region: region.lkey(), addr, len, access };
            return Ok((SendOp::BindWindow(op), RemoteBuffer { rkey, addr: base, len }));
        };
        Err(Error::AccessRights { access, why })
    }

    /// A request that unbinds the window.
    pub fn unbind(&self) -> SendOp {
        SendOp::BindWindow(BindWindow {
            rkey: self.handle.next(),
            region: 0,
            addr: 0,
            len: 0,
            access: Access::empty(),
        })
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("kind", &self.kind)
            .field("rkey", &self.handle.stag())
            .field("bound", &self.is_bound())
            .finish_non_exhaustive()
    }
}

/// A region that gets its memory, rights and key by a work request, in order with others, and loses them by
/// invalidation. Dropped, it is invalid.
pub struct FastRegion {
    handle: Handle,
    max_len: u64,
}

impl FastRegion {
    pub(crate) fn allocate(table: &Arc<MemoryTable>, pd: u32, max_len: u64) -> Result<Self> {
        let handle = Handle::allocate(table, Purpose { kind: Kind::Fast, pd, max_len })?;
        Ok(Self { handle, max_len })
    }

    /// Most bytes that it can be given.
    pub fn max_len(&self) -> u64 {
        self.max_len
    }

    /// The key, local and remote, that is or was last registered.
    pub fn rkey(&self) -> u32 {
        self.handle.stag().0
    }

    /// Whether it has memory now.
    pub fn is_valid(&self) -> bool {
        self.handle.is_valid()
    }

    /// A request that gives it `len` bytes of `region` from `offset` on, under a new key, and what a peer
    /// needs to know once the request has completed. `iova` is the address of the first byte under that key;
    /// `None`: as in `region`. It must be invalid when the request is carried out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] (also beyond [`Self::max_len`]), [`Error::OtherDomain`], [`Error::AccessRights`].
    pub fn register(
        &self,
        region: &MemoryRegion,
        offset: u64,
        len: u64,
        access: Access,
        iova: Option<u64>,
    ) -> Result<(SendOp, RemoteBuffer)> {
        access.validate()?;
        if region.region.pd() != self.handle.pd {
            return Err(Error::OtherDomain);
        }
        if len > self.max_len {
            return Err(Error::OutOfRange { offset: 0, len, size: self.max_len });
        }
        let addr = part(region, offset, len)?;
        if access.contains(Access::LOCAL_WRITE) && !region.access().contains(Access::LOCAL_WRITE) {
            return Err(Error::AccessRights { access, why: "the region was registered without LOCAL_WRITE" });
        }
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova.unwrap_or(addr) };
        let rkey = self.handle.next();
        let op = FastRegister { rkey, region: region.lkey(), addr, len, iova, access };
        Ok((SendOp::FastRegister(op), RemoteBuffer { rkey, addr: iova, len }))
    }

    /// A request that takes its memory away from the key `rkey` (that of [`Self::register`]).
    pub fn invalidate(&self, rkey: u32) -> SendOp {
        SendOp::LocalInvalidate(rkey)
    }
}

impl RemoteBuffer {
    /// The same bytes as an element of a work request of the side that registered them; not for windows.
    pub fn as_local(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset), len, lkey: self.rkey }
    }
}

impl fmt::Debug for FastRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastRegion")
            .field("rkey", &self.handle.stag())
            .field("valid", &self.is_valid())
            .field("max_len", &self.max_len)
            .finish_non_exhaustive()
    }
}
