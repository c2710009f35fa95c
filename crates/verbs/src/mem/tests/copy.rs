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
    const LEN: usize = 3000;
    const ROUNDS: usize = 30_000;
    let table = table();
    let region = region(&table, 4096, ALL);
    let done = AtomicBool::new(false);
    // Aligned, so that the words looked at are stored whole.
    let words: Vec<u64> = (0..LEN as u64 / 8).rev().map(|w| 64 + w * 8).collect();
    std::thread::scope(|s| {
        let watcher = s.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Acquire) {
                // From the end to the start: each earlier word must be at least as new.
                let mut newest = 0;
                for &at in &words {
                    let word = region.load_u64(at).unwrap() >> 32;
                    assert!(word >= newest, "word at {at} is of round {word}, a later one of {newest}");
                    newest = word;
                }
                looks += 1;
            }
            looks
        });
        for round in 1..=ROUNDS as u64 {
            let bytes: Vec<u8> =
                std::iter::repeat_n((round << 32).to_le_bytes(), LEN / 8).flatten().collect();
            table.place(region.stag(), region.addr() + 64, &bytes, WHO).unwrap();
        }
        done.store(true, Ordering::Release);
        assert!(watcher.join().unwrap() > 0);
    });
}
