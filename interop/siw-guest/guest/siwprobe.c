// siwprobe: a small rdma_cm verbs program for testing an iWARP peer.
// Server:  siwprobe -s [-a ADDR] [-p PORT] [-n CONNS] [-z SIZE] [-q NRECV] [-r RSIZE] [-R] [-t SECS]
//   Registers SIZE bytes (default 1 MiB) filled with pattern(seed 1), accepts, and tells the client
//   where it is in the private data of the MPA Reply: "SIWP" rkey:u32 vaddr:u64 size:u32 (big endian).
//   A received message "V off len seed" checks that part of the buffer against pattern(seed) and answers
//   "OK" or "BAD off"; "F off len seed" fills it and answers "OK"; "Q" disconnects; others are echoed.
//   -R rejects every connection with private data "no thanks".  -q 0 posts no receive buffers.
// Client:  siwprobe -c ADDR [-p PORT] [-d PRIVATE_DATA] [-i IRD] [-o ORD] [-t SECS] OP...
//   OPs:  send:LEN  sendinv:LEN  write:LEN  read:LEN  zwrite (0 bytes)  zread (0 bytes)
//         badwrite badread (rkey of nobody)  pastwrite pastread (past the end of the buffer)
//         fetchadd cmpswap sendimm writeimm  sleep:MS  quit (ask the server to disconnect)
//   pattern(seed): byte i of the buffer = seed + 7*i + (i>>8), mod 256, i = offset in the buffer.
// Exit status: 0 all went as asked; 1 a data check or an operation failed (the WC status is printed).
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static size_t size = 1 << 20;
static int nrecv = 16, rsize = 4096, limit = 20, ird = 4, ord = 4;
static struct ibv_mr *mr, *rmr, *smr;
static uint8_t *buf, *rbuf, *sbuf;
#define SMAX 65536

static void say(const char *f, ...) {
	va_list a; va_start(a, f); vprintf(f, a); va_end(a); putchar('\n'); fflush(stdout);
}
static void die(const char *what) { say("siwprobe: %s: %s", what, strerror(errno)); exit(1); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static uint8_t pat(size_t i, unsigned seed) { return seed + 7 * i + (i >> 8); }
static void fill(uint8_t *p, size_t off, size_t n, unsigned seed) { for (size_t i = 0; i < n; i++) p[off + i] = pat(off + i, seed); }
static long check(uint8_t *p, size_t off, size_t n, unsigned seed) {
	for (size_t i = 0; i < n; i++) if (p[off + i] != pat(off + i, seed)) return off + i;
	return -1;
}

static void setup(struct rdma_cm_id *id) {
	if (!buf) {
		buf = aligned_alloc(4096, size); rbuf = aligned_alloc(4096, ((size_t)(nrecv + 1) * rsize + 4096) & ~4095ul); sbuf = aligned_alloc(4096, SMAX);
	}
	int acc = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	if (!(mr = ibv_reg_mr(id->pd, buf, size, acc))) die("ibv_reg_mr");
	if (!(rmr = ibv_reg_mr(id->pd, rbuf, (size_t)(nrecv + 1) * rsize, IBV_ACCESS_LOCAL_WRITE))) die("ibv_reg_mr recv");
	if (!(smr = ibv_reg_mr(id->pd, sbuf, SMAX, IBV_ACCESS_LOCAL_WRITE))) die("ibv_reg_mr send");
	for (int i = 0; i < nrecv; i++)
		if (rdma_post_recv(id, (void *)(uintptr_t)i, rbuf + (size_t)i * rsize, rsize, rmr)) die("post_recv");
	fcntl(id->verbs->async_fd, F_SETFL, O_NONBLOCK);
}

static int disconnected;
// Print what has come on the side channels.
static void events(struct rdma_cm_id *id) {
	struct rdma_cm_event *e;
	struct ibv_async_event ae;
	while (!rdma_get_cm_event(id->channel, &e)) {
		say("  cm event %s status %d", rdma_event_str(e->event), e->status);
		if (e->event == RDMA_CM_EVENT_DISCONNECTED) disconnected = 1;
		rdma_ack_cm_event(e);
	}
	while (!ibv_get_async_event(id->verbs, &ae)) {
		say("  async event %s", ibv_event_type_str(ae.event_type));
		ibv_ack_async_event(&ae);
	}
}
static int poll1(struct ibv_cq *cq, struct ibv_wc *wc) {
	int n = ibv_poll_cq(cq, 1, wc);
	if (n < 0) die("poll_cq");
	return n;
}
static const char *opname(int op) {
	switch (op) {
	case IBV_WC_SEND: return "SEND"; case IBV_WC_RDMA_WRITE: return "WRITE"; case IBV_WC_RDMA_READ: return "READ";
	case IBV_WC_RECV: return "RECV"; case IBV_WC_COMP_SWAP: return "COMP_SWAP"; case IBV_WC_FETCH_ADD: return "FETCH_ADD";
	} return "?";
}
static int sendmsg_(struct rdma_cm_id *id, const void *p, size_t n) {
	memcpy(sbuf, p, n);
	if (rdma_post_send(id, NULL, sbuf, n, smr, IBV_SEND_SIGNALED)) { say("  post_send: %s", strerror(errno)); return -1; }
	struct ibv_wc wc;
	for (double t = now(); now() - t < limit; ) {
		if (poll1(id->send_cq, &wc)) { if (wc.status) say("  send wc: %s", ibv_wc_status_str(wc.status)); return wc.status ? -1 : 0; }
		events(id); if (disconnected) return -1;
	}
	say("  send: no completion"); return -1;
}

static int serve(struct rdma_cm_id *id) {
	struct ibv_wc wc;
	int rc = 0, shown = 0;
	disconnected = 0;
	fcntl(id->channel->fd, F_SETFL, O_NONBLOCK);
	for (double t = now(); now() - t < limit && !disconnected; ) {
		events(id);
		if (poll1(id->send_cq, &wc)) say("  send wc: %s %s", opname(wc.opcode), ibv_wc_status_str(wc.status));
		if (!poll1(id->recv_cq, &wc)) { usleep(200); continue; }
		t = now();
		if (wc.status) { if (wc.status != IBV_WC_WR_FLUSH_ERR) { say("  recv wc: %s", ibv_wc_status_str(wc.status)); rc = 1; } continue; }
		uint8_t *m = rbuf + wc.wr_id * rsize;
		char txt[64] = "", ans[64]; size_t off, len; unsigned seed;
		memcpy(txt, m, wc.byte_len < 63 ? wc.byte_len : 63);
		if (shown++ < 12) say("  recv %u bytes%s%s", wc.byte_len, wc.wc_flags & IBV_WC_WITH_INV ? " with invalidate" : "", wc.wc_flags & IBV_WC_WITH_IMM ? " with imm" : "");
		if (sscanf(txt, "V %zu %zu %u", &off, &len, &seed) == 3 && off + len <= size) {
			long bad = check(buf, off, len, seed);
			if (bad < 0) strcpy(ans, "OK"); else { sprintf(ans, "BAD %ld", bad); rc = 1; }
			say("  verify off=%zu len=%zu seed=%u: %s", off, len, seed, ans);
			sendmsg_(id, ans, strlen(ans));
		} else if (sscanf(txt, "F %zu %zu %u", &off, &len, &seed) == 3 && off + len <= size) {
			fill(buf, off, len, seed); sendmsg_(id, "OK", 2);
		} else if (wc.byte_len == 1 && *m == 'Q') {
			say("  asked to disconnect"); rdma_disconnect(id); disconnected = 1; // (it may take the event itself)
		} else sendmsg_(id, m, wc.byte_len);
		if (rdma_post_recv(id, (void *)(uintptr_t)wc.wr_id, m, rsize, rmr)) say("  post_recv: %s", strerror(errno));
	}
	if (!disconnected) say("  idle for %d s: giving up on this connection", limit);
	return rc;
}

static int reap(struct rdma_cm_id *id, const char *what) {
	struct ibv_wc wc;
	for (double t = now(); now() - t < limit; ) {
		if (poll1(id->send_cq, &wc)) {
			say("%s: wc %s%s", what, ibv_wc_status_str(wc.status), disconnected ? " (after disconnect)" : "");
			return wc.status ? 1 : 0;
		}
		events(id);
	}
	say("%s: no completion in %d s", what, limit);
	return 1;
}
static int answer(struct rdma_cm_id *id, const char *what, const void *want, size_t n) {
	struct ibv_wc wc;
	for (double t = now(); now() - t < limit; ) {
		if (poll1(id->recv_cq, &wc)) {
			if (wc.status) { say("%s: recv wc %s", what, ibv_wc_status_str(wc.status)); return 1; }
			uint8_t *m = rbuf + wc.wr_id * rsize;
			int ok = wc.byte_len == n && !memcmp(m, want, n);
			say("%s: answer of %u bytes %s%s", what, wc.byte_len, ok ? "as expected" : "WRONG", wc.wc_flags & IBV_WC_WITH_INV ? " (with invalidate)" : "");
			rdma_post_recv(id, (void *)(uintptr_t)wc.wr_id, m, rsize, rmr);
			return !ok;
		}
		events(id);
		if (disconnected) break;
	}
	say("%s: no answer", what);
	return 1;
}

static int client_op(struct rdma_cm_id *id, const char *op, uint32_t rkey, uint64_t va, uint32_t rsz) {
	static unsigned seed = 10;
	const char *c = strchr(op, ':');
	size_t len = c ? strtoul(c + 1, 0, 0) : 64;
	char n[32]; snprintf(n, sizeof n, "%.*s", (int)(c ? c - op : (int)strlen(op)), op);
	struct ibv_sge sge = { (uintptr_t)buf, len, mr->lkey };
	struct ibv_send_wr w = { .sg_list = &sge, .num_sge = len ? 1 : 0, .send_flags = IBV_SEND_SIGNALED }, *bad;
	w.wr.rdma.remote_addr = va; w.wr.rdma.rkey = rkey;
	if (!strcmp(n, "sleep")) { usleep(len * 1000); events(id); return 0; }
	if (!strcmp(n, "quit")) {
		if (sendmsg_(id, "Q", 1)) return 1;
		for (double t = now(); now() - t < limit && !disconnected; ) events(id);
		say("quit: %s", disconnected ? "disconnected by the peer" : "still connected");
		return !disconnected;
	}
	if (!strcmp(n, "send") || !strcmp(n, "sendinv")) {
		w.opcode = IBV_WR_SEND; sge.addr = (uintptr_t)sbuf; sge.lkey = smr->lkey;
		fill(sbuf, 0, len, seed); if (len) sbuf[0] = '*';
		if (n[4]) { w.opcode = IBV_WR_SEND_WITH_INV; w.invalidate_rkey = rkey; }
	} else if (!strcmp(n, "write") || !strcmp(n, "zwrite") || !strcmp(n, "badwrite") || !strcmp(n, "pastwrite") || !strcmp(n, "writeimm")) {
		w.opcode = !strcmp(n, "writeimm") ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
		if (len <= size) fill(buf, 0, len, ++seed);
	} else if (!strcmp(n, "read") || !strcmp(n, "zread") || !strcmp(n, "badread") || !strcmp(n, "pastread")) {
		w.opcode = IBV_WR_RDMA_READ; memset(buf, 0xee, size < len ? size : len);
	} else if (!strcmp(n, "sendimm")) w.opcode = IBV_WR_SEND_WITH_IMM;
	else if (!strcmp(n, "fetchadd") || !strcmp(n, "cmpswap")) {
		w.opcode = n[0] == 'f' ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		sge.length = 8; w.wr.atomic.remote_addr = va; w.wr.atomic.rkey = rkey; w.wr.atomic.compare_add = 1; w.wr.atomic.swap = 2;
	} else { say("unknown operation %s", op); return 1; }
	if (n[0] == 'z') { sge.length = 0; len = 0; if (w.opcode != IBV_WR_RDMA_READ) w.num_sge = 0; }
	if (!strncmp(n, "bad", 3)) w.wr.rdma.rkey = rkey ^ 0x5a5a5a00;
	if (!strncmp(n, "past", 4)) w.wr.rdma.remote_addr = va + rsz - len / 2;
	if (!strcmp(n, "read")) { // have the server refresh what is read
		char q[64]; sprintf(q, "F 0 %zu %u", len, ++seed);
		if (sendmsg_(id, q, strlen(q)) || answer(id, "fill", "OK", 2)) return 1;
	}
	int rc = ibv_post_send(id->qp, &w, &bad);
	if (rc) { say("%s: ibv_post_send: %s", op, strerror(rc)); return 1; }
	if (reap(id, op)) return 1;
	if (!strcmp(n, "send") || !strcmp(n, "sendinv")) {
		if (len <= (size_t)rsize) return answer(id, op, sbuf, len);
	} else if (!strcmp(n, "write")) {
		char q[64]; sprintf(q, "V 0 %zu %u", len, seed);
		return sendmsg_(id, q, strlen(q)) || answer(id, op, "OK", 2);
	} else if (!strcmp(n, "read")) {
		long b = check(buf, 0, len, seed);
		say("read:%zu: data %s", len, b < 0 ? "correct" : "WRONG");
		return b >= 0;
	}
	return 0;
}

int main(int argc, char **argv) {
	const char *addr = 0, *port = "7471", *pd = 0; int server = 0, client = 0, conns = 1, reject = 0, c;
	while ((c = getopt(argc, argv, "sc:a:p:n:z:q:r:Rt:d:i:o:")) != -1) switch (c) {
		case 's': server = 1; break; case 'c': client = 1; addr = optarg; break; case 'a': addr = optarg; break;
		case 'p': port = optarg; break; case 'n': conns = atoi(optarg); break; case 'z': size = strtoul(optarg, 0, 0); break;
		case 'q': nrecv = atoi(optarg); break; case 'r': rsize = atoi(optarg); break; case 'R': reject = 1; break;
		case 't': limit = atoi(optarg); break; case 'd': pd = optarg; break; case 'i': ird = atoi(optarg); break; case 'o': ord = atoi(optarg); break;
		default: return 2;
	}
	if (server == client) { say("siwprobe: give -s or -c ADDR (see the head of siwprobe.c)"); return 2; }
	size = (size + 4095) & ~4095ul;
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = server ? RAI_PASSIVE : 0 }, *ai;
	struct ibv_qp_init_attr qa = { .cap = { .max_send_wr = 64, .max_recv_wr = nrecv + 16, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC };
	if (rdma_getaddrinfo(addr, port, &hints, &ai)) die("rdma_getaddrinfo");
	struct rdma_cm_id *id, *lid;
	struct rdma_conn_param cp = { .initiator_depth = ord, .responder_resources = ird };
	int rc = 0;
	if (server) {
		if (rdma_create_ep(&lid, ai, NULL, &qa)) die("rdma_create_ep");
		if (rdma_listen(lid, 8)) die("rdma_listen");
		say("siwprobe: listening on port %s", port);
		for (int k = 0; k < conns; k++) {
			struct pollfd pf = { .fd = lid->channel->fd, .events = POLLIN };
			if (poll(&pf, 1, limit * 1000) == 0) { say("siwprobe: no connection in %d s", limit); return 1; }
			if (rdma_get_request(lid, &id)) { say("rdma_get_request: %s", strerror(errno)); k--; continue; }
			struct rdma_conn_param *q = &id->event->param.conn;
			say("connection %d from %s: private data %d bytes \"%.*s\" initiator_depth %d responder_resources %d", k,
			    inet_ntoa(((struct sockaddr_in *)rdma_get_peer_addr(id))->sin_addr), q->private_data_len,
			    q->private_data ? q->private_data_len : 0, q->private_data ? (char *)q->private_data : "", q->initiator_depth, q->responder_resources);
			if (reject) { rdma_reject(id, "no thanks", 9); say("  rejected"); rdma_destroy_ep(id); continue; }
			setup(id); fill(buf, 0, size, 1);
			struct __attribute__((packed)) { char m[4]; uint32_t k; uint64_t a; uint32_t z; } d = { "SIWP", htonl(mr->rkey), htobe64((uintptr_t)buf), htonl(size) };
			cp.private_data = &d; cp.private_data_len = sizeof d;
			if (rdma_accept(id, &cp)) { say("  rdma_accept: %s", strerror(errno)); rdma_destroy_ep(id); rc = 1; continue; }
			rc |= serve(id);
			say("connection %d ended", k);
			struct ibv_qp_attr at; struct ibv_qp_init_attr ia;
			if (!ibv_query_qp(id->qp, &at, IBV_QP_STATE, &ia)) say("  qp state %d", at.qp_state);
			rdma_disconnect(id);
			ibv_dereg_mr(mr); ibv_dereg_mr(rmr); ibv_dereg_mr(smr);
			rdma_destroy_ep(id);
		}
		rdma_destroy_ep(lid);
		return rc;
	}
	if (rdma_create_ep(&id, ai, NULL, &qa)) die("rdma_create_ep");
	setup(id);
	if (pd) { cp.private_data = pd; cp.private_data_len = strlen(pd); }
	if (rdma_connect(id, &cp)) {
		say("rdma_connect: %s", strerror(errno));
		if (id->event) say("  cm event %s status %d private data %d bytes \"%.*s\"", rdma_event_str(id->event->event), id->event->status,
			id->event->param.conn.private_data_len, id->event->param.conn.private_data ? id->event->param.conn.private_data_len : 0, id->event->param.conn.private_data ? (char *)id->event->param.conn.private_data : "");
		return 1;
	}
	const uint8_t *p = id->event->param.conn.private_data; int pl = id->event->param.conn.private_data_len;
	uint32_t rkey = 0, rsz = 0; uint64_t va = 0;
	if (pl >= 20 && !memcmp(p, "SIWP", 4)) { memcpy(&rkey, p + 4, 4); memcpy(&va, p + 8, 8); memcpy(&rsz, p + 16, 4); rkey = ntohl(rkey); va = be64toh(va); rsz = ntohl(rsz); }
	say("connected: private data %d bytes, rkey 0x%x vaddr 0x%llx size %u; initiator_depth %d responder_resources %d", pl, rkey, (unsigned long long)va, rsz,
	    id->event->param.conn.initiator_depth, id->event->param.conn.responder_resources);
	fcntl(id->channel->fd, F_SETFL, O_NONBLOCK);
	for (int i = optind; i < argc; i++) {
		if (client_op(id, argv[i], rkey, va, rsz)) rc = 1;
		events(id);
	}
	if (rc) { usleep(300000); events(id); }
	rdma_disconnect(id);
	usleep(50000); events(id);
	say("siwprobe: done, %s", rc ? "with failures" : "all as expected");
	return rc;
}
