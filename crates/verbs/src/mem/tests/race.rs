//! Withdrawal against placement, on real threads. Bounded by counts, not by time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use iwarp::{Stag, TaggedFault};

use super::*;
use crate::mem::rundown::{From, NotBegun, Rundown};

/// After `deregister` has returned, no placement that began before it is still writing.
#[test]
fn nothing_is_placed_after_deregister_returns() {
    // rule 5041-8.2-2, 5040-8.1.1-4
    const ROUNDS: usize = 400;
    let table = table();
    let buffer = Arc::new(Buffer::zeroed(8192).unwrap());
    let (tag, stop, placed) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|s| {
        for fill in 1..=2 {
            let (table, tag, stop, placed) = (&table, &tag, &stop, &placed);
            s.spawn(move || {
                let bytes = vec![fill; 8192];
                while !stop.load(SeqCst) {
                    let stag = Stag(tag.load(SeqCst) as u32);
                    match table.place(stag, 0, &bytes, WHO) {
                        Ok(()) => drop(placed.fetch_add(1, SeqCst)),
                        Err(fault) => assert_eq!(fault, TaggedFault::InvalidStag),
                    }
                }
            });
        }
        let stop = StopOnDrop(&stop);
        let watch = MemoryRegion::register(&table, PD, Backing::Owned(buffer.clone()), ALL, Some(0)).unwrap();
        for round in 0..ROUNDS {
            let backing = Backing::Owned(buffer.clone());
            let region = MemoryRegion::register(&table, PD, backing, ALL, Some(0)).unwrap();
            let before = placed.load(SeqCst);
            tag.store(region.stag().0.into(), SeqCst);
            while round % 4 == 0 && placed.load(SeqCst) == before {
                thread::yield_now();
            }
            region.deregister().unwrap();
            watch.fill(0, 8192, 0).unwrap();
            for _ in 0..3 {
                let bytes = content(&watch);
                assert!(bytes.iter().all(|b| *b == 0), "round {round}: placed after deregistration");
            }
        }
        drop(stop);
    });
    assert!(placed.load(SeqCst) >= ROUNDS as u64 / 4);
}

/// A grant that is held makes deregistration wait; bytes placed before it ends are there afterwards.
#[test]
fn deregister_waits_for_a_held_grant() {
    let table = table();
    let region = region(&table, 64, ALL);
    let buffer = region.buffer().unwrap().clone();
    let (stag, addr) = (region.stag(), region.addr());
    let grant = table.check(stag, addr, 64, Access::REMOTE_WRITE, WHO).unwrap();
    let gone = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            region.deregister().unwrap();
            gone.store(true, SeqCst);
        });
        // Newcomers are turned away as soon as the withdrawal has begun.
        while table.check(stag, addr, 1, Access::REMOTE_WRITE, WHO).is_ok() {
            thread::yield_now();
        }
        for _ in 0..1000 {
            assert!(!gone.load(SeqCst), "deregistered under a grant");
            thread::yield_now();
        }
        grant.copy_in(0, &[9; 64]);
        drop(grant);
    });
    assert!(gone.load(SeqCst));
    let again = MemoryRegion::register(&table, PD, Backing::Owned(buffer), ALL, None).unwrap();
    assert_eq!(content(&again), [9; 64]);
}

/// Owned memory outlives its handle for as long as a segment or grant needs it.
#[test]
fn memory_lives_as_long_as_anything_refers_to_it() {
    let table = table();
    let buffer = Arc::new(Buffer::zeroed(64).unwrap());
    let weak = Arc::downgrade(&buffer);
    let region = MemoryRegion::register(&table, PD, Backing::Owned(buffer), ALL, None).unwrap();
    let segment = table.local(region.lkey(), region.addr(), 64, true, PD).unwrap();
    drop(region);
    assert!(weak.upgrade().is_some());
    assert_eq!(segment.enter().map(drop), Err(TaggedFault::InvalidStag));
    drop(segment);
    assert!(weak.upgrade().is_none(), "registered memory leaked");
}

/// Atomics by peers and by the application add up.
#[test]
fn atomics_from_many_threads_add_up() {
    // rule 7306-5.3-1
    let table = table();
    let region = region(&table, 8, ALL);
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..20_000 {
                    let grant =
                        table.check(region.stag(), region.addr(), 8, Access::REMOTE_ATOMIC, WHO).unwrap();
                    grant.atomic_u64(0, |old| old + 1).unwrap();
                }
            });
        }
    });
    assert_eq!(region.load_u64(0).unwrap(), 80_000);
}

#[test]
fn registering_on_many_threads_gives_distinct_tags() {
    let table = table();
    let all: Vec<Stag> = thread::scope(|s| {
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let table = &table;
                s.spawn(move || {
                    let regions: Vec<_> = (0..500).map(|_| region(table, 8, ALL)).collect();
                    for r in &regions {
                        table.place(r.stag(), r.addr(), &[t; 8], WHO).unwrap();
                    }
                    assert!(regions.iter().all(|r| content(r) == [t; 8]));
                    regions.iter().map(MemoryRegion::stag).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), 2000);
    assert_eq!(table.len(), 0);
}

/// The lock itself: readers never see a value that is being changed, or one of another tag.
#[test]
fn rundown_keeps_readers_and_editors_apart() {
    const EDITS: u32 = 5_000;
    let cell = Rundown::<[u32; 16]>::new();
    let entered = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(SeqCst) {
                    let tag = cell.tag();
                    if let Some(value) = cell.enter(tag) {
                        assert!(value.iter().all(|v| *v == tag), "{:?} under tag {tag}", *value);
                        entered.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        let stop = StopOnDrop(&stop);
        let editors: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let mut edits = 0;
                    while edits < EDITS {
                        let tag = cell.tag();
                        match cell.edit(tag, From::Any) {
                            Ok(mut edit) => {
                                let before = edit.take();
                                assert!(before.is_none_or(|v| v == [tag; 16]));
                                edits += 1;
                                edit.publish(tag.wrapping_add(1), [tag.wrapping_add(1); 16]);
                            }
                            Err(refused) => assert_eq!(refused, NotBegun::Tag),
                        }
                        if edits % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        for editor in editors {
            editor.join().unwrap();
        }
        // Both editors are done: each edit gave the tag one more.
        assert_eq!(cell.tag(), 2 * EDITS);
        while entered.load(SeqCst) == 0 {
            thread::yield_now();
        }
        drop(stop);
    });
}

#[test]
fn rundown_states() {
    let cell = Rundown::<u8>::new();
    assert!(cell.enter(0).is_none());
    assert_eq!(cell.edit(1, From::Any).map(drop), Err(NotBegun::Tag));
    assert_eq!(cell.edit(0, From::Valid).map(drop), Err(NotBegun::State));
    cell.edit(0, From::Idle).unwrap().publish(5, 50);
    assert!(cell.is_valid(5) && !cell.is_valid(4));
    assert_eq!(cell.enter(5).as_deref(), Some(&50));
    assert!(cell.enter(0).is_none());
    assert_eq!(cell.edit(5, From::Idle).map(drop), Err(NotBegun::State));
    // An edit that is given up leaves the cell idle.
    drop(cell.edit(5, From::Valid).unwrap());
    assert!(!cell.is_valid(5) && cell.enter(5).is_none());
    assert_eq!(cell.tag(), 5);
    cell.edit(5, From::Idle).unwrap().idle(6);
    assert_eq!(cell.tag(), 6);
}
