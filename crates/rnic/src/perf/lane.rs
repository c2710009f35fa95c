//! One queue pair of a measurement, with its memory and what is under way on it.
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use rnic_verbs::{
    Access, Completion, CompletionQueue, ConnParams, ConnRequest, Device, MemoryRegion, ProtectionDomain,
    QpInit, QueuePair, RecvWr, RemoteBuffer, SendWr, Sge,
};

use super::control::{Hello, Purpose, Settings, Window};
use crate::cli::MAX_BATCH;
use crate::error::{Failure, Result};
use crate::{fabric, signal};

/// Longest without a completion or a byte.
const PATIENCE: Duration = Duration::from_secs(30);
/// Idle polls between two looks at the clock and at signals.
const POLLS: u32 = 1024;
/// Idle polls between two offers of the CPU to others: with more spinners than CPUs the one that has something to do must
/// get its turn. An exchange on an idle machine takes fewer.
pub(crate) const POLLS_TO_YIELD: u32 = 64;
/// Most receives posted at a time.
const WINDOW: u32 = 1024;
/// Room for the closing note and its answer beside the data.
const NOTES: u32 = 4;
/// Bytes of a note: it says "that was all" and is answered by the same.
const NOTE: u32 = 16;
/// Completions taken at a time.
const BUFFER: usize = 32;
/// Zeroes behind a region for incoming data, which nothing may be placed in.
const GUARD: u32 = 4096;
/// Marks a `wr_id` as of the receive queue.
const RECV: u64 = 1 << 63;
/// Marks a `wr_id` as of a note.
const IS_NOTE: u64 = 1 << 62;

/// The memory of one queue pair; kept from one to the next.
#[derive(Debug)]
pub(crate) struct Memory {
    /// For incoming data.
    pub(crate) sink: MemoryRegion,
    /// With outgoing data.
    pub(crate) source: MemoryRegion,
    notes: MemoryRegion,
    /// Bytes of the first two.
    pub(crate) region: u32,
}

impl Memory {
    /// Regions of `region` bytes.
    pub(crate) fn new(pd: &ProtectionDomain, region: u32) -> Result<Self> {
        let incoming = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let register = |len: u32, access| {
            pd.register(len as usize, access).map_err(|error| {
                Failure::from(error)
                    .during("cannot register memory")
                    .hint("use a smaller --region or fewer --qps")
            })
        };
        Ok(Self {
            sink: register(region + GUARD, incoming)?,
            source: register(region, Access::REMOTE_READ)?,
            notes: register(2 * NOTE, Access::LOCAL_WRITE)?,
            region,
        })
    }

    /// Nothing was written behind the region.
    pub(crate) fn guard_is_intact(&self) -> Result<bool> {
        let mut guard = [0; GUARD as usize];
        self.sink.read_at(u64::from(self.region), &mut guard)?;
        Ok(guard.iter().all(|&byte| byte == 0))
    }
}

/// What receives are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// Message `n` goes to place `n` of the sink.
    Places {
        /// Bytes of a message.
        size: u32,
        /// Distance of places.
        stride: u32,
    },
    /// Messages without bytes.
    Empty,
}

/// Receives of a round: so many for data, and one for the closing note.
#[derive(Debug)]
struct Incoming {
    landing: Landing,
    count: u32,
    posted: u32,
    done: u32,
}

/// One connected queue pair.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Number among those of its settings; part of its data's pattern.
    pub(crate) index: u32,
    /// Its memory.
    pub(crate) memory: Arc<Memory>,
    /// The peer's memory for incoming data.
    pub(crate) peer_sink: RemoteBuffer,
    /// The peer's memory with outgoing data.
    pub(crate) peer_source: RemoteBuffer,
    /// Messages of this round known to be complete at this end, in order.
    pub(crate) sent: u32,
    /// Sleeps instead of polling.
    pub(crate) events: bool,
    /// Most work requests under way.
    pub(crate) depth: u32,
    qp: QueuePair,
    cq: CompletionQueue,
    incoming: Incoming,
    notes_sent: u32,
    notes_received: u32,
    idle: u32,
    idle_since: Option<Instant>,
    buffer: [Completion; BUFFER],
}

/// What becomes a lane once it is connected.
#[derive(Debug)]
pub(crate) struct Unconnected {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: Arc<Memory>,
    index: u32,
    settings: Settings,
}

impl Unconnected {
    /// A queue pair with `memory`.
    pub(crate) fn new(
        device: &Device,
        pd: &ProtectionDomain,
        memory: Arc<Memory>,
        index: u32,
        settings: Settings,
    ) -> Result<Self> {
        let sends = settings.depth + MAX_BATCH as u32 + NOTES;
        let receives = WINDOW + NOTES;
        let cq = device.create_cq(sends + receives, None)?;
        let qp = pd.create_qp(&QpInit::new(&cq).depth(sends, receives))?;
        Ok(Self { qp, cq, memory, index, settings })
    }

    fn hello(&self, run: u64) -> Hello {
        let window = |region: &MemoryRegion| Window { addr: region.addr(), rkey: region.rkey() };
        Hello {
            purpose: Purpose::Data { index: self.index },
            run,
            sink: window(&self.memory.sink),
            source: window(&self.memory.source),
        }
    }

    fn params(&self, device: &Device, run: u64) -> ConnParams {
        let Settings { crc, markers, fpdu, .. } = self.settings;
        let attr = device.attr();
        let mut policy = fabric::policy(crc, markers, fpdu);
        (policy.mpa.ord, policy.mpa.ird) = (attr.max_ord, attr.max_ird);
        fabric::params(self.hello(run).encode(), policy)
    }

    /// Connects to the responder of run `run`.
    pub(crate) fn connect(self, device: &Device, to: std::net::SocketAddr, run: u64) -> Result<Lane> {
        let established = rnic_verbs::connect(&self.qp, to, self.params(device, run))
            .map_err(|error| super::link::rejection(error).during("data connection"))?;
        let hello = Hello::decode(&established.private_data)?;
        Ok(self.connected(hello))
    }

    /// Accepts the initiator's connection, which said `hello`.
    pub(crate) fn accept(self, device: &Device, request: ConnRequest, hello: Hello) -> Result<Lane> {
        let params = self.params(device, hello.run);
        request.accept(&self.qp, params).map_err(|error| Failure::from(error).during("data connection"))?;
        Ok(self.connected(hello))
    }

    fn connected(self, peer: Hello) -> Lane {
        let Settings { events, depth, region, .. } = self.settings;
        let remote =
            |window: Window| RemoteBuffer { addr: window.addr, rkey: window.rkey, len: u64::from(region) };
        Lane {
            index: self.index,
            memory: self.memory,
            peer_sink: remote(peer.sink),
            peer_source: remote(peer.source),
            sent: 0,
            events,
            depth,
            qp: self.qp,
            cq: self.cq,
            incoming: Incoming { landing: Landing::Empty, count: 0, posted: 0, done: 0 },
            notes_sent: 0,
            notes_received: 0,
            idle: 0,
            idle_since: None,
            buffer: [Completion::default(); BUFFER],
        }
    }
}

impl Lane {
    /// Starts a round in which `count` messages come in, and a note behind them. Posts the first receives.
    pub(crate) fn begin(&mut self, landing: Landing, count: u32) -> Result<()> {
        self.sent = 0;
        self.notes_sent = 0;
        self.notes_received = 0;
        self.incoming = Incoming { landing, count, posted: 0, done: 0 };
        self.idle_since = None;
        self.top_up()
    }

    /// Messages that have come in, the note not counted.
    pub(crate) fn received(&self) -> u32 {
        self.incoming.done
    }

    /// Whether the peer knows RFC 7306.
    pub(crate) fn has_extensions(&self) -> bool {
        self.qp.negotiated().is_some_and(|negotiated| negotiated.extensions)
    }

    /// Posts requests.
    pub(crate) fn post(&self, requests: &[SendWr<'_>]) -> Result<()> {
        Ok(self.qp.post_send_list(requests)?)
    }

    /// Posts receives while a good part of the window is free.
    fn top_up(&mut self) -> Result<()> {
        let Incoming { landing, count, posted, done } = self.incoming;
        // One more than data, for the note.
        let mut next = posted;
        while next <= count && next - done < WINDOW {
            let room = (count + 1 - next).min(WINDOW - (next - done)).min(MAX_BATCH as u32);
            if room < MAX_BATCH as u32 && next + room <= count {
                break;
            }
            self.post_receives(landing, count, next, room)?;
            next += room;
        }
        self.incoming.posted = next;
        Ok(())
    }

    fn post_receives(&self, landing: Landing, count: u32, first: u32, room: u32) -> Result<()> {
        let numbers = first..first + room;
        let sges: ArrayVec<Option<Sge>, MAX_BATCH> = numbers
            .clone()
            .map(|number| match landing {
                _ if number == count => Some(self.memory.notes.sge(u64::from(NOTE), NOTE)),
                Landing::Places { size, stride } => {
                    Some(self.memory.sink.sge(u64::from(number) * u64::from(stride), size))
                }
                Landing::Empty => None,
            })
            .collect();
        let receives: ArrayVec<RecvWr<'_>, MAX_BATCH> = numbers
            .zip(&sges)
            .map(|(number, sge)| {
                let note = if number == count { IS_NOTE } else { 0 };
                RecvWr::new(RECV | note | u64::from(number), sge.as_slice())
            })
            .collect();
        Ok(self.qp.post_recv_list(&receives)?)
    }

    /// Sends the note behind all that was posted.
    pub(crate) fn send_note(&self) -> Result<()> {
        let sge = [self.memory.notes.sge(0, NOTE)];
        self.qp.post_send(&SendWr::send(IS_NOTE, &sge))?;
        Ok(())
    }

    /// Waits until the peer's note is in.
    pub(crate) fn await_note(
        &mut self,
        mut arrived: impl FnMut(u32, &Completion) -> Result<()>,
    ) -> Result<()> {
        while self.notes_received == 0 {
            self.turn(&mut arrived)?;
        }
        Ok(())
    }

    /// Waits until our note is out.
    pub(crate) fn flush_note(&mut self) -> Result<()> {
        while self.notes_sent == 0 {
            self.turn(&mut unexpected)?;
        }
        Ok(())
    }

    /// Takes what completions there are; `arrived` gets those of incoming data with their number. With events it sleeps for
    /// one, else it looks once.
    pub(crate) fn turn(&mut self, arrived: &mut impl FnMut(u32, &Completion) -> Result<()>) -> Result<()> {
        let n = if self.events {
            self.cq.wait(&mut self.buffer, Some(signal::LOOK))?
        } else {
            self.cq.poll(&mut self.buffer)?
        };
        if n == 0 {
            return self.nothing();
        }
        self.moved();
        for at in 0..n {
            let completion = self.buffer[at];
            fabric::check(&self.qp, &completion)?;
            let number = completion.wr_id as u32;
            match (completion.wr_id & RECV != 0, completion.wr_id & IS_NOTE != 0) {
                (false, false) => self.sent = number,
                (false, true) => self.notes_sent += 1,
                (true, true) => self.notes_received += 1,
                (true, false) => {
                    if number != self.incoming.done {
                        return Err(Failure::failed(format!(
                            "receive {number} completed where {} was due",
                            self.incoming.done
                        )));
                    }
                    self.incoming.done += 1;
                    arrived(number, &completion)?;
                }
            }
        }
        self.top_up()
    }

    /// Nothing came: now and then looks at signals and at the clock.
    fn nothing(&mut self) -> Result<()> {
        self.idle = self.idle.wrapping_add(1);
        if !self.events {
            if self.idle.is_multiple_of(POLLS_TO_YIELD) {
                std::thread::yield_now();
            }
            if !self.idle.is_multiple_of(POLLS) {
                return Ok(());
            }
        }
        signal::check()?;
        match self.idle_since {
            None => self.idle_since = Some(Instant::now()),
            Some(since) if since.elapsed() > PATIENCE => {
                return Err(Failure::failed(format!("nothing moved for {} s", PATIENCE.as_secs()))
                    .hint("is the other end stopped, or the network cut?"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Notes progress that is no completion.
    pub(crate) fn moved(&mut self) {
        self.idle_since = None;
    }
}

/// Where no data may come in.
pub(crate) fn unexpected(number: u32, _: &Completion) -> Result<()> {
    Err(Failure::failed(format!("message {number} came where none was due")))
}
