/* The load of bench/stream.py: desktops and their viewers around a proxy, as WebSocket peers in one process.
 *
 *   wsload LISTEN CONNECT STREAMS STALLED BYTES RATE WARM SECONDS TLS HEAD SAMPLES
 *
 * One thread listens on 127.0.0.1:LISTEN and sends every peer frames of BYTES, RATE times a second, spread evenly over the streams. The
 * other opens STREAMS connections to 127.0.0.1:CONNECT (TLS 1: by TLS, unverified), sends the request head of the file HEAD on each, and
 * RATE masked frames of input a second; STALLED further connections never read after their handshake. Frames carry the clock of their
 * send(), so a latency is from there to the arrival of the last byte. On stdout: "begin" and "end" when the measured SECONDS begin, WARM
 * seconds after the last handshake, and end, then one line of JSON. SAMPLES (or "-"): a file for each frame's arrival and latency.
 * Exit status 1 with a line on stderr when a peer misbehaves. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "wsframes.h"

#define STAMP 8 /* the clock at the start of each payload */
#define INPUT 64 /* payload of a frame of input: a mouse event and its kin */
#define HANDSHAKE_SECONDS 120

struct peer {
  int fd;
  uint32_t number;
  int stalled;
  SSL *ssl;
  struct parser in;
  unsigned char front[14 + INPUT]; /* header and stamp of the frame on its way */
  size_t front_size, body_size, sent; /* sent == front_size + body_size: nothing on its way */
  uint64_t due; /* of the next frame, ns */
};

static struct {
  int listen, connect, streams, stalled, bytes, rate, tls;
  double warm, seconds;
  char head[HEAD_MAX];
  size_t head_size;
} plan;

static atomic_ulong measure_from = UINT64_MAX, measure_to = UINT64_MAX;
static atomic_ulong dropped, sent_frames;
static atomic_int finished;
static volatile sig_atomic_t stopped;
static struct samples frames, inputs;
static uint64_t received_bytes;
static char filler[1 << 20];

static int measuring(uint64_t at) {
  return at >= atomic_load(&measure_from) && at < atomic_load(&measure_to);
}

static void keep(struct samples *list, uint64_t arrival, uint64_t stamp, uint32_t stream) {
  if (!measuring(arrival))
    return;
  if (list->count == list->room) {
    list->room = list->room ? list->room * 2 : 65536;
    list->rows = realloc(list->rows, list->room * sizeof *list->rows);
    if (!list->rows)
      die("out of memory");
  }
  list->rows[list->count++] = (struct sample){arrival, (uint32_t)((arrival - stamp) / 1000), stream};
}

/* Follow the frames in `data`; `list` gets one row for each that ends here. */
static void follow(struct peer *peer, const unsigned char *data, size_t size, struct samples *list) {
  struct parser *in = &peer->in;
  while (size) {
    if (!in->left) {
      in->header[in->header_size++] = *data++;
      size--;
      size_t whole = header_size(in);
      if (in->header_size >= 2 && in->header_size == whole) {
        if ((in->header[0] & 0x0f) == 8)
          die("stream %u was closed by a Close frame", peer->number);
        header_done(in, whole);
        in->header_size = 0;
      }
      continue;
    }
    size_t step = in->left < size ? in->left : size;
    for (size_t i = 0; i < step && in->at + i < STAMP; i++)
      in->stamp |= (uint64_t)(data[i] ^ in->mask[(in->at + i) & 3]) << (8 * (in->at + i));
    in->at += step;
    in->left -= step;
    data += step;
    size -= step;
    if (!in->left && in->at >= STAMP)
      keep(list, now_ns(), in->stamp, peer->number);
  }
}

/* Answer a viewer's request by 101. */
static void welcome(struct peer *peer) {
  char *key = strcasestr(peer->in.head, "sec-websocket-key:"), digest[32], answer[512];
  if (!key)
    die("a request without Sec-WebSocket-Key reached the desktop");
  key += strlen("sec-websocket-key:");
  key += strspn(key, " ");
  accept_key(key, strcspn(key, "\r\n "), digest);
  int size = snprintf(answer, sizeof answer,
                      "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                      "Sec-WebSocket-Accept: %s\r\n\r\n", digest);
  if (write(peer->fd, answer, (size_t)size) != size)
    die("the handshake's answer was not taken");
}

/* Take `data` as the rest of an HTTP head, then as frames. True when the head ended here. */
static int take(struct peer *peer, const unsigned char *data, size_t size, struct samples *list) {
  struct parser *in = &peer->in;
  size_t used = 0;
  if (in->open) {
    follow(peer, data, size, list);
    return 0;
  }
  while (used < size && !in->open) {
    if (in->head_size == HEAD_MAX - 1)
      die("a head of more than %d bytes", HEAD_MAX);
    in->head[in->head_size++] = (char)data[used++];
    in->open = in->head_size >= 4 && !memcmp(in->head + in->head_size - 4, "\r\n\r\n", 4);
  }
  follow(peer, data + used, size - used, list);
  return in->open;
}

/* Begin a frame: the stamp is the clock now. `masked` with key 0, so that a byte relay leaves it readable. */
static void begin_frame(struct peer *peer, size_t payload, int masked) {
  unsigned char *p = peer->front;
  uint64_t stamp = now_ns();
  *p++ = 0x82;
  unsigned char bit = masked ? 0x80 : 0;
  if (payload < 126) {
    *p++ = bit | (unsigned char)payload;
  } else if (payload < 65536) {
    *p++ = bit | 126;
    *p++ = (unsigned char)(payload >> 8);
    *p++ = (unsigned char)payload;
  } else {
    *p++ = bit | 127;
    for (int shift = 56; shift >= 0; shift -= 8)
      *p++ = (unsigned char)(payload >> shift);
  }
  if (masked) {
    memset(p, 0, 4);
    p += 4;
  }
  for (int i = 0; i < STAMP; i++)
    *p++ = (unsigned char)(stamp >> (8 * i));
  peer->front_size = (size_t)(p - peer->front);
  peer->body_size = payload - STAMP;
  peer->sent = 0;
}

static ssize_t push(struct peer *peer) {
  size_t done = peer->sent < peer->front_size ? peer->sent : peer->front_size, body = peer->sent - done;
  if (peer->ssl) {
    /* Input only, which is small: one piece. */
    unsigned char whole[14 + STAMP + INPUT];
    memcpy(whole, peer->front, peer->front_size);
    memcpy(whole + peer->front_size, filler, peer->body_size);
    int count = SSL_write(peer->ssl, whole, (int)(peer->front_size + peer->body_size));
    if (count <= 0)
      errno = SSL_get_error(peer->ssl, count) == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return count > 0 ? count : -1;
  }
  struct iovec parts[2] = {{peer->front + done, peer->front_size - done}, {filler + body, peer->body_size - body}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  return sendmsg(peer->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Send what the socket takes. False when the peer is gone. */
static int flush(struct peer *peer) {
  while (peer->sent < peer->front_size + peer->body_size) {
    ssize_t count = push(peer);
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return errno == EAGAIN;
    peer->sent += (size_t)count;
  }
  return 1;
}

/* Send the peers' frames that are due; the ns until the next one. Gone peers are closed. */
static uint64_t send_due(struct peer **peers, int count, size_t payload, int masked) {
  uint64_t now = now_ns(), period = 1000000000u / (unsigned)plan.rate, next = now + period;
  for (int i = 0; i < count; i++) {
    struct peer *peer = peers[i];
    if (!peer || peer->fd < 0 || !peer->in.open || (masked && peer->stalled))
      continue;
    if (peer->due <= now) {
      /* A late peer does not send twice: a desktop's next picture replaces the one that was not sent. */
      peer->due += period * ((now - peer->due) / period + 1);
      int waiting = peer->sent < peer->front_size + peer->body_size;
      if (!masked && measuring(now))
        atomic_fetch_add(waiting ? &dropped : &sent_frames, 1);
      if (!waiting)
        begin_frame(peer, payload, masked);
      if (!flush(peer)) {
        close(peer->fd);
        peer->fd = -1;
        continue;
      }
    }
    if (peer->due < next)
      next = peer->due;
  }
  now = now_ns();
  return next > now ? next - now : 0;
}

static void watch(int epoll, int fd, struct peer *peer, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = peer};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
    die("epoll_ctl: %s", strerror(errno));
}

static struct peer *new_peer(int fd, int number) {
  struct peer *peer = calloc(1, sizeof *peer);
  int one = 1;
  if (!peer)
    die("out of memory");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  peer->fd = fd;
  peer->number = (uint32_t)number;
  /* Spread over one period, the golden ratio's way: even for any count. */
  double place = number * 0.6180339887498949;
  peer->due = now_ns() + (uint64_t)((place - (long)place) * 1e9 / plan.rate);
  return peer;
}

/* What a desktop reads: requests and input. */
static void desktop_readable(struct peer *peer, unsigned char *buffer, size_t room) {
  if (peer->fd < 0)
    return;
  ssize_t count;
  while ((count = recv(peer->fd, buffer, room, MSG_DONTWAIT)) > 0)
    if (take(peer, buffer, (size_t)count, &inputs))
      welcome(peer);
  if (count == 0 || errno != EAGAIN) {
    close(peer->fd);
    peer->fd = -1;
  }
}

static void *desktops(void *argument) {
  int listener = *(int *)argument, epoll = epoll_create1(0), count = 0, most = plan.streams + plan.stalled;
  struct peer **peers = calloc((size_t)most, sizeof *peers);
  static unsigned char buffer[65536];
  if (epoll < 0 || !peers)
    die("desktops: %s", strerror(errno));
  watch(epoll, listener, NULL, EPOLLIN);
  while (!atomic_load(&finished)) {
    uint64_t wait = send_due(peers, count, (size_t)plan.bytes, 0);
    struct timespec timeout = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
    struct epoll_event events[64];
    int ready = epoll_pwait2(epoll, events, 64, &timeout, NULL);
    for (int i = 0; i < ready; i++) {
      struct peer *peer = events[i].data.ptr;
      if (peer) {
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
          desktop_readable(peer, buffer, sizeof buffer);
        if (peer->fd >= 0 && peer->in.open && !flush(peer))
          desktop_readable(peer, buffer, sizeof buffer);
        continue;
      }
      int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0)
        continue;
      if (count == most)
        die("the proxy opened more than %d connections", most);
      peers[count] = new_peer(fd, count);
      watch(epoll, fd, peers[count++], EPOLLIN | EPOLLOUT | EPOLLET);
    }
  }
  return NULL;
}

static int connect_to(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct timeval patience = {HANDSHAKE_SECONDS, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
    die("connect to port %d: %s", port, strerror(errno));
  return fd;
}

static ssize_t receive(struct peer *peer, void *buffer, size_t room) {
  if (!peer->ssl)
    return recv(peer->fd, buffer, room, 0);
  int count = SSL_read(peer->ssl, buffer, (int)room);
  if (count <= 0)
    errno = SSL_get_error(peer->ssl, count) == SSL_ERROR_WANT_READ ? EAGAIN : ECONNRESET;
  return count > 0 ? count : -1;
}

/* Connect, shake hands and set the connection not to block. */
static struct peer *open_viewer(SSL_CTX *tls, int number) {
  struct peer *peer = new_peer(connect_to(plan.connect), number);
  unsigned char buffer[2048];
  peer->stalled = number >= plan.streams;
  if (tls) {
    peer->ssl = SSL_new(tls);
    SSL_set_fd(peer->ssl, peer->fd);
    SSL_set_tlsext_host_name(peer->ssl, "ws-1.tclone.localhost");
    if (SSL_connect(peer->ssl) != 1)
      die("stream %d: no TLS handshake", number);
  }
  ssize_t sent = peer->ssl ? SSL_write(peer->ssl, plan.head, (int)plan.head_size) : write(peer->fd, plan.head, plan.head_size);
  if (sent != (ssize_t)plan.head_size)
    die("stream %d: the request was not taken", number);
  while (!peer->in.open) {
    ssize_t count = receive(peer, buffer, sizeof buffer);
    if (count <= 0)
      die("stream %d: no answer to the handshake; got: %.*s", number, (int)peer->in.head_size, peer->in.head);
    take(peer, buffer, (size_t)count, &frames);
  }
  if (strncmp(peer->in.head, "HTTP/1.1 101", 12))
    die("stream %d was refused: %.*s", number, (int)strcspn(peer->in.head, "\r\n"), peer->in.head);
  if (peer->ssl)
    SSL_set_mode(peer->ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (fcntl(peer->fd, F_SETFL, O_NONBLOCK))
    die("fcntl: %s", strerror(errno));
  return peer;
}

static void viewer_readable(struct peer *peer, unsigned char *buffer, size_t room) {
  ssize_t count;
  while ((count = receive(peer, buffer, room)) > 0) {
    if (measuring(now_ns()))
      received_bytes += (uint64_t)count;
    take(peer, buffer, (size_t)count, &frames);
    /* One read suffices for a level-triggered socket, but TLS may hold more records of it. */
    if (!peer->ssl || !SSL_pending(peer->ssl))
      return;
  }
  if (count == 0 || errno != EAGAIN)
    die("stream %u ended early", peer->number);
}

static void stop(int number) {
  (void)number;
  stopped = 1;
}

/* Read and send input until the window is over, or a SIGTERM ends it early. */
static void view(struct peer **peers, int count) {
  int epoll = epoll_create1(0), said = 0;
  static unsigned char buffer[262144];
  for (int i = 0; i < plan.streams; i++)
    watch(epoll, peers[i]->fd, peers[i], EPOLLIN);
  uint64_t begin = now_ns() + (uint64_t)(plan.warm * 1e9), end = begin + (uint64_t)(plan.seconds * 1e9), now;
  atomic_store(&measure_from, begin);
  atomic_store(&measure_to, end);
  while ((now = now_ns()) < end && !stopped) {
    if (!said && now >= begin) {
      said = 1;
      puts("begin");
    }
    uint64_t wait = send_due(peers, count, INPUT, 1), left = (said ? end : begin) - now;
    wait = wait < left ? wait : left;
    struct timespec timeout = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
    struct epoll_event events[64];
    int ready = epoll_pwait2(epoll, events, 64, &timeout, NULL);
    for (int i = 0; i < ready; i++)
      viewer_readable(events[i].data.ptr, buffer, sizeof buffer);
  }
  plan.seconds = now > begin ? (double)(now - begin) / 1e9 : 0;
  puts("end");
}

static int by_latency(const void *a, const void *b) {
  uint32_t x = ((const struct sample *)a)->latency, y = ((const struct sample *)b)->latency;
  return x < y ? -1 : x > y;
}

static void percentiles(const char *name, struct samples *list) {
  static const double at[] = {50, 90, 99, 99.9};
  qsort(list->rows, list->count, sizeof *list->rows, by_latency);
  printf("\"%s\": {\"count\": %zu", name, list->count);
  for (size_t i = 0; i < sizeof at / sizeof *at && list->count; i++)
    printf(", \"p%g\": %u", at[i], list->rows[(size_t)((double)(list->count - 1) * at[i] / 100)].latency);
  printf("}");
}

static void write_samples(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file || fwrite(frames.rows, sizeof *frames.rows, frames.count, file) != frames.count || fclose(file))
    die("%s: %s", path, strerror(errno));
}

static void read_plan(char **argv) {
  plan.listen = atoi(argv[1]);
  plan.connect = atoi(argv[2]);
  plan.streams = atoi(argv[3]);
  plan.stalled = atoi(argv[4]);
  plan.bytes = atoi(argv[5]);
  plan.rate = atoi(argv[6]);
  plan.warm = atof(argv[7]);
  plan.seconds = atof(argv[8]);
  plan.tls = atoi(argv[9]);
  FILE *file = fopen(argv[10], "r");
  if (!file)
    die("%s: %s", argv[10], strerror(errno));
  plan.head_size = fread(plan.head, 1, sizeof plan.head, file);
  fclose(file);
  if (plan.streams < 1 || plan.stalled < 0 || plan.bytes < 2 * STAMP || plan.bytes > (int)sizeof filler || plan.rate < 1)
    die("bad numbers");
}

static int listening(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 512))
    die("listen on port %d: %s", port, strerror(errno));
  return fd;
}

int main(int argc, char **argv) {
  if (argc != 12)
    die("11 arguments; see the head of wsload.c");
  read_plan(argv);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTERM, stop);
  setvbuf(stdout, NULL, _IOLBF, 0);
  int listener = listening(plan.listen), count = plan.streams + plan.stalled;
  pthread_t sender;
  if (pthread_create(&sender, NULL, desktops, &listener))
    die("pthread_create");
  SSL_CTX *tls = plan.tls ? SSL_CTX_new(TLS_client_method()) : NULL;
  struct peer **peers = calloc((size_t)count, sizeof *peers);
  for (int i = 0; i < count; i++)
    peers[i] = open_viewer(tls, i);
  view(peers, count);
  atomic_store(&finished, 1);
  pthread_join(sender, NULL);
  if (strcmp(argv[11], "-"))
    write_samples(argv[11]);
  printf("{\"sent\": %lu, \"dropped\": %lu, \"bytes\": %llu, \"seconds\": %g, ", atomic_load(&sent_frames), atomic_load(&dropped),
         (unsigned long long)received_bytes, plan.seconds);
  percentiles("frames", &frames);
  printf(", ");
  percentiles("input", &inputs);
  printf("}\n");
  return 0;
}
