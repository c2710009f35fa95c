//! A queue pair with its memory, whichever end it is.

use super::{LIMIT, PeerArgs, patterned};
use anyhow::{Result, ensure};
use rnic_verbs::{
    Access, Completion, CompletionQueue, Device, End, MemoryRegion, MemoryWindow, ProtectionDomain, QpInit,
    QueuePair, RecvWr, RemoteBuffer, SendWr, Status, WindowKind, iwarp::mpa::startup::Negotiated,
};
use std::time::Instant;

/// Bytes that the other side may read and write.
pub(super) const SIZE: usize = 1 << 20;
/// Bytes of the longest message that is sent.
const SEND_SIZE: usize = 1 << 16;
/// Work requests at once.
pub(super) const DEPTH: u32 = 256;

/// A connection's objects on one device.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) qp: QueuePair,
    /// What the other side may read and write.
    pub(super) data: MemoryRegion,
    outgoing: MemoryRegion,
    incoming: MemoryRegion,
    window: MemoryWindow,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    receive_size: u32,
}

/// A message that came.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    /// The key of ours that came with it to be invalidated.
    pub(super) invalidated: Option<u32>,
    /// The value of an Immediate Data message.
    pub(super) immediate: Option<u64>,
}

impl Link {
    pub(super) fn new(args: &PeerArgs) -> Result<Self> {
        let device = Device::open(args.device())?;
        let pd = device.alloc_pd()?;
        Self::on(&device, &pd, args)
    }

    pub(super) fn on(device: &Device, pd: &ProtectionDomain, args: &PeerArgs) -> Result<Self> {
        let send_cq = device.create_cq(DEPTH, None)?;
        let recv_cq = device.create_cq(DEPTH, None)?;
        let qp = pd.create_qp(&QpInit::with_cqs(&send_cq, &recv_cq).depth(DEPTH, DEPTH))?;
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let data = pd.register(SIZE, Access::LOCAL_WRITE | Access::MW_BIND | remote)?;
        data.write_at(0, &patterned(SIZE, 1))?;
        let slots = args.receives.max(1) as usize;
        let link = Self {
            qp,
            data,
            outgoing: pd.register(SEND_SIZE, Access::LOCAL_WRITE)?,
            incoming: pd.register(slots * args.receive_size as usize, Access::LOCAL_WRITE)?,
            window: pd.alloc_window(WindowKind::Type2)?,
            send_cq,
            recv_cq,
            receive_size: args.receive_size,
        };
        if args.late.is_none() {
            link.post_receives(args)?;
        }
        Ok(link)
    }

    pub(super) fn post_receives(&self, args: &PeerArgs) -> Result<()> {
        (0..args.receives).try_for_each(|slot| self.post_receive(slot))
    }

    fn post_receive(&self, slot: u64) -> Result<()> {
        let offset = slot * u64::from(self.receive_size);
        self.qp.post_recv(&RecvWr::new(slot, &[self.incoming.sge(offset, self.receive_size)]))?;
        Ok(())
    }

    /// Waits for a completion of the send queue.
    pub(super) fn reap(&self) -> Result<Completion> {
        let mut one = [Completion::default()];
        ensure!(self.send_cq.wait(&mut one, Some(LIMIT))? == 1, "no completion");
        Ok(one[0])
    }

    /// Posts a request and waits for its completion.
    pub(super) fn carry_out(&self, wr: &SendWr<'_>) -> Result<Status> {
        self.qp.post_send(wr)?;
        Ok(self.reap()?.status)
    }

    /// Puts a message where [`Self::outgoing`] names it.
    pub(super) fn outgoing(&self, message: &[u8]) -> Result<rnic_verbs::Sge> {
        ensure!(message.len() <= SEND_SIZE, "the message is too long");
        self.outgoing.write_at(0, message)?;
        Ok(self.outgoing.sge(0, message.len() as u32))
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &[u8]) -> Result<()> {
        let status = self.carry_out(&SendWr::send(0, &[self.outgoing(message)?]))?;
        ensure!(status == Status::Success, "send: {status}");
        Ok(())
    }

    /// The next message; `None` if the connection ended before one came.
    pub(super) fn receive(&self) -> Result<Option<Received>> {
        let mut one = [Completion::default()];
        if self.recv_cq.wait(&mut one, Some(LIMIT))? == 0 {
            ensure!(self.qp.end().is_some(), "no message");
            return Ok(None); // without receives nothing is flushed
        }
        let c = one[0];
        match c.status {
            Status::Success => {}
            Status::WrFlush => return Ok(None),
            // The connection is over; its end says why.
            other => {
                println!("receive: {other}");
                return Ok(None);
            }
        }
        let mut bytes = vec![0; c.len as usize];
        self.incoming.read_at(c.wr_id * u64::from(self.receive_size), &mut bytes)?;
        self.post_receive(c.wr_id)?;
        Ok(Some(Received { bytes, invalidated: c.invalidated, immediate: c.immediate }))
    }

    /// A key to the buffer that the other side may invalidate: of a window, since a region's own stays valid.
    pub(super) fn lend(&self) -> Result<u32> {
        let (bind, lent) =
            self.window.bind(&self.data, 0, SIZE as u64, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let status = self.carry_out(&SendWr::local(0, bind))?;
        ensure!(status == Status::Success, "bind: {status}");
        Ok(lent.rkey)
    }

    /// Waits for the connection's end and says how it was.
    pub(super) fn end(&self) -> String {
        let start = Instant::now();
        let end = self.qp.wait_disconnected(Some(LIMIT));
        match end {
            None => format!("end: none in {:?}", start.elapsed()),
            Some(End::Terminated(Some(t))) => format!("end: terminated {}.{}.{}", t.layer, t.etype, t.code),
            Some(End::Fault(fault)) => {
                let t = fault.terminate();
                format!("end: fault {}.{}.{} {fault:?}", t.layer, t.etype, t.code)
            }
            Some(other) => format!("end: {other:?}").to_lowercase(),
        }
    }
}

/// What was agreed upon, in a line.
pub(super) fn agreed(n: &Negotiated) -> String {
    let rtr = n.rtr.map_or_else(|| "none".to_owned(), |r| format!("{r:?}").to_lowercase());
    format!(
        "revision {} crc {} markers out {} in {} rtr {rtr} ord {} ird {}",
        n.revision as u8, n.crc, n.tx_markers, n.rx_markers, n.ord, n.ird
    )
}

/// The private data in which a server says where its buffer is.
pub(super) fn place(buffer: RemoteBuffer) -> Vec<u8> {
    let mut bytes = b"SIWP".to_vec();
    bytes.extend(buffer.rkey.to_be_bytes());
    bytes.extend(buffer.addr.to_be_bytes());
    bytes.extend((buffer.len as u32).to_be_bytes());
    bytes
}

/// The buffer in such private data.
pub(super) fn placed(private_data: &[u8]) -> Option<RemoteBuffer> {
    let fields = private_data.strip_prefix(b"SIWP")?;
    let rkey = u32::from_be_bytes(fields.get(..4)?.try_into().ok()?);
    let addr = u64::from_be_bytes(fields.get(4..12)?.try_into().ok()?);
    let len = u32::from_be_bytes(fields.get(12..16)?.try_into().ok()?);
    Some(RemoteBuffer { rkey, addr, len: len.into() })
}
