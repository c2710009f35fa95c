//! What the values of immediate data and of atomics are, computed alike at both ends.
use rnic_verbs::{RemoteBuffer, SendWr, Sge};

use super::plan::Verb;
use super::verify::Pattern;

/// Every so often a compare-and-swap compares with a wrong value, and must change nothing.
const MISS: u32 = 8;
/// What the self-test adds.
const FALSE: u64 = 1 << 17;

/// One atomic operation of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Compared with (compare-and-swap).
    pub(crate) compare: u64,
    /// Added or written.
    pub(crate) operand: u64,
    /// What the target holds before.
    pub(crate) before: u64,
}

/// The operations of a round, in order, on one word of the target.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    verb: Verb,
    pattern: Pattern,
    number: u32,
    value: u64,
}

impl Script {
    /// From the first operation on.
    pub(crate) fn new(verb: Verb, pattern: Pattern) -> Self {
        Self { verb, pattern, number: 0, value: pattern.word(u64::MAX) }
    }

    /// What the target's word is now: before the first operation, or after the last that was taken.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    /// The next operation.
    pub(crate) fn step(&mut self) -> Step {
        let before = self.value;
        let operand = self.pattern.word(u64::from(self.number));
        let misses = self.verb == Verb::CmpSwap && self.number % MISS == MISS - 1;
        let compare = if misses { !before } else { before };
        self.value = match self.verb {
            Verb::FetchAdd => before.wrapping_add(operand),
            _ if misses => before,
            _ => operand,
        };
        self.number += 1;
        Step { compare, operand, before }
    }

    /// The target's word after `count` operations.
    pub(crate) fn after(mut self, count: u32) -> u64 {
        for _ in 0..count {
            self.step();
        }
        self.value
    }
}

impl Step {
    /// As a work request on the word at `at`; the former value goes to `sge`.
    pub(crate) fn request<'a>(
        &self,
        verb: Verb,
        number: u64,
        sge: &'a Sge,
        at: RemoteBuffer,
        corrupt: bool,
    ) -> SendWr<'a> {
        let operand = if corrupt { self.operand ^ FALSE } else { self.operand };
        match verb {
            Verb::FetchAdd => SendWr::fetch_add(number, sge, at, operand),
            Verb::CmpSwap => SendWr::cmp_swap(number, sge, at, self.compare, operand),
            _ => SendWr::swap(number, sge, at, operand),
        }
    }
}

/// The value of immediate data number `number`.
pub(crate) fn immediate(pattern: Pattern, number: u32, corrupt: bool) -> u64 {
    pattern.word(u64::from(number)) ^ if corrupt { FALSE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::verify::Source;
    use super::*;

    fn script(verb: Verb) -> Script {
        Script::new(verb, Pattern::new(5, 0, Source::Initiator))
    }

    #[test]
    fn each_operation_finds_what_the_one_before_left() {
        for verb in [Verb::FetchAdd, Verb::CmpSwap, Verb::Swap] {
            let mut script = script(verb);
            let mut word = script.value();
            for number in 0..100 {
                let step = script.step();
                assert_eq!(step.before, word);
                word = match verb {
                    Verb::FetchAdd => word.wrapping_add(step.operand),
                    Verb::CmpSwap if step.compare != word => word,
                    _ => step.operand,
                };
                assert_eq!(script.value(), word, "{verb:?} {number}");
            }
            assert_eq!(self::script(verb).after(100), word);
        }
    }

    #[test]
    fn some_compares_miss_and_most_hit() {
        let mut script = script(Verb::CmpSwap);
        let hits = (0..80)
            .filter(|_| {
                let step = script.step();
                step.compare == step.before
            })
            .count();
        assert_eq!(hits, 70);
    }

    #[test]
    fn a_falsified_operation_changes_the_end() {
        let pattern = Pattern::new(1, 0, Source::Initiator);
        assert_ne!(immediate(pattern, 3, true), immediate(pattern, 3, false));
    }
}
