/*
 * Netlink sockets: protocol, port id, groups, options. Unread messages tell of the source's devices and processes, not the branch's, and a listing
 * that was read in part cannot go on: the branch's program is told by ENOBUFS, as the kernel tells anybody who has missed something, and asks again.
 */
#include "../descriptors.h"
#include "../doubt.h"
#include "../namespace_plan.h"
#include "../plan.h"
#include "kinds.h"
#include "inet.h"
#include "socket_text.h"

#include <errno.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define MAX_GROUPS 4096
#define SOL_NETLINK_LEVEL 270
/* An acknowledgement takes 768 bytes of a receive buffer, which has at least 2304: this many overflow it. */
#define OVERFLOWING 6

struct netlink_data {
    int type, protocol;
    struct sockaddr_nl address, peer;
    uint32_t groups[MAX_GROUPS / 32];
    unsigned group_words;
    bool missed;
    struct socket_options options;
    const struct namespace *net;
};

static const struct option_name option_names[] = {
    { SOL_SOCKET, SO_RCVBUF, 4 }, { SOL_SOCKET, SO_SNDBUF, 4 }, { SOL_SOCKET, SO_PASSCRED, 4 }, { SOL_SOCKET, SO_PASSSEC, 4 },
    { SOL_SOCKET, SO_RCVTIMEO, 16 },
    { SOL_SOCKET, SO_SNDTIMEO, 16 }, { SOL_SOCKET, SO_TIMESTAMP, 4 }, { SOL_SOCKET, SO_TIMESTAMPNS, 4 }, { SOL_SOCKET, SO_PRIORITY, 4 },
    { SOL_SOCKET, 76 /* SO_PASSPIDFD */, 4 }, { SOL_NETLINK_LEVEL, NETLINK_PKTINFO, 4 }, { SOL_NETLINK_LEVEL, NETLINK_BROADCAST_ERROR, 4 },
    { SOL_NETLINK_LEVEL, NETLINK_NO_ENOBUFS, 4 }, { SOL_NETLINK_LEVEL, NETLINK_CAP_ACK, 4 }, { SOL_NETLINK_LEVEL, NETLINK_EXT_ACK, 4 },
    { SOL_NETLINK_LEVEL, NETLINK_GET_STRICT_CHK, 4 }, { SOL_NETLINK_LEVEL, NETLINK_LISTEN_ALL_NSID, 4 }, { 0 },
};

static bool match(const struct description *description)
{
    return S_ISSOCK(description->st.st_mode) && socket_number(description->local, SO_DOMAIN) == AF_NETLINK;
}

static int check(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    return socket_check_filter(description, err);
}

/* ---- capture ---- */

/* A line of /proc/PID/net/netlink: sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode. */
static bool has_missed(const struct description *description)
{
    const char *line = socket_text_line("netlink", socket_namespace(description->local), description);
    unsigned unread, dump;
    return line && sscanf(line, "%*s %*d %*u %*x %u %*u %u", &unread, &dump) == 2 && (unread || dump);
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct netlink_data *data = description->data = must_alloc(sizeof *data);
    int fd = description->local;
    data->type = socket_number(fd, SO_TYPE);
    data->protocol = socket_number(fd, SO_PROTOCOL);
    socklen_t size = sizeof data->address;
    if (getsockname(fd, (struct sockaddr *)&data->address, &size) < 0)
        return fail_errno(err, "%s: cannot read its address", description_label(description));
    size = sizeof data->peer;
    if (getpeername(fd, (struct sockaddr *)&data->peer, &size) < 0)
        return fail_errno(err, "%s: cannot tell whether it is connected", description_label(description));
    size = sizeof data->groups;
    if (getsockopt(fd, SOL_NETLINK_LEVEL, NETLINK_LIST_MEMBERSHIPS, data->groups, &size) == 0)
        data->group_words = size / 4 < MAX_GROUPS / 32 ? size / 4 : MAX_GROUPS / 32;
    else
        doubt(ANSWERS(ENOPROTOOPT), "%s: cannot list its groups", description_label(description));
    if (namespace_of_socket(world, fd, &data->net, err) < 0)
        return -1;
    data->missed = has_missed(description);
    return socket_options_read(&data->options, description, option_names, AF_NETLINK, data->type, data->protocol, err);
}

/* ---- emit ---- */

/*
 * Overflow the receive buffer with answers of the kernel to messages that ask for nothing. ENOBUFS comes first when the program reads; the answers
 * behind it carry the number 0, which no request has.
 */
static void emit_missed(struct batch *batch, const struct netlink_data *data, uint64_t slot, const char *what)
{
    struct plan *plan = batch->plan;
    struct nlmsghdr nothing = { .nlmsg_len = sizeof nothing, .nlmsg_type = NLMSG_NOOP, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK };
    struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
    int least = 0, before = data->options.receive_buffer / 2;
    uint64_t message = plan_data(plan, &nothing, sizeof nothing), address = plan_data(plan, &kernel, sizeof kernel);
    socket_option_emit(batch, slot, SOL_SOCKET, SO_RCVBUFFORCE, &least, sizeof least, what);
    for (int i = 0; i < OVERFLOWING; i++)
        EMIT_FLAGS(batch, what, TOLERATING(FULL_NETLINK), SYS_sendto, slot, message, sizeof nothing, MSG_DONTWAIT, address, sizeof kernel);
    socket_option_emit(batch, slot, SOL_SOCKET, SO_RCVBUFFORCE, &before, sizeof before, what);
}

static void emit_groups(struct batch *batch, const struct netlink_data *data, uint64_t slot, const char *what)
{
    for (unsigned group = 0; group < data->group_words * 32; group++) {
        int number = (int)group + 1;
        if (data->groups[group / 32] >> (group % 32) & 1)
            socket_option_emit(batch, slot, SOL_NETLINK_LEVEL, NETLINK_ADD_MEMBERSHIP, &number, sizeof number, what);
    }
}

static void emit_options(struct batch *batch, const struct netlink_data *data, uint64_t slot, const char *what)
{
    for (int i = 0; i < data->options.count; i++)
        socket_option_put(batch, slot, &data->options.list[i], what);
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    const struct netlink_data *data = description->data;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    uint64_t slot = SLOT(plan, description);
    inet_emit_socket(batch, description, data->net, AF_NETLINK, data->type, data->protocol, slot, what);
    struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_pid = data->address.nl_pid };
    if (address.nl_pid)
        EMIT(batch, what, SYS_bind, slot, plan_data(plan, &address, sizeof address), sizeof address);
    if (data->missed && !socket_options_find(&data->options, SOL_NETLINK_LEVEL, NETLINK_NO_ENOBUFS))
        emit_missed(batch, data, slot, what);
    emit_options(batch, data, slot, what);
    emit_groups(batch, data, slot, what);
    struct sockaddr_nl peer = { .nl_family = AF_NETLINK, .nl_pid = data->peer.nl_pid, .nl_groups = data->peer.nl_groups };
    if (peer.nl_pid || peer.nl_groups)
        EMIT_FLAGS(batch, what, TOLERATING(LACKING_RIGHTS), SYS_connect, slot, plan_data(plan, &peer, sizeof peer), sizeof peer);
    socket_options_emit_filter(batch, &data->options, slot, what);
    emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_netlink = { .name = "netlink socket", .match = match, .check = check, .capture = capture, .emit = emit };
