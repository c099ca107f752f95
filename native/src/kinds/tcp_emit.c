/*
 * Streams in a branch. A connection is made in repair mode, which takes no packets and no listener: each end is told its addresses, its sequence
 * numbers (the branch chooses new ones, since both ends are in it), what was agreed on, and the other's window. The bytes, and the ends of file, are
 * then sent through the connection itself, so that its counters are right for the next fork.
 */
#include "inet.h"
#include "../descriptors.h"
#include "../files.h"

#include <linux/tcp.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

#define DEFAULT_WINDOW 65535
#define ROOM_FOR_ALL (256 << 20)        /* send buffer while queues are filled; the kernel doubles it */

void stream_emit_number(struct batch *batch, uint64_t slot, int name, int value, const char *what)
{
    socket_option_emit(batch, slot, IPPROTO_TCP, name, &value, sizeof value, what);
}

static bool is_listener(const struct inet_socket *socket) { return socket->stream->state == STREAM_LISTEN; }

/* ---- one end in repair mode ---- */

void stream_emit_bound(struct batch *batch, const struct inet_socket *like, const struct stream_end_point *point)
{
    const char *what = like->label;
    struct plan *plan = batch->plan;
    inet_emit_socket(batch, like->description, like->net, like->domain, SOCK_STREAM, IPPROTO_TCP, point->slot, what);
    stream_emit_number(batch, point->slot, TCP_REPAIR, TCP_REPAIR_ON, what);
    inet_options_emit_first(batch, like, point->slot);
    const union inet_address *address = plan_local(plan, point->local);
    if (inet_has_port(address)) {
        inet_emit_bind(batch, like, point->slot, address);
    } else {
        uint32_t size = point->size;
        EMIT(batch, what, SYS_bind, point->slot, point->local, point->size);
        EMIT(batch, what, SYS_getsockname, point->slot, point->local, plan_data(plan, &size, sizeof size));
    }
}

static void emit_agreed(struct batch *batch, const struct inet_socket *like, uint64_t slot)
{
    const struct stream *stream = like->stream;
    /* What this end may send at most in a segment is what the other one has announced. */
    uint32_t segment = stream->mate ? stream->mate->stream->own_mss : stream->own_mss;
    struct tcp_repair_opt options[4];
    size_t count = 0;
    if (segment)
        options[count++] = (struct tcp_repair_opt){ 2 /* TCPOPT_MSS */, segment };
    if (stream->options & TCPI_OPT_WSCALE)
        options[count++] = (struct tcp_repair_opt){ 3 /* TCPOPT_WINDOW */, stream->send_scale | stream->receive_scale << 16 };
    if (stream->options & TCPI_OPT_SACK)
        options[count++] = (struct tcp_repair_opt){ 4 /* TCPOPT_SACK_PERM */, 0 };
    if (stream->options & TCPI_OPT_TIMESTAMPS)
        options[count++] = (struct tcp_repair_opt){ 8 /* TCPOPT_TIMESTAMP */, 0 };
    if (count)
        socket_option_emit(batch, slot, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options, (uint32_t)(count * sizeof *options), like->label);
}

void stream_emit_connected(struct batch *batch, const struct inet_socket *like, const struct stream_end_point *point)
{
    const char *what = like->label;
    stream_emit_number(batch, point->slot, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE, what);
    stream_emit_number(batch, point->slot, TCP_QUEUE_SEQ, (int)point->send_sequence, what);
    stream_emit_number(batch, point->slot, TCP_REPAIR_QUEUE, TCP_RECV_QUEUE, what);
    stream_emit_number(batch, point->slot, TCP_QUEUE_SEQ, (int)point->receive_sequence, what);
    EMIT(batch, what, SYS_connect, point->slot, point->peer, point->size);
    emit_agreed(batch, like, point->slot);
}

void stream_emit_window(struct batch *batch, const struct inet_socket *like, const struct stream_end_point *point, uint32_t send, uint32_t receive)
{
    struct tcp_repair_window window = {
        .snd_wl1 = point->receive_sequence - 1, .snd_wnd = send, .max_window = send > DEFAULT_WINDOW ? send : DEFAULT_WINDOW,
        .rcv_wnd = receive, .rcv_wup = point->receive_sequence,
    };
    socket_option_emit(batch, point->slot, IPPROTO_TCP, TCP_REPAIR_WINDOW, &window, sizeof window, like->label);
}

void stream_emit_repair_off(struct batch *batch, const struct inet_socket *like, uint64_t slot)
{
    stream_emit_number(batch, slot, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP, like->label);
}

/* ---- pairs ---- */

/* What the receiver would still take beyond its unread bytes, as far as the sender knows. */
static uint32_t window_left(const struct inet_socket *from)
{
    const struct stream *stream = from->stream;
    if (stream->undelivered_size)
        return 0;
    return stream->send_window ? stream->send_window : DEFAULT_WINDOW;
}

static uint32_t window_towards(const struct inet_socket *to)
{
    const struct stream *stream = to->stream;
    return window_left(stream->mate) + (uint32_t)stream->unread.size + (stream->unread.urgent_at >= 0);
}

static void emit_pair_end(struct plan *plan, const struct inet_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_CONNECT];
    const struct stream *stream = socket->stream, *mate = stream->mate->stream;
    struct stream_end_point point = {
        .slot = SLOT(plan, socket->description),
        .local = plan_data(plan, &socket->local, sizeof socket->local), .peer = plan_data(plan, &socket->peer, sizeof socket->peer),
        .size = socket->local_size, .send_sequence = stream->sequence, .receive_sequence = mate->sequence,
    };
    stream_emit_bound(batch, socket, &point);
    inet_options_emit_buffers(batch, socket, point.slot);
    inet_options_emit_device(batch, socket, point.slot);
    stream_emit_connected(batch, socket, &point);
    stream_emit_window(batch, socket, &point, window_towards(stream->mate), window_towards(socket));
    stream_emit_repair_off(batch, socket, point.slot);
    inet_options_emit_reuse(batch, socket, point.slot);
}

/* All of it, or the fork fails: a short count would be a hole in the stream. */
static void emit_send(struct batch *batch, uint64_t slot, const char *data, size_t size, int flags, const char *what)
{
    if (size == 0)
        return;
    EMIT(batch, what, SYS_sendto, slot, plan_data(batch->plan, data, size), size, (uint64_t)(flags | MSG_DONTWAIT | MSG_NOSIGNAL));
    uint64_t sent = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), OP_EXPECT, sent, size);
}

static void emit_bytes(struct batch *batch, uint64_t slot, const struct stream_bytes *bytes, const char *what)
{
    if (bytes->urgent_at < 0) {
        emit_send(batch, slot, bytes->data, bytes->size, 0, what);
        return;
    }
    size_t before = (size_t)bytes->urgent_at;
    emit_send(batch, slot, bytes->data, before, 0, what);
    emit_send(batch, slot, &bytes->urgent_byte, 1, MSG_OOB, what);
    emit_send(batch, slot, bytes->data + before, bytes->size - before, 0, what);
}

static void emit_pair_queue(struct plan *plan, const struct inet_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_FILL];
    const struct stream *stream = socket->stream, *mate = stream->mate->stream;
    uint64_t slot = SLOT(plan, socket->description);
    bool full = mate->unread.size || mate->unread.urgent_at >= 0 || stream->undelivered_size;
    int room = ROOM_FOR_ALL;
    if (full)
        socket_option_emit(batch, slot, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room, socket->label);
    emit_bytes(batch, slot, &mate->unread, socket->label);
    const struct socket_option *cork = socket_options_find(&socket->options, IPPROTO_TCP, TCP_CORK);
    if (cork && stream->undelivered_size)
        socket_option_put(batch, slot, cork, socket->label);
    emit_send(batch, slot, stream->undelivered, stream->undelivered_size, 0, socket->label);
    if (full) {
        int size = socket->options.send_buffer / 2;
        socket_option_emit(batch, slot, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size, socket->label);
        inet_options_emit_buffers(batch, socket, slot);
    }
}

/* After the queues of both ends. */
static void emit_pair_shutdown(struct plan *plan, const struct inet_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_FILL];
    const struct stream *stream = socket->stream;
    uint64_t slot = SLOT(plan, socket->description);
    if (stream_sent_end(stream))
        EMIT(batch, socket->label, SYS_shutdown, slot, SHUT_WR);
    if (stream->read_shut && !stream_received_end(stream) && stream->state != STREAM_CLOSE)
        EMIT_FLAGS(batch, socket->label, TOLERATING(NOT_CONNECTED), SYS_shutdown, slot, SHUT_RD);
}

/* What was sent is acknowledged now, not when a timer says so: who looks sees the source's states and counters. */
static void emit_pair_acknowledge(struct plan *plan, const struct inet_socket *socket)
{
    const struct stream_bytes *unread = &socket->stream->unread;
    if (unread->size || unread->urgent_at >= 0 || stream_sent_end(socket->stream->mate->stream))
        stream_emit_number(&plan->common[STAGE_FILL], SLOT(plan, socket->description), TCP_QUICKACK, 1, socket->label);
}

/* ---- the others ---- */

/* Every way of sharing a port is open until all who do are bound. */
static void emit_sharing(struct batch *batch, const struct inet_socket *socket, uint64_t slot, bool as_it_was)
{
    static const int names[] = { SO_REUSEADDR, SO_REUSEPORT };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int value = !as_it_was || socket_options_find(&socket->options, SOL_SOCKET, names[i]);
        socket_option_emit(batch, slot, SOL_SOCKET, names[i], &value, sizeof value, socket->label);
    }
}

static void emit_no_more_sharing(struct plan *plan, const struct inet_socket *socket)
{
    if (socket->stream->shares_port)
        emit_sharing(&plan->common[STAGE_MAKE], socket, SLOT(plan, socket->description), true);
}

static void emit_unconnected(struct plan *plan, const struct inet_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_MAKE];
    uint64_t slot = SLOT(plan, socket->description);
    inet_emit_socket(batch, socket->description, socket->net, socket->domain, socket->type, socket->protocol, slot, socket->label);
    inet_options_emit_buffers(batch, socket, slot);
    inet_options_emit_device(batch, socket, slot);
    inet_options_emit_first(batch, socket, slot);
    if (socket->stream->shares_port)
        emit_sharing(batch, socket, slot, false);
    if (inet_has_port(&socket->local))
        inet_emit_bind(batch, socket, slot, &socket->local);
    if (is_listener(socket))
        EMIT(batch, socket->label, SYS_listen, slot, (uint64_t)socket->stream->backlog);
    inet_options_emit_last(batch, socket, slot);
    emit_status_flags(batch, socket->description, socket->label);
}

/* A real connect that does not wait: to a listener of the branch, or of what is outside. Repair mode lends the right to bind to the same port. */
static void emit_connect_anew(struct plan *plan, const struct inet_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_CONNECT];
    const struct stream *stream = socket->stream;
    uint64_t slot = SLOT(plan, socket->description);
    const char *what = socket->label;
    inet_emit_socket(batch, socket->description, socket->net, socket->domain, SOCK_STREAM, IPPROTO_TCP, slot, what);
    stream_emit_number(batch, slot, TCP_REPAIR, TCP_REPAIR_ON, what);
    inet_options_emit_buffers(batch, socket, slot);
    inet_options_emit_device(batch, socket, slot);
    inet_options_emit_first(batch, socket, slot);
    EMIT(batch, what, SYS_bind, slot, plan_data(plan, &socket->local, sizeof socket->local), socket->local_size);
    stream_emit_repair_off(batch, socket, slot);
    inet_options_emit_reuse(batch, socket, slot);
    EMIT(batch, what, SYS_fcntl, slot, F_SETFL, O_NONBLOCK);
    EMIT_FLAGS(batch, what, TOLERATING(CONNECT_UNDER_WAY), SYS_connect, slot, plan_data(plan, &socket->peer, sizeof socket->peer), socket->peer_size);
    if (!(socket->description->flags & O_NONBLOCK))
        EMIT(batch, what, SYS_fcntl, slot, F_SETFL, 0);
    inet_options_emit_last(batch, socket, slot);
    if (stream_sent_end(stream))
        EMIT_FLAGS(batch, what, TOLERATING(NOT_CONNECTED), SYS_shutdown, slot, SHUT_WR);
    emit_status_flags(batch, socket->description, what);
}

static void emit_finish_pair(struct plan *plan, const struct inet_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_FILL];
    inet_options_emit_last(batch, socket, SLOT(plan, socket->description));
    emit_status_flags(batch, socket->description, socket->label);
}

static void emit_stage(struct plan *plan, const struct inet_table *table, enum stream_role role,
                       void (*emit)(struct plan *, const struct inet_socket *))
{
    for (int i = 0; i < table->count; i++)
        if (table->streams[i]->stream->role == role)
            emit(plan, table->streams[i]);
}

/*
 * Listeners and bound sockets first, then the connections, by their ports; those that take any free port come last, and never meet one that
 * somebody else is still to get.
 */
void stream_emit(struct plan *plan, struct inet_socket *socket, enum stage stage)
{
    const struct inet_table *table = plan->world->inet_sockets;
    if (socket != table->streams[0])
        return;
    switch (stage) {
    case STAGE_MAKE:
        emit_stage(plan, table, ROLE_UNCONNECTED, emit_unconnected);
        emit_stage(plan, table, ROLE_UNCONNECTED, emit_no_more_sharing);
        break;
    case STAGE_CONNECT:
        emit_stage(plan, table, ROLE_PAIR, emit_pair_end);
        emit_stage(plan, table, ROLE_WAITING, emit_connect_anew);
        emit_stage(plan, table, ROLE_CONNECTING, emit_connect_anew);
        emit_stage(plan, table, ROLE_WIDOWED, stream_emit_alone);
        emit_stage(plan, table, ROLE_ENDED, stream_emit_alone);
        break;
    case STAGE_FILL:            /* before anything watches them: none of this may look like news */
        emit_stage(plan, table, ROLE_PAIR, emit_pair_queue);
        emit_stage(plan, table, ROLE_PAIR, emit_pair_shutdown);
        emit_stage(plan, table, ROLE_PAIR, emit_pair_acknowledge);
        emit_stage(plan, table, ROLE_PAIR, emit_finish_pair);
        break;
    default:
        break;
    }
}
