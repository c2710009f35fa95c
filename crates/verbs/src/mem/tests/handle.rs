//! The application's own access, and kinds of memory.

use std::os::fd::AsFd;

use super::*;
use crate::error::Error;

#[test]
fn the_owner_reads_and_writes_within_bounds() {
    let table = table();
    let region = region(&table, 100, Access::empty());
    region.write_at(90, &[1; 10]).unwrap();
    region.fill(0, 2, 9).unwrap();
    let mut tail = [0; 11];
    region.read_at(89, &mut tail).unwrap();
    assert_eq!(tail, [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    for (offset, len) in [(90, 11), (101, 0), (u64::MAX, 1), (100, 1)] {
        let refused = region.write_at(offset, &vec![0; len]).unwrap_err();
        assert!(matches!(refused, Error::OutOfRange { size: 100, .. }), "{refused}");
        assert!(region.read_at(offset, &mut vec![0; len]).is_err());
        assert!(region.fill(offset, len, 0).is_err());
    }
    assert!(matches!(region.load_u64(4), Err(Error::Misaligned { .. })));
    assert!(matches!(region.store_u64(96, 1), Err(Error::OutOfRange { .. })));
    region.store_u64(88, u64::MAX).unwrap();
    assert_eq!(region.load_u64(88).unwrap(), u64::MAX);
}

#[test]
fn elements_and_remote_names_carry_the_key() {
    let table = table();
    let region = region_at(&table, 64, ALL, Some(0x8000));
    let sge = region.sge(16, 32);
    assert_eq!((sge.addr, sge.len, sge.lkey), (0x8010, 32, region.stag().0));
    let remote = region.remote();
    assert_eq!((remote.addr, remote.len, remote.rkey), (0x8000, 64, region.lkey()));
    let part = remote.slice(60, 4).unwrap();
    assert_eq!((part.addr, part.len, part.rkey), (0x803c, 4, remote.rkey));
    assert_eq!(remote.slice(60, 5), None);
    assert_eq!(remote.slice(u64::MAX, 2), None);
}

#[test]
fn a_vector_is_registered_without_moving_its_bytes() {
    let table = table();
    for len in [0, 1, 4096, 100_000] {
        let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let (at, copy) = (bytes.as_ptr().addr() as u64, bytes.clone());
        let backing = Backing::Owned(Arc::new(Buffer::from(bytes)));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = MemoryRegion::register(&table, PD, backing, access, None).unwrap();
        if len != 0 {
            assert_eq!(region.addr(), at);
        }
        assert_eq!(content(&region), copy);
    }
    let spare = Buffer::from(Vec::with_capacity(64));
    assert!(spare.is_empty());
}

#[test]
fn memfd_memory_is_seen_through_its_descriptor_and_cannot_be_cut() {
    let table = table();
    let backing = Backing::Owned(Arc::new(Buffer::memfd(5000).unwrap()));
    let region = MemoryRegion::register(&table, PD, backing, ALL, Some(0)).unwrap();
    table.place(region.stag(), 4998, b"ab", WHO).unwrap();
    let fd = region.buffer().unwrap().memfd_fd().unwrap();
    let mut tail = [0; 4];
    let read = rustix::io::pread(fd.as_fd(), &mut tail, 4996).unwrap();
    assert_eq!((read, &tail), (4, b"\0\0ab"));
    assert_eq!(rustix::fs::ftruncate(fd, 0), Err(rustix::io::Errno::PERM));
    assert!(Buffer::memfd(0).unwrap().memfd_fd().is_some());
    assert!(Buffer::zeroed(8).unwrap().memfd_fd().is_none());
}

#[test]
fn memory_that_the_system_does_not_have_is_an_error() {
    let refused = Buffer::zeroed(usize::MAX / 2).unwrap_err();
    assert!(matches!(refused, Error::Os { .. }), "{refused}");
}

#[test]
fn one_buffer_under_two_registrations_is_one_memory() {
    let table = table();
    let buffer = Arc::new(Buffer::zeroed(64).unwrap());
    let writable = MemoryRegion::register(&table, PD, Backing::Owned(buffer.clone()), ALL, Some(0)).unwrap();
    let readable =
        MemoryRegion::register(&table, PD, Backing::Owned(buffer), Access::REMOTE_READ, Some(0)).unwrap();
    table.place(writable.stag(), 5, &[5], WHO).unwrap();
    drop(writable);
    let mut byte = [0];
    table.fetch(readable.stag(), 5, &mut byte, WHO).unwrap();
    assert_eq!(byte, [5]);
}

#[test]
fn a_dropped_region_is_deregistered() {
    // rule 5041-8.2-2
    let table = table();
    let region = region(&table, 8, ALL);
    let (stag, addr) = (region.stag(), region.addr());
    drop(region);
    assert_eq!(table.len(), 0);
    assert_eq!(table.place(stag, addr, &[1], WHO), Err(iwarp::TaggedFault::InvalidStag));
}
