/*
 * The bytes of a connection: those that wait to be read, and those that have not come that far.
 *
 * The first are peeked at. The second, which a program has written while the other side's window was full, can be read in repair mode only, and
 * that changes the socket while it is on. So it is used for such sockets alone, and by a process of its own that shares our memory and outlives
 * us: should livefork be killed, the mode is left all the same, some microseconds later.
 */
#include "inet.h"
#include "../descriptors.h"
#include "../doubt.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#define ATTEMPTS 8
#define KEEPER_STACK 65536
#define QUEUE_MAXIMUM (256u << 20)
#define ALL_QUEUES_MAXIMUM (512u << 20)    /* they go through the arena, which has 1 GiB */

int inet_account(const struct inet_socket *socket, size_t size, struct error *err)
{
    static size_t total;
    total += size;
    if (total <= ALL_QUEUES_MAXIMUM)
        return 0;
    return fail(err, "limit", "%s: more than %u MiB wait in the queues of the workspace's sockets; fork again when they are read", socket->label,
                ALL_QUEUES_MAXIMUM >> 20);
}

/* ---- unread ---- */

static void set_peek_offset(int fd, int offset)
{
    if (INSIST(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset)) < 0)
        doubt(ANSWERS(ENOPROTOOPT, EOPNOTSUPP), "cannot say from where a stream of the workspace is peeked at");
}

static int peek_offset(const struct inet_socket *socket)
{
    const struct socket_option *option = socket_options_find(&socket->options, SOL_SOCKET, SO_PEEK_OFF);
    int offset = -1;
    if (option)
        memcpy(&offset, option->value, sizeof offset);
    return offset;
}

static size_t peek(int fd, char *buffer, size_t size)
{
    ssize_t got = size ? recv(fd, buffer, size, MSG_PEEK | MSG_DONTWAIT) : 0;
    if (got < 0)
        doubt(ANSWERS(EAGAIN, ENOTCONN, ECONNRESET, ECONNREFUSED, ETIMEDOUT, EPIPE, EHOSTUNREACH, ENETUNREACH, EINVAL),
              "cannot read what is unread in a stream of the workspace");
    return got > 0 ? (size_t)got : 0;
}

/* At least as many bytes as the queue holds: what its buffers occupy. */
static size_t queue_bound(int fd)
{
    uint32_t memory[16] = { 0 };
    socklen_t size = sizeof memory;
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) < 0)
        doubt(ANSWERS(0), "cannot tell how much is unread in a stream of the workspace");
    return memory[0];
}

/*
 * A read stops at the urgent byte, and the next one goes on behind it; unless SO_OOBINLINE is set it leaves the byte itself out. Peeking from
 * an offset (Linux 6.9) finds what is behind.
 */
static int read_around_urgent(const struct inet_socket *socket, struct stream_bytes *bytes, struct error *err)
{
    int fd = socket->description->local, at_mark = 0;
    size_t bound = queue_bound(fd);
    bool in_line = socket_options_find(&socket->options, SOL_SOCKET, SO_OOBINLINE);
    bytes->data = must_alloc(bound + 1);
    if (ioctl(fd, SIOCATMARK, &at_mark) < 0)
        return fail_errno(err, "%s: cannot tell where its urgent byte is", socket->label);
    bytes->size = at_mark ? 0 : peek(fd, bytes->data, bound);
    bytes->urgent_at = (int64_t)bytes->size;
    if (!in_line && recv(fd, &bytes->urgent_byte, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT) != 1)
        bytes->urgent_at = -1;
    int offset = (int)bytes->size;
    if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) < 0)
        return fail(err, "unsupported", "%s holds an unread urgent byte, and this kernel cannot peek behind it (Linux 6.9 can)", socket->label);
    size_t more = peek(fd, bytes->data + bytes->size, bound - bytes->size);
    set_peek_offset(fd, peek_offset(socket));
    bytes->size += more;
    if (inet_account(socket, bytes->size, err) < 0)
        return -1;
    if (in_line && more) {
        char *urgent = bytes->data + bytes->urgent_at;
        bytes->urgent_byte = *urgent;
        memmove(urgent, urgent + 1, more - 1);
        bytes->size--;
    }
    return 0;
}

int stream_read_unread(struct inet_socket *socket, struct error *err)
{
    struct stream_bytes *bytes = &socket->stream->unread;
    int fd = socket->description->local, waiting = 0, offset = peek_offset(socket);
    free(bytes->data);
    *bytes = (struct stream_bytes){ .urgent_at = -1 };
    if (offset >= 0)
        set_peek_offset(fd, socket->stream->urgent ? -1 : 0);
    if (socket->stream->urgent)
        return read_around_urgent(socket, bytes, err);
    if (ioctl(fd, SIOCINQ, &waiting) < 0)
        doubt(ANSWERS(EINVAL), "%s: cannot tell how much is unread", socket->label);
    if (waiting > 0 && (unsigned)waiting < QUEUE_MAXIMUM) {
        bytes->data = must_alloc((size_t)waiting);
        bytes->size = peek(fd, bytes->data, (size_t)waiting);
    }
    if (offset >= 0)
        set_peek_offset(fd, offset);
    return inet_account(socket, bytes->size, err);
}

/* ---- undelivered ---- */

struct keeper {
    int fd, reuse_address;
    bool deafen;
    char *buffer;
    size_t room;
    ssize_t got;
};

static int read_send_queue(struct keeper *keeper)
{
    int on = TCP_REPAIR_ON, off = TCP_REPAIR_OFF_NO_WP, queue = TCP_SEND_QUEUE;
    if (setsockopt(keeper->fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) < 0)
        return 1;
    if (setsockopt(keeper->fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof queue) == 0)
        keeper->got = recv(keeper->fd, keeper->buffer, keeper->room, MSG_PEEK | MSG_DONTWAIT);
    int left = INSIST(setsockopt(keeper->fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off)) < 0;
    left |= INSIST(setsockopt(keeper->fd, SOL_SOCKET, SO_REUSEADDR, &keeper->reuse_address, sizeof keeper->reuse_address)) < 0;
    return left;
}

/*
 * Nothing in here may wait or be interrupted. Repair mode forgets SO_REUSEADDR.
 *
 * A packet that arrives in repair mode (the answer to a probe of the full window) would make the kernel count the whole queue as sent, though none
 * of it was: it would go out at a retransmission, minutes later if the window has been full for minutes. So the socket hears nothing meanwhile. The
 * peer's next packet says the same again.
 */
static int keep(void *argument)
{
    struct keeper *keeper = argument;
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = { .len = 1, .filter = &nothing };
    int none = 0;
    bool deaf = keeper->deafen && setsockopt(keeper->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
    int status = read_send_queue(keeper);
    if (deaf && INSIST(setsockopt(keeper->fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none)) < 0)
        status = 1;
    return status;
}

static int run_keeper(struct keeper *keeper, const struct inet_socket *socket, struct error *err)
{
    AUTO_FREE char *stack = must_alloc(KEEPER_STACK);
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    int child = clone(keep, stack + KEEPER_STACK, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, keeper);
    int status = 0, number = errno;
    if (child > 0 && INSIST(waitpid(child, &status, __WALL)) < 0)
        status = 1;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = number;
    if (child < 0)
        return fail_errno(err, "%s: cannot start a process to read its send queue", socket->label);
    return status ? fail(err, "internal", "%s: repair mode is not allowed", socket->label) : 0;
}

/* The send queue begins with what the peer has not acknowledged yet, though it may have it: the undelivered bytes are the last ones. */
static int read_undelivered(struct inet_socket *from, size_t size, struct error *err)
{
    int fd = from->description->local, queued = 0;
    free(from->stream->undelivered);
    from->stream->undelivered = NULL;
    from->stream->undelivered_size = 0;
    if (size == 0)
        return 1;
    if (ioctl(fd, SIOCOUTQ, &queued) < 0)
        doubt(ANSWERS(EINVAL), "%s: cannot tell how much it still sends", from->label);
    if ((size_t)queued < size || (unsigned)queued > QUEUE_MAXIMUM)
        return 0;
    /* A filter of the program's own stays: taking it away, if only for this, would let in what it keeps out. */
    struct keeper keeper = { .fd = fd, .reuse_address = socket_number(fd, SO_REUSEADDR), .deafen = from->options.filter_count == 0,
                             .buffer = must_alloc((size_t)queued), .room = (size_t)queued };
    int status = keeper.reuse_address < 0 ? fail(err, "internal", "%s: cannot tell whether its port is shared", from->label) : 0;
    if (status == 0)
        status = run_keeper(&keeper, from, err);
    if (status == 0 && keeper.got >= (ssize_t)size) {
        from->stream->undelivered = must_alloc(size);
        memcpy(from->stream->undelivered, keeper.buffer + keeper.got - size, size);
        from->stream->undelivered_size = size;
        status = inet_account(from, size, err) < 0 ? -1 : 1;
    }
    free(keeper.buffer);
    return status;
}

/*
 * Nothing is written while the source stands still, so once all has been received nothing more can come. Otherwise the kernel may be sending again
 * what was lost, and it may arrive just now.
 */
int stream_read_direction(struct inet_socket *from, struct inet_socket *to, struct error *err)
{
    if (from->stream->written == to->stream->received)
        return stream_read_unread(to, err) < 0 ? -1 : 1;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (stream_count(to, err) < 0)
            return -1;
        uint64_t received = to->stream->received;
        if (stream_read_unread(to, err) < 0 || stream_count(from, err) < 0)
            return -1;
        int64_t undelivered = (int64_t)(from->stream->written - received);
        int exact = undelivered < 0 ? 0 : read_undelivered(from, (size_t)undelivered, err);
        if (exact < 0 || stream_count(to, err) < 0)
            return -1;
        if (to->stream->received == received)
            return exact;
    }
    return 0;
}
