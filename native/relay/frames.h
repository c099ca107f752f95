/* Where WebSocket frames begin and end in a byte stream: the C twin of portal/stream/frames.py. Payloads are never looked at. */
#ifndef TCLONE_RELAY_FRAMES_H
#define TCLONE_RELAY_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER_MAX 14

struct frames {
    uint64_t left;                      /* payload bytes of the current frame that are still to come */
    uint8_t header[FRAME_HEADER_MAX];   /* a header that has begun */
    uint8_t header_size;
    bool saw_close;
};

/* Follow `size` bytes; the count followed: all of them, or those up to the first frame's end with `stop`. */
size_t frames_feed(struct frames *frames, const uint8_t *bytes, size_t size, bool stop);
/* Whether the bytes so far end exactly where a frame ends. */
bool frames_at_boundary(const struct frames *frames);

#endif
