//! A cell that many may read while its tag is valid, and that is changed only when nobody is inside.
#![expect(unsafe_code, reason = "a lock of its own kind: one word holds tag, state and the count of readers")]

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// The tag is live: readers with this tag may enter.
const VALID: u64 = 1 << 31;
/// One editor owns the value; readers that entered before may still be leaving.
const BUSY: u64 = 1 << 30;
/// Readers inside.
const COUNT: u64 = BUSY - 1;

fn tag_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// See the module. States: idle (no value), valid (value, readers), busy (one editor).
#[derive(Debug)]
pub(super) struct Rundown<T> {
    word: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `value` is shared as `&T` among readers (T: Sync) and moved in and out by editors on any thread
// (T: Send); the word keeps the two apart: see `enter` and `edit`.
unsafe impl<T: Send + Sync> Sync for Rundown<T> {}

/// In which state the cell must be for [`Rundown::edit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    /// Valid or idle.
    Any,
    /// Not valid.
    Idle,
    /// Valid.
    Valid,
}

/// Why [`Rundown::edit`] did not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotBegun {
    /// The cell has another tag by now.
    Tag,
    /// The cell is valid but had to be idle, or the reverse.
    State,
}

impl<T> Rundown<T> {
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(0), value: UnsafeCell::new(None) }
    }

    /// The tag that is or was last valid.
    pub(super) fn tag(&self) -> u32 {
        tag_of(self.word.load(Ordering::Acquire))
    }

    /// Whether readers with `tag` may enter now.
    pub(super) fn is_valid(&self, tag: u32) -> bool {
        self.word.load(Ordering::Acquire) & !COUNT == (u64::from(tag) << 32) | VALID
    }

    /// Enters as a reader, if `tag` is valid.
    #[inline]
    pub(super) fn enter(&self, tag: u32) -> Option<Entered<'_, T>> {
        let want = (u64::from(tag) << 32) | VALID;
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & !COUNT != want {
                return None;
            }
            // Acquire: pairs with the release in `publish`, so that the value is seen whole.
            match self.word.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Entered { cell: self }),
                Err(now) => word = now,
            }
        }
    }

    /// Makes the cell invalid, waits until all readers have left, and hands it over for changing.
    ///
    /// Waits for another editor first. Whoever is inside as a reader and calls this waits for ever.
    pub(super) fn edit(&self, tag: u32, from: From) -> Result<Edit<'_, T>, NotBegun> {
        let mut pause = Pause::default();
        loop {
            let word = self.word.load(Ordering::Acquire);
            if tag_of(word) != tag {
                return Err(NotBegun::Tag);
            }
            if word & BUSY != 0 {
                pause.rest();
                continue;
            }
            let valid = word & VALID != 0;
            if (from == From::Idle && valid) || (from == From::Valid && !valid) {
                return Err(NotBegun::State);
            }
            let busy = (word & !VALID) | BUSY;
            if self.word.compare_exchange(word, busy, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break;
            }
        }
        // Acquire: pairs with the release of each leaving reader, whose accesses are then over.
        let mut pause = Pause::default();
        while self.word.load(Ordering::Acquire) & COUNT != 0 {
            pause.rest();
        }
        Ok(Edit { cell: self })
    }
}

/// A reader inside a valid cell.
#[derive(Debug)]
pub(super) struct Entered<'a, T> {
    cell: &'a Rundown<T>,
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this reader is counted, and the value is changed only by an editor, which waits until the
        // count is zero.
        let value = unsafe { &*self.cell.value.get() };
        match value {
            Some(value) => value,
            None => unreachable!("a valid cell has a value"),
        }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.cell.word.fetch_sub(1, Ordering::Release);
    }
}

/// The one editor of a cell; dropped, it leaves the cell idle with its old tag.
#[derive(Debug)]
pub(super) struct Edit<'a, T> {
    cell: &'a Rundown<T>,
}

impl<T> Edit<'_, T> {
    /// The value, if the cell was valid.
    pub(super) fn take(&mut self) -> Option<T> {
        // SAFETY: the word is busy and the count was seen zero, so this editor alone touches the value.
        unsafe { (*self.cell.value.get()).take() }
    }

    /// Makes the cell valid with a new value and tag.
    pub(super) fn publish(self, tag: u32, value: T) {
        // SAFETY: as in `take`.
        unsafe { *self.cell.value.get() = Some(value) };
        self.finish((u64::from(tag) << 32) | VALID);
    }

    /// Leaves the cell idle with another tag.
    pub(super) fn idle(mut self, tag: u32) {
        drop(self.take());
        self.finish(u64::from(tag) << 32);
    }

    fn finish(self, word: u64) {
        // Nobody else changes a busy word without readers: entering and editing both fail on it.
        self.cell.word.store(word, Ordering::Release);
        std::mem::forget(self);
    }
}

impl<T> Drop for Edit<'_, T> {
    fn drop(&mut self) {
        drop(self.take());
        let tag = self.cell.word.load(Ordering::Relaxed) & !(VALID | BUSY | COUNT);
        self.cell.word.store(tag, Ordering::Release);
    }
}

/// Waits a little: spins at first, then lets others run.
#[derive(Default)]
struct Pause {
    spins: u32,
}

impl Pause {
    fn rest(&mut self) {
        if self.spins < 64 {
            self.spins += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
