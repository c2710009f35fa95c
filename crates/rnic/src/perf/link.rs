//! The control connection: messages of [`super::control`] as Sends.
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rnic_verbs::{
    Access, Completion, CompletionQueue, ConnParams, ConnRequest, Device, Error, MemoryRegion,
    ProtectionDomain, QpInit, QueuePair, RecvWr, SendWr,
};

use super::control::{ControlError, Hello, MAX_MESSAGE, Message, Purpose, Window};
use super::plan::Fpdu;
use crate::error::{Failure, Result};
use crate::{fabric, signal};

/// Receives posted: the protocol has one message under way, and a farewell may follow it.
const RECEIVES: u32 = 4;
/// Longest that an answer may take: the other end may check many bytes before it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const SEND_ID: u64 = 1 << 32;

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        Self::failed(error.to_string()).hint(error.remedy())
    }
}

/// A refused connection, with the reason from the peer's private data.
pub(crate) fn rejection(error: Error) -> Failure {
    match error {
        Error::Rejected { private_data, .. } => ControlError::decode(&private_data).into(),
        error => error.into(),
    }
}

/// One end of the control connection.
#[derive(Debug)]
pub(crate) struct Link {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Link {
    fn new(device: &Device, pd: &ProtectionDomain) -> Result<Self> {
        let cq = device.create_cq(2 * RECEIVES + 2, None)?;
        let qp = pd.create_qp(&QpInit::new(&cq).depth(RECEIVES, RECEIVES))?;
        let memory = pd.register(MAX_MESSAGE * (RECEIVES as usize + 1), Access::LOCAL_WRITE)?;
        let link = Self { qp, cq, memory };
        for slot in 0..RECEIVES {
            link.post_receive(slot.into())?;
        }
        Ok(link)
    }

    fn params(run: u64) -> ConnParams {
        let hello =
            Hello { purpose: Purpose::Control, run, sink: Window::default(), source: Window::default() };
        fabric::params(hello.encode(), fabric::policy(false, false, Fpdu::Mss))
    }

    /// Connects to a responder.
    pub(crate) fn connect(device: &Device, pd: &ProtectionDomain, to: SocketAddr, run: u64) -> Result<Self> {
        let link = Self::new(device, pd)?;
        let established = rnic_verbs::connect(&link.qp, to, Self::params(run)).map_err(rejection)?;
        Hello::decode(&established.private_data)?;
        Ok(link)
    }

    /// Accepts an initiator.
    pub(crate) fn accept(
        device: &Device,
        pd: &ProtectionDomain,
        request: ConnRequest,
        run: u64,
    ) -> Result<Self> {
        let link = Self::new(device, pd)?;
        request.accept(&link.qp, Self::params(run))?;
        Ok(link)
    }

    fn post_receive(&self, slot: u64) -> Result<()> {
        let sge = [self.memory.sge((slot + 1) * MAX_MESSAGE as u64, MAX_MESSAGE as u32)];
        Ok(self.qp.post_recv(&RecvWr::new(slot, &sge))?)
    }

    /// Sends a message. The one before must have been answered.
    pub(crate) fn send(&self, message: &Message) -> Result<()> {
        let mut bytes = message.encode();
        bytes.truncate(MAX_MESSAGE);
        self.memory.write_at(0, &bytes)?;
        let sge = [self.memory.sge(0, bytes.len() as u32)];
        self.qp.post_send(&SendWr::send(SEND_ID, &sge))?;
        Ok(())
    }

    /// Waits for a message; `None` when the peer closed the connection. Without `patience` it waits for ever.
    pub(crate) fn receive(&self, patience: Option<Duration>) -> Result<Option<Message>> {
        let start = Instant::now();
        loop {
            signal::check()?;
            let mut completion = [Completion::default()];
            if self.cq.wait(&mut completion, Some(signal::LOOK))? == 0 {
                if patience.is_some_and(|patience| start.elapsed() > patience) {
                    return Err(Failure::failed(format!(
                        "no answer on the control connection for {} s",
                        PATIENCE.as_secs()
                    ))
                    .hint("is the other end stopped, or the network cut?"));
                }
                continue;
            }
            let [completion] = completion;
            if completion.status == rnic_verbs::Status::WrFlush {
                return Ok(None);
            }
            fabric::check(&self.qp, &completion)?;
            if completion.wr_id != SEND_ID {
                return self.take(completion).map(Some);
            }
        }
    }

    fn take(&self, completion: Completion) -> Result<Message> {
        let slot = completion.wr_id;
        let mut bytes = vec![0; completion.len as usize];
        self.memory.read_at((slot + 1) * MAX_MESSAGE as u64, &mut bytes)?;
        self.post_receive(slot)?;
        Ok(Message::decode(&bytes)?)
    }

    /// Waits for the answer to what was sent; a peer that is gone is an error.
    pub(crate) fn answer(&self) -> Result<Message> {
        self.receive(Some(PATIENCE))?.ok_or_else(|| {
            Failure::failed("the other end closed the control connection").hint("look at what it printed")
        })
    }

    /// Sends a question and waits for its answer.
    pub(crate) fn ask(&self, message: &Message) -> Result<Message> {
        self.send(message)?;
        self.answer()
    }

    /// Closes in order.
    pub(crate) fn close(self) {
        self.qp.disconnect();
    }
}
