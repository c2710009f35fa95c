//! TCP as the engine uses it: sockets with the options set, and calls that reach registered memory.

pub(crate) mod sys;
pub(crate) mod tcp;
