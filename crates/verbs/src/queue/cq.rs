//! Completion queues: a bounded queue, and whoever waits for it.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use super::channel::CompletionChannel;
use super::completion::Completion;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::qp::link::Link;

/// Deepest completion queue.
pub(crate) const MAX_DEPTH: u32 = 1 << 22;

/// Entries for which memory is taken at once; more when they are needed.
const FIRST_CAPACITY: usize = 64;

/// Something that can be pushed forward by whoever polls an empty queue.
pub(crate) trait Progress: Send + Sync {
    /// Does what can be done without blocking. `stays`: the caller polls and will be back in a moment, so
    /// nobody else need watch the socket.
    fn progress(&self, stays: bool);
    /// The caller is about to sleep on something else than the socket: the library's threads watch it.
    fn leave(&self) {}
    /// Its connection, for a thread that wants to sleep on it.
    fn socket(&self) -> Option<Arc<Link>>;
}

/// Which completions make an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arm {
    /// The next one.
    Next,
    /// The next one that the peer marked as solicited, or that failed.
    Solicited,
}

/// Where work requests report that they are over.
///
/// A clone is another handle of the same queue.
#[derive(Clone)]
pub struct CompletionQueue {
    inner: Arc<Shared>,
}

/// What handles, events and queue pairs share.
pub(super) struct Shared {
    id: u64,
    home: Home,
    state: Mutex<State>,
    /// Entries queued; written under the lock, read without.
    queued: AtomicUsize,
    /// Completions were lost; written under the lock.
    broken: AtomicBool,
    channel: Option<CompletionChannel>,
    /// An event is asked for: whoever polls is about to sleep until it comes. Written under the lock.
    armed: AtomicBool,
    /// The last wait slept once and found its completion.
    habit: AtomicBool,
    wake: OnceLock<OwnedFd>,
    hooks: Mutex<Hooks>,
    /// Events of the channel that were handed out and not acknowledged.
    unacked: Mutex<u64>,
    acked: Condvar,
}

struct State {
    ring: VecDeque<Completion>,
    depth: u32,
    armed: Option<Arm>,
    /// Threads that sleep on `wake`.
    sleepers: u32,
    /// `wake` is readable.
    signalled: bool,
    wakers: Vec<Waker>,
}

type OverflowHook = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Hooks {
    next: u64,
    progress: Arc<[(u64, Weak<dyn Progress>)]>,
    overflow: Vec<(u64, OverflowHook)>,
}

/// What a push has to wake, decided under the lock and done after it.
#[derive(Default)]
struct Wake {
    event: bool,
    sleepers: bool,
    wakers: Vec<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Whom to wake for one more entry. The usual answer, nobody, costs three comparisons.
    fn wake(&mut self, notable: bool) -> Wake {
        let mut wake = Wake::default();
        if self.armed.is_some_and(|arm| notable || arm == Arm::Next) {
            self.armed = None;
            wake.event = true;
        }
        if self.sleepers != 0 && !self.signalled {
            self.signalled = true;
            wake.sleepers = true;
        }
        if !self.wakers.is_empty() {
            wake.wakers = std::mem::take(&mut self.wakers);
        }
        wake
    }
}

impl CompletionQueue {
    /// A queue of `depth` entries that reports on `channel`.
    pub(crate) fn new(depth: u32, channel: Option<&CompletionChannel>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        check_depth(depth, 1)?;
        Ok(Self {
            inner: Arc::new(Shared {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                home: Home::here(),
                state: Mutex::new(State {
                    ring: VecDeque::with_capacity((depth as usize).min(FIRST_CAPACITY)),
                    depth,
                    armed: None,
                    sleepers: 0,
                    signalled: false,
                    wakers: Vec::new(),
                }),
                queued: AtomicUsize::new(0),
                broken: AtomicBool::new(false),
                channel: channel.cloned(),
                armed: AtomicBool::new(false),
                habit: AtomicBool::new(false),
                wake: OnceLock::new(),
                hooks: Mutex::default(),
                unacked: Mutex::new(0),
                acked: Condvar::new(),
            }),
        })
    }

    /// Entries that it can hold.
    pub fn depth(&self) -> u32 {
        lock(&self.inner.state).depth
    }

    /// Completions that wait to be polled.
    pub fn queued(&self) -> usize {
        self.inner.queued.load(Ordering::Acquire)
    }

    /// A number that no other completion queue of the process has.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// The channel that its events go to.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.channel.as_ref()
    }

    /// Takes up to `out.len()` completions, oldest first, without blocking; how many were taken. Where none
    /// are queued the polling thread first does work of the device.
    ///
    /// # Errors
    /// [`Error::CqOverflow`] once completions were lost and those queued before have been taken;
    /// [`Error::Forked`] in a child of the process that created the queue, as for all calls here.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize> {
        self.inner.home.check()?;
        let taken = self.inner.take(out);
        if taken != 0 || out.is_empty() {
            return Ok(taken);
        }
        let stays = !self.inner.armed.load(Ordering::Relaxed);
        self.each_source(|source| source.progress(stays));
        let taken = self.inner.take(out);
        if taken == 0 && self.inner.broken.load(Ordering::Acquire) {
            return Err(self.overflowed());
        }
        Ok(taken)
    }

    fn overflowed(&self) -> Error {
        Error::CqOverflow { depth: self.depth() }
    }

    /// [`Self::poll`] for asynchronous tasks: pending, with the task woken by the next completion, where none
    /// are queued.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_completions(&self, cx: &mut Context<'_>, out: &mut [Completion]) -> Poll<Result<usize>> {
        let taken = self.inner.take(out);
        if taken != 0 || out.is_empty() {
            return Poll::Ready(Ok(taken));
        }
        // A task that is not served now sleeps, on what only its executor knows.
        self.each_source(|source| source.progress(false));
        // Looked at again under the lock that a push takes: nothing comes between the look and the waker.
        let mut state = lock(&self.inner.state);
        let taken = self.inner.drain(&mut state, out);
        if taken != 0 {
            return Poll::Ready(Ok(taken));
        }
        if self.inner.broken.load(Ordering::Relaxed) {
            drop(state);
            return Poll::Ready(Err(self.overflowed()));
        }
        if !state.wakers.iter().any(|w| w.will_wake(cx.waker())) {
            state.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Asks for one event on the channel when a *new* completion comes; those already queued make none, as in
    /// `verbs.h`. True: some are queued, so poll before sleeping. Armed for [`Arm::Next`] it stays so until
    /// the event.
    ///
    /// # Errors
    /// [`Error::CqOverflow`] when no completion will come any more.
    pub fn arm(&self, what: Arm) -> Result<bool> {
        self.inner.home.check()?;
        let mut state = lock(&self.inner.state);
        if state.ring.is_empty() && self.inner.broken.load(Ordering::Relaxed) {
            drop(state);
            return Err(self.overflowed());
        }
        if state.armed != Some(Arm::Next) {
            state.armed = Some(what);
        }
        self.inner.armed.store(true, Ordering::Relaxed);
        let queued = !state.ring.is_empty();
        drop(state);
        self.each_source(|source| source.leave());
        Ok(queued)
    }

    /// Changes the depth.
    ///
    /// # Errors
    /// [`Error::CqDepth`] for 0, for less than is queued, and beyond the device's limit.
    pub fn resize(&self, depth: u32) -> Result<()> {
        self.inner.home.check()?;
        let mut state = lock(&self.inner.state);
        check_depth(depth, (state.ring.len() as u32).max(1))?;
        state.depth = depth;
        Ok(())
    }

    /// Adds a completion and wakes who waits for it. False: the queue was full, and is in error now.
    pub(crate) fn push(&self, completion: Completion, solicited: bool) -> bool {
        let mut state = lock(&self.inner.state);
        if state.ring.len() >= state.depth as usize {
            drop(state);
            self.overflow();
            return false;
        }
        state.ring.push_back(completion);
        self.inner.queued.store(state.ring.len(), Ordering::Release);
        let wake = state.wake(solicited || !completion.status.is_success());
        if wake.event {
            self.inner.armed.store(false, Ordering::Relaxed);
        }
        drop(state);
        self.rouse(wake);
        true
    }

    #[inline]
    fn rouse(&self, wake: Wake) {
        if wake.event
            && let Some(channel) = &self.inner.channel
        {
            channel.notify(self.inner.id, &self.inner);
        }
        if wake.sleepers
            && let Some(fd) = self.inner.wake.get()
        {
            super::channel::signal(fd);
        }
        for waker in wake.wakers {
            waker.wake();
        }
    }

    #[cold]
    // rule 5040-8.1.1-6
    fn overflow(&self) {
        let wake = {
            let mut state = lock(&self.inner.state);
            if self.inner.broken.swap(true, Ordering::AcqRel) {
                return;
            }
            // Nobody may sleep on a queue to which nothing comes any more.
            self.inner.armed.store(false, Ordering::Relaxed);
            state.wake(true)
        };
        tracing::error!(cq = self.inner.id, depth = self.depth(), "completion queue overflowed");
        self.rouse(wake);
        let hooks: Vec<_> = lock(&self.inner.hooks).overflow.iter().map(|(_, h)| h.clone()).collect();
        for hook in hooks {
            hook();
        }
    }

    /// Whether completions were lost.
    #[allow(dead_code, reason = "used by tests")]
    pub(crate) fn is_broken(&self) -> bool {
        self.inner.broken.load(Ordering::Acquire)
    }

    fn each_source(&self, f: impl Fn(&dyn Progress)) {
        let hooks = lock(&self.inner.hooks).progress.clone();
        hooks.iter().filter_map(|(_, hook)| hook.upgrade()).for_each(|hook| f(&*hook));
    }

    /// Refuses a forked child.
    pub(super) fn check_fork(&self) -> Result<()> {
        self.inner.home.check()
    }

    /// Takes what is queued, and does nothing else.
    pub(super) fn take(&self, out: &mut [Completion]) -> usize {
        self.inner.take(out)
    }

    /// Whether the last wait slept just once, and then found its completion.
    pub(super) fn sleeps_by_habit(&self) -> bool {
        self.inner.habit.load(Ordering::Relaxed)
    }

    pub(super) fn set_habit(&self, habit: bool) {
        self.inner.habit.store(habit, Ordering::Relaxed);
    }

    /// The connections of what is attached; `None` where there are more than `limit`.
    pub(super) fn sockets(&self, limit: usize) -> Option<Vec<Arc<Link>>> {
        let hooks = lock(&self.inner.hooks).progress.clone();
        if hooks.len() > limit {
            return None;
        }
        Some(hooks.iter().filter_map(|(_, h)| h.upgrade()).filter_map(|h| h.socket()).collect())
    }

    /// Has `hook` called whenever the empty queue is polled; a number for [`Self::detach`].
    pub(crate) fn attach(&self, hook: Weak<dyn Progress>) -> u64 {
        let mut hooks = lock(&self.inner.hooks);
        let id = hooks.number();
        let alive = hooks.progress.iter().filter(|(_, h)| h.strong_count() != 0).cloned();
        hooks.progress = alive.chain([(id, hook)]).collect();
        id
    }

    /// Has `hook` called once, without locks, when the queue overflows; a number for [`Self::detach`].
    pub(crate) fn on_overflow(&self, hook: impl Fn() + Send + Sync + 'static) -> u64 {
        let mut hooks = lock(&self.inner.hooks);
        let id = hooks.number();
        hooks.overflow.push((id, Arc::new(hook)));
        id
    }

    /// Undoes [`Self::attach`] or [`Self::on_overflow`]; a call that has begun is not waited for.
    pub(crate) fn detach(&self, id: u64) {
        let mut hooks = lock(&self.inner.hooks);
        hooks.progress = hooks.progress.iter().filter(|(i, _)| *i != id).cloned().collect();
        hooks.overflow.retain(|(i, _)| *i != id);
    }

    /// Prepares to sleep until a completion comes: `None` when there is something to poll already. While the
    /// waiter lives its descriptor becomes readable with the next completion.
    pub(crate) fn prepare_wait(&self) -> Result<Option<Waiter<'_>>> {
        let fd = match self.inner.wake.get() {
            Some(fd) => fd,
            None => {
                let fd = super::channel::eventfd()?;
                self.inner.wake.get_or_init(|| fd)
            }
        };
        let mut state = lock(&self.inner.state);
        if !state.ring.is_empty() || self.inner.broken.load(Ordering::Relaxed) {
            return Ok(None);
        }
        state.sleepers += 1;
        Ok(Some(Waiter { queue: &self.inner, fd }))
    }

    /// Acknowledges `count` events that were taken by [`CqEvent::defer`](crate::CqEvent::defer).
    pub fn ack_events(&self, count: u64) {
        self.inner.ack(count);
    }

    /// Events handed out and not acknowledged.
    pub fn unacked_events(&self) -> u64 {
        *lock(&self.inner.unacked)
    }

    /// Ends the use of the queue's events: those that nobody has fetched are dropped, and those that somebody
    /// has are waited for until they are acknowledged. For whoever is about to free what event handlers use.
    pub fn retire_events(&self) {
        if !self.inner.home.is_here() {
            return;
        }
        if let Some(channel) = &self.inner.channel {
            let mut state = lock(&self.inner.state);
            state.armed = None;
            self.inner.armed.store(false, Ordering::Relaxed);
            drop(state);
            channel.purge(self.inner.id);
        }
        let mut unacked = lock(&self.inner.unacked);
        while *unacked != 0 {
            unacked = self.inner.acked.wait(unacked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn from_shared(inner: Arc<Shared>) -> Self {
        Self { inner }
    }
}

fn check_depth(depth: u32, min: u32) -> Result<()> {
    if depth < min || depth > MAX_DEPTH {
        return Err(Error::CqDepth { depth, min, max: MAX_DEPTH });
    }
    Ok(())
}

impl Hooks {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Shared {
    fn take(&self, out: &mut [Completion]) -> usize {
        if self.queued.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.drain(&mut lock(&self.state), out)
    }

    fn drain(&self, state: &mut State, out: &mut [Completion]) -> usize {
        let count = out.len().min(state.ring.len());
        for (place, completion) in out.iter_mut().zip(state.ring.drain(..count)) {
            *place = completion;
        }
        self.queued.store(state.ring.len(), Ordering::Release);
        count
    }

    /// An event was handed out.
    pub(super) fn handed_out(&self) {
        *lock(&self.unacked) += 1;
    }

    pub(super) fn ack(&self, count: u64) {
        let mut unacked = lock(&self.unacked);
        *unacked = unacked.saturating_sub(count);
        if *unacked == 0 {
            self.acked.notify_all();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.home.is_here()
            && let Some(channel) = &self.channel
        {
            channel.purge(self.id);
        }
    }
}

/// A thread that is about to sleep, or sleeps, until a completion comes.
pub(crate) struct Waiter<'a> {
    queue: &'a Shared,
    fd: &'a OwnedFd,
}

impl AsFd for Waiter<'_> {
    /// Readable when there is something to poll. Not to be read from.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        state.sleepers -= 1;
        // With entries left the other sleepers keep their signal.
        if state.signalled && (state.sleepers == 0 || state.ring.is_empty()) {
            state.signalled = false;
            super::channel::drain(self.fd);
        }
    }
}

impl PartialEq for CompletionQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for CompletionQueue {}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("id", &self.inner.id)
            .field("depth", &self.depth())
            .field("queued", &self.queued())
            .finish_non_exhaustive()
    }
}
