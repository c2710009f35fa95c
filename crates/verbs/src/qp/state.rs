//! The states of a queue pair and the moves between them.

use std::sync::atomic::Ordering;

use super::QpInner;
use crate::error::{Error, Result};
use crate::event::AsyncEvent;

/// State of a queue pair. Names follow verbs.h (`ibv_qp_state`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpState {
    /// Fresh or reset: no receives may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// A connection is being set up.
    Rtr,
    /// Connected: sends are carried out.
    Rts,
    /// Connected, but no further send is begun.
    Sqd,
    /// The connection is over; what is posted is flushed.
    Error,
}

impl QpState {
    pub(crate) fn from_u8(v: u8) -> Self {
        match v {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            _ => Self::Error,
        }
    }

    /// Whether an application may ask for this move.
    fn may_become(self, to: Self) -> bool {
        use QpState::{Error, Init, Reset, Rtr, Rts, Sqd};
        matches!(
            (self, to),
            (_, Reset | Error) | (Reset | Init, Init) | (Rts | Sqd, Sqd) | (Sqd | Rts, Rts) | (Rtr, Rtr)
        )
    }
}

impl QpInner {
    pub(super) fn set_state(&self, to: QpState) {
        self.state.store(to as u8, Ordering::SeqCst);
    }

    /// Moves from one state to another, unless it is in a third.
    pub(crate) fn transition(&self, from: QpState, to: QpState) -> bool {
        self.state.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The application's wish.
    pub(crate) fn modify(&self, to: QpState) -> Result<()> {
        let from = self.state();
        if !from.may_become(to) {
            return Err(Error::State {
                what: "this change of state",
                needed: "a state from which it is possible (connect and accept lead to Rts)",
                state: from,
            });
        }
        match to {
            QpState::Error => {
                self.fail(super::Cause::Local);
                Ok(())
            }
            QpState::Reset => self.reset(),
            QpState::Sqd => {
                self.set_state(QpState::Sqd);
                self.kick();
                self.report_if_drained();
                Ok(())
            }
            _ => {
                self.set_state(to);
                self.kick();
                Ok(())
            }
        }
    }

    /// In SQD: tells when nothing that was begun is left.
    pub(super) fn report_if_drained(&self) {
        if self.state() == QpState::Sqd {
            let idle = {
                let tx = self.lock_tx();
                tx.is_quiet() && self.lock_shared().is_idle()
            };
            if idle {
                self.device.report(AsyncEvent::SendQueueDrained { qp_num: self.num });
            }
        }
    }
}
