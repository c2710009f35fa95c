//! Timers of a shard: few at a time, never cancelled; a source ignores one that no longer matters.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Weak;
use std::time::Instant;

use super::Source;

/// Which of a source's timers fired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// The polling thread's lease on a socket may have run out.
    Lease,
    /// Time to look whether the path is alive.
    Health,
    /// A connection being set up, or being closed, took too long.
    Deadline,
    /// The pause that a peer needs after its Reply is over.
    Settle,
    /// A message waited too long for a receive.
    NoReceive,
}

struct Entry {
    at: Instant,
    serial: u64,
    source: Weak<dyn Source>,
    timer: Timer,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// A queue of timers, earliest first.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
    serial: u64,
}

impl Timers {
    pub(super) fn push(&mut self, at: Instant, source: Weak<dyn Source>, timer: Timer) {
        self.serial += 1;
        self.heap.push(Reverse(Entry { at, serial: self.serial, source, timer }));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(e)| e.at)
    }

    /// Takes those whose time has come.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Weak<dyn Source>, Timer)> {
        let mut due = Vec::new();
        while self.heap.peek().is_some_and(|Reverse(e)| e.at <= now) {
            if let Some(Reverse(e)) = self.heap.pop() {
                due.push((e.source, e.timer));
            }
        }
        due
    }
}
