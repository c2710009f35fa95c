//! Every opcode, both ways, over CRC x markers x MULPDU x length, with offsets that are unaligned,
//! beyond 4 GiB and at the very end of the 64 bits.

use iwarp::mpa::frame;
use iwarp::types::{AtomicOp, Opcode};
use rnic_testkit::host::{Region, Rights};
use rnic_testkit::pair::{Config, End, Pair, Work};
use rnic_testkit::pipe::Chunking;
use rnic_testkit::seed::Seed;

const TARGET: u32 = 0x0101;
const SINK: u32 = 0x0202;
const VICTIM: u32 = 0x0303;
/// Bytes of every region.
const LEN: usize = 140_000;

/// Framings and limits: CRC, markers, MULPDU.
fn wires() -> Vec<Config> {
    let mut out = Vec::new();
    for crc in [false, true] {
        for markers in [false, true] {
            for mss in [80, 536, 1460, 9000, 70_000] {
                out.push(Config {
                    crc,
                    markers_to_initiator: markers,
                    markers_to_responder: markers,
                    mulpdu: frame::mulpdu(mss, markers),
                    chunking: Chunking::Random(5000),
                    capacity: 200_000,
                    seed: mss as u64,
                    ..Config::default()
                });
            }
        }
    }
    out
}

/// Lengths: small ones, and those around one, two and three segments.
fn lengths(config: &Config) -> Vec<usize> {
    let mut out: Vec<usize> = (0..=9).collect();
    for room in [(config.mulpdu - 14) & !3, (config.mulpdu - 18) & !3] {
        for n in 1..=2 {
            out.extend([n * room - 1, n * room, n * room + 1]);
        }
    }
    out.extend([4095, 4096, 4097]);
    out.retain(|&n| n < LEN - 16);
    out
}

/// Bases of the target: aligned low, unaligned across 4 GiB, and up to the last byte there is.
fn bases() -> [u64; 3] {
    [0, 0xffff_ff01, u64::MAX - LEN as u64 + 1]
}

fn connected(config: &Config, base: u64, content: &[u8]) -> Pair {
    let mut pair = Pair::new(config);
    for side in [true, false] {
        let host = pair.host(side);
        host.register(TARGET, Region::new(base, 0).with_bytes(content.to_vec()));
        host.register(SINK, Region::new(base ^ 1 << 40, LEN).with_rights(Rights::NONE));
    }
    pair
}

fn run(pair: &mut Pair, what: &str) {
    assert_eq!(pair.run(), End::Idle, "{what}: {:?}", pair.faults());
    assert_eq!(pair.faults(), (None, None), "{what}");
}

/// The initiator must send first, so a responder's work waits for an empty Write.
fn ready(pair: &mut Pair) {
    pair.initiator.post(Work::write(0, 0, Vec::new()));
}

#[test]
fn writes_and_reads_of_every_length() {
    // rule 5044-3-1, 5044-3-3, 5041-5.2-5, 5041-5.1.1-1, 5041-5.1.1-2, 5040-4.5-1
    let content = Seed::new(5).bytes(LEN);
    for config in wires() {
        for (side, base) in [true, false].into_iter().flat_map(|s| bases().map(|b| (s, b))) {
            let what = format!("{config:?}, initiator {side}, base {base:#x}");
            let mut pair = connected(&config, base, &content);
            ready(&mut pair);
            let (mut written, mut sink) = (content.clone(), vec![0; LEN]);
            let mut seed = Seed::new(config.seed);
            for len in lengths(&config) {
                // The first byte, the last byte, and somewhere unaligned.
                for at in [0, LEN - len, ((LEN - len) / 2) | 1] {
                    let data = seed.bytes(len);
                    let to = base.wrapping_add(at as u64);
                    written[at..at + len].copy_from_slice(&data);
                    pair.end(side).post(Work::write(TARGET, to, data));
                    let sink_to = (base ^ 1 << 40).wrapping_add(at as u64);
                    sink[at..at + len].copy_from_slice(&written[at..at + len]);
                    pair.end(side).post(Work::read((SINK, sink_to), len as u32, (TARGET, to)));
                    // Later Writes would change what the Read sees.
                    pair.end(side).post(Work::write(0, 0, Vec::new()).fenced());
                }
            }
            run(&mut pair, &what);
            assert!(pair.host(!side).region(TARGET).bytes == written, "{what}");
            assert!(pair.host(side).region(SINK).bytes == sink, "{what}");
            assert!(pair.host(side).region(TARGET).bytes == content, "{what}: the other side is untouched");
        }
    }
}

#[test]
fn sends_of_every_kind_and_length() {
    // rule 5040-5.3-1, 5041-5.3-1, 5041-5.3-2, 5040-5.5-1
    for config in wires() {
        for side in [true, false] {
            let what = format!("{config:?}, initiator {side}");
            let mut pair = connected(&config, 0, &[]);
            ready(&mut pair);
            let mut want = Vec::new();
            let mut seed = Seed::new(config.seed);
            for (i, len) in lengths(&config).into_iter().enumerate() {
                let data = seed.bytes(len);
                let invalidate = (i % 2 == 1).then_some(VICTIM + i as u32);
                let solicited = i % 4 > 1;
                let opcode = match (invalidate.is_some(), solicited) {
                    (false, false) => Opcode::Send,
                    (false, true) => Opcode::SendSe,
                    (true, false) => Opcode::SendInvalidate,
                    (true, true) => Opcode::SendSeInvalidate,
                };
                pair.host(!side).register(VICTIM + i as u32, Region::new(0, 1));
                pair.host(!side).post_receive(len + i % 3);
                pair.end(side).post(Work::send_with(data.clone(), invalidate, solicited));
                want.push((data, opcode));
            }
            run(&mut pair, &what);
            let victims = pair.host(!side).snapshot().regions;
            let got = pair.host(!side).delivered();
            assert_eq!(got.len(), want.len(), "{what}");
            for (i, (got, (data, opcode))) in got.iter().zip(&want).enumerate() {
                assert!(got.data == *data && got.opcode == *opcode, "{what}: message {i}");
                assert_eq!(
                    victims.contains_key(&(VICTIM + i as u32)),
                    got.invalidated.is_none(),
                    "{what}: {i}"
                );
            }
        }
    }
}

#[test]
fn atomics_and_immediates() {
    // rule 7306-5.1-3, 7306-5.1-1, 7306-5.4-1, 7306-5.4-2, 7306-6.4-1, 7306-5.2.2-3
    for config in wires() {
        for side in [true, false] {
            let what = format!("{config:?}, initiator {side}");
            let base = 0x1_0000_0008;
            let mut pair = connected(&config, base, &[0; 64]);
            ready(&mut pair);
            let (sink, operands) = (base ^ 1 << 40, [5, 0, 0, 0]);
            pair.host(!side).post_receive(0);
            pair.host(!side).post_receive(0);
            for i in 0..8u64 {
                let at = (SINK, sink + 8 * i);
                let (target, op, operands) = match i {
                    0..=3 => ((TARGET, base + 8), AtomicOp::FetchAdd, operands),
                    4 => ((TARGET, base + 8), AtomicOp::CmpSwap, [100, !0, 20, !0]),
                    5 => ((TARGET, base + 8), AtomicOp::CmpSwap, [1, !0, 20, !0]),
                    6 => ((TARGET, base + 16), AtomicOp::Swap, [!0, 0xff00, 0, 0]),
                    _ => ((TARGET, base + 8), AtomicOp::FetchAdd, [1 << 63, 0, 0, 0]),
                };
                pair.end(side).post(Work::atomic(op, target, operands, at));
                // A Read among them: its answer keeps its place.
                pair.end(side).post(Work::read((SINK, sink + 64 + 8 * i), 8, (TARGET, base + 32)));
            }
            pair.end(side).post(Work::immediate(0x0102_0304_0506_0708, false));
            pair.end(side).post(Work::immediate(u64::MAX, true));
            run(&mut pair, &what);
            let word =
                |bytes: &[u8], i: usize| u64::from_ne_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap());
            let target = &pair.host(!side).region(TARGET).bytes;
            assert_eq!((word(target, 1), word(target, 2)), (100 | 1 << 63, 0xff00), "{what}");
            let results = &pair.host(side).region(SINK).bytes;
            let got: Vec<u64> = (0..8).map(|i| word(results, i)).collect();
            assert_eq!(got, [0, 5, 10, 15, 20, 100, 0, 100], "{what}");
            let values: Vec<_> =
                pair.host(!side).delivered().iter().map(|d| (d.opcode, d.immediate)).collect();
            let want =
                [(Opcode::Immediate, Some(0x0102_0304_0506_0708)), (Opcode::ImmediateSe, Some(u64::MAX))];
            assert_eq!(values, want, "{what}");
            let answered: Vec<u64> =
                pair.end(side).done().iter().filter(|d| d.answered).map(|d| d.index).collect();
            assert!(answered.is_sorted() && answered.len() == 16, "{what}: {answered:?}");
        }
    }
}

#[test]
fn markers_in_one_direction_leave_the_other_alone() {
    // rule 5044-4.3-1
    for (to_initiator, to_responder) in [(true, false), (false, true)] {
        let config = Config {
            markers_to_initiator: to_initiator,
            markers_to_responder: to_responder,
            ..Config::default()
        };
        let mut pair = connected(&config, 0, &[7; 50_000]);
        pair.host(true).register(SINK, Region::new(0, 50_000));
        pair.initiator.post(Work::write(TARGET, 0, vec![1; 40_000]));
        pair.initiator.post(Work::read((SINK, 0), 50_000, (TARGET, 0)));
        run(&mut pair, "one direction");
        assert!(pair.host(true).region(SINK).bytes[..40_000].iter().all(|&b| b == 1));
        let plain = |payload: u64, segments: u64| payload + 20 * segments;
        let (out, back) = pair.carried();
        // 29 segments of at most 1428 bytes out with a Read Request (52 bytes), 36 back.
        let (plain_out, plain_back) = (plain(40_000, 29) + 52, plain(50_000, 36));
        let marked = |plain: u64| plain + 4 * plain.div_ceil(508);
        assert_eq!(out, if to_responder { marked(plain_out) } else { plain_out });
        assert_eq!(back, if to_initiator { marked(plain_back) } else { plain_back });
    }
}
