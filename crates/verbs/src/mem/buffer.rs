//! Memory that registrations own.
#![expect(unsafe_code, reason = "maps and unmaps memory")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// Alignment of mapped memory, and the address of memory of no length.
const PAGE: usize = 4096;

/// Owned memory for registration. Its bytes are reached by copy through
/// [`MemoryRegion`](crate::MemoryRegion), never as a slice, since peers may change them at any time.
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    /// No bytes, nothing to free.
    Nothing,
    /// A mapping of our own; memfd-backed ones keep the descriptor.
    Mapping(Option<OwnedFd>),
    /// The parts of a `Vec` (capacity).
    Heap(usize),
}

// SAFETY: the pointer is to memory that this object owns; moving it to another thread moves nothing else.
unsafe impl Send for Buffer {}
// SAFETY: through `&Buffer` bytes are only copied or accessed as atomics by raw pointer, as by a device.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes, page-aligned.
    ///
    /// # Errors
    /// [`Error::Os`] when the system has no memory.
    pub fn zeroed(len: usize) -> Result<Self> {
        if len == 0 {
            return Ok(Self::empty());
        }
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|e| Error::os("mapping memory for a region", e))?;
        Ok(Self::mapping(base.cast(), len, None))
    }

    /// `len` zero bytes that other processes can map too, through [`Self::memfd_fd`].
    ///
    /// The size is sealed, so that nobody who holds the descriptor can cut the memory off.
    ///
    /// # Errors
    /// [`Error::Os`] when the system has no memory or descriptors.
    pub fn memfd(len: usize) -> Result<Self> {
        let os = |what| move |e: rustix::io::Errno| Error::os(what, e);
        let fd = rustix::fs::memfd_create("rnic-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(os("creating a memfd for a region"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(os("sizing a memfd for a region"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(os("sealing a memfd for a region"))?;
        if len == 0 {
            return Ok(Self { owner: Owner::Mapping(Some(fd)), ..Self::empty() });
        }
        // SAFETY: as in `zeroed`; the file's size is sealed, so the mapping cannot lose its pages.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .map_err(os("mapping a memfd for a region"))?;
        Ok(Self::mapping(base.cast(), len, Some(fd)))
    }

    fn empty() -> Self {
        let base = NonNull::without_provenance(std::num::NonZero::new(PAGE).expect("not zero"));
        Self { base, len: 0, owner: Owner::Nothing }
    }

    fn mapping(base: *mut u8, len: usize, fd: Option<OwnedFd>) -> Self {
        let base = NonNull::new(base).expect("the kernel maps nothing at address 0 unasked");
        Self { base, len, owner: Owner::Mapping(fd) }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The descriptor of [`Self::memfd`] memory.
    pub fn memfd_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.owner {
            Owner::Mapping(fd) => fd.as_ref().map(AsFd::as_fd),
            _ => None,
        }
    }

    /// The first byte.
    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl From<Vec<u8>> for Buffer {
    /// Takes the vector's bytes, without copying them.
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        if bytes.capacity() == 0 {
            return Self::empty();
        }
        let base = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is not null");
        Self { base, len: bytes.len(), owner: Owner::Heap(bytes.capacity()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.owner {
            Owner::Nothing => {}
            Owner::Mapping(_) if self.len == 0 => {}
            // SAFETY: our own mapping of this length, unmapped once; registrations hold the Buffer by `Arc`.
            Owner::Mapping(_) => match unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
                Ok(()) => {}
                Err(e) => tracing::error!("unmapping a region: {e}"),
            },
            Owner::Heap(capacity) => {
                // SAFETY: the parts of the vector that `from` took apart.
                drop(unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.len, capacity) });
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("base", &self.base).field("len", &self.len).finish_non_exhaustive()
    }
}
