/* Who is connected to whom, and how that came about: by socketpair, or by connect and accept at a listener. */
#include "unix_early.h"
#include "unix_socket.h"
#include "../files.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static bool is_connected_kind(const struct unix_socket *socket)
{
    return socket->type != SOCK_DGRAM && !socket->listening;
}

/* Listeners are found by type and name. */
struct listener_key {
    int type, scope;
    char name[NAME_MAXIMUM];
};

static size_t make_key(struct listener_key *key, int type, const struct unix_name *name, const struct namespace *net)
{
    *key = (struct listener_key){ .type = type, .scope = unix_name_scope(name, net) };
    memcpy(key->name, name->address, name->length);
    return offsetof(struct listener_key, name) + name->length;
}

static void put_listener(struct unix_table *table, struct unix_listener *listener)
{
    struct listener_key *key = must_alloc(sizeof *key);
    size_t length = make_key(key, listener->type, listener->name, listener->net);
    byte_index_put(&table->listeners, key, length, listener);
}

static struct unix_listener *find_listener(struct unix_table *table, int type, const struct unix_name *name, const struct namespace *net)
{
    struct listener_key key;
    return byte_index_find(&table->listeners, &key, make_key(&key, type, name, net));
}

/* Datagram sockets by name. */
static void put_named(struct unix_table *table, struct unix_socket *socket)
{
    struct listener_key *key = must_alloc(sizeof *key);
    size_t length = make_key(key, SOCK_DGRAM, &socket->name, socket->net);
    byte_index_put(&table->named, key, length, socket);
}

struct unix_socket *unix_find_named(const struct unix_table *table, const struct unix_name *name, const struct namespace *net)
{
    struct listener_key key;
    return byte_index_find(&table->named, &key, make_key(&key, SOCK_DGRAM, name, net));
}

static void add_listeners(struct unix_table *table)
{
    for (int i = 0; i < table->count; i++) {
        struct unix_socket *socket = table->sockets[i];
        if (!socket->listening)
            continue;
        struct unix_listener *listener = must_alloc(sizeof *listener);
        *listener = (struct unix_listener){ .socket = socket, .name = &socket->name, .place = socket->place, .type = socket->type, .net = socket->net,
                                            .credentials = socket->peer_credentials, .groups = socket->peer_groups, .label = socket->label, .aux = -1 };
        socket->listener = listener;
        /* Of two with one path name the one whose file is still there is meant. */
        struct unix_listener *known = find_listener(table, socket->type, &socket->name, socket->net);
        if (!known || (socket->place && socket->place->in_place))
            put_listener(table, listener);
    }
}

/* A stand-in for a listener that is gone, so that the accepted end gets its name. */
static struct unix_listener *temporary_listener(struct world *world, struct unix_table *table, const struct unix_socket *like,
                                                const struct unix_name *name, const struct unix_socket *sees)
{
    struct unix_listener *listener = must_alloc(sizeof *listener);
    *listener = (struct unix_listener){ .name = name, .type = like->type, .net = like->net, .credentials = sees->peer_credentials, .groups = sees->peer_groups,
                                        .label = like->label,
                                        .aux = files_new_aux(world) };
    if (unix_is_path(name))
        listener->place = unix_place_temporary(world, name, 1000000 + table->temporary_count);
    table->temporary = must_grow(table->temporary, (size_t)(table->temporary_count + 1) * sizeof *table->temporary);
    table->temporary[table->temporary_count++] = listener;
    put_listener(table, listener);
    return listener;
}

static struct unix_connection *add_connection(struct unix_table *table, const char *label)
{
    struct unix_connection *connection = must_alloc(sizeof *connection);
    connection->label = label;
    connection->aux = -1;
    table->connections = must_grow(table->connections, (size_t)(table->connection_count + 1) * sizeof *table->connections);
    table->connections[table->connection_count++] = connection;
    return connection;
}

/* The accepted end bears the listener's name; the connecting one mostly has none. */
static bool is_acceptor(struct unix_table *table, const struct unix_socket *socket, const struct unix_name *peer_name)
{
    if (!unix_is_named(&socket->name))
        return false;
    if (!unix_is_named(peer_name))
        return true;
    return find_listener(table, socket->type, &socket->name, socket->net) && !find_listener(table, socket->type, peer_name, socket->net);
}

static void join(struct world *world, struct unix_table *table, struct unix_socket *socket, struct unix_socket *peer)
{
    struct unix_connection *connection = add_connection(table, socket->label);
    const struct unix_name *peer_name = peer ? &peer->name : &socket->peer_name;
    bool accepted = is_acceptor(table, socket, peer_name);
    connection->acceptor = accepted ? socket : peer;
    connection->connector = accepted ? peer : socket;
    const struct unix_name *listening = accepted ? &socket->name : peer_name;
    /* The connecting end sees who called listen, the accepted end who called connect; after socketpair both see its caller. */
    const struct unix_socket *seen_by = connection->acceptor ? connection->acceptor : socket;
    connection->credentials = seen_by->peer_credentials;
    connection->groups = seen_by->peer_groups;
    if (unix_is_named(listening)) {
        connection->listener = find_listener(table, socket->type, listening, socket->net);
        const struct unix_socket *sees_listener = connection->connector ? connection->connector : socket;
        if (!connection->listener)
            connection->listener = temporary_listener(world, table, socket, listening, sees_listener);
    }
    if (!peer)
        connection->aux = files_new_aux(world);
    socket->connection = connection;
    socket->peer = peer;
    if (peer) {
        peer->connection = connection;
        peer->peer = socket;
    }
}

/* A client that was closed already, or is outside the workspace: it is in the queue and has no other end. What it had sent is lost. */
static void add_left(struct world *world, struct unix_table *table, const struct unix_socket *listener)
{
    struct unix_connection *connection = add_connection(table, listener->label);
    connection->pending = true;
    connection->listener = listener->listener;
    connection->aux = files_new_aux(world);
}

/* What the client has sent goes with its process's credentials, if the listener asks for them. False = it cannot be told. */
static bool take_early(const struct world *world, struct unix_connection *connection, const struct unix_socket *listener)
{
    const struct unix_socket *client = connection->connector;
    const struct process *holder = client->description->holder;
    int count = unix_early_read(client, &connection->early);
    connection->early_count = count < 0 ? 0 : count;
    for (int i = 0; i < connection->early_count && holder && socket_options_find(&listener->options, SOL_SOCKET, SO_PASSCRED); i++) {
        const struct credentials *its = &holder->threads[0].credentials;
        connection->early[i].has_credentials = true;
        connection->early[i].credentials = (struct ucred){ unix_pid_in_workspace(world, holder->pid), its->uid[1], its->gid[1] };
    }
    return count >= 0;
}

static void add_pending(struct world *world, struct unix_table *table, struct unix_socket *listener)
{
    for (int i = 0; i < listener->diag.pending_count; i++) {
        uint32_t inode = listener->diag.pending[i];
        struct unix_socket *client = inode ? byte_index_find(&table->by_inode, &inode, sizeof inode) : NULL;
        if (!client || client->connection) {
            add_left(world, table, listener);
            continue;
        }
        struct unix_connection *connection = add_connection(table, client->label);
        connection->connector = client;
        client->connection = connection;
        bool unread = client->diag.limit > 0 && !take_early(world, connection, listener);
        /* Rather than lose in silence what cannot be told the branch's client sees the end. */
        connection->pending = !unread;
        connection->listener = unread ? NULL : listener->listener;
        connection->aux = unread ? files_new_aux(world) : -1;
    }
}

bool unix_peer_is_gone(const struct unix_socket *socket)
{
    return socket->type == SOCK_DGRAM && socket->diag.has_peer && !socket->peer;
}

static void link_datagram(struct world *world, struct unix_table *table, struct unix_socket *socket)
{
    uint32_t inode = socket->diag.peer;
    socket->peer = socket->diag.has_peer && inode ? byte_index_find(&table->by_inode, &inode, sizeof inode) : NULL;
    if (socket->peer) {
        socket->next_client = socket->peer->first_client;
        socket->peer->first_client = socket;
    }
    socket->aux = unix_peer_is_gone(socket) ? files_new_aux(world) : -1;
}

int unix_link(struct world *world, struct error *err)
{
    struct unix_table *table = world->unix_sockets;
    if (!table)
        return 0;
    if (unix_pids_resolve(world, table, err) < 0)
        return -1;
    table->nobody_aux = files_new_aux(world);
    add_listeners(table);
    for (int i = 0; i < table->count; i++)
        if (table->sockets[i]->listening)
            add_pending(world, table, table->sockets[i]);
    for (int i = 0; i < table->count; i++) {
        struct unix_socket *socket = table->sockets[i];
        if (socket->type == SOCK_DGRAM) {
            link_datagram(world, table, socket);
            put_named(table, socket);
        }
        if (!is_connected_kind(socket) || socket->connection || !socket->diag.has_peer)
            continue;
        uint32_t inode = socket->diag.peer;
        join(world, table, socket, inode ? byte_index_find(&table->by_inode, &inode, sizeof inode) : NULL);
    }
    return 0;
}
