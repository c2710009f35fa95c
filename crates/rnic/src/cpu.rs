//! CPU time of this process.
use rustix::time::{ClockId, clock_gettime};

/// User and system time of all threads so far, in nanoseconds.
pub(crate) fn process_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_cpu_time() {
        let before = process_ns();
        let mut state = 1u64;
        while process_ns() < before + 1_000_000 {
            state = std::hint::black_box(state.wrapping_mul(3));
        }
        assert!(process_ns() > before);
    }
}
