//! Windows and fast regions: bound, registered and invalidated by work request or by the peer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use iwarp::{Fault, Stag, TaggedFault};

use super::access::{Access, Who};
use super::directory::{Purpose, SlotRef};
use super::region::{Children, Kind, Region};
use super::rundown::{Edit, From, NotBegun};
use super::table::{MemoryTable, release};
use crate::error::Result;
use crate::wr::{BindWindow, FastRegister};

/// Why a window was not bound or a fast region not registered. The request completes with
/// [`Status::MwBind`](crate::Status::MwBind).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// The key's index names no window or fast region (or one of another kind).
    #[error("no such window or fast region: its key's index is unknown")]
    UnknownTarget,
    /// The local key names no valid region.
    #[error("the region to bind over is not valid: deregistered or invalidated")]
    UnknownRegion,
    /// Window, region and queue pair are not of one protection domain.
    #[error("window, region and queue pair belong to different protection domains")]
    OtherDomain,
    /// Still bound or registered; type 2 windows and fast regions are invalidated first.
    #[error("still valid: invalidate it before it is bound again")]
    StillValid,
    /// The region does not grant what this needs.
    #[error("the region lacks MW_BIND, or LOCAL_WRITE for a right to write")]
    Rights,
    /// A right that a window cannot grant.
    #[error("windows and fast regions cannot grant this set of rights")]
    Access,
    /// Outside the region, longer than allowed, or an offset that wraps.
    #[error("the range is outside the region, longer than allocated for, or wraps")]
    Bounds,
    /// Atomic rights need the tagged offset and the memory to agree modulo 8.
    #[error("atomics need the address and the memory to agree modulo 8")]
    Misaligned,
}

impl BindError {
    /// A small number for a completion's `vendor_err`.
    pub(crate) fn code(self) -> u32 {
        self as u32 + 1
    }
}

/// A new life for a window's or fast region's slot.
struct Life {
    stag: Stag,
    qp: Option<u32>,
    access: Access,
    iova: u64,
    len: u64,
    offset: usize,
}

impl MemoryTable {
    /// A slot for a window or fast region, not valid yet.
    pub(super) fn allocate(&self, purpose: Purpose) -> Result<(SlotRef, Stag)> {
        self.directory.allocate(purpose)
    }

    /// Gives such a slot back, valid or not. Called once for a slot.
    pub(super) fn deallocate(&self, slot: &SlotRef) {
        // A queued bind may change the key until the slot is ours.
        loop {
            let stag = Stag(slot.cell.tag());
            if let Ok(mut edit) = slot.cell.edit(stag.0, From::Any) {
                let before = edit.take();
                self.directory.free(slot, edit, stag);
                if let Some(before) = before {
                    release(&before);
                }
                return;
            }
        }
    }

    /// Carries a bind request out.
    ///
    /// # Errors
    /// [`BindError`]; the window is as it was.
    pub(crate) fn bind_window(&self, request: &BindWindow, who: Who) -> Result<(), BindError> {
        let stag = Stag(request.rkey);
        let (slot, purpose) = self.target(stag, who)?;
        let from = match purpose.kind {
            Kind::Window1 => From::Any,
            Kind::Window2 => From::Idle,
            Kind::Region | Kind::Fast => return Err(BindError::UnknownTarget),
        };
        if request.len == 0 {
            // A type 2 window is its queue pair's alone.
            let bound = self.enter(Stag(slot.cell.tag()));
            if bound.is_ok_and(|region| region.admit(Access::empty(), who).is_err()) {
                return Err(BindError::OtherDomain);
            }
            unbind(begin(&slot, stag, From::Any)?, stag);
            return Ok(());
        }
        let allowed = Access::REMOTE | Access::ZERO_BASED;
        if !allowed.contains(request.access) || !request.access.intersects(Access::REMOTE) {
            return Err(BindError::Access);
        }
        let parent = self.enter(Stag(request.region)).map_err(|_| BindError::UnknownRegion)?;
        if parent.kind != Kind::Region {
            return Err(BindError::UnknownRegion);
        }
        if parent.pd != who.pd {
            return Err(BindError::OtherDomain);
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if !parent.access.contains(Access::MW_BIND)
            || (request.access.intersects(writes) && !parent.access.contains(Access::LOCAL_WRITE))
        {
            return Err(BindError::Rights);
        }
        let offset = parent.locate(request.addr, request.len).map_err(|_| BindError::Bounds)?;
        let life = Life {
            stag,
            qp: (purpose.kind == Kind::Window2).then_some(who.qp_num),
            access: request.access,
            iova: if request.access.contains(Access::ZERO_BASED) { 0 } else { request.addr },
            len: request.len,
            offset,
        };
        self.give(&slot, purpose, &parent, life, from)
    }

    /// Carries a fast registration out.
    ///
    /// # Errors
    /// [`BindError`]; the fast region is as it was.
    pub(crate) fn fast_register(&self, request: &FastRegister, who: Who) -> Result<(), BindError> {
        let stag = Stag(request.rkey);
        let (slot, purpose) = self.target(stag, who)?;
        if purpose.kind != Kind::Fast {
            return Err(BindError::UnknownTarget);
        }
        if request.access.validate().is_err() || request.access.contains(Access::MW_BIND) {
            return Err(BindError::Access);
        }
        let parent = self.enter(Stag(request.region)).map_err(|_| BindError::UnknownRegion)?;
        if parent.kind != Kind::Region {
            return Err(BindError::UnknownRegion);
        }
        if parent.pd != who.pd {
            return Err(BindError::OtherDomain);
        }
        if request.access.contains(Access::LOCAL_WRITE) && !parent.access.contains(Access::LOCAL_WRITE) {
            return Err(BindError::Rights);
        }
        let zero_based = request.access.contains(Access::ZERO_BASED);
        let iova = if zero_based { 0 } else { request.iova };
        let wraps = request.len != 0 && iova.checked_add(request.len - 1).is_none();
        if request.len > purpose.max_len || wraps {
            return Err(BindError::Bounds);
        }
        let offset = parent.locate(request.addr, request.len).map_err(|_| BindError::Bounds)?;
        let life = Life { stag, qp: None, access: request.access, iova, len: request.len, offset };
        self.give(&slot, purpose, &parent, life, From::Idle)
    }

    /// Makes the slot valid for a part of `parent`, which the caller has entered.
    fn give(
        &self,
        slot: &SlotRef,
        purpose: Purpose,
        parent: &Arc<Region>,
        life: Life,
        from: From,
    ) -> Result<(), BindError> {
        let memory = parent.memory.part(life.offset);
        if life.access.contains(Access::REMOTE_ATOMIC) && memory.misalignment() != life.iova % 8 {
            return Err(BindError::Misaligned);
        }
        let serial = self.bindings.fetch_add(1, Ordering::Relaxed);
        let region = Arc::new(Region {
            slot: slot.clone(),
            stag: life.stag,
            kind: purpose.kind,
            pd: purpose.pd,
            qp: life.qp,
            access: life.access,
            iova: life.iova,
            len: life.len,
            memory,
            parent: Some((Arc::clone(parent), serial)),
            children: Children::default().into(),
        });
        {
            let mut children = parent.children();
            if children.closed {
                return Err(BindError::UnknownRegion);
            }
            children.bound.insert(serial, life.stag);
        }
        let mut edit = begin(slot, life.stag, from).inspect_err(|_| release(&region))?;
        let before = edit.take();
        edit.publish(life.stag.0, region);
        if let Some(before) = before {
            release(&before);
        }
        Ok(())
    }

    /// The window or fast region that a new key's index names.
    fn target(&self, stag: Stag, who: Who) -> Result<(SlotRef, Purpose), BindError> {
        let slot = self.directory.find_ref(stag).ok_or(BindError::UnknownTarget)?;
        // `begin` looks at the index again, so the purpose read between is this allocation's.
        if slot.cell.tag() >> 8 != stag.0 >> 8 {
            return Err(BindError::UnknownTarget);
        }
        let purpose = slot.purpose();
        if purpose.pd != who.pd {
            return Err(BindError::OtherDomain);
        }
        Ok((slot, purpose))
    }

    /// A peer's Send with Invalidate. RFC 5040 §5.3 leaves to us what may be invalidated: type 2 windows of
    /// this queue pair, fast regions, and regions registered with `REMOTE_INVALIDATE`.
    ///
    /// # Errors
    /// [`Fault::Invalidate`].
    pub(crate) fn invalidate_remote(&self, stag: Stag, who: Who) -> Result<(), Fault> {
        let refused = Fault::Invalidate(stag);
        {
            let region = self.enter(stag).map_err(|_| refused)?;
            // rule 5040-5.3-5
            region.admit(Access::empty(), who).map_err(|_| refused)?;
            match region.kind {
                Kind::Window2 | Kind::Fast => {}
                Kind::Region if region.access.contains(Access::REMOTE_INVALIDATE) => {
                    if !region.children().bound.is_empty() {
                        return Err(refused);
                    }
                }
                Kind::Region | Kind::Window1 => return Err(refused),
            }
        }
        if self.withdraw(stag) { Ok(()) } else { Err(refused) }
    }

    /// A local invalidate request, or the second half of a Read with Invalidate: type 2 windows of this
    /// queue pair, fast regions, and regions without windows bound over them.
    ///
    /// # Errors
    /// As [`Self::check`]; `Access` for type 1 windows and regions with windows.
    pub(crate) fn invalidate_local(&self, stag: Stag, who: Who) -> Result<(), TaggedFault> {
        {
            let region = self.enter(stag)?;
            region.admit(Access::empty(), who)?;
            let bound = region.kind == Kind::Region && !region.children().bound.is_empty();
            if region.kind == Kind::Window1 || bound {
                return Err(TaggedFault::Access);
            }
        }
        if self.withdraw(stag) { Ok(()) } else { Err(TaggedFault::InvalidStag) }
    }
}

/// Begins to change the slot whatever its present key, if it still has the index.
fn begin(slot: &SlotRef, stag: Stag, from: From) -> Result<Edit<'_, Arc<Region>>, BindError> {
    loop {
        let tag = slot.cell.tag();
        if tag >> 8 != stag.0 >> 8 {
            return Err(BindError::UnknownTarget);
        }
        match slot.cell.edit(tag, from) {
            Ok(edit) => return Ok(edit),
            Err(NotBegun::State) => return Err(BindError::StillValid),
            Err(NotBegun::Tag) => {}
        }
    }
}

fn unbind(mut edit: Edit<'_, Arc<Region>>, stag: Stag) {
    let before = edit.take();
    edit.idle(stag.0);
    if let Some(before) = before {
        release(&before);
    }
}
