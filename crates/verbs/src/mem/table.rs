//! A device's table of registered memory: registration, checks and placement.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use iwarp::{Stag, TaggedFault};

use super::access::{Access, Who};
use super::directory::{Directory, MAX_REGIONS, Purpose, Slot};
use super::region::{Backing, Children, Grant, Kind, Region, Segment, Span};
use super::rundown::{Entered, From};
use crate::error::{Error, Result};
use crate::home::Home;

/// All registered memory of a device, by steering tag.
#[derive(Debug)]
pub(crate) struct MemoryTable {
    pub(super) home: Home,
    pub(super) directory: Directory,
    /// Serial number of the next binding.
    pub(super) bindings: AtomicU64,
}

impl MemoryTable {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self::with_limit(MAX_REGIONS)
    }

    /// An empty table for fewer regions than there can be.
    pub(crate) fn with_limit(limit: usize) -> Self {
        Self { home: Home::here(), directory: Directory::new(limit), bindings: AtomicU64::new(0) }
    }

    /// Regions, windows and fast regions that exist.
    #[allow(dead_code, reason = "used by tests")]
    pub(crate) fn len(&self) -> usize {
        self.directory.len()
    }

    /// Registers memory. `iova` is the tagged offset of its first byte; `None`: its address.
    pub(super) fn register(
        &self,
        pd: u32,
        backing: Backing,
        access: Access,
        iova: Option<u64>,
    ) -> Result<Arc<Region>> {
        access.validate()?;
        let len = backing.len() as u64;
        let iova = match iova {
            _ if access.contains(Access::ZERO_BASED) => 0,
            Some(iova) => iova,
            None => backing.base().addr() as u64,
        };
        if len != 0 && iova.checked_add(len - 1).is_none() {
            return Err(Error::OutOfRange { offset: iova, len, size: u64::MAX });
        }
        let memory = Span::whole(backing);
        if access.contains(Access::REMOTE_ATOMIC) && memory.misalignment() != iova % 8 {
            let why = "REMOTE_ATOMIC needs the memory's address and its iova to agree modulo 8";
            return Err(Error::AccessRights { access, why });
        }
        let (slot, stag) = self.directory.allocate(Purpose { kind: Kind::Region, pd, max_len: 0 })?;
        let region = Arc::new(Region {
            slot,
            stag,
            kind: Kind::Region,
            pd,
            qp: None,
            access,
            iova,
            len,
            memory,
            parent: None,
            children: Children::default().into(),
        });
        match region.slot.cell.edit(stag.0, From::Idle) {
            Ok(edit) => edit.publish(stag.0, region.clone()),
            Err(e) => unreachable!("nobody else knows the new tag: {e:?}"),
        }
        Ok(region)
    }

    /// Withdraws a region: afterwards nothing is placed in it or read from it.
    ///
    /// # Errors
    /// [`Error::RegionBusy`] while windows or fast regions refer to it; nothing has changed then.
    pub(super) fn deregister(&self, region: &Region) -> Result<()> {
        // Threads of the parent that were inside at the fork never leave in the child.
        self.home.check()?;
        {
            let mut children = region.children();
            if !children.bound.is_empty() {
                return Err(Error::RegionBusy { bound: children.bound.len() });
            }
            children.closed = true;
        }
        self.force_deregister(region);
        Ok(())
    }

    /// Withdraws a region and all that is bound over it. Called once for a region.
    pub(super) fn force_deregister(&self, region: &Region) {
        if !self.home.is_here() {
            return;
        }
        region.children().closed = true;
        let slot = &region.slot;
        let mut edit = match slot.cell.edit(region.stag.0, From::Any) {
            Ok(edit) => edit,
            Err(e) => unreachable!("only its owner frees a region's slot, once: {e:?}"),
        };
        // Whoever binds has entered the region, and new ones see it closed: the list is complete now.
        let children: Vec<Stag> = region.children().bound.values().copied().collect();
        for child in children {
            self.withdraw(child);
        }
        let registered = edit.take();
        self.directory.free(slot, edit, region.stag);
        drop(registered);
    }

    /// Makes a valid tag invalid and waits until nobody uses it. False: it was not valid.
    pub(super) fn withdraw(&self, stag: Stag) -> bool {
        let Some(slot) = self.directory.find(stag) else { return false };
        // rule 5041-8.2-2, 5040-8.1.1-4
        let Ok(mut edit) = slot.cell.edit(stag.0, From::Valid) else { return false };
        let before = edit.take();
        drop(edit);
        before.inspect(|region| release(region)).is_some()
    }

    #[inline]
    pub(super) fn enter(&self, stag: Stag) -> Result<Entered<'_, Arc<Region>>, TaggedFault> {
        self.directory
            .find(stag)
            // rule 5041-7.1-1, 5041-8.2-2, 5040-8.1.1-4
            .and_then(|slot: &Slot| slot.cell.enter(stag.0))
            .ok_or(TaggedFault::InvalidStag)
    }

    /// May `who` do `need` to the `len` bytes at (`stag`, `to`)? The grant keeps the tag from being withdrawn.
    ///
    /// # Errors
    /// Looked for in this order: `InvalidStag`, `NotAssociated`, `Access`, `Wrap`, `Bounds`.
    #[inline]
    pub(crate) fn check(
        &self,
        stag: Stag,
        to: u64,
        len: u64,
        need: Access,
        who: Who,
    ) -> Result<Grant<'_>, TaggedFault> {
        let region = self.enter(stag)?;
        region.admit(need, who)?;
        let offset = region.locate(to, len)?;
        Ok(Grant::new(region, offset, len as usize))
    }

    /// Checks a peer's Write and copies its bytes in ascending order.
    ///
    /// # Errors
    /// As [`Self::check`]; nothing is copied then.
    #[inline]
    pub(crate) fn place(&self, stag: Stag, to: u64, bytes: &[u8], who: Who) -> Result<(), TaggedFault> {
        self.check(stag, to, bytes.len() as u64, Access::REMOTE_WRITE, who)?.copy_in_checked(0, bytes)
    }

    /// Checks a peer's Read and copies its bytes out.
    ///
    /// # Errors
    /// As [`Self::check`]; nothing is copied then.
    #[allow(dead_code, reason = "used by tests")]
    pub(crate) fn fetch(&self, stag: Stag, to: u64, bytes: &mut [u8], who: Who) -> Result<(), TaggedFault> {
        self.check(stag, to, bytes.len() as u64, Access::REMOTE_READ, who)?.copy_out(0, bytes);
        Ok(())
    }

    /// As [`Self::check`], for memory that is needed for longer than a moment: it is entered at each use.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn remote_segment(
        &self,
        stag: Stag,
        to: u64,
        len: u32,
        need: Access,
        who: Who,
    ) -> Result<Segment, TaggedFault> {
        let region = self.enter(stag)?;
        region.admit(need, who)?;
        let offset = region.locate(to, u64::from(len))?;
        Ok(Segment::new(Arc::clone(&region), offset, len))
    }

    /// Checks one element of a work request's local memory.
    ///
    /// # Errors
    /// As [`Self::check`]; a window's key is no local key (`InvalidStag`).
    #[inline]
    pub(crate) fn local(
        &self,
        lkey: u32,
        addr: u64,
        len: u32,
        need_local_write: bool,
        pd: u32,
    ) -> Result<Segment, TaggedFault> {
        let region = self.enter(Stag(lkey))?;
        if matches!(region.kind, Kind::Window1 | Kind::Window2) {
            return Err(TaggedFault::InvalidStag);
        }
        let need = if need_local_write { Access::LOCAL_WRITE } else { Access::empty() };
        region.admit(need, Who { pd, qp_num: 0 })?;
        let offset = region.locate(addr, u64::from(len))?;
        Ok(Segment::new(Arc::clone(&region), offset, len))
    }
}

/// A withdrawn window or fast region no longer counts for the region it was bound over.
pub(super) fn release(region: &Region) {
    if let Some((parent, serial)) = &region.parent {
        parent.children().bound.remove(serial);
    }
}
