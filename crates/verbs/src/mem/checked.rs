//! Copies that report unreachable memory instead of dying of it.
#![expect(unsafe_code, reason = "asks the kernel to copy to and from raw addresses")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How a copy by the kernel went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checked {
    /// All bytes.
    Done,
    /// Some of the memory is not mapped, or not with the needed protection.
    Fault,
    /// The kernel does not copy for us here (a sandbox forbids it).
    Unavailable,
}

/// Set once the kernel has refused as such; it will not change its mind.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Copies `bytes` to `to`, which may be any address.
pub(super) fn write(bytes: &[u8], to: *mut u8) -> Checked {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: to.cast(), iov_len: bytes.len() };
    // SAFETY: reads `bytes` only; `to` is checked by the kernel as an address of another process would be.
    // Whoever calls has a grant for `to`, so what is overwritten there is registered memory.
    transfer(bytes.len(), || unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) })
}

/// Copies to `bytes` from `from`, which may be any address.
pub(super) fn read(from: *const u8, bytes: &mut [u8]) -> Checked {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: writes `bytes` only, for their length; `from` is checked by the kernel.
    transfer(bytes.len(), || unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) })
}

/// Looks whether the eight bytes at `at`, which may be any address, can be read and written now; changes
/// nothing.
pub(super) fn writable(at: *mut u8) -> Checked {
    match populate(at) {
        Ok(()) => return Checked::Done,
        Err(libc::EINVAL) if populate(PROBE.as_ptr().cast()).is_ok() => return Checked::Fault,
        // Before Linux 5.14: whether it is mapped at all must do.
        Err(libc::EINVAL) => {}
        Err(_) => return Checked::Fault,
    }
    read(at, &mut [0; 8])
}

/// Memory that is writable for certain.
static PROBE: AtomicU64 = AtomicU64::new(0);

/// Has the kernel make the page of `at` writable as a store would, without the store.
fn populate(at: *mut u8) -> Result<(), i32> {
    let page = rustix::param::page_size();
    let start = at.wrapping_sub(at.addr() % page);
    // SAFETY: this advice changes no byte and no right; the kernel checks the address.
    match unsafe { libc::madvise(start.cast(), page, libc::MADV_POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EFAULT)),
    }
}

fn transfer(len: usize, call: impl Fn() -> libc::ssize_t) -> Checked {
    if REFUSED.load(Ordering::Relaxed) {
        return Checked::Unavailable;
    }
    let copied = call();
    if copied == len as libc::ssize_t {
        return Checked::Done;
    }
    // A short count is a fault behind the first page.
    if copied >= 0 {
        return Checked::Fault;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) => {
            REFUSED.store(true, Ordering::Relaxed);
            Checked::Unavailable
        }
        _ => Checked::Fault,
    }
}
