//! What the two ends of an `rping` session say to each other (docs/rping-protocol.md).

/// Length of every message.
pub(crate) const LEN: usize = 16;
/// The default port.
pub(crate) const PORT: u16 = 7174;
/// Longest ping that rping allows.
pub(crate) const MAX_SIZE: u32 = 65_535;

const FIRST: u8 = b'A';
const LAST: u8 = b'z';

/// Advertises the client's memory to the server. The server's answers have the same length and no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advertisement {
    /// Tagged offset of the first byte.
    pub(crate) addr: u64,
    /// STag.
    pub(crate) rkey: u32,
    /// Bytes.
    pub(crate) size: u32,
}

impl Advertisement {
    /// Big endian, in the order of the fields.
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..].copy_from_slice(&self.size.to_be_bytes());
        out
    }

    /// The reverse.
    pub(crate) fn decode(bytes: &[u8; LEN]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, s0, s1, s2, s3] = *bytes;
        Self {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            size: u32::from_be_bytes([s0, s1, s2, s3]),
        }
    }
}

/// The data of ping `number` (from 0) in `size` bytes: a prefix with the number, then characters that start one later with
/// each ping, then NUL.
pub(crate) fn text(number: u64, size: usize) -> Vec<u8> {
    let mut out = format!("rdma-ping-{number}: ").into_bytes();
    let alphabet = u64::from(LAST - FIRST) + 1;
    let start = FIRST + (number % alphabet) as u8;
    let characters = (start..=LAST).chain((FIRST..=LAST).cycle());
    out.extend(characters.take(size.saturating_sub(out.len())));
    out.truncate(size);
    if let Some(last) = out.last_mut() {
        *last = 0;
    }
    out
}

/// A ping's data up to its NUL, as people can read it.
pub(crate) fn printable(data: &[u8]) -> String {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    data[..end].escape_ascii().to_string().replace("\\\\", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_as_rping_sent_it() {
        let wire: [u8; LEN] =
            [0x55, 0xcf, 0x8b, 0x5b, 0x96, 0xc0, 0x47, 0x3f, 0xa0, 0x00, 0x00, 0x00, 0x00, 0x64, 0x00, 0x00];
        // Two bytes of zero stand before the address on the wire.
        let mut bytes = [0; LEN];
        bytes[2..].copy_from_slice(&wire[..14]);
        let advertisement = Advertisement::decode(&bytes);
        assert_eq!(advertisement, Advertisement { addr: 0x55cf_8b5b_96c0, rkey: 0x473f_a000, size: 100 });
        assert_eq!(advertisement.encode(), bytes);
    }

    #[test]
    fn texts_as_rping_sent_them() {
        let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz";
        let first = format!("rdma-ping-0: {alphabet}ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\\0");
        assert_eq!(text(0, 100), first.as_bytes());
        let second = format!("rdma-ping-1: {}ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]\0", &alphabet[1..]);
        assert_eq!(text(1, 100), second.as_bytes());
        assert_eq!(text(0, 30), b"rdma-ping-0: ABCDEFGHIJKLMNOP\0");
        assert_eq!(text(57, 17), b"rdma-ping-57: zA\0");
        assert_eq!(text(58, 17), b"rdma-ping-58: AB\0");
    }

    #[test]
    fn a_long_number_still_fits_the_shortest_ping() {
        let data = text(u64::MAX, 23);
        assert_eq!((data.len(), data[22]), (23, 0));
    }

    #[test]
    fn printed_data_ends_at_the_nul_and_shows_a_backslash_as_it_is() {
        assert_eq!(printable(b"ab\\c\0rest"), "ab\\c");
        assert_eq!(printable(b"\x1b[m"), "\\x1b[m");
    }
}
