// siwprobe: an rdma_cm verbs program for testing an iWARP peer; `interop peer` is the same on the host's side.
//
// Server: siwprobe -s [-a ADDR] [-p PORT] [-n CONNECTIONS] [-z SIZE] [-q RECEIVES] [-r RECEIVE_SIZE] [-R] [-t SECONDS]
//   Registers SIZE bytes (1 MiB) filled with pattern 1, accepts, and says in the Reply's private data where they are:
//   "SIWP" rkey:u32 address:u64 size:u32 (big endian). Of the messages that it receives
//     "V OFFSET LENGTH SEED"  checks that part against the pattern of that seed and answers "OK" or "BAD INDEX";
//     "F OFFSET LENGTH SEED"  fills it so and answers "OK";
//     "K"                     asks for a key that may be invalidated: "0xRKEY";
//     "Q"                     makes it disconnect;
//   and others are echoed. -R rejects each connection with private data "no thanks". -q 0 posts no receives.
// Client: siwprobe -c ADDR [-p PORT] [-d PRIVATE_DATA] [-i IRD] [-o ORD] [-q RECEIVES] [-r RECEIVE_SIZE] [-t SECONDS] OP...
//   OP: send:LEN sendinv:LEN write:LEN read:LEN zwrite zread (0 bytes); quit (asks the server to disconnect); sleep:MS
//       badwrite badread (an rkey of nobody)  pastwrite pastread (past the end of the server's buffer)
//       flood:COUNT (Sends of 16 KiB without awaiting answers)  stalewrite (with the key that the last sendinv invalidated)  fetchadd
// Pattern: byte i of the buffer = seed + 7*i + (i >> 8), mod 256.
// Exit status: 0 all went as asked, 1 not so (what happened is printed), 2 usage.
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SEND_SIZE = 65536 };

struct place { // of the server's buffer, in the Reply's private data
	char magic[4];
	uint32_t rkey;
	uint64_t addr;
	uint32_t size;
} __attribute__((packed));

static size_t size = 1 << 20, receive_size = 4096;
static int receives = 16, limit = 20;
static uint8_t *buf, *receive_buf, *send_buf;
static struct ibv_mr *mr, *receive_mr, *send_mr;
static int disconnected;

static void say(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static void die(const char *what)
{
	say("siwprobe: %s: %s", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint8_t pattern(size_t i, unsigned seed)
{
	return seed + 7 * i + (i >> 8);
}

static void fill(uint8_t *p, size_t offset, size_t len, unsigned seed)
{
	for (size_t i = offset; i < offset + len; i++)
		p[i] = pattern(i, seed);
}

// The index of the first wrong byte, or -1.
static long check(const uint8_t *p, size_t offset, size_t len, unsigned seed)
{
	for (size_t i = offset; i < offset + len; i++)
		if (p[i] != pattern(i, seed))
			return i;
	return -1;
}

static void post_receive(struct rdma_cm_id *id, uint64_t n)
{
	if (rdma_post_recv(id, (void *)n, receive_buf + n * receive_size, receive_size, receive_mr))
		say("  post_recv: %s", strerror(errno));
}

static void set_up(struct rdma_cm_id *id)
{
	size_t receive_total = ((receives + 1) * receive_size + 4095) & ~4095ul;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	if (!buf) {
		buf = aligned_alloc(4096, size);
		receive_buf = aligned_alloc(4096, receive_total);
		send_buf = aligned_alloc(4096, SEND_SIZE);
	}
	mr = ibv_reg_mr(id->pd, buf, size, access);
	receive_mr = ibv_reg_mr(id->pd, receive_buf, receive_total, IBV_ACCESS_LOCAL_WRITE);
	send_mr = ibv_reg_mr(id->pd, send_buf, SEND_SIZE, IBV_ACCESS_LOCAL_WRITE);
	if (!mr || !receive_mr || !send_mr)
		die("ibv_reg_mr");
	for (int i = 0; i < receives; i++)
		post_receive(id, i);
	fcntl(id->verbs->async_fd, F_SETFL, O_NONBLOCK);
}

// Prints what has come on the side channels.
static void look_at_events(struct rdma_cm_id *id)
{
	struct rdma_cm_event *e;
	struct ibv_async_event a;

	while (!rdma_get_cm_event(id->channel, &e)) {
		say("  cm event %s status %d", rdma_event_str(e->event), e->status);
		if (e->event == RDMA_CM_EVENT_DISCONNECTED)
			disconnected = 1;
		rdma_ack_cm_event(e);
	}
	while (!ibv_get_async_event(id->verbs, &a)) {
		say("  async event %s", ibv_event_type_str(a.event_type));
		ibv_ack_async_event(&a);
	}
}

static int poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	int n = ibv_poll_cq(cq, 1, wc);
	if (n < 0)
		die("ibv_poll_cq");
	return n;
}

// Waits for a completion of the send queue: its status, or -1 if none came. Prints it, a success only if `what` is given.
static int reap(struct rdma_cm_id *id, const char *what)
{
	struct ibv_wc wc;

	for (double start = now(); now() - start < limit; look_at_events(id))
		if (poll_one(id->send_cq, &wc)) {
			if (what || wc.status)
				say("%s: wc %s%s", what ? what : "  send", ibv_wc_status_str(wc.status),
				    disconnected ? " (after disconnect)" : "");
			return wc.status;
		}
	say("%s: no completion in %d s", what ? what : "  send", limit);
	return -1;
}

static int send_message(struct rdma_cm_id *id, const void *message, size_t len)
{
	memcpy(send_buf, message, len);
	if (rdma_post_send(id, NULL, send_buf, len, send_mr, IBV_SEND_SIGNALED)) {
		say("  post_send: %s", strerror(errno));
		return -1;
	}
	return reap(id, NULL);
}

static int send_text(struct rdma_cm_id *id, const char *text)
{
	return send_message(id, text, strlen(text));
}

// --- server ---------------------------------------------------------------------------------------

// Does what a message asks for. 1 if a check found a wrong byte.
static int obey(struct rdma_cm_id *id, const uint8_t *message, size_t len)
{
	char text[64] = "", answer[64] = "OK";
	size_t offset, n;
	unsigned seed;
	long bad = -1;

	memcpy(text, message, len < sizeof text ? len : sizeof text - 1);
	if (sscanf(text, "V %zu %zu %u", &offset, &n, &seed) == 3 && offset + n <= size) {
		bad = check(buf, offset, n, seed);
		if (bad >= 0)
			snprintf(answer, sizeof answer, "BAD %ld", bad);
		say("  verify offset %zu length %zu seed %u: %s", offset, n, seed, answer);
		send_text(id, answer);
	} else if (sscanf(text, "F %zu %zu %u", &offset, &n, &seed) == 3 && offset + n <= size) {
		fill(buf, offset, n, seed);
		send_text(id, answer);
	} else if (!strcmp(text, "K")) {
		snprintf(answer, sizeof answer, "0x%x", mr->rkey);
		send_text(id, answer);
	} else if (!strcmp(text, "Q")) {
		say("  asked to disconnect");
		rdma_disconnect(id);
		disconnected = 1; // rdma_disconnect may take the event itself
	} else {
		send_message(id, message, len);
	}
	return bad >= 0;
}

static int serve(struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	int failed = 0;

	disconnected = 0;
	fcntl(id->channel->fd, F_SETFL, O_NONBLOCK);
	for (double heard = now(); !disconnected; look_at_events(id)) {
		if (now() - heard > limit) {
			say("  silent for %d s: giving up on this connection", limit);
			return 1;
		}
		if (!poll_one(id->recv_cq, &wc)) {
			usleep(200);
			continue;
		}
		heard = now();
		if (wc.status == IBV_WC_WR_FLUSH_ERR)
			continue;
		if (wc.status) {
			say("  receive wc %s", ibv_wc_status_str(wc.status));
			failed = 1;
			continue;
		}
		say("  receive %u bytes%s", wc.byte_len, wc.wc_flags & IBV_WC_WITH_INV ? " with invalidate" : "");
		failed |= obey(id, receive_buf + wc.wr_id * receive_size, wc.byte_len);
		post_receive(id, wc.wr_id);
	}
	return failed;
}

static void print_request(int n, struct rdma_cm_id *id)
{
	struct rdma_conn_param *p = &id->event->param.conn;
	say("connection %d from %s: private data %d bytes \"%.*s\" initiator_depth %d responder_resources %d", n,
	    inet_ntoa(((struct sockaddr_in *)rdma_get_peer_addr(id))->sin_addr), p->private_data_len, p->private_data_len,
	    p->private_data ? (char *)p->private_data : "", p->initiator_depth, p->responder_resources);
}

static int serve_one(int n, struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	set_up(id);
	fill(buf, 0, size, 1);
	struct place place = { "SIWP", htonl(mr->rkey), htobe64((uintptr_t)buf), htonl(size) };
	param->private_data = &place;
	param->private_data_len = sizeof place;
	if (rdma_accept(id, param)) {
		say("  rdma_accept: %s", strerror(errno));
		return 1;
	}
	int failed = serve(id);
	say("connection %d ended", n);
	rdma_disconnect(id);
	ibv_dereg_mr(mr);
	ibv_dereg_mr(receive_mr);
	ibv_dereg_mr(send_mr);
	return failed;
}

static int server(struct rdma_cm_id *listener, struct rdma_conn_param *param, int connections, int reject)
{
	struct rdma_cm_id *id;
	int failed = 0;

	if (rdma_listen(listener, 8))
		die("rdma_listen");
	say("siwprobe: listening");
	for (int n = 0; n < connections;) {
		struct pollfd p = { listener->channel->fd, POLLIN };
		if (poll(&p, 1, limit * 1000) == 0) {
			say("siwprobe: no connection in %d s", limit);
			return 1;
		}
		if (rdma_get_request(listener, &id)) {
			say("rdma_get_request: %s", strerror(errno));
			continue;
		}
		print_request(n, id);
		if (reject) {
			rdma_reject(id, "no thanks", 9);
			say("  rejected");
		} else {
			failed |= serve_one(n, id, param);
		}
		rdma_destroy_ep(id);
		n++;
	}
	return failed;
}

// --- client ---------------------------------------------------------------------------------------

// Waits for a message. False if none comes.
static int receive(struct rdma_cm_id *id, const char *what, struct ibv_wc *wc)
{
	for (double start = now(); now() - start < limit && !disconnected; look_at_events(id)) {
		if (!poll_one(id->recv_cq, wc))
			continue;
		if (wc->status)
			say("%s: receive wc %s", what, ibv_wc_status_str(wc->status));
		return !wc->status;
	}
	say("%s: no answer", what);
	return 0;
}

// Waits for a message that ought to be these bytes.
static int expect(struct rdma_cm_id *id, const char *what, const void *bytes, size_t len)
{
	struct ibv_wc wc;

	if (!receive(id, what, &wc))
		return 1;
	int right = wc.byte_len == len && !memcmp(receive_buf + wc.wr_id * receive_size, bytes, len);
	say("%s: answer of %u bytes %s", what, wc.byte_len, right ? "as expected" : "WRONG");
	post_receive(id, wc.wr_id);
	return !right;
}

// Asks for a key that may be invalidated. 0 if there is none.
static uint32_t ask_for_key(struct rdma_cm_id *id)
{
	char text[32] = "";
	struct ibv_wc wc;

	if (send_text(id, "K") || !receive(id, "key", &wc))
		return 0;
	memcpy(text, receive_buf + wc.wr_id * receive_size, wc.byte_len < sizeof text ? wc.byte_len : sizeof text - 1);
	post_receive(id, wc.wr_id);
	return strtoul(text, NULL, 0);
}

static int ask(struct rdma_cm_id *id, const char *what, char verb, size_t len, unsigned seed)
{
	char text[64];
	snprintf(text, sizeof text, "%c 0 %zu %u", verb, len, seed);
	return send_text(id, text) || expect(id, what, "OK", 2);
}

static int flood(struct rdma_cm_id *id, size_t count)
{
	enum { LENGTH = 16384 };

	fill(send_buf, 0, LENGTH, 0);
	send_buf[0] = '*'; // no command to the server
	for (; count; count--) {
		if (rdma_post_send(id, NULL, send_buf, LENGTH, send_mr, IBV_SEND_SIGNALED)) {
			say("flood: post_send: %s", strerror(errno));
			return 1;
		}
		if (reap(id, NULL))
			return 1;
	}
	return 0;
}

static int quit(struct rdma_cm_id *id)
{
	if (send_text(id, "Q"))
		return 1;
	for (double start = now(); now() - start < limit && !disconnected;)
		look_at_events(id);
	say("quit: %s", disconnected ? "disconnected by the peer" : "still connected");
	return !disconnected;
}

static int is(const char *op, const char *name)
{
	return !strcmp(op, name);
}

static int is_read(const char *op)
{
	return is(op, "read") || is(op, "zread") || is(op, "badread") || is(op, "pastread");
}

// The work request of an operation; `key` is the one that may be or is invalidated. False if there is no such operation.
static int prepare(const char *op, size_t len, unsigned seed, uint32_t key, const struct place *peer, struct ibv_send_wr *wr)
{
	struct ibv_sge *sge = wr->sg_list;

	*sge = (struct ibv_sge){ (uintptr_t)buf, len, mr->lkey };
	wr->num_sge = len > 0;
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->wr.rdma.remote_addr = strncmp(op, "past", 4) ? peer->addr : peer->addr + peer->size - len / 2;
	wr->wr.rdma.rkey = is(op, "stalewrite") ? key : strncmp(op, "bad", 3) ? peer->rkey : peer->rkey ^ 0x5a5a5a00;
	if (is(op, "send") || is(op, "sendinv")) {
		wr->opcode = is(op, "send") ? IBV_WR_SEND : IBV_WR_SEND_WITH_INV;
		wr->invalidate_rkey = key;
		wr->wr.rdma.rkey = key; // where libsiw looks for it
		*sge = (struct ibv_sge){ (uintptr_t)send_buf, len, send_mr->lkey };
		fill(send_buf, 0, len, seed);
		if (len)
			send_buf[0] = '*'; // no command to the server
	} else if (is(op, "write") || is(op, "zwrite") || is(op, "badwrite") || is(op, "pastwrite") ||
		   is(op, "stalewrite")) {
		wr->opcode = IBV_WR_RDMA_WRITE;
		fill(buf, 0, len, seed);
	} else if (is_read(op)) {
		wr->opcode = IBV_WR_RDMA_READ;
		wr->num_sge = 1;
		memset(buf, 0xee, len);
	} else if (is(op, "fetchadd")) {
		wr->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr->wr.atomic.remote_addr = peer->addr;
		wr->wr.atomic.rkey = peer->rkey;
		sge->length = 8;
	} else {
		return 0;
	}
	return 1;
}

static int operate(struct rdma_cm_id *id, const char *word, const struct place *peer)
{
	static unsigned seed = 10;
	static uint32_t key;
	char op[32] = "";
	size_t len = 64;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge }, *bad;

	sscanf(word, "%31[^:]:%zu", op, &len);
	seed++;
	if (is(op, "quit"))
		return quit(id);
	if (is(op, "flood"))
		return flood(id, len);
	if (is(op, "sleep")) {
		usleep(len * 1000);
		look_at_events(id);
		return 0;
	}
	if (is(op, "zwrite") || is(op, "zread"))
		len = 0;
	if (len > (strncmp(op, "send", 4) ? size : SEND_SIZE)) {
		say("%s: too long", word);
		return 1;
	}
	if (is(op, "read") && ask(id, "fill", 'F', len, seed))
		return 1;
	if (is(op, "sendinv"))
		key = ask_for_key(id);
	if (!prepare(op, len, seed, key, peer, &wr)) {
		say("unknown operation %s", word);
		return 1;
	}
	int error = ibv_post_send(id->qp, &wr, &bad);
	if (error) {
		say("%s: ibv_post_send: %s", word, strerror(error));
		return 1;
	}
	if (reap(id, word))
		return 1;
	if (is(op, "write"))
		return ask(id, word, 'V', len, seed);
	if (is(op, "send") || is(op, "sendinv"))
		return expect(id, word, send_buf, len);
	if (is(op, "read")) {
		long wrong = check(buf, 0, len, seed);
		say("%s: data %s", word, wrong < 0 ? "correct" : "WRONG");
		return wrong >= 0;
	}
	return 0;
}

static int client(struct rdma_cm_id *id, struct rdma_conn_param *param, char **ops)
{
	struct place peer = { "", 0, 0, 0 };
	int failed = 0;

	set_up(id);
	int error = rdma_connect(id, param);
	if (error)
		say("rdma_connect: %s", strerror(errno));
	if (id->event) {
		struct rdma_conn_param *p = &id->event->param.conn;
		int len = p->private_data ? p->private_data_len : 0;
		say("%s status %d private data %d bytes \"%.*s\" initiator_depth %d responder_resources %d",
		    rdma_event_str(id->event->event), id->event->status, len, len, p->private_data ? (char *)p->private_data : "",
		    p->initiator_depth, p->responder_resources);
		if (len >= (int)sizeof peer && !memcmp(p->private_data, "SIWP", 4))
			memcpy(&peer, p->private_data, sizeof peer);
	}
	if (error)
		return 1;
	peer = (struct place){ "SIWP", ntohl(peer.rkey), be64toh(peer.addr), ntohl(peer.size) };
	fcntl(id->channel->fd, F_SETFL, O_NONBLOCK);
	for (; *ops && !failed; ops++) {
		failed |= operate(id, *ops, &peer);
		look_at_events(id);
	}
	if (failed) { // give the reason time to arrive
		usleep(300000);
		look_at_events(id);
	}
	rdma_disconnect(id);
	say("siwprobe: done, %s", failed ? "with failures" : "all as expected");
	return failed;
}

int main(int argc, char **argv)
{
	const char *addr = NULL, *port = "7471";
	int is_server = 0, is_client = 0, connections = 1, reject = 0, c;
	struct rdma_conn_param param = { .initiator_depth = 4, .responder_resources = 4 };

	while ((c = getopt(argc, argv, "sc:a:p:n:z:q:r:Rt:d:i:o:")) != -1)
		switch (c) {
		case 's': is_server = 1; break;
		case 'c': is_client = 1; addr = optarg; break;
		case 'a': addr = optarg; break;
		case 'p': port = optarg; break;
		case 'n': connections = atoi(optarg); break;
		case 'z': size = (strtoul(optarg, NULL, 0) + 4095) & ~4095ul; break;
		case 'q': receives = atoi(optarg); break;
		case 'r': receive_size = strtoul(optarg, NULL, 0); break;
		case 'R': reject = 1; break;
		case 't': limit = atoi(optarg); break;
		case 'd': param.private_data = optarg; param.private_data_len = strlen(optarg); break;
		case 'i': param.responder_resources = atoi(optarg); break;
		case 'o': param.initiator_depth = atoi(optarg); break;
		default: return 2;
		}
	if (is_server == is_client) {
		say("siwprobe: give -s or -c ADDR (usage: the head of siwprobe.c)");
		return 2;
	}
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = is_server ? RAI_PASSIVE : 0 }, *ai;
	struct ibv_qp_init_attr qp = {
		.cap = { .max_send_wr = 64, .max_recv_wr = receives + 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_cm_id *id;
	if (rdma_getaddrinfo(addr, port, &hints, &ai))
		die("rdma_getaddrinfo");
	if (rdma_create_ep(&id, ai, NULL, &qp))
		die("rdma_create_ep");
	int failed = is_server ? server(id, &param, connections, reject) : client(id, &param, argv + optind);
	rdma_destroy_ep(id);
	return failed;
}
