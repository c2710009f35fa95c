//! What needs a look inside: sequence numbers that only four thousand million messages would reach.

use std::vec::Vec;

use super::*;
use crate::error::TaggedFault;
use crate::host::{ReceiveSlot, ResponsePlace};
use crate::mpa::frame::{fpdu_len, seal};
use crate::mpa::startup::Revision;
use crate::types::{AtomicRequest, InboundRead, Queue, Stag};
use crate::wire::ddp::{UNTAGGED_LEN, Untagged};

/// Takes empty messages and empty Reads; counts events.
#[derive(Default)]
struct Counter(usize);

impl Host for Counter {
    fn check_write(&mut self, _: Stag, _: u64, _: u32) -> Result<(), TaggedFault> {
        Err(TaggedFault::InvalidStag)
    }
    fn place_write(&mut self, _: Stag, _: u64, _: &[u8]) -> Result<(), TaggedFault> {
        Err(TaggedFault::InvalidStag)
    }
    fn take_receive(&mut self) -> Result<Option<ReceiveSlot>, Fault> {
        Ok(Some(ReceiveSlot { cookie: 0, len: 0 }))
    }
    fn place_receive(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), Fault> {
        Err(Fault::LocalMemory)
    }
    fn response_place(&mut self, _: Stag, _: u64, _: u32, _: bool) -> Result<ResponsePlace, Fault> {
        Err(Fault::UnexpectedResponse)
    }
    fn place_response(&mut self, _: ResponsePlace, _: &[u8]) -> Result<(), Fault> {
        Err(Fault::LocalMemory)
    }
    fn atomic_response(&mut self, _: u32) -> Result<ResponsePlace, Fault> {
        Err(Fault::UnexpectedResponse)
    }
    fn check_read(&mut self, _: Stag, _: u64, _: u32) -> Result<(), TaggedFault> {
        Err(TaggedFault::InvalidStag)
    }
    fn atomic(&mut self, _: &AtomicRequest) -> Result<u64, TaggedFault> {
        Err(TaggedFault::InvalidStag)
    }
    fn inbound_has_room(&mut self) -> bool {
        true
    }
    fn push_inbound(&mut self, _: InboundRead) -> Result<(), Fault> {
        self.0 += 1;
        Ok(())
    }
    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        Err(Fault::Invalidate(stag))
    }
    fn event(&mut self, _: Event) {
        self.0 += 1;
    }
}

fn plain() -> Negotiated {
    Negotiated {
        revision: Revision::V2,
        crc: false,
        tx_markers: false,
        rx_markers: false,
        ord: 1,
        ird: 1,
        rtr: None,
        extensions: true,
    }
}

fn message(queue: Queue, msn: u32) -> Vec<u8> {
    let (opcode, body) = match queue {
        Queue::Request => (Opcode::ReadRequest, 28),
        _ => (Opcode::Send, 0),
    };
    let ulpdu_len = UNTAGGED_LEN + body;
    let mut fpdu = std::vec![0; fpdu_len(ulpdu_len)];
    let header =
        Untagged { last: true, opcode: opcode as u8, inv_stag: Stag(0), qn: queue as u32, msn, mo: 0 };
    if let Some(out) = fpdu.get_mut(2..).and_then(|b| b.first_chunk_mut()) {
        header.write(out);
    }
    seal(&mut fpdu, ulpdu_len, None);
    fpdu
}

#[test]
fn sequence_numbers_wrap_to_zero() {
    // rule 5041-5.1.2-1
    for queue in [Queue::Send, Queue::Request] {
        let (mut rx, mut host) = (Receiver::new(&plain(), false), Counter::default());
        rx.msn[queue as usize] = u32::MAX - 1;
        for msn in [u32::MAX - 1, u32::MAX, 0, 1] {
            let mut fpdu = message(queue, msn);
            assert_eq!(rx.handle(&mut host, &mut fpdu), Ok((fpdu.len(), Progress::NeedBytes)), "{msn:#x}");
        }
        assert_eq!(host.0, 4);
        assert_eq!(rx.handle(&mut host, &mut message(queue, 1)), Err(Fault::MsnRange), "a stale one");
    }
}

#[test]
fn after_the_last_number_comes_zero_and_not_one() {
    for wrong in [1, u32::MAX, 2] {
        let (mut rx, mut host) = (Receiver::new(&plain(), false), Counter::default());
        rx.msn[0] = u32::MAX;
        let mut fpdu = message(Queue::Send, u32::MAX);
        assert!(rx.handle(&mut host, &mut fpdu).is_ok());
        assert_eq!(rx.handle(&mut host, &mut message(Queue::Send, wrong)), Err(Fault::MsnRange));
    }
}
