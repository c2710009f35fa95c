//! FPDUs on their way to one `sendmsg`: own bytes (headers, small payloads, trailers) and references
//! to registered memory, in stream order.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use iwarp::TaggedFault;

use super::wqe::Segments;
use crate::mem::{Grant, Segment};
use crate::net::sys::{self, SendPiece};
use crate::net::tcp;

/// Pieces given to one system call.
const PIECES: usize = 128;

#[derive(Debug)]
enum Piece {
    /// A range of the arena.
    Own { start: usize, len: usize },
    /// Registered memory; entered anew for each system call, so that a withdrawal in between is seen.
    Memory { segment: Segment, offset: usize, len: usize },
}

impl Piece {
    fn len(&self) -> usize {
        match *self {
            Self::Own { len, .. } | Self::Memory { len, .. } => len,
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Self::Own { start, len } => {
                *start += n;
                *len -= n;
            }
            Self::Memory { offset, len, .. } => {
                *offset += n;
                *len -= n;
            }
        }
    }
}

/// How a flush ended.
#[derive(Debug)]
pub(crate) enum Flushed {
    /// Everything is with TCP.
    All,
    /// TCP takes no more now.
    Blocked,
    /// Memory of a work request under way was withdrawn or unmapped: the stream cannot go on.
    Memory(TaggedFault),
    /// The connection broke.
    Broken(io::Error),
}

/// The batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    arena: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Stream bytes ever put in and ever taken by TCP.
    queued: u64,
    sent: u64,
}

impl Batch {
    /// Stream position behind everything put in.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Stream position up to which TCP has the bytes.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that wait.
    pub(crate) fn waiting(&self) -> usize {
        (self.queued - self.sent) as usize
    }

    /// Pieces that wait.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Puts own bytes in, written by `fill` behind the arena's end. Whatever it adds is sent.
    pub(crate) fn own<E>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        let start = self.arena.len();
        if let Err(e) = fill(&mut self.arena) {
            self.arena.truncate(start);
            return Err(e);
        }
        let len = self.arena.len() - start;
        self.queued += len as u64;
        match self.pieces.back_mut() {
            Some(Piece::Own { start: s, len: l }) if *s + *l == start => *l += len,
            _ if len > 0 => self.pieces.push_back(Piece::Own { start, len }),
            _ => {}
        }
        Ok(())
    }

    /// Puts references to registered memory in.
    pub(crate) fn memory(&mut self, segments: &Segments, offset: usize, len: usize) {
        for run in segments.runs(offset, len) {
            self.queued += run.len as u64;
            self.pieces.push_back(Piece::Memory {
                segment: run.segment.clone(),
                offset: run.offset,
                len: run.len,
            });
        }
    }

    /// Copies what is only referred to: afterwards the batch does not look at registered memory.
    pub(crate) fn detach(&mut self) -> Result<(), TaggedFault> {
        for piece in &mut self.pieces {
            if let Piece::Memory { segment, offset, len } = piece {
                let start = self.arena.len();
                self.arena.resize(start + *len, 0);
                segment.enter_part(*offset, *len)?.copy_out_checked(0, &mut self.arena[start..])?;
                *piece = Piece::Own { start, len: *len };
            }
        }
        Ok(())
    }

    /// Gives TCP what it takes.
    pub(crate) fn flush(&mut self, fd: BorrowedFd<'_>) -> Flushed {
        while !self.pieces.is_empty() {
            let sent = match self.send_once(fd) {
                Ok(n) => n,
                Err(SendError::Memory(f)) => return Flushed::Memory(f),
                Err(SendError::Io(e)) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => return Flushed::Blocked,
                    Some(libc::EINTR) => continue,
                    Some(libc::EFAULT) => return Flushed::Memory(TaggedFault::Unreachable),
                    _ => return Flushed::Broken(e),
                },
            };
            self.advance(sent);
        }
        self.arena.clear();
        Flushed::All
    }

    fn send_once(&self, fd: BorrowedFd<'_>) -> Result<usize, SendError> {
        if let (Some(Piece::Own { start, len }), 1) = (self.pieces.front(), self.pieces.len()) {
            return tcp::send(fd, &self.arena[*start..*start + *len]).map_err(SendError::Io);
        }
        let mut grants: ArrayVec<Grant<'_>, PIECES> = ArrayVec::new();
        for piece in self.pieces.iter().take(PIECES) {
            if let Piece::Memory { segment, offset, len } = piece {
                grants.push(segment.enter_part(*offset, *len).map_err(SendError::Memory)?);
            }
        }
        let mut entered = grants.iter();
        let mut list: ArrayVec<SendPiece<'_>, PIECES> = ArrayVec::new();
        for piece in self.pieces.iter().take(PIECES) {
            match piece {
                Piece::Own { start, len } => list.push(SendPiece::bytes(&self.arena[*start..*start + *len])),
                Piece::Memory { .. } => list.extend(entered.next().map(SendPiece::grant)),
            }
        }
        debug_assert!(list.iter().all(|p| p.len() > 0));
        sys::send(fd, &list).map_err(SendError::Io)
    }

    fn advance(&mut self, mut n: usize) {
        self.sent += n as u64;
        while n > 0 {
            let Some(front) = self.pieces.front_mut() else { return };
            let have = front.len();
            if n < have {
                front.advance(n);
                return;
            }
            n -= have;
            self.pieces.pop_front();
        }
    }
}

enum SendError {
    Memory(TaggedFault),
    Io(io::Error),
}
