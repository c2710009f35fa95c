//! Completion queues and the channels that report them.

mod channel;
mod completion;
mod cq;
mod sleep;
mod task;
#[cfg(test)]
mod tests;

pub use channel::{CompletionChannel, CqEvent};
pub use completion::{Completion, CompletionOp, Status};
pub(crate) use cq::Progress;
pub use cq::{Arm, CompletionQueue};
pub use task::Completions;
