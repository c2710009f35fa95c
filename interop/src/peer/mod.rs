//! `interop peer`: over rnic-verbs what `siwprobe` is in the guest, with the same messages and operations, so that either
//! can be client or server of the other. The head of siw-guest/guest/siwprobe.c describes them.
//!
//! It is a process of its own so that a case can kill it, capture it and read what it prints.

mod client;
mod link;
mod options;
mod server;

use anyhow::Result;
pub(crate) use options::PeerArgs;
use std::time::Duration;

/// Longest that a peer waits for anything.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs it. Whether all went as asked.
pub(crate) fn run(args: &PeerArgs) -> Result<bool> {
    match args.listen {
        Some(addr) => server::run(addr, args),
        None => client::run(args),
    }
}

/// Byte `i` of a buffer that is filled with the pattern of a seed.
fn pattern(i: usize, seed: u8) -> u8 {
    // The low byte of each term is all that counts.
    seed.wrapping_add((i as u8).wrapping_mul(7)).wrapping_add((i >> 8) as u8)
}

/// `len` bytes of the pattern.
fn patterned(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| pattern(i, seed)).collect()
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn the_pattern_is_that_of_siwprobe() {
        assert_eq!(pattern(0, 1), 1);
        assert_eq!(pattern(1, 1), 8);
        assert_eq!(pattern(300, 10), ((10 + 7 * 300 + 1) % 256) as u8);
        assert_eq!(pattern(70_000, 255), ((255 + 7 * 70_000 + 273) % 256) as u8);
    }
}
