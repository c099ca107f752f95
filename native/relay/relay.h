/*
 * The data plane's bytes: connections of browsers (TLS or plain) joined to sockets, relayed by one thread.
 *
 * A link begins with a browser's connection. After the TLS handshake it is RELAY_READY, and `relay_attach` joins it to one end of a socket pair, on
 * whose other end HTTP is spoken in the clear. When a request became a WebSocket, `relay_switch` puts its upstream's socket in the pair's place; from
 * then on frames are followed, so that `relay_end` can say goodbye between two of them. RELAY_GONE tells that both connections are closed.
 *
 * Every function may be called from any one thread beside the relay's own. Nothing blocks: descriptors handed over must be non-blocking, and belong to
 * the relay from then on, also when the call fails. Functions that return int: 0, or -1 when there is no such link (any more).
 */
#ifndef TCLONE_RELAY_H
#define TCLONE_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RELAY_VERSION 1

/* The library's only names. */
#pragma GCC visibility push(default)

struct relay;

enum { RELAY_READY = 1, RELAY_GONE = 2 };

/* Bytes that came from each side since `relay_switch`, and bytes that wait here for either. */
struct relay_counts {
    uint64_t from_client, from_upstream, waiting;
};

struct relay_event {
    uint64_t link;
    uint64_t kind;
    struct relay_counts counts;
};

int relay_version(void);
/* Start the thread; `most` links at once. NULL with a reason in `why`. */
struct relay *relay_open(unsigned most, char *why, size_t room);
/* Drop every link and end. */
void relay_close(struct relay *relay);
/* An eventfd that is readable while there are events. */
int relay_events(struct relay *relay);
/* The next event; 1, or 0 when there is none. */
int relay_next(struct relay *relay, struct relay_event *event);
/* The certificate for connections from now on. -1 with a reason in `why`: the one before stays. */
int relay_certificate(struct relay *relay, const char *chain, const char *key, char *why, size_t room);

/* A browser's connection; a handshake that takes longer than `milliseconds` ends it. The link's number, or 0 (the connection is closed). */
uint64_t relay_accept(struct relay *relay, int fd, bool tls, unsigned milliseconds);
/* Join the browser's side to a socket. */
int relay_attach(struct relay *relay, uint64_t link, int fd);
/* Take nothing more from the browser, for the time in which the socket of `relay_attach` is emptied before `relay_switch`. */
int relay_hold(struct relay *relay, uint64_t link);

/* What was read before a switch: `head` goes to the browser and is no frame, `down` and `up` are frames for the browser and for upstream. */
struct relay_early {
    const uint8_t *head, *down, *up;
    size_t head_size, down_size, up_size;
};
int relay_switch(struct relay *relay, uint64_t link, int fd, const struct relay_early *early);
/* Send the browser a Close frame after upstream's current frame, and be gone within `milliseconds`. */
int relay_end(struct relay *relay, uint64_t link, const uint8_t *frame, size_t size, unsigned milliseconds);
/* Drop both connections now. */
int relay_abort(struct relay *relay, uint64_t link);
int relay_count(struct relay *relay, uint64_t link, struct relay_counts *counts);
/* The descriptor of the browser's (0) or the other (1) side, to look at its options; -1 when it is closed. */
int relay_descriptor(struct relay *relay, uint64_t link, int side);

#pragma GCC visibility pop

#endif
