/*
 * Unread messages. MSG_PEEK with SO_PEEK_OFF walks a queue without taking anything out of it; the offset is put back afterwards, so the source
 * does not notice. Descriptors in the queue arrive as duplicates and become descriptions of the world.
 */
#include "unix_socket.h"
#include "../descriptors.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_DESCRIPTORS_IN_MESSAGE 253      /* SCM_MAX_FD */
#define MAX_QUEUE (64u << 20)
#define FIRST_BUFFER 65536
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(MAX_DESCRIPTORS_IN_MESSAGE * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int)) + 512];
};

struct peeked {
    ssize_t size;
    int flags;
    int fds[MAX_DESCRIPTORS_IN_MESSAGE];
    int fd_count;
    bool has_credentials;
    struct ucred credentials;
    struct unix_name sender;
};

static int set_offset(const struct unix_socket *socket, int offset, struct error *err)
{
    if (setsockopt(socket->description->local, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) < 0)
        return fail_errno(err, "%s: cannot set where to peek", socket->label);
    return 0;
}

static void take_control(struct msghdr *header, struct peeked *peeked)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        size_t length = part->cmsg_len - CMSG_LEN(0);
        if (part->cmsg_level != SOL_SOCKET)
            continue;
        if (part->cmsg_type == SCM_RIGHTS) {
            peeked->fd_count = (int)(length / sizeof(int));
            memcpy(peeked->fds, CMSG_DATA(part), length);
        } else if (part->cmsg_type == SCM_CREDENTIALS) {
            peeked->has_credentials = true;
            memcpy(&peeked->credentials, CMSG_DATA(part), sizeof peeked->credentials);
        } else if (part->cmsg_type == SCM_PIDFD) {
            int pidfd;
            memcpy(&pidfd, CMSG_DATA(part), sizeof pidfd);
            close_fd(&pidfd);
        }
    }
}

/* Peek at most `room` bytes at the current offset, which moves on by what was returned. size -1: nothing there. */
static void peek(const struct unix_socket *socket, char *buffer, size_t room, struct peeked *peeked)
{
    union control control;
    struct iovec io = { buffer, room };
    struct msghdr header = {
        .msg_name = peeked->sender.address, .msg_namelen = sizeof peeked->sender.address,
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control,
    };
    *peeked = (struct peeked){ 0 };
    int full_size = socket->type == SOCK_STREAM ? 0 : MSG_TRUNC;
    peeked->size = recvmsg(socket->description->local, &header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC | full_size);
    if (peeked->size < 0)
        return;
    peeked->flags = header.msg_flags;
    peeked->sender.length = header.msg_namelen <= NAME_MAXIMUM ? header.msg_namelen : 0;
    take_control(&header, peeked);
}

static int add_message(struct world *world, struct unix_socket *socket, const char *data, size_t size, const struct peeked *peeked,
                       struct error *err)
{
    struct unix_message message = { .size = size, .sender = peeked->sender, .data = must_alloc(size) };
    memcpy(message.data, data, size);
    if (peeked->has_credentials && socket_options_find(&socket->options, SOL_SOCKET, SO_PASSCRED)) {
        message.has_credentials = true;
        message.credentials = peeked->credentials;
        message.credentials.pid = unix_pid_in_workspace(world, peeked->credentials.pid);
    }
    if (peeked->fd_count)
        message.descriptors = must_alloc((size_t)peeked->fd_count * sizeof *message.descriptors);
    for (int i = 0; i < peeked->fd_count; i++) {
        struct description *description = capture_adopt_descriptor(world, peeked->fds[i], err);
        if (!description)
            return -1;
        message.descriptors[message.descriptor_count++] = description;
    }
    socket->messages = must_grow(socket->messages, (size_t)(socket->message_count + 1) * sizeof message);
    socket->messages[socket->message_count++] = message;
    return 0;
}

/* Split message `index` in front of its byte number `at`, and behind it. */
static void cut_urgent(struct unix_socket *socket, int index, size_t at)
{
    struct unix_message whole = socket->messages[index], urgent = { .data = whole.data + at, .size = 1, .urgent = true }, rest = urgent;
    rest = (struct unix_message){ .data = whole.data + at + 1, .size = whole.size - at - 1 };
    urgent.has_credentials = rest.has_credentials = whole.has_credentials;
    urgent.credentials = rest.credentials = whole.credentials;
    if (at == 0) {
        urgent.descriptors = whole.descriptors;
        urgent.descriptor_count = whole.descriptor_count;
    }
    socket->messages = must_grow(socket->messages, (size_t)(socket->message_count + 2) * sizeof whole);
    struct unix_message *place = &socket->messages[index];
    memmove(place + 3, place + 1, (size_t)(socket->message_count - index - 1) * sizeof whole);
    place[0].size = at;
    place[1] = urgent;
    place[2] = rest;
    socket->message_count += 2;
}

static int check_complete(const struct unix_socket *socket, const struct peeked *peeked, struct error *err)
{
    if (!(peeked->flags & MSG_CTRUNC))
        return 0;
    return fail(err, "limit", "%s: the descriptors in its queue do not fit into the fork program's limit of open files", socket->label);
}

/*
 * A read on a stream ends with the first piece that carries descriptors, and they come with that piece's first byte. How much of what was peeked
 * at `offset` comes before that piece: peek again with an address for the last byte that cannot be written to. The kernel then takes whole
 * pieces up to the one that the fault is in. (Asking for fewer bytes does not help: a peek goes on to the next descriptors all the same.)
 */
static int plain_bytes_before(const struct unix_socket *socket, int offset, size_t size, size_t *plain, struct error *err)
{
    AUTO_FREE char *buffer = must_buffer(size);
    struct iovec io[2] = { { buffer, size - 1 }, { NULL, 1 } };
    struct msghdr header = { .msg_iov = io, .msg_iovlen = 2 };
    if (set_offset(socket, offset, err) < 0)
        return -1;
    ssize_t got = recvmsg(socket->description->local, &header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno != EFAULT)
        return fail_errno(err, "%s: cannot peek at its queue", socket->label);
    *plain = got < 0 ? 0 : (size_t)got;
    return set_offset(socket, offset + (int)size, err);
}

static int read_stream(struct world *world, struct unix_socket *socket, struct error *err)
{
    /* Not one byte further than what is unread: at the end of the queue the kernel would take out a pending error. */
    size_t offset = 0, unread = socket->diag.unread;
    AUTO_FREE char *buffer = must_buffer(FIRST_BUFFER);
    while (offset < unread) {
        struct peeked peeked;
        size_t room = unread - offset < FIRST_BUFFER ? unread - offset : FIRST_BUFFER;
        peek(socket, buffer, room, &peeked);
        if (peeked.size <= 0)
            return 0;               /* the rest is out-of-band */
        if (check_complete(socket, &peeked, err) < 0)
            return -1;
        size_t size = (size_t)peeked.size, plain = 0;
        if (peeked.fd_count && plain_bytes_before(socket, (int)offset, size, &plain, err) < 0)
            return -1;
        if (plain) {
            struct peeked without = peeked;
            without.fd_count = 0;
            if (add_message(world, socket, buffer, plain, &without, err) < 0)
                return -1;
        }
        if (add_message(world, socket, buffer + plain, size - plain, &peeked, err) < 0)
            return -1;
        offset += size;
    }
    return 0;
}

static int read_packets(struct world *world, struct unix_socket *socket, struct error *err)
{
    size_t room = FIRST_BUFFER, total = 0;
    AUTO_FREE char *buffer = must_alloc(room);
    /* An empty packet looks like the end of a sequence whose other side is closed; then only that is kept. */
    bool may_end = socket->type == SOCK_SEQPACKET && socket->diag.shutdown;
    while (total < MAX_QUEUE) {
        struct peeked peeked;
        peek(socket, buffer, room, &peeked);
        if (peeked.size < 0 || (peeked.size == 0 && may_end))
            return 0;
        if (check_complete(socket, &peeked, err) < 0)
            return -1;
        if ((size_t)peeked.size > room) {
            for (int i = 0; i < peeked.fd_count; i++)
                close(peeked.fds[i]);
            room = (size_t)peeked.size;
            buffer = must_grow(buffer, room);
            if (set_offset(socket, (int)total, err) < 0)
                return -1;
            continue;
        }
        if (add_message(world, socket, buffer, (size_t)peeked.size, &peeked, err) < 0)
            return -1;
        total += (size_t)peeked.size;
    }
    return fail(err, "limit", "%s has more than %u MiB unread", socket->label, MAX_QUEUE >> 20);
}

/*
 * An urgent byte (MSG_OOB) was peeked at like the others: it is the one behind those that a read returns at once, since a read stops in front of it. Its
 * piece is cut out, so that it can be sent as urgent again.
 */
static void mark_urgent(struct unix_socket *socket)
{
    int at_mark = 0;
    size_t before = 0;
    char byte;
    if (recv(socket->description->local, &byte, 1, MSG_PEEK | MSG_OOB | MSG_DONTWAIT) != 1)
        return;                 /* read already: the mark alone is left */
    if (ioctl(socket->description->local, SIOCATMARK, &at_mark) == 0 && !at_mark) {
        AUTO_FREE char *buffer = must_alloc(socket->diag.unread);
        ssize_t got = recv(socket->description->local, buffer, socket->diag.unread, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        before = got > 0 ? (size_t)got : 0;
    }
    for (int i = 0; i < socket->message_count; i++) {
        const struct unix_message *message = &socket->messages[i];
        if (before < message->size) {
            cut_urgent(socket, i, before);
            return;
        }
        before -= message->size;
    }
}

int unix_queue_read(struct world *world, struct unix_socket *socket, struct error *err)
{
    struct pollfd state = { socket->description->local, POLLIN | POLLPRI, 0 };
    if (poll(&state, 1, 0) < 0)
        return fail_errno(err, "%s: cannot poll it", socket->label);
    socket->has_error = state.revents & POLLERR;
    bool stream = socket->type == SOCK_STREAM;
    if (stream ? socket->diag.unread == 0 : !(state.revents & POLLIN))
        return 0;
    if (!stream && socket->has_error)
        return 0;                   /* receiving would take the error out of the source's socket */
    int before = socket_number(socket->description->local, SO_PEEK_OFF);
    if (set_offset(socket, 0, err) < 0)
        return -1;
    int status = stream ? read_stream(world, socket, err) : read_packets(world, socket, err);
    if (status == 0 && stream && (state.revents & POLLPRI) && set_offset(socket, 0, err) == 0)
        mark_urgent(socket);
    if (set_offset(socket, before, err) < 0)
        return -1;
    return status;
}
