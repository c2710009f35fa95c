//! Steering tags: unpredictable indices, key generations, and the slots that they lead to.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use iwarp::Stag;

use super::region::{Kind, Region};
use super::rundown::{Edit, From, Rundown};
use crate::error::{Error, Result};

/// Most regions, windows and fast regions of a device.
pub(crate) const MAX_REGIONS: usize = 1 << 20;

/// Of the 24 bits of an index these many choose the directory entry; the rest are compared only.
/// Twice as many entries as slots, so that a free one is found in two tries on average.
const ENTRY_BITS: u32 = 21;
const PAGE_ENTRIES: usize = 1 << 10;
const PAGES: usize = (1 << ENTRY_BITS) / PAGE_ENTRIES;
const CHUNK_SLOTS: usize = 1 << 8;
const CHUNKS: usize = MAX_REGIONS / CHUNK_SLOTS;

/// Directory entry: slot number + 1 (0: free) in the low bits, the key last used in the top 8.
const SLOT_MASK: u32 = (1 << 21) - 1;
/// Set in entries that led to a slot before: tells key 0 from an entry never used.
const USED: u32 = 1 << 23;

/// A place for a region; used again and again under different tags. On a cache line of its own, since
/// entering and leaving write to it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) cell: Rundown<Arc<Region>>,
    kind: AtomicU8,
    pd: AtomicU32,
    max_len: AtomicU64,
}

/// What a slot was allocated for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Purpose {
    pub(super) kind: Kind,
    pub(super) pd: u32,
    /// Longest mapping of a fast region; unused otherwise.
    pub(super) max_len: u64,
}

impl Slot {
    fn new() -> Self {
        Self {
            cell: Rundown::new(),
            kind: AtomicU8::new(0),
            pd: AtomicU32::new(0),
            max_len: AtomicU64::new(0),
        }
    }

    /// What it is allocated for. Of use only together with a tag that is confirmed afterwards.
    pub(super) fn purpose(&self) -> Purpose {
        let kind = match self.kind.load(Ordering::Acquire) {
            1 => Kind::Fast,
            2 => Kind::Window1,
            3 => Kind::Window2,
            _ => Kind::Region,
        };
        let pd = self.pd.load(Ordering::Acquire);
        Purpose { kind, pd, max_len: self.max_len.load(Ordering::Acquire) }
    }

    fn set_purpose(&self, purpose: Purpose) {
        self.kind.store(purpose.kind as u8, Ordering::Release);
        self.pd.store(purpose.pd, Ordering::Release);
        self.max_len.store(purpose.max_len, Ordering::Release);
    }
}

/// A slot held by whoever needs it beyond one call.
#[derive(Clone)]
pub(super) struct SlotRef {
    chunk: Arc<[Slot]>,
    at: usize,
    number: u32,
}

impl std::fmt::Debug for SlotRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlotRef({})", self.number)
    }
}

impl Deref for SlotRef {
    type Target = Slot;

    #[inline]
    fn deref(&self) -> &Slot {
        &self.chunk[self.at]
    }
}

/// All steering tags of a device. Looked up without locks; a lock is taken to allocate and free.
pub(super) struct Directory {
    pages: Box<[OnceLock<Box<[AtomicU32]>>]>,
    chunks: Box<[OnceLock<Arc<[Slot]>>]>,
    spare: Mutex<Spare>,
    limit: usize,
}

/// What the next allocation takes.
struct Spare {
    /// Freed slots, used last in first out.
    freed: Vec<u32>,
    /// Slots never used start here.
    fresh: u32,
    /// Secret of the index sequence.
    secret: RandomState,
    drawn: u64,
}

impl Spare {
    /// Unpredictable to whoever does not know the secret: SipHash of a counter.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.secret.hash_one(self.drawn)
    }
}

impl Directory {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            pages: (0..PAGES).map(|_| OnceLock::new()).collect(),
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            spare: Mutex::new(Spare { freed: Vec::new(), fresh: 0, secret: RandomState::new(), drawn: 0 }),
            limit: limit.min(MAX_REGIONS),
        }
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots in use.
    pub(super) fn len(&self) -> usize {
        let spare = self.spare();
        spare.fresh as usize - spare.freed.len()
    }

    #[inline]
    fn entry(&self, index: u32) -> Option<&AtomicU32> {
        let at = index as usize & ((1 << ENTRY_BITS) - 1);
        self.pages[at / PAGE_ENTRIES].get().map(|page| &page[at % PAGE_ENTRIES])
    }

    /// The slot that this tag's index leads to; the caller confirms the tag with the slot.
    #[inline]
    pub(super) fn find(&self, stag: Stag) -> Option<&Slot> {
        let (chunk, at, _) = self.find_in_chunk(stag)?;
        Some(&chunk[at])
    }

    /// The same, to keep.
    pub(super) fn find_ref(&self, stag: Stag) -> Option<SlotRef> {
        let (chunk, at, number) = self.find_in_chunk(stag)?;
        Some(SlotRef { chunk: chunk.clone(), at, number })
    }

    #[inline]
    fn find_in_chunk(&self, stag: Stag) -> Option<(&Arc<[Slot]>, usize, u32)> {
        let number = (self.entry(stag.0 >> 8)?.load(Ordering::Acquire) & SLOT_MASK).checked_sub(1)?;
        let (chunk, at) = (number as usize / CHUNK_SLOTS, number as usize % CHUNK_SLOTS);
        Some((self.chunks[chunk].get()?, at, number))
    }

    /// A slot, idle, under a tag that was not in use.
    pub(super) fn allocate(&self, purpose: Purpose) -> Result<(SlotRef, Stag)> {
        let mut spare = self.spare();
        let number = match spare.freed.pop() {
            Some(number) => number,
            None if (spare.fresh as usize) < self.limit => {
                spare.fresh += 1;
                spare.fresh - 1
            }
            None => return Err(Error::TableFull { limit: self.limit }),
        };
        let chunk = self.chunks[number as usize / CHUNK_SLOTS]
            .get_or_init(|| (0..CHUNK_SLOTS).map(|_| Slot::new()).collect());
        let slot = SlotRef { chunk: chunk.clone(), at: number as usize % CHUNK_SLOTS, number };
        slot.set_purpose(purpose);
        let stag = self.place(&mut spare, number);
        match slot.cell.edit(0, From::Idle) {
            Ok(edit) => edit.idle(stag.0),
            Err(e) => unreachable!("a free slot is idle under tag 0: {e:?}"),
        }
        Ok((slot, stag))
    }

    /// Makes a random free entry lead to the slot.
    fn place(&self, spare: &mut Spare, number: u32) -> Stag {
        loop {
            // rule 5041-8.3-2, 5040-8.1.1-8
            let drawn = spare.draw();
            let index = (drawn & 0xff_ffff) as u32;
            let at = index as usize & ((1 << ENTRY_BITS) - 1);
            // Tag 0 stands for "none" at many peers.
            if at == 0 {
                continue;
            }
            let page = self.pages[at / PAGE_ENTRIES]
                .get_or_init(|| (0..PAGE_ENTRIES).map(|_| AtomicU32::new(0)).collect());
            let entry = &page[at % PAGE_ENTRIES];
            let before = entry.load(Ordering::Relaxed);
            if before & SLOT_MASK != 0 {
                continue;
            }
            // An entry that was used goes on with the next key, so that its old tags stay dead.
            let key = if before == 0 { (drawn >> 32) as u8 } else { ((before >> 24) as u8).wrapping_add(1) };
            entry.store((u32::from(key) << 24) | (number + 1), Ordering::Release);
            return Stag((index << 8) | u32::from(key));
        }
    }

    /// Takes a slot back from whoever has begun to edit it for the last time under `stag`.
    pub(super) fn free(&self, slot: &SlotRef, edit: Edit<'_, Arc<Region>>, stag: Stag) {
        let mut spare = self.spare();
        if let Some(entry) = self.entry(stag.0 >> 8) {
            entry.store(((stag.0 & 0xff) << 24) | USED, Ordering::Release);
        }
        edit.idle(0);
        spare.freed.push(slot.number);
    }
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory")
            .field("len", &self.len())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
