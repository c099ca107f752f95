/*
 * Tables of nftables are read as the kernel lists them and made again by the same attributes, in one transaction. Whether that works a trial shows, in an
 * empty namespace and before anything stops: some extensions of iptables say less of themselves than is needed to make them.
 */
#include "network_rules.h"
#include "doubt.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/pkt_sched.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENGINE_TABLE "tclone"       /* engine/network/firewall.py; of the family inet */
#define TABLE_NAMES_LIMIT 4096
#define TABLE_ATTRIBUTE 1           /* NFTA_TABLE_NAME, and NFTA_…_TABLE of everything that lies in one */
#define MOST_RULES (150u << 10)     /* of what a netlink socket takes at once, as anybody may have it */
#define ELEMENTS_CHUNK (16u << 10)  /* of a message with elements of a set: an attribute holds 64 KiB */
#define SEND_ROOM 4096

#define SET_TYPE 19                 /* NFTA_SET_TYPE and NFTA_SET_COUNT, which older headers lack: told, and not to be said */
#define SET_COUNT 20

#define NFT(type) (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_##type)

struct set {
    unsigned char family;
    uint32_t flags;
    char *table, *name;
};

struct elements {
    const struct rtattr **list;     /* copies */
    int count;
};

struct reading {
    struct network *network;
    struct set *sets;
    int set_count;
    struct elements elements;       /* of the set that is being read … */
    size_t element_bytes;           /* … which are not among the rules yet */
    size_t last;                    /* where the last message begins */
};

static const char *family_name(unsigned char family)
{
    switch (family) {
    case NFPROTO_INET: return "inet";
    case NFPROTO_IPV4: return "ip";
    case NFPROTO_IPV6: return "ip6";
    case NFPROTO_ARP: return "arp";
    case NFPROTO_BRIDGE: return "bridge";
    case NFPROTO_NETDEV: return "netdev";
    default: return "?";
    }
}

static unsigned char family_of(const struct nlmsghdr *message)
{
    return ((const struct nfgenmsg *)NLMSG_DATA(message))->nfgen_family;
}

static const struct rtattr *attribute_of(const struct nlmsghdr *message, int type)
{
    return network_attribute(message, sizeof(struct nfgenmsg), type);
}

static const char *text_of(const struct nlmsghdr *message, int type)
{
    const struct rtattr *attribute = attribute_of(message, type);
    return attribute && RTA_PAYLOAD(attribute) ? RTA_DATA(attribute) : "?";
}

static uint32_t number_of(const struct nlmsghdr *message, int type)
{
    const struct rtattr *attribute = attribute_of(message, type);
    return attribute && RTA_PAYLOAD(attribute) == sizeof(uint32_t) ? __builtin_bswap32(*(const uint32_t *)RTA_DATA(attribute)) : 0;
}

static bool is_engines(const struct network *network, const struct nlmsghdr *message)
{
    return network->own && family_of(message) == NFPROTO_INET && strcmp(text_of(message, TABLE_ATTRIBUTE), ENGINE_TABLE) == 0;
}

static int refuse(const struct network *network, unsigned char family, const char *table, const char *what, struct error *err)
{
    return fail(err, "unsupported", "%s with the packet filter table %s %.64s (nftables, iptables)%s, which cannot be forked; remove it (nft delete table %s "
                "%.64s) or end the program that made it", network->who, family_name(family), table, what, family_name(family), table);
}

static int refuse_message(const struct network *network, const struct nlmsghdr *message, const char *what, struct error *err)
{
    return refuse(network, family_of(message), text_of(message, TABLE_ATTRIBUTE), what, err);
}

/* Told while they are read: who made them may have made millions. */
static int check_size(const struct reading *reading, const struct nlmsghdr *message, struct error *err)
{
    if (reading->network->rules_size + reading->element_bytes <= MOST_RULES)
        return 0;
    return refuse_message(reading->network, message, " and more than 150 KiB of rules", err);
}

/* ---- the transaction ---- */

static void *grow(struct network *network, size_t size)
{
    network->rules = must_grow(network->rules, network->rules_size + NLMSG_ALIGN(size));
    char *at = network->rules + network->rules_size;
    memset(at, 0, NLMSG_ALIGN(size));
    network->rules_size += NLMSG_ALIGN(size);
    return at;
}

static void begin(struct reading *reading, int type, int flags, unsigned char family)
{
    struct network *network = reading->network;
    bool bracket = type == NFNL_MSG_BATCH_BEGIN || type == NFNL_MSG_BATCH_END;
    if (!bracket)
        reading->last = network->rules_size;
    struct nlmsghdr *head = grow(network, NLMSG_HDRLEN + sizeof(struct nfgenmsg));
    *head = (struct nlmsghdr){ .nlmsg_len = NLMSG_LENGTH(sizeof(struct nfgenmsg)), .nlmsg_type = (unsigned short)type,
                               .nlmsg_flags = (unsigned short)(NLM_F_REQUEST | flags) };
    *(struct nfgenmsg *)NLMSG_DATA(head) = (struct nfgenmsg){ .nfgen_family = family, .res_id = bracket ? __builtin_bswap16(NFNL_SUBSYS_NFTABLES) : 0 };
}

static struct rtattr *append(struct reading *reading, int type, const void *data, size_t size)
{
    struct rtattr *attribute = grow(reading->network, RTA_LENGTH(size));
    attribute->rta_type = (unsigned short)type;
    attribute->rta_len = (unsigned short)RTA_LENGTH(size);
    memcpy(RTA_DATA(attribute), data, size);
    struct nlmsghdr *head = (void *)(reading->network->rules + reading->last);
    head->nlmsg_len = (uint32_t)(reading->network->rules_size - reading->last);
    return attribute;
}

/* All attributes but those that tell what the kernel gave by itself. `left_out` ends with 0. */
static void copy(struct reading *reading, const struct nlmsghdr *message, int flags, const int *left_out)
{
    begin(reading, message->nlmsg_type, NLM_F_CREATE | flags, family_of(message));
    const struct rtattr *attribute = (const void *)((const char *)NLMSG_DATA(message) + NLMSG_ALIGN(sizeof(struct nfgenmsg)));
    int left = (int)message->nlmsg_len - (int)NLMSG_SPACE(sizeof(struct nfgenmsg));
    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
        const int *out = left_out;
        while (*out && *out != (attribute->rta_type & NLA_TYPE_MASK))
            out++;
        if (!*out)
            append(reading, attribute->rta_type, RTA_DATA(attribute), RTA_PAYLOAD(attribute));
    }
}

/* ---- read ---- */

static int take_table(struct nlmsghdr *message, void *to, struct error *err)
{
    static const int left_out[] = { NFTA_TABLE_HANDLE, NFTA_TABLE_USE, NFTA_TABLE_PAD, 0 };
    struct reading *reading = to;
    if (message->nlmsg_type != NFT(NEWTABLE) || is_engines(reading->network, message))
        return 0;
    if (number_of(message, NFTA_TABLE_FLAGS) & ~(uint32_t)NFT_TABLE_F_DORMANT)
        return refuse_message(reading->network, message, ", which belongs to a running program", err);
    if (!reading->network->table) {
        reading->network->table = must_copy_string(text_of(message, NFTA_TABLE_NAME));
        reading->network->table_family = family_of(message);
    }
    copy(reading, message, 0, left_out);
    return check_size(reading, message, err);
}

static int take_chain(struct nlmsghdr *message, void *to, struct error *err)
{
    static const int left_out[] = { NFTA_CHAIN_HANDLE, NFTA_CHAIN_USE, NFTA_CHAIN_PAD, NFTA_CHAIN_ID, 0 };
    struct reading *reading = to;
    if (message->nlmsg_type != NFT(NEWCHAIN) || is_engines(reading->network, message))
        return 0;
    if (number_of(message, NFTA_CHAIN_FLAGS) & ~(uint32_t)NFT_CHAIN_BASE)
        return refuse_message(reading->network, message, " and a chain without a name, or in hardware", err);
    copy(reading, message, 0, left_out);
    return check_size(reading, message, err);
}

static int take_object(struct nlmsghdr *message, void *to, struct error *err)
{
    static const int left_out[] = { NFTA_OBJ_HANDLE, NFTA_OBJ_USE, NFTA_OBJ_PAD, 0 };
    struct reading *reading = to;
    (void)err;
    if (message->nlmsg_type == NFT(NEWOBJ) && !is_engines(reading->network, message))
        copy(reading, message, 0, left_out);
    return check_size(reading, message, err);
}

static int take_set(struct nlmsghdr *message, void *to, struct error *err)
{
    static const int left_out[] = { NFTA_SET_HANDLE, NFTA_SET_PAD, NFTA_SET_ID, SET_TYPE, SET_COUNT, 0 };
    struct reading *reading = to;
    if (message->nlmsg_type != NFT(NEWSET) || is_engines(reading->network, message))
        return 0;
    copy(reading, message, 0, left_out);
    reading->sets = must_grow(reading->sets, (size_t)(reading->set_count + 1) * sizeof *reading->sets);
    reading->sets[reading->set_count++] = (struct set){ family_of(message), number_of(message, NFTA_SET_FLAGS),
                                                        must_copy_string(text_of(message, NFTA_SET_TABLE)), must_copy_string(text_of(message, NFTA_SET_NAME)) };
    uint32_t number = __builtin_bswap32((uint32_t)reading->set_count);      /* it has to have one, though all name it by its name */
    append(reading, NFTA_SET_ID, &number, sizeof number);
    return check_size(reading, message, err);
}

static int take_flow_table(struct nlmsghdr *message, void *to, struct error *err)
{
    const struct reading *reading = to;
    if (message->nlmsg_type != NFT(NEWFLOWTABLE) || is_engines(reading->network, message))
        return 0;
    return refuse_message(reading->network, message, " and a flow table", err);
}

static int take_rule(struct nlmsghdr *message, void *to, struct error *err)
{
    static const int left_out[] = { NFTA_RULE_HANDLE, NFTA_RULE_POSITION, NFTA_RULE_PAD, NFTA_RULE_ID, 0 };
    struct reading *reading = to;
    if (message->nlmsg_type == NFT(NEWRULE) && !is_engines(reading->network, message))
        copy(reading, message, NLM_F_APPEND, left_out);
    return check_size(reading, message, err);
}

static int take_elements(struct nlmsghdr *message, void *to, struct error *err)
{
    struct reading *reading = to;
    struct elements *elements = &reading->elements;
    const struct rtattr *list = message->nlmsg_type == NFT(NEWSETELEM) ? attribute_of(message, NFTA_SET_ELEM_LIST_ELEMENTS) : NULL;
    const struct rtattr *one = list ? RTA_DATA(list) : NULL;
    int left = list ? (int)RTA_PAYLOAD(list) : 0;
    for (; one && RTA_OK(one, left); one = RTA_NEXT(one, left)) {
        struct rtattr *kept = must_alloc(one->rta_len);
        memcpy(kept, one, one->rta_len);
        elements->list = must_grow(elements->list, (size_t)(elements->count + 1) * sizeof *elements->list);
        elements->list[elements->count++] = kept;
        reading->element_bytes += one->rta_len;
    }
    return check_size(reading, message, err);
}

/* The kernel lists intervals from the last to the first, and takes them from the first on. */
static const struct rtattr *nth_element(const struct reading *reading, const struct set *set, int n)
{
    bool backwards = set->flags & NFT_SET_INTERVAL && !(set->flags & NFT_SET_CONCAT);
    return reading->elements.list[backwards ? reading->elements.count - 1 - n : n];
}

static void put_elements(struct reading *reading, const struct set *set)
{
    for (int i = 0; i < reading->elements.count;) {
        begin(reading, NFT(NEWSETELEM), NLM_F_CREATE, set->family);
        append(reading, NFTA_SET_ELEM_LIST_TABLE, set->table, strlen(set->table) + 1);
        append(reading, NFTA_SET_ELEM_LIST_SET, set->name, strlen(set->name) + 1);
        size_t start = reading->network->rules_size;
        append(reading, NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED, "", 0);
        for (; i < reading->elements.count && reading->network->rules_size - start < ELEMENTS_CHUNK; i++) {
            const struct rtattr *element = nth_element(reading, set, i);
            append(reading, element->rta_type, RTA_DATA(element), RTA_PAYLOAD(element));
        }
        ((struct rtattr *)(reading->network->rules + start))->rta_len = (unsigned short)(reading->network->rules_size - start);
    }
}

static int read_elements(int fd, struct reading *reading, const struct set *set, struct error *err)
{
    struct network request = { 0 };
    struct reading question = { .network = &request };
    begin(&question, NFT(GETSETELEM), NLM_F_DUMP, set->family);
    append(&question, NFTA_SET_ELEM_LIST_TABLE, set->table, strlen(set->table) + 1);
    append(&question, NFTA_SET_ELEM_LIST_SET, set->name, strlen(set->name) + 1);
    reading->elements = (struct elements){ 0 };
    ssize_t sent = send(fd, request.rules, request.rules_size, 0);
    free(request.rules);
    if (sent < 0)
        return fail_errno(err, "cannot ask for the elements of the set %.64s of packet filters", set->name);
    if (network_receive(fd, take_elements, reading, err) < 0)
        return -1;
    put_elements(reading, set);
    for (int i = 0; i < reading->elements.count; i++)
        free((void *)reading->elements.list[i]);
    free(reading->elements.list);
    reading->element_bytes = 0;     /* they are counted in the rules now */
    return 0;
}

static int read_tables(int fd, struct reading *reading, struct error *err)
{
    static const struct { int type; network_take take; } before[] = {
        { NFT(GETTABLE), take_table }, { NFT(GETCHAIN), take_chain }, { NFT(GETOBJ), take_object }, { NFT(GETFLOWTABLE), take_flow_table },
        { NFT(GETSET), take_set },
    };
    begin(reading, NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        if (network_dump(fd, before[i].type, sizeof(struct nfgenmsg), before[i].take, reading, err) < 0)
            return -1;
        if (i == 0 && !reading->network->table)
            return 0;           /* mostly */
    }
    for (int i = 0; i < reading->set_count; i++)
        if (read_elements(fd, reading, &reading->sets[i], err) < 0)
            return -1;
    return network_dump(fd, NFT(GETRULE), sizeof(struct nfgenmsg), take_rule, reading, err);
}

static int read_filters(struct network *network, struct error *err)
{
    struct reading reading = { .network = network };
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    if (fd < 0 && errno == EPROTONOSUPPORT)
        return 0;               /* this kernel has none */
    if (fd < 0)
        return fail_errno(err, "cannot ask for the packet filters of a network namespace");
    int status = read_tables(fd, &reading, err);
    for (int i = 0; i < reading.set_count; i++) {
        free(reading.sets[i].table);
        free(reading.sets[i].name);
    }
    free(reading.sets);
    if (status == 0 && network->table) {
        ((struct nlmsghdr *)(network->rules + reading.last))->nlmsg_flags |= NLM_F_ACK;
        begin(&reading, NFNL_MSG_BATCH_END, 0, AF_UNSPEC);
    } else {
        free(network->rules);
        network->rules = NULL;
        network->rules_size = 0;
    }
    return status;
}

/* ---- trial ---- */

/* Make them here, and see that as much comes out. */
static int try_here(const struct network *network, struct error *err)
{
    struct { struct nlmsghdr head; int error; char rest[SEND_ROOM]; } answer = { 0 };
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    if (fd < 0 || send(fd, network->rules, network->rules_size, 0) < 0 || recv(fd, &answer, sizeof answer, 0) < (ssize_t)sizeof answer.head)
        return fail_errno(err, "cannot try whether packet filters can be made again");
    char what[96];
    snprintf(what, sizeof what, " that the kernel does not take again (%.32s)", strerror(-answer.error));
    if (answer.error)
        return refuse(network, network->table_family, network->table, what, err);
    struct network made = { 0 };
    snprintf(made.who, sizeof made.who, "%s", network->who);
    int status = read_filters(&made, err);
    if (status == 0 && made.rules_size != network->rules_size)
        status = refuse(network, network->table_family, network->table, " of which not all can be read", err);
    free(made.rules);
    free(made.table);
    return status;
}

static int try_rules(const struct network *network, struct error *err)
{
    AUTO_CLOSE int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (home < 0 || unshare(CLONE_NEWNET) < 0)
        return fail_errno(err, "cannot make a network namespace");
    int status = try_here(network, err);
    if (setns(home, CLONE_NEWNET) < 0)
        return fail_errno(err, "cannot return from a network namespace");
    return status;
}

/* ---- what is refused ---- */

/* Tables of the kernel's older filters are listed once somebody has asked for them; to ask would make them. */
static int check_old_tables(const struct network *network, struct error *err)
{
    static const char *const lists[] = { "ip_tables_names", "ip6_tables_names", "arp_tables_names" };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct error none = { 0 };
        AUTO_FREE char *names = proc_read(&none, TABLE_NAMES_LIMIT, NULL, "/proc/thread-self/net/%s", lists[i]);
        doubt_error(&none);
        if (names && *names)
            return fail(err, "unsupported", "%s with the packet filter table %.*s of %s (iptables-legacy), which cannot be forked; end the program that made the "
                        "namespace, or let it use nftables and remove its tables before a fork", network->who, (int)strcspn(names, "\n"), names,
                        i == 0 ? "IPv4" : i == 1 ? "IPv6" : "ARP");
    }
    return 0;
}

/* Those that the kernel gives by itself have no handle. */
static int take_discipline(struct nlmsghdr *message, void *to, struct error *err)
{
    const struct network *network = to;
    const struct tcmsg *discipline = NLMSG_DATA(message);
    const struct rtattr *kind = network_attribute(message, sizeof *discipline, TCA_KIND);
    if (TC_H_MAJ(discipline->tcm_handle) == 0 || discipline->tcm_ifindex == network->way_out)
        return 0;
    const char *interface = "?";
    for (int i = 0; i < network->link_count; i++)
        if (network->links[i].index == discipline->tcm_ifindex)
            interface = network->links[i].name;
    const char *name = kind && RTA_PAYLOAD(kind) ? RTA_DATA(kind) : "?";
    return fail(err, "unsupported", "%s with the queueing discipline %.32s on the interface %.16s (traffic control), which cannot be forked; remove it "
                "(tc qdisc delete dev %.16s %s)", network->who, name, interface, interface,
                discipline->tcm_parent == TC_H_INGRESS ? name : "root");
}

int network_rules_read(const struct world *world, int route, struct network *network, struct error *err)
{
    if (check_old_tables(network, err) < 0 || network_dump(route, RTM_GETQDISC, sizeof(struct tcmsg), take_discipline, network, err) < 0
        || read_filters(network, err) < 0)
        return -1;
    bool before = world->root < 0;      /* the freeze, in which there is no time for a trial */
    return network->rules && before ? try_rules(network, err) : 0;
}

/* ---- emit ---- */

void network_rules_emit(struct batch *batch, const struct network *network, uint64_t answer)
{
    if (!network->rules)
        return;
    EMIT(batch, "packet filters", SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    struct network_socket socket = { emit_result_cell(batch), answer };
    network_emit_message(batch, &socket, network->rules, network->rules_size, "packet filters");
    EMIT_FLAGS(batch, "packet filters", OP_LOAD(0), SYS_close, socket.fd);
}
