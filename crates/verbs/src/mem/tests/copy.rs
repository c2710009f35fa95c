//! Copies: exact, and in ascending order.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn every_length_and_alignment_is_copied_exactly() {
    let table = table();
    let region = region(&table, 2048, ALL);
    let source: Vec<u8> = (0..1200).map(|i| (i * 7 + i / 251) as u8).collect();
    let lengths = (0..=200).chain([255, 256, 257, 383, 384, 511, 640, 1023, 1024, 1100]);
    for len in lengths {
        for at in [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63] {
            for from in [0, 1, 5] {
                region.fill(0, 2048, 0xa5).unwrap();
                let bytes = &source[from..from + len];
                table.place(region.stag(), region.addr() + at as u64, bytes, WHO).unwrap();
                let mut expected = vec![0xa5; 2048];
                expected[at..at + len].copy_from_slice(bytes);
                assert!(content(&region) == expected, "{len} bytes at {at} from {from}");
            }
        }
    }
}

/// Whoever sees a byte of a Write sees all bytes before it.
#[cfg(target_arch = "x86_64")]
#[test]
fn bytes_of_a_write_appear_in_ascending_order() {
    for len in [64, 72, 128, 136, 200, 256, 264, 520, 1000, 1800] {
        watch_writes(len, 20_000);
    }
}

/// Writes `rounds` times; meanwhile another thread looks at a later word and then at an earlier one, which
/// must be at least as new.
#[cfg(target_arch = "x86_64")]
fn watch_writes(len: u64, rounds: u64) {
    let table = table();
    let region = region(&table, 4096, ALL);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let watcher = s.spawn(|| {
            let (mut looks, mut step) = (0u64, 0);
            while !done.load(Ordering::Acquire) || looks < 1000 {
                step = (step + 8) % len;
                // The ends are the likeliest to be in the wrong order; then all other words.
                for (earlier, later) in [(0, len - 8), (step, len - 8), (0, step)] {
                    let late = region.load_u64(64 + later).unwrap();
                    let early = region.load_u64(64 + earlier).unwrap();
                    assert!(early >= late, "{len}: word {earlier} is of round {early}, {later} of {late}");
                }
                looks += 1;
            }
        });
        let mut bytes = vec![0; len as usize];
        for round in 1..=rounds {
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&round.to_ne_bytes());
            }
            table.place(region.stag(), region.addr() + 64, &bytes, WHO).unwrap();
            if watcher.is_finished() {
                break;
            }
        }
        done.store(true, Ordering::Release);
    });
}
