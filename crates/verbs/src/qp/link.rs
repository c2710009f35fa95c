//! An established connection: its socket, what was negotiated, and who watches it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use iwarp::mpa::startup::Negotiated;

use super::locked;
use crate::cm::FpduPolicy;
use crate::home::Home;
use crate::pcap::Flow;
use crate::shard::{Interest, Shard, Source, Timer, Token};

/// How long after its last poll a thread's lease on a socket lasts.
pub(crate) const LEASE: Duration = Duration::from_micros(100);

/// What `polled` says while the lease holder sleeps.
const ASLEEP: u64 = u64::MAX;
/// Ticks of the lease timer while its holder sleeps.
const NAP: Duration = Duration::from_millis(1);
/// While its holder polls on, its period doubles so many times: up to 1.6 ms.
const LOOKS: u32 = 4;
/// After how many of them it stops.
const NAPS: u32 = 20;

#[derive(Clone, Copy, Debug)]
struct Closing {
    left: u64,
    since: Instant,
    began: Instant,
}

/// Rules that are looked at again while the connection lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) fpdu: FpduPolicy,
    pub(crate) stall_timeout: Option<Duration>,
}

/// The connection of a queue pair.
pub(crate) struct Link {
    fd: OwnedFd,
    shard: Arc<Shard>,
    token: OnceLock<Token>,
    source: OnceLock<Weak<dyn Source>>,
    home: Home,
    process: u32,
    pub(crate) negotiated: Negotiated,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// This end accepted.
    pub(crate) responder: bool,
    pub(crate) patience: Patience,
    /// Its recording, if there is one.
    pub(crate) capture: Option<Flow>,
    watch: Mutex<Watch>,
    leased: AtomicBool,
    /// Counts the lease holder's polls; [`ASLEEP`] while it sleeps on the socket.
    polled: AtomicU64,
    /// The transmit side waits for room in the socket.
    pub(crate) write_blocked: AtomicBool,
    health_armed: AtomicBool,
    /// Since when the health timer runs.
    health_since: Mutex<Instant>,
    /// When the connection began to close, what was still to be sent when that was last looked at, and
    /// since when it is that much.
    closing: Mutex<Option<Closing>>,
    /// Bytes moved either way when the health timer last looked, and since when they are that many.
    moved: Mutex<(u64, Instant)>,
}

#[derive(Debug, Default)]
struct Watch {
    read: bool,
    write: bool,
    leased: bool,
    closed: bool,
    /// The lease timer runs.
    timer: bool,
    /// How often it found the holder asleep.
    naps: u32,
    /// The holder's polls when it last looked.
    seen: u64,
    /// How often in a row it found the holder polling.
    polls: u32,
    /// The holder fell asleep before the transmit side was blocked, so it does not watch for room.
    overslept: bool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("local", &self.local).field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(
        fd: OwnedFd,
        shard: Arc<Shard>,
        negotiated: Negotiated,
        (local, peer): (SocketAddr, SocketAddr),
        responder: bool,
        patience: Patience,
        capture: Option<Flow>,
    ) -> Arc<Self> {
        Arc::new(Self {
            fd,
            shard,
            token: OnceLock::new(),
            source: OnceLock::new(),
            home: Home::here(),
            process: std::process::id(),
            negotiated,
            local,
            peer,
            responder,
            patience,
            capture,
            watch: Mutex::new(Watch { read: true, ..Watch::default() }),
            leased: AtomicBool::new(false),
            polled: AtomicU64::new(0),
            write_blocked: AtomicBool::new(false),
            health_armed: AtomicBool::new(false),
            health_since: Mutex::new(Instant::now()),
            closing: Mutex::new(None),
            moved: Mutex::new((0, Instant::now())),
        })
    }

    /// Lets the shard serve it from now on.
    pub(crate) fn attach(&self, source: Arc<dyn Source>) -> std::io::Result<()> {
        let _ = self.source.set(Arc::downgrade(&source));
        let token = self.shard.add(&self.fd, Interest { read: true, write: false }, source)?;
        let _ = self.token.set(token);
        self.watch(|_| {});
        Ok(())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn watch(&self, change: impl FnOnce(&mut Watch)) {
        let mut w = locked(&self.watch);
        let interest =
            |w: &Watch| Interest { read: w.read && !w.leased, write: w.write && (!w.leased || w.overslept) };
        let before = interest(&w);
        change(&mut w);
        let after = interest(&w);
        if before != after
            && !w.closed
            && let Some(token) = self.token.get()
        {
            self.shard.set_interest(&self.fd, *token, after);
        }
    }

    /// Watch for readable bytes or not.
    pub(crate) fn set_read(&self, on: bool) {
        self.watch(|w| w.read = on);
    }

    /// Watch for room to write or not.
    pub(crate) fn set_write_blocked(&self, on: bool) {
        // The usual answer costs a load.
        if self.write_blocked.load(Ordering::SeqCst) != on {
            self.watch(|w| {
                self.write_blocked.store(on, Ordering::SeqCst);
                w.write = on;
                // A thread that sleeps on the socket chose what to wait for when it lay down.
                w.overslept = on && self.polled.load(Ordering::SeqCst) == ASLEEP;
            });
        }
    }

    /// The calling thread serves the socket itself for a while; the shard keeps its hands off.
    pub(crate) fn lease(&self) {
        // A poll that two threads count as one is still a poll.
        let n = self.polled.load(Ordering::Relaxed);
        self.polled.store(if n >= ASLEEP - 1 { 0 } else { n + 1 }, Ordering::Relaxed);
        if !self.leased.load(Ordering::SeqCst) {
            self.take_lease(true);
        }
    }

    /// The calling thread is about to sleep on the socket: the lease lasts until [`Link::wake_up`].
    pub(crate) fn fall_asleep(&self) {
        self.polled.store(ASLEEP, Ordering::SeqCst);
        if !self.leased.load(Ordering::SeqCst) {
            self.take_lease(false);
        }
    }

    /// The sleeper woke up: from now on the lease runs out like any other.
    pub(crate) fn wake_up(&self) {
        self.polled.store(0, Ordering::SeqCst);
        self.take_lease(true);
        // The timer may tick at any moment: this one does not end the lease.
        self.watch(|w| w.seen = ASLEEP);
    }

    /// Whoever polled is about to sleep on something else: the shard serves the socket from now on, not only
    /// when the lease has run out. A thread that sleeps on the socket itself keeps it.
    pub(crate) fn hand_back(&self) {
        if self.leased.load(Ordering::SeqCst) && self.polled.load(Ordering::SeqCst) != ASLEEP {
            self.watch(|w| {
                self.leased.store(false, Ordering::SeqCst);
                (w.leased, w.polls) = (false, 0);
            });
        }
    }

    fn take_lease(&self, with_timer: bool) {
        let mut start = false;
        self.watch(|w| {
            w.leased = true;
            self.leased.store(true, Ordering::SeqCst);
            w.naps = 0;
            w.seen = self.polled.load(Ordering::SeqCst);
            start = with_timer && !w.timer;
            w.timer |= with_timer;
        });
        if start {
            self.lease_timer(LEASE);
        }
    }

    fn lease_timer(&self, after: Duration) {
        if let Some(source) = self.source.get() {
            self.shard.timer(crate::wait::moment(after), source.clone(), Timer::Lease);
        }
    }

    /// The lease timer fired: gives the socket back to the shard unless it was polled since. While the
    /// holder sleeps the timer ticks on for a little, so that a busy sleeper need not start it anew
    /// each time, and then stops: an idle process uses no CPU.
    pub(crate) fn check_lease(&self) {
        let mut again = None;
        self.watch(|w| {
            let polled = self.polled.load(Ordering::SeqCst);
            if polled == ASLEEP {
                w.naps += 1;
                if w.naps < NAPS {
                    again = Some(NAP);
                } else {
                    w.timer = false;
                }
            } else if polled == w.seen {
                self.leased.store(false, Ordering::SeqCst);
                (w.leased, w.timer, w.polls) = (false, false, 0);
            } else {
                // Who polls on and on is looked at less and less often: each look costs a thread switch.
                w.seen = polled;
                w.polls = (w.polls + 1).min(LOOKS);
                again = Some(LEASE * (1 << w.polls));
            }
        });
        if let Some(after) = again {
            self.lease_timer(after);
        }
    }

    /// Starts the health timer if it is not running.
    pub(crate) fn arm_health(&self, after: Duration) {
        if !self.health_armed.load(Ordering::Relaxed) && !self.health_armed.swap(true, Ordering::Relaxed) {
            *locked(&self.health_since) = Instant::now();
            self.timer(after, Timer::Health);
        }
    }

    /// The health timer fired; it goes on after `again` if anything is under way.
    pub(crate) fn health_fired(&self, again: Option<Duration>) {
        match again {
            Some(after) => self.timer(after, Timer::Health),
            None => self.health_armed.store(false, Ordering::Relaxed),
        }
    }

    /// For how long the health timer has been running without a break.
    pub(crate) fn watched_for(&self) -> Duration {
        locked(&self.health_since).elapsed()
    }

    /// The connection closes: from now on the peer has `linger` at a time to take what is left.
    pub(crate) fn start_closing(&self, linger: Duration) {
        *locked(&self.closing) =
            Some(Closing { left: u64::MAX, since: Instant::now(), began: Instant::now() });
        self.timer(linger, Timer::Deadline);
    }

    /// Whether a closing connection has waited for long enough, given the bytes still to be sent: while
    /// they become fewer it waits for `linger` again, up to `limit` in all.
    pub(crate) fn is_closed_for_good(&self, left: u64, linger: Duration, limit: Duration) -> bool {
        let mut closing = locked(&self.closing);
        let Some(c) = closing.as_mut() else { return false };
        // A timer of an earlier connection.
        if c.since.elapsed() < linger {
            return false;
        }
        if left == 0 || left >= c.left || c.began.elapsed() >= limit {
            return true;
        }
        (c.left, c.since) = (left, Instant::now());
        self.timer(linger, Timer::Deadline);
        false
    }

    /// For how long no byte moved, given how many have so far.
    pub(crate) fn idle_for(&self, bytes: u64) -> Duration {
        let mut moved = locked(&self.moved);
        if moved.0 != bytes {
            *moved = (bytes, Instant::now());
        }
        moved.1.elapsed()
    }

    /// Whether it belongs to this process and not to the one that forked it. (`clone` without the C
    /// library shows in the process number only, a new process name space in the other only.)
    pub(crate) fn is_ours(&self) -> bool {
        self.home.is_here() && self.process == std::process::id()
    }

    pub(crate) fn timer(&self, after: Duration, timer: Timer) {
        if let Some(source) = self.source.get() {
            self.shard.timer(crate::wait::moment(after), source.clone(), timer);
        }
    }

    /// Says that nothing more will be sent. TCP still delivers what it has.
    pub(crate) fn finish_sending(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Takes it away from the shard. The socket closes with the last reference.
    pub(crate) fn close(&self) {
        if std::mem::replace(&mut locked(&self.watch).closed, true) {
            return;
        }
        // A child of this process may hold the socket, too: the peer is to see the end all the same.
        if self.is_ours() {
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        }
        if let Some(token) = self.token.get() {
            self.shard.remove(&self.fd, *token);
        }
    }
}
