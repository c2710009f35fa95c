//! Copying to and from memory that others may touch at the same time.
#![expect(unsafe_code, reason = "registered memory is reached by raw pointers only, never by slices")]

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

/// Copies `src` to `dst` so that whoever polls `dst` sees bytes appear in ascending order.
///
/// A plain memcpy may store the first bytes last. Here each block is stored before the next one is begun,
/// and the stores of a block are at most 16 bytes wide and aligned.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes.
#[inline]
pub(super) unsafe fn copy_ascending(src: &[u8], dst: *mut u8) {
    let mut at = 0;
    // SAFETY: `at + n <= src.len()` is kept by each step.
    let step = |at: &mut usize, n: usize| unsafe {
        std::ptr::copy_nonoverlapping(src.as_ptr().add(*at), dst.add(*at), n);
        order();
        *at += n;
    };
    if src.len() >= BLOCK {
        // Align the stores, so that none of them is split between cache lines.
        let head = dst.align_offset(16).min(16) & 15;
        if head != 0 {
            tail(head, &mut at, step);
        }
        while src.len() - at >= BLOCK {
            step(&mut at, BLOCK);
        }
    }
    tail(src.len() - at, &mut at, step);
}

/// Bytes between two ordering points.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 64;
#[cfg(not(target_arch = "x86_64"))]
const BLOCK: usize = 4096;

/// Keeps earlier stores before later ones.
#[inline]
fn order() {
    if cfg!(target_arch = "x86_64") {
        // The processor keeps stores in order; the compiler must, too.
        compiler_fence(Ordering::AcqRel);
    } else {
        fence(Ordering::Release);
    }
}

/// `left` bytes in falling powers of two.
#[inline]
fn tail(mut left: usize, at: &mut usize, step: impl Fn(&mut usize, usize)) {
    #[cfg(not(target_arch = "x86_64"))]
    if left >= 64 {
        let n = left & !63;
        step(at, n);
        left -= n;
    }
    while left >= 16 {
        step(at, 16);
        left -= 16;
    }
    for n in [8, 4, 2, 1] {
        if left & n != 0 {
            step(at, n);
        }
    }
}

/// Copies from `src`.
///
/// # Safety
/// `src` must be valid for reads of `dst.len()` bytes.
#[inline]
pub(super) unsafe fn copy_from(src: *const u8, dst: &mut [u8]) {
    // SAFETY: the caller's promise; `dst` is ours alone, so the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
    // A loop that polls memory must look again each time, and see what was placed before what it saw.
    fence(Ordering::Acquire);
}

/// Fills with one byte.
///
/// # Safety
/// `dst` must be valid for writes of `len` bytes.
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(dst, byte, len) };
    fence(Ordering::Release);
}

/// The eight bytes at `at` as an atomic; `None` if not aligned.
///
/// # Safety
/// `at` must be valid for reads and writes of 8 bytes for `'a`.
pub(super) unsafe fn atomic<'a>(at: *mut u8) -> Option<&'a AtomicU64> {
    if at.align_offset(8) != 0 {
        return None;
    }
    // SAFETY: aligned, and valid by the caller's promise. Others may race with plain copies, as hardware
    // does: the bytes are then unspecified, the eight-byte accesses still whole.
    Some(unsafe { AtomicU64::from_ptr(at.cast()) })
}
