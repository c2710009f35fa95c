//! Send-queue requests that stay at home: invalidate, window bind, fast registration.

use iwarp::Stag;

use super::QpInner;
use super::close::Cause;
use super::shared::InFlight;
use super::wqe::{Segments, SendWqe, completion_op};
use crate::queue::Status;
use crate::wr::{SendFlags, SendOp};

pub(super) fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::LocalInvalidate(_) | SendOp::BindWindow(_) | SendOp::FastRegister(_))
}

impl QpInner {
    /// Carries it out; it completes in its turn.
    pub(super) fn run_local(&self, wqe: &SendWqe) -> Result<(), Cause> {
        let table = &self.device.table;
        let result = match &wqe.op {
            SendOp::LocalInvalidate(rkey) => {
                table.invalidate_local(Stag(*rkey), self.who()).map_err(|_| (Status::LocalProtection, *rkey))
            }
            SendOp::BindWindow(bind) => {
                table.bind_window(bind, self.who()).map_err(|e| (Status::MwBind, e.code()))
            }
            SendOp::FastRegister(reg) => {
                table.fast_register(reg, self.who()).map_err(|e| (Status::MwBind, e.code()))
            }
            _ => Ok(()),
        };
        let mut shared = self.lock_shared();
        let seq = shared.begin(InFlight {
            wr_id: wqe.wr_id,
            op: completion_op(&wqe.op),
            signaled: wqe.flags.contains(SendFlags::SIGNALED),
            len: 0,
            sink: Segments::None,
            invalidate: None,
            done: result.is_ok(),
        });
        self.retire(&mut shared);
        result.map_err(|(status, vendor_err)| Cause::Request { seq, status, vendor_err })
    }
}
