//! Access rights and the asker's identity.

use crate::error::{Error, Result};

bitflags::bitflags! {
    /// What a region or window grants. Bit values are those of `verbs.h` where it has the right.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// Receives, Read sinks and atomic results may be placed in it.
        const LOCAL_WRITE = 1;
        /// Peers may Write to it; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may Read from it.
        const REMOTE_READ = 1 << 2;
        /// Peers may use atomics on it; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound over it.
        const MW_BIND = 1 << 4;
        /// Tagged offsets count from 0 instead of from its address.
        const ZERO_BASED = 1 << 5;
        /// A peer's Send with Invalidate may invalidate it.
        const REMOTE_INVALIDATE = 1 << 16;
    }
}

impl Access {
    /// The rights that a peer needs.
    pub(crate) const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);

    /// Whether a region may be registered with these rights.
    pub(crate) fn validate(self) -> Result<()> {
        let why = if !(self - Self::all()).is_empty() {
            "unknown right"
        } else if self.intersects(Self::REMOTE_WRITE | Self::REMOTE_ATOMIC)
            && !self.contains(Self::LOCAL_WRITE)
        {
            "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE: add it"
        } else {
            return Ok(());
        };
        Err(Error::AccessRights { access: self, why })
    }
}

/// On whose behalf memory is touched: a queue pair's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Who {
    /// The queue pair's protection domain.
    pub(crate) pd: u32,
    /// The queue pair's number.
    pub(crate) qp_num: u32,
}
