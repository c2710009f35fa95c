//! MPA: start-up frames, FPDU framing, CRC and markers. RFC 5044, RFC 6581.

pub mod crc;
pub mod deframe;
pub mod frame;
pub mod marker;
pub mod startup;
