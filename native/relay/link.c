#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* What is buffered for one side once the other is gone may take so long to leave. */
#define FLUSH_MS 30000
/* A browser that was said goodbye has so long to end its side: closing with its bytes unread would reset the connection and lose ours. */
#define GOODBYE_MS 1000

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void link_deadline(struct loop *loop, struct link *link, uint64_t at)
{
    loop->deadlines += (at != 0) - (link->deadline != 0);
    link->deadline = at;
}

/* The sooner of the link's deadline and one in so many milliseconds. */
static void hurry(struct loop *loop, struct link *link, uint64_t milliseconds)
{
    uint64_t at = now_ms() + milliseconds;
    if (!link->deadline || at < link->deadline)
        link_deadline(loop, link, at);
}

static void notify(struct loop *loop, struct link *link)
{
    if (link->pending)
        return;
    link->pending = true;
    link->next_pending = NULL;
    if (loop->last_pending)
        loop->last_pending->next_pending = link;
    else
        loop->first_pending = link;
    loop->last_pending = link;
}

void link_welcome(struct loop *loop, struct link *link)
{
    link->pending_ready = true;
    notify(loop, link);
}

static size_t waiting(const struct end *end)
{
    return end->out.size - end->out.at;
}

static void queue_forget(struct queue *queue)
{
    free(queue->bytes);
    *queue = (struct queue){ 0 };
}

/* Keep bytes that could not be sent. -1 when there is no memory, or too much waits. */
static int queue_add(struct queue *queue, const uint8_t *bytes, size_t size)
{
    size_t have = queue->size - queue->at;
    if (size > QUEUE_MOST - have)
        return -1;
    if (queue->room - queue->size < size) {
        uint8_t *moved = malloc(have + size);
        if (!moved)
            return -1;
        if (have)
            memcpy(moved, queue->bytes + queue->at, have);
        free(queue->bytes);
        *queue = (struct queue){ moved, 0, have, have + size };
    }
    memcpy(queue->bytes + queue->size, bytes, size);
    queue->size += size;
    return 0;
}

/* Close a connection at once. */
static void end_drop(struct loop *loop, struct end *end)
{
    /* Closing alone takes it out of epoll only when nobody else has the same connection open. */
    if (end->registered)
        epoll_ctl(loop->epoll, EPOLL_CTL_DEL, end->fd, NULL);
    if (end->fd >= 0)
        close(end->fd);
    end->fd = -1;
    end->registered = false;
    SSL_free(end->ssl);
    end->ssl = NULL;
    queue_forget(&end->out);
}

/* Send bytes as they are. -1 when the connection is lost; what the kernel does not take waits. */
static int send_raw(struct end *end, const uint8_t *bytes, size_t size)
{
    size_t done = 0;
    if (!waiting(end) && end->fd >= 0) {
        ssize_t count = send(end->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
            return -1;
        done = count > 0 ? (size_t)count : 0;
    }
    return done < size ? queue_add(&end->out, bytes + done, size - done) : 0;
}

/* Send what TLS has put on the wire. */
static int send_wire(struct loop *loop, struct end *end)
{
    size_t size = loop->wire.out_size;
    loop->wire.out_size = 0;
    return size ? send_raw(end, loop->wire.out, size) : 0;
}

static int end_send(struct loop *loop, struct end *end, const uint8_t *bytes, size_t size)
{
    if (!size)
        return 0;
    if (!end->ssl)
        return send_raw(end, bytes, size);
    if (tls_seal(end->ssl, bytes, size) == 0)
        return send_wire(loop, end);
    loop->wire.out_size = 0;    /* the next connection's bytes come there */
    return -1;
}

static int end_flush(struct end *end)
{
    while (waiting(end)) {
        ssize_t count = send(end->fd, end->out.bytes + end->out.at, waiting(end), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0)
            return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -1;
        end->out.at += (size_t)count;
    }
    queue_forget(&end->out);
    return 0;
}

/* Close a connection after what waits for it. */
static void finish(struct loop *loop, struct link *link, int side)
{
    struct end *end = &link->ends[side];
    if (end->fd < 0 || end->finishing)
        return;
    /* A browser that was sent a Close frame answers it first. */
    if (side == CLIENT && link->said_close && !end->ended && !end->frames.saw_close)
        return;
    end->finishing = true;
    hurry(loop, link, FLUSH_MS);
}

/* A connection broke. */
static void lost(struct loop *loop, struct link *link, int side)
{
    end_drop(loop, &link->ends[side]);
    finish(loop, link, !side);
}

/*
 * Nothing can be sent on a connection. An upstream's last words may still be unread: an answer that came before the whole request, a Close frame. For
 * what a browser has to say then there is nobody.
 */
static void unsendable(struct loop *loop, struct link *link, int side)
{
    struct end *end = &link->ends[side];
    if (side == CLIENT || end->finishing || end->ended) {
        lost(loop, link, side);
        return;
    }
    end->deaf = true;
    queue_forget(&end->out);
}

/* A connection's peer sends no more. In plain TCP of a WebSocket the other direction goes on; TLS knows no half close, and HTTP has no use for it. */
static void ended(struct loop *loop, struct link *link, int side)
{
    struct end *end = &link->ends[side], *other = &link->ends[!side];
    end->ended = true;
    if (end->finishing)
        return;
    if (link->relaying && !link->closing && !link->ends[CLIENT].ssl && !other->ended) {
        other->half = true;
        return;
    }
    finish(loop, link, !side);
    finish(loop, link, side);
}

/* The Close frame of relay_end follows, and then the browser's own is awaited: it is the server that hangs up (RFC 6455, 7.1.1). */
static void say_close(struct loop *loop, struct link *link)
{
    if (link->said_close)
        return;
    link->said_close = true;
    if (link->ends[CLIENT].fd >= 0 && !link->ends[CLIENT].finishing
        && end_send(loop, &link->ends[CLIENT], link->close_frame, link->close_size) < 0)
        lost(loop, link, CLIENT);
    finish(loop, link, UPSTREAM);
    if (link->ends[CLIENT].frames.saw_close)
        finish(loop, link, CLIENT);
}

/* Bytes that a side sent. */
static void pass(struct loop *loop, struct link *link, int side, const uint8_t *bytes, size_t size)
{
    struct end *end = &link->ends[side], *other = &link->ends[!side];
    if (link->relaying) {
        end->received += size;
        size = frames_feed(&end->frames, bytes, size, link->closing && side == UPSTREAM);
    }
    if (link->said_close) {
        if (side == CLIENT && end->frames.saw_close)
            finish(loop, link, CLIENT);
        return;
    }
    /* A link that is not attached yet has nobody to send to: it waits. */
    bool takes = other->fd >= 0 ? !other->finishing && !other->deaf : !link->ready;
    if (takes && end_send(loop, other, bytes, size) < 0) {
        unsendable(loop, link, !side);
        return;
    }
    if (link->closing && side == UPSTREAM && frames_at_boundary(&end->frames))
        say_close(loop, link);
}

static void handshake(struct loop *loop, struct link *link)
{
    struct end *client = &link->ends[CLIENT];
    enum tls_state state = tls_accept(client->ssl);
    /* An alert says why, also when it failed. */
    if (send_wire(loop, client) < 0 || state == TLS_LOST) {
        lost(loop, link, CLIENT);
        return;
    }
    if (state != TLS_DONE)
        return;
    link->handshaking = false;
    link_deadline(loop, link, 0);
    link_welcome(loop, link);
}

static void take_apart(struct loop *loop, struct link *link)
{
    struct end *client = &link->ends[CLIENT];
    size_t size;
    if (link->handshaking)
        handshake(loop, link);
    if (client->fd < 0 || link->handshaking)
        return;
    enum tls_state state = tls_open(client->ssl, &loop->wire, loop->plain, PLAIN_ROOM, &size);
    if (size)
        pass(loop, link, CLIENT, loop->plain, size);
    if (client->fd < 0)
        return;
    if (send_wire(loop, client) < 0 || state == TLS_LOST)
        lost(loop, link, CLIENT);
    else if (state == TLS_ENDED)
        ended(loop, link, CLIENT);
}

/* Ciphertext that a browser sent. */
static void opened(struct loop *loop, struct link *link, size_t size)
{
    loop->wire.in = loop->chunk;
    loop->wire.in_size = size;
    take_apart(loop, link);
    /* The wire is everybody's: nothing of a connection that broke stays on it. */
    loop->wire.in_size = loop->wire.out_size = 0;
}

/* Whether bytes of a side can be taken now. */
static bool reads(const struct link *link, int side)
{
    const struct end *end = &link->ends[side], *other = &link->ends[!side];
    if (end->fd < 0 || end->ended)
        return false;
    if (end->finishing)
        return end->said_goodbye;
    if (link->handshaking || (link->said_close && side == CLIENT))
        return true;
    if (!link->ready || (link->held && side == CLIENT))
        return false;
    return !waiting(other);
}

static void readable(struct loop *loop, struct link *link, int side)
{
    struct end *end = &link->ends[side];
    ssize_t count = recv(end->fd, loop->chunk, CHUNK, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count < 0)
        lost(loop, link, side);
    else if (count == 0)
        ended(loop, link, side);
    else if (end->said_goodbye)
        return;
    else if (end->ssl)
        opened(loop, link, (size_t)count);
    else
        pass(loop, link, side, loop->chunk, (size_t)count);
}

void link_event(struct loop *loop, struct link *link, int side, uint32_t events)
{
    struct end *end = &link->ends[side];
    if (end->fd >= 0 && waiting(end) && events & (EPOLLOUT | EPOLLERR | EPOLLHUP) && end_flush(end) < 0)
        unsendable(loop, link, side);
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP) && reads(link, side))
        readable(loop, link, side);
    link_settle(loop, link);
}

static void end_sending(struct end *end)
{
    if (!end->shut)
        shutdown(end->fd, SHUT_WR);
    end->shut = true;
}

/* Nothing waits for a connection that is to be closed: say so, and close. */
static void step_to_end(struct loop *loop, struct link *link, int side)
{
    struct end *end = &link->ends[side];
    /* Only a browser's end is awaited; nobody else's unread bytes matter. */
    if (side != CLIENT || link->handshaking) {
        end_drop(loop, end);
        return;
    }
    if (!end->said_goodbye) {
        end->said_goodbye = true;
        hurry(loop, link, GOODBYE_MS);
        if (end->ssl) {
            tls_end(end->ssl);
            if (send_wire(loop, end) < 0) {
                end_drop(loop, end);
                return;
            }
        }
    }
    if (waiting(end))
        return;
    if (end->ended)
        end_drop(loop, end);
    else
        end_sending(end);
}

static void watch(struct loop *loop, struct link *link, int side)
{
    struct end *end = &link->ends[side];
    if (end->fd < 0)
        return;
    uint32_t wanted = (reads(link, side) ? EPOLLIN : 0) | (waiting(end) ? EPOLLOUT : 0);
    if (end->registered ? wanted == end->watched : !wanted)
        return;
    struct epoll_event event = { .events = wanted, .data.u64 = link->number << 1 | (unsigned)side };
    /* Not merely without events: an error of the peer would be told again and again. It is found when there is something to read or to send. */
    int how = !wanted ? EPOLL_CTL_DEL : end->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(loop->epoll, how, end->fd, &event) < 0) {
        end_drop(loop, &link->ends[CLIENT]);
        end_drop(loop, &link->ends[UPSTREAM]);
        return;
    }
    end->registered = wanted != 0;
    end->watched = wanted;
}

static void settle_end(struct loop *loop, struct link *link, int side)
{
    struct end *end = &link->ends[side];
    if (end->fd < 0)
        return;
    if (waiting(end) > QUEUE_MOST)
        lost(loop, link, side);
    else if (link->ends[!side].fd < 0 && (link->ready || side == UPSTREAM))
        finish(loop, link, side);
    if (end->fd < 0)
        return;
    if (end->finishing && (!waiting(end) || end->said_goodbye))
        step_to_end(loop, link, side);
    else if (end->half && !waiting(end))
        end_sending(end);
}

void link_settle(struct loop *loop, struct link *link)
{
    /* The loss of the second concerns the first once more. */
    settle_end(loop, link, CLIENT);
    settle_end(loop, link, UPSTREAM);
    settle_end(loop, link, CLIENT);
    watch(loop, link, CLIENT);
    watch(loop, link, UPSTREAM);
    if (link->ends[CLIENT].fd < 0 && link->ends[UPSTREAM].fd < 0 && !link->pending_gone) {
        link_deadline(loop, link, 0);
        link->pending_gone = true;
        notify(loop, link);
    }
}

void link_attach(struct loop *loop, struct link *link, int fd)
{
    struct end *inner = &link->ends[UPSTREAM];
    inner->fd = fd;
    link->ready = true;
    if (link->ends[CLIENT].finishing || link->ends[CLIENT].fd < 0)
        finish(loop, link, UPSTREAM);
    if (end_flush(inner) < 0)
        unsendable(loop, link, UPSTREAM);
    link_settle(loop, link);
}

/* What was written for the browser before the switch, and is still in the socket pair. */
static void empty_inner(struct loop *loop, struct link *link)
{
    struct end *inner = &link->ends[UPSTREAM];
    ssize_t count;
    while (link->ends[CLIENT].fd >= 0 && inner->fd >= 0 && (count = recv(inner->fd, loop->chunk, CHUNK, MSG_DONTWAIT)) > 0)
        if (end_send(loop, &link->ends[CLIENT], loop->chunk, (size_t)count) < 0)
            lost(loop, link, CLIENT);
}

void link_switch(struct loop *loop, struct link *link, int fd, const struct relay_early *early)
{
    struct end *client = &link->ends[CLIENT], *upstream = &link->ends[UPSTREAM];
    empty_inner(loop, link);
    /* What was taken from the browser and did not reach the pair follows what was read from there. */
    struct queue rest = upstream->out;
    upstream->out = (struct queue){ 0 };
    end_drop(loop, upstream);
    *upstream = (struct end){ .fd = fd };
    link->held = false;
    link->relaying = true;
    if (client->fd < 0 || client->finishing || (end_send(loop, client, early->head, early->head_size) < 0)) {
        link_abort(loop, link);
    } else {
        pass(loop, link, CLIENT, early->up, early->up_size);
        if (rest.size > rest.at)
            pass(loop, link, CLIENT, rest.bytes + rest.at, rest.size - rest.at);
        pass(loop, link, UPSTREAM, early->down, early->down_size);
    }
    queue_forget(&rest);
    link_settle(loop, link);
}

void link_end(struct loop *loop, struct link *link, const uint8_t *frame, size_t size, unsigned milliseconds)
{
    if (link->closing)
        return;
    struct end *upstream = &link->ends[UPSTREAM];
    link->closing = true;
    hurry(loop, link, milliseconds);
    if (!upstream->frames.saw_close && size <= sizeof link->close_frame) {
        memcpy(link->close_frame, frame, size);
        link->close_size = size;
    }
    if (frames_at_boundary(&upstream->frames))
        say_close(loop, link);
    link_settle(loop, link);
}

void link_abort(struct loop *loop, struct link *link)
{
    end_drop(loop, &link->ends[CLIENT]);
    end_drop(loop, &link->ends[UPSTREAM]);
    link_settle(loop, link);
}
