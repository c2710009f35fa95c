//! Completion queues: order, overflow, arming, and every way of waiting.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;
use crate::error::Error;

/// Longer than anything here takes; a test that waits this long has lost a wake-up.
const LONG: Option<Duration> = Some(Duration::from_secs(20));
const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

fn queue(depth: u32) -> CompletionQueue {
    CompletionQueue::new(depth, None).unwrap()
}

fn with_channel(depth: u32) -> (CompletionQueue, CompletionChannel) {
    let channel = CompletionChannel::new().unwrap();
    (CompletionQueue::new(depth, Some(&channel)).unwrap(), channel)
}

fn done(wr_id: u64) -> Completion {
    Completion { wr_id, ..Completion::default() }
}

fn failed(wr_id: u64) -> Completion {
    Completion { wr_id, status: Status::WrFlush, ..Completion::default() }
}

fn poll(queue: &CompletionQueue) -> Vec<u64> {
    let mut out = [Completion::default(); 4];
    let count = queue.poll(&mut out).unwrap();
    out[..count].iter().map(|c| c.wr_id).collect()
}

fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() != 0
}

#[test]
fn completions_come_out_as_they_went_in() {
    // rule 5040-5.5-3
    let queue = queue(10);
    assert!(poll(&queue).is_empty());
    let full = Completion {
        wr_id: 9,
        status: Status::RemoteAccess,
        opcode: CompletionOp::Read,
        len: 17,
        qp_num: 3,
        immediate: Some(5),
        invalidated: Some(6),
        vendor_err: 7,
    };
    queue.push(full, false);
    for id in 0..6 {
        assert!(queue.push(done(id), false));
    }
    assert_eq!(queue.queued(), 7);
    let mut out = [Completion::default(); 3];
    assert_eq!(queue.poll(&mut out).unwrap(), 3);
    assert_eq!((out[0], out[1].wr_id, out[2].wr_id), (full, 0, 1));
    assert_eq!(queue.poll(&mut []).unwrap(), 0);
    assert_eq!(poll(&queue), [2, 3, 4, 5]);
    assert!(poll(&queue).is_empty());
}

#[test]
fn a_queue_overflows_by_name_after_what_it_held() {
    // rule 5040-8.1.1-6
    let (queue, channel) = with_channel(2);
    let fired = Arc::new(AtomicUsize::new(0));
    let (count, again) = (fired.clone(), queue.clone());
    queue.on_overflow(move || {
        // The hook may use the queue: no lock is held.
        assert!(again.is_broken() && again.queued() == 2);
        count.fetch_add(1, SeqCst);
    });
    let ignored = queue.on_overflow(|| panic!("detached"));
    queue.detach(ignored);
    assert!(queue.push(done(1), false));
    assert!(queue.push(done(2), false));
    queue.arm(Arm::Solicited).unwrap();
    assert!(!queue.push(done(3), false));
    assert!(!queue.push(done(4), false));
    assert_eq!(fired.load(SeqCst), 1);
    assert!(channel.try_get().is_some(), "whoever sleeps must hear of it");
    assert_eq!(poll(&queue), [1, 2]);
    for _ in 0..2 {
        let mut out = [Completion::default()];
        assert!(matches!(queue.poll(&mut out), Err(Error::CqOverflow { depth: 2 })));
    }
    assert!(matches!(queue.arm(Arm::Next), Err(Error::CqOverflow { .. })));
    assert!(queue.prepare_wait().unwrap().is_none());
}

#[test]
fn depth_has_limits_and_can_change() {
    for depth in [0, cq::MAX_DEPTH + 1] {
        assert!(matches!(CompletionQueue::new(depth, None), Err(Error::CqDepth { .. })), "{depth}");
    }
    let queue = queue(3);
    for id in 0..3 {
        queue.push(done(id), false);
    }
    assert!(matches!(queue.resize(2), Err(Error::CqDepth { depth: 2, min: 3, .. })));
    assert!(queue.resize(0).is_err());
    queue.resize(200).unwrap();
    for id in 3..200 {
        assert!(queue.push(done(id), false));
    }
    assert_eq!(queue.depth(), 200);
    let all: Vec<u64> =
        std::iter::from_fn(|| Some(poll(&queue)).filter(|p| !p.is_empty())).flatten().collect();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
    queue.resize(1).unwrap();
    assert!(queue.push(done(1), false));
    assert!(!queue.push(done(2), false));
    CompletionQueue::new(cq::MAX_DEPTH, None).unwrap();
}

/// Pushes one completion each time it is asked to make progress.
struct Source {
    queue: CompletionQueue,
    calls: AtomicU64,
}

impl Progress for Source {
    fn progress(&self, _: bool) {
        self.queue.push(done(self.calls.fetch_add(1, SeqCst)), false);
    }

    fn socket(&self) -> Option<Arc<crate::qp::link::Link>> {
        None
    }
}

#[test]
fn an_empty_poll_makes_progress_and_sees_what_came_of_it() {
    let queue = queue(8);
    let source = Arc::new(Source { queue: queue.clone(), calls: AtomicU64::new(0) });
    let weak: Weak<dyn Progress> = Arc::downgrade(&source) as _;
    let first = queue.attach(weak.clone());
    assert_eq!(poll(&queue), [0]);
    queue.push(done(77), false);
    assert_eq!(poll(&queue), [77], "with entries there is no detour");
    let second = queue.attach(weak.clone());
    assert_eq!(poll(&queue), [1, 2]);
    queue.detach(first);
    assert_eq!(poll(&queue), [3]);
    queue.detach(second);
    assert!(poll(&queue).is_empty());
    queue.attach(weak);
    drop(source);
    assert!(poll(&queue).is_empty(), "a hook that is gone is skipped");
}

#[test]
fn arming_next_fires_once_for_the_next_completion() {
    let (queue, channel) = with_channel(16);
    queue.push(done(0), false);
    assert!(channel.try_get().is_none(), "not armed");
    assert!(queue.arm(Arm::Next).unwrap(), "an entry waits");
    assert!(!readable(&channel), "old entries make no event");
    queue.push(done(1), false);
    assert!(readable(&channel));
    queue.push(done(2), false);
    let event = channel.wait(LONG).unwrap().unwrap();
    assert_eq!(event.cq(), &queue);
    assert!(!readable(&channel), "one event for one arming");
    assert!(channel.wait(AT_ONCE).unwrap().is_none());
    assert_eq!(poll(&queue), [0, 1, 2]);
    assert!(!queue.arm(Arm::Next).unwrap());
}

#[test]
fn arming_solicited_fires_for_solicited_and_failed_completions() {
    // rule 5040-5.3-3
    let (queue, channel) = with_channel(16);
    queue.arm(Arm::Solicited).unwrap();
    queue.push(done(0), false);
    assert!(channel.try_get().is_none());
    queue.push(done(1), true);
    assert!(channel.try_get().is_some());
    queue.push(done(2), true);
    assert!(channel.try_get().is_none());
    queue.arm(Arm::Solicited).unwrap();
    queue.push(failed(3), false);
    assert!(channel.try_get().is_some());
}

#[test]
fn arming_for_next_is_not_narrowed_and_solicited_is_widened() {
    let (queue, channel) = with_channel(16);
    for (first, second) in [(Arm::Next, Arm::Solicited), (Arm::Solicited, Arm::Next)] {
        queue.arm(first).unwrap();
        queue.arm(second).unwrap();
        queue.push(done(0), false);
        assert!(channel.try_get().is_some(), "{first:?} then {second:?}");
    }
}

#[test]
fn one_channel_serves_many_queues_in_order() {
    let channel = CompletionChannel::new().unwrap();
    let queues: Vec<_> = (0..5).map(|_| CompletionQueue::new(4, Some(&channel)).unwrap()).collect();
    let order = [3, 0, 4, 1, 2];
    for i in order {
        queues[i].arm(Arm::Next).unwrap();
        queues[i].push(done(i as u64), false);
    }
    for i in order {
        assert!(readable(&channel), "level-triggered until the last is taken");
        let event = channel.try_get().unwrap();
        assert_eq!(event.cq().id(), queues[i].id());
        assert_eq!(poll(event.cq()), [i as u64]);
    }
    assert!(!readable(&channel));
    assert_eq!(queues[0].channel().unwrap().as_fd().try_clone_to_owned().map(drop).ok(), Some(()));
}

#[test]
fn a_queue_that_is_gone_leaves_no_event() {
    let (queue, channel) = with_channel(4);
    let other = CompletionQueue::new(4, Some(&channel)).unwrap();
    for q in [&queue, &other] {
        q.arm(Arm::Next).unwrap();
        q.push(done(0), false);
    }
    drop(queue);
    assert!(readable(&channel));
    assert_eq!(channel.try_get().unwrap().cq(), &other);
    assert!(!readable(&channel));
    other.arm(Arm::Next).unwrap();
    other.push(done(0), false);
    drop(other);
    assert!(!readable(&channel), "no events are left");
    assert!(channel.try_get().is_none());
}

#[test]
fn retiring_waits_for_unacknowledged_events_and_drops_unfetched_ones() {
    let (queue, channel) = with_channel(8);
    for _ in 0..3 {
        queue.arm(Arm::Next).unwrap();
        queue.push(done(0), false);
    }
    let kept = channel.try_get().unwrap();
    let deferred = channel.try_get().unwrap().defer();
    assert_eq!(queue.unacked_events(), 2);
    let retired = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            queue.retire_events();
            retired.store(true, SeqCst);
        });
        // The third event goes when retiring begins.
        while readable(&channel) {
            thread::yield_now();
        }
        kept.ack();
        for _ in 0..1000 {
            assert!(!retired.load(SeqCst), "one event is still out");
            thread::yield_now();
        }
        deferred.ack_events(1);
    });
    assert!(retired.load(SeqCst));
    assert_eq!(queue.unacked_events(), 0);
    queue.retire_events();
}

struct Flag(AtomicUsize);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn tasks_are_woken_once_by_the_next_completion() {
    let queue = queue(8);
    let flags = [Arc::new(Flag(AtomicUsize::new(0))), Arc::new(Flag(AtomicUsize::new(0)))];
    let wakers = flags.clone().map(Waker::from);
    let mut out = [Completion::default(); 4];
    let mut ask = |i: usize| queue.poll_completions(&mut Context::from_waker(&wakers[i]), &mut out);
    assert!(ask(0).is_pending() && ask(0).is_pending() && ask(1).is_pending());
    queue.push(done(1), false);
    queue.push(done(2), false);
    assert_eq!(flags.clone().map(|f| f.0.load(SeqCst)), [1, 1]);
    assert!(matches!(ask(0), Poll::Ready(Ok(2))));
    assert!(ask(1).is_pending());
    queue.push(done(3), false);
    assert_eq!(flags.map(|f| f.0.load(SeqCst)), [1, 2]);
    assert!(matches!(
        queue.poll_completions(&mut Context::from_waker(Waker::noop()), &mut []),
        Poll::Ready(Ok(0))
    ));
}

#[test]
fn a_task_gets_what_its_own_poll_brought_in() {
    let queue = queue(8);
    let source = Arc::new(Source { queue: queue.clone(), calls: AtomicU64::new(0) });
    queue.attach(Arc::downgrade(&source) as _);
    let mut out = [Completion::default(); 4];
    let mut ask = || queue.poll_completions(&mut Context::from_waker(Waker::noop()), &mut out);
    assert!(matches!(ask(), Poll::Ready(Ok(1))));
    assert!(matches!(ask(), Poll::Ready(Ok(1))));
}

#[test]
fn tasks_hear_of_an_overflow() {
    let queue = queue(1);
    queue.push(done(0), false);
    let flag = Arc::new(Flag(AtomicUsize::new(0)));
    let waker = Waker::from(flag.clone());
    let mut out = [Completion::default()];
    queue.push(done(1), false);
    let mut ask = || queue.poll_completions(&mut Context::from_waker(&waker), &mut out);
    assert!(matches!(ask(), Poll::Ready(Ok(1))));
    assert!(matches!(ask(), Poll::Ready(Err(Error::CqOverflow { .. }))));
}

#[test]
fn a_waiter_is_signalled_and_leaves_no_signal_behind() {
    let queue = queue(8);
    let waiter = queue.prepare_wait().unwrap().unwrap();
    let second = queue.prepare_wait().unwrap().unwrap();
    assert!(!readable(&waiter));
    queue.push(done(0), false);
    assert!(readable(&waiter) && readable(&second));
    assert!(queue.prepare_wait().unwrap().is_none(), "there is something to poll");
    let third = {
        drop(waiter);
        assert!(readable(&second), "the entry is still there for the other");
        assert_eq!(poll(&queue), [0]);
        queue.prepare_wait().unwrap().unwrap()
    };
    drop(second);
    assert!(!readable(&third), "nothing is left to wake up for");
    queue.push(done(2), false);
    assert!(readable(&third));
    assert_eq!(poll(&queue), [2]);
    drop(third);
    let waiter = queue.prepare_wait().unwrap().unwrap();
    assert!(!readable(&waiter));
    drop(waiter);
    queue.push(done(1), false);
    assert_eq!(poll(&queue), [1]);
    assert!(!readable(queue.prepare_wait().unwrap().unwrap()), "nobody slept, so nobody was signalled");
}

/// The loop of `verbs.h`: sleep, fetch the event, arm, poll until empty.
fn consume_by_channel(channel: &CompletionChannel, queue: &CompletionQueue, total: u64) {
    let mut next = 0;
    let mut drain = |queue: &CompletionQueue| {
        loop {
            let got = poll(queue);
            if got.is_empty() {
                return next;
            }
            for id in got {
                assert_eq!(id, next);
                next += 1;
            }
        }
    };
    queue.arm(Arm::Next).unwrap();
    let mut seen = drain(queue);
    while seen < total {
        let event = channel.wait(LONG).unwrap().expect("a wake-up was lost");
        event.cq().arm(Arm::Next).unwrap();
        seen = drain(event.cq());
        event.ack();
    }
}

fn consume_by_waiter(queue: &CompletionQueue, total: u64) {
    let mut next = 0;
    while next < total {
        let got = poll(queue);
        if got.is_empty()
            && let Some(waiter) = queue.prepare_wait().unwrap()
        {
            let mut fds = [PollFd::new(&waiter, PollFlags::IN)];
            let ready = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
            assert_eq!(ready, 1, "a wake-up was lost");
        }
        for id in got {
            assert_eq!(id, next);
            next += 1;
        }
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn consume_as_task(queue: &CompletionQueue, total: u64) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut out = [Completion::default(); 4];
    let mut next = 0;
    while next < total {
        match queue.poll_completions(&mut cx, &mut out) {
            Poll::Ready(count) => {
                for completion in &out[..count.unwrap()] {
                    assert_eq!(completion.wr_id, next);
                    next += 1;
                }
            }
            Poll::Pending => {
                let before = std::time::Instant::now();
                thread::park_timeout(LONG.unwrap());
                assert!(before.elapsed() < LONG.unwrap(), "a wake-up was lost");
            }
        }
    }
}

/// Notes whether who polls says that it will be back at once, and who says that it leaves.
#[derive(Default)]
struct Watcher {
    stays: Mutex<Vec<bool>>,
    left: AtomicU64,
}

impl Progress for Watcher {
    fn progress(&self, stays: bool) {
        self.stays.lock().unwrap().push(stays);
    }

    fn leave(&self) {
        self.left.fetch_add(1, SeqCst);
    }

    fn socket(&self) -> Option<Arc<crate::qp::link::Link>> {
        None
    }
}

/// Only a program that polls on and on may keep the sockets to itself: one that sleeps on events, and a task,
/// would not see what comes until the library looks after them again.
#[test]
fn who_is_about_to_sleep_leaves_the_sockets_to_the_library() {
    let (queue, _channel) = with_channel(8);
    let watcher = Arc::new(Watcher::default());
    queue.attach(Arc::downgrade(&watcher) as Weak<dyn Progress>);
    let told = || (std::mem::take(&mut *watcher.stays.lock().unwrap()), watcher.left.swap(0, SeqCst));
    let mut out = [Completion::default(); 1];
    queue.poll(&mut out).unwrap();
    assert_eq!(told(), (vec![true], 0));
    queue.arm(Arm::Next).unwrap();
    queue.poll(&mut out).unwrap();
    assert_eq!(told(), (vec![false], 1));
    // The event disarms.
    queue.push(done(1), false);
    assert_eq!(queue.poll(&mut out).unwrap(), 1);
    queue.poll(&mut out).unwrap();
    assert_eq!(told(), (vec![true], 0));
    assert!(queue.poll_completions(&mut Context::from_waker(Waker::noop()), &mut out).is_pending());
    assert_eq!(told(), (vec![false], 0));
}

/// Tells the producer that the consumer has found the queue empty and is about to look once more and sleep;
/// then dawdles, each time for another while, so that the push meets each step of that.
struct AboutToSleep {
    told: AtomicBool,
    times: AtomicU64,
}

impl Progress for AboutToSleep {
    fn progress(&self, _: bool) {
        self.told.store(true, SeqCst);
        let times = self.times.fetch_add(1, SeqCst);
        (0..times * 7 % 61).for_each(|_| std::hint::spin_loop());
    }

    fn socket(&self) -> Option<Arc<crate::qp::link::Link>> {
        None
    }
}

/// A producer that pushes at every moment between the consumer's look at the empty queue and its sleep.
fn no_wake_up_is_lost(consume: impl FnOnce(&CompletionQueue, &CompletionChannel, u64) + Send) {
    const TOTAL: u64 = 30_000;
    let (queue, channel) = with_channel(64);
    let moment = Arc::new(AboutToSleep { told: AtomicBool::new(false), times: AtomicU64::new(0) });
    queue.attach(Arc::downgrade(&moment) as _);
    thread::scope(|s| {
        let consumer = s.spawn(|| consume(&queue, &channel, TOTAL));
        for id in 0..TOTAL {
            // One at a time: no later completion makes up for a lost wake-up.
            while queue.queued() != 0 && !consumer.is_finished() {
                thread::yield_now();
            }
            // A consumer that shares a core with this thread is not about to sleep for long.
            for _ in 0..2000 {
                if moment.told.swap(false, SeqCst) {
                    break;
                }
                std::hint::spin_loop();
            }
            (0..id % 17).for_each(|_| std::hint::spin_loop());
            assert!(queue.push(done(id), false));
        }
    });
    assert_eq!(queue.queued(), 0);
    assert_eq!(queue.unacked_events(), 0);
}

#[test]
fn no_wake_up_is_lost_on_a_channel() {
    no_wake_up_is_lost(|queue, channel, total| consume_by_channel(channel, queue, total));
}

#[test]
fn no_wake_up_is_lost_by_a_waiter() {
    no_wake_up_is_lost(|queue, _, total| consume_by_waiter(queue, total));
}

#[test]
fn no_wake_up_is_lost_by_a_task() {
    no_wake_up_is_lost(|queue, _, total| consume_as_task(queue, total));
}

/// Several threads wait on one queue; each completion goes to exactly one of them.
#[test]
fn waiters_share_a_queue() {
    const TOTAL: usize = 20_000;
    let queue = queue(64);
    let (sum, count) = (AtomicU64::new(0), AtomicUsize::new(0));
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while count.load(SeqCst) < TOTAL {
                    for id in poll(&queue) {
                        sum.fetch_add(id, SeqCst);
                        // The last one wakes the others, as an application does to end them.
                        if count.fetch_add(1, SeqCst) + 1 == TOTAL {
                            (0..6).for_each(|_| assert!(queue.push(done(0), false)));
                        }
                    }
                    if count.load(SeqCst) < TOTAL
                        && let Some(waiter) = queue.prepare_wait().unwrap()
                    {
                        let mut fds = [PollFd::new(&waiter, PollFlags::IN)];
                        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
                        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "a lost wake-up");
                    }
                }
            });
        }
        for id in 1..=TOTAL as u64 {
            while queue.queued() > 40 {
                thread::yield_now();
            }
            queue.push(done(id), false);
        }
    });
    let total = TOTAL as u64;
    assert_eq!(sum.load(SeqCst), total * (total + 1) / 2);
}

/// Several threads fetch from one channel.
#[test]
fn threads_share_a_channel() {
    const EVENTS: usize = 5000;
    let (queue, channel) = with_channel(EVENTS as u32);
    let fetched = AtomicUsize::new(0);
    for id in 0..EVENTS as u64 {
        queue.arm(Arm::Next).unwrap();
        queue.push(done(id), false);
    }
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while let Some(event) = channel.try_get() {
                    fetched.fetch_add(1, SeqCst);
                    event.ack();
                }
            });
        }
    });
    assert_eq!(fetched.load(SeqCst), EVENTS);
    assert!(!readable(&channel));
    assert_eq!(queue.unacked_events(), 0);
}

#[test]
fn statuses_have_the_numbers_of_verbs_h() {
    let expected = [
        (Status::Success, 0),
        (Status::LocalLengthError, 1),
        (Status::LocalQpOperation, 2),
        (Status::LocalProtection, 4),
        (Status::WrFlush, 5),
        (Status::MwBind, 6),
        (Status::BadResponse, 7),
        (Status::LocalAccess, 8),
        (Status::RemoteInvalidRequest, 9),
        (Status::RemoteAccess, 10),
        (Status::RemoteOperation, 11),
        (Status::RetryExceeded, 12),
        (Status::RnrRetryExceeded, 13),
        (Status::Fatal, 19),
        (Status::ResponseTimeout, 20),
        (Status::General, 21),
    ];
    for (status, number) in expected {
        assert_eq!(status as u32, number);
        assert_eq!(status.is_success(), number == 0);
        assert!(!status.to_string().is_empty());
    }
}
