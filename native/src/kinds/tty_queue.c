/*
 * Unread bytes of a pty. The kernel has no way to look at them without taking them, so they are taken from the frozen source and written
 * back at once (about 20 us for a full buffer); nothing is touched in a pty that holds none, which is nearly always so.
 *
 * Bytes go back through the same path with every translation switched off for the moment, so that they arrive as they were.
 * Not carried over (the source keeps them all, a branch lacks them): a line that is typed but not ended yet in canonical mode, output that was
 * stopped by ^S, anything in packet mode or in a pty of which no slave is open for reading and writing.
 */
#include "tty.h"
#include "../descriptors.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHUNK 2048              /* below half of the kernel's 4096 byte line buffer */
#define LIMIT (256u << 10)      /* the kernel keeps at most about 70 KB for each direction */

static bool ready(int fd, short events)
{
    /* Polling a terminal also waits for bytes that the kernel's worker has yet to hand to the line discipline. */
    struct pollfd wanted = { .fd = fd, .events = events };
    return poll(&wanted, 1, 0) == 1 && (wanted.revents & events);
}

static struct termios2 without_translation(const struct termios2 *original, bool canonical)
{
    struct termios2 plain = *original;
    plain.c_iflag = original->c_iflag & (IUTF8 | IXOFF);
    plain.c_oflag &= ~(tcflag_t)OPOST;
    plain.c_lflag &= ~(tcflag_t)(ECHO | ECHOE | ECHOK | ECHONL | ECHOCTL | ECHOKE | ISIG | IEXTEN | TOSTOP);
    if (!canonical)
        plain.c_lflag &= ~(tcflag_t)ICANON;
    plain.c_cc[VMIN] = canonical ? plain.c_cc[VMIN] : 1;
    plain.c_cc[VTIME] = canonical ? plain.c_cc[VTIME] : 0;
    return plain;
}

static int set_termios(const struct pty *pty, const struct termios2 *termios, struct error *err)
{
    if (ioctl(pty->slave->local, TCSETS2, termios) < 0)
        return fail_errno(err, "%s: cannot switch its translation", description_label(pty->slave));
    return 0;
}

static void take(int fd, struct tty_bytes *bytes)
{
    char buffer[CHUNK];
    ssize_t got;
    while (bytes->size < LIMIT && ready(fd, POLLIN) && (got = read(fd, buffer, sizeof buffer)) > 0) {
        bytes->data = must_grow(bytes->data, bytes->size + (size_t)got);
        memcpy(bytes->data + bytes->size, buffer, (size_t)got);
        bytes->size += (size_t)got;
    }
}

static int put_back(int fd, const struct tty_bytes *bytes, const char *label, struct error *err)
{
    for (size_t done = 0; done < bytes->size;) {
        size_t size = bytes->size - done < CHUNK ? bytes->size - done : CHUNK;
        ssize_t written = ready(fd, POLLOUT) ? write(fd, bytes->data + done, size) : -1;
        if (written <= 0)
            return fail_errno(err, "%s: cannot put %zu unread bytes back", label, bytes->size - done);
        done += (size_t)written;
    }
    return 0;
}

/* In canonical mode the end-of-file character is kept as a NUL with a mark; only the character itself makes that mark again. */
static void restore_end_of_file(const struct pty *pty, struct tty_bytes *bytes)
{
    for (size_t i = 0; i < bytes->size; i++)
        if (bytes->data[i] == 0)
            bytes->data[i] = (char)pty->termios.c_cc[VEOF];
}

static int capture_output(struct pty *pty, struct error *err)
{
    struct termios2 plain = without_translation(&pty->termios, pty->termios.c_lflag & ICANON);
    take(pty->master->local, &pty->output);
    if (set_termios(pty, &plain, err) < 0)
        return -1;
    int result = put_back(pty->slave->local, &pty->output, description_label(pty->slave), err);
    return set_termios(pty, &pty->termios, err) < 0 ? -1 : result;
}

/* Reading without ICANON also takes the unfinished line behind the finished ones: put back in front of it they would change places. */
static int capture_input(struct pty *pty, struct error *err)
{
    bool canonical = pty->termios.c_lflag & ICANON;
    struct termios2 raw = without_translation(&pty->termios, false), plain = without_translation(&pty->termios, canonical);
    if (set_termios(pty, &raw, err) < 0)
        return -1;
    take(pty->slave->local, &pty->input);
    if (canonical)
        restore_end_of_file(pty, &pty->input);
    int result = set_termios(pty, &plain, err);
    if (result == 0)
        result = put_back(pty->master->local, &pty->input, description_label(pty->master), err);
    (void)ready(pty->slave->local, POLLIN);     /* until the line discipline has them all */
    return set_termios(pty, &pty->termios, err) < 0 ? -1 : result;
}

int tty_queue_capture(struct pty *pty, struct error *err)
{
    if (!pty->slave || (pty->slave->flags & O_ACCMODE) != O_RDWR || pty->packet_mode)
        return 0;
    bool output = ready(pty->master->local, POLLIN), input = ready(pty->slave->local, POLLIN);
    /* A stopped terminal has no room: what is taken could not be put back. */
    if ((!output && !input) || !ready(pty->slave->local, POLLOUT) || !ready(pty->master->local, POLLOUT))
        return 0;
    if (output && capture_output(pty, err) < 0)
        return -1;
    return input ? capture_input(pty, err) : 0;
}

static void emit_bytes(struct batch *batch, const struct tty_bytes *bytes, uint64_t cell, const char *what)
{
    if (!bytes->size)
        return;
    uint64_t data = plan_data(batch->plan, bytes->data, bytes->size);
    for (size_t done = 0; done < bytes->size; done += CHUNK) {
        size_t size = bytes->size - done < CHUNK ? bytes->size - done : CHUNK;
        EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_write, cell, data + done, size);
    }
}

/* Poll the slave, so that the line discipline has taken all of it before the real settings apply. */
static void emit_flush(struct batch *batch, const struct pty *pty, const char *what)
{
    struct pollfd wanted = { .fd = (int)SLOT(batch->plan, pty->slave), .events = POLLIN };
    EMIT(batch, what, SYS_poll, plan_data(batch->plan, &wanted, sizeof wanted), 1, 0);
}

void tty_queue_emit(struct batch *batch, const struct pty *pty, uint64_t slave_path, const char *what)
{
    if (!pty->output.size && !pty->input.size)
        return;
    struct termios2 plain = without_translation(&pty->termios, pty->termios.c_lflag & ICANON);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, slave_path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    uint64_t slave = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, slave, TCSETS2, plan_data(batch->plan, &plain, sizeof plain));
    emit_bytes(batch, &pty->output, slave, what);
    emit_bytes(batch, &pty->input, pty->master_cell, what);
    emit_flush(batch, pty, what);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, slave);
}
