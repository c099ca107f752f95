/* Ops that make, bind and connect. */
#include "unix_socket.h"
#include "../files.h"
#include "../namespace_plan.h"

#include <fcntl.h>
#include <sys/syscall.h>

static struct batch *batch_for(struct plan *plan, enum stage stage, const struct ucred *credentials)
{
    if (credentials->pid == 0 && credentials->uid == 0)
        return &plan->common[stage];
    return plan_creator(plan, stage, credentials->pid, credentials->uid, credentials->gid);
}

/* The kernel records the groups, too, of who calls listen, connect or socketpair. Whatever runs the batch sets its own when it becomes a process. */
static void emit_groups(struct batch *batch, const struct unix_groups *groups, const char *what)
{
    uint64_t list = groups->count ? plan_data(batch->plan, groups->list, (size_t)groups->count * sizeof *groups->list) : 0;
    EMIT(batch, what, SYS_setgroups, (uint64_t)groups->count, list);
}

static void cell_to_slot(struct batch *batch, uint64_t cell, uint64_t slot, const char *what)
{
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_dup3, cell, slot, 0);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, cell);
}

void unix_emit_socket(struct batch *batch, const struct namespace *net, int type, uint64_t slot, const char *what)
{
    namespace_enter_net(batch, net);
    EMIT(batch, what, SYS_socket, AF_UNIX, (uint64_t)type | SOCK_CLOEXEC, 0);
    cell_to_slot(batch, emit_result_cell(batch), slot, what);
    namespace_leave_net(batch, net);
}

void unix_emit_bind(struct batch *batch, const struct unix_socket *socket)
{
    if (unix_is_named(&socket->name))
        unix_place_bind(batch, socket->place, &socket->name, SLOT(batch->plan, socket->description), socket->label);
}

void unix_emit_settings(struct batch *batch, const struct unix_socket *socket)
{
    socket_options_emit(batch, &socket->options, SLOT(batch->plan, socket->description), socket->label);
}

uint64_t unix_connector_fd(struct plan *plan, const struct unix_connection *connection)
{
    return connection->connector ? SLOT(plan, connection->connector->description) : aux_slot(plan->world, connection->aux);
}

uint64_t unix_acceptor_fd(struct plan *plan, const struct unix_connection *connection)
{
    return connection->acceptor ? SLOT(plan, connection->acceptor->description) : aux_slot(plan->world, connection->aux);
}

static void emit_listener(struct plan *plan, const struct unix_listener *listener)
{
    struct batch *batch = batch_for(plan, STAGE_MAKE, &listener->credentials);
    uint64_t slot = listener->socket ? SLOT(plan, listener->socket->description) : aux_slot(plan->world, listener->aux);
    uint64_t backlog = listener->socket ? listener->socket->diag.limit : 1;
    unix_emit_socket(batch, listener->net, listener->type, slot, listener->label);
    unix_place_bind(batch, listener->place, listener->name, slot, listener->label);
    emit_groups(batch, &listener->groups, listener->label);
    EMIT(batch, listener->label, SYS_listen, slot, backlog);
    if (listener->socket)
        unix_emit_settings(batch, listener->socket);
}

/* Sockets that are neither listening nor connected, and all datagram sockets. */
static void emit_single(struct plan *plan, const struct unix_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_MAKE];
    unix_emit_socket(batch, socket->net, socket->type, SLOT(plan, socket->description), socket->label);
    unix_emit_bind(batch, socket);
    unix_emit_settings(batch, socket);
}

/* Two datagram sockets that are each other's only peer and have no names come from socketpair. */
static bool is_datagram_pair(const struct unix_socket *socket)
{
    const struct unix_socket *peer = socket->peer;
    return peer && peer != socket && peer->peer == socket && !unix_is_named(&socket->name) && !unix_is_named(&peer->name);
}

static void emit_pair(struct batch *batch, const struct namespace *net, int type, uint64_t first, uint64_t second, const char *what)
{
    namespace_enter_net(batch, net);
    uint64_t both = plan_reserve(batch->plan, 2 * sizeof(int32_t));
    EMIT(batch, what, SYS_socketpair, AF_UNIX, (uint64_t)type | SOCK_CLOEXEC, 0, both);
    EMIT_FLAGS(batch, what, OP_LOAD32(0), SYS_dup3, both, first, 0);
    EMIT_FLAGS(batch, what, OP_LOAD32(0), SYS_dup3, both + 4, second, 0);
    EMIT_FLAGS(batch, what, OP_LOAD32(0), SYS_close, both);
    EMIT_FLAGS(batch, what, OP_LOAD32(0), SYS_close, both + 4);
    namespace_leave_net(batch, net);
}

/* Connected to a stand-in that is closed in the end, so that sending fails as it did. */
static void emit_without_peer(struct plan *plan, const struct unix_socket *socket)
{
    struct batch *batch = batch_for(plan, STAGE_MAKE, &socket->peer_credentials);
    uint64_t stand_in = aux_slot(plan->world, socket->aux);
    emit_groups(batch, &socket->peer_groups, socket->label);
    emit_pair(batch, socket->net, SOCK_DGRAM, SLOT(plan, socket->description), stand_in, socket->label);
    unix_emit_bind(batch, socket);
    if (unix_is_named(&socket->peer_name) && !unix_is_path(&socket->peer_name))
        EMIT_FLAGS(batch, socket->label, TOLERATING(TAKEN_NAME), SYS_bind, stand_in,
                   plan_data(plan, socket->peer_name.address, socket->peer_name.length), socket->peer_name.length);
    unix_emit_settings(batch, socket);
}

static void emit_datagram_pair(struct plan *plan, struct unix_socket *socket)
{
    struct batch *batch = batch_for(plan, STAGE_MAKE, &socket->peer_credentials);
    emit_pair(batch, socket->net, SOCK_DGRAM, SLOT(plan, socket->description), SLOT(plan, socket->peer->description), socket->label);
    unix_emit_settings(batch, socket);
    unix_emit_settings(batch, socket->peer);
    socket->visited = socket->peer->visited = true;
}

int unix_emit_make(struct plan *plan, struct unix_table *table, struct error *err)
{
    (void)err;
    for (int i = 0; i < table->count; i++) {
        struct unix_socket *socket = table->sockets[i];
        if (socket->listening)
            emit_listener(plan, socket->listener);
        else if (socket->type == SOCK_DGRAM && is_datagram_pair(socket) && !socket->visited)
            emit_datagram_pair(plan, socket);
        else if (unix_peer_is_gone(socket))
            emit_without_peer(plan, socket);
        else if (!socket->connection && !socket->visited)
            emit_single(plan, socket);
    }
    for (int i = 0; i < table->temporary_count; i++)
        emit_listener(plan, table->temporary[i]);
    return 0;
}

/* The connecting socket may have a name of its own, bound before. */
static void emit_connector(struct batch *batch, const struct unix_connection *connection)
{
    struct plan *plan = batch->plan;
    const struct unix_listener *listener = connection->listener;
    uint64_t slot = unix_connector_fd(plan, connection);
    unix_emit_socket(batch, connection->connector ? connection->connector->net : listener->net, listener->type, slot, connection->label);
    if (connection->connector)
        unix_emit_bind(batch, connection->connector);
    unix_place_connect(batch, listener->place, listener->name, slot, connection->label);
}

static void emit_accepted(struct plan *plan, const struct unix_connection *connection)
{
    struct batch *batch = batch_for(plan, STAGE_CONNECT, &connection->credentials);
    const struct unix_listener *listener = connection->listener;
    emit_connector(batch, connection);
    uint64_t at = listener->socket ? SLOT(plan, listener->socket->description) : aux_slot(plan->world, listener->aux);
    EMIT(batch, connection->label, SYS_accept4, at, 0, 0, SOCK_CLOEXEC);
    cell_to_slot(batch, emit_result_cell(batch), unix_acceptor_fd(plan, connection), connection->label);
}

static void emit_connection(struct plan *plan, const struct unix_connection *connection)
{
    const struct unix_socket *either = connection->connector ? connection->connector : connection->acceptor;
    struct batch *batch = batch_for(plan, STAGE_CONNECT, &connection->credentials);
    emit_groups(batch, &connection->groups, connection->label);
    if (connection->listener)
        emit_accepted(plan, connection);
    else
        emit_pair(batch, either->net, either->type, unix_connector_fd(plan, connection), unix_acceptor_fd(plan, connection), connection->label);
    if (connection->connector)
        unix_emit_settings(batch, connection->connector);
    if (connection->acceptor)
        unix_emit_settings(batch, connection->acceptor);
}

static bool has_message_from_others(const struct unix_socket *socket)
{
    for (int i = 0; i < socket->message_count; i++)
        if (!unix_same_name(&socket->messages[i].sender, &socket->peer->name))
            return true;
    return false;
}

/*
 * A connected datagram socket takes messages and connections from its peer alone. So first those connect that are connected to it, then it
 * gets what others had sent to it before, and only then is it connected itself.
 */
static void emit_datagram_peer(struct plan *plan, struct unix_table *table, struct unix_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_CONNECT];
    if (socket->joined || socket->visited || !socket->peer || !unix_is_named(&socket->peer->name))
        return;
    socket->joined = true;
    for (struct unix_socket *client = socket->first_client; client; client = client->next_client)
        emit_datagram_peer(plan, table, client);
    if (has_message_from_others(socket)) {
        unix_fill_datagrams(plan, table, socket, batch);
        socket->filled = true;
    }
    unix_place_connect(batch, socket->peer->place, &socket->peer->name, SLOT(plan, socket->description), socket->label);
}

/* After all that connect and accept at the same listener. */
static struct batch *last_batch_for(struct plan *plan, enum stage stage, const struct ucred *credentials)
{
    return plan_fresh_creator(plan, stage, credentials->pid > 1 ? credentials->pid : 0, credentials->uid, credentials->gid);
}

/* A client that has gone again before it was accepted: the server finds a connection at its end. */
static void emit_left(struct plan *plan, const struct unix_connection *connection)
{
    struct batch *batch = last_batch_for(plan, STAGE_CONNECT, &(struct ucred){ 0 });
    emit_connector(batch, connection);
    EMIT(batch, connection->label, SYS_close, aux_slot(plan->world, connection->aux));
}

/* Connections that the listener has not accepted yet. Who connects is not recorded before accept: take who holds the socket. */
static void emit_pending(struct plan *plan, struct unix_table *table)
{
    for (int i = 0; i < table->connection_count; i++) {
        const struct unix_connection *connection = table->connections[i];
        if (!connection->pending)
            continue;
        if (!connection->connector) {
            emit_left(plan, connection);
            continue;
        }
        const struct description *description = connection->connector->description;
        const struct process *holder = description->holder;
        struct ucred credentials = { holder ? holder->ns_pid : 0, description->st.st_uid, description->st.st_gid };
        struct batch *batch = last_batch_for(plan, STAGE_CONNECT, &credentials);
        if (holder) {
            const struct credentials *its = &holder->threads[0].credentials;
            emit_groups(batch, &(struct unix_groups){ .list = its->groups, .count = its->group_count }, connection->label);
        }
        emit_connector(batch, connection);
        unix_emit_settings(batch, connection->connector);
    }
}

int unix_emit_connect(struct plan *plan, struct unix_table *table, struct error *err)
{
    (void)err;
    for (int i = 0; i < table->connection_count; i++)
        if (!table->connections[i]->pending)
            emit_connection(plan, table->connections[i]);
    for (int i = 0; i < table->count; i++)
        if (table->sockets[i]->type == SOCK_DGRAM)
            emit_datagram_peer(plan, table, table->sockets[i]);
    emit_pending(plan, table);
    return 0;
}
