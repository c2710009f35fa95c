//! What one would use instead, one file each: how to start both ends and how to read what is printed.

mod iperf3;
mod libfabric;
mod qperf;
mod sockperf;
mod ucx;

use super::case::Case;
use crate::apt::Need;

/// All measurements of all rivals.
pub(super) fn cases() -> Vec<Case> {
    [libfabric::cases(), ucx::cases(), iperf3::cases(), sockperf::cases(), qperf::cases()]
        .into_iter()
        .flatten()
        .collect()
}

/// What `--install` brings. (Debian has no package of fabtests; they are used where they are on the `PATH`.)
pub(super) fn needs() -> Vec<Need> {
    vec![libfabric::PINGPONG, ucx::TOOL, iperf3::TOOL, sockperf::TOOL, qperf::TOOL]
}

/// Messages enough for about a second at some 30 Gbit/s, within bounds.
fn messages(size: u64) -> u64 {
    ((4u64 << 30) / size.max(1)).clamp(1_000, 50_000)
}

/// Sizes at which bandwidth is compared.
const BANDWIDTH_SIZES: [u64; 2] = [64 << 10, 1 << 20];
/// Sizes at which latency is compared.
const LATENCY_SIZES: [u64; 2] = [8, 64];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn case_names_are_unique() {
        let names: Vec<_> = cases().iter().map(Case::name).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    }

    #[test]
    fn message_counts_stay_bounded() {
        assert_eq!(messages(64), 50_000);
        assert_eq!(messages(1 << 20), 4096);
        assert_eq!(messages(1 << 30), 1000);
    }
}
