//! System calls on memory that may not be turned into slices, and the few that no safe crate offers.
#![expect(unsafe_code, reason = "sendmsg/recvmsg on registered memory, signal mask, exit hook")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::mem::Grant;

/// A piece of memory to send from. Borrows what keeps that memory alive.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct SendPiece<'a>(libc::iovec, PhantomData<&'a ()>);

impl<'a> SendPiece<'a> {
    /// Bytes of ours.
    pub(crate) fn bytes(bytes: &'a [u8]) -> Self {
        Self(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }, PhantomData)
    }

    /// Registered memory.
    pub(crate) fn grant(grant: &'a Grant<'_>) -> Self {
        Self(libc::iovec { iov_base: grant.as_ptr().cast(), iov_len: grant.len() }, PhantomData)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }
}

/// A piece of memory to receive into.
#[repr(transparent)]
pub(crate) struct RecvPiece<'a>(libc::iovec, PhantomData<&'a mut ()>);

impl<'a> RecvPiece<'a> {
    /// Bytes of ours.
    pub(crate) fn bytes(bytes: &'a mut [u8]) -> Self {
        Self(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }, PhantomData)
    }

    /// Registered memory.
    pub(crate) fn grant(grant: &'a Grant<'_>) -> Self {
        Self(libc::iovec { iov_base: grant.as_ptr().cast(), iov_len: grant.len() }, PhantomData)
    }
}

fn message(pieces: *mut libc::iovec, count: usize) -> libc::msghdr {
    // SAFETY: msghdr is a plain C struct for which all zero bytes are a valid value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = pieces;
    msg.msg_iovlen = count.min(MAX_PIECES) as _;
    msg
}

/// Most pieces that one call takes (UIO_MAXIOV).
pub(crate) const MAX_PIECES: usize = 1024;

/// `sendmsg` without blocking and without SIGPIPE.
pub(crate) fn send(fd: BorrowedFd<'_>, pieces: &[SendPiece<'_>]) -> io::Result<usize> {
    let msg = message(pieces.as_ptr().cast_mut().cast(), pieces.len());
    // SAFETY: SendPiece is transparent over iovec; each piece's memory is alive for its lifetime, which
    // spans this call; the kernel only reads it, and answers EFAULT where it is not mapped.
    let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// `recvmsg` without blocking.
pub(crate) fn recv(fd: BorrowedFd<'_>, pieces: &mut [RecvPiece<'_>]) -> io::Result<usize> {
    let mut msg = message(pieces.as_mut_ptr().cast(), pieces.len());
    // SAFETY: RecvPiece is transparent over iovec; own pieces are exclusively borrowed, registered
    // memory is only ever accessed through raw pointers, and the kernel checks that it is mapped.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut msg, libc::MSG_DONTWAIT) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// What the kernel knows of a TCP connection's health.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpHealth {
    /// Segments sent and not acknowledged.
    pub(crate) unacked: u32,
    /// Bytes accepted from us and not yet sent.
    pub(crate) not_sent: u32,
    /// Milliseconds since the last ACK came.
    pub(crate) since_ack_ms: u32,
    /// Milliseconds since the last data came.
    pub(crate) since_data_ms: u32,
    /// Probes of the peer's closed window that were not answered.
    pub(crate) unanswered_probes: u8,
    /// The path's send MSS in bytes.
    pub(crate) send_mss: u32,
}

impl TcpHealth {
    /// Since when the peer's TCP is silent.
    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(self.since_ack_ms.min(self.since_data_ms).into())
    }

    /// The peer's window is closed and it answers the probes, which come at long intervals.
    pub(crate) fn is_probing(&self) -> bool {
        self.unacked == 0 && self.unanswered_probes < 2
    }
}

/// Asks for it (TCP_INFO).
pub(crate) fn tcp_health(fd: BorrowedFd<'_>) -> io::Result<TcpHealth> {
    // SAFETY: tcp_info is a plain C struct of integers; all zero bytes are a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which is that large.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpHealth {
        unacked: info.tcpi_unacked,
        not_sent: count(fd, SIOCOUTQNSD).unwrap_or(0) as u32,
        since_ack_ms: info.tcpi_last_ack_recv,
        since_data_ms: info.tcpi_last_data_recv,
        unanswered_probes: info.tcpi_probes,
        send_mss: info.tcpi_snd_mss,
    })
}

/// Bytes in the send queue that were not sent yet (linux/sockios.h).
const SIOCOUTQNSD: libc::Ioctl = 0x894B;
/// Bytes in the send queue that were not acknowledged yet.
const SIOCOUTQ: libc::Ioctl = 0x5411;

fn count(fd: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut n: libc::c_int = 0;
    // SAFETY: both requests that this is called with write one int.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut n) };
    if rc == 0 { Ok(n.max(0) as u64) } else { Err(io::Error::last_os_error()) }
}

/// Bytes given to TCP that the peer's has not acknowledged.
pub(crate) fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<u64> {
    count(fd, SIOCOUTQ)
}

/// Has TCP repeat lost segments and probe closed windows at least this often, where the system can
/// (Linux 6.15): otherwise it asks less and less often, up to every two minutes.
pub(crate) fn set_longest_retry(fd: BorrowedFd<'_>, interval: Duration) {
    /// linux/tcp.h: TCP_RTO_MAX_MS.
    const TCP_RTO_MAX_MS: libc::c_int = 44;
    let ms = interval.as_millis().clamp(1000, 120_000) as libc::c_int;
    // SAFETY: the option takes one int.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const ms).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// The calling thread's signal mask as it was; restored when dropped.
pub(crate) struct BlockedSignals(libc::sigset_t);

/// Blocks every signal in the calling thread. Threads that it starts inherit that: a library's thread must
/// not run the program's handlers.
pub(crate) fn block_all_signals() -> BlockedSignals {
    // SAFETY: sigset_t is plain data; the calls only touch both sets and this thread's mask.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        BlockedSignals(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the kernel gave; only this thread's mask changes.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}

/// Runs `hook` when the process exits normally.
pub(crate) fn at_exit(hook: extern "C" fn()) {
    // SAFETY: the hook is a plain function without arguments that never unwinds.
    unsafe {
        libc::atexit(hook);
    }
}

/// Runs `hook` in the child of every later fork.
pub(crate) fn at_fork_child(hook: extern "C" fn()) {
    // SAFETY: the hook only stores to an atomic, which is async-signal-safe.
    unsafe {
        libc::pthread_atfork(None, None, Some(hook));
    }
}
