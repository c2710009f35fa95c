//! Prepares the data of a round and checks it afterwards, both outside the timed part.
use rnic_verbs::MemoryRegion;

use super::control::Round;
use super::lane::{Landing, Lane};
use super::plan::{Kind, Verb, stride};
use super::script::Script;
use super::verify::{CHUNK, Mismatch, Pattern, Source, Verdict};
use crate::error::{Failure, Result};

/// Which end of a round this is.
pub(crate) type Role = Source;

/// The other end.
pub(crate) const fn peer_of(role: Role) -> Role {
    match role {
        Role::Initiator => Role::Responder,
        Role::Responder => Role::Initiator,
    }
}

/// The data that the end `role` of `round` sends on `lane`.
pub(crate) fn pattern(round: &Round, lane: &Lane, role: Role) -> Pattern {
    Pattern::new(round.generation, lane.index, role)
}

/// Whether this end gets messages into its sink.
fn is_sink(round: &Round, role: Role) -> bool {
    match (round.verb, round.kind) {
        (Verb::Write | Verb::Send, Kind::Bandwidth) => role == Role::Responder,
        (Verb::Write | Verb::Send, Kind::Latency) => true,
        (Verb::Read, _) => role == Role::Initiator,
        _ => false,
    }
}

/// Whether this end needs receives for data: for Sends, for immediate data, and for the empty Sends that announce a Write
/// to one who sleeps.
fn receives(round: &Round, lane: &Lane, role: Role) -> bool {
    match (round.verb, round.kind) {
        (Verb::Send | Verb::Imm, Kind::Latency) => true,
        (Verb::Send | Verb::Imm, Kind::Bandwidth) => role == Role::Responder,
        (Verb::Write, Kind::Latency) => lane.events,
        _ => false,
    }
}

/// Makes the data and posts the receives.
pub(crate) fn prepare(lane: &mut Lane, round: &Round, role: Role) -> Result<()> {
    let stride = stride(round.size);
    if u64::from(stride) * u64::from(round.count) > u64::from(lane.memory.region) {
        return Err(Failure::failed(format!(
            "{} messages of {} bytes exceed the region",
            round.count, round.size
        )));
    }
    if is_sink(round, peer_of(role)) {
        fill(&lane.memory.source, pattern(round, lane, role), stride * round.count)?;
        if round.corrupt && round.size > 0 && (role == Role::Initiator || round.verb == Verb::Read) {
            falsify(&lane.memory.source, u64::from(round.size / 2))?;
        }
    }
    if round.verb == Verb::Write && round.kind == Kind::Latency {
        spoil_last_bytes(lane, round, role)?;
    }
    if round.verb.is_atomic() && role == Role::Responder {
        let script = Script::new(round.verb, pattern(round, lane, Role::Initiator));
        lane.memory.sink.store_u64(0, script.value())?;
    }
    let landing = match round.verb {
        Verb::Send => Landing::Places { size: round.size, stride },
        _ => Landing::Empty,
    };
    let count = if receives(round, lane, role) { round.count } else { 0 };
    lane.begin(landing, count)
}

/// Checks everything that this end can see of the round, after its timed part.
pub(crate) fn verify(lane: &Lane, round: &Round, role: Role) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    if is_sink(round, role) {
        verdict.merge(check_places(lane, round, pattern(round, lane, peer_of(role)))?);
    }
    if round.verb.is_atomic() {
        let script = Script::new(round.verb, pattern(round, lane, Role::Initiator));
        verdict.merge(match role {
            Role::Initiator => check_answers(lane, round, script)?,
            Role::Responder => {
                let expected = script.after(round.count);
                Verdict::of_word(u64::from(round.count), expected, lane.memory.sink.load_u64(0)?)
            }
        });
    }
    if !lane.memory.guard_is_intact()? {
        let offset = u64::from(lane.memory.region);
        verdict.merge(Verdict {
            checked: 0,
            wrong: 1,
            first: Some(Mismatch { offset, expected: 0, found: 0xff }),
        });
    }
    Ok(verdict)
}

fn fill(region: &MemoryRegion, pattern: Pattern, len: u32) -> Result<()> {
    let mut chunk = [0; CHUNK];
    let mut at = 0;
    while at < u64::from(len) {
        let part = (u64::from(len) - at).min(CHUNK as u64) as usize;
        pattern.fill(at, &mut chunk[..part]);
        region.write_at(at, &chunk[..part])?;
        at += part as u64;
    }
    Ok(())
}

fn falsify(region: &MemoryRegion, at: u64) -> Result<()> {
    let mut byte = [0];
    region.read_at(at, &mut byte)?;
    region.write_at(at, &[byte[0] ^ 0x10])?;
    Ok(())
}

/// One who polls memory looks at the last byte of a message: makes sure that it is not there yet.
fn spoil_last_bytes(lane: &Lane, round: &Round, role: Role) -> Result<()> {
    let Some(last) = round.size.checked_sub(1) else { return Ok(()) };
    let pattern = pattern(round, lane, peer_of(role));
    for message in 0..u64::from(round.count) {
        let at = message * u64::from(stride(round.size)) + u64::from(last);
        lane.memory.sink.write_at(at, &[!pattern.byte(at)])?;
    }
    Ok(())
}

fn check_places(lane: &Lane, round: &Round, pattern: Pattern) -> Result<Verdict> {
    let stride = stride(round.size);
    let mut verdict = Verdict::default();
    // Without gaps it is all one.
    let (places, size) =
        if stride == round.size { (1, stride * round.count) } else { (round.count, round.size) };
    let mut chunk = [0; CHUNK];
    for place in 0..u64::from(places) {
        let start = place * u64::from(stride);
        let end = start + u64::from(size);
        let mut at = start;
        while at < end {
            let part = (end - at).min(CHUNK as u64) as usize;
            lane.memory.sink.read_at(at, &mut chunk[..part])?;
            verdict.merge(pattern.check(at, &chunk[..part]));
            at += part as u64;
        }
    }
    Ok(verdict)
}

fn check_answers(lane: &Lane, round: &Round, mut script: Script) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    for number in 0..u64::from(round.count) {
        let found = lane.memory.sink.load_u64(number * 8)?;
        verdict.merge(Verdict::of_word(number, script.step().before, found));
    }
    Ok(verdict)
}
