//! What a completion says.

/// How a work request ended. Names and numbers are those of `ibv_wc_status` in `verbs.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    #[default]
    Success = 0,
    /// The message was longer than the receive, or the local memory does not fit the operation.
    LocalLengthError = 1,
    /// The queue pair was in no state to do it, or it was malformed.
    LocalQpOperation = 2,
    /// Local memory was not accessible: wrong key, bounds, rights or protection domain.
    LocalProtection = 4,
    /// Not begun: the queue pair went into error before.
    WrFlush = 5,
    /// A window could not be bound or a fast region not registered.
    MwBind = 6,
    /// The peer answered with something that fits no request.
    BadResponse = 7,
    /// Local memory became inaccessible while a peer's message was placed.
    LocalAccess = 8,
    /// The peer found the request invalid.
    RemoteInvalidRequest = 9,
    /// The peer refused access to its memory.
    RemoteAccess = 10,
    /// The peer could not carry the request out.
    RemoteOperation = 11,
    /// The peer was not reachable in time.
    RetryExceeded = 12,
    /// The peer posted no receive in time.
    RnrRetryExceeded = 13,
    /// The device failed.
    Fatal = 19,
    /// A response did not come in time.
    ResponseTimeout = 20,
    /// Something else; see `vendor_err`.
    General = 21,
}

impl Status {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLengthError => "local length error",
            Self::LocalQpOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::WrFlush => "flushed: the queue pair is in error",
            Self::MwBind => "window bind or fast registration error",
            Self::BadResponse => "bad response from the peer",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "peer not reachable in time",
            Self::RnrRetryExceeded => "peer posted no receive in time",
            Self::Fatal => "fatal device error",
            Self::ResponseTimeout => "response time-out",
            Self::General => "general error",
        }
    }

    /// Whether the request was carried out.
    pub fn is_success(self) -> bool {
        self == Self::Success
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which kind of request completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum CompletionOp {
    /// A Send, with or without invalidate.
    #[default]
    Send,
    /// A Write.
    Write,
    /// A Read, with or without invalidate.
    Read,
    /// An atomic addition.
    FetchAdd,
    /// An atomic compare-and-swap.
    CmpSwap,
    /// An atomic swap.
    Swap,
    /// An Immediate Data message was sent.
    Immediate,
    /// A local invalidate.
    LocalInvalidate,
    /// A window was bound or unbound.
    BindWindow,
    /// A fast registration.
    FastRegister,
    /// A receive took a Send.
    Recv,
    /// A receive took an Immediate Data message.
    RecvImmediate,
}

/// The report that a work request is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The application's name for the request.
    pub wr_id: u64,
    /// How it ended. Unless it succeeded only `wr_id`, `qp_num` and `vendor_err` mean anything else.
    pub status: Status,
    /// What it was.
    pub opcode: CompletionOp,
    /// Bytes received, read or (atomics) fetched.
    pub len: u32,
    /// The queue pair it was posted on.
    pub qp_num: u32,
    /// The value of an Immediate Data message.
    pub immediate: Option<u64>,
    /// A key of ours that the peer's Send invalidated.
    pub invalidated: Option<u32>,
    /// Detail of a failure, for a log; its meaning may change.
    pub vendor_err: u32,
}
