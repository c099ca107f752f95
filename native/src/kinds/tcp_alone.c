/*
 * Streams whose other end is gone: a stand-in plays it, has sent what is unread, and ends as the peer has, or, for a peer outside the workspace, by
 * a reset. Bytes go into the socket's own queue in repair mode, so that none can be late.
 */
#include "inet.h"
#include "../descriptors.h"
#include "../files.h"

#include <linux/tcp.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

#define WINDOW 65535
#define PIECE 65536             /* the kernel takes at most 68 KiB at once into a queue */

static size_t queued_before_urgent(const struct stream_bytes *bytes)
{
    return bytes->urgent_at < 0 ? bytes->size : (size_t)bytes->urgent_at;
}

static void emit_queue(struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    const struct stream_bytes *bytes = &socket->stream->unread;
    size_t size = queued_before_urgent(bytes);
    if (size == 0)
        return;
    /* Memory is counted in whole pages and with what describes them. */
    int room = (int)(size < (64u << 20) ? size * 2 + (1 << 20) : 512u << 20);
    socket_option_emit(batch, slot, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room, socket->label);
    uint64_t data = plan_data(batch->plan, bytes->data, size);
    for (size_t at = 0; at < size; at += PIECE) {
        size_t piece = size - at < PIECE ? size - at : PIECE;
        EMIT(batch, socket->label, SYS_sendto, slot, data + at, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
        uint64_t sent = emit_result_cell(batch);
        EMIT_FLAGS(batch, socket->label, OP_LOAD(0), OP_EXPECT, sent, piece);
    }
}

static void emit_urgent(struct batch *batch, const struct inet_socket *socket, uint64_t stand_in)
{
    const struct stream_bytes *bytes = &socket->stream->unread;
    if (bytes->urgent_at < 0)
        return;
    size_t before = (size_t)bytes->urgent_at, after = bytes->size - before;
    EMIT(batch, socket->label, SYS_sendto, stand_in, plan_data(batch->plan, &bytes->urgent_byte, 1), 1, MSG_OOB | MSG_NOSIGNAL);
    if (after)
        EMIT(batch, socket->label, SYS_sendto, stand_in, plan_data(batch->plan, bytes->data + before, after), after, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The two ends, connected; the stand-in is at the auxiliary slot. */
static void emit_ends(struct batch *batch, const struct inet_socket *socket, uint64_t slot, uint64_t stand_in, const union inet_address *local,
                      const union inet_address *peer)
{
    struct plan *plan = batch->plan;
    uint32_t own_sequence = socket->stream->sequence, other_sequence = ~socket->stream->sequence;
    uint32_t before = (uint32_t)queued_before_urgent(&socket->stream->unread);
    uint64_t local_at = plan_data(plan, local, sizeof *local), peer_at = plan_data(plan, peer, sizeof *peer);
    struct stream_end_point own = { slot, local_at, peer_at, socket->local_size, own_sequence, other_sequence };
    struct stream_end_point other = { stand_in, peer_at, local_at, socket->local_size, other_sequence + before, own_sequence };
    stream_emit_bound(batch, socket, &own);
    stream_emit_bound(batch, socket, &other);
    stream_emit_connected(batch, socket, &own);
    stream_emit_connected(batch, socket, &other);
    emit_queue(batch, socket, slot);
    own.receive_sequence += before;
    stream_emit_window(batch, socket, &own, WINDOW, WINDOW);
    stream_emit_window(batch, socket, &other, WINDOW, WINDOW);
    stream_emit_repair_off(batch, socket, slot);
    stream_emit_repair_off(batch, socket, stand_in);
    emit_urgent(batch, socket, stand_in);
}

static void emit_reset(struct batch *batch, const struct inet_socket *socket, uint64_t stand_in)
{
    struct linger at_once = { .l_onoff = 1, .l_linger = 0 };
    socket_option_emit(batch, stand_in, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once, socket->label);
    EMIT(batch, socket->label, SYS_close, stand_in);
}

/* The program has been told of the error already. */
static void emit_take_error(struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    uint32_t size = sizeof(int);
    EMIT(batch, socket->label, SYS_getsockopt, slot, SOL_SOCKET, SO_ERROR, plan_reserve(batch->plan, sizeof(int)),
         plan_data(batch->plan, &size, sizeof size));
}

/* Its connect was refused: so is one to a port that nobody listens at. */
static void emit_refused(struct batch *batch, const struct inet_socket *socket, uint64_t slot, uint64_t stand_in)
{
    struct plan *plan = batch->plan;
    union inet_address nobody;
    uint32_t size = inet_loopback(socket, &nobody);
    uint64_t address = plan_data(plan, &nobody, sizeof nobody);
    inet_emit_socket(batch, socket->description, socket->net, socket->domain, SOCK_STREAM, IPPROTO_TCP, stand_in, socket->label);
    EMIT(batch, socket->label, SYS_bind, stand_in, address, size);
    EMIT(batch, socket->label, SYS_getsockname, stand_in, address, plan_data(plan, &size, sizeof size));
    inet_emit_socket(batch, socket->description, socket->net, socket->domain, SOCK_STREAM, IPPROTO_TCP, slot, socket->label);
    EMIT(batch, socket->label, SYS_fcntl, slot, F_SETFL, O_NONBLOCK);
    EMIT_FLAGS(batch, socket->label, TOLERATING(CONNECT_UNDER_WAY), SYS_connect, slot, address, size);
    EMIT(batch, socket->label, SYS_fcntl, slot, F_SETFL, 0);
    EMIT(batch, socket->label, SYS_close, stand_in);
}

static void emit_end(struct batch *batch, const struct inet_socket *socket, uint64_t slot, uint64_t stand_in)
{
    const struct stream *stream = socket->stream;
    if (stream->role == ROLE_ENDED && stream->end == END_RESET) {
        emit_reset(batch, socket, stand_in);
        return;
    }
    EMIT(batch, socket->label, SYS_close, stand_in);
    if (stream->role == ROLE_ENDED)
        EMIT(batch, socket->label, SYS_shutdown, slot, SHUT_WR);
}

void stream_emit_alone(struct plan *plan, const struct inet_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_CONNECT];
    const struct stream *stream = socket->stream;
    uint64_t slot = SLOT(plan, socket->description), stand_in = aux_slot(plan->world, stream->aux);
    bool own_names = stream->role == ROLE_WIDOWED || stream->real_names;
    if (stream->role == ROLE_ENDED && stream->end == END_REFUSED) {
        emit_refused(batch, socket, slot, stand_in);
    } else {
        /* Where the real addresses are not to be had, the stand-in has any. */
        union inet_address loopback;
        inet_loopback(socket, &loopback);
        emit_ends(batch, socket, slot, stand_in, own_names ? &socket->local : &loopback, own_names ? &socket->peer : &loopback);
        emit_end(batch, socket, slot, stand_in);
    }
    if (stream->state == STREAM_CLOSE && !stream->error_pending)
        emit_take_error(batch, socket, slot);
    inet_options_emit_buffers(batch, socket, slot);
    inet_options_emit_reuse(batch, socket, slot);
    inet_options_emit_device(batch, socket, slot);
    inet_options_emit_last(batch, socket, slot);
    emit_status_flags(batch, socket->description, socket->label);
}
