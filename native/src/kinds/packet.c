/* Packet sockets: what they listen to and how. Unread packets are dropped, like those that a network card has no room for. */
#include "../descriptors.h"
#include "../namespace_plan.h"
#include "../plan.h"
#include "inet.h"
#include "kinds.h"
#include "sock_diag.h"
#include "../proc.h"

#include <errno.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/packet_diag.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RECEIVE_SIZE 32768
#define MAX_MEMBERSHIPS 256
#define TEXT_LIMIT (64u << 20)
#define MAX_SOCKETS 512         /* looked at, in preflight and capture together: each look lists all of them */

struct ring {
    bool there;
    struct tpacket_req3 request;
};

struct packet_facts {
    struct ring receive, send;
    uint16_t protocol;          /* in network order */
    uint32_t fanout;            /* as PACKET_FANOUT takes it; 0 = none */
    struct packet_diag_mclist memberships[MAX_MEMBERSHIPS];
    int membership_count;
};

struct packet_data {
    int type;
    union {
        struct sockaddr_ll link;
        struct sockaddr name;   /* of the old type SOCK_PACKET */
    } address;
    struct socket_options options;
    struct packet_facts facts;
    const struct namespace *net;
};

static const struct option_name option_names[] = {
    { SOL_SOCKET, SO_SNDBUF, 4 }, { SOL_SOCKET, SO_RCVBUF, 4 }, { SOL_SOCKET, SO_RCVTIMEO, 16 }, { SOL_SOCKET, SO_SNDTIMEO, 16 },
    { SOL_SOCKET, SO_PRIORITY, 4 }, { SOL_SOCKET, SO_MARK, 4 }, { SOL_SOCKET, SO_TIMESTAMP, 4 }, { SOL_SOCKET, SO_TIMESTAMPNS, 4 },
    { SOL_SOCKET, SO_TIMESTAMPING, 8 }, { SOL_SOCKET, SO_RXQ_OVFL, 4 }, { SOL_SOCKET, SO_BROADCAST, 4 },
    { SOL_PACKET, PACKET_AUXDATA, 4 }, { SOL_PACKET, PACKET_ORIGDEV, 4 }, { SOL_PACKET, PACKET_VERSION, 4 }, { SOL_PACKET, PACKET_RESERVE, 4 },
    { SOL_PACKET, PACKET_LOSS, 4 }, { SOL_PACKET, PACKET_VNET_HDR, 4 }, { SOL_PACKET, PACKET_TIMESTAMP, 4 }, { SOL_PACKET, PACKET_TX_HAS_OFF, 4 },
    { SOL_PACKET, PACKET_QDISC_BYPASS, 4 }, { SOL_PACKET, 23 /* PACKET_IGNORE_OUTGOING */, 4 }, { 0 },
};

static bool match(const struct description *description)
{
    return S_ISSOCK(description->st.st_mode) && socket_number(description->local, SO_DOMAIN) == AF_PACKET;
}

/* ---- packet_diag ---- */

static void take_ring(struct ring *ring, const struct rtattr *attribute)
{
    struct packet_diag_ring known;
    if (RTA_PAYLOAD(attribute) < sizeof known)
        return;
    memcpy(&known, RTA_DATA(attribute), sizeof known);
    ring->there = true;
    ring->request = (struct tpacket_req3){
        .tp_block_size = known.pdr_block_size, .tp_block_nr = known.pdr_block_nr, .tp_frame_size = known.pdr_frame_size,
        .tp_frame_nr = known.pdr_frame_nr, .tp_retire_blk_tov = known.pdr_retire_tmo, .tp_sizeof_priv = known.pdr_sizeof_priv,
        .tp_feature_req_word = known.pdr_features,
    };
}

static void take_facts(struct packet_facts *facts, const struct nlmsghdr *header)
{
    const struct packet_diag_msg *message = NLMSG_DATA(header);
    facts->protocol = htons(message->pdiag_num);
    const struct rtattr *attribute = (const struct rtattr *)(message + 1);
    size_t left = header->nlmsg_len - NLMSG_LENGTH(sizeof *message);
    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
        size_t length = RTA_PAYLOAD(attribute);
        if (attribute->rta_type == PACKET_DIAG_RX_RING) {
            take_ring(&facts->receive, attribute);
        } else if (attribute->rta_type == PACKET_DIAG_TX_RING) {
            take_ring(&facts->send, attribute);
        } else if (attribute->rta_type == PACKET_DIAG_FANOUT && length >= sizeof(uint32_t)) {
            memcpy(&facts->fanout, RTA_DATA(attribute), sizeof facts->fanout);
        } else if (attribute->rta_type == PACKET_DIAG_MCLIST) {
            facts->membership_count = (int)(length / sizeof *facts->memberships);
            if (facts->membership_count > MAX_MEMBERSHIPS)
                facts->membership_count = MAX_MEMBERSHIPS;
            memcpy(facts->memberships, RTA_DATA(attribute), (size_t)facts->membership_count * sizeof *facts->memberships);
        }
    }
}

static int receive_facts(int fd, uint32_t inode, struct packet_facts *facts, struct error *err)
{
    char buffer[RECEIVE_SIZE];
    for (;;) {
        ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fail_errno(err, "cannot receive the list of packet sockets");
        size_t left = (size_t)got;
        for (const struct nlmsghdr *header = (const void *)buffer; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR)
                return 0;
            if (((const struct packet_diag_msg *)NLMSG_DATA(header))->pdiag_ino == inode)
                take_facts(facts, header);
        }
    }
}

/* A kernel without packet_diag answers with an error, and nothing is known. */
static int read_facts(const struct description *description, struct packet_facts *facts, struct error *err)
{
    AUTO_CLOSE int namespace = ioctl(description->local, SIOCGSKNS);
    if (namespace < 0)
        return fail_errno(err, "%s: cannot tell its network namespace", description_label(description));
    AUTO_CLOSE int fd = sock_diag_open(namespace, err);
    if (fd < 0)
        return -1;
    struct {
        struct nlmsghdr header;
        struct packet_diag_req body;
    } request = {
        .header = { .nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
        .body = { .sdiag_family = AF_PACKET, .pdiag_show = PACKET_SHOW_MCLIST | PACKET_SHOW_RING_CFG | PACKET_SHOW_FANOUT },
    };
    if (send(fd, &request, sizeof request, 0) != (ssize_t)sizeof request)
        return fail_errno(err, "sock_diag does not take the request for packet sockets");
    return receive_facts(fd, (uint32_t)description->st.st_ino, facts, err);
}

/* ---- the kind ---- */

/* Program and kernel each remember where in the ring they are; a new ring begins at its start. */
static bool has_mapped_ring(const struct description *description)
{
    struct error err = { 0 };
    char name[32];
    if (!description->holder)
        return true;
    AUTO_FREE char *maps = proc_read(&err, TEXT_LIMIT, NULL, "/proc/%d/maps", description->holder->pid);
    snprintf(name, sizeof name, "socket:[%lu]\n", (unsigned long)description->st.st_ino);
    return !maps || strstr(maps, name);
}

static int examine(const struct description *description, struct packet_facts *facts, struct error *err)
{
    static int looks;
    if (++looks > MAX_SOCKETS)
        return fail(err, "limit", "%s is one of more than %d packet sockets; end programs that capture packets", description_label(description),
                    MAX_SOCKETS / 2);
    if (socket_check_filter(description, err) < 0 || read_facts(description, facts, err) < 0)
        return -1;
    if ((facts->receive.there || facts->send.there) && has_mapped_ring(description))
        return fail(err, "unsupported", "%s has a ring that it shares with the kernel, which cannot be forked; end the program that captures packets",
                    description_label(description));
    return 0;
}

static int check(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    struct packet_facts facts = { 0 };
    return examine(description, &facts, err);
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct packet_data *data = description->data = must_alloc(sizeof *data);
    if (examine(description, &data->facts, err) < 0 || namespace_of_socket(world, description->local, &data->net, err) < 0)
        return -1;
    data->type = socket_number(description->local, SO_TYPE);
    socklen_t size = sizeof data->address;
    if (getsockname(description->local, &data->address.name, &size) < 0)
        return fail_errno(err, "%s: cannot read its address", description_label(description));
    return socket_options_read(&data->options, description, option_names, AF_PACKET, data->type, 0, err);
}

static void emit_memberships(struct batch *batch, const struct packet_data *data, uint64_t slot, const char *what)
{
    for (int i = 0; i < data->facts.membership_count; i++) {
        const struct packet_diag_mclist *known = &data->facts.memberships[i];
        struct packet_mreq request = { .mr_ifindex = (int)known->pdmc_index, .mr_type = known->pdmc_type, .mr_alen = known->pdmc_alen };
        size_t length = known->pdmc_alen < sizeof request.mr_address ? known->pdmc_alen : sizeof request.mr_address;
        memcpy(request.mr_address, known->pdmc_addr, length);
        uint64_t at = plan_data(batch->plan, &request, sizeof request);
        for (uint32_t k = 0; k < known->pdmc_count; k++)
            EMIT_FLAGS(batch, what, TOLERATING(INTERFACE_MISSING), SYS_setsockopt, slot, SOL_PACKET, PACKET_ADD_MEMBERSHIP, at, sizeof request);
    }
}

static void emit_ring(struct batch *batch, const struct ring *ring, uint64_t slot, int name, const char *what)
{
    if (ring->there)
        socket_option_emit(batch, slot, SOL_PACKET, name, &ring->request, sizeof ring->request, what);
}

static void emit_fanout(struct batch *batch, const struct packet_data *data, uint64_t slot, const char *what)
{
    if (data->facts.fanout)
        EMIT_FLAGS(batch, what, TOLERATING(NO_FANOUT), SYS_setsockopt, slot, SOL_PACKET, PACKET_FANOUT,
                   plan_data(batch->plan, &data->facts.fanout, sizeof data->facts.fanout), sizeof data->facts.fanout);
}

/* Last of all it begins to listen, so that it hears nothing of how the branch was made. An interface that the branch lacks leaves it silent. */
static void emit_bind(struct batch *batch, const struct packet_data *data, uint64_t slot, const char *what)
{
    struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = data->address.link.sll_protocol,
                                   .sll_ifindex = data->address.link.sll_ifindex };
    EMIT_FLAGS(batch, what, TOLERATING(INTERFACE_MISSING), SYS_bind, slot, plan_data(batch->plan, &address, sizeof address), sizeof address);
}

/* The old type takes its protocol when it is made, and an interface's name as its address. */
static void emit_old_type(struct batch *batch, const struct description *description, uint64_t slot, const char *what)
{
    const struct packet_data *data = description->data;
    inet_emit_socket(batch, description, data->net, AF_PACKET, SOCK_PACKET, data->facts.protocol, slot, what);
    socket_options_emit_deaf(batch, slot, what);
    for (int i = 0; i < data->options.count; i++)
        socket_option_put(batch, slot, &data->options.list[i], what);
    if (data->address.name.sa_data[0])
        EMIT_FLAGS(batch, what, TOLERATING(INTERFACE_MISSING), SYS_bind, slot, plan_data(batch->plan, &data->address.name, sizeof data->address.name),
                   sizeof data->address.name);
}

static void emit_new_type(struct batch *batch, const struct description *description, uint64_t slot, const char *what)
{
    const struct packet_data *data = description->data;
    inet_emit_socket(batch, description, data->net, AF_PACKET, data->type, 0, slot, what);
    socket_options_emit(batch, &data->options, slot, what);
    emit_ring(batch, &data->facts.receive, slot, PACKET_RX_RING, what);
    emit_ring(batch, &data->facts.send, slot, PACKET_TX_RING, what);
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    const struct packet_data *data = description->data;
    struct batch *batch = &plan->common[stage];
    uint64_t slot = SLOT(plan, description);
    const char *what = description_label(description);
    bool old = data->type == SOCK_PACKET;
    if (stage == STAGE_MAKE) {
        if (old)
            emit_old_type(batch, description, slot, what);
        else
            emit_new_type(batch, description, slot, what);
        emit_memberships(batch, data, slot, what);
        emit_status_flags(batch, description, what);
    } else if (stage == STAGE_WATCH && old) {
        socket_options_emit_undeaf(batch, slot, what);
        socket_options_emit_filter(batch, &data->options, slot, what);
    } else if (stage == STAGE_WATCH) {
        emit_bind(batch, data, slot, what);
        emit_fanout(batch, data, slot, what);
    }
    return 0;
}

const struct fd_kind kind_packet = { .name = "packet socket", .match = match, .check = check, .capture = capture, .emit = emit };
