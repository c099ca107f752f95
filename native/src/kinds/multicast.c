/*
 * Multicast memberships. No call lists those of a socket, but /proc/PID/net lists the groups of the network namespace, and a socket can be asked for
 * its sources of one group: it answers if it is a member.
 */
#include "inet.h"
#include "../descriptors.h"
#include "../doubt.h"
#include "../proc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define MAX_GROUPS 4096
#define MAX_SOURCES 64
#define TEXT_LIMIT (4u << 20)

struct group {
    unsigned interface;
    struct sockaddr_storage address;
};

struct groups {
    uint64_t namespace;
    bool known;
    struct group *list;
    int count;
};

static void add_group(struct groups *groups, unsigned interface, const void *address, int family)
{
    if (groups->count == MAX_GROUPS)
        return;
    if ((groups->count & (groups->count - 1)) == 0)
        groups->list = must_grow(groups->list, (size_t)(groups->count * 2 + 1) * sizeof *groups->list);
    struct group *group = &groups->list[groups->count++];
    *group = (struct group){ .interface = interface, .address.ss_family = (sa_family_t)family };
    if (family == AF_INET)
        memcpy(&((struct sockaddr_in *)&group->address)->sin_addr, address, 4);
    else
        memcpy(&((struct sockaddr_in6 *)&group->address)->sin6_addr, address, 16);
}

/* "1 lo : 1 V3" begins an interface, "\t\t\t\t010000E0 1 …" is a group of it: the address as the number that lies in memory, and its users. */
static void parse_v4(struct groups *groups, const char *text)
{
    unsigned interface = 0, address, users;
    for (const char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        if (line[1] != '\t')
            interface = (unsigned)strtoul(line + 1, NULL, 10);
        /* Every interface is in 224.0.0.1 by itself. */
        else if (sscanf(line + 1, " %8x %u", &address, &users) == 2 && !(address == htonl(INADDR_ALLHOSTS_GROUP) && users == 1))
            add_group(groups, interface, &address, AF_INET);
    }
}

static bool is_usual(const unsigned char *address)
{
    static const unsigned char solicited[13] = { 0xff, 0x02, [11] = 0x01, [12] = 0xff };
    static const unsigned char nodes[15] = { 0 };
    return memcmp(address, solicited, sizeof solicited) == 0
           || (address[0] == 0xff && address[1] <= 2 && memcmp(address + 2, nodes, 13) == 0 && address[15] == 1);
}

/* "1 lo ff020000000000000000000000000001 1 0000000C 0" */
static void parse_v6(struct groups *groups, const char *text)
{
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        unsigned interface, users;
        char digits[33];
        unsigned char address[16];
        if (sscanf(line, "%u %*15s %32[0-9a-f] %u", &interface, digits, &users) != 3 || strlen(digits) != 32)
            continue;
        for (int i = 0; i < 16; i++) {
            unsigned byte;
            sscanf(digits + i * 2, "%2x", &byte);
            address[i] = (unsigned char)byte;
        }
        if (users > 1 || !is_usual(address))
            add_group(groups, interface, address, AF_INET6);
    }
}

/* Of the network namespace asked last. */
static const struct groups *groups_of(const struct inet_socket *socket)
{
    static struct groups groups;
    if (groups.known && groups.namespace == socket->namespace)
        return &groups;
    free(groups.list);
    groups = (struct groups){ .known = true, .namespace = socket->namespace };
    const struct process *holder = socket->description->holder;
    struct error no_v4 = { 0 }, no_v6 = { 0 };
    if (!holder)
        return &groups;
    AUTO_FREE char *v4 = proc_read(&no_v4, TEXT_LIMIT, NULL, "/proc/%d/net/igmp", holder->pid);
    AUTO_FREE char *v6 = proc_read(&no_v6, TEXT_LIMIT, NULL, "/proc/%d/net/igmp6", holder->pid);
    doubt_error(&no_v4);
    doubt_error(&no_v6);
    if (v4)
        parse_v4(&groups, v4);
    if (v6)
        parse_v6(&groups, v6);
    return &groups;
}

static int level_of(const struct group *group)
{
    return group->address.ss_family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
}

static void ask_about(struct inet_socket *socket, const struct group *group)
{
    union {
        struct group_filter filter;
        char room[GROUP_FILTER_SIZE(MAX_SOURCES)];
    } answer = { .filter = { .gf_interface = group->interface, .gf_group = group->address, .gf_numsrc = MAX_SOURCES } };
    socklen_t size = sizeof answer;
    if (getsockopt(socket->description->local, level_of(group), MCAST_MSFILTER, &answer, &size) < 0) {
        doubt(ANSWERS(EADDRNOTAVAIL, EINVAL, ENODEV, ENOPROTOOPT, EOPNOTSUPP), "%s: cannot tell whether it is in a multicast group", socket->label);
        return;
    }
    int count = (int)(answer.filter.gf_numsrc < MAX_SOURCES ? answer.filter.gf_numsrc : MAX_SOURCES);
    struct membership membership = { .interface = group->interface, .group = group->address, .source_count = count,
                                     .all_but = answer.filter.gf_fmode == MCAST_EXCLUDE };
    membership.sources = must_alloc((size_t)(count + 1) * sizeof *membership.sources);
    memcpy(membership.sources, answer.filter.gf_slist, (size_t)count * sizeof *membership.sources);
    socket->memberships = must_grow(socket->memberships, (size_t)(socket->membership_count + 1) * sizeof membership);
    socket->memberships[socket->membership_count++] = membership;
}

int multicast_read(struct inet_socket *socket, struct error *err)
{
    (void)err;
    const struct groups *groups = groups_of(socket);
    for (int i = 0; i < groups->count; i++)
        if (groups->list[i].address.ss_family == AF_INET || socket->domain == AF_INET6)
            ask_about(socket, &groups->list[i]);
    return 0;
}

/* An interface that the branch lacks costs the membership, not the fork. */
static void emit_request(struct batch *batch, const struct inet_socket *socket, uint64_t slot, int level, int name, const void *request, size_t size)
{
    EMIT_FLAGS(batch, socket->label, TOLERATING(NO_MEMBER), SYS_setsockopt, slot, (uint64_t)level, (uint64_t)name,
               plan_data(batch->plan, request, size), size);
}

void multicast_emit(struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    for (int i = 0; i < socket->membership_count; i++) {
        const struct membership *membership = &socket->memberships[i];
        int level = membership->group.ss_family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
        struct group_req join = { .gr_interface = membership->interface, .gr_group = membership->group };
        if (membership->all_but)
            emit_request(batch, socket, slot, level, MCAST_JOIN_GROUP, &join, sizeof join);
        for (int k = 0; k < membership->source_count; k++) {
            struct group_source_req source = { .gsr_interface = membership->interface, .gsr_group = membership->group,
                                               .gsr_source = membership->sources[k] };
            emit_request(batch, socket, slot, level, membership->all_but ? MCAST_BLOCK_SOURCE : MCAST_JOIN_SOURCE_GROUP, &source, sizeof source);
        }
    }
}
