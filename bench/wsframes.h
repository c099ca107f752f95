/* The WebSocket side of wsload.c: where a peer's incoming bytes stand, and the handshake's key. */
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEAD_MAX 4096

struct sample {
  uint64_t arrival; /* CLOCK_MONOTONIC, ns */
  uint32_t latency; /* us */
  uint32_t stream;
};

struct samples {
  struct sample *rows;
  size_t count, room;
};

/* Where a peer's incoming bytes stand: in a head (HTTP), in a frame's header, or in its payload. */
struct parser {
  char head[HEAD_MAX];
  size_t head_size;
  int open; /* the handshake is over */
  unsigned char header[14];
  size_t header_size;
  uint64_t left, at;
  uint64_t stamp;
  unsigned char mask[4];
};

static void die(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("wsload: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The size of a frame's header from what of it has come; 2 until its second byte is there. */
static size_t header_size(const struct parser *in) {
  if (in->header_size < 2)
    return 2;
  int length = in->header[1] & 0x7f;
  return 2 + (length == 126 ? 2 : length == 127 ? 8 : 0) + (in->header[1] & 0x80 ? 4 : 0);
}

static void header_done(struct parser *in, size_t size) {
  int length = in->header[1] & 0x7f, wide = length == 126 ? 2 : length == 127 ? 8 : 0;
  in->left = wide ? 0 : (uint64_t)length;
  for (int i = 0; i < wide; i++)
    in->left = in->left << 8 | in->header[2 + i];
  memset(in->mask, 0, sizeof in->mask);
  if (in->header[1] & 0x80)
    memcpy(in->mask, in->header + size - 4, 4);
  in->at = in->stamp = 0;
}

static void accept_key(const char *key, size_t size, char out[32]) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  char joined[HEAD_MAX];
  int length = snprintf(joined, sizeof joined, "%.*s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", (int)size, key);
  if (!EVP_Digest(joined, (size_t)length, digest, NULL, EVP_sha1(), NULL))
    die("no SHA-1");
  EVP_EncodeBlock((unsigned char *)out, digest, 20);
}
