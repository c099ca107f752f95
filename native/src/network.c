#include "network.h"
#include "files.h"
#include "network_links.h"
#include "network_rules.h"

#include <errno.h>
#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STANDARD_RULE_LAST 32767
#define LONGEST_HEAD 32         /* of what is asked for: struct tcmsg has 20 bytes */
#define KEPT_ROUTE_FLAGS (RTNH_F_ONLINK | RTNH_F_PERVASIVE)

/* ---- read ---- */

int network_dump(int fd, int type, size_t head, network_take take, void *to, struct error *err)
{
    /* Every kind of head begins with the family, and AF_UNSPEC is 0. */
    struct { struct nlmsghdr head; char any[LONGEST_HEAD]; } request = {
        { (uint32_t)NLMSG_LENGTH(head), (unsigned short)type, NLM_F_REQUEST | NLM_F_DUMP, 1, 0 }, { 0 },
    };
    if (head > sizeof request.any)
        return fail(err, "internal", "a request of type %d has a head of %zu bytes", type, head);
    if (send(fd, &request, NLMSG_LENGTH(head), 0) < 0)
        return fail_errno(err, "cannot ask for the contents of a network namespace");
    return network_receive(fd, take, to, err);
}

int network_receive(int fd, network_take take, void *to, struct error *err)
{
    static char buffer[1 << 16] __attribute__((aligned(8)));
    for (;;) {
        ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        if (got < 0)
            return fail_errno(err, "cannot read the contents of a network namespace");
        int left = (int)got;
        for (struct nlmsghdr *message = (void *)buffer; NLMSG_OK(message, (unsigned)left); message = NLMSG_NEXT(message, left)) {
            if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR)
                return 0;       /* an error: this kernel has nothing of the kind */
            if (take(message, to, err) < 0)
                return -1;
        }
    }
}

const struct rtattr *network_attribute(const struct nlmsghdr *message, size_t head, int type)
{
    const struct rtattr *attribute = (const void *)((const char *)NLMSG_DATA(message) + NLMSG_ALIGN(head));
    int left = (int)message->nlmsg_len - (int)NLMSG_SPACE(head);
    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left))
        if ((attribute->rta_type & NLA_TYPE_MASK) == type)
            return attribute;
    return NULL;
}

static void keep(struct network *network, const struct nlmsghdr *message, int type, int order)
{
    network->messages = must_grow(network->messages, (size_t)(network->message_count + 1) * sizeof *network->messages);
    struct network_message *kept = &network->messages[network->message_count];
    *kept = (struct network_message){ .order = order, .number = network->message_count++, .message = must_alloc(message->nlmsg_len) };
    memcpy(kept->message, message, message->nlmsg_len);
    kept->message->nlmsg_type = (unsigned short)type;
    kept->message->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    kept->message->nlmsg_seq = kept->message->nlmsg_pid = 0;
}

/* 127.0.0.1/8 and ::1 are there once the interface is up. */
static bool comes_with_loopback(const struct ifaddrmsg *address, const struct nlmsghdr *message)
{
    const struct rtattr *bytes = network_attribute(message, sizeof *address, IFA_ADDRESS);
    uint32_t four = htonl(INADDR_LOOPBACK);
    if (!bytes || address->ifa_scope != RT_SCOPE_HOST)
        return false;
    if (address->ifa_family == AF_INET)
        return address->ifa_prefixlen == 8 && RTA_PAYLOAD(bytes) == sizeof four && memcmp(RTA_DATA(bytes), &four, sizeof four) == 0;
    return RTA_PAYLOAD(bytes) == sizeof in6addr_loopback && memcmp(RTA_DATA(bytes), &in6addr_loopback, sizeof in6addr_loopback) == 0;
}

/* Duplicate address detection would leave an address without use for a second: it was used in the source. One that is still being checked there is checked anew. */
static int take_address(struct nlmsghdr *message, void *to, struct error *err)
{
    (void)err;
    const struct network *network = to;
    struct ifaddrmsg *address = NLMSG_DATA(message);
    struct rtattr *flags = (struct rtattr *)network_attribute(message, sizeof *address, IFA_FLAGS);
    if (!(address->ifa_flags & IFA_F_PERMANENT) || (int)address->ifa_index == network->way_out || (network->own && comes_with_loopback(address, message)))
        return 0;
    bool told = address->ifa_family == AF_INET6 && flags && RTA_PAYLOAD(flags) == sizeof(uint32_t);
    uint32_t had = told ? *(uint32_t *)RTA_DATA(flags) : 0;
    if (told && !(had & IFA_F_TENTATIVE))
        *(uint32_t *)RTA_DATA(flags) |= IFA_F_NODAD;
    keep(to, message, RTM_NEWADDR, MESSAGE_ADDRESS);
    if (told && !(had & (IFA_F_NODAD | IFA_F_TENTATIVE))) {     /* it is in use then, and once more without that flag */
        *(uint32_t *)RTA_DATA(flags) = had;
        keep(to, message, RTM_NEWADDR, MESSAGE_ADDRESS);
    }
    return 0;
}

/* What the kernel adds by itself for addresses comes with these. A gateway has to be within reach before it is used. */
static int take_route(struct nlmsghdr *message, void *to, struct error *err)
{
    (void)err;
    const struct network *network = to;
    struct rtmsg *route = NLMSG_DATA(message);
    const struct rtattr *interface = network_attribute(message, sizeof *route, RTA_OIF);
    if (network->way_out && interface && *(const int *)RTA_DATA(interface) == network->way_out)
        return 0;
    if (route->rtm_protocol == RTPROT_KERNEL || route->rtm_flags & RTM_F_CLONED || route->rtm_type == RTN_MULTICAST)
        return 0;
    route->rtm_flags &= KEPT_ROUTE_FLAGS;
    bool through = network_attribute(message, sizeof *route, RTA_GATEWAY) || network_attribute(message, sizeof *route, RTA_MULTIPATH)
        || network_attribute(message, sizeof *route, RTA_VIA);
    keep(to, message, RTM_NEWROUTE, through ? MESSAGE_ROUTE_THROUGH : MESSAGE_ROUTE);
    return 0;
}

static int take_rule(struct nlmsghdr *message, void *to, struct error *err)
{
    (void)err;
    const struct rtattr *priority = network_attribute(message, sizeof(struct fib_rule_hdr), FRA_PRIORITY);
    uint32_t number = priority && RTA_PAYLOAD(priority) == sizeof number ? *(uint32_t *)RTA_DATA(priority) : 0;
    if (number != 0 && number != STANDARD_RULE_LAST && number != STANDARD_RULE_LAST - 1)
        keep(to, message, RTM_NEWRULE, MESSAGE_RULE);
    return 0;
}

static int take_neighbour(struct nlmsghdr *message, void *to, struct error *err)
{
    (void)err;
    const struct network *network = to;
    const struct ndmsg *neighbour = NLMSG_DATA(message);
    if (neighbour->ndm_ifindex != network->way_out && neighbour->ndm_state & NUD_PERMANENT && neighbour->ndm_family != AF_BRIDGE)
        keep(to, message, RTM_NEWNEIGH, MESSAGE_NEIGHBOUR);
    return 0;
}

static int by_order(const void *left, const void *right)
{
    const struct network_message *a = left, *b = right;
    return a->order != b->order ? a->order - b->order : a->number - b->number;
}

int network_read(const struct world *world, struct namespace *namespace, struct error *err)
{
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0)
        return fail_errno(err, "cannot ask for the contents of a network namespace");
    struct network *network = namespace->network = must_alloc(sizeof *network);
    network->own = !namespace->nested;
    snprintf(network->who, sizeof network->who, "%s lives in a network namespace",
             network->own ? "the workspace" : process_label(namespace->member ? namespace->member : world->processes[0]));
    if (network_links_read(world, fd, network, err) < 0 || network_rules_read(world, fd, network, err) < 0)
        return -1;
    static const struct { int type; size_t head; network_take take; } lists[] = {
        { RTM_GETADDR, sizeof(struct ifaddrmsg), take_address }, { RTM_GETROUTE, sizeof(struct rtmsg), take_route },
        { RTM_GETRULE, sizeof(struct fib_rule_hdr), take_rule }, { RTM_GETNEIGH, sizeof(struct ndmsg), take_neighbour },
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (network_dump(fd, lists[i].type, lists[i].head, lists[i].take, network, err) < 0)
            return -1;
    if (network->message_count)
        qsort(network->messages, (size_t)network->message_count, sizeof *network->messages, by_order);
    return 0;
}

/* ---- emit ---- */

void network_emit_message(struct batch *batch, const struct network_socket *socket, const void *message, size_t size, const char *what)
{
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_sendto, socket->fd, plan_data(batch->plan, message, size), size, 0, 0, 0);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_recvfrom, socket->fd, socket->answer, NETWORK_ANSWER, 0, 0, 0);
    EMIT_FLAGS(batch, what, OP_LOAD32(0), OP_EXPECT, socket->answer + NLMSG_HDRLEN, 0);     /* the error of struct nlmsgerr */
}

static struct network_socket emit_socket(struct batch *batch)
{
    EMIT(batch, "network interfaces", SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    return (struct network_socket){ emit_result_cell(batch), plan_reserve(batch->plan, NETWORK_ANSWER) };
}

/* Everything but the making of interfaces, whose other ends are there by now. */
static void emit_contents(struct batch *batch, const struct network_socket *socket, const struct network *network)
{
    static const char *const names[] = {
        [MESSAGE_ADDRESS] = "an address of an interface", [MESSAGE_NEIGHBOUR] = "a neighbour of an interface", [MESSAGE_ROUTE] = "a route",
        [MESSAGE_ROUTE_THROUGH] = "a route", [MESSAGE_RULE] = "a routing rule",
    };
    network_links_emit_states(batch, socket, network);
    for (int i = 0; i < network->message_count; i++)
        network_emit_message(batch, socket, network->messages[i].message, network->messages[i].message->nlmsg_len,
                             names[network->messages[i].order]);
    network_rules_emit(batch, network, socket->answer);
}

/* Namespaces are made in the order of the list: the last one that holds an end of this one's pairs. */
static int last_neighbour(const struct namespace *namespace)
{
    int last = namespace->index;
    for (int i = 0; namespace->network && i < namespace->network->link_count; i++) {
        const struct namespace *other = namespace->network->links[i].peer_namespace;
        if (other && other->index > last)
            last = other->index;
    }
    return last;
}

bool network_has_additions(const struct network *network)
{
    for (int i = 0; i < network->link_count; i++)
        if (*network->links[i].kind)
            return true;
    return network->message_count > 0 || network->rules;
}

void network_emit(struct batch *batch, const struct namespace *namespace, const struct namespaces *all)
{
    if (!namespace->network || (namespace->network->own && !network_has_additions(namespace->network)))
        return;
    struct network_socket own = emit_socket(batch);
    network_links_emit(batch, &own, namespace);
    for (int i = NAMESPACE_KINDS; i < namespace->index; i++) {
        const struct namespace *earlier = all->list[i];
        if (!earlier->network || last_neighbour(earlier) != namespace->index)
            continue;
        EMIT(batch, "network interfaces", SYS_setns, aux_slot(batch->plan->world, earlier->aux), CLONE_NEWNET);
        struct network_socket there = emit_socket(batch);
        emit_contents(batch, &there, earlier->network);
        EMIT_FLAGS(batch, "network interfaces", OP_LOAD(0), SYS_close, there.fd);
        EMIT(batch, "network interfaces", SYS_setns, aux_slot(batch->plan->world, namespace->aux), CLONE_NEWNET);
    }
    if (last_neighbour(namespace) == namespace->index)
        emit_contents(batch, &own, namespace->network);
    EMIT_FLAGS(batch, "network interfaces", OP_LOAD(0), SYS_close, own.fd);
}
