//! Sockets: made non-blocking, close-on-exec, out of the program's low descriptors, without Nagle.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// Programs use `select` and count on small numbers: ours start here where the limit allows.
const LOWEST_FD: i32 = 1024;

/// Moves a descriptor above [`LOWEST_FD`] if the process may have such numbers.
pub(crate) fn raise(fd: OwnedFd) -> OwnedFd {
    fcntl_dupfd_cloexec(&fd, LOWEST_FD).unwrap_or(fd)
}

/// A new socket for `addr`'s family.
fn socket(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(raise(net::socket_with(family, SocketType::STREAM, flags, None)?))
}

/// A listening socket.
pub(crate) fn listen(addr: &SocketAddr, backlog: i32) -> io::Result<OwnedFd> {
    let fd = socket(addr)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    net::bind(&fd, addr)?;
    net::listen(&fd, backlog)?;
    Ok(fd)
}

/// Starts to connect. The socket becomes writable when that is decided.
pub(crate) fn start_connect(addr: &SocketAddr, from: Option<&SocketAddr>) -> io::Result<OwnedFd> {
    let fd = socket(addr)?;
    if let Some(from) = from {
        net::bind(&fd, from)?;
    }
    match net::connect(&fd, addr) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(e) => Err(e.into()),
    }
}

/// How a connect that was started ended.
pub(crate) fn connect_result(fd: impl AsFd) -> io::Result<()> {
    match sockopt::socket_error(fd)? {
        Ok(()) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Takes a connection off a listener; `None` when none waits.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<Option<OwnedFd>> {
    match net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(raise(fd))),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Options of every connection: no Nagle (FPDUs go out as written), keep-alive so that a peer that
/// vanished while we wait for it is noticed.
pub(crate) fn prepare(fd: impl AsFd, keep_alive: Option<std::time::Duration>) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // rule 5044-5.1-1
    sockopt::set_tcp_nodelay(&fd, true)?;
    if let Some(idle) = keep_alive {
        super::sys::set_longest_retry(fd.as_fd(), idle / 4);
        sockopt::set_socket_keepalive(&fd, true)?;
        let idle = idle.max(std::time::Duration::from_secs(2));
        sockopt::set_tcp_keepidle(&fd, idle / 2)?;
        sockopt::set_tcp_keepintvl(&fd, std::time::Duration::from_secs((idle.as_secs() / 6).max(1)))?;
        sockopt::set_tcp_keepcnt(&fd, 3)?;
    }
    Ok(())
}

/// Local and peer address.
pub(crate) fn addresses(fd: impl AsFd) -> io::Result<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(net::getsockname(&fd)?)?;
    let peer = net::getpeername(&fd)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok((local, SocketAddr::try_from(peer)?))
}

/// The address a listener is bound to.
pub(crate) fn local_address(fd: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(net::getsockname(fd)?)?)
}

/// Standard library views, for conversion of sockets that the application connected.
pub(crate) fn adopt(stream: TcpStream) -> OwnedFd {
    raise(stream.into())
}

/// Likewise for a listener.
#[allow(dead_code, reason = "for listeners handed in by socket activation")]
pub(crate) fn adopt_listener(listener: TcpListener) -> OwnedFd {
    raise(listener.into())
}

/// Receives into own bytes without blocking; straight to the kernel, without libc's cancellation point.
pub(crate) fn recv(fd: impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    Ok(net::recv(fd, bytes, net::RecvFlags::DONTWAIT)?.0)
}

/// Sends own bytes without blocking and without SIGPIPE.
pub(crate) fn send(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(net::send(fd, bytes, net::SendFlags::DONTWAIT | net::SendFlags::NOSIGNAL)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_send_at_once_and_notice_a_vanished_peer() {
        // rule 5044-5.1-1
        let listener = listen(&"127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let fd = start_connect(&local_address(&listener).unwrap(), None).unwrap();
        assert!(!sockopt::tcp_nodelay(&fd).unwrap());
        prepare(&fd, Some(std::time::Duration::from_secs(20))).unwrap();
        assert!(sockopt::tcp_nodelay(&fd).unwrap() && sockopt::socket_keepalive(&fd).unwrap());
    }
}
