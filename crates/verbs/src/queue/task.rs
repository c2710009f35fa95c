//! Completion queues for asynchronous tasks. Any executor will do; nothing here starts a thread.
//!
//! ```no_run
//! # use rnic_verbs::{CompletionQueue, Result};
//! # async fn handle(cq: &CompletionQueue) -> Result<()> {
//! loop {
//!     let completion = cq.next().await?;
//!     println!("request {} is over: {}", completion.wr_id, completion.status);
//! }
//! # }
//! ```

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::completion::Completion;
use super::cq::CompletionQueue;
use crate::error::Result;

impl CompletionQueue {
    /// The next completion. Of several tasks that wait each completion goes to one. A future that is dropped
    /// has taken none.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`].
    pub async fn next(&self) -> Result<Completion> {
        let mut one = [Completion::default()];
        self.next_batch(&mut one).await.map(|_| one[0])
    }

    /// Takes up to `out.len()` completions once there is one at least; how many were taken (none only for an
    /// empty `out`). A future that is dropped has taken none.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`].
    pub async fn next_batch(&self, out: &mut [Completion]) -> Result<usize> {
        std::future::poll_fn(|cx| self.poll_completions(cx, out)).await
    }

    /// All completions from now on, as a [`Stream`]; it ends after an error. It takes a completion when asked
    /// for one and not before, so it can be dropped at any time.
    pub fn completions(&self) -> Completions {
        Completions { queue: Some(self.clone()) }
    }
}

/// What [`CompletionQueue::completions`] gives.
#[derive(Clone, Debug)]
#[must_use = "a stream does nothing unless polled"]
pub struct Completions {
    queue: Option<CompletionQueue>,
}

impl Stream for Completions {
    type Item = Result<Completion>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(queue) = &self.queue else { return Poll::Ready(None) };
        let mut one = [Completion::default()];
        let result = ready!(queue.poll_completions(cx, &mut one)).map(|_| one[0]);
        if result.is_err() {
            self.queue = None;
        }
        Poll::Ready(Some(result))
    }
}
