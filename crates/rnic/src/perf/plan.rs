//! What is measured, in which order, and in what portions.
//!
//! A measurement is cut into rounds. Within a round each message has a place of its own at its destination, so that
//! after the round, outside the timed part, the receiving end can check every byte that was moved.
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// An operation to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verb {
    /// RDMA Write
    Write,
    /// RDMA Read
    Read,
    /// Send
    Send,
    /// Immediate Data of 8 bytes (RFC 7306)
    #[value(alias = "immediate")]
    Imm,
    /// atomic Fetch-and-Add (RFC 7306)
    FetchAdd,
    /// atomic Compare-and-Swap (RFC 7306)
    CmpSwap,
    /// atomic Swap (RFC 7306)
    Swap,
}

impl Verb {
    /// All, in the table's order.
    pub(crate) const ALL: [Self; 7] =
        [Self::Write, Self::Read, Self::Send, Self::Imm, Self::FetchAdd, Self::CmpSwap, Self::Swap];

    /// As in the table and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Imm => "imm",
            Self::FetchAdd => "fetch-add",
            Self::CmpSwap => "cmp-swap",
            Self::Swap => "swap",
        }
    }

    /// Moves 8 bytes, neither more nor less.
    pub(crate) const fn is_fixed(self) -> bool {
        matches!(self, Self::Imm | Self::FetchAdd | Self::CmpSwap | Self::Swap)
    }

    /// Changes 8 bytes at the target and returns what they were.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap | Self::Swap)
    }

    /// Its latency is a full round trip, since the initiator waits for the answer; the others are halved ping-pongs.
    pub(crate) const fn is_round_trip(self) -> bool {
        self.is_atomic() || matches!(self, Self::Read)
    }
}

/// What limits the ULPDU of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fpdu {
    /// One FPDU fits one TCP segment (RFC 5044 §5.1).
    Mss,
    /// As large as the length field allows.
    Large,
    /// At most so many bytes.
    Bytes(u32),
}

impl std::fmt::Display for Fpdu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mss => f.write_str("mss"),
            Self::Large => f.write_str("large"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// The operation.
    pub(crate) verb: Verb,
    /// Bytes of payload a message.
    pub(crate) size: u32,
    /// MPA's CRC32c in both directions.
    pub(crate) crc: bool,
}

/// The rows: verb by verb, size by size, and the CRC settings of one size next to each other.
pub(crate) fn rows(verbs: &[Verb], sizes: &[u32], crc: &[bool]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &verb in verbs {
        let sizes = if verb.is_fixed() { &[8] } else { sizes };
        for &size in sizes {
            rows.extend(crc.iter().map(|&crc| Row { verb, size, crc }));
        }
    }
    rows
}

/// What a measurement looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Many messages under way
    Bandwidth,
    /// One message at a time
    Latency,
}

/// How long a measurement goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// So many messages a queue pair.
    Messages(u64),
    /// So much timed time.
    Time(Duration),
}

/// Fewest rounds when the goal is a time: their median stands a disturbed one.
const MIN_ROUNDS: u32 = 3;
/// Most messages of a round, whatever fits: bounds the work requests that a round of Sends may need.
const MAX_ROUND: u32 = 65_536;
/// Messages of the first round, which warms up caches, page tables and TCP's window and is not counted.
const WARM_UP: u32 = 64;

/// Distance of the places of two messages in a region.
pub(crate) const fn stride(size: u32) -> u32 {
    match size.div_ceil(8) * 8 {
        0 => 8,
        stride => stride,
    }
}

/// Cuts a measurement into rounds.
#[derive(Debug)]
pub(crate) struct Pace {
    cap: u32,
    goal: Goal,
    warm: bool,
    rounds: u32,
    messages: u64,
    timed: Duration,
    /// Seconds a message, from the last round.
    cost: f64,
}

impl Pace {
    /// For messages of `size` bytes in regions of `region` bytes a queue pair.
    pub(crate) fn new(goal: Goal, size: u32, region: u32) -> Self {
        let cap = (region / stride(size)).clamp(1, MAX_ROUND);
        Self { cap, goal, warm: false, rounds: 0, messages: 0, timed: Duration::ZERO, cost: 0.0 }
    }

    /// Messages a queue pair in the next round; `None` once the goal is reached.
    pub(crate) fn next(&self) -> Option<u32> {
        if !self.warm {
            return Some(self.cap.min(WARM_UP));
        }
        match self.goal {
            Goal::Messages(goal) => {
                let left = goal.saturating_sub(self.messages).min(u64::from(self.cap));
                (left > 0).then_some(left as u32)
            }
            Goal::Time(goal) => {
                let left = goal.saturating_sub(self.timed);
                if left.is_zero() && self.rounds >= MIN_ROUNDS {
                    return None;
                }
                // No longer than a third of the whole, so that there are enough rounds for a median.
                let fitting = goal.as_secs_f64() / f64::from(MIN_ROUNDS) / self.cost.max(1e-9);
                Some((fitting as u32).clamp(1, self.cap))
            }
        }
    }

    /// Notes a finished round; true if it counts.
    pub(crate) fn record(&mut self, messages: u32, timed: Duration) -> bool {
        self.cost = timed.as_secs_f64() / f64::from(messages.max(1));
        let counts = self.warm;
        self.warm = true;
        if counts {
            self.rounds += 1;
            self.messages += u64::from(messages);
            self.timed += timed;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_and_immediate_data_have_one_size() {
        let rows = rows(&[Verb::Write, Verb::FetchAdd], &[64, 4096], &[false, true]);
        let got: Vec<_> = rows.iter().map(|row| (row.verb, row.size, row.crc)).collect();
        assert_eq!(
            got,
            [
                (Verb::Write, 64, false),
                (Verb::Write, 64, true),
                (Verb::Write, 4096, false),
                (Verb::Write, 4096, true),
                (Verb::FetchAdd, 8, false),
                (Verb::FetchAdd, 8, true),
            ]
        );
    }

    #[test]
    fn places_are_aligned_for_a_word() {
        assert_eq!([0, 1, 8, 9, 4096].map(stride), [8, 8, 8, 16, 4096]);
    }

    #[test]
    fn a_count_is_met_exactly_after_the_warm_up() {
        let mut pace = Pace::new(Goal::Messages(150), 1 << 20, 64 << 20);
        let mut counted = Vec::new();
        while let Some(messages) = pace.next() {
            if pace.record(messages, Duration::from_millis(1)) {
                counted.push(messages);
            }
        }
        assert_eq!(counted, [64, 64, 22]);
    }

    #[test]
    fn a_time_gives_at_least_three_rounds() {
        for cost_ns in [10, 1_000, 1_000_000, 1_000_000_000] {
            let mut pace = Pace::new(Goal::Time(Duration::from_millis(100)), 64, 1 << 20);
            let mut counted = 0;
            while let Some(messages) = pace.next() {
                assert!((1..=16_384).contains(&messages));
                counted += u32::from(pace.record(messages, Duration::from_nanos(cost_ns) * messages));
                assert!(counted < 1_000);
            }
            assert!(counted >= 3, "{cost_ns} ns a message: {counted} rounds");
        }
    }

    #[test]
    fn a_message_larger_than_the_region_is_still_one_message() {
        assert_eq!(Pace::new(Goal::Messages(1), 4096, 1024).next(), Some(1));
    }
}
