//! Completion queues and the channels that report them.

mod channel;
mod completion;
mod cq;
#[cfg(test)]
mod tests;

pub use channel::{CompletionChannel, CqEvent};
pub use completion::{Completion, CompletionOp, Status};
pub use cq::{Arm, CompletionQueue};
pub(crate) use cq::{Progress, Waiter};
