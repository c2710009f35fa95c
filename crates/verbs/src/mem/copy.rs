//! Copying to and from memory that others may touch at the same time.
#![expect(unsafe_code, reason = "registered memory is reached by raw pointers only, never by slices")]

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

/// Copies `src` to `dst` so that whoever polls `dst` sees bytes appear in ascending order.
///
/// A plain memcpy may store the first bytes last. Here, on x86-64, stores are at most 32 bytes wide, none is
/// split between cache lines except in short copies, and each comes before the next. Elsewhere the copy is
/// ordered in steps of 4 KiB, and its last 64 bytes come last.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes.
#[inline]
pub(super) unsafe fn copy_ascending(src: &[u8], dst: *mut u8) {
    let (mut from, mut to, mut left) = (src.as_ptr(), dst, src.len());
    if left >= BLOCK {
        let head = to.align_offset(32).min(31);
        // SAFETY: `head < 32 <= BLOCK <= left`; `bulk` is within what is left.
        unsafe {
            (from, to) = steps(from, to, head);
            let bulk = (left - head).saturating_sub(LAST) / BLOCK * BLOCK;
            blocks(from, to, bulk);
            (from, to, left) = (from.add(bulk), to.add(bulk), left - head - bulk);
        }
    }
    // SAFETY: `left` bytes remain.
    unsafe { steps(from, to, left) };
}

/// Fewer bytes than this are copied in [`steps`] alone.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 64;
#[cfg(not(target_arch = "x86_64"))]
const BLOCK: usize = 4096;

/// At least so many bytes are left to [`steps`], where the order within a block is not known.
#[cfg(target_arch = "x86_64")]
const LAST: usize = 0;
#[cfg(not(target_arch = "x86_64"))]
const LAST: usize = 64;

/// Keeps earlier stores before later ones.
#[inline(always)]
fn order() {
    if cfg!(target_arch = "x86_64") {
        // The processor keeps stores in order; the compiler must, too.
        compiler_fence(Ordering::AcqRel);
    } else {
        fence(Ordering::Release);
    }
}

/// Copies `len` bytes in falling powers of two; where it got to.
///
/// # Safety
/// As for `memcpy`.
#[inline(always)]
unsafe fn steps(mut from: *const u8, mut to: *mut u8, len: usize) -> (*const u8, *mut u8) {
    let mut left = len;
    let mut step = |n: usize| {
        // SAFETY: the steps add up to `len`.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, n);
            order();
            (from, to) = (from.add(n), to.add(n));
        }
    };
    if LAST != 0 && left > LAST {
        step(left - LAST);
        left = LAST;
    }
    while left >= 16 {
        step(16);
        left -= 16;
    }
    for n in [8, 4, 2, 1] {
        if left & n != 0 {
            step(n);
        }
    }
    (from, to)
}

/// Copies `len` bytes, a multiple of [`BLOCK`].
///
/// # Safety
/// As for `memcpy`; on x86-64 `to` is a multiple of 32.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn blocks(from: *const u8, to: *mut u8, len: usize) {
    for at in (0..len).step_by(BLOCK) {
        // SAFETY: within `len`.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), BLOCK) };
        order();
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn blocks(from: *const u8, to: *mut u8, len: usize) {
    if len >= 256 && is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX; the rest is the caller's promise.
        unsafe { blocks_avx(from, to, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { blocks_sse(from, to, len) }
    }
}

/// See [`blocks`].
///
/// # Safety
/// As there.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn blocks_sse(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128 as load, _mm_store_si128 as store};
    let mut at = 0;
    while at < len {
        // SAFETY: `len` is a multiple of 64, so these are within it; `to` is aligned.
        unsafe {
            let (f, t) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let (a, b, c, d) = (load(f), load(f.add(1)), load(f.add(2)), load(f.add(3)));
            for (i, block) in [a, b, c, d].into_iter().enumerate() {
                store(t.add(i), block);
                order();
            }
        }
        at += 64;
    }
}

/// See [`blocks`].
///
/// # Safety
/// As there, and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn blocks_avx(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256 as load, _mm256_store_si256 as store};
    let mut at = 0;
    while at + 128 <= len {
        // SAFETY: within `len`; `to` is aligned.
        unsafe {
            let (f, t) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let (a, b, c, d) = (load(f), load(f.add(1)), load(f.add(2)), load(f.add(3)));
            for (i, block) in [a, b, c, d].into_iter().enumerate() {
                store(t.add(i), block);
                order();
            }
        }
        at += 128;
    }
    if at < len {
        // SAFETY: 64 bytes are left.
        unsafe { blocks_sse(from.add(at), to.add(at), len - at) };
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
