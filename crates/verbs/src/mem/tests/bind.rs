//! Memory windows, fast regions and invalidation.

use iwarp::{Fault, Stag, TaggedFault};

use super::*;
use crate::error::Error;
use crate::mem::bind::BindError;
use crate::mem::{FastRegion, MemoryWindow, WindowKind};
use crate::wr::{BindWindow, FastRegister, RemoteBuffer, SendOp};

const OTHER_QP: Who = Who { pd: PD, qp_num: QP + 1 };
const OTHER_PD: Who = Who { pd: PD + 1, qp_num: QP };

fn window(table: &Arc<MemoryTable>, kind: WindowKind) -> MemoryWindow {
    MemoryWindow::allocate(table, PD, kind).unwrap()
}

/// Carries a request out as a queue pair does.
fn perform(table: &MemoryTable, op: SendOp, who: Who) -> Result<(), BindError> {
    match op {
        SendOp::BindWindow(request) => table.bind_window(&request, who),
        SendOp::FastRegister(request) => table.fast_register(&request, who),
        other => panic!("{other:?}"),
    }
}

fn write(table: &MemoryTable, to: RemoteBuffer, who: Who) -> Result<(), TaggedFault> {
    table.place(Stag(to.rkey), to.addr, &[1], who)
}

/// Binds `len` bytes from `offset` on for writing.
fn bind(
    table: &MemoryTable,
    window: &MemoryWindow,
    region: &MemoryRegion,
    offset: u64,
    len: u64,
) -> RemoteBuffer {
    let (op, remote) = window.bind(region, offset, len, Access::REMOTE_WRITE).unwrap();
    perform(table, op, WHO).unwrap();
    remote
}

#[test]
fn a_window_lends_its_range_and_rights_only() {
    let table = table();
    // The region itself gives peers nothing.
    let region = region(&table, 256, Access::LOCAL_WRITE | Access::MW_BIND);
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let window = window(&table, kind);
        assert!(!window.is_bound());
        let to = bind(&table, &window, &region, 64, 32);
        assert!(window.is_bound());
        assert_eq!((to.addr, to.len, to.rkey), (region.addr() + 64, 32, window.rkey()));
        let stag = Stag(to.rkey);
        assert_eq!(table.place(stag, to.addr + 31, &[7], WHO), Ok(()));
        assert_eq!(table.place(stag, to.addr + 31, &[7, 7], WHO), Err(TaggedFault::Bounds));
        assert_eq!(table.place(stag, to.addr - 1, &[7], WHO), Err(TaggedFault::Bounds));
        assert_eq!(table.fetch(stag, to.addr, &mut [0], WHO), Err(TaggedFault::Access));
        assert_eq!(write(&table, to, OTHER_PD), Err(TaggedFault::NotAssociated));
        // A window's key is no local key.
        assert_eq!(table.local(to.rkey, to.addr, 1, false, PD).map(drop), Err(TaggedFault::InvalidStag));
        assert_eq!(content(&region)[95], 7);
    }
    assert_eq!(write(&table, region.remote(), WHO), Err(TaggedFault::Access));
}

#[test]
fn a_zero_based_window_counts_from_its_first_byte() {
    let table = table();
    let region = region(&table, 64, ALL);
    let window = window(&table, WindowKind::Type1);
    let (op, to) = window.bind(&region, 16, 8, Access::REMOTE_WRITE | Access::ZERO_BASED).unwrap();
    perform(&table, op, WHO).unwrap();
    assert_eq!(to.addr, 0);
    table.place(Stag(to.rkey), 7, &[3], WHO).unwrap();
    assert_eq!(content(&region)[23], 3);
    assert_eq!(table.place(Stag(to.rkey), 8, &[3], WHO), Err(TaggedFault::Bounds));
}

#[test]
fn type_1_serves_the_domain_and_type_2_its_queue_pair() {
    let table = table();
    let region = region(&table, 64, ALL);
    let one = window(&table, WindowKind::Type1);
    let two = window(&table, WindowKind::Type2);
    let (to_one, to_two) = (bind(&table, &one, &region, 0, 64), bind(&table, &two, &region, 0, 64));
    assert_eq!(write(&table, to_one, OTHER_QP), Ok(()));
    assert_eq!(write(&table, to_two, WHO), Ok(()));
    assert_eq!(write(&table, to_two, OTHER_QP), Err(TaggedFault::NotAssociated));
    // Nor may another queue pair unbind it.
    assert_eq!(perform(&table, two.unbind(), OTHER_QP), Err(BindError::OtherDomain));
    assert_eq!(write(&table, to_two, WHO), Ok(()));
}

#[test]
fn a_new_bind_kills_the_old_key() {
    let table = table();
    let region = region(&table, 64, ALL);
    let window = window(&table, WindowKind::Type1);
    let first = bind(&table, &window, &region, 0, 16);
    let second = bind(&table, &window, &region, 32, 16);
    assert_ne!(first.rkey, second.rkey);
    assert_eq!(first.rkey >> 8, second.rkey >> 8);
    assert_eq!(write(&table, first, WHO), Err(TaggedFault::InvalidStag));
    assert_eq!(write(&table, second, WHO), Ok(()));
    perform(&table, window.unbind(), WHO).unwrap();
    assert!(!window.is_bound());
    assert_eq!(write(&table, second, WHO), Err(TaggedFault::InvalidStag));
    // Requests made before others were carried out still name the window.
    let (op, third) = window.bind(&region, 0, 8, Access::REMOTE_WRITE).unwrap();
    let (later, fourth) = window.bind(&region, 0, 8, Access::REMOTE_WRITE).unwrap();
    perform(&table, op, WHO).unwrap();
    perform(&table, window.unbind(), WHO).unwrap();
    perform(&table, later, WHO).unwrap();
    assert_eq!(write(&table, third, WHO), Err(TaggedFault::InvalidStag));
    assert_eq!(write(&table, fourth, WHO), Ok(()));
}

#[test]
fn a_type_2_window_is_invalidated_before_it_is_bound_again() {
    // rule 5040-8.1.1-9
    let table = table();
    let region = region(&table, 64, ALL);
    let window = window(&table, WindowKind::Type2);
    let first = bind(&table, &window, &region, 0, 16);
    let (op, second) = window.bind(&region, 16, 16, Access::REMOTE_WRITE).unwrap();
    assert_eq!(perform(&table, op, WHO), Err(BindError::StillValid));
    assert_eq!(write(&table, first, WHO), Ok(()), "a refused bind changes nothing");
    assert_eq!(table.invalidate_local(Stag(first.rkey), OTHER_QP), Err(TaggedFault::NotAssociated));
    assert_eq!(table.invalidate_local(Stag(first.rkey), WHO), Ok(()));
    assert_eq!(table.invalidate_local(Stag(first.rkey), WHO), Err(TaggedFault::InvalidStag));
    assert_eq!(write(&table, first, WHO), Err(TaggedFault::InvalidStag));
    perform(&table, op, WHO).unwrap();
    assert_eq!(write(&table, second, WHO), Ok(()));
}

#[test]
fn peers_invalidate_what_they_may_and_nothing_else() {
    // rule 5040-5.3-5, 5040-8.1.1-4
    let table = table();
    let plain = region(&table, 64, ALL - Access::REMOTE_INVALIDATE);
    let open = region(&table, 64, ALL);
    let (one, two) = (window(&table, WindowKind::Type1), window(&table, WindowKind::Type2));
    let (to_one, to_two) = (bind(&table, &one, &plain, 0, 8), bind(&table, &two, &plain, 0, 8));
    let invalidate = |rkey: u32, who| table.invalidate_remote(Stag(rkey), who);
    let refused = |rkey: u32| Err(Fault::Invalidate(Stag(rkey)));

    assert_eq!(invalidate(plain.rkey(), WHO), refused(plain.rkey()));
    assert_eq!(invalidate(to_one.rkey, WHO), refused(to_one.rkey));
    assert_eq!(invalidate(to_two.rkey, OTHER_QP), refused(to_two.rkey));
    assert_eq!(invalidate(to_two.rkey, OTHER_PD), refused(to_two.rkey));
    assert_eq!(invalidate(open.rkey(), OTHER_PD), refused(open.rkey()));
    assert_eq!(invalidate(0x1234_5678, WHO), refused(0x1234_5678));
    for to in [plain.remote(), open.remote(), to_one, to_two] {
        assert_eq!(write(&table, to, WHO), Ok(()), "refused invalidation left it valid");
    }

    assert_eq!(invalidate(to_two.rkey, WHO), Ok(()));
    assert_eq!(write(&table, to_two, WHO), Err(TaggedFault::InvalidStag));
    // A region with a window bound over it keeps its key.
    let over = bind(&table, &two, &open, 0, 8);
    assert_eq!(invalidate(open.rkey(), WHO), refused(open.rkey()));
    assert_eq!(table.invalidate_local(open.stag(), WHO), Err(TaggedFault::Access));
    assert_eq!(invalidate(over.rkey, WHO), Ok(()));
    assert_eq!(invalidate(open.rkey(), WHO), Ok(()));
    assert!(!open.is_valid());
    assert_eq!(write(&table, open.remote(), WHO), Err(TaggedFault::InvalidStag));
    assert_eq!(invalidate(open.rkey(), WHO), refused(open.rkey()));
    // Its owner can still use the memory, and deregister it.
    open.write_at(0, &[4]).unwrap();
    open.deregister().unwrap();
}

#[test]
fn a_region_with_windows_is_not_deregistered() {
    let table = table();
    let region = region(&table, 64, ALL);
    let (one, two) = (window(&table, WindowKind::Type1), window(&table, WindowKind::Type2));
    let (to_one, to_two) = (bind(&table, &one, &region, 0, 8), bind(&table, &two, &region, 0, 8));
    let refused = region.deregister().unwrap_err();
    assert!(matches!(refused.error, Error::RegionBusy { bound: 2 }), "{refused}");
    let region = refused.region;
    assert_eq!(write(&table, region.remote(), WHO), Ok(()));
    assert_eq!(write(&table, to_one, WHO), Ok(()));
    table.invalidate_local(Stag(to_two.rkey), WHO).unwrap();
    let region = region.deregister().unwrap_err().region;
    perform(&table, one.unbind(), WHO).unwrap();
    region.deregister().unwrap();
    drop((one, two));
    assert_eq!(table.len(), 0);
}

#[test]
fn a_dropped_region_takes_its_windows_with_it() {
    let table = table();
    let region = region(&table, 64, ALL);
    let weak = Arc::downgrade(region.buffer().unwrap());
    let windows: Vec<_> = (0..5).map(|_| window(&table, WindowKind::Type2)).collect();
    let bound: Vec<_> = windows.iter().map(|w| bind(&table, w, &region, 0, 64)).collect();
    drop(region);
    for (window, to) in windows.iter().zip(bound) {
        assert!(!window.is_bound());
        assert_eq!(write(&table, to, WHO), Err(TaggedFault::InvalidStag));
    }
    assert!(weak.upgrade().is_none(), "a window kept the memory");
    assert_eq!(table.len(), 5);
}

#[test]
fn a_dropped_window_frees_its_region() {
    let table = table();
    let region = region(&table, 64, ALL);
    let window = window(&table, WindowKind::Type1);
    let to = bind(&table, &window, &region, 0, 64);
    let (late, _) = window.bind(&region, 0, 8, Access::REMOTE_WRITE).unwrap();
    drop(window);
    assert_eq!(write(&table, to, WHO), Err(TaggedFault::InvalidStag));
    assert_eq!(perform(&table, late, WHO), Err(BindError::UnknownTarget));
    region.deregister().unwrap();
}

#[test]
fn binds_are_refused_by_name() {
    let table = table();
    let full = region(&table, 64, ALL);
    let unbindable = region(&table, 64, ALL - Access::MW_BIND);
    let read_only = region(&table, 64, Access::MW_BIND | Access::REMOTE_READ);
    let foreign = MemoryRegion::register(
        &table,
        PD + 1,
        Backing::Owned(Arc::new(Buffer::zeroed(64).unwrap())),
        ALL,
        None,
    )
    .unwrap();
    let window = window(&table, WindowKind::Type1);
    let good = BindWindow {
        rkey: window.rkey(),
        region: full.lkey(),
        addr: full.addr(),
        len: 64,
        access: Access::REMOTE_WRITE,
    };
    let over = |r: &MemoryRegion| BindWindow { region: r.lkey(), addr: r.addr(), ..good };
    let cases = [
        (BindWindow { rkey: good.rkey ^ 0x100, ..good }, BindError::UnknownTarget),
        (BindWindow { rkey: full.rkey(), ..good }, BindError::UnknownTarget),
        (BindWindow { region: good.region ^ 1, ..good }, BindError::UnknownRegion),
        (over(&foreign), BindError::OtherDomain),
        (over(&unbindable), BindError::Rights),
        (over(&read_only), BindError::Rights),
        (BindWindow { access: Access::REMOTE_ATOMIC, ..over(&read_only) }, BindError::Rights),
        (BindWindow { access: Access::LOCAL_WRITE, ..good }, BindError::Access),
        (BindWindow { access: Access::empty(), ..good }, BindError::Access),
        (BindWindow { access: Access::ZERO_BASED, ..good }, BindError::Access),
        (BindWindow { len: 65, ..good }, BindError::Bounds),
        (BindWindow { addr: good.addr - 1, ..good }, BindError::Bounds),
        (BindWindow { addr: u64::MAX, ..good }, BindError::Bounds),
        (BindWindow { len: u64::MAX, ..good }, BindError::Bounds),
        (
            BindWindow {
                addr: good.addr + 4,
                len: 8,
                access: Access::REMOTE_ATOMIC | Access::ZERO_BASED,
                ..good
            },
            BindError::Misaligned,
        ),
    ];
    for (request, error) in cases {
        assert_eq!(table.bind_window(&request, WHO), Err(error), "{request:?}");
        assert!(!window.is_bound());
    }
    assert_eq!(table.bind_window(&good, OTHER_PD), Err(BindError::OtherDomain));
    assert_eq!(
        table.bind_window(&BindWindow { access: Access::REMOTE_READ, ..over(&read_only) }, WHO),
        Ok(())
    );
    assert_eq!(table.bind_window(&good, WHO), Ok(()), "a type 1 window moves");
    // The window's key is no region to bind over, and the refusals left no trace.
    assert_eq!(
        table.bind_window(&BindWindow { region: window.rkey(), ..good }, WHO),
        Err(BindError::UnknownRegion)
    );
    drop(window);
    for region in [full, unbindable, read_only, foreign] {
        region.deregister().unwrap();
    }
}

#[test]
fn window_requests_are_checked_when_they_are_made() {
    let table = table();
    let window = window(&table, WindowKind::Type2);
    let region = region(&table, 64, Access::MW_BIND);
    let plain = super::region(&table, 64, Access::LOCAL_WRITE);
    let refuse =
        |region: &MemoryRegion, offset, len, access| window.bind(region, offset, len, access).unwrap_err();
    assert!(matches!(refuse(&region, 1, 64, Access::REMOTE_READ), Error::OutOfRange { .. }));
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::empty(), Access::MW_BIND] {
        assert!(matches!(refuse(&region, 0, 64, access), Error::AccessRights { .. }), "{access:?}");
    }
    assert!(matches!(refuse(&plain, 0, 64, Access::REMOTE_READ), Error::AccessRights { .. }));
    let other = MemoryWindow::allocate(&table, PD + 1, WindowKind::Type2).unwrap();
    assert!(matches!(other.bind(&region, 0, 8, Access::REMOTE_READ), Err(Error::OtherDomain)));
}

#[test]
fn a_fast_region_lives_from_registration_to_invalidation() {
    let table = table();
    let source = region(&table, 256, Access::LOCAL_WRITE);
    let fast = FastRegion::allocate(&table, PD, 128).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mut dead: Vec<RemoteBuffer> = Vec::new();
    for round in 0..300u64 {
        assert!(!fast.is_valid());
        let offset = round % 128;
        let (op, to) = fast.register(&source, offset, 128, access, Some(0x7000)).unwrap();
        assert_eq!(write(&table, to, WHO), Err(TaggedFault::InvalidStag), "valid before the request");
        perform(&table, op, WHO).unwrap();
        assert_eq!((to.addr, to.len, to.rkey), (0x7000, 128, fast.rkey()));
        assert_eq!(perform(&table, op, WHO), Err(BindError::StillValid));
        table.place(Stag(to.rkey), 0x7000 + 5, &[round as u8], WHO).unwrap();
        assert_eq!(content(&source)[offset as usize + 5], round as u8);
        assert_eq!(write(&table, to, OTHER_QP), Ok(()), "a fast region serves its domain");
        let sge = to.as_local(1, 4);
        let segment = table.local(sge.lkey, sge.addr, sge.len, true, PD).unwrap();
        segment.enter().unwrap().copy_in(0, &[8; 4]);
        if round % 2 == 0 {
            table.invalidate_remote(Stag(to.rkey), WHO).unwrap();
        } else {
            table.invalidate_local(Stag(to.rkey), WHO).unwrap();
        }
        assert_eq!(segment.enter().map(drop), Err(TaggedFault::InvalidStag));
        dead.push(to);
        // The last 255 keys are all dead; then they come round.
        for to in dead.iter().rev().take(255) {
            assert_eq!(write(&table, *to, WHO), Err(TaggedFault::InvalidStag));
        }
    }
    source.deregister().unwrap();
}

#[test]
fn fast_registrations_are_refused_by_name() {
    let table = table();
    let source = region(&table, 256, ALL);
    let read_only = region(&table, 256, Access::REMOTE_READ);
    let fast = FastRegion::allocate(&table, PD, 128).unwrap();
    let window = window(&table, WindowKind::Type2);
    let good = FastRegister {
        rkey: fast.rkey(),
        region: source.lkey(),
        addr: source.addr(),
        len: 128,
        iova: 0,
        access: Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
    };
    let cases = [
        (FastRegister { rkey: window.rkey(), ..good }, BindError::UnknownTarget),
        (FastRegister { rkey: source.rkey(), ..good }, BindError::UnknownTarget),
        (FastRegister { region: fast.rkey(), ..good }, BindError::UnknownRegion),
        (FastRegister { region: read_only.lkey(), addr: read_only.addr(), ..good }, BindError::Rights),
        (FastRegister { access: Access::REMOTE_WRITE, ..good }, BindError::Access),
        (FastRegister { access: Access::MW_BIND, ..good }, BindError::Access),
        (FastRegister { len: 129, ..good }, BindError::Bounds),
        (FastRegister { addr: good.addr + 200, ..good }, BindError::Bounds),
        (FastRegister { iova: u64::MAX - 126, ..good }, BindError::Bounds),
        (FastRegister { iova: 4, ..good }, BindError::Misaligned),
    ];
    for (request, error) in cases {
        assert_eq!(table.fast_register(&request, WHO), Err(error), "{request:?}");
    }
    assert_eq!(table.fast_register(&good, OTHER_PD), Err(BindError::OtherDomain));
    assert_eq!(table.fast_register(&good, WHO), Ok(()));
    let refused = source.deregister().unwrap_err();
    assert!(matches!(refused.error, Error::RegionBusy { bound: 1 }));
    assert!(fast.register(&refused.region, 0, 129, Access::empty(), None).is_err());
    // A window's request cannot be carried out on a fast region.
    let request = BindWindow {
        rkey: fast.rkey(),
        region: refused.region.lkey(),
        addr: refused.region.addr(),
        len: 8,
        access: Access::REMOTE_READ,
    };
    assert_eq!(table.bind_window(&request, WHO), Err(BindError::UnknownTarget));
}

#[test]
fn a_dropped_fast_region_releases_its_source() {
    let table = table();
    let source = region(&table, 64, ALL);
    let fast = FastRegion::allocate(&table, PD, 64).unwrap();
    let (op, to) = fast.register(&source, 0, 64, Access::REMOTE_READ, None).unwrap();
    perform(&table, op, WHO).unwrap();
    drop(fast);
    assert_eq!(table.fetch(Stag(to.rkey), to.addr, &mut [0], WHO), Err(TaggedFault::InvalidStag));
    source.deregister().unwrap();
    assert_eq!(table.len(), 0);
}

#[test]
fn bind_error_codes_are_distinct_and_not_zero() {
    assert_eq!(BindError::UnknownTarget.code(), 1);
    assert_eq!(BindError::Misaligned.code(), 8);
}

/// Binds, invalidations, deregistrations and placements at once: no crash, no leak, nothing placed in a
/// region that is gone.
#[test]
fn windows_and_regions_race_on_threads() {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
    const ROUNDS: usize = 2000;
    let table = table();
    let (stop, rkey) = (AtomicBool::new(false), AtomicU32::new(0));
    let buffer = Arc::new(Buffer::zeroed(4096).unwrap());
    let weak = Arc::downgrade(&buffer);
    std::thread::scope(|s| {
        let peer = s.spawn(|| {
            let mut invalidated = 0;
            while !stop.load(SeqCst) {
                let stag = Stag(rkey.load(SeqCst));
                let _ = table.place(stag, 0, &[1; 4096], WHO);
                invalidated += usize::from(table.invalidate_remote(stag, WHO).is_ok());
            }
            invalidated
        });
        let stop = StopOnDrop(&stop);
        let window = window(&table, WindowKind::Type2);
        let mut bound = 0;
        for round in 0..ROUNDS {
            let backing = Backing::Owned(buffer.clone());
            let region = MemoryRegion::register(&table, PD, backing, ALL, Some(0)).unwrap();
            let (op, to) = window.bind(&region, 0, 4096, Access::REMOTE_WRITE).unwrap();
            bound += usize::from(perform(&table, op, WHO).is_ok());
            rkey.store(to.rkey, SeqCst);
            match round % 3 {
                0 => drop(region),
                1 => {
                    let _ = table.invalidate_local(Stag(to.rkey), WHO);
                    region.deregister().unwrap();
                }
                _ => {
                    perform(&table, window.unbind(), WHO).unwrap();
                    region.deregister().unwrap();
                }
            }
            assert!(!window.is_bound());
        }
        assert_eq!(bound, ROUNDS);
        drop(stop);
        peer.join().unwrap();
    });
    drop(buffer);
    assert!(weak.upgrade().is_none());
    assert_eq!(table.len(), 0);
}
