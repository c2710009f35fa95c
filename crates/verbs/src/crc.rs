//! CRC32c by the processor's own instructions.

use crc_fast::{CrcAlgorithm, checksum, checksum_combine};

/// Continues a raw (not complemented) CRC32c state over bytes, as [`iwarp::mpa::crc::update`] does.
pub(crate) fn update(state: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < 64 {
        return iwarp::mpa::crc::update(state, bytes);
    }
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    if state == iwarp::mpa::crc::INIT {
        return !(sum as u32);
    }
    !(checksum_combine(CrcAlgorithm::Crc32Iscsi, u64::from(!state), sum, bytes.len() as u64) as u32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn agrees_with_the_table_at_every_length_and_state() {
        let data: Vec<u8> = (0..1000u32).map(|i| (i * 7 + i / 13) as u8).collect();
        for len in (0..300).chain([512, 999, 1000]) {
            for state in [!0u32, 0, 0x1234_5678] {
                let want = iwarp::mpa::crc::update(state, &data[..len]);
                assert_eq!(super::update(state, &data[..len]), want, "{len} {state:x}");
            }
        }
    }
}
