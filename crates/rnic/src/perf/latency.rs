//! One message at a time, each timed: ping-pong, or the full round trip of Reads and atomics.
use std::time::Instant;

use rnic_verbs::{Payload, SendOp, SendWr};

use super::bandwidth::{Inspector, Requests};
use super::check::{Role, pattern, peer_of};
use super::control::Round;
use super::lane::{Lane, unexpected};
use super::plan::{Verb, stride};
use super::verify::{Pattern, Verdict};
use super::{Span, Timed};
use crate::error::Result;

/// Every so many messages one is signalled: what sends ahead of it are then known to be complete as well.
const SIGNAL_EVERY: u32 = 16;

/// The end that sends first.
pub(crate) fn initiate(lane: &mut Lane, round: &Round) -> Result<(Timed, Verdict)> {
    let mut player = Player::new(lane, round, Role::Initiator);
    let mut samples = Vec::with_capacity(round.count as usize);
    let start = Instant::now();
    let mut last = start;
    for number in 0..round.count {
        player.send(lane, number)?;
        player.await_answer(lane, number)?;
        let now = Instant::now();
        samples.push((now - last).as_nanos() as u64);
        last = now;
    }
    let span = Span { start, end: last };
    lane.send_note()?;
    lane.await_note(unexpected)?;
    lane.flush_note()?;
    Ok((Timed { span, samples }, player.inspector.finish(lane)?))
}

/// The end that answers.
pub(crate) fn respond(lane: &mut Lane, round: &Round) -> Result<(Timed, Verdict)> {
    let mut player = Player::new(lane, round, Role::Responder);
    let start = Instant::now();
    if !round.verb.is_round_trip() {
        for number in 0..round.count {
            player.await_message(lane, number)?;
            player.send(lane, number)?;
        }
    }
    lane.await_note(unexpected)?;
    lane.send_note()?;
    lane.flush_note()?;
    Ok((
        Timed { span: Span { start, end: Instant::now() }, samples: Vec::new() },
        player.inspector.finish(lane)?,
    ))
}

#[derive(Debug)]
struct Player {
    verb: Verb,
    size: u32,
    count: u32,
    incoming: Pattern,
    requests: Requests,
    inspector: Inspector,
}

impl Player {
    fn new(lane: &Lane, round: &Round, role: Role) -> Self {
        Self {
            verb: round.verb,
            size: round.size,
            count: round.count,
            incoming: pattern(round, lane, peer_of(role)),
            requests: Requests::new(lane, round, role),
            inspector: Inspector::new(lane, round, peer_of(role)),
        }
    }

    fn send(&mut self, lane: &mut Lane, number: u32) -> Result<()> {
        let signaled = self.verb.is_round_trip()
            || number % SIGNAL_EVERY == SIGNAL_EVERY - 1
            || number + 1 == self.count;
        while number >= lane.sent + 2 * SIGNAL_EVERY {
            lane.turn(&mut unexpected)?;
        }
        let local = self.requests.local(lane, number);
        let request = self.requests.request(lane, number, &local, signaled);
        if self.verb == Verb::Write && lane.events {
            // The peer sleeps, and a Write wakes nobody: an empty Send behind it does.
            let bell = SendWr { payload: Payload::Sges(&[]), op: SendOp::Send, ..request };
            lane.post(&[request.unsignaled(), bell])?;
        } else {
            lane.post(&[request])?;
        }
        Ok(())
    }

    /// The initiator's wait for the end of exchange `number`.
    fn await_answer(&mut self, lane: &mut Lane, number: u32) -> Result<()> {
        if self.verb.is_round_trip() {
            while lane.sent <= number {
                lane.turn(&mut unexpected)?;
            }
            return Ok(());
        }
        self.await_message(lane, number)
    }

    /// Waits for message `number` of the peer.
    fn await_message(&mut self, lane: &mut Lane, number: u32) -> Result<()> {
        let Self { inspector, .. } = self;
        if self.verb == Verb::Write && !lane.events {
            return self.watch_memory(lane, number);
        }
        while lane.received() <= number {
            lane.turn(&mut |number, completion| inspector.inspect(number, completion))?;
        }
        Ok(())
    }

    /// Spins until the last byte of message `number` is in memory; the others are there before, since the bytes of a Write
    /// appear in ascending order. Before the round that byte was set to the complement of what is to come.
    fn watch_memory(&self, lane: &mut Lane, number: u32) -> Result<()> {
        let Some(last) = self.size.checked_sub(1) else { return Ok(()) };
        let at = u64::from(number) * u64::from(stride(self.size)) + u64::from(last);
        let in_word = (at % 8) as usize;
        let spoiled = !self.incoming.byte(at);
        while lane.memory.sink.load_u64(at - in_word as u64)?.to_ne_bytes()[in_word] == spoiled {
            lane.turn(&mut unexpected)?;
        }
        lane.moved();
        Ok(())
    }
}
