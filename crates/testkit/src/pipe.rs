//! One direction of a TCP connection, as far as a receiver can tell: bytes in order, cut anywhere.

use std::collections::VecDeque;

use crate::seed::Seed;

/// How the stream is cut on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chunking {
    /// Whatever is there, at once.
    Whole,
    /// This many bytes at a time.
    Fixed(usize),
    /// Random pieces of 1 to this many bytes.
    Random(usize),
}

/// A bounded byte queue with a delay, on a clock that its owner turns.
#[derive(Debug)]
pub struct Pipe {
    /// Pieces with the tick from which they may be read.
    queue: VecDeque<(u64, Vec<u8>)>,
    buffered: usize,
    capacity: usize,
    latency: u64,
    chunking: Chunking,
    seed: Seed,
    /// Bytes written since the start.
    total: u64,
}

impl Pipe {
    /// `capacity` bytes may be under way; each becomes readable `latency` ticks after it was written.
    pub fn new(chunking: Chunking, capacity: usize, latency: u64, seed: Seed) -> Self {
        Self { queue: VecDeque::new(), buffered: 0, capacity, latency, chunking, seed, total: 0 }
    }

    /// Bytes that may still be written. A write larger than the whole capacity is taken when empty.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.buffered == 0 || self.buffered + bytes <= self.capacity
    }

    /// Writes, at this tick.
    pub fn write(&mut self, now: u64, bytes: Vec<u8>) {
        self.buffered += bytes.len();
        self.total += bytes.len() as u64;
        self.queue.push_back((now + self.latency, bytes));
    }

    /// Nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The tick at which the next byte can be read.
    pub fn ready_at(&self) -> Option<u64> {
        self.queue.front().map(|(at, _)| *at)
    }

    /// Bytes written since the start.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Reads one piece of what has arrived by this tick, as the chunking cuts it; empty where nothing has.
    pub fn read(&mut self, now: u64) -> Vec<u8> {
        let arrived: usize = self.queue.iter().take_while(|(at, _)| *at <= now).map(|(_, b)| b.len()).sum();
        let want = match self.chunking {
            Chunking::Whole => arrived,
            Chunking::Fixed(n) => n.max(1).min(arrived),
            Chunking::Random(n) => (1 + self.seed.below(n)).min(arrived),
        };
        let mut out = Vec::with_capacity(want);
        while out.len() < want {
            let Some((at, mut piece)) = self.queue.pop_front() else { break };
            let n = piece.len().min(want - out.len());
            if n < piece.len() {
                let rest = piece.split_off(n);
                self.queue.push_front((at, rest));
            }
            out.extend_from_slice(&piece);
        }
        self.buffered -= out.len();
        out
    }
}

/// Cuts `bytes` at these offsets (those within it count, in ascending order).
pub fn cut<'a>(bytes: &'a [u8], at: &[usize]) -> Vec<&'a [u8]> {
    let mut out = Vec::new();
    let mut from = 0;
    for &to in at {
        if to > from && to < bytes.len() {
            out.push(&bytes[from..to]);
            from = to;
        }
    }
    out.push(&bytes[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_whatever_the_cuts() {
        for chunking in [Chunking::Whole, Chunking::Fixed(1), Chunking::Fixed(7), Chunking::Random(9)] {
            let mut pipe = Pipe::new(chunking, 1000, 3, Seed::new(1));
            let sent: Vec<u8> = (0..=255).collect();
            for (i, piece) in sent.chunks(10).enumerate() {
                pipe.write(i as u64, piece.to_vec());
            }
            assert!(pipe.read(2).is_empty(), "nothing before its time");
            let mut got = Vec::new();
            while !pipe.is_empty() {
                got.extend(pipe.read(1000));
            }
            assert_eq!(got, sent);
        }
    }

    #[test]
    fn capacity_holds_writers_back() {
        let mut pipe = Pipe::new(Chunking::Whole, 10, 0, Seed::new(1));
        assert!(pipe.has_room(50), "an oversized write is taken when empty");
        pipe.write(0, vec![0; 8]);
        assert!(pipe.has_room(2) && !pipe.has_room(3));
        pipe.read(0);
        assert!(pipe.has_room(10));
    }

    #[test]
    fn cuts_outside_or_out_of_order_are_ignored() {
        assert_eq!(cut(b"abcdef", &[2, 2, 1, 5, 9]), [&b"ab"[..], b"cde", b"f"]);
        assert_eq!(cut(b"", &[0]), [&b""[..]]);
    }
}
