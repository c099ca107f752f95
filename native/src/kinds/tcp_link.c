/*
 * What becomes of each stream. A connection is kept when both its ends are descriptors of the workspace: the peer is then found by its
 * addresses. An end without a descriptor is one that was closed, or one that waits to be accepted; sock_diag tells which. Everything else leads
 * out of the workspace, and nothing of a branch may ever appear on the source's connection: it ends.
 */
#include "inet.h"
#include "sock_diag.h"
#include "../descriptors.h"
#include "../doubt.h"
#include "../files.h"

#include <errno.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct end_name {
    uint64_t namespace;
    struct in6_addr address;
    uint64_t port;
};

/* Of one direction of a connection; IPv4 addresses as IPv6 sockets report them, so that both sorts of socket meet. */
struct connection_name {
    struct end_name from, to;
};

static struct end_name name_of(uint64_t namespace, const union inet_address *address)
{
    struct end_name name = { .namespace = namespace, .port = address->v4.sin_port };
    if (address->any.sa_family == AF_INET) {
        name.address.s6_addr[10] = name.address.s6_addr[11] = 0xff;
        memcpy(name.address.s6_addr + 12, &address->v4.sin_addr, 4);
    } else {
        name.address = address->v6.sin6_addr;
    }
    return name;
}

static void name_connection(const struct inet_socket *socket, struct connection_name *own, struct connection_name *mirrored)
{
    own->from = mirrored->to = name_of(socket->namespace, &socket->local);
    own->to = mirrored->from = name_of(socket->namespace, &socket->peer);
}

static bool is_connected(const struct inet_socket *socket)
{
    int state = socket->stream->state;
    return socket->peer_size && state != STREAM_LISTEN && state != STREAM_CLOSE && state != STREAM_SYN_SENT;
}

static bool is_goodbye(const struct stream *stream)
{
    return stream->state == STREAM_CLOSE && stream->read_shut && !stream->error_pending && !stream->never_sent;
}

/* Or was, and has ended in good order. */
static bool has_name(const struct inet_socket *socket)
{
    return socket->protocol != IPPROTO_MPTCP && socket->peer_size && (is_connected(socket) || is_goodbye(socket->stream));
}

/* Both its addresses are the same, as on the loopback: so both belong to the workspace. */
static bool is_here(const struct inet_socket *socket)
{
    struct end_name own = name_of(0, &socket->local), other = name_of(0, &socket->peer);
    return socket->peer_size && memcmp(&own.address, &other.address, sizeof own.address) == 0;
}

bool stream_sent_end(const struct stream *stream)
{
    return stream->state == STREAM_FIN_WAIT1 || stream->state == STREAM_FIN_WAIT2 || stream->state == STREAM_CLOSING
           || stream->state == STREAM_LAST_ACK || (stream->state == STREAM_CLOSE && stream->role == ROLE_PAIR);
}

bool stream_received_end(const struct stream *stream)
{
    return stream->state == STREAM_CLOSE_WAIT || stream->state == STREAM_CLOSING || stream->state == STREAM_LAST_ACK;
}

/* ---- capture ---- */

static int read_info(const struct inet_socket *socket, struct tcp_info *info, struct error *err)
{
    socklen_t size = sizeof *info;
    memset(info, 0, sizeof *info);
    if (getsockopt(socket->description->local, IPPROTO_TCP, TCP_INFO, info, &size) < 0)
        return fail_errno(err, "%s: cannot read its TCP state", socket->label);
    return 0;
}

/*
 * Both counters count bytes from the first: retransmissions are taken out on the sending side, and an end of file, which takes up a number,
 * on both. What is not sent includes an end of file that waits behind it.
 */
static void take_counters(struct stream *stream, const struct tcp_info *info)
{
    stream->state = info->tcpi_state;
    bool end_waits = info->tcpi_notsent_bytes && stream_sent_end(stream);
    stream->written = info->tcpi_bytes_sent - info->tcpi_bytes_retrans + info->tcpi_notsent_bytes - end_waits;
    stream->received = info->tcpi_bytes_received - stream_received_end(stream);
    stream->send_window = info->tcpi_snd_wnd;
}

int stream_count(struct inet_socket *socket, struct error *err)
{
    struct tcp_info info;
    if (read_info(socket, &info, err) < 0)
        return -1;
    take_counters(socket->stream, &info);
    return 0;
}

static bool has_tls(int fd)
{
    char name[16] = "";
    socklen_t size = sizeof name;
    if (getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &size) < 0) {
        doubt(ANSWERS(ENOPROTOOPT, EOPNOTSUPP, EINVAL, ENOTCONN), "cannot tell whether the kernel does the TLS of a stream");
        return false;
    }
    return size && strncmp(name, "tls", sizeof name) == 0;
}

int stream_read(struct inet_socket *socket, struct error *err)
{
    struct stream *stream = socket->stream = must_alloc(sizeof *stream);
    struct tcp_info info;
    stream->aux = -1;
    stream->unread.urgent_at = -1;
    if (read_info(socket, &info, err) < 0)
        return -1;
    take_counters(stream, &info);
    stream->options = info.tcpi_options;
    stream->send_scale = info.tcpi_snd_wscale;
    stream->receive_scale = info.tcpi_rcv_wscale;
    stream->own_mss = info.tcpi_advmss;
    /* For a listener the kernel reports its backlog here (tcp_get_info in net/ipv4/tcp.c). */
    stream->backlog = (int)info.tcpi_sacked;
    stream->never_sent = info.tcpi_bytes_acked == 0 && info.tcpi_bytes_received == 0 && info.tcpi_options == 0;
    struct pollfd events = { socket->description->local, POLLRDHUP | POLLPRI, 0 };
    if (poll(&events, 1, 0) < 0)
        return fail_errno(err, "%s: cannot poll it", socket->label);
    stream->error_pending = events.revents & POLLERR;
    stream->read_shut = events.revents & POLLRDHUP;
    stream->urgent = events.revents & POLLPRI;
    stream->offloaded = is_connected(socket) && has_tls(socket->description->local);
    return 0;
}

/* ---- link ---- */

static void end_with(struct inet_socket *socket, enum stream_end end)
{
    socket->stream->role = ROLE_ENDED;
    socket->stream->end = end;
}

/* A connection that failed, was reset or has been closed by both, and not a socket that never was connected: reading must not say ENOTCONN. */
static bool has_ended(const struct stream *stream)
{
    return stream->state == STREAM_CLOSE && (stream->error_pending || stream->read_shut);
}

static void judge_closed(struct inet_socket *socket)
{
    struct stream *stream = socket->stream;
    if (!has_ended(stream))
        return;
    if (stream->never_sent)
        end_with(socket, END_REFUSED);
    else
        end_with(socket, stream->error_pending ? END_RESET : END_CLOSED);
}

static void pair(struct inet_socket *socket, struct inet_socket *mate)
{
    socket->stream->role = mate->stream->role = ROLE_PAIR;
    socket->stream->mate = mate;
    mate->stream->mate = socket;
}

/* Has one end told the other goodbye, and been told, and so nothing is on the way but the acknowledgement of the last word? */
static bool are_over(const struct stream *one, const struct stream *other)
{
    return is_goodbye(one) && (is_goodbye(other) || other->state == STREAM_LAST_ACK) && other->role == ROLE_UNCONNECTED && !other->offloaded;
}

/* Both ends are here, and have said goodbye: they do it again in the branch. */
static int join_ended(struct inet_socket *socket, struct inet_socket *mate, struct error *err)
{
    pair(socket, mate);
    return stream_read_unread(socket, err) < 0 ? -1 : stream_read_unread(mate, err);
}

/* Outside: what the other end has said is heard to its end, what it might still say is not; unless the user has asked for an end of file. */
static void judge_outward(const struct world *world, struct inet_socket *socket)
{
    end_with(socket, stream_received_end(socket->stream) || world->options.tcp_close ? END_CLOSED : END_RESET);
}

static bool has_listener(const struct inet_table *table, const struct inet_socket *client)
{
    struct end_name wanted = name_of(client->namespace, &client->peer);
    static const struct in6_addr any, any_v4 = { .s6_addr = { [10] = 0xff, [11] = 0xff } };
    for (int i = 0; i < table->count; i++) {
        const struct inet_socket *socket = table->streams[i];
        if (socket->stream->state != STREAM_LISTEN || socket->namespace != client->namespace)
            continue;
        struct end_name name = name_of(socket->namespace, &socket->local);
        if (name.port == wanted.port && (memcmp(&name.address, &wanted.address, sizeof any) == 0
                                         || memcmp(&name.address, &any, sizeof any) == 0 || memcmp(&name.address, &any_v4, sizeof any) == 0))
            return true;
    }
    return false;
}

static bool is_waiting_state(int state)
{
    return state == STREAM_ESTABLISHED || state == STREAM_CLOSE_WAIT || state == STREAM_SYN_RECV;
}

/* No descriptor of the workspace is the other end. */
static int judge_lonely(struct world *world, struct inet_socket *socket, struct error *err)
{
    struct stream *stream = socket->stream;
    struct inet_found found;
    if (inet_diag_mirror(world, socket, &found, err) < 0)
        return -1;
    if (found.state && found.inode == 0 && is_waiting_state(found.state)) {
        /* Nobody but the listener can read what was sent to it: rather than lose it in silence the branch's client sees the end. */
        if (has_listener(world->inet_sockets, socket) && stream->written == 0)
            stream->role = ROLE_WAITING;
        else
            judge_outward(world, socket);
        return 0;
    }
    bool closed_inside = found.state && found.inode == 0;
    if (stream_received_end(stream) && !stream_sent_end(stream) && (closed_inside || (!found.state && is_here(socket))))
        stream->role = ROLE_WIDOWED;
    else
        judge_outward(world, socket);      /* also when the closed end still had bytes to send, which nobody can read: not a false end of file */
    return 0;
}

static int judge_over(struct inet_socket *socket, const struct byte_index *index, struct error *err)
{
    struct stream *stream = socket->stream;
    judge_closed(socket);
    if (stream->role != ROLE_ENDED || stream->end != END_CLOSED || !inet_has_port(&socket->local) || !is_here(socket))
        return 0;
    struct connection_name own, mirrored;
    name_connection(socket, &own, &mirrored);
    struct inet_socket *mate = byte_index_find(index, &mirrored, sizeof mirrored);
    stream->real_names = !mate && byte_index_find(index, &own, sizeof own) == socket;
    return mate && mate != socket && are_over(stream, mate->stream) ? join_ended(socket, mate, err) : 0;
}

static int join_connected(struct inet_socket *socket, struct inet_socket *mate, struct error *err)
{
    int exact = stream_read_direction(socket, mate, err);
    if (exact > 0)
        exact = stream_read_direction(mate, socket, err);
    if (exact < 0)
        return -1;
    if (exact) {
        pair(socket, mate);
        return 0;
    }
    end_with(socket, END_RESET);
    end_with(mate, END_RESET);
    return 0;
}

static int judge(struct world *world, struct inet_socket *socket, const struct byte_index *index, struct error *err)
{
    struct stream *stream = socket->stream;
    if (stream->role != ROLE_UNCONNECTED || stream->state == STREAM_LISTEN)
        return 0;
    if (stream->state == STREAM_CLOSE)
        return judge_over(socket, index, err);
    if (world->options.tcp_close || socket->protocol == IPPROTO_MPTCP || stream->offloaded) {
        judge_outward(world, socket);
        return 0;
    }
    if (stream->state == STREAM_SYN_SENT) {
        stream->role = ROLE_CONNECTING;
        return 0;
    }
    struct connection_name own, mirrored;
    name_connection(socket, &own, &mirrored);
    struct inet_socket *mate = byte_index_find(index, &mirrored, sizeof mirrored);
    if (mate && mate != socket && are_over(mate->stream, stream))
        return join_ended(socket, mate, err);
    if (!mate || mate == socket || mate->stream->offloaded || !is_connected(mate))
        return judge_lonely(world, socket, err);
    return join_connected(socket, mate, err);
}

static bool is_alone(const struct stream *stream)
{
    return stream->role == ROLE_WIDOWED || stream->role == ROLE_ENDED;
}

/* Sockets that are bound to one port may do that by an option which was taken back since. */
static void find_sharers(const struct inet_table *table)
{
    struct byte_index first = { 0 };
    AUTO_FREE uint64_t (*places)[2] = must_alloc((size_t)table->count * sizeof *places);
    for (int i = 0; i < table->count; i++) {
        struct inet_socket *socket = table->streams[i];
        if (socket->stream->role != ROLE_UNCONNECTED || !inet_has_port(&socket->local))
            continue;
        places[i][0] = socket->namespace;
        places[i][1] = socket->local.v4.sin_port;
        struct inet_socket *other = byte_index_find(&first, places[i], sizeof places[i]);
        if (other)
            other->stream->shares_port = socket->stream->shares_port = true;
        else
            byte_index_put(&first, places[i], sizeof places[i], socket);
    }
    free(first.entries);
}

/* At most 256 bytes come in one piece. */
static int choose_sequences(const struct inet_table *table, struct error *err)
{
    uint32_t numbers[64];
    for (int i = 0; i < table->count; i++) {
        if (i % 64 == 0 && getrandom(numbers, sizeof numbers, 0) != (ssize_t)sizeof numbers)
            return fail_errno(err, "cannot choose sequence numbers");
        table->streams[i]->stream->sequence = numbers[i % 64];
    }
    return 0;
}

int stream_link(struct world *world, struct error *err)
{
    struct inet_table *table = world->inet_sockets;
    if (!table)
        return 0;
    struct byte_index index = { 0 };
    AUTO_FREE struct connection_name *names = must_alloc((size_t)table->count * sizeof *names);
    for (int i = 0; i < table->count; i++) {
        struct connection_name mirrored;
        if (!has_name(table->streams[i]))
            continue;
        name_connection(table->streams[i], &names[i], &mirrored);
        /* A dead one may have the name of one that lives. */
        if (is_connected(table->streams[i]) || !byte_index_find(&index, &names[i], sizeof names[i]))
            byte_index_put(&index, &names[i], sizeof names[i], table->streams[i]);
    }
    int status = 0;
    for (int i = 0; i < table->count && status == 0; i++) {
        struct stream *stream = table->streams[i]->stream;
        status = judge(world, table->streams[i], &index, err);
        if (status == 0 && is_alone(stream) && !stream->offloaded)
            status = stream_read_unread(table->streams[i], err);
        if (is_alone(stream))
            stream->aux = files_new_aux(world);
    }
    free(index.entries);
    find_sharers(table);
    return status < 0 ? -1 : choose_sequences(table, err);
}
