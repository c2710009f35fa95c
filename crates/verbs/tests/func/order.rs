//! What waits for what: fences, read depth, immediate data in the stream, both directions at once, many
//! posters.

use std::collections::HashMap;

use rnic_verbs::iwarp::mpa::startup::{CrcPolicy, Policy};
use rnic_verbs::{Completion, CompletionOp, ConnPolicy, Error, MemoryRegion, RecvWr, SendOp, SendWr, Status};

use crate::common::{PATIENCE, Side, pair, pair_with, pattern, wait_for};

fn depths(ord: u16, ird: u16) -> ConnPolicy {
    let mut policy = ConnPolicy::default();
    policy.mpa = Policy { ord, ird, ..Policy::default() };
    policy
}

/// A fenced Send of a Read's sink carries what was read.
#[test]
fn a_fenced_send_goes_out_behind_the_answer_of_the_read() {
    const LEN: usize = 1 << 20;
    let (a, b) = pair();
    let (sink, src, got) = (a.mr(LEN), b.mr(LEN), b.mr(LEN));
    for round in 0..10 {
        src.write_at(0, &pattern(LEN, round)).unwrap();
        b.qp.post_recv(&RecvWr::new(0, &[got.sge(0, LEN as u32)])).unwrap();
        let sge = [sink.sge(0, LEN as u32)];
        let wrs = [SendWr::read(1, &sge, src.remote()).unsignaled(), SendWr::send(2, &sge).fenced()];
        a.qp.post_send_list(&wrs).unwrap();
        assert_eq!((b.completion().status, a.completion().wr_id), (Status::Success, 2));
        assert!(Side::bytes(&got) == pattern(LEN, round), "round {round}");
    }
}

/// Without a fence a Write does not wait for the Read before it (but completes behind it).
#[test]
fn an_unfenced_request_overtakes_the_answer_but_not_the_completion() {
    use crate::common::raw::{Plays, Raw, Wire};
    let (a, mut raw) = Raw::meet(Plays::Responder, Wire::PLAIN);
    let mr = a.mr(64);
    let sge = [mr.sge(0, 8)];
    let wrs = [
        SendWr::read(1, &sge, mr.remote()),
        SendWr::write(2, &sge, mr.remote()),
        SendWr::send(3, &sge).fenced(),
        SendWr::write(4, &sge, mr.remote()),
    ];
    a.qp.post_send_list(&wrs).unwrap();
    let opcode = |ulpdu: &[u8]| ulpdu[1] & 15;
    assert_eq!((opcode(&raw.next().unwrap()), opcode(&raw.next().unwrap())), (1, 0));
    assert_eq!(a.cq.queued(), 0);
    raw.stream.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    assert!(raw.next().is_err(), "the fenced Send, and what is behind it, waits");
}

#[test]
fn more_reads_and_atomics_than_the_depth_allows_wait_their_turn() {
    for (ord, ird) in [(1, 1), (1, 16), (16, 1), (3, 2), (255, 255)] {
        const N: u64 = 300;
        let (a, b) = pair_with(&depths(ord, ird), |i| i.depth(1024, 16));
        let n = a.qp.negotiated().unwrap();
        assert_eq!(n.ord, ord.min(ird));
        let (src, word, sink, old) =
            (b.mr(64 * N as usize), b.mr(8), a.mr(64 * N as usize), a.mr(8 * N as usize));
        src.write_at(0, &pattern(64 * N as usize, 1)).unwrap();
        for i in 0..N {
            let from = src.remote().slice(64 * i, 64).unwrap();
            a.qp.post_send(&SendWr::read(i, &[sink.sge(64 * i, 64)], from)).unwrap();
            if i.is_multiple_of(3) {
                a.qp.post_send(&SendWr::fetch_add(i, &old.sge(8 * i, 8), word.remote(), 1)).unwrap();
            }
        }
        let mut last = 0;
        for c in a.completions((N + N.div_ceil(3)) as usize) {
            assert_eq!(c.status, Status::Success, "{ord} {ird}");
            assert!(c.wr_id >= last);
            last = c.wr_id;
        }
        assert!(Side::bytes(&sink) == Side::bytes(&src), "{ord} {ird}");
        assert_eq!(word.load_u64(0).unwrap(), N.div_ceil(3));
        for i in (0..N).step_by(3) {
            assert_eq!(old.load_u64(8 * i).unwrap(), i / 3);
        }
    }
}

/// Nothing can be read where the peer's depth is 0: said when it is posted, not never.
#[test]
fn a_read_that_could_never_start_is_refused() {
    let (a, b) = pair_with(&depths(0, 0), |i| i);
    let (sink, src) = (a.mr(8), b.mr(8));
    let sge = sink.sge(0, 8);
    for wr in [SendWr::read(1, &[sge], src.remote()), SendWr::fetch_add(2, &sge, src.remote(), 1)] {
        let refused = a.qp.post_send(&wr);
        assert!(matches!(refused, Err(Error::Limit { limit: 0, .. })), "{refused:?}");
    }
    a.qp.post_send(&SendWr::write(3, &[sge], src.remote())).unwrap();
    assert_eq!((a.completion().wr_id, a.qp.query().outstanding), (3, 0));
}

#[test]
fn immediate_data_keeps_its_place_among_sends() {
    for crc in [CrcPolicy::Off, CrcPolicy::On] {
        let mut policy = ConnPolicy::default();
        policy.mpa.crc = crc;
        let (a, b) = pair_with(&policy, |i| i);
        let (src, dst) = (a.mr(300_000), b.mr(300_000));
        for i in 0..60 {
            b.qp.post_recv(&RecvWr::new(i, &[dst.sge(0, 300_000)])).unwrap();
            let len = if i.is_multiple_of(7) { 300_000 } else { i as u32 };
            let sge = [src.sge(0, len)];
            let wr = if i.is_multiple_of(2) { SendWr::immediate(i, !i) } else { SendWr::send(i, &sge) };
            a.qp.post_send(&if i.is_multiple_of(3) { wr.solicited() } else { wr }).unwrap();
        }
        for (i, c) in b.completions(60).iter().enumerate() {
            let i = i as u64;
            assert_eq!((c.wr_id, c.status), (i, Status::Success));
            let expected = if i.is_multiple_of(2) {
                (CompletionOp::RecvImmediate, Some(!i), 0)
            } else {
                (CompletionOp::Recv, None, if i.is_multiple_of(7) { 300_000 } else { i as u32 })
            };
            assert_eq!((c.opcode, c.immediate, c.len), expected, "{i}");
        }
    }
}

#[test]
fn without_rfc_7306_its_requests_are_refused_and_the_connection_lives() {
    let mut policy = ConnPolicy::default();
    policy.mpa.extensions = false;
    let (a, b) = pair_with(&policy, |i| i);
    assert!(!a.qp.negotiated().unwrap().extensions);
    let (mine, theirs) = (a.mr(8), b.mr(8));
    let (sge, r) = (mine.sge(0, 8), theirs.remote());
    let (raddr, rkey) = (r.addr, r.rkey);
    let masked = SendOp::FetchAdd { raddr, rkey, add: 1, mask: 1 };
    for wr in [
        SendWr::immediate(1, 5),
        SendWr::fetch_add(2, &sge, r, 1),
        SendWr::cmp_swap(3, &sge, r, 0, 1),
        SendWr::swap(4, &sge, r, 1),
        SendWr { op: masked, ..SendWr::fetch_add(5, &sge, r, 1) },
    ] {
        assert!(matches!(a.qp.post_send(&wr), Err(Error::NotNegotiated)), "{wr:?}");
    }
    a.qp.post_send(&SendWr::write(6, &[sge], r)).unwrap();
    assert_eq!((a.completion().wr_id, theirs.load_u64(0).unwrap()), (6, 0));
}

#[test]
fn messages_that_came_before_their_receives_are_delivered_in_order() {
    let (a, b) = pair();
    let (src, dst) = (a.mr(1000), b.mr(100 * 1000));
    let mut expected = Vec::new();
    for i in 0..100u64 {
        let len = (i * 37 % 1000) as u32;
        src.write_at(0, &pattern(1000, i)).unwrap();
        let sge = [src.sge(0, len)];
        a.qp.post_send(&if i.is_multiple_of(9) { SendWr::immediate(i, i) } else { SendWr::send(i, &sge) })
            .unwrap();
        assert_eq!(a.completion().status, Status::Success);
        expected.push(if i.is_multiple_of(9) {
            Vec::new()
        } else {
            pattern(1000, i)[..len as usize].to_vec()
        });
    }
    wait_for(|| b.qp.counters().rx_held == 100);
    for i in 0..100 {
        b.qp.post_recv(&RecvWr::new(i, &[dst.sge(i * 1000, 1000)])).unwrap();
    }
    for (i, (c, wanted)) in b.completions(100).iter().zip(&expected).enumerate() {
        let i = i as u64;
        assert_eq!((c.wr_id, c.len as usize, c.immediate.is_some()), (i, wanted.len(), i.is_multiple_of(9)));
        if i.is_multiple_of(9) {
            assert_eq!(c.immediate, Some(i));
        } else {
            let mut got = vec![0; wanted.len()];
            dst.read_at(i * 1000, &mut got).unwrap();
            assert!(got == *wanted, "{i}");
        }
    }
}

/// Much more than is held aside: TCP stops the sender, and it goes on with the receives.
#[test]
fn a_sender_is_stopped_at_the_cap_and_resumes() {
    const N: u64 = 200;
    const LEN: u32 = 100_000;
    let (a, b) = pair_with(&ConnPolicy::default(), |i| i.depth(256, 256));
    let (src, dst) = (a.mr(LEN as usize), b.mr(LEN as usize));
    src.write_at(0, &pattern(LEN as usize, 6)).unwrap();
    for i in 0..N {
        a.qp.post_send(&SendWr::send(i, &[src.sge(0, LEN)])).unwrap();
    }
    // Held: 1 MiB; the buffers of TCP have some more, and the rest waits.
    wait_for(|| b.qp.counters().rx_bytes > 1 << 20);
    assert_eq!((b.cq.queued(), b.qp.counters().rx_bytes < u64::from(LEN) * N / 2), (0, true));
    for i in 0..N {
        b.qp.post_recv(&RecvWr::new(i, &[dst.sge(0, LEN)])).unwrap();
        let c = b.completion();
        assert_eq!((c.wr_id, c.status, c.len), (i, Status::Success, LEN));
        assert!(Side::bytes(&dst) == pattern(LEN as usize, 6));
    }
    assert!(a.completions(N as usize).iter().all(|c| c.status == Status::Success));
}

/// One side's work in the test below: keeps its queue full, checks what comes.
fn talk(me: &Side, peer_window: rnic_verbs::RemoteBuffer, own_window: &MemoryRegion, seed: u64, rounds: u64) {
    const LEN: u64 = 30_000;
    let (out, into, back) = (me.mr(LEN as usize), me.mr(16 * LEN as usize), me.mr(LEN as usize));
    let data = pattern(LEN as usize, seed);
    out.write_at(0, &data).unwrap();
    for i in 0..16 {
        me.qp.post_recv(&RecvWr::new(i, &[into.sge(i * LEN, LEN as u32)])).unwrap();
    }
    let peer = pattern(LEN as usize, seed ^ 1);
    let (mut sent, mut received, mut read) = (0, 0, 0);
    let mut waits = 0;
    let mut got = [Completion::default(); 8];
    while received < rounds || read < rounds {
        // Eight in flight at most, so that the peer has receives for them.
        while sent < rounds && sent < read + 4 && sent < received + 8 {
            let (sge, sink) = ([out.sge(0, LEN as u32)], [back.sge(0, LEN as u32)]);
            let wrs = [
                SendWr::write(0, &sge, peer_window).unsignaled(),
                SendWr::send(1, &sge).unsignaled(),
                SendWr::read(2, &sink, peer_window),
            ];
            me.qp.post_send_list(&wrs).unwrap();
            sent += 1;
        }
        let n = me.cq.wait(&mut got, Some(PATIENCE)).unwrap();
        assert!(n > 0, "stuck: sent {sent}, received {received}, read {read}");
        waits += 1;
        for c in &got[..n] {
            assert_eq!(c.status, Status::Success);
            if c.opcode == CompletionOp::Read {
                read += 1;
                assert!(Side::bytes(&back) == data, "what was written is read back");
            } else {
                received += 1;
                let mut message = vec![0; LEN as usize];
                into.read_at(c.wr_id * LEN, &mut message).unwrap();
                assert!(message == peer, "message {received}");
                me.qp.post_recv(&RecvWr::new(c.wr_id, &[into.sge(c.wr_id * LEN, LEN as u32)])).unwrap();
            }
        }
    }
    assert!(waits > 0 && Side::bytes(own_window) == peer);
}

#[test]
fn both_directions_run_at_once() {
    for (crc, want_markers) in [(CrcPolicy::Off, false), (CrcPolicy::On, true)] {
        let mut policy = ConnPolicy::default();
        policy.mpa = Policy { crc, want_markers, ..Policy::default() };
        let (a, b) = pair_with(&policy, |i| i);
        let (wa, wb) = (a.mr(30_000), b.mr(30_000));
        std::thread::scope(|s| {
            s.spawn(|| talk(&a, wb.remote(), &wa, 10, 300));
            s.spawn(|| talk(&b, wa.remote(), &wb, 11, 300));
        });
    }
}

#[test]
fn many_threads_post_to_one_queue_pair() {
    const THREADS: u64 = 8;
    const EACH: u64 = 500;
    let (a, b) = pair_with(&ConnPolicy::default(), |i| i.depth(64, 8192).inline(64));
    b.cq.resize(8192).unwrap();
    let dst = b.mr((THREADS * EACH * 24) as usize);
    for i in 0..THREADS * EACH {
        b.qp.post_recv(&RecvWr::new(i, &[dst.sge(i * 24, 24)])).unwrap();
    }
    let counter = b.mr(8);
    let old = a.mr((THREADS * 8) as usize);
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (a, counter, old) = (&a, counter.remote(), old.sge(t * 8, 8));
            s.spawn(move || {
                for n in 0..EACH {
                    let mut message = [t as u8; 24];
                    message[..8].copy_from_slice(&n.to_ne_bytes());
                    let wrs = [
                        SendWr::send_inline(n, &message).unsignaled(),
                        SendWr::fetch_add(t, &old, counter, 1),
                    ];
                    let mut left: &[SendWr<'_>] = &wrs;
                    // The queue is shared by all and often full.
                    while let Err(e) = a.qp.post_send_list(left) {
                        assert!(matches!(e.error, Error::QueueFull(_)), "{e}");
                        left = &left[e.index..];
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut done = HashMap::new();
        for c in a.completions((THREADS * EACH) as usize) {
            assert_eq!(c.status, Status::Success);
            *done.entry(c.wr_id).or_insert(0) += 1;
        }
        assert!((0..THREADS).all(|t| done[&t] == EACH));
    });
    let mut next = [0; THREADS as usize];
    for c in b.completions((THREADS * EACH) as usize) {
        let mut message = [0; 24];
        dst.read_at(c.wr_id * 24, &mut message).unwrap();
        let t = message[8] as usize;
        assert!(message[8..].iter().all(|x| *x == message[8]));
        // Each thread's own messages are in its order.
        assert_eq!(u64::from_ne_bytes(message[..8].try_into().unwrap()), next[t]);
        next[t] += 1;
    }
    assert_eq!((next, counter.load_u64(0).unwrap()), ([EACH; 8], THREADS * EACH));
}
