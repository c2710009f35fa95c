//! Every operation end to end over loopback TCP.

mod common;

use common::{pair, pair_with, pattern};
use rnic_verbs::iwarp::mpa::startup::{CrcPolicy, Policy, Revision, RtrOffer};
use rnic_verbs::{CompletionOp, ConnPolicy, FpduPolicy, RecvWr, SendWr, Status};

fn policies() -> Vec<(&'static str, ConnPolicy)> {
    let with = |mpa: Policy, fpdu| {
        let mut p = ConnPolicy::default();
        (p.mpa, p.fpdu) = (mpa, fpdu);
        p
    };
    let base = Policy::default;
    let rtr = |write, read, send| Policy { p2p: Some(RtrOffer { write, read, send }), ..base() };
    vec![
        ("plain", with(base(), FpduPolicy::Mss)),
        ("crc", with(Policy { crc: CrcPolicy::On, ..base() }, FpduPolicy::Mss)),
        ("markers", with(Policy { want_markers: true, ..base() }, FpduPolicy::Mss)),
        ("both", with(Policy { crc: CrcPolicy::On, want_markers: true, ..base() }, FpduPolicy::Bytes(1500))),
        ("small", with(base(), FpduPolicy::Bytes(1500))),
        ("large", with(base(), FpduPolicy::Large)),
        ("v1", with(Policy { revision: Revision::V1, ..base() }, FpduPolicy::Mss)),
        ("rtr write", with(rtr(true, false, false), FpduPolicy::Mss)),
        ("rtr read", with(rtr(false, true, false), FpduPolicy::Mss)),
        ("rtr send", with(rtr(false, false, true), FpduPolicy::Mss)),
    ]
}

const SIZES: [usize; 9] = [0, 1, 7, 64, 1000, 4097, 65_536, 100_001, 3_000_000];

#[test]
fn sends_of_all_sizes_arrive_in_order() {
    // rule 5040-3.2-1, 5040-5.3-1, 5040-5.5-3
    for (name, policy) in policies() {
        let (a, b) = pair_with(&policy, |i| i);
        for (n, len) in SIZES.into_iter().enumerate() {
            let (src, dst) = (a.mr(len), b.mr(len));
            let data = pattern(len, n as u64);
            src.write_at(0, &data).unwrap();
            b.qp.post_recv(&RecvWr::new(n as u64, &[dst.sge(0, len as u32)])).unwrap();
            a.qp.post_send(&SendWr::send(7, &[src.sge(0, len as u32)])).unwrap();
            let c = b.completion();
            assert_eq!(
                (c.status, c.opcode, c.len, c.wr_id),
                (Status::Success, CompletionOp::Recv, len as u32, n as u64),
                "{name} {len}"
            );
            let mut got = vec![0; len];
            dst.read_at(0, &mut got).unwrap();
            assert!(got == data, "{name} {len}");
            assert_eq!(a.completion().status, Status::Success, "{name} {len}");
        }
    }
}

#[test]
fn writes_and_reads_of_all_sizes_move_the_bytes() {
    // rule 5040-3.2-1, 5040-5.2.2-3
    for (name, policy) in policies() {
        let (a, b) = pair_with(&policy, |i| i);
        for (n, len) in SIZES.into_iter().enumerate() {
            let (src, dst, back) = (a.mr(len), b.mr(len), a.mr(len));
            let data = pattern(len, 100 + n as u64);
            src.write_at(0, &data).unwrap();
            let sge = [src.sge(0, len as u32)];
            a.qp.post_send(&SendWr::write(1, &sge, dst.remote()).unsignaled()).unwrap();
            a.qp.post_send(&SendWr::read(2, &[back.sge(0, len as u32)], dst.remote())).unwrap();
            let c = a.completion();
            assert_eq!(
                (c.wr_id, c.status, c.opcode),
                (2, Status::Success, CompletionOp::Read),
                "{name} {len}"
            );
            let mut got = vec![0; len];
            back.read_at(0, &mut got).unwrap();
            assert!(got == data, "{name} {len}");
        }
    }
}

#[test]
fn atomics_and_immediate_data_between_peers_that_know_rfc_7306() {
    // rule 7306-5.4-2, 7306-6.1-1
    let (a, b) = pair();
    let (word, old) = (b.mr(8), a.mr(8));
    word.store_u64(0, 40).unwrap();
    let sge = old.sge(0, 8);
    a.qp.post_send(&SendWr::fetch_add(1, &sge, word.remote(), 2)).unwrap();
    assert_eq!(
        (a.completion().status, old.load_u64(0).unwrap(), word.load_u64(0).unwrap()),
        (Status::Success, 40, 42)
    );
    a.qp.post_send(&SendWr::cmp_swap(2, &sge, word.remote(), 42, 7)).unwrap();
    assert_eq!(
        (a.completion().status, old.load_u64(0).unwrap(), word.load_u64(0).unwrap()),
        (Status::Success, 42, 7)
    );
    a.qp.post_send(&SendWr::swap(3, &sge, word.remote(), 9)).unwrap();
    assert_eq!(
        (a.completion().status, old.load_u64(0).unwrap(), word.load_u64(0).unwrap()),
        (Status::Success, 7, 9)
    );
    b.qp.post_recv(&RecvWr::new(5, &[])).unwrap();
    a.qp.post_send(&SendWr::immediate(4, 0x1234_5678_9abc_def0)).unwrap();
    let c = b.completion();
    assert_eq!((c.opcode, c.immediate), (CompletionOp::RecvImmediate, Some(0x1234_5678_9abc_def0)));
}

#[test]
fn one_sided_operations_progress_while_the_target_does_nothing() {
    // rule 5040-5.1-1, 5040-5.2-1
    let (a, b) = pair();
    let (src, dst) = (a.mr(100_000), b.mr(100_000));
    src.write_at(0, &pattern(100_000, 5)).unwrap();
    for i in 0..50 {
        a.qp.post_send(&SendWr::write(i, &[src.sge(0, 100_000)], dst.remote()).unsignaled()).unwrap();
        a.qp.post_send(&SendWr::read(i, &[src.sge(0, 100_000)], dst.remote())).unwrap();
        assert_eq!(a.completion().status, Status::Success);
    }
    let mut got = vec![0; 100_000];
    dst.read_at(0, &mut got).unwrap();
    assert!(got == pattern(100_000, 5));
    drop(b);
}
