#include "inet.h"
#include "kinds.h"
#include "socket_text.h"
#include "../descriptors.h"
#include "../doubt.h"
#include "../namespace_plan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sockios.h>
#include <linux/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

static bool is_inet(int domain) { return domain == AF_INET || domain == AF_INET6; }

static bool match(const struct description *description)
{
    return S_ISSOCK(description->st.st_mode) && is_inet(socket_number(description->local, SO_DOMAIN));
}

/* ---- what is refused ---- */

static bool is_known(int type, int protocol)
{
    switch (type) {
    case SOCK_STREAM:
        return protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
    case SOCK_DGRAM:
        return protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE || protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6;
    default:
        return type == SOCK_RAW;
    }
}

/*
 * Half of a datagram (UDP_CORK, MSG_MORE) waits in the kernel for the rest, where nobody can read it. Nothing tells so, but then alone the kernel takes
 * no bytes more for it without looking at the control message, which is refused otherwise.
 */
static bool has_pending_half(int fd, int protocol)
{
    int queued = 0;
    struct cmsghdr invalid = { .cmsg_len = 0 };
    struct msghdr nothing = { .msg_control = &invalid, .msg_controllen = sizeof invalid };
    return (protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE) && ioctl(fd, SIOCOUTQ, &queued) == 0 && queued > 0
           && sendmsg(fd, &nothing, MSG_MORE | MSG_DONTWAIT | MSG_NOSIGNAL) == 0;
}

static int check_kind(const struct description *description, int type, int protocol, struct error *err)
{
    if (!is_known(type, protocol))
        return fail(err, "unsupported", "%s has type %d and protocol %d (for example SCTP), which cannot be forked; end the program that uses it",
                    description_label(description), type, protocol);
    if (type == SOCK_DGRAM && has_pending_half(description->local, protocol))
        return fail(err, "unsupported", "%s holds an unfinished datagram (UDP_CORK, MSG_MORE), which cannot be read; let the program send it and fork again",
                    description_label(description));
    return 0;
}

static int check(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    int fd = description->local;
    if (socket_check_filter(description, err) < 0)
        return -1;
    return check_kind(description, socket_number(fd, SO_TYPE), socket_number(fd, SO_PROTOCOL), err);
}

/* ---- capture ---- */

static int read_addresses(struct inet_socket *socket, struct error *err)
{
    int fd = socket->description->local;
    socket->local_size = sizeof socket->local;
    if (getsockname(fd, &socket->local.any, &socket->local_size) < 0)
        return fail_errno(err, "%s: cannot read its address", socket->label);
    socket->peer_size = socket->local_size;     /* a larger room is refused */
    /* Unlike getpeername this also tells where a stream is connecting to, and where a dead one was connected to. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &socket->peer, &socket->peer_size) < 0) {
        doubt(ANSWERS(ENOTCONN, EINVAL, EOPNOTSUPP), "%s: cannot tell whether it is connected", socket->label);
        socket->peer_size = 0;
    }
    socket->namespace = socket_namespace(fd);
    return 0;
}

static void add_stream(struct world *world, struct inet_socket *socket)
{
    if (!world->inet_sockets)
        world->inet_sockets = must_alloc(sizeof *world->inet_sockets);
    struct inet_table *table = world->inet_sockets;
    table->streams = must_grow(table->streams, (size_t)(table->count + 1) * sizeof *table->streams);
    table->streams[table->count++] = socket;
}

static int read_datagram_socket(struct world *world, struct inet_socket *socket, struct error *err)
{
    if (multicast_read(socket, err) < 0)
        return -1;
    raw_peer_read(socket);
    if (socket->type == SOCK_DGRAM && inet_diag_shutdown(world, socket, err) < 0)
        return -1;
    return socket->type == SOCK_DGRAM && (socket->protocol == IPPROTO_UDP || socket->protocol == IPPROTO_UDPLITE) ? udp_queue_read(socket, err) : 0;
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct inet_socket *socket = description->data = must_alloc(sizeof *socket);
    int fd = description->local;
    socket->description = description;
    socket->label = must_copy_string(description_label(description));
    socket->domain = socket_number(fd, SO_DOMAIN);
    socket->type = socket_number(fd, SO_TYPE);
    socket->protocol = socket_number(fd, SO_PROTOCOL);
    if (check_kind(description, socket->type, socket->protocol, err) < 0)
        return -1;
    if (read_addresses(socket, err) < 0 || namespace_of_socket(world, fd, &socket->net, err) < 0)
        return -1;
    if (socket->type == SOCK_STREAM) {
        if (stream_read(socket, err) < 0)
            return -1;
        add_stream(world, socket);
    }
    if (inet_options_read(socket, err) < 0)
        return -1;
    return socket->stream ? 0 : read_datagram_socket(world, socket, err);
}

/* ---- emit ---- */

bool inet_has_port(const union inet_address *address)
{
    return address->v4.sin_port != 0;       /* sin6_port lies at the same place */
}

socklen_t inet_loopback(const struct inet_socket *socket, union inet_address *address)
{
    *address = (union inet_address){ .any.sa_family = (sa_family_t)socket->domain };
    if (socket->domain == AF_INET) {
        address->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return sizeof address->v4;
    }
    if (socket_options_find(&socket->options, IPPROTO_IPV6, IPV6_V6ONLY))
        address->v6.sin6_addr = in6addr_loopback;
    else    /* ::ffff:127.0.0.1 also works where IPv6 is disabled */
        inet_pton(AF_INET6, "::ffff:127.0.0.1", &address->v6.sin6_addr);
    return sizeof address->v6;
}

/*
 * Who may make ICMP sockets is a setting of the network namespace by group, which capabilities do not override: it is opened for the
 * moment. /proc/sys is read-only in a container, so this goes through a proc of its own.
 */
struct gate { uint64_t fs, proc, file, old, length; };

static void open_gate(struct batch *batch, struct gate *gate, const char *what)
{
    struct plan *plan = batch->plan;
    static const char everybody[] = "0 2147483647";
    gate->old = plan_reserve(plan, 64);
    EMIT(batch, what, SYS_fsopen, plan_string(plan, "proc"), FSOPEN_CLOEXEC);
    gate->fs = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_fsconfig, gate->fs, FSCONFIG_CMD_CREATE, 0, 0, 0);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_fsmount, gate->fs, FSMOUNT_CLOEXEC, 0);
    gate->proc = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_openat, gate->proc, plan_string(plan, "sys/net/ipv4/ping_group_range"), O_RDWR | O_CLOEXEC, 0);
    gate->file = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_pread64, gate->file, gate->old, 64, 0);
    gate->length = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_pwrite64, gate->file, plan_data(plan, everybody, sizeof everybody - 1), sizeof everybody - 1, 0);
}

static void close_gate(struct batch *batch, const struct gate *gate, const char *what)
{
    EMIT_FLAGS(batch, what, OP_LOAD(0) | OP_LOAD(2), SYS_pwrite64, gate->file, gate->old, gate->length, 0);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, gate->file);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, gate->proc);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, gate->fs);
}

void inet_emit_socket(struct batch *batch, const struct description *description, const struct namespace *net, int domain, int type, int protocol,
                      uint64_t slot, const char *what)
{
    bool ping = type == SOCK_DGRAM && (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6);
    struct gate gate;
    namespace_enter_net(batch, net);
    if (ping)
        open_gate(batch, &gate, what);
    EMIT(batch, what, SYS_socket, (uint64_t)domain, (uint64_t)type, (uint64_t)protocol);
    uint64_t made = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_dup3, made, slot, 0);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, made);
    if (ping)
        close_gate(batch, &gate, what);
    namespace_leave_net(batch, net);
    /* The owner decides who may join a SO_REUSEPORT group, and packet filters ask for it; the kernel takes it from the file. */
    if (description->st.st_uid || description->st.st_gid)
        EMIT(batch, what, SYS_fchown, slot, description->st.st_uid, description->st.st_gid);
}

void inet_emit_bind(struct batch *batch, const struct inet_socket *socket, uint64_t slot, const union inet_address *address)
{
    /* The address may not be usable yet (IPv6 checks for duplicates first), or be missing in the branch: the socket is made all the same. */
    int level = socket->domain == AF_INET ? IPPROTO_IP : IPPROTO_IPV6, name = socket->domain == AF_INET ? IP_FREEBIND : IPV6_FREEBIND;
    bool set = socket_options_find(&socket->options, level, name);
    int on = 1, off = 0;
    if (!set)
        socket_option_emit(batch, slot, level, name, &on, sizeof on, socket->label);
    EMIT(batch, socket->label, SYS_bind, slot, plan_data(batch->plan, address, socket->local_size), socket->local_size);
    if (!set)
        socket_option_emit(batch, slot, level, name, &off, sizeof off, socket->label);
}

static bool is_any(const union inet_address *address)
{
    return address->any.sa_family == AF_INET ? address->v4.sin_addr.s_addr == 0 : IN6_IS_ADDR_UNSPECIFIED(&address->v6.sin6_addr);
}

/* A raw socket reports its protocol as its port; it is bound if it has an address. */
static bool is_bound(const struct inet_socket *socket)
{
    return socket->type == SOCK_RAW ? !is_any(&socket->local) : inet_has_port(&socket->local);
}

/* A raw socket hears whatever arrives as soon as it exists. */
static void emit_hearing(struct plan *plan, const struct inet_socket *socket)
{
    struct batch *batch = &plan->common[STAGE_WATCH];
    uint64_t slot = SLOT(plan, socket->description);
    socket_options_emit_undeaf(batch, slot, socket->label);
    inet_options_emit_last(batch, socket, slot);
}

/* Sockets may share a port by an option that was taken back since: all have it until all are bound. */
static void emit_sharing(struct batch *batch, const struct inet_socket *socket, uint64_t slot, int value)
{
    if (!socket_options_find(&socket->options, SOL_SOCKET, SO_REUSEADDR))
        socket_option_emit(batch, slot, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value, socket->label);
}

static void emit_datagram_socket(struct plan *plan, const struct inet_socket *socket)
{
    const struct description *description = socket->description;
    struct batch *batch = &plan->common[STAGE_MAKE];
    uint64_t slot = SLOT(plan, description);
    inet_emit_socket(batch, description, socket->net, socket->domain, socket->type, socket->protocol, slot, socket->label);
    if (socket->type == SOCK_RAW)
        socket_options_emit_deaf(batch, slot, socket->label);
    inet_options_emit_first(batch, socket, slot);
    udp_queue_emit(plan, batch, socket, slot);
    inet_options_emit_buffers(batch, socket, slot);
    inet_options_emit_device(batch, socket, slot);
    if (is_bound(socket)) {
        emit_sharing(batch, socket, slot, 1);
        inet_emit_bind(batch, socket, slot, &socket->local);
    }
    if (socket->peer_size)  /* a peer without a route cannot be connected to again; sending to it failed in the source as well */
        EMIT_FLAGS(batch, socket->label, TOLERATING(NO_ROUTE), SYS_connect, slot, plan_data(plan, &socket->peer, socket->peer_size), socket->peer_size);
    multicast_emit(batch, socket, slot);
    if (socket->shut_down)  /* says ENOTCONN, but does it */
        EMIT_FLAGS(batch, socket->label, TOLERATING(NOT_CONNECTED), SYS_shutdown, slot, (uint64_t)socket->shut_down - 1);
    if (socket->type != SOCK_RAW)
        inet_options_emit_last(batch, socket, slot);
    emit_status_flags(batch, description, socket->label);
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    struct inet_socket *socket = description->data;
    if (socket->stream)
        stream_emit(plan, socket, stage);
    else if (stage == STAGE_MAKE)
        emit_datagram_socket(plan, socket);
    else if (stage == STAGE_CONNECT && is_bound(socket))
        emit_sharing(&plan->common[stage], socket, SLOT(plan, description), 0);
    else if (stage == STAGE_WATCH && socket->type == SOCK_RAW)
        emit_hearing(plan, socket);
    return 0;
}

const struct fd_kind kind_inet = {
    .name = "internet socket", .match = match, .check = check, .capture = capture, .link = stream_link, .emit = emit,
};
