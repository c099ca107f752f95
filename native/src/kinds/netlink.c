/* Netlink sockets: protocol, port id, groups and options. Unread messages are dropped: they describe the source's devices and routes. */
#include "../descriptors.h"
#include "../namespace_plan.h"
#include "../plan.h"
#include "sock_options.h"

#include <errno.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define MAX_GROUPS 1024
#define SOL_NETLINK_LEVEL 270

struct netlink_data {
    int type, protocol;
    struct sockaddr_nl address;
    uint32_t groups[MAX_GROUPS / 32];
    unsigned group_words;
    struct socket_options options;
    const struct namespace *net;
};

static const struct option_name option_names[] = {
    { SOL_SOCKET, SO_RCVBUF, 4 }, { SOL_SOCKET, SO_SNDBUF, 4 }, { SOL_SOCKET, SO_PASSCRED, 4 }, { SOL_SOCKET, SO_RCVTIMEO, 16 },
    { SOL_SOCKET, SO_SNDTIMEO, 16 }, { SOL_SOCKET, SO_TIMESTAMP, 4 }, { SOL_NETLINK_LEVEL, NETLINK_PKTINFO, 4 },
    { SOL_NETLINK_LEVEL, NETLINK_BROADCAST_ERROR, 4 }, { SOL_NETLINK_LEVEL, NETLINK_NO_ENOBUFS, 4 },
    { SOL_NETLINK_LEVEL, NETLINK_CAP_ACK, 4 }, { SOL_NETLINK_LEVEL, NETLINK_EXT_ACK, 4 }, { SOL_NETLINK_LEVEL, NETLINK_GET_STRICT_CHK, 4 },
    { 0, 0, 0 },
};

static bool match(const struct description *description)
{
    return S_ISSOCK(description->st.st_mode) && socket_number(description->local, SO_DOMAIN) == AF_NETLINK;
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
    size = sizeof data->groups;
    if (getsockopt(fd, SOL_NETLINK_LEVEL, NETLINK_LIST_MEMBERSHIPS, data->groups, &size) == 0)
        data->group_words = size / 4 < MAX_GROUPS / 32 ? size / 4 : MAX_GROUPS / 32;
    if (namespace_of_socket(world, fd, &data->net, err) < 0)
        return -1;
    return socket_options_read(&data->options, description, option_names, AF_NETLINK, data->type, data->protocol, err);
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
    namespace_enter_net(batch, data->net);
    EMIT(batch, what, SYS_socket, AF_NETLINK, (uint64_t)data->type, (uint64_t)data->protocol);
    emit_to_slot(batch, description, what);
    namespace_leave_net(batch, data->net);
    socket_options_emit(batch, &data->options, slot, what);
    struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_pid = data->address.nl_pid };
    if (address.nl_pid)
        EMIT(batch, what, SYS_bind, slot, plan_data(plan, &address, sizeof address), sizeof address);
    for (unsigned group = 0; group < data->group_words * 32; group++) {
        int number = (int)group + 1;
        if (data->groups[group / 32] >> (group % 32) & 1)
            socket_option_emit(batch, slot, SOL_NETLINK_LEVEL, NETLINK_ADD_MEMBERSHIP, &number, sizeof number, what);
    }
    emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_netlink = { .name = "netlink socket", .match = match, .capture = capture, .emit = emit };
