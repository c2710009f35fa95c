//! CRC32c (Castagnoli), as MPA sums an FPDU. RFC 5044 §4.4.
//!
//! Table-driven, eight bytes a step: the portable fallback. An embedding with a hardware CRC hands
//! its own function to [`frame`](super::frame), [`marker`](super::marker) and
//! [`deframe`](super::deframe) instead.

/// The polynomial 0x1EDC6F41, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The state before the first byte.
pub const INIT: u32 = !0;

/// `TABLES[k][b]`: the sum of byte `b` followed by `k` zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut t = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 != 0 { c >> 1 ^ POLYNOMIAL } else { c >> 1 };
            bit += 1;
        }
        t[0][i] = c;
        i += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut i = 0;
        while i < 256 {
            let c = t[k - 1][i];
            t[k][i] = c >> 8 ^ t[0][(c & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    t
}

/// Continues a sum over `bytes`. Start with [`INIT`]; the sum is the complement of the last state.
///
/// ```
/// use iwarp::mpa::crc;
/// assert_eq!(!crc::update(crc::INIT, b"123456789"), 0xe306_9283);
/// ```
pub fn update(state: u32, bytes: &[u8]) -> u32 {
    // rule 5044-4.4-1
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    // A byte indexes 256 entries: no bounds check, no panic.
    let at = |t: &[u32; 256], byte: u8| t[usize::from(byte)];
    let (words, tail) = bytes.as_chunks::<8>();
    let mut c = state;
    for &[b0, b1, b2, b3, b4, b5, b6, b7] in words {
        let [c0, c1, c2, c3] = c.to_le_bytes();
        c = at(t7, b0 ^ c0)
            ^ at(t6, b1 ^ c1)
            ^ at(t5, b2 ^ c2)
            ^ at(t4, b3 ^ c3)
            ^ at(t3, b4)
            ^ at(t2, b5)
            ^ at(t1, b6)
            ^ at(t0, b7);
    }
    for &b in tail {
        c = c >> 8 ^ at(t0, b ^ c.to_le_bytes()[0]);
    }
    c
}

/// The sum in the order of the wire: least significant byte first. RFC 5044 §4.4 sends it as iSCSI does.
#[inline]
pub fn to_wire(state: u32) -> [u8; 4] {
    (!state).to_le_bytes()
}
