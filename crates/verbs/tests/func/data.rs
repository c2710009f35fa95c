//! Payloads of every shape: inline, scattered, empty, and memory of every origin.
#![expect(unsafe_code, reason = "registers and unmaps memory of the caller's")]

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use rnic_verbs::iwarp::mpa::startup::{CrcPolicy, Policy};
use rnic_verbs::iwarp::{Fault, TaggedFault};
use rnic_verbs::{
    Access, Buffer, CompletionOp, ConnPolicy, End, Error, FpduPolicy, MemoryRegion, Payload, QpInit, QpState,
    RecvWr, RemoteBuffer, SendFlags, SendOp, SendWr, Sge, Status,
};

use crate::common::{PATIENCE, REMOTE, Side, pair, pair_with, pattern};

#[test]
fn inline_data_is_taken_when_it_is_posted() {
    let (a, b) = pair_with(&ConnPolicy::default(), |i| i.inline(512));
    let (dst, target) = (b.mr(6 * 512), b.mr(512));
    let lens = [0, 1, 63, 64, 511, 512];
    // Not sent before the buffer is used again.
    a.qp.modify(QpState::Sqd).unwrap();
    let mut buf = [0; 512];
    for (i, len) in lens.into_iter().enumerate() {
        b.qp.post_recv(&RecvWr::new(i as u64, &[dst.sge(512 * i as u64, 512)])).unwrap();
        buf[..len].copy_from_slice(&pattern(len, i as u64));
        a.qp.post_send(&SendWr::send_inline(i as u64, &buf[..len])).unwrap();
    }
    buf.copy_from_slice(&pattern(512, 99));
    a.qp.post_send(&SendWr::write_inline(9, &buf, target.remote())).unwrap();
    buf.fill(0xee);
    a.qp.modify(QpState::Rts).unwrap();
    for (i, len) in lens.into_iter().enumerate() {
        assert_eq!((b.completion().len, a.completion().status), (len as u32, Status::Success));
        let mut got = vec![0; len];
        dst.read_at(512 * i as u64, &mut got).unwrap();
        assert!(got == pattern(len, i as u64), "{len}");
    }
    assert_eq!(a.completion().wr_id, 9);
    let back = a.mr(512);
    a.qp.post_send(&SendWr::read(10, &[back.sge(0, 512)], target.remote())).unwrap();
    a.completion();
    assert!(Side::bytes(&target) == pattern(512, 99) && Side::bytes(&back) == pattern(512, 99));
}

#[test]
fn inline_data_has_a_limit_and_goes_with_send_and_write_only() {
    let (a, b) = pair_with(&ConnPolicy::default(), |i| i.inline(100));
    let long = [0; 101];
    let refused = a.qp.post_send(&SendWr::send_inline(0, &long));
    assert!(matches!(refused, Err(Error::Limit { value: 101, limit: 100, .. })), "{refused:?}");
    let r = b.mr(8).remote();
    let op = SendOp::Read { raddr: r.addr, rkey: r.rkey };
    let wr = SendWr { wr_id: 0, op, payload: Payload::Inline(&long[..8]), flags: SendFlags::SIGNALED };
    assert!(matches!(a.qp.post_send(&wr), Err(Error::Invalid(_))));
    let init = QpInit::new(&a.cq).inline(513);
    assert!(matches!(a.pd.create_qp(&init), Err(Error::Limit { what: "max_inline", limit: 512, .. })));
}

/// 32 pieces of odd lengths (some empty) at odd addresses, with gaps between them; how long all are.
fn scattered(mr: &MemoryRegion, seed: u64) -> (Vec<Sge>, u32) {
    let (mut list, mut at, mut total) = (Vec::new(), 1 + seed % 7, 0);
    for i in 0..32u64 {
        let len = match (i * 7 + seed) % 5 {
            0 => 0,
            1 => 1,
            2 => 3,
            3 => 1461,
            _ => 4099 - i,
        } as u32;
        list.push(mr.sge(at, len));
        at += u64::from(len) + 1 + (i + seed) % 9;
        total += len;
    }
    assert!(at <= mr.len());
    (list, total)
}

/// The last elements changed so that the list has `len` bytes.
fn fitted((mut list, total): (Vec<Sge>, u32), len: u32) -> Vec<Sge> {
    let mut surplus = total.checked_sub(len).unwrap();
    for sge in list.iter_mut().rev() {
        let cut = surplus.min(sge.len);
        sge.len -= cut;
        surplus -= cut;
    }
    list
}

fn gathered(mr: &MemoryRegion, list: &[Sge]) -> Vec<u8> {
    let mut out = Vec::new();
    for sge in list {
        let mut part = vec![0; sge.len as usize];
        mr.read_at(sge.addr - mr.addr(), &mut part).unwrap();
        out.extend(part);
    }
    out
}

fn framings() -> Vec<ConnPolicy> {
    let mut all = Vec::new();
    for (crc, want_markers, fpdu) in [
        (CrcPolicy::Off, false, FpduPolicy::Mss),
        (CrcPolicy::Off, false, FpduPolicy::Bytes(1001)),
        (CrcPolicy::On, false, FpduPolicy::Large),
        (CrcPolicy::On, true, FpduPolicy::Bytes(777)),
    ] {
        let mut policy = ConnPolicy::default();
        policy.mpa = Policy { crc, want_markers, ..Policy::default() };
        policy.fpdu = fpdu;
        all.push(policy);
    }
    all
}

#[test]
fn thirty_two_pieces_at_odd_places_on_every_side_of_every_operation() {
    for policy in framings() {
        let (a, b) = pair_with(&policy, |i| i.sge(32));
        let (src, dst, plain) = (a.mr(200_000), b.mr(200_000), b.mr(100_000));
        for seed in 0..6 {
            src.write_at(0, &pattern(200_000, seed)).unwrap();
            dst.fill(0, 200_000, 0xaa).unwrap();
            let (out, into) = (scattered(&src, seed), scattered(&dst, seed + 3));
            let len = out.1.min(into.1);
            let (out, into) = (fitted(out, len), fitted(into, len));
            let wanted = gathered(&src, &out);
            // Gather to scatter.
            b.qp.post_recv(&RecvWr::new(1, &into)).unwrap();
            a.qp.post_send(&SendWr::send(2, &out)).unwrap();
            assert_eq!((b.completion().len, a.completion().status), (len, Status::Success));
            assert!(gathered(&dst, &into) == wanted, "{policy:?} {seed}");
            // What lies between the pieces is untouched.
            let all = Side::bytes(&dst);
            let touched: usize = all.iter().filter(|b| **b != 0xaa).count();
            let own: usize = wanted.iter().filter(|b| **b != 0xaa).count();
            assert_eq!(touched, own, "{policy:?} {seed}");
            // Gather to one place, and from there back to scattered pieces.
            a.qp.post_send(&SendWr::write(3, &out, plain.remote())).unwrap();
            assert_eq!(a.completion().status, Status::Success);
            let into = fitted(scattered(&src, seed + 1), len.min(scattered(&src, seed + 1).1));
            let len: u32 = into.iter().map(|s| s.len).sum();
            a.qp.post_send(&SendWr::read(4, &into, plain.remote())).unwrap();
            let c = a.completion();
            assert_eq!((c.opcode, c.status, c.len), (CompletionOp::Read, Status::Success, len));
            let mut there = vec![0; len as usize];
            plain.read_at(0, &mut there).unwrap();
            assert!(gathered(&src, &into) == there, "{policy:?} {seed}");
        }
    }
}

#[test]
fn longer_lists_are_refused() {
    let (a, b) = pair_with(&ConnPolicy::default(), |i| i.sge(32));
    let mr = a.mr(64);
    let list = [mr.sge(0, 1); 33];
    let refused = a.qp.post_send(&SendWr::send(0, &list));
    assert!(matches!(refused, Err(Error::Limit { what: "num_sge", value: 33, limit: 32 })), "{refused:?}");
    assert!(matches!(a.qp.post_recv(&RecvWr::new(0, &list)), Err(Error::Limit { .. })));
    assert!(a.pd.create_qp(&QpInit::new(&a.cq).sge(33)).is_err());
    drop(b);
}

/// RFC 5040 §4.4: with no byte to touch, keys and addresses are not looked at.
#[test]
fn nothing_can_be_sent_received_written_and_read() {
    let nowhere = RemoteBuffer { rkey: 0x1234_5678, addr: 0xffff_ffff_ffff_ffff, len: 0 };
    for policy in framings() {
        let (a, b) = pair_with(&policy, |i| i);
        let (x, y) = (a.mr(0), b.mr(0));
        assert!(x.is_empty() && x.lkey() != y.lkey());
        let empty = Sge { addr: 77, len: 0, lkey: 0xdead_beef };
        let lists: [&[Sge]; 4] = [&[], &[empty], &[empty, x.sge(0, 0)], &[x.sge(0, 0)]];
        for (i, sges) in lists.into_iter().enumerate() {
            b.qp.post_recv(&RecvWr::new(i as u64, &[])).unwrap();
            a.qp.post_send(&SendWr::write(10, sges, nowhere)).unwrap();
            a.qp.post_send(&SendWr::read(20, sges, nowhere)).unwrap();
            a.qp.post_send(&SendWr::write(30, sges, y.remote())).unwrap();
            a.qp.post_send(&SendWr::read(40, sges, y.remote())).unwrap();
            a.qp.post_send(&SendWr::send(50, sges)).unwrap();
            let c = b.completion();
            assert_eq!((c.wr_id, c.len, c.status), (i as u64, 0, Status::Success), "{policy:?}");
            let done: Vec<_> = a.completions(5).iter().map(|c| (c.wr_id, c.len, c.status)).collect();
            assert_eq!(done, [10, 20, 30, 40, 50].map(|id| (id, 0, Status::Success)), "{policy:?}");
        }
        // Into a receive that has room.
        let mr = b.mr(8);
        b.qp.post_recv(&RecvWr::new(9, &[mr.sge(0, 8)])).unwrap();
        a.qp.post_send(&SendWr::send_inline(9, &[])).unwrap();
        assert_eq!((b.completion().len, a.completion().status), (0, Status::Success));
    }
}

#[test]
fn a_memfd_region_is_seen_through_its_file() {
    let (a, b) = pair();
    let dst = b.pd.register_buffer(Buffer::memfd(10_000).unwrap(), REMOTE).unwrap();
    let src = a.mr(10_000);
    src.write_at(0, &pattern(10_000, 4)).unwrap();
    let fd = dst.buffer().unwrap().memfd_fd().unwrap().try_clone_to_owned().unwrap();
    let mut file = std::fs::File::from(fd);
    a.qp.post_send(&SendWr::write(1, &[src.sge(0, 10_000)], dst.remote()).unsignaled()).unwrap();
    a.qp.post_send(&SendWr::read(2, &[src.sge(0, 1)], dst.remote())).unwrap();
    assert_eq!(a.completion().wr_id, 2);
    let mut got = vec![0; 10_000];
    file.read_exact_at(&mut got, 0).unwrap();
    assert!(got == pattern(10_000, 4));
    // And what is written to the file is what a peer reads.
    file.seek(SeekFrom::Start(5000)).unwrap();
    file.write_all(b"from the file").unwrap();
    a.qp.post_send(&SendWr::read(3, &[src.sge(0, 13)], dst.remote().slice(5000, 13).unwrap())).unwrap();
    a.completion();
    assert_eq!(&Side::bytes(&src)[..13], b"from the file");
    // The size is fixed: nobody can cut the memory off.
    assert!(file.set_len(0).is_err());
}

#[test]
fn memory_of_a_vector_is_registered_as_it_is() {
    let (a, b) = pair();
    let src = a.pd.register_buffer(Buffer::from(pattern(5001, 8)), Access::empty()).unwrap();
    let dst = b.mr(5001);
    b.qp.post_recv(&RecvWr::new(0, &[dst.sge(0, 5001)])).unwrap();
    a.qp.post_send(&SendWr::send(0, &[src.sge(0, 5001)])).unwrap();
    assert_eq!(b.completion().len, 5001);
    assert!(Side::bytes(&dst) == pattern(5001, 8));
}

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// Memory of the caller's own, mapped.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Self {
        use rustix::mm::{MapFlags, ProtFlags};
        let (rw, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGES * PAGE, rw, private) };
        Self(base.unwrap().cast())
    }

    fn register(&self, side: &Side, iova: Option<u64>) -> MemoryRegion {
        // SAFETY: nothing in this process refers to the pages; unmapped ones answer EFAULT by contract.
        unsafe { side.pd.register_raw(self.0, PAGES * PAGE, REMOTE, iova) }.unwrap()
    }

    /// Takes the pages from `first` on away.
    fn unmap(&self, first: usize) {
        // SAFETY: our own mapping; nothing of ours is there any more.
        unsafe { rustix::mm::munmap(self.0.add(first * PAGE).cast(), (PAGES - first) * PAGE) }.unwrap();
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        // SAFETY: mapped, and no peer writes to it now.
        unsafe { std::slice::from_raw_parts(self.0.add(at), len) }.to_vec()
    }
}

#[test]
fn memory_of_the_callers_is_reached_under_the_address_it_was_given() {
    let (a, b) = pair();
    let pages = Pages::new();
    let dst = pages.register(&b, Some(0x7000_0000_0000));
    assert_eq!((dst.addr(), dst.remote().addr), (0x7000_0000_0000, 0x7000_0000_0000));
    let src = a.mr(100_000);
    src.write_at(0, &pattern(100_000, 2)).unwrap();
    let target = dst.remote().slice(100, 100_000).unwrap();
    a.qp.post_send(&SendWr::write(1, &[src.sge(0, 100_000)], target).unsignaled()).unwrap();
    a.qp.post_send(&SendWr::read(2, &[src.sge(0, 8)], target)).unwrap();
    a.completion();
    assert!(pages.read(100, 100_000) == pattern(100_000, 2));
    b.qp.post_recv(&RecvWr::new(1, &[dst.sge(7, 100)])).unwrap();
    a.qp.post_send(&SendWr::send_inline(3, b"into the caller's pages")).unwrap();
    assert_eq!(b.completion().len, 23);
    assert_eq!(pages.read(7, 23), b"into the caller's pages");
}

/// What a peer does to memory that was unmapped under its registration.
#[derive(Clone, Copy, Debug)]
enum Touch {
    Write(u32),
    Read(u32),
    Atomic,
    Receive(u32),
}

#[test]
fn memory_unmapped_under_a_registration_fails_the_request_and_not_the_process() {
    use Touch::*;
    // Short ones go through staging, long ones straight to the place; both ends without and with CRC.
    for crc in [CrcPolicy::Off, CrcPolicy::On] {
        for touch in
            [Write(100), Write(200_000), Read(100), Read(200_000), Atomic, Receive(100), Receive(200_000)]
        {
            let mut policy = ConnPolicy::default();
            policy.mpa.crc = crc;
            let (a, b) = pair_with(&policy, |i| i);
            let pages = Pages::new();
            let dst = pages.register(&b, None);
            let mine = a.mr(200_000);
            let word = mine.sge(0, 8);
            let len = match touch {
                Write(n) | Read(n) | Receive(n) => n,
                Atomic => 8,
            };
            b.qp.post_recv(&RecvWr::new(5, &[dst.sge(0, 200_000)])).unwrap();
            pages.unmap(0);
            let sge = [mine.sge(0, len)];
            let wr = match touch {
                Write(_) => SendWr::write(1, &sge, dst.remote()),
                Read(_) => SendWr::read(1, &sge, dst.remote()),
                Atomic => SendWr::fetch_add(1, &word, dst.remote(), 1),
                Receive(_) => SendWr::send(1, &sge),
            };
            a.qp.post_send(&wr).unwrap();
            let end = b.qp.wait_disconnected(Some(PATIENCE));
            let named = match (touch, end) {
                (Write(_), Some(End::Fault(Fault::Write(_, f)))) => f,
                (Atomic, Some(End::Fault(Fault::Atomic(_, f)))) => f,
                // A response under way cannot be told from a request of ours: the stream breaks off.
                (Read(_), Some(End::SourceLost(f) | End::Fault(Fault::ReadSource(_, f)))) => f,
                (Receive(_), Some(End::Fault(Fault::LocalMemory))) => TaggedFault::Unreachable,
                other => panic!("{crc:?} {other:?}"),
            };
            assert_eq!(named, TaggedFault::Unreachable, "{crc:?} {touch:?}");
            let told = b.completion();
            let expected =
                if matches!(touch, Receive(_)) { Status::LocalProtection } else { Status::WrFlush };
            assert_eq!((told.wr_id, told.status), (5, expected), "{crc:?} {touch:?}");
            assert!(a.qp.wait_disconnected(Some(PATIENCE)).is_some());
            if matches!(touch, Read(_) | Atomic) {
                assert!(!a.completion().status.is_success(), "{crc:?} {touch:?}");
            }
        }
    }
}

#[test]
fn a_request_of_ours_over_memory_that_is_gone_fails_alone_in_its_queue_pair() {
    let (a, b) = pair();
    let pages = Pages::new();
    let mine = pages.register(&a, None);
    let target = b.mr(200_000);
    pages.unmap(1);
    for len in [8192, 200_000] {
        let other = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
        let far = b.pd.create_qp(&QpInit::new(&b.cq)).unwrap();
        crate::common::join_qps(&other, &b.device, &far, &ConnPolicy::default());
        other.post_send(&SendWr::write(1, &[mine.sge(0, len)], target.remote())).unwrap();
        let c = a.completion();
        assert_eq!((c.wr_id, c.status, c.qp_num), (1, Status::LocalProtection, other.num()));
        assert_eq!(other.end(), Some(End::SourceLost(TaggedFault::Unreachable)));
        assert!(far.wait_disconnected(Some(PATIENCE)).is_some());
        // A Read's sink likewise.
        let (other, far) =
            (a.pd.create_qp(&QpInit::new(&a.cq)).unwrap(), b.pd.create_qp(&QpInit::new(&b.cq)).unwrap());
        crate::common::join_qps(&other, &b.device, &far, &ConnPolicy::default());
        other.post_send(&SendWr::read(2, &[mine.sge(0, len)], target.remote())).unwrap();
        let c = a.completion();
        assert_eq!((c.wr_id, c.status), (2, Status::LocalProtection), "{len}");
    }
    a.qp.post_send(&SendWr::write(3, &[mine.sge(0, 100)], target.remote())).unwrap();
    assert_eq!(a.completion().status, Status::Success);
}
