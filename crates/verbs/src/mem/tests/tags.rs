//! Steering tags: fresh, unpredictable, and dead once withdrawn.

use std::collections::HashSet;

use iwarp::TaggedFault;

use super::*;
use crate::error::Error;
use crate::mem::directory::{Directory, Purpose};
use crate::mem::region::Kind;
use crate::mem::rundown::From;

const PURPOSE: Purpose = Purpose { kind: Kind::Region, pd: PD, max_len: 0 };

#[test]
fn a_stale_tag_never_meets_a_later_registration() {
    // rule 5040-8.1.1-8, 5041-8.2-2, 5041-7.1-1
    let table = table();
    let keep = region(&table, 8, ALL);
    let mut dead = HashSet::new();
    // All of these use the same slot in turn.
    for _ in 0..20_000 {
        let region = region(&table, 8, ALL);
        assert!(!dead.contains(&region.stag()), "{} came again", region.stag());
        dead.insert(region.stag());
    }
    let live = region(&table, 8, ALL);
    for stag in dead {
        assert_eq!(table.place(stag, live.addr(), &[1], WHO), Err(TaggedFault::InvalidStag));
    }
    assert_eq!(content(&keep), content(&live));
}

#[test]
fn a_reused_index_goes_through_all_keys() {
    // An entry is forced to be used again by making the others busy is too slow: free and find by index.
    let directory = Directory::new(usize::MAX);
    let mut by_entry = std::collections::HashMap::<u32, u32>::new();
    let mut reused = 0;
    for _ in 0..60_000 {
        let (slot, stag) = directory.allocate(PURPOSE).unwrap();
        let entry = (stag.0 >> 8) & 0x1f_ffff;
        if let Some(key) = by_entry.insert(entry, stag.0 & 0xff) {
            assert_eq!(stag.0 & 0xff, (key + 1) & 0xff, "the key of a used entry goes on by one");
            reused += 1;
        }
        let edit = slot.cell.edit(stag.0, From::Idle).unwrap();
        directory.free(&slot, edit, stag);
    }
    assert!(reused > 100, "only {reused} entries came again: the test shows nothing");
}

#[test]
fn indices_are_spread_over_all_24_bits_and_never_zero() {
    // rule 5041-8.3-2, 5040-8.1.1-8
    let directory = Directory::new(4000);
    let tags: Vec<u32> = (0..4000).map(|_| directory.allocate(PURPOSE).unwrap().1.0).collect();
    assert!(tags.iter().all(|t| t >> 8 != 0));
    for bit in 0..32 {
        let set = tags.iter().filter(|t| *t >> bit & 1 == 1).count();
        assert!((1600..2400).contains(&set), "bit {bit} is set in {set} of 4000 tags");
    }
    // Neither consecutive nor in the other device's order.
    let steps: HashSet<u32> = tags.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    assert!(steps.len() > 3990);
    let other = Directory::new(4000);
    let shared = (0..4000).filter(|i| other.allocate(PURPOSE).unwrap().1.0 == tags[*i]).count();
    assert!(shared < 3);
}

#[test]
fn a_full_table_is_named_and_usable_again_after_a_deregistration() {
    let table = Arc::new(MemoryTable::with_limit(3));
    let mut regions: Vec<_> = (0..3).map(|_| region(&table, 8, ALL)).collect();
    let backing = Backing::Owned(Arc::new(Buffer::zeroed(8).unwrap()));
    let full = MemoryRegion::register(&table, PD, backing, ALL, None).unwrap_err();
    assert!(matches!(full, Error::TableFull { limit: 3 }), "{full}");
    regions.pop();
    regions.push(region(&table, 8, ALL));
    assert_eq!(table.len(), 3);
}

/// The device's limit, all at once: every tag leads to its own region.
#[test]
fn a_million_regions_at_once() {
    let directory = Directory::new(usize::MAX);
    let all: Vec<_> = (0..1 << 20).map(|_| directory.allocate(PURPOSE).unwrap()).collect();
    assert!(matches!(directory.allocate(PURPOSE), Err(Error::TableFull { limit: 1_048_576 })));
    for (slot, stag) in &all {
        assert!(std::ptr::eq(&**slot, directory.find(*stag).unwrap()));
        assert_eq!(slot.cell.tag(), stag.0);
    }
    for (slot, stag) in &all {
        directory.free(slot, slot.cell.edit(stag.0, From::Idle).unwrap(), *stag);
    }
    assert_eq!(directory.len(), 0);
}
