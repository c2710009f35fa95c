//! A shard: one thread that serves the sockets of its queue pairs when nobody else does.
//!
//! One-sided operations must progress while the application computes or sleeps, so the library owns
//! these threads. Each sleeps in `epoll_wait` without a timeout when there is nothing to do.

mod timer;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::net::{sys, tcp};
pub(crate) use timer::Timer;
use timer::Timers;

/// What a socket is ready for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Error or hang-up: reading or writing tells which.
    pub(crate) broken: bool,
}

/// Something that a shard serves: a queue pair, a listener, a connection being set up.
pub(crate) trait Source: Send + Sync {
    /// Its socket is ready.
    fn ready(&self, ready: Readiness);
    /// A timer of its own fired.
    fn timer(&self, timer: Timer);
}

/// What a source wants to hear of its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Interest {
    fn flags(self) -> EventFlags {
        let mut f = EventFlags::empty();
        f.set(EventFlags::IN, self.read);
        f.set(EventFlags::OUT, self.write);
        // Hang-ups are reported whatever is asked; one-shot arming keeps a silenced socket silent.
        if f.is_empty() { EventFlags::ONESHOT | EventFlags::ET } else { f }
    }
}

/// A source's name within its shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Token(u64);

const WAKE: u64 = u64::MAX;

struct State {
    sources: HashMap<u64, Arc<dyn Source>>,
    timers: Timers,
}

/// One thread's worth of sockets.
pub(crate) struct Shard {
    epoll: OwnedFd,
    wake: OwnedFd,
    state: Mutex<State>,
    next: AtomicU64,
    stop: AtomicBool,
    started: Mutex<bool>,
    epoch: Instant,
    /// Nanoseconds since `epoch` until which the thread sleeps; 0: it is awake.
    sleeps_until: AtomicU64,
    me: Weak<Self>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("sources", &self.lock().sources.len()).finish_non_exhaustive()
    }
}

impl Shard {
    /// Descriptors only; the thread starts with the first source.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let epoll = tcp::raise(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let wake = tcp::raise(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Arc::new_cyclic(|me| Self {
            epoll,
            wake,
            state: Mutex::new(State { sources: HashMap::new(), timers: Timers::default() }),
            next: AtomicU64::new(1),
            stop: AtomicBool::new(false),
            started: Mutex::new(false),
            epoch: Instant::now(),
            sleeps_until: AtomicU64::new(0),
            me: me.clone(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a socket. The shard keeps `source` until [`Shard::remove`].
    pub(crate) fn add(
        &self,
        fd: impl AsFd,
        interest: Interest,
        source: Arc<dyn Source>,
    ) -> io::Result<Token> {
        self.start()?;
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().sources.insert(token, source);
        if let Err(e) = epoll::add(&self.epoll, fd, EventData::new_u64(token), interest.flags()) {
            self.lock().sources.remove(&token);
            return Err(e.into());
        }
        Ok(Token(token))
    }

    /// Changes what a source hears of.
    pub(crate) fn set_interest(&self, fd: impl AsFd, token: Token, interest: Interest) {
        // Fails only where the socket is gone already.
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), interest.flags());
    }

    /// Forgets a source; its socket may live on.
    pub(crate) fn remove(&self, fd: impl AsFd, token: Token) {
        let _ = epoll::delete(&self.epoll, fd);
        // The source may be dropped here, and its drop may come back: not under the lock.
        let gone = self.lock().sources.remove(&token.0);
        drop(gone);
        if self.stop.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Calls `source.timer(timer)` at `at`, if it still lives.
    pub(crate) fn timer(&self, at: Instant, source: Weak<dyn Source>, timer: Timer) {
        // Without a thread (descriptors exhausted) no connection came about either.
        if self.start().is_err() {
            return;
        }
        self.lock().timers.push(at, source, timer);
        let at = self.nanos(at);
        if at < self.sleeps_until.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Makes the thread look at its timers and its stop flag.
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Ends the thread once its last source is gone.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Starts the thread, if it does not run yet. Another call may succeed where this one could not.
    fn start(&self) -> io::Result<()> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if *started {
            return Ok(());
        }
        let Some(me) = self.me.upgrade() else { return Ok(()) };
        let _blocked = sys::block_all_signals();
        std::thread::Builder::new().name("rnic-shard".into()).spawn(move || me.run())?;
        *started = true;
        Ok(())
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            if self.stop.load(Ordering::SeqCst) && self.lock().sources.is_empty() {
                return;
            }
            self.sleep(&mut events);
            for event in events.drain(..) {
                self.dispatch(event);
            }
            self.fire_timers();
        }
    }

    /// Waits for sockets or the next timer.
    fn sleep(&self, events: &mut Vec<epoll::Event>) {
        let next = {
            let state = self.lock();
            let next = state.timers.next();
            let until = next.map_or(u64::MAX, |at| self.nanos(at));
            self.sleeps_until.store(until, Ordering::SeqCst);
            next
        };
        let timeout = next.map(|at| {
            let d = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) }
        });
        events.clear();
        let buffer = rustix::buffer::spare_capacity(events);
        // EINTR and the like: the loop comes round again.
        let _ = epoll::wait(&self.epoll, buffer, timeout.as_ref());
        self.sleeps_until.store(0, Ordering::SeqCst);
    }

    fn dispatch(&self, event: epoll::Event) {
        let token = event.data.u64();
        if token == WAKE {
            let mut counter = [0u8; 8];
            let _ = rustix::io::read(&self.wake, &mut counter);
            return;
        }
        let source = self.lock().sources.get(&token).cloned();
        if let Some(source) = source {
            let flags = event.flags;
            source.ready(Readiness {
                readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                writable: flags.contains(EventFlags::OUT),
                broken: flags.intersects(EventFlags::ERR | EventFlags::HUP),
            });
        }
    }

    fn fire_timers(&self) {
        let due = {
            let mut state = self.lock();
            if state.timers.next().is_none() { Vec::new() } else { state.timers.due(Instant::now()) }
        };
        for (source, timer) in due {
            if let Some(source) = source.upgrade() {
                source.timer(timer);
            }
        }
    }
}
