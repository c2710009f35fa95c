//! Memory of the caller, which may go away.
#![expect(unsafe_code, reason = "vouches for and unmaps raw memory")]

use iwarp::TaggedFault;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::*;

const PAGE: usize = 4096;

/// Two pages that the test may unmap.
fn pages() -> *mut u8 {
    // SAFETY: a new mapping.
    unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            2 * PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .unwrap()
    .cast()
}

fn register(table: &Arc<MemoryTable>, base: *mut u8) -> MemoryRegion {
    // SAFETY: the pages live until the test unmaps them; after that only checked copies are made.
    let backing = unsafe { Backing::raw(base, 2 * PAGE) };
    MemoryRegion::register(table, PD, backing, ALL, None).unwrap()
}

#[test]
fn memory_of_the_caller_is_used_in_place() {
    let table = table();
    let mut own = vec![0u8; 64];
    // SAFETY: `own` lives until the end of the test and is not touched while the region is in use.
    let backing = unsafe { Backing::raw(own.as_mut_ptr(), own.len()) };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = MemoryRegion::register(&table, PD, backing, access, None).unwrap();
    assert!(region.buffer().is_none());
    table.place(region.stag(), region.addr() + 1, b"xyz", WHO).unwrap();
    region.deregister().unwrap();
    assert_eq!(&own[..5], b"\0xyz\0");
}

#[test]
fn checked_copies_name_unmapped_memory_and_go_on() {
    let table = table();
    let base = pages();
    let region = register(&table, base);
    let segment = table.local(region.lkey(), region.addr(), 2 * PAGE as u32, true, PD).unwrap();
    let grant = segment.enter().unwrap();
    let mut out = [0; 8];
    grant.copy_in_checked(PAGE - 4, b"abcdefgh").unwrap();
    grant.copy_out_checked(PAGE - 4, &mut out).unwrap();
    assert_eq!(&out, b"abcdefgh");
    // SAFETY: our own second page, touched only through checked copies from here on.
    unsafe { rustix::mm::munmap(base.add(PAGE).cast(), PAGE) }.unwrap();
    assert_eq!(grant.copy_in_checked(PAGE - 4, b"ABCDEFGH"), Err(TaggedFault::Unreachable));
    assert_eq!(grant.copy_out_checked(PAGE + 4, &mut out), Err(TaggedFault::Unreachable));
    grant.copy_in_checked(0, b"ok").unwrap();
    // SAFETY: our own first page.
    unsafe { rustix::mm::mprotect(base.cast(), PAGE, MprotectFlags::READ) }.unwrap();
    assert_eq!(grant.copy_in_checked(0, b"no"), Err(TaggedFault::Unreachable));
    grant.copy_out_checked(0, &mut out[..2]).unwrap();
    assert_eq!(&out[..2], b"ok");
    drop(grant);
    region.deregister().unwrap();
    // SAFETY: our own first page; nothing refers to it any more.
    unsafe { rustix::mm::munmap(base.cast(), PAGE) }.unwrap();
}

#[test]
fn checked_copies_of_owned_memory_need_no_kernel() {
    let table = table();
    let region = region(&table, 64, ALL);
    let segment = table.local(region.lkey(), region.addr(), 64, true, PD).unwrap();
    let grant = segment.enter().unwrap();
    grant.copy_in_checked(0, b"hello").unwrap();
    let mut out = [0; 5];
    grant.copy_out_checked(0, &mut out).unwrap();
    assert_eq!(&out, b"hello");
}
