//! The states of a queue pair and the moves between them.

use std::sync::atomic::Ordering;

use super::QpInner;
use super::close::Cause;
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
            (_, Reset)
                | (Init | Rtr | Rts | Sqd | Error, Error)
                | (Reset | Init, Init)
                | (Rts | Sqd, Sqd)
                | (Sqd | Rts, Rts)
                | (Rtr, Rtr)
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
            QpState::Error => self.end_here(Cause::Local),
            QpState::Reset => self.reset(),
            // Moved on by somebody else meanwhile: may it still?
            _ if !self.transition(from, to) => return self.modify(to),
            QpState::Sqd if from != QpState::Sqd => {
                self.draining.store(true, Ordering::SeqCst);
                self.report_if_drained();
            }
            _ => self.kick(),
        }
        Ok(())
    }

    /// Reads were answered: in SQD that may have been the last of what was begun.
    pub(super) fn report_if_drained(&self) {
        if self.draining.load(Ordering::SeqCst) {
            self.report_drained(&self.lock_tx());
            self.after_tx();
        }
    }

    /// In SQD: tells, once, when nothing that was begun is left.
    pub(super) fn report_drained(&self, tx: &super::Tx) {
        let done = |qp: &Self| tx.is_quiet() && qp.lock_shared().is_idle();
        if self.draining.load(Ordering::SeqCst)
            && self.state() == QpState::Sqd
            && done(self)
            && self.draining.swap(false, Ordering::SeqCst)
        {
            self.device.report(AsyncEvent::SendQueueDrained { qp_num: self.num });
        }
    }
}
