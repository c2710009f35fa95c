//! What the fuzzers run, as plain functions: stored inputs are replayed by plain `cargo test`.
//!
//! Each target takes any bytes and panics where a promise is broken. Structure is read from the bytes
//! by [`Input`], which never runs dry: behind the end there are zeros.

mod rx;
mod startup;

pub use rx::rx_stream;
pub use startup::mpa_startup;

/// A target: takes any bytes, panics where a promise is broken.
pub type Target = fn(&[u8]);

/// The targets by name, as `fuzz/fuzz_targets` and `fuzz/corpus` have them.
pub const TARGETS: [(&str, Target); 2] = [("mpa_startup", mpa_startup), ("rx_stream", rx_stream)];

/// Bytes taken one field after another.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// From a fuzzer's bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Nothing but zeros is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// The next two.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    /// The next four.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }

    /// The next eight.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    /// As many as there are, `len` at most.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}
