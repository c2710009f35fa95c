//! Several queue pairs or connections at once: a thread for each, or just this thread for one.
use std::sync::Barrier;

use crate::error::{Failure, Result};

/// Runs `work` on each item at the same time.
pub(crate) fn together<T: Send, R: Send>(
    items: &mut [T],
    work: impl Fn(&mut T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if let [only] = items {
        return Ok(vec![work(only)?]);
    }
    let barrier = Barrier::new(items.len());
    std::thread::scope(|scope| {
        let workers: Vec<_> = items
            .iter_mut()
            .map(|item| {
                scope.spawn(|| {
                    barrier.wait();
                    work(item)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| {
                worker.join().unwrap_or_else(|_| Err(Failure::failed("a measuring thread panicked")))
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        assert_eq!(together(&mut [3], |n| Ok(*n)).unwrap(), [3]);
        assert_eq!(together(&mut [3, 1, 2], |n| Ok(*n * 2)).unwrap(), [6, 2, 4]);
    }

    #[test]
    fn one_failure_is_the_failure_of_all() {
        let result = together(&mut [1, 0, 2], |n| if *n == 0 { Err(Failure::failed("no")) } else { Ok(*n) });
        assert_eq!(result.unwrap_err().cause, "no");
    }
}
