//! What client and server share: a queue pair, its 16-byte messages, one request at a time.
use std::time::{Duration, Instant};

use rnic_verbs::iwarp::mpa::startup::{Revision, RtrOffer};
use rnic_verbs::{
    Access, Completion, CompletionQueue, ConnParams, ConnPolicy, Device, MemoryRegion, ProtectionDomain,
    QpInit, QueuePair, RecvWr, RemoteBuffer, SendWr, Status,
};

use super::message::{Advertisement, LEN};
use crate::cli::{OnOff, PingArgs, Rtr};
use crate::error::{Failure, Result};
use crate::perf::plan::Fpdu;
use crate::{fabric, signal};

const RECV: u64 = 1;
const SEND: u64 = 2;
const DATA: u64 = 3;

/// One end of an rping session.
#[derive(Debug)]
pub(crate) struct End {
    /// The connection.
    pub(crate) qp: QueuePair,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    /// First the message that goes out, then the one that came in.
    messages: MemoryRegion,
    /// The one whose wait is on.
    patience: Option<Duration>,
    arrived: u32,
    sent: u32,
    moved: u32,
    ended: bool,
}

impl End {
    /// A queue pair with its receive posted. Without `patience` it waits for ever.
    pub(crate) fn new(device: &Device, patience: Option<Duration>) -> Result<Self> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(16, None)?;
        let qp = pd.create_qp(&QpInit::new(&cq).depth(4, 2))?;
        let messages = pd.register(2 * LEN, Access::LOCAL_WRITE)?;
        let end = Self { qp, pd, cq, messages, patience, arrived: 0, sent: 0, moved: 0, ended: false };
        end.post_receive()?;
        Ok(end)
    }

    /// A buffer of the session.
    pub(crate) fn register(&self, size: usize, access: Access) -> Result<MemoryRegion> {
        Ok(self.pd.register(size, access)?)
    }

    fn post_receive(&self) -> Result<()> {
        let sge = [self.messages.sge(LEN as u64, LEN as u32)];
        Ok(self.qp.post_recv(&RecvWr::new(RECV, &sge))?)
    }

    /// Sends an advertisement of `buffer`, or a go-ahead without meaning.
    pub(crate) fn send(&mut self, buffer: Option<&MemoryRegion>) -> Result<()> {
        let message = buffer.map_or([0; LEN], |buffer| {
            Advertisement { addr: buffer.addr(), rkey: buffer.rkey(), size: buffer.len() as u32 }.encode()
        });
        self.messages.write_at(0, &message)?;
        let sge = [self.messages.sge(0, LEN as u32)];
        self.qp.post_send(&SendWr::send(SEND, &sge))?;
        while self.sent == 0 {
            self.turn("a Send")?;
        }
        self.sent -= 1;
        Ok(())
    }

    /// Waits for the peer's message; `None` when it closed the connection instead.
    pub(crate) fn receive(&mut self, what: &'static str) -> Result<Option<Advertisement>> {
        while self.arrived == 0 {
            if self.ended {
                return Ok(None);
            }
            self.turn(what)?;
        }
        self.arrived -= 1;
        let mut bytes = [0; LEN];
        self.messages.read_at(LEN as u64, &mut bytes)?;
        // Before anything is sent that the peer could answer.
        self.post_receive()?;
        Ok(Some(Advertisement::decode(&bytes)))
    }

    /// Reads the peer's advertised memory into the start of `into`.
    pub(crate) fn read(&mut self, into: &MemoryRegion, from: Advertisement) -> Result<()> {
        let sge = [into.sge(0, from.size)];
        self.move_data(&SendWr::read(DATA, &sge, remote(from)), "a Read")
    }

    /// Writes the start of `data` to the peer's advertised memory.
    pub(crate) fn write(&mut self, data: &MemoryRegion, to: Advertisement) -> Result<()> {
        let sge = [data.sge(0, to.size)];
        self.move_data(&SendWr::write(DATA, &sge, remote(to)), "a Write")
    }

    fn move_data(&mut self, request: &SendWr<'_>, what: &'static str) -> Result<()> {
        self.qp.post_send(request)?;
        while self.moved == 0 {
            self.turn(what)?;
        }
        self.moved -= 1;
        Ok(())
    }

    /// Sleeps until something completes.
    fn turn(&mut self, what: &'static str) -> Result<()> {
        let start = Instant::now();
        let mut completions = [Completion::default(); 4];
        let n = loop {
            signal::check()?;
            let slice = match self.patience {
                None => signal::LOOK,
                Some(patience) => fabric::slice_of(patience, start, signal::LOOK).ok_or_else(|| {
                    Failure::failed(format!(
                        "no answer for {} s while waiting for {what}",
                        patience.as_secs_f32()
                    ))
                    .hint("is the peer stopped, or the network cut? -W waits longer")
                })?,
            };
            match self.cq.wait(&mut completions, Some(slice))? {
                0 => {}
                n => break n,
            }
        };
        for completion in &completions[..n] {
            self.note(completion, what)?;
        }
        Ok(())
    }

    fn note(&mut self, completion: &Completion, what: &'static str) -> Result<()> {
        match (completion.wr_id, completion.status) {
            (RECV, Status::WrFlush) => self.ended = true,
            (RECV, Status::Success) if completion.len != LEN as u32 => {
                let len = completion.len;
                return Err(Failure::failed(format!(
                    "the peer sent a message of {len} bytes instead of {LEN}"
                ))
                .hint("the peer must be `rnic ping` or `rping`"));
            }
            (RECV, Status::Success) => self.arrived += 1,
            (SEND, Status::Success) => self.sent += 1,
            (DATA, Status::Success) => self.moved += 1,
            _ => fabric::check(&self.qp, completion)
                .map_err(|failure| failure.during(format!("waiting for {what}")))?,
        }
        Ok(())
    }
}

fn remote(advertisement: Advertisement) -> RemoteBuffer {
    let Advertisement { addr, rkey, size } = advertisement;
    RemoteBuffer { addr, rkey, len: u64::from(size) }
}

/// How connections are made, as the command line says.
pub(crate) fn policy(args: &PingArgs) -> ConnPolicy {
    let mut policy = fabric::policy(args.crc == OnOff::On, false, Fpdu::Mss);
    policy.mpa.revision = if args.mpa == 1 { Revision::V1 } else { Revision::V2 };
    let none = RtrOffer { write: false, read: false, send: false };
    policy.mpa.p2p = match args.rtr {
        Rtr::Write => Some(RtrOffer { write: true, ..none }),
        Rtr::Read => Some(RtrOffer { read: true, ..none }),
        Rtr::Send => Some(RtrOffer { send: true, ..none }),
        Rtr::None => None,
    };
    // The server has one Read under way, at the client; that is all that rping offers, too.
    (policy.mpa.ord, policy.mpa.ird) = (1, 1);
    policy.settle = Duration::from_millis(args.settle);
    policy
}

/// Connection parameters of both ends.
pub(crate) fn params(args: &PingArgs) -> ConnParams {
    ConnParams::with_policy(policy(args))
}
