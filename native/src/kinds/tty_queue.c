/*
 * Unread bytes of a pty, a line that is typed but not ended yet, output stopped by ^S. The kernel has no way to look at them without taking
 * them, so they are taken from the frozen source and written back at once (about 20 us for a full buffer), with every translation switched off
 * for the moment, so that they arrive as they were. A process of its own does that, which does not die with this program.
 *
 * Not carried over (the source keeps it): packets of status that were not read yet in packet mode.
 */
#include "tty.h"
#include "../apart.h"
#include "../descriptors.h"
#include "../doubt.h"
#include "../files.h"
#include "../shield.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * How much fits depends on how it is written (16 to 24 KB were measured). The kernel keeps the bytes in buffers of a multiple of 256, up to 1792, each
 * with twice that room. It makes a new one as long as those in use come to no more than 8192; used ones of 256 are kept, and may be taken
 * again beyond that. So all that anybody wrote fits in again if the chunks are small at first, then fill whole buffers, and are large in the end.
 */
#define FIRST_BYTES 4095        /* which the line discipline takes out of the buffers at once */
#define BUFFERED_BYTES 16384
#define SMALL_CHUNK 256
#define CHUNK 1024
#define LAST_CHUNK 1792
#define NEARLY_FULL 12288
#define LIMIT (256u << 10)
#define ATTEMPTS 500            /* to put bytes back, … */
#define ATTEMPT_NS 200000       /* … this long apart: a worker of the kernel makes room */
#define STOP_CHARACTER 023
#define NO_CHARACTER 0          /* _POSIX_VDISABLE */

static size_t chunk_at(size_t done, size_t size)
{
    size_t chunk = done < FIRST_BYTES ? (FIRST_BYTES - done < SMALL_CHUNK ? FIRST_BYTES - done : SMALL_CHUNK) : done < FIRST_BYTES + BUFFERED_BYTES ? CHUNK : LAST_CHUNK;
    return size - done < chunk ? size - done : chunk;
}

static short readiness(int fd, short events)
{
    /* Polling a terminal also waits for bytes that the kernel's worker has yet to hand to the line discipline. */
    struct pollfd wanted = { .fd = fd, .events = events };
    if (INSIST(poll(&wanted, 1, 0)) < 0)
        doubt(ANSWERS(0), "cannot tell what is unread in a terminal of the workspace");
    return wanted.revents & events;
}

static struct termios2 without_translation(const struct termios2 *original, bool canonical)
{
    struct termios2 plain = *original;
    plain.c_iflag = original->c_iflag & (IUTF8 | IXOFF);
    plain.c_oflag &= ~(tcflag_t)OPOST;
    plain.c_lflag &= ~(tcflag_t)(ECHO | ECHOE | ECHOK | ECHONL | ECHOCTL | ECHOKE | ISIG | IEXTEN | TOSTOP | EXTPROC);
    if (canonical) {
        plain.c_cc[VERASE] = plain.c_cc[VKILL] = NO_CHARACTER;     /* those in the queue were quoted */
    } else {
        plain.c_lflag &= ~(tcflag_t)ICANON;
        plain.c_cc[VMIN] = 1;
        plain.c_cc[VTIME] = 0;
    }
    return plain;
}

static bool is_canonical(const struct pty *pty)
{
    return pty->termios.c_lflag & ICANON;
}

/* ---- in the source ---- */

struct rescue {
    struct pty *pty;
    int slave;
    struct error *err;
};

static int set_termios(const struct rescue *rescue, const struct termios2 *termios)
{
    if (INSIST(ioctl(rescue->slave, TCSETS2, termios)) < 0)
        return fail_errno(rescue->err, "%s: cannot switch its translation", description_label(rescue->pty->first));
    return 0;
}

static void take(int fd, struct tty_bytes *bytes)
{
    char buffer[LAST_CHUNK];
    ssize_t got;
    while (bytes->size < LIMIT && readiness(fd, POLLIN) && (got = INSIST(read(fd, buffer, sizeof buffer))) > 0) {
        bytes->data = must_grow(bytes->data, bytes->size + (size_t)got);
        memcpy(bytes->data + bytes->size, buffer, (size_t)got);
        bytes->size += (size_t)got;
    }
}

/* 0 = there is no room. */
static ssize_t write_some(int fd, const char *data, size_t size)
{
    ssize_t written = -1;
    for (int tries = 0; tries < 5 && written < 0; tries++) {
        written = write(fd, data, size);
        if (written < 0 && errno == EAGAIN)
            return 0;
    }
    return written;
}

static int put_back(const struct rescue *rescue, int fd, int other, const struct tty_bytes *bytes)
{
    int attempts = 0;
    struct timespec moment = { 0, ATTEMPT_NS };
    for (size_t done = 0; done < bytes->size;) {
        (void)readiness(other, POLLIN);
        size_t size = chunk_at(done, bytes->size);
        ssize_t written = write_some(fd, bytes->data + done, size);
        if (written == 0)
            written = write_some(fd, bytes->data + done, size < SMALL_CHUNK ? size : SMALL_CHUNK);
        if (written < 0 || (written == 0 && ++attempts == ATTEMPTS))
            return fail(rescue->err, "internal", "%s: cannot put %zu unread bytes back", description_label(rescue->pty->first), bytes->size - done);
        done += (size_t)written;
        if (written == 0)
            nanosleep(&moment, NULL);
    }
    (void)readiness(other, POLLIN);
    return 0;
}

/* In canonical mode the end-of-file character is kept as a NUL with a mark; only the character itself makes that mark again. */
static void restore_end_of_file(const struct pty *pty, struct tty_bytes *bytes)
{
    for (size_t i = 0; i < bytes->size; i++)
        if (bytes->data[i] == 0)
            bytes->data[i] = (char)pty->termios.c_cc[VEOF];
}

/* With its buffer emptied a terminal has room for output, unless it was stopped; switching IXON off starts it if ^S had stopped it. */
static void learn_whether_stopped(struct rescue *rescue)
{
    struct pty *pty = rescue->pty;
    if (readiness(rescue->slave, POLLOUT))
        return;
    if (INSIST(ioctl(rescue->slave, TCXONC, TCOON)) < 0)
        doubt(ANSWERS(0), "%s: cannot tell whether its output is stopped", description_label(pty->first));
    pty->stopped = readiness(rescue->slave, POLLOUT) ? STOPPED_BY_CALL : STOPPED_BY_CHARACTER;
}

static int stop_again(const struct rescue *rescue)
{
    const struct pty *pty = rescue->pty;
    if (pty->stopped == STOPPED_BY_CALL)
        return (int)INSIST(ioctl(rescue->slave, TCXONC, TCOOFF));
    if (pty->stopped != STOPPED_BY_CHARACTER)
        return 0;
    struct termios2 stopping = tty_stopping_termios(pty);
    if (set_termios(rescue, &stopping) < 0 || INSIST(write(pty->master->local, &stopping.c_cc[VSTOP], 1)) != 1)
        return -1;
    (void)readiness(rescue->slave, POLLIN);
    return set_termios(rescue, &pty->termios);
}

struct termios2 tty_stopping_termios(const struct pty *pty)
{
    struct termios2 stopping = pty->termios;
    stopping.c_iflag |= IXON;
    stopping.c_lflag &= ~(tcflag_t)EXTPROC;
    if (stopping.c_cc[VSTOP] == NO_CHARACTER)
        stopping.c_cc[VSTOP] = STOP_CHARACTER;
    return stopping;
}

/* Reading without ICANON also takes the unfinished line behind the finished ones. */
static int rescue_bytes(struct rescue *rescue)
{
    struct pty *pty = rescue->pty;
    struct termios2 raw = without_translation(&pty->termios, false), plain = without_translation(&pty->termios, is_canonical(pty));
    int master = pty->master->local;
    take(master, &pty->output);
    learn_whether_stopped(rescue);
    if (set_termios(rescue, &raw) < 0)
        return -1;
    take(rescue->slave, &pty->input);
    if (is_canonical(pty))
        restore_end_of_file(pty, &pty->input);
    shield_kill_if_asked("terminal");
    int result = put_back(rescue, rescue->slave, master, &pty->output);
    if (set_termios(rescue, &plain) < 0 || put_back(rescue, master, rescue->slave, &pty->input) < 0)
        result = -1;
    if (set_termios(rescue, &pty->termios) < 0 || stop_again(rescue) < 0)
        result = -1;
    return result;
}

static int rescue_all(void *argument)
{
    struct rescue *rescue = argument;
    for (; rescue->pty; rescue++) {
        int off = 0;
        struct pty *pty = rescue->pty;
        if (INSIST(fcntl(pty->master->local, F_SETFL, pty->master->flags | O_NONBLOCK)) < 0
            || (pty->packet_mode && INSIST(ioctl(pty->master->local, TIOCPKT, &off)) < 0)) {
            fail_errno(rescue->err, "%s: cannot look at what is unread", description_label(pty->first));
            return 1;
        }
        int result = rescue_bytes(rescue);
        if (INSIST(fcntl(pty->master->local, F_SETFL, pty->master->flags)) < 0
            || (pty->packet_mode && INSIST(ioctl(pty->master->local, TIOCPKT, &pty->packet_mode)) < 0))
            result = fail_errno(rescue->err, "%s: cannot switch it back", description_label(pty->first));
        if (result < 0)
            return 1;
    }
    return 0;
}

/* A slave for the moment, for which nothing waits. Closing it hangs up again what had hung up before. */
static int open_slave(const struct pty *pty)
{
    int slave = ioctl(pty->master->local, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (slave < 0)
        doubt(ANSWERS(EIO), "%s: cannot open its other end", description_label(pty->first));
    return slave;
}

/* Is there anything that must be looked at? In canonical mode an unfinished line cannot be seen from outside. */
static bool may_hold_bytes(const struct pty *pty)
{
    if (!pty->slave && !pty->slave_closed)
        return false;           /* never opened: opening and closing it would look like a hang-up */
    short at_master = readiness(pty->master->local, POLLIN | POLLPRI);
    if (pty->packet_mode && (at_master & POLLPRI))
        return false;
    if (at_master & POLLIN)
        return true;
    if (!pty->slave)
        return false;
    return is_canonical(pty) || (readiness(pty->slave->local, POLLIN | POLLOUT) != POLLOUT);
}

int tty_queues_capture(struct world *world, struct pty **ptys, int count, struct error *err)
{
    AUTO_FREE struct rescue *rescues = must_alloc(((size_t)count + 1) * sizeof *rescues);
    int wanted = 0;
    for (int i = 0; i < count; i++) {
        struct pty *pty = ptys[i];
        if (!pty->master || !may_hold_bytes(pty))
            continue;
        int slave = open_slave(pty);
        if (slave < 0)
            continue;           /* locked: nobody has opened it yet */
        pty->queue_aux = files_new_aux(world);
        rescues[wanted++] = (struct rescue){ pty, slave, err };
    }
    int result = wanted ? apart_run(rescue_all, rescues, err) : 0;
    for (int i = 0; i < wanted; i++)
        close(rescues[i].slave);
    return result;
}

/* ---- in a branch ---- */

static void emit_poll(struct batch *batch, uint64_t fd, const char *what)
{
    struct pollfd wanted = { .fd = (int)fd, .events = POLLIN };
    EMIT(batch, what, SYS_poll, plan_data(batch->plan, &wanted, sizeof wanted), 1, 0);
}

/*
 * Of a nearly full terminal the line discipline must have taken the first bytes before the others come; it lets go of the last buffer of those when
 * the next one comes.
 */
static void emit_bytes(struct batch *batch, const struct tty_bytes *bytes, uint64_t fd, uint64_t other, const char *what)
{
    struct timespec while_worker_runs = { 0, 20000000 };
    if (!bytes->size)
        return;
    uint64_t data = plan_data(batch->plan, bytes->data, bytes->size);
    for (size_t done = 0, size; done < bytes->size; done += size) {
        size = chunk_at(done, bytes->size);
        if (bytes->size > NEARLY_FULL && (done == FIRST_BYTES || done == FIRST_BYTES + CHUNK))
            EMIT(batch, what, SYS_nanosleep, plan_data(batch->plan, &while_worker_runs, sizeof while_worker_runs), 0);
        /* Should the worker still not have run, the very last bytes are lost rather than the fork. */
        EMIT_FLAGS(batch, what, done > BUFFERED_BYTES ? TOLERATING(FULL) : 0, SYS_write, fd, data + done, size);
    }
    emit_poll(batch, other, what);
}

static bool has_queue(const struct pty *pty)
{
    return pty->output.size || pty->input.size || pty->stopped;
}

void tty_queue_emit(struct batch *batch, const struct pty *pty, const char *what)
{
    if (!has_queue(pty))
        return;
    struct plan *plan = batch->plan;
    uint64_t slave = aux_slot(plan->world, pty->queue_aux), master = SLOT(plan, pty->master);
    struct termios2 plain = without_translation(&pty->termios, is_canonical(pty));
    tty_emit_open(batch, pty, false, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC, what);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_dup3, cell, slave, 0);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, cell);
    EMIT(batch, what, SYS_ioctl, slave, TCSETS2, plan_data(plan, &plain, sizeof plain));
    emit_bytes(batch, &pty->output, slave, master, what);
    emit_bytes(batch, &pty->input, master, slave, what);
    if (pty->stopped == STOPPED_BY_CALL)
        EMIT(batch, what, SYS_ioctl, slave, TCXONC, TCOOFF);
    if (pty->stopped == STOPPED_BY_CHARACTER) {
        struct termios2 stopping = tty_stopping_termios(pty);
        EMIT(batch, what, SYS_ioctl, slave, TCSETS2, plan_data(plan, &stopping, sizeof stopping));
        EMIT(batch, what, SYS_write, master, plan_data(plan, &stopping.c_cc[VSTOP], 1), 1);
        emit_poll(batch, slave, what);
    }
    EMIT(batch, what, SYS_close, slave);
}
