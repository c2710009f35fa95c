//! The data that is moved, and the proof that it arrived.
//!
//! Each 8-byte word depends on the round, the queue pair, the end that sends and its offset: a byte that is lost, late
//! (of an earlier round), of another queue pair or in another place is not the byte that is expected.
use serde::{Deserialize, Serialize};

/// Added from word to word; odd, so that all 2^64 words differ.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes handled at a time: stays in the first-level cache.
pub(crate) const CHUNK: usize = 16 << 10;

/// Which end's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The end that connected.
    Initiator,
    /// The end that listened.
    Responder,
}

/// The data of one queue pair, end and round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern {
    seed: u64,
}

impl Pattern {
    /// Of round `generation` on queue pair `qp`.
    pub(crate) fn new(generation: u64, qp: u32, source: Source) -> Self {
        let source = match source {
            Source::Initiator => 1,
            Source::Responder => 2,
        };
        Self { seed: scramble(generation.wrapping_mul(STEP) ^ (u64::from(qp) << 8 | source)) }
    }

    /// The word at byte offset `8 * index`.
    pub(crate) fn word(self, index: u64) -> u64 {
        mix(self.seed.wrapping_add(index.wrapping_mul(STEP)))
    }

    /// The byte at `offset`.
    pub(crate) fn byte(self, offset: u64) -> u8 {
        self.word(offset / 8).to_ne_bytes()[(offset % 8) as usize]
    }

    /// Fills `out` with the data from byte `offset` on, a multiple of 8.
    pub(crate) fn fill(self, offset: u64, out: &mut [u8]) {
        debug_assert_eq!(offset % 8, 0);
        let mut state = self.seed.wrapping_add((offset / 8).wrapping_mul(STEP));
        let mut words = out.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&mix(state).to_ne_bytes());
            state = state.wrapping_add(STEP);
        }
        let rest = words.into_remainder();
        let last = mix(state).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Compares with the data from byte `offset` on, a multiple of 8.
    pub(crate) fn check(self, offset: u64, got: &[u8]) -> Verdict {
        debug_assert_eq!(offset % 8, 0);
        let mut state = self.seed.wrapping_add((offset / 8).wrapping_mul(STEP));
        let mut difference = 0;
        let words = got.chunks_exact(8);
        let rest = words.remainder();
        for word in words {
            // The slice has 8 bytes by `chunks_exact`.
            let word = word.try_into().map_or(0, u64::from_ne_bytes);
            difference |= word ^ mix(state);
            state = state.wrapping_add(STEP);
        }
        let tail_differs = rest != &mix(state).to_ne_bytes()[..rest.len()];
        let mut verdict = Verdict { checked: got.len() as u64, wrong: 0, first: None };
        if difference != 0 || tail_differs {
            self.locate(offset, got, &mut verdict);
        }
        verdict
    }

    /// The slow way, for data known to be wrong.
    fn locate(self, offset: u64, got: &[u8], verdict: &mut Verdict) {
        for (at, &found) in (offset..).zip(got) {
            let expected = self.byte(at);
            if found != expected {
                verdict.wrong += 1;
                verdict.first.get_or_insert(Mismatch { offset: at, expected, found });
            }
        }
    }
}

/// The first wrong byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mismatch {
    /// Byte offset in the region (for values that are not in a region: the message's number times 8).
    pub(crate) offset: u64,
    /// What should be there.
    pub(crate) expected: u8,
    /// What is there.
    pub(crate) found: u8,
}

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// Bytes compared.
    pub(crate) checked: u64,
    /// Bytes that differed.
    pub(crate) wrong: u64,
    /// The first that differed.
    pub(crate) first: Option<Mismatch>,
}

impl Verdict {
    /// Of one 8-byte value: an immediate, or what an atomic returned.
    pub(crate) fn of_word(number: u64, expected: u64, found: u64) -> Self {
        let mut verdict = Self { checked: 8, wrong: 0, first: None };
        if expected != found {
            let pairs = expected.to_be_bytes().into_iter().zip(found.to_be_bytes());
            for (at, (expected, found)) in (number * 8..).zip(pairs).filter(|(_, (e, f))| e != f) {
                verdict.wrong += 1;
                verdict.first.get_or_insert(Mismatch { offset: at, expected, found });
            }
        }
        verdict
    }

    /// Adds another check.
    pub(crate) fn merge(&mut self, other: Self) {
        self.checked += other.checked;
        self.wrong += other.wrong;
        self.first = self.first.or(other.first);
    }
}

const fn mix(state: u64) -> u64 {
    state ^ (state >> 29)
}

/// A strong one-to-one hash, once a pattern.
const fn scramble(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pattern: Pattern, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        pattern.fill(offset, &mut out);
        out
    }

    #[test]
    fn a_fill_in_parts_is_the_fill_of_the_whole() {
        let pattern = Pattern::new(3, 1, Source::Initiator);
        let whole = data(pattern, 0, 1003);
        assert_eq!(whole[64..500], data(pattern, 64, 436));
        assert!((0u64..).zip(&whole).all(|(at, &byte)| pattern.byte(at) == byte));
        assert_eq!(whole[16..24], pattern.word(2).to_ne_bytes());
    }

    #[test]
    fn every_single_wrong_byte_is_found() {
        let pattern = Pattern::new(9, 0, Source::Responder);
        let good = data(pattern, 8, 61);
        assert_eq!(pattern.check(8, &good), Verdict { checked: 61, wrong: 0, first: None });
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let verdict = pattern.check(8, &bad);
            let first = verdict.first.unwrap();
            assert_eq!((verdict.wrong, first.offset, first.expected), (1, 8 + at as u64, good[at]));
        }
    }

    #[test]
    fn other_rounds_queue_pairs_ends_and_places_have_other_data() {
        let base = Pattern::new(1, 0, Source::Initiator);
        let good = data(base, 0, 64);
        for other in [
            Pattern::new(2, 0, Source::Initiator),
            Pattern::new(1, 1, Source::Initiator),
            Pattern::new(1, 0, Source::Responder),
        ] {
            assert!(other.check(0, &good).wrong > 48, "{other:?}");
        }
        assert!(base.check(8, &good).wrong > 48);
    }

    #[test]
    fn words_compare_byte_by_byte() {
        assert_eq!(Verdict::of_word(2, 7, 7), Verdict { checked: 8, wrong: 0, first: None });
        let verdict = Verdict::of_word(2, 0x0102, 0x0103);
        assert_eq!(verdict.wrong, 1);
        assert_eq!(verdict.first, Some(Mismatch { offset: 23, expected: 2, found: 3 }));
        let mut sum = Verdict::of_word(0, 1, 1);
        sum.merge(verdict);
        assert_eq!((sum.checked, sum.wrong, sum.first), (16, 1, verdict.first));
    }
}
