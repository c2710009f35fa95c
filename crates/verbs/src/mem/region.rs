//! One life of a steering tag: the bytes, rights and owner that it stands for; grants and segments.
#![expect(unsafe_code, reason = "registered memory is reached by raw pointers only, never by slices")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iwarp::{Stag, TaggedFault};

use super::access::{Access, Who};
use super::buffer::Buffer;
use super::checked::{self, Checked};
use super::copy;
use super::directory::SlotRef;
use super::rundown::Entered;
use crate::error::{Error, Result};

/// Where a region's bytes come from.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Memory that lives as long as any region over it.
    Owned(Arc<Buffer>),
    /// The caller's memory.
    Raw(RawMemory),
}

/// Memory that its caller vouches for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawMemory {
    base: *mut u8,
    len: usize,
}

// SAFETY: the maker of a RawMemory vouches for access from any thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above.
unsafe impl Sync for RawMemory {}

impl Backing {
    /// Memory of the application.
    ///
    /// # Safety
    /// Until the region is deregistered or dropped (and no Segment or Grant of it is left entered),
    /// `base..base+len` must be readable by any thread, and writable where the region's access has
    /// `LOCAL_WRITE`, and be accessed otherwise only as memory shared with a device: no Rust reference to it
    /// is in use while peers or work requests access it. If it is unmapped before, plain copies fault as any
    /// access to it does; [`Grant::copy_in_checked`] reports it instead.
    pub(crate) unsafe fn raw(base: *mut u8, len: usize) -> Self {
        Self::Raw(RawMemory { base, len })
    }

    pub(super) fn base(&self) -> *mut u8 {
        match self {
            Self::Owned(buffer) => buffer.base(),
            Self::Raw(raw) => raw.base,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Owned(buffer) => buffer.len(),
            Self::Raw(raw) => raw.len,
        }
    }
}

/// What kind of object owns a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A memory region.
    Region,
    /// Registered by work request.
    Fast,
    /// Type 1 memory window: belongs to its protection domain.
    Window1,
    /// Type 2 memory window: belongs to the queue pair that bound it.
    Window2,
}

/// What a valid steering tag stands for; never changed while it is valid.
#[derive(Debug)]
pub(crate) struct Region {
    pub(super) slot: SlotRef,
    pub(super) stag: Stag,
    pub(super) kind: Kind,
    pub(super) pd: u32,
    /// The queue pair that a type 2 window is bound to.
    pub(super) qp: Option<u32>,
    pub(super) access: Access,
    /// Tagged offset of the first byte.
    pub(super) iova: u64,
    pub(super) len: u64,
    pub(super) memory: Span,
    /// The region that a window or fast region was given its bytes from, and the binding's serial number.
    pub(super) parent: Option<(Arc<Self>, u64)>,
    pub(super) children: Mutex<Children>,
}

/// The bytes, and what keeps them.
#[derive(Debug)]
pub(super) struct Span {
    backing: Backing,
    /// Offset within the backing.
    at: usize,
}

impl Span {
    /// All of it.
    pub(super) fn whole(backing: Backing) -> Self {
        Self { backing, at: 0 }
    }

    /// The same memory, `offset` bytes on; the caller has checked that it is inside.
    pub(super) fn part(&self, offset: usize) -> Self {
        debug_assert!(self.at + offset <= self.backing.len());
        Self { backing: self.backing.clone(), at: self.at + offset }
    }

    fn base(&self) -> *mut u8 {
        self.backing.base().wrapping_add(self.at)
    }

    fn is_raw(&self) -> bool {
        matches!(self.backing, Backing::Raw(_))
    }

    /// The buffer, where it is one of ours.
    pub(super) fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.backing {
            Backing::Owned(buffer) => Some(buffer),
            Backing::Raw(_) => None,
        }
    }

    /// Address modulo 8.
    pub(super) fn misalignment(&self) -> u64 {
        (self.base().addr() % 8) as u64
    }
}

/// Windows bound and fast regions mapped over a region.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// Their tags, by the serial number of the binding.
    pub(super) bound: HashMap<u64, Stag>,
    /// Being deregistered: takes no more.
    pub(super) closed: bool,
}

impl Region {
    pub(super) fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stag(&self) -> Stag {
        self.stag
    }

    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// Whether the tag still stands for this region.
    pub(crate) fn is_valid(&self) -> bool {
        self.slot.cell.is_valid(self.stag.0)
    }

    /// The offset of `to` within the region, if `len` bytes from there are inside. RFC 5041 §7.1.
    #[inline]
    pub(super) fn locate(&self, to: u64, len: u64) -> Result<usize, TaggedFault> {
        // A range may end at 2^64 exactly.
        if len != 0 && to.checked_add(len - 1).is_none() {
            // rule 5041-7.1-4
            return Err(TaggedFault::Wrap);
        }
        // rule 5041-7.1-3, 5040-8.1.1-3, 5041-8.3-1
        let offset = to.checked_sub(self.iova).ok_or(TaggedFault::Bounds)?;
        match self.len.checked_sub(offset) {
            Some(room) if room >= len => Ok(offset as usize),
            _ => Err(TaggedFault::Bounds),
        }
    }

    /// May `who` do what `need` says? RFC 5040 §8.1, RFC 5041 §8.2.
    #[inline]
    pub(super) fn admit(&self, need: Access, who: Who) -> Result<(), TaggedFault> {
        // rule 5041-7.1-2, 5041-8.2-1, 5040-8.1.1-1, 5040-8.1.1-9
        if self.pd != who.pd || self.qp.is_some_and(|qp| qp != who.qp_num) {
            return Err(TaggedFault::NotAssociated);
        }
        // rule 5040-8.1.1-2, 5040-5.1-3
        if !self.access.contains(need) {
            return Err(TaggedFault::Access);
        }
        Ok(())
    }

    #[inline]
    fn ptr(&self, offset: usize) -> *mut u8 {
        self.memory.base().wrapping_add(offset)
    }

    fn bound(&self, offset: u64, len: usize) -> Result<*mut u8> {
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        if !fits {
            return Err(Error::OutOfRange { offset, len: len as u64, size: self.len });
        }
        Ok(self.ptr(offset as usize))
    }

    /// The owner's own access: bounds only. The owner's handle keeps the memory, valid tag or not.
    pub(super) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.bound(offset, bytes.len())?;
        // SAFETY: in bounds; the memory is kept by `self` (owned) or by the promise of `Backing::raw`.
        unsafe { copy::copy_ascending(bytes, at) };
        Ok(())
    }

    pub(super) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let at = self.bound(offset, bytes.len())?;
        // SAFETY: as in `write_at`.
        unsafe { copy::copy_from(at, bytes) };
        Ok(())
    }

    pub(super) fn fill(&self, offset: u64, len: usize, byte: u8) -> Result<()> {
        let at = self.bound(offset, len)?;
        // SAFETY: as in `write_at`.
        unsafe { copy::fill(at, byte, len) };
        Ok(())
    }

    pub(super) fn atomic_at(&self, offset: u64) -> Result<&std::sync::atomic::AtomicU64> {
        let at = self.bound(offset, 8)?;
        // SAFETY: as in `write_at`; the memory outlives the borrow of `self`.
        unsafe { copy::atomic(at) }.ok_or_else(|| Error::Misaligned { addr: at.addr() as u64 })
    }
}

/// A right to touch some bytes now: their steering tag cannot be withdrawn while it lives.
///
/// Short-lived: a thread that holds one must not register, bind, invalidate or deregister, and must not block.
#[derive(Debug)]
pub(crate) struct Grant<'a> {
    /// Keeps the steering tag from being withdrawn.
    entered: Entered<'a, Arc<Region>>,
    ptr: *mut u8,
    len: usize,
}

impl<'a> Grant<'a> {
    #[inline]
    pub(super) fn new(entered: Entered<'a, Arc<Region>>, offset: usize, len: usize) -> Self {
        let ptr = entered.ptr(offset);
        debug_assert!(offset as u64 + len as u64 <= entered.len);
        Self { entered, ptr, len }
    }

    /// Bytes granted.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte, valid for [`Self::len`] bytes while the grant lives; for system calls and checksums.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the grant");
        self.ptr.wrapping_add(offset)
    }

    /// Copies into the memory, `offset` bytes into the grant, in ascending order.
    ///
    /// # Panics
    /// When outside the grant.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let at = self.at(offset, bytes.len());
        // SAFETY: in bounds, and the entered region keeps the memory.
        unsafe { copy::copy_ascending(bytes, at) }
    }

    /// Copies out of the memory, from `offset` bytes into the grant.
    ///
    /// # Panics
    /// When outside the grant.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let at = self.at(offset, bytes.len());
        // SAFETY: in bounds, and the entered region keeps the memory.
        unsafe { copy::copy_from(at, bytes) }
    }

    /// [`Self::copy_in`] that survives memory which the application has unmapped or made read-only: the
    /// kernel copies where the memory is the caller's own. Costs a system call then.
    ///
    /// # Errors
    /// [`TaggedFault::Unreachable`]; part of the bytes may have been copied.
    ///
    /// # Panics
    /// When outside the grant.
    pub(crate) fn copy_in_checked(&self, offset: usize, bytes: &[u8]) -> Result<(), TaggedFault> {
        let at = self.at(offset, bytes.len());
        if self.entered.memory.is_raw() && !bytes.is_empty() {
            match checked::write(bytes, at) {
                Checked::Done => return Ok(()),
                Checked::Fault => return Err(TaggedFault::Unreachable),
                Checked::Unavailable => {}
            }
        }
        self.copy_in(offset, bytes);
        Ok(())
    }

    /// [`Self::copy_out`] in the same manner as [`Self::copy_in_checked`].
    ///
    /// # Errors
    /// [`TaggedFault::Unreachable`]; part of the bytes may have been copied.
    ///
    /// # Panics
    /// When outside the grant.
    pub(crate) fn copy_out_checked(&self, offset: usize, bytes: &mut [u8]) -> Result<(), TaggedFault> {
        let at = self.at(offset, bytes.len());
        if self.entered.memory.is_raw() && !bytes.is_empty() {
            match checked::read(at, bytes) {
                Checked::Done => return Ok(()),
                Checked::Fault => return Err(TaggedFault::Unreachable),
                Checked::Unavailable => {}
            }
        }
        self.copy_out(offset, bytes);
        Ok(())
    }

    /// Appends all of the memory to `out`, as [`Self::copy_out_checked`] copies it.
    ///
    /// # Errors
    /// [`TaggedFault::Unreachable`]; `out` is as it was then.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) -> Result<(), TaggedFault> {
        let start = out.len();
        if self.entered.memory.is_raw() {
            out.resize(start + self.len, 0);
            return self.copy_out_checked(0, &mut out[start..]).inspect_err(|_| out.truncate(start));
        }
        out.reserve(self.len);
        let room = &mut out.spare_capacity_mut()[..self.len];
        // SAFETY: the entered region keeps `len` readable bytes at `ptr`; `room` has as many, and no part
        // of a region is ever part of a vector of ours.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, room.as_mut_ptr().cast(), self.len) };
        // SAFETY: these bytes were just written.
        unsafe { out.set_len(start + self.len) };
        Ok(())
    }

    /// Replaces the eight bytes at `offset` by `f` of them, atomically; returns the former value (native
    /// byte order).
    ///
    /// # Errors
    /// [`TaggedFault::Bounds`] outside the grant, [`TaggedFault::Access`] when the memory itself is not
    /// 8-byte aligned there, [`TaggedFault::Unreachable`] where the application has unmapped it or made it
    /// read-only. Whether it has is looked at just before: an unmapping at the very moment is a crash.
    pub(crate) fn atomic_u64(&self, offset: usize, f: impl Fn(u64) -> u64) -> Result<u64, TaggedFault> {
        use std::sync::atomic::Ordering::{AcqRel, Acquire};
        if offset.checked_add(8).is_none_or(|end| end > self.len) {
            return Err(TaggedFault::Bounds);
        }
        if self.entered.memory.is_raw() && checked::writable(self.at(offset, 8)) == Checked::Fault {
            return Err(TaggedFault::Unreachable);
        }
        // SAFETY: in bounds, and the entered region keeps the memory for as long as `self` lives.
        let word = unsafe { copy::atomic(self.at(offset, 8)) }.ok_or(TaggedFault::Access)?;
        match word.fetch_update(AcqRel, Acquire, |old| Some(f(old))) {
            Ok(old) | Err(old) => Ok(old),
        }
    }
}

/// Local memory of a work request: checked when posted, entered again at each use.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    region: Arc<Region>,
    offset: usize,
    len: u32,
}

impl Segment {
    pub(super) fn new(region: Arc<Region>, offset: usize, len: u32) -> Self {
        Self { region, offset, len }
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// `len` of its bytes from `offset` on.
    ///
    /// # Errors
    /// [`TaggedFault::Bounds`] when outside the segment.
    pub(crate) fn part(&self, offset: usize, len: u32) -> Result<Self, TaggedFault> {
        match (self.len as usize).checked_sub(offset) {
            Some(room) if room >= len as usize => {
                Ok(Self { region: Arc::clone(&self.region), offset: self.offset + offset, len })
            }
            _ => Err(TaggedFault::Bounds),
        }
    }

    /// The region that it is part of.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Its bytes, if the region is still valid.
    ///
    /// # Errors
    /// [`TaggedFault::InvalidStag`] once the region was invalidated or deregistered.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Grant<'_>, TaggedFault> {
        self.enter_part(0, self.len as usize)
    }

    /// `len` of its bytes from `offset` on, if the region is still valid.
    ///
    /// # Errors
    /// As [`Self::enter`]; [`TaggedFault::Bounds`] when outside the segment.
    #[inline]
    pub(crate) fn enter_part(&self, offset: usize, len: usize) -> Result<Grant<'_>, TaggedFault> {
        if offset.checked_add(len).is_none_or(|end| end > self.len as usize) {
            return Err(TaggedFault::Bounds);
        }
        let cell = &self.region.slot.cell;
        let entered = cell.enter(self.region.stag.0).ok_or(TaggedFault::InvalidStag)?;
        Ok(Grant::new(entered, self.offset + offset, len))
    }
}
