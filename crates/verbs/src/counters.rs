//! Counters of a device and of a queue pair.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($(#[$doc:meta])* $live:ident, $snap:ident { $($(#[$fdoc:meta])* $field:ident),* $(,)? }) => {
        #[derive(Debug, Default)]
        pub(crate) struct $live { $(pub(crate) $field: AtomicU64),* }

        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct $snap { $($(#[$fdoc])* pub $field: u64),* }

        impl $live {
            pub(crate) fn snapshot(&self) -> $snap {
                $snap { $($field: self.$field.load(Relaxed)),* }
            }
        }
    };
}

counters! {
    /// Totals of a device.
    DeviceCounters, DeviceCounts {
        /// Connections established.
        connections,
        /// Connection requests and attempts that failed.
        connect_errors,
        /// Connections that ended with a fault found here.
        faults_local,
        /// Connections that the peer terminated.
        faults_peer,
        /// Bytes taken from TCP.
        rx_bytes,
        /// Bytes given to TCP.
        tx_bytes,
        /// FPDUs received.
        rx_fpdus,
        /// FPDUs sent.
        tx_fpdus,
        /// Receive system calls.
        rx_calls,
        /// Send system calls.
        tx_calls,
        /// Connections given up because the path was dead.
        dead_paths,
    }
}

counters! {
    /// Totals of a queue pair's present connection and those before.
    QpCounters, QpCounts {
        /// Bytes taken from TCP.
        rx_bytes,
        /// Bytes given to TCP.
        tx_bytes,
        /// FPDUs received.
        rx_fpdus,
        /// FPDUs sent.
        tx_fpdus,
        /// Bytes received straight into registered memory.
        rx_direct_bytes,
        /// Messages that came before their receive was posted.
        rx_held,
        /// Peer's Reads and atomics served.
        reads_served,
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
