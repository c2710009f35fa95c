//! The order and meaning of the checks.

use iwarp::{AtomicOp, AtomicRequest, Stag, TaggedFault};

use super::*;

/// What is tried, with the right that it needs.
const OPERATIONS: [(&str, Access); 4] = [
    ("Write", Access::REMOTE_WRITE),
    ("Read", Access::REMOTE_READ),
    ("atomic", Access::REMOTE_ATOMIC),
    ("local write", Access::LOCAL_WRITE),
];

fn attempt(table: &MemoryTable, region: &MemoryRegion, operation: &str) -> Result<(), TaggedFault> {
    let (stag, at) = (region.stag(), region.addr());
    match operation {
        "Write" => table.place(stag, at, &[1; 8], WHO),
        "Read" => table.fetch(stag, at, &mut [0; 8], WHO),
        "atomic" => {
            let grant = table.check(stag, at, 8, Access::REMOTE_ATOMIC, WHO)?;
            grant.atomic_u64(0, |v| v + 1).map(drop)
        }
        _ => {
            let segment = table.local(stag.0, at, 8, true, PD)?;
            segment.enter()?.copy_in(0, &[1; 8]);
            Ok(())
        }
    }
}

#[test]
fn every_right_allows_exactly_its_own_operation() {
    // rule 5040-8.1.1-2, 7306-9-1
    let table = table();
    let mut registered = 0;
    for bits in 0..64 {
        let access = Access::from_bits_truncate(bits);
        let needs_local = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let backing = Backing::Owned(Arc::new(Buffer::zeroed(64).unwrap()));
        let region = MemoryRegion::register(&table, PD, backing, access, None);
        if needs_local && !access.contains(Access::LOCAL_WRITE) {
            let error = region.err().unwrap().to_string();
            assert!(error.contains("LOCAL_WRITE"), "{error}");
            continue;
        }
        let region = region.unwrap();
        registered += 1;
        for (operation, need) in OPERATIONS {
            let before = content(&region);
            let got = attempt(&table, &region, operation);
            if access.contains(need) {
                assert_eq!(got, Ok(()), "{operation} with {access:?}");
            } else {
                assert_eq!(got, Err(TaggedFault::Access), "{operation} with {access:?}");
                assert_eq!(content(&region), before, "{operation} with {access:?} changed memory");
            }
        }
        // Gathering from local memory needs no right at all.
        assert!(table.local(region.lkey(), region.addr(), 64, false, PD).is_ok());
    }
    assert_eq!(registered, 40);
    assert_eq!(table.len(), 0);
}

#[test]
fn unknown_rights_are_refused() {
    let backing = Backing::Owned(Arc::new(Buffer::zeroed(8).unwrap()));
    let access = Access::from_bits_retain(1 << 9);
    assert!(MemoryRegion::register(&table(), PD, backing, access, None).is_err());
}

#[test]
fn faults_are_looked_for_in_a_fixed_order() {
    // rule 5040-8.1.1-1, 5041-8.2-1, 5041-7.1-2, 5041-7.1-4
    let table = table();
    let region = region_at(&table, 16, Access::empty(), Some(u64::MAX - 15));
    let (stag, wrong) = (region.stag(), Stag(region.rkey() ^ 1));
    let other = Who { pd: PD + 1, qp_num: QP };
    let check = |stag, to, len, need, who| table.check(stag, to, len, need, who).map(drop);
    let read = Access::REMOTE_READ;
    assert_eq!(check(wrong, u64::MAX, 2, read, other), Err(TaggedFault::InvalidStag));
    assert_eq!(check(stag, u64::MAX, 2, read, other), Err(TaggedFault::NotAssociated));
    assert_eq!(check(stag, u64::MAX, 2, read, WHO), Err(TaggedFault::Access));
    assert_eq!(check(stag, u64::MAX, 2, Access::empty(), WHO), Err(TaggedFault::Wrap));
    assert_eq!(check(stag, 0, 2, Access::empty(), WHO), Err(TaggedFault::Bounds));
    assert_eq!(check(stag, u64::MAX - 15, 16, Access::empty(), WHO), Ok(()));
    assert_eq!(check(stag, 5, u64::MAX, Access::empty(), WHO), Err(TaggedFault::Wrap));
}

#[test]
fn bytes_next_to_a_range_stay_as_they_are() {
    // rule 5040-8.1.1-3, 5041-8.3-1, 5041-7.1-3
    let table = table();
    let region = region(&table, 64, ALL);
    region.fill(0, 64, 0xee).unwrap();
    table.place(region.stag(), region.addr() + 10, &[7; 20], WHO).unwrap();
    let mut expected = vec![0xee; 64];
    expected[10..30].fill(7);
    assert_eq!(content(&region), expected);
    for (to, len) in [(60, 5), (64, 1), (65, 0), (u64::MAX, 1)] {
        let to = region.addr().wrapping_add(to);
        let refused = table.place(region.stag(), to, &vec![9; len], WHO);
        assert_eq!(refused, Err(TaggedFault::Bounds), "{len} bytes at {to:#x}");
    }
    assert_eq!(content(&region), expected);
}

#[test]
fn zero_length_regions_take_only_nothing_at_their_address() {
    let table = table();
    for access in [ALL, ALL | Access::ZERO_BASED] {
        let region = region(&table, 0, access);
        assert!(region.is_empty());
        assert_eq!(table.place(region.stag(), region.addr(), &[], WHO), Ok(()));
        assert_eq!(table.place(region.stag(), region.addr(), &[1], WHO), Err(TaggedFault::Bounds));
        assert_eq!(table.place(region.stag(), region.addr() + 1, &[], WHO), Err(TaggedFault::Bounds));
        assert!(region.write_at(0, &[]).is_ok());
        assert!(region.write_at(0, &[1]).is_err());
    }
}

#[test]
fn tagged_offsets_count_from_the_iova_the_address_or_zero() {
    let table = table();
    let at = |access, iova| {
        let region = region_at(&table, 32, access, iova);
        table.place(region.stag(), region.addr() + 3, &[5], WHO).unwrap();
        assert_eq!(content(&region)[3], 5);
        region.addr()
    };
    assert_eq!(at(ALL, Some(0x1000)), 0x1000);
    assert_eq!(at(ALL | Access::ZERO_BASED, Some(0x1000)), 0);
    assert_eq!(at(ALL, None) % 4096, 0);
    // Without atomics any iova will do.
    assert_eq!(at(ALL - Access::REMOTE_ATOMIC, Some(3)), 3);
    let backing = Backing::Owned(Arc::new(Buffer::zeroed(32).unwrap()));
    assert!(MemoryRegion::register(&table, PD, backing.clone(), ALL, Some(3)).is_err());
    assert!(MemoryRegion::register(&table, PD, backing, Access::empty(), Some(u64::MAX)).is_err());
}

#[test]
fn atomics_are_whole_and_need_alignment() {
    let table = table();
    let region = region_at(&table, 24, ALL, Some(0));
    region.store_u64(8, 5).unwrap();
    let grant = table.check(region.stag(), 0, 24, Access::REMOTE_ATOMIC, WHO).unwrap();
    let request = AtomicRequest {
        op: AtomicOp::CmpSwap,
        id: 0,
        stag: region.stag(),
        to: 8,
        add_swap: 9,
        add_swap_mask: !0,
        compare: 5,
        compare_mask: !0,
    };
    assert_eq!(grant.atomic_u64(8, |old| request.apply(old)), Ok(5));
    assert_eq!(grant.atomic_u64(8, |old| request.apply(old)), Ok(9));
    assert_eq!(grant.atomic_u64(4, |old| old), Err(TaggedFault::Access));
    assert_eq!(grant.atomic_u64(17, |old| old), Err(TaggedFault::Bounds));
    assert_eq!(grant.atomic_u64(usize::MAX, |old| old), Err(TaggedFault::Bounds));
    drop(grant);
    assert_eq!(region.load_u64(8).unwrap(), 9);
}

#[test]
fn grants_and_segments_keep_to_their_range() {
    let table = table();
    let region = region(&table, 64, ALL);
    let segment = table.local(region.lkey(), region.addr() + 8, 16, true, PD).unwrap();
    assert_eq!(segment.len(), 16);
    let part = segment.enter_part(4, 8).unwrap();
    assert_eq!(part.len(), 8);
    part.copy_in(0, &[3; 8]);
    let mut out = [0; 2];
    part.copy_out(6, &mut out);
    assert_eq!(out, [3, 3]);
    assert_eq!(segment.enter_part(9, 8).map(drop), Err(TaggedFault::Bounds));
    assert_eq!(segment.enter_part(usize::MAX, 2).map(drop), Err(TaggedFault::Bounds));
    let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| part.copy_in(1, &[0; 8])));
    assert!(outside.is_err());
    drop(part);
    let mut expected = vec![0; 64];
    expected[12..20].fill(3);
    assert_eq!(content(&region), expected);
    // The grant that panicked has left, or this would never return.
    region.deregister().unwrap();
    assert_eq!(segment.enter().map(drop), Err(TaggedFault::InvalidStag));
}

#[test]
fn local_keys_check_protection_domain_bounds_and_key() {
    let table = table();
    let region = region(&table, 64, Access::empty());
    let local = |lkey, addr, len, write, pd| table.local(lkey, addr, len, write, pd).map(drop);
    let at = region.addr();
    assert_eq!(local(region.lkey(), at, 64, false, PD), Ok(()));
    assert_eq!(local(region.lkey(), at, 64, true, PD), Err(TaggedFault::Access));
    assert_eq!(local(region.lkey(), at, 65, false, PD), Err(TaggedFault::Bounds));
    assert_eq!(local(region.lkey(), at - 1, 1, false, PD), Err(TaggedFault::Bounds));
    assert_eq!(local(region.lkey(), u64::MAX, 2, false, PD), Err(TaggedFault::Wrap));
    assert_eq!(local(region.lkey(), at, 1, false, PD + 1), Err(TaggedFault::NotAssociated));
    assert_eq!(local(region.lkey() ^ 0x100, at, 1, false, PD), Err(TaggedFault::InvalidStag));
    assert_eq!(local(0, at, 1, false, PD), Err(TaggedFault::InvalidStag));
}
