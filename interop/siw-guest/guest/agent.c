// agent: PID 1 of a guest that serves a host program. It runs commands and reports on them over a virtio-serial port.
// Usage: agent PORT-DEVICE
// From the host, a line each (a command's text follows its line):
//   hello                   answered with 'ready'
//   run ID LENGTH\n<text>   start it with sh, in a session of its own
//   kill ID SIGNAL          to its whole process group
// To the host:
//   ready
//   out ID LENGTH\n<bytes>  what it printed (stdout and stderr)
//   exit ID STATUS          as in a shell: 128 + signal if killed. What it left behind in its group is killed first.
// When the host hangs up, the guest powers off.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_JOBS 64
#define MAX_COMMAND (1 << 16)

struct job {
	unsigned id;
	pid_t pid; // 0: this place is free
	int out;
};

static struct job jobs[MAX_JOBS];
static int port;
static char in[MAX_COMMAND + 64];
static size_t in_len;

static void power_off(const char *why)
{
	fprintf(stderr, "agent: %s\n", why);
	sync();
	reboot(RB_POWER_OFF);
	_exit(1);
}

static void put(const void *bytes, size_t len)
{
	for (const char *p = bytes; len;) {
		ssize_t n = write(port, p, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			power_off("the host's end is gone");
		p += n, len -= n;
	}
}

static void report(const char *what, unsigned id, long n)
{
	char line[64];
	put(line, snprintf(line, sizeof line, "%s %u %ld\n", what, id, n));
}

// Passes on what a job has printed. 0 at the end of its output.
static int drain(struct job *j)
{
	char buf[8192];
	ssize_t n = read(j->out, buf, sizeof buf);
	if (n > 0) {
		report("out", j->id, n);
		put(buf, n);
	}
	return n > 0;
}

static void start(unsigned id, const char *text, size_t len)
{
	static char script[MAX_COMMAND + 64];
	struct job *j = jobs;
	int fds[2];

	while (j < jobs + MAX_JOBS && j->pid)
		j++;
	if (j == jobs + MAX_JOBS || pipe2(fds, O_CLOEXEC)) {
		report("exit", id, 126);
		return;
	}
	snprintf(script, sizeof script, ". /lib/siw/lib.sh\n%.*s", (int)len, text);
	pid_t pid = fork();
	if (pid == 0) {
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		setsid();
		dup2(open("/dev/null", O_RDONLY), 0);
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		execl("/bin/sh", "sh", "-c", script, NULL);
		_exit(127);
	}
	close(fds[1]);
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	*j = (struct job){ id, pid, fds[0] };
	if (pid < 0) {
		j->pid = 0;
		close(fds[0]);
		report("exit", id, 126);
	}
}

static void reap(void)
{
	int status;
	for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
		for (struct job *j = jobs; j < jobs + MAX_JOBS; j++)
			if (j->pid == pid) {
				kill(-pid, SIGKILL);
				while (drain(j))
					;
				close(j->out);
				j->pid = 0;
				report("exit", j->id, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
			}
}

// Obeys the whole commands in `in`.
static void obey(void)
{
	char *nl;
	while ((nl = memchr(in, '\n', in_len))) {
		size_t used = nl + 1 - in;
		unsigned id, n;
		*nl = 0;
		if (sscanf(in, "run %u %u", &id, &n) == 2) {
			if (n > MAX_COMMAND)
				power_off("command too long");
			if (in_len - used < n) {
				*nl = '\n';
				return;
			}
			start(id, in + used, n);
			used += n;
		} else if (sscanf(in, "kill %u %u", &id, &n) == 2) {
			for (struct job *j = jobs; j < jobs + MAX_JOBS; j++)
				if (j->pid && j->id == id)
					kill(-j->pid, n);
		} else if (!strcmp(in, "hello")) {
			put("ready\n", 6);
		} else {
			power_off("a line from the host is not understood");
		}
		memmove(in, in + used, in_len -= used);
	}
}

int main(int argc, char **argv)
{
	sigset_t chld;
	int greeted = 0;

	if (argc != 2 || (port = open(argv[1], O_RDWR | O_CLOEXEC)) < 0)
		power_off("no control port");
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	int child = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	for (;;) {
		struct pollfd p[2 + MAX_JOBS] = { { port, POLLIN }, { child, POLLIN } };
		for (int i = 0; i < MAX_JOBS; i++)
			p[2 + i] = (struct pollfd){ jobs[i].pid && jobs[i].out >= 0 ? jobs[i].out : -1, POLLIN };
		poll(p, 2 + MAX_JOBS, -1);
		for (int i = 0; i < MAX_JOBS; i++)
			if (p[2 + i].revents && !drain(&jobs[i]) && (p[2 + i].revents & POLLHUP)) {
				close(jobs[i].out); // its output has ended, it may run on
				jobs[i].out = -1;
			}
		if (p[1].revents) {
			struct signalfd_siginfo s;
			while (read(child, &s, sizeof s) > 0)
				;
			reap();
		}
		if (p[0].revents) {
			ssize_t n = read(port, in + in_len, sizeof in - in_len);
			if (n > 0) {
				greeted = 1;
				in_len += n;
				obey();
			} else if (greeted) {
				power_off("the host hung up");
			} else {
				usleep(20000); // the host's end is not open yet
			}
		}
	}
}
