//! Many messages under way.
use std::time::Instant;

use arrayvec::ArrayVec;
use rnic_verbs::{Completion, RemoteBuffer, SendWr, Sge};

use super::check::{Role, pattern};
use super::control::Round;
use super::lane::{Lane, unexpected};
use super::plan::{Verb, stride};
use super::script::{Script, immediate};
use super::verify::{Pattern, Verdict};
use super::{Span, Timed};
use crate::cli::MAX_BATCH;
use crate::error::{Failure, Result};

/// The part of `buffer` from `offset` on.
pub(crate) fn behind(buffer: RemoteBuffer, offset: u64) -> RemoteBuffer {
    RemoteBuffer { addr: buffer.addr.wrapping_add(offset), len: buffer.len.saturating_sub(offset), ..buffer }
}

/// Makes the requests of one round.
#[derive(Debug)]
pub(crate) struct Requests {
    verb: Verb,
    size: u32,
    stride: u32,
    corrupt: bool,
    pattern: Pattern,
    script: Script,
}

impl Requests {
    /// For what `role` sends.
    pub(crate) fn new(lane: &Lane, round: &Round, role: Role) -> Self {
        let pattern = pattern(round, lane, role);
        Self {
            verb: round.verb,
            size: round.size,
            stride: stride(round.size),
            corrupt: round.corrupt && role == Role::Initiator,
            pattern,
            script: Script::new(round.verb, pattern),
        }
    }

    /// Local memory of message `number`.
    pub(crate) fn local(&self, lane: &Lane, number: u32) -> Sge {
        let offset = u64::from(number) * u64::from(self.stride);
        match self.verb {
            Verb::Write | Verb::Send => lane.memory.source.sge(offset, self.size),
            _ => lane.memory.sink.sge(offset, self.size),
        }
    }

    /// Message `number`, which must come in order; its completion says how many have completed with it.
    pub(crate) fn request<'a>(
        &mut self,
        lane: &Lane,
        number: u32,
        local: &'a Sge,
        signaled: bool,
    ) -> SendWr<'a> {
        let offset = u64::from(number) * u64::from(self.stride);
        let id = u64::from(number) + 1;
        let corrupt = self.corrupt && number == 0;
        let sges = std::slice::from_ref(local);
        let request = match self.verb {
            Verb::Write => SendWr::write(id, sges, behind(lane.peer_sink, offset)),
            Verb::Read => SendWr::read(id, sges, behind(lane.peer_source, offset)),
            Verb::Send => SendWr::send(id, sges),
            Verb::Imm => SendWr::immediate(id, immediate(self.pattern, number, corrupt)),
            Verb::FetchAdd | Verb::CmpSwap | Verb::Swap => {
                self.script.step().request(self.verb, id, local, lane.peer_sink, corrupt)
            }
        };
        if signaled { request } else { request.unsignaled() }
    }
}

/// The end that posts.
pub(crate) fn initiate(lane: &mut Lane, round: &Round) -> Result<Timed> {
    let mut requests = Requests::new(lane, round, Role::Initiator);
    let depth = lane.depth;
    let batch = round.batch.clamp(1, depth.min(MAX_BATCH as u32));
    let mut posted = 0;
    let start = Instant::now();
    while posted < round.count {
        let room = batch.min(round.count - posted);
        while posted + room > lane.sent + depth {
            lane.turn(&mut unexpected)?;
        }
        post_batch(lane, &mut requests, posted, room)?;
        posted += room;
    }
    // A note overtakes no Send and no Write, but it does overtake the responses of Reads and atomics.
    let answered = round.verb.is_round_trip();
    if !answered {
        lane.send_note()?;
        lane.await_note(unexpected)?;
    }
    while lane.sent < round.count {
        lane.turn(&mut unexpected)?;
    }
    let span = Span { start, end: Instant::now() };
    if answered {
        lane.send_note()?;
        lane.await_note(unexpected)?;
    }
    lane.flush_note()?;
    Ok(Timed { span, samples: Vec::new() })
}

fn post_batch(lane: &Lane, requests: &mut Requests, first: u32, room: u32) -> Result<()> {
    let locals: ArrayVec<Sge, MAX_BATCH> =
        (first..first + room).map(|number| requests.local(lane, number)).collect();
    let list: ArrayVec<SendWr<'_>, MAX_BATCH> = (first..first + room)
        .zip(&locals)
        .map(|(number, local)| requests.request(lane, number, local, number + 1 == first + room))
        .collect();
    lane.post(&list)
}

/// The other end: takes what comes until the note, and answers that.
pub(crate) fn respond(lane: &mut Lane, round: &Round) -> Result<(Timed, Verdict)> {
    let start = Instant::now();
    let mut inspector = Inspector::new(lane, round, Role::Initiator);
    lane.await_note(|number, completion| inspector.inspect(number, completion))?;
    let verdict = inspector.finish(lane)?;
    lane.send_note()?;
    lane.flush_note()?;
    Ok((Timed { span: Span { start, end: Instant::now() }, samples: Vec::new() }, verdict))
}

/// Looks at each completion of a receive; what a Send placed is checked after the round.
#[derive(Debug)]
pub(crate) struct Inspector {
    verb: Verb,
    size: u32,
    pattern: Pattern,
    verdict: Verdict,
    count: u32,
}

impl Inspector {
    /// For what `from` sends.
    pub(crate) fn new(lane: &Lane, round: &Round, from: Role) -> Self {
        let pattern = pattern(round, lane, from);
        let count = if matches!(round.verb, Verb::Send | Verb::Imm) { round.count } else { 0 };
        Self { verb: round.verb, size: round.size, pattern, verdict: Verdict::default(), count }
    }

    /// Message `number` came.
    pub(crate) fn inspect(&mut self, number: u32, completion: &Completion) -> Result<()> {
        match self.verb {
            Verb::Send if completion.len != self.size => Err(Failure::failed(format!(
                "message {number} has {} bytes instead of {}",
                completion.len, self.size
            ))),
            Verb::Imm => {
                let Some(found) = completion.immediate else {
                    return Err(Failure::failed(format!("message {number} carries no immediate data")));
                };
                let expected = immediate(self.pattern, number, false);
                self.verdict.merge(Verdict::of_word(u64::from(number), expected, found));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// All messages must be there.
    pub(crate) fn finish(self, lane: &Lane) -> Result<Verdict> {
        if self.count != 0 && lane.received() != self.count {
            let got = lane.received();
            return Err(Failure::failed(format!("{got} of {} messages came", self.count)));
        }
        Ok(self.verdict)
    }
}
