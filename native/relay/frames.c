#include "frames.h"

#define OPCODE 0x0f
#define OPCODE_CLOSE 0x8
#define MASKED 0x80
#define LENGTH 0x7f

bool frames_at_boundary(const struct frames *frames)
{
    return frames->left == 0 && frames->header_size == 0;
}

/* Bytes of the header that begins with these two. */
static size_t header_length(const uint8_t *header)
{
    size_t length = (header[1] & LENGTH) == 126 ? 4 : (header[1] & LENGTH) == 127 ? 10 : 2;
    return length + (header[1] & MASKED ? 4 : 0);
}

static uint64_t payload_length(const uint8_t *header)
{
    size_t bytes = (header[1] & LENGTH) == 126 ? 2 : (header[1] & LENGTH) == 127 ? 8 : 0;
    uint64_t length = bytes ? 0 : header[1] & LENGTH;
    for (size_t i = 0; i < bytes; i++)
        length = length << 8 | header[2 + i];
    return length;
}

/* One byte of a header. */
static void take_header_byte(struct frames *frames, uint8_t byte)
{
    frames->header[frames->header_size++] = byte;
    if (frames->header_size < 2 || frames->header_size < header_length(frames->header))
        return;
    frames->left = payload_length(frames->header);
    frames->header_size = 0;
    if ((frames->header[0] & OPCODE) == OPCODE_CLOSE)
        frames->saw_close = true;
}

size_t frames_feed(struct frames *frames, const uint8_t *bytes, size_t size, bool stop)
{
    size_t at = 0;
    while (at < size) {
        if (frames->left) {
            size_t step = frames->left < size - at ? (size_t)frames->left : size - at;
            frames->left -= step;
            at += step;
        } else {
            take_header_byte(frames, bytes[at++]);
        }
        if (stop && frames_at_boundary(frames))
            return at;
    }
    return at;
}
