//! The transmit side: a message goes in, DDP segments come out as header bytes and payload ranges.
//!
//! The embedding chooses which message is next (its send queue or the inbound Read queue); a message
//! that was begun is cut to its end before another begins. RFC 5041 §5.2.

mod message;
mod segment;

pub use message::Message;
pub use segment::{MAX_HEADER, Segment};

use crate::mpa::frame;
use crate::types::Queue;
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use message::Plan;

/// Cuts messages into segments that fit the MULPDU and counts message sequence numbers.
#[derive(Debug)]
pub struct Transmitter {
    mulpdu: usize,
    msn: [u32; 4],
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    plan: Plan,
    sent: u32,
    msn: u32,
}

impl Transmitter {
    /// `mulpdu`: the largest ULPDU in bytes, see [`frame::mulpdu`].
    pub fn new(mulpdu: usize) -> Self {
        let mut tx = Self { mulpdu: 0, msn: [1; 4], current: None };
        tx.set_mulpdu(mulpdu);
        tx
    }

    /// The path's MSS changed: later segments obey the new limit. RFC 5044 §4.5.
    pub fn set_mulpdu(&mut self, mulpdu: usize) {
        // rule 5044-4.5-3, 5044-3-2, 5044-3-4
        self.mulpdu = mulpdu.clamp(MIN_MULPDU, frame::MAX_ULPDU);
    }

    /// Whether no message is being cut.
    pub fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// Begin a message. Only when idle: a message under way would be lost, so it is kept and `false` returned.
    pub fn begin(&mut self, message: &Message) -> bool {
        // rule 5041-5.2-4, 5041-5.3-1
        if self.current.is_some() {
            return false;
        }
        let plan = message.plan();
        let msn = match plan.queue {
            Some(q) => {
                // MSN counts messages of its queue from 1 and wraps. RFC 5041 §5.1.2.
                let slot = &mut self.msn[q as usize];
                let msn = *slot;
                // rule 5041-5.1.2-1, 7306-6.3-2, 7306-5.2.1-3
                *slot = msn.wrapping_add(1);
                msn
            }
            None => 0,
        };
        self.current = Some(Current { plan, sent: 0, msn });
        true
    }

    /// Drops the message under way: its last segment never comes, so only a Terminate may follow.
    /// RFC 5040 §7.2.
    pub fn cancel(&mut self) {
        self.current = None;
    }

    /// The next segment of the message under way; `None` when idle.
    pub fn next_segment(&mut self) -> Option<Segment> {
        let cur = self.current.as_mut()?;
        let fixed = cur.plan.extra_len as usize;
        let ddp = if cur.plan.queue.is_some() { UNTAGGED_LEN } else { TAGGED_LEN };
        // Every segment but the last carries a multiple of four bytes, so that only it is padded.
        let room = ((self.mulpdu - ddp - fixed) & !3) as u32;
        let left = cur.plan.len - cur.sent;
        // rule 5041-5.2-1, 5044-4.5-4
        let take = left.min(room);
        // rule 5041-4.1-2, 5041-5.2-2
        let last = take == left;
        let mut seg = Segment::new(take, cur.sent, last);
        match cur.plan.queue {
            Some(queue) => write_untagged(&mut seg, cur, queue, last),
            None => {
                // rule 5041-4.2-2, 5041-5.1.1-1, 5040-4.5-1
                let to = cur.plan.to.wrapping_add(u64::from(cur.sent));
                let h = Tagged { last, opcode: cur.plan.opcode as u8, stag: cur.plan.stag, to };
                seg.put(|b: &mut [u8; TAGGED_LEN]| h.write(b));
            }
        }
        seg.finish();
        // rule 5041-5.2-3
        cur.sent += take;
        if last {
            self.current = None;
        }
        Some(seg)
    }
}

/// Room for the longest control message (RFC 7306 Atomic Request) in one segment.
const MIN_MULPDU: usize = UNTAGGED_LEN + message::MAX_EXTRA + 4;

fn write_untagged(seg: &mut Segment, cur: &Current, queue: Queue, last: bool) {
    let h = Untagged {
        last,
        opcode: cur.plan.opcode as u8,
        inv_stag: cur.plan.stag,
        qn: queue as u32,
        // rule 5041-5.1.2-2
        msn: cur.msn,
        // rule 5041-4.3-2
        mo: cur.sent,
    };
    seg.put(|b: &mut [u8; UNTAGGED_LEN]| h.write(b));
    seg.put_slice(cur.plan.extra());
}

#[cfg(test)]
mod tests;
