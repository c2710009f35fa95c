//! A booted siw guest that serves many commands.

use crate::{
    control::{self, Message},
    need,
    program::{Output, free_ports},
    scratch::Scratch,
};
use anyhow::{Context, Result, anyhow, bail};
use std::{
    collections::HashMap,
    fs,
    io::{self, BufReader},
    net::{Ipv4Addr, SocketAddr},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Longest a boot may take. Some 4 s on a calm machine.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// TCP ports of the guest that are forwarded from the host, from this one on.
const FIRST_PORT: u16 = 20000;
const PORTS: usize = 48;

/// Which build of siw the guest loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Siw {
    /// With parameters and three repairs (siw-guest/README.md).
    #[default]
    Repaired,
    /// As Linux has it.
    Stock,
}

/// How guest and host reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Net {
    /// QEMU's own NAT: no privilege, but two TCP connections where there seems to be one.
    #[default]
    User,
    /// A tap in a network namespace of our own: one real TCP connection, wire-sized segments. See [`crate::namespace`].
    Tap,
}

/// What to boot.
#[derive(Debug, Clone, Default)]
pub struct GuestOptions {
    /// Edition of siw.
    pub siw: Siw,
    /// siw's parameters at load time, `name=value`; only for [`Siw::Repaired`].
    pub params: Vec<String>,
    /// The network.
    pub net: Net,
    /// Where QEMU writes what passes the guest's NIC, as a pcap file.
    pub capture: Option<PathBuf>,
}

/// A command that was started in a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobId(u32);

/// A TCP port of the guest and how the host reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestPort {
    /// What a program in the guest listens on.
    pub port: u16,
    /// What a program on the host connects to.
    pub addr: SocketAddr,
}

#[derive(Debug, Default)]
struct Job {
    output: Vec<u8>,
    status: Option<i32>,
}

#[derive(Debug, Default)]
struct State {
    ready: bool,
    closed: bool,
    jobs: HashMap<u32, Job>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` gives something.
    fn wait<T>(&self, limit: Duration, mut done: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let until = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            if let Some(t) = done(&mut state) {
                return Ok(t);
            }
            if state.closed {
                bail!("the guest is gone");
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("time is up after {limit:?}");
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take(&self, message: Message) {
        let mut state = self.lock();
        match message {
            Message::Ready => state.ready = true,
            Message::Output { id, bytes } => state.jobs.entry(id).or_default().output.extend(bytes),
            Message::Exit { id, status } => state.jobs.entry(id).or_default().status = Some(status),
        }
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

/// A running guest. Dropping it ends QEMU, by its pid.
#[derive(Debug)]
pub struct Guest {
    qemu: Child,
    control: Mutex<UnixStream>,
    shared: Arc<Shared>,
    scratch: Scratch,
    net: Net,
    host_ports: [u16; PORTS],
    next_job: AtomicU32,
    next_port: AtomicUsize,
}

impl Guest {
    /// Boots a guest and waits until it takes commands.
    ///
    /// # Errors
    /// If it is not built, QEMU does not start, or the guest is not up in time; with the end of its console.
    pub fn boot(options: &GuestOptions) -> Result<Self> {
        let mut tries = 3;
        loop {
            tries -= 1;
            match Self::try_boot(options) {
                // Somebody took one of the ports between our look and QEMU's.
                Err(e) if tries > 0 && format!("{e:#}").contains("host forwarding rule") => {}
                other => return other,
            }
        }
    }

    fn try_boot(options: &GuestOptions) -> Result<Self> {
        let scratch = Scratch::new()?;
        let socket = scratch.file("control");
        let listener = UnixListener::bind(&socket)?;
        let host_ports = free_ports()?;
        let mut run = Command::new(need::siw_guest().join("run"));
        run.arg("--control").arg(&socket).arg("--console").arg(scratch.file("console"));
        match options.net {
            Net::User => {
                for (host, guest) in host_ports.iter().zip(FIRST_PORT..) {
                    run.arg("--fwd").arg(format!("{host}:{guest}"));
                }
            }
            Net::Tap => {
                run.args(["--net", "tap", "--no-offload"]);
            }
        }
        if options.siw == Siw::Stock {
            run.arg("--stock");
        }
        for param in &options.params {
            run.args(["--param", param]);
        }
        if let Some(file) = &options.capture {
            run.arg("--capture").arg(file);
        }
        let errors = fs::File::create(scratch.file("errors"))?;
        let mut qemu = run
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .context("start siw-guest/run")?;
        let control = match accept(&listener, &mut qemu) {
            Ok(stream) => stream,
            Err(e) => {
                end(&mut qemu);
                let said = fs::read_to_string(scratch.file("errors")).unwrap_or_default();
                return Err(e.context(said.trim().to_owned()));
            }
        };
        let shared = Arc::new(Shared::default());
        let reader = (control.try_clone()?, Arc::clone(&shared));
        thread::spawn(move || read_all(reader.0, &reader.1));
        let guest = Self {
            qemu,
            control: Mutex::new(control),
            shared,
            scratch,
            net: options.net,
            host_ports,
            next_job: AtomicU32::new(1),
            next_port: AtomicUsize::new(0),
        };
        guest.send(control::write_hello)?;
        guest
            .shared
            .wait(BOOT_LIMIT, |s| s.ready.then_some(()))
            .with_context(|| format!("boot; the console's end:\n{}", guest.console_end()))?;
        Ok(guest)
    }

    fn send(&self, write: impl FnOnce(&mut UnixStream) -> io::Result<()>) -> Result<()> {
        write(&mut self.control.lock().unwrap_or_else(PoisonError::into_inner)).context("the guest is gone")
    }

    /// Runs a shell command to its end. The functions of `guest/lib.sh` are there.
    ///
    /// # Errors
    /// If the guest is gone or the command is not done within `limit` (it is killed then).
    pub fn run(&self, command: &str, limit: Duration) -> Result<Output> {
        let id = self.spawn(command)?;
        self.wait(id, limit).with_context(|| format!("in the guest: {command}"))
    }

    /// Starts a shell command; end it with [`Self::wait`] or [`Self::kill`] and `wait`.
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn spawn(&self, command: &str) -> Result<JobId> {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        self.shared.lock().jobs.insert(id, Job::default());
        self.send(|w| control::write_run(w, id, command))?;
        Ok(JobId(id))
    }

    /// Signals a command and its children (9: SIGKILL, 15: SIGTERM). No error if it has ended already.
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn kill(&self, id: JobId, signal: i32) -> Result<()> {
        self.send(|w| control::write_kill(w, id.0, signal))
    }

    /// Waits for a command's end.
    ///
    /// # Errors
    /// If the guest is gone or `limit` passes; the command is killed then, and the message has its output.
    pub fn wait(&self, id: JobId, limit: Duration) -> Result<Output> {
        let ended = self.shared.wait(limit, |s| s.jobs.get(&id.0).and_then(|j| j.status));
        let job = self.shared.lock().jobs.remove(&id.0).ok_or_else(|| anyhow!("no such job"))?;
        let text = String::from_utf8_lossy(&job.output).into_owned();
        match ended {
            Ok(status) => Ok(Output { status, text }),
            Err(e) => {
                let _ = self.kill(id, 9);
                Err(e.context(format!("it printed:\n{}", text.trim_end())))
            }
        }
    }

    /// Waits until a command has printed `text`.
    ///
    /// # Errors
    /// If the command ends, the guest is gone or `limit` passes before that.
    pub fn wait_for(&self, id: JobId, text: &str, limit: Duration) -> Result<()> {
        let found = self.shared.wait(limit, |s| {
            let job = s.jobs.get(&id.0)?;
            if String::from_utf8_lossy(&job.output).contains(text) {
                return Some(true);
            }
            job.status.map(|_| false)
        });
        match found {
            Ok(true) => Ok(()),
            Ok(false) => bail!("it ended without {text:?}; it printed:\n{}", self.text(id)),
            Err(e) => Err(e.context(format!("waiting for {text:?}; it printed:\n{}", self.text(id)))),
        }
    }

    /// What a command has printed so far.
    pub fn text(&self, id: JobId) -> String {
        self.shared
            .lock()
            .jobs
            .get(&id.0)
            .map(|j| String::from_utf8_lossy(&j.output).into_owned())
            .unwrap_or_default()
    }

    /// Starts a server and returns once it listens on `port`.
    ///
    /// # Errors
    /// If it ends or does not listen within `limit`.
    pub fn serve(&self, port: GuestPort, command: &str, limit: Duration) -> Result<JobId> {
        let id = self.spawn(&format!(
            "serve {} {command} || {{ wait $SERVER; exit $?; }}; echo SERVING; wait $SERVER",
            port.port
        ))?;
        self.wait_for(id, "SERVING\n", limit).with_context(|| format!("in the guest: {command}"))?;
        Ok(id)
    }

    /// The next of the guest's ports that the host can reach. They come round again after some dozens.
    pub fn port(&self) -> GuestPort {
        let n = self.next_port.fetch_add(1, Ordering::Relaxed) % PORTS;
        let port = (FIRST_PORT..).nth(n).unwrap_or(FIRST_PORT);
        let addr = match self.net {
            Net::User => (Ipv4Addr::LOCALHOST, self.host_ports[n]).into(),
            Net::Tap => (Ipv4Addr::new(10, 77, 0, 2), port).into(),
        };
        GuestPort { port, addr }
    }

    /// The guest's own address, for two programs within it (siw does not work over 127.0.0.1).
    pub fn own_ip(&self) -> Ipv4Addr {
        if self.net == Net::User { Ipv4Addr::new(10, 0, 2, 15) } else { Ipv4Addr::new(10, 77, 0, 2) }
    }

    /// The host's address as the guest sees it: what listens on [`Self::listen_ip`] there.
    pub fn host_ip(&self) -> Ipv4Addr {
        if self.net == Net::User { Ipv4Addr::new(10, 0, 2, 2) } else { Ipv4Addr::new(10, 77, 0, 1) }
    }

    /// Where a program on the host listens so that the guest reaches it.
    pub fn listen_ip(&self) -> Ipv4Addr {
        if self.net == Net::User { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(10, 77, 0, 1) }
    }

    /// Sets siw's parameters, `name=value`; those not named get their defaults.
    ///
    /// # Errors
    /// In a guest with the stock siw, which has none.
    pub fn set_siw(&self, params: &[&str]) -> Result<()> {
        self.run(&format!("siw_set {}", params.join(" ")), Duration::from_secs(20))?.success()?;
        Ok(())
    }

    /// The lines in which the guest's kernel complained.
    pub fn complaints(&self) -> Vec<String> {
        let signs = ["BUG:", "kernel BUG at", "Oops", "WARNING: CPU", "Kernel panic", "general protection"];
        let console = self.console();
        console.lines().filter(|l| signs.iter().any(|s| l.contains(s))).map(str::to_owned).collect()
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.scratch.file("console")).unwrap_or_default()).into_owned()
    }

    fn console_end(&self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        end(&mut self.qemu);
    }
}

fn end(qemu: &mut Child) {
    // Both fail only if it has ended already.
    let _ = qemu.kill();
    let _ = qemu.wait();
}

/// Waits for QEMU's connection to the control socket.
fn accept(listener: &UnixListener, qemu: &mut Child) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let until = Instant::now() + BOOT_LIMIT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
        if let Some(status) = qemu.try_wait()? {
            bail!("QEMU ended early: {status}");
        }
        if Instant::now() >= until {
            bail!("QEMU does not connect to the control socket");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn read_all(control: UnixStream, shared: &Shared) {
    let mut reader = BufReader::new(control);
    while let Ok(Some(message)) = control::read_message(&mut reader) {
        shared.take(message);
    }
    shared.close();
}
