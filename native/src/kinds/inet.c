/*
 * TCP and UDP sockets. Listeners and datagram sockets are made again; a TCP connection is not continued in a branch: its descriptor becomes
 * one whose peer has reset the connection, which wakes whoever waits for it and tells the program plainly that the connection is gone.
 */
#include "../descriptors.h"
#include "../plan.h"
#include "sock_options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

union inet_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct inet_data {
    int domain, type, protocol;
    int state;                  /* TCP_*, streams only */
    int backlog;
    bool was_connected;
    union inet_address local, peer;
    socklen_t local_size, peer_size;    /* peer_size 0 = not connected */
    struct socket_options options;
};

static const struct option_name stream_options[] = {
    { SOL_SOCKET, SO_REUSEADDR, 4 }, { SOL_SOCKET, SO_REUSEPORT, 4 }, { SOL_SOCKET, SO_KEEPALIVE, 4 }, { SOL_SOCKET, SO_LINGER, 8 },
    { SOL_SOCKET, SO_OOBINLINE, 4 }, { SOL_SOCKET, SO_RCVLOWAT, 4 }, { SOL_SOCKET, SO_RCVTIMEO, 16 }, { SOL_SOCKET, SO_SNDTIMEO, 16 },
    { SOL_SOCKET, SO_PRIORITY, 4 }, { SOL_SOCKET, SO_MARK, 4 }, { IPPROTO_IP, IP_TOS, 4 }, { IPPROTO_IP, IP_TTL, 4 },
    { IPPROTO_IP, IP_FREEBIND, 4 }, { IPPROTO_IPV6, IPV6_V6ONLY, 4 }, { IPPROTO_IPV6, IPV6_TCLASS, 4 }, { IPPROTO_TCP, TCP_NODELAY, 4 },
    { IPPROTO_TCP, TCP_KEEPIDLE, 4 }, { IPPROTO_TCP, TCP_KEEPINTVL, 4 }, { IPPROTO_TCP, TCP_KEEPCNT, 4 }, { IPPROTO_TCP, TCP_USER_TIMEOUT, 4 },
    { IPPROTO_TCP, TCP_DEFER_ACCEPT, 4 }, { IPPROTO_TCP, TCP_FASTOPEN, 4 }, { IPPROTO_TCP, TCP_SYNCNT, 4 }, { 0, 0, 0 },
};

static const struct option_name datagram_options[] = {
    { SOL_SOCKET, SO_REUSEADDR, 4 }, { SOL_SOCKET, SO_REUSEPORT, 4 }, { SOL_SOCKET, SO_BROADCAST, 4 }, { SOL_SOCKET, SO_SNDBUF, 4 },
    { SOL_SOCKET, SO_RCVBUF, 4 }, { SOL_SOCKET, SO_RCVTIMEO, 16 }, { SOL_SOCKET, SO_SNDTIMEO, 16 }, { SOL_SOCKET, SO_PRIORITY, 4 },
    { SOL_SOCKET, SO_MARK, 4 }, { SOL_SOCKET, SO_TIMESTAMP, 4 }, { IPPROTO_IP, IP_TOS, 4 }, { IPPROTO_IP, IP_TTL, 4 },
    { IPPROTO_IP, IP_PKTINFO, 4 }, { IPPROTO_IP, IP_RECVERR, 4 }, { IPPROTO_IP, IP_RECVTOS, 4 }, { IPPROTO_IP, IP_RECVTTL, 4 },
    { IPPROTO_IP, IP_MTU_DISCOVER, 4 }, { IPPROTO_IP, IP_MULTICAST_TTL, 4 }, { IPPROTO_IP, IP_MULTICAST_LOOP, 4 },
    { IPPROTO_IP, IP_FREEBIND, 4 }, { IPPROTO_IPV6, IPV6_V6ONLY, 4 }, { IPPROTO_IPV6, IPV6_RECVPKTINFO, 4 },
    { IPPROTO_IPV6, IPV6_RECVERR, 4 }, { IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 4 }, { IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 4 }, { 0, 0, 0 },
};

static bool is_inet(int domain) { return domain == AF_INET || domain == AF_INET6; }

static bool match(const struct description *description)
{
    return S_ISSOCK(description->st.st_mode) && is_inet(socket_number(description->local, SO_DOMAIN));
}

static int check(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    int type = socket_number(description->local, SO_TYPE), protocol = socket_number(description->local, SO_PROTOCOL);
    if ((type == SOCK_STREAM && protocol == IPPROTO_TCP) || (type == SOCK_DGRAM && (protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE)))
        return 0;
    return fail(err, "unsupported", "%s has type %d and protocol %d (a raw or unusual socket), which cannot be forked; end the program that uses it",
                description_label(description), type, protocol);
}

static int read_stream_state(struct inet_data *data, const struct description *description, struct error *err)
{
    struct tcp_info info = { 0 };
    socklen_t size = sizeof info;
    if (getsockopt(description->local, IPPROTO_TCP, TCP_INFO, &info, &size) < 0)
        return fail_errno(err, "%s: cannot read its TCP state", description_label(description));
    data->state = info.tcpi_state;
    struct pollfd events = { description->local, POLLRDHUP, 0 };
    if (poll(&events, 1, 0) < 0)
        return fail_errno(err, "%s: cannot poll it", description_label(description));
    /* A connection that failed or was reset, and not a socket that never was connected: reading must not say ENOTCONN. */
    data->was_connected = data->state == TCP_CLOSE && events.revents & (POLLERR | POLLRDHUP);
    /* For a listener the kernel reports its backlog here (tcp_get_info in net/ipv4/tcp.c). */
    data->backlog = (int)info.tcpi_sacked;
    return 0;
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    if (check(world, description, err) < 0)
        return -1;
    struct inet_data *data = description->data = must_alloc(sizeof *data);
    int fd = description->local;
    data->domain = socket_number(fd, SO_DOMAIN);
    data->type = socket_number(fd, SO_TYPE);
    data->protocol = socket_number(fd, SO_PROTOCOL);
    data->local_size = sizeof data->local;
    if (getsockname(fd, &data->local.any, &data->local_size) < 0)
        return fail_errno(err, "%s: cannot read its address", description_label(description));
    data->peer_size = sizeof data->peer;
    if (getpeername(fd, &data->peer.any, &data->peer_size) < 0)
        data->peer_size = 0;
    bool stream = data->type == SOCK_STREAM;
    if (stream && read_stream_state(data, description, err) < 0)
        return -1;
    return socket_options_read(&data->options, description, stream ? stream_options : datagram_options, data->domain, data->type,
                               data->protocol, err);
}

static bool has_port(const struct inet_data *data)
{
    return data->local.v4.sin_port != 0;       /* sin6_port lies at the same place */
}

/* The owner decides who may join a SO_REUSEPORT group, so the socket is made by a process with that id. */
static struct batch *batch_of_owner(struct plan *plan, const struct description *description, enum stage stage)
{
    if (description->st.st_uid == 0)
        return &plan->common[stage];
    return plan_creator(plan, stage, 0, description->st.st_uid, description->st.st_gid);
}

static void emit_socket(struct batch *batch, const struct description *description, const char *what)
{
    const struct inet_data *data = description->data;
    EMIT(batch, what, SYS_socket, (uint64_t)data->domain, (uint64_t)data->type, (uint64_t)data->protocol);
    emit_to_slot(batch, description, what);
    socket_options_emit(batch, &data->options, SLOT(batch->plan, description), what);
}

static void emit_bind(struct batch *batch, const struct description *description, const char *what)
{
    const struct inet_data *data = description->data;
    if (!has_port(data))
        return;
    /* The address may not be usable yet (IPv6 checks for duplicates first), or be missing in the branch: the socket is made all the same. */
    uint64_t slot = SLOT(batch->plan, description);
    int level = data->domain == AF_INET ? IPPROTO_IP : IPPROTO_IPV6, name = data->domain == AF_INET ? IP_FREEBIND : IPV6_FREEBIND;
    const struct socket_option *set = socket_options_find(&data->options, level, name);
    int on = 1, off = 0;
    socket_option_emit(batch, slot, level, name, &on, sizeof on, what);
    EMIT(batch, what, SYS_bind, slot, plan_data(batch->plan, &data->local, data->local_size), data->local_size);
    if (!set)
        socket_option_emit(batch, slot, level, name, &off, sizeof off, what);
}

/* A connection to a listener of our own, reset by its other end. */
static void emit_reset_connection(struct batch *batch, const struct description *description, const char *what)
{
    const struct inet_data *data = description->data;
    struct plan *plan = batch->plan;
    union inet_address loopback = { .any.sa_family = (sa_family_t)data->domain };
    uint32_t size = data->domain == AF_INET ? sizeof loopback.v4 : sizeof loopback.v6;
    const struct socket_option *only = socket_options_find(&data->options, IPPROTO_IPV6, IPV6_V6ONLY);
    if (data->domain == AF_INET)
        loopback.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else if (only)
        loopback.v6.sin6_addr = in6addr_loopback;
    else    /* ::ffff:127.0.0.1 also works where IPv6 is disabled */
        inet_pton(AF_INET6, "::ffff:127.0.0.1", &loopback.v6.sin6_addr);
    struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    uint64_t address = plan_data(plan, &loopback, sizeof loopback);
    uint64_t address_size = plan_data(plan, &size, sizeof size);

    EMIT(batch, what, SYS_socket, (uint64_t)data->domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint64_t listener = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_bind, listener, address, size);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_listen, listener, 1);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_getsockname, listener, address, address_size);
    EMIT(batch, what, SYS_connect, SLOT(plan, description), address, size);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_accept4, listener, 0, 0, SOCK_CLOEXEC);
    uint64_t accepted = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_setsockopt, accepted, SOL_SOCKET, SO_LINGER, plan_data(plan, &reset, sizeof reset), sizeof reset);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, accepted);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, listener);
}

static void emit_stream(struct plan *plan, const struct description *description, enum stage stage, const char *what)
{
    const struct inet_data *data = description->data;
    bool connected = data->was_connected || (data->state != TCP_LISTEN && data->state != TCP_CLOSE);
    struct batch *batch = batch_of_owner(plan, description, stage);
    /* Connections come after all listeners: their temporary ports must not take a number that one of those wants. */
    if (stage == STAGE_MAKE && !connected) {
        emit_socket(batch, description, what);
        emit_bind(batch, description, what);
        if (data->state == TCP_LISTEN)
            EMIT(batch, what, SYS_listen, SLOT(plan, description), (uint64_t)data->backlog);
        emit_status_flags(batch, description, what);
    }
    if (stage == STAGE_CONNECT && connected) {
        emit_socket(batch, description, what);
        emit_reset_connection(batch, description, what);
        emit_status_flags(batch, description, what);
    }
}

static void emit_datagram(struct plan *plan, const struct description *description, const char *what)
{
    const struct inet_data *data = description->data;
    struct batch *batch = batch_of_owner(plan, description, STAGE_MAKE);
    emit_socket(batch, description, what);
    emit_bind(batch, description, what);
    if (data->peer_size)    /* a peer without a route cannot be connected to again; sending to it failed in the source as well */
        EMIT_FLAGS(batch, what, OP_MAY_FAIL, SYS_connect, SLOT(plan, description), plan_data(plan, &data->peer, data->peer_size), data->peer_size);
    emit_status_flags(batch, description, what);
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    const struct inet_data *data = description->data;
    const char *what = description_label(description);
    if (data->type == SOCK_STREAM)
        emit_stream(plan, description, stage, what);
    else if (stage == STAGE_MAKE)
        emit_datagram(plan, description, what);
    return 0;
}

const struct fd_kind kind_inet = { .name = "internet socket", .match = match, .check = check, .capture = capture, .emit = emit };
