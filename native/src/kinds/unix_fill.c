/* Ops that fill queues, half-close, and close what only helped. */
#include "unix_socket.h"
#include "../mounts.h"
#include "../files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define ROOM_FOR_ALL (256 << 20)    /* send buffer while a queue is filled: far beyond what a queue holds */

static size_t put_rights(char *control, size_t used, struct plan *plan, const struct unix_message *message)
{
    if (!message->descriptor_count)
        return used;
    struct cmsghdr *part = (struct cmsghdr *)(control + used);
    size_t size = (size_t)message->descriptor_count * sizeof(int);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(size);
    for (int i = 0; i < message->descriptor_count; i++)
        ((int *)CMSG_DATA(part))[i] = (int)SLOT(plan, message->descriptors[i]);
    return used + CMSG_SPACE(size);
}

static size_t put_credentials(char *control, size_t used, const struct unix_message *message)
{
    if (!message->has_credentials)
        return used;
    /* The ids must be right even when the sender has ended and its number cannot be named any more. */
    struct ucred credentials = message->credentials;
    if (credentials.pid == 0)
        credentials.pid = 1;
    struct cmsghdr *part = (struct cmsghdr *)(control + used);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_CREDENTIALS;
    part->cmsg_len = CMSG_LEN(sizeof credentials);
    memcpy(CMSG_DATA(part), &credentials, sizeof credentials);
    return used + CMSG_SPACE(sizeof credentials);
}

static void emit_message(struct batch *batch, const struct unix_message *message, uint64_t from, uint64_t address, socklen_t length,
                         const char *what)
{
    struct plan *plan = batch->plan;
    size_t room = CMSG_SPACE((size_t)message->descriptor_count * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred));
    AUTO_FREE char *control = must_alloc(room);
    size_t used = put_credentials(control, put_rights(control, 0, plan, message), message);
    struct iovec io = { (void *)plan_data(plan, message->data, message->size), message->size };
    struct msghdr header = { .msg_name = (void *)address, .msg_namelen = length, .msg_iovlen = 1 };
    header.msg_iov = (void *)plan_data(plan, &io, sizeof io);
    header.msg_control = used ? (void *)plan_data(plan, control, used) : NULL;
    header.msg_controllen = used;
    uint64_t flags = MSG_DONTWAIT | MSG_NOSIGNAL | (message->urgent ? MSG_OOB : 0);
    EMIT(batch, what, SYS_sendmsg, from, plan_data(plan, &header, sizeof header), flags);
}

static void set_send_buffer(struct batch *batch, uint64_t fd, int size, const char *what)
{
    socket_option_emit(batch, fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size, what);
}

static void fill_connected(struct plan *plan, const struct unix_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_FILL];
    const struct unix_connection *connection = socket->connection;
    uint64_t from = connection->connector == socket ? unix_acceptor_fd(plan, connection) : unix_connector_fd(plan, connection);
    set_send_buffer(batch, from, ROOM_FOR_ALL, socket->label);
    for (int i = 0; i < socket->message_count; i++)
        emit_message(batch, &socket->messages[i], from, 0, 0, socket->label);
    if (socket->peer)
        set_send_buffer(batch, from, socket->peer->options.send_buffer / 2, socket->label);
}

/* Into the queue of a connection that the listener has not accepted yet. */
static void fill_early(struct plan *plan, const struct unix_connection *connection)
{
    struct batch *batch = &plan->common[STAGE_FILL];
    uint64_t from = unix_connector_fd(plan, connection);
    if (!connection->early_count)
        return;
    set_send_buffer(batch, from, ROOM_FOR_ALL, connection->label);
    for (int i = 0; i < connection->early_count; i++)
        emit_message(batch, &connection->early[i], from, 0, 0, connection->label);
    set_send_buffer(batch, from, connection->connector->options.send_buffer / 2, connection->label);
}

/* A socket that stands for a sender who is gone, under its abstract name if that is free. */
static uint64_t emit_stand_in(struct batch *batch, const struct unix_table *table, const struct unix_name *name, const struct namespace *net,
                              const char *what)
{
    struct plan *plan = batch->plan;
    uint64_t slot = aux_slot(plan->world, table->nobody_aux);
    unix_emit_socket(batch, net, SOCK_DGRAM, slot, what);
    if (unix_is_named(name) && !unix_is_path(name))
        EMIT_FLAGS(batch, what, TOLERATING(TAKEN_NAME), SYS_bind, slot, plan_data(plan, name->address, name->length), name->length);
    set_send_buffer(batch, slot, ROOM_FOR_ALL, what);
    return slot;
}

/* A datagram comes from whoever has the sender's name, or a stand-in. */
void unix_fill_datagrams(struct plan *plan, struct unix_table *table, struct unix_socket *socket, struct batch *batch)
{
    socklen_t length = 0;
    bool paired = socket->peer && socket->visited;
    uint64_t address = 0;
    if (unix_peer_is_gone(socket)) {
        for (int i = 0; i < socket->message_count; i++)
            emit_message(batch, &socket->messages[i], aux_slot(plan->world, socket->aux), 0, 0, socket->label);
        return;
    }
    if (!paired && unix_is_named(&socket->name))
        address = unix_place_address(plan, socket->place, &socket->name, &length);
    if (!paired && !address)
        return;                 /* without a name nobody can send to it: the queue came through a name it has lost */
    const struct mount_world *mounts = !paired && socket->place ? socket->place->mounts : NULL;
    mounts_enter(batch, mounts);
    for (int i = 0; i < socket->message_count; i++) {
        const struct unix_message *message = &socket->messages[i];
        struct unix_socket *sender = paired ? socket->peer : unix_find_named(table, &message->sender, socket->net);
        if (!unix_is_named(&message->sender) && !paired)
            sender = NULL;
        uint64_t from = sender ? SLOT(plan, sender->description) : 0;
        if (sender) {
            set_send_buffer(batch, from, ROOM_FOR_ALL, socket->label);
            emit_message(batch, message, from, address, length, socket->label);
            set_send_buffer(batch, from, sender->options.send_buffer / 2, socket->label);
            continue;
        }
        uint64_t stand_in = emit_stand_in(batch, table, &message->sender, socket->net, socket->label);
        emit_message(batch, message, stand_in, address, length, socket->label);
        EMIT(batch, socket->label, SYS_close, stand_in);
    }
    mounts_leave(batch, mounts);
}

/* The peer was closed before it had read everything: one byte to its stand-in brings ECONNRESET back when that is closed. */
static void emit_unread_byte(struct batch *batch, const struct unix_socket *socket)
{
    EMIT_FLAGS(batch, socket->label, TOLERATING(NO_READER), SYS_sendto, SLOT(batch->plan, socket->description), plan_string(batch->plan, "x"), 1,
               MSG_DONTWAIT | MSG_NOSIGNAL);
}

void unix_emit_fill(struct plan *plan, struct unix_table *table)
{
    for (int i = 0; i < table->connection_count; i++)
        fill_early(plan, table->connections[i]);
    for (int i = 0; i < table->count; i++) {
        struct unix_socket *socket = table->sockets[i];
        if (socket->has_error && socket->connection && !socket->peer)
            emit_unread_byte(&plan->common[STAGE_FILL], socket);
        if (socket->message_count == 0 || socket->filled)
            continue;
        if (socket->type == SOCK_DGRAM)
            unix_fill_datagrams(plan, table, socket, &plan->common[STAGE_FILL]);
        else if (socket->connection && !socket->connection->pending)
            fill_connected(plan, socket);
    }
}

/* RCV_SHUTDOWN is 1 and SEND_SHUTDOWN 2; shutdown(2) counts from 0. What a closed peer brings about comes by itself. */
static void emit_shutdown(struct batch *batch, const struct unix_socket *socket)
{
    if (socket->diag.shutdown && (!socket->connection || socket->connection->pending || socket->peer))
        EMIT(batch, socket->label, SYS_shutdown, SLOT(batch->plan, socket->description), (uint64_t)socket->diag.shutdown - 1);
}

void unix_emit_finish(struct plan *plan, struct unix_table *table)
{
    struct batch *batch = &plan->common[STAGE_WATCH];
    for (int i = 0; i < table->connection_count; i++) {
        const struct unix_connection *connection = table->connections[i];
        if (connection->aux >= 0 && !connection->pending)
            EMIT(batch, connection->label, SYS_close, aux_slot(plan->world, connection->aux));
    }
    for (int i = 0; i < table->count; i++)
        if (unix_peer_is_gone(table->sockets[i]))
            EMIT(batch, table->sockets[i]->label, SYS_close, aux_slot(plan->world, table->sockets[i]->aux));
    for (int i = 0; i < table->temporary_count; i++) {
        const struct unix_listener *listener = table->temporary[i];
        EMIT(batch, listener->label, SYS_close, aux_slot(plan->world, listener->aux));
        unix_place_finish(batch, listener->place, listener->label);
    }
    for (int i = 0; i < table->count; i++) {
        const struct unix_socket *socket = table->sockets[i];
        emit_shutdown(batch, socket);
        if (socket->place && (socket->listening || !socket->connection || socket->connection->connector == socket))
            unix_place_finish(batch, socket->place, socket->label);
        emit_status_flags(batch, socket->description, socket->label);
    }
}
