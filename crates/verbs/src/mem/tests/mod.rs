//! Registered memory against the rules of RFC 5040 §8.1 and RFC 5041 §8.2, and against its own threads.

use std::sync::Arc;

use super::{Access, Backing, Buffer, MemoryRegion, MemoryTable, Who};

mod bind;
mod check;
mod copy;
mod handle;
mod model;
mod race;
mod raw;
mod tags;

const PD: u32 = 7;
const QP: u32 = 40;
const WHO: Who = Who { pd: PD, qp_num: QP };

const ALL: Access = Access::all().difference(Access::ZERO_BASED);

fn table() -> Arc<MemoryTable> {
    Arc::new(MemoryTable::new())
}

/// A region of `len` zero bytes in [`PD`].
fn region(table: &Arc<MemoryTable>, len: usize, access: Access) -> MemoryRegion {
    region_at(table, len, access, None)
}

fn region_at(table: &Arc<MemoryTable>, len: usize, access: Access, iova: Option<u64>) -> MemoryRegion {
    let backing = Backing::Owned(Arc::new(Buffer::zeroed(len).unwrap()));
    MemoryRegion::register(table, PD, backing, access, iova).unwrap()
}

/// Ends the loops of a test's threads also when the test fails.
struct StopOnDrop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

fn content(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}
