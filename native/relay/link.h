/* One link of the relay: two connections, each with what waits to be sent on it. All functions are called with the relay's lock held. */
#ifndef TCLONE_RELAY_LINK_H
#define TCLONE_RELAY_LINK_H

#include "frames.h"
#include "relay.h"
#include "tls.h"

/* The most that is read at once. With what TLS adds it bounds what waits in one direction: nothing is read while the other side has anything waiting. */
#define CHUNK (64u * 1024)
/* Plaintext of one read: OpenSSL may hold most of a record from the read before. */
#define PLAIN_ROOM (CHUNK + 32u * 1024)
/* The most that may wait for a connection, beyond which its peer is dropped: answers of TLS's own, which nobody reads, grow as well. */
#define QUEUE_MOST (192u * 1024)

enum { CLIENT, UPSTREAM };

struct queue {
    uint8_t *bytes;
    size_t at, size, room;      /* waiting: [at, size) */
};

struct end {
    int fd;                     /* -1: not there */
    SSL *ssl;                   /* only a client's, NULL for plain */
    struct queue out;           /* as it goes on the wire */
    struct frames frames;       /* of what it sends */
    uint64_t received;
    uint32_t watched;           /* epoll events */
    bool registered;
    bool ended;                 /* it sends no more */
    bool deaf;                  /* it takes nothing more; what it still has to say is read */
    bool half;                  /* end our sending when `out` is empty, and go on reading */
    bool shut;                  /* our sending has ended */
    bool finishing;             /* close when `out` is empty */
    bool said_goodbye;          /* finishing: our sending has ended, its is awaited */
};

struct link {
    uint64_t number;
    struct end ends[2];
    struct link *next_pending;
    uint64_t deadline;          /* ms of the monotonic clock, 0 for none: then both are dropped */
    bool handshaking, ready, held, relaying;
    bool closing, said_close;   /* relay_end was called; its frame is on its way */
    bool pending_ready, pending_gone, pending;      /* to be told */
    uint8_t close_frame[127];
    size_t close_size;
};

struct loop {
    int epoll;
    struct wire wire;
    uint8_t chunk[CHUNK], plain[PLAIN_ROOM];
    unsigned deadlines;         /* links that have one */
    struct link *first_pending, *last_pending;
};

uint64_t now_ms(void);
void link_deadline(struct loop *loop, struct link *link, uint64_t at);
/* A connection is there, its handshake done: to be attached. */
void link_welcome(struct loop *loop, struct link *link);
/* Something happened on a connection. */
void link_event(struct loop *loop, struct link *link, int side, uint32_t events);
void link_attach(struct loop *loop, struct link *link, int fd);
void link_switch(struct loop *loop, struct link *link, int fd, const struct relay_early *early);
void link_end(struct loop *loop, struct link *link, const uint8_t *frame, size_t size, unsigned milliseconds);
void link_abort(struct loop *loop, struct link *link);
/* Do what follows from the link's state; afterwards it may be pending as gone. */
void link_settle(struct loop *loop, struct link *link);

#endif
