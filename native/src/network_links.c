/* Interfaces: bridges, dummies and veth pairs are made again under their numbers; those that every namespace has are set as they were. */
#include "network_links.h"
#include "files.h"

#include <errno.h>
#include <linux/if_link.h>
#include <linux/net_namespace.h>
#include <linux/veth.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MESSAGE_ROOM 2048
#define WAY_OUT "eth0"          /* engine/network/settings.py: INTERFACE */
#define SETTABLE_FLAGS (IFF_UP | IFF_NOARP | IFF_PROMISC | IFF_ALLMULTI | IFF_MULTICAST | IFF_DEBUG | IFF_DYNAMIC)
#define BRIDGE_FIRST IFLA_BR_FORWARD_DELAY      /* what is set on a bridge: delays, ageing, spanning tree, priority, VLANs */
#define BRIDGE_LAST IFLA_BR_VLAN_PROTOCOL

struct reading {
    const struct world *world;
    struct network *network;
    int fd;
};

/* ---- read ---- */

static void take_text(const struct rtattr *attribute, char *text, size_t size)
{
    if (attribute)
        snprintf(text, size, "%.*s", (int)RTA_PAYLOAD(attribute), (const char *)RTA_DATA(attribute));
}

static uint32_t number_of(const struct rtattr *attribute)
{
    return attribute && RTA_PAYLOAD(attribute) >= sizeof(uint32_t) ? *(const uint32_t *)RTA_DATA(attribute) : 0;
}

static const struct rtattr *nested(const struct rtattr *attribute, int type)
{
    const struct rtattr *inner = attribute ? RTA_DATA(attribute) : NULL;
    int left = attribute ? (int)RTA_PAYLOAD(attribute) : 0;
    for (; inner && RTA_OK(inner, left); inner = RTA_NEXT(inner, left))
        if ((inner->rta_type & NLA_TYPE_MASK) == type)
            return inner;
    return NULL;
}

/* Interfaces that some kernels put into every new namespace. */
static bool comes_by_itself(const char *name)
{
    static const char *const names[] = { "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* That VLANs are not told apart cannot be set where the kernel knows none. */
static void take_bridge(struct link *link, const struct rtattr *data)
{
    for (int type = BRIDGE_FIRST; type <= BRIDGE_LAST; type++) {
        const struct rtattr *attribute = nested(data, type);
        bool off = type == IFLA_BR_VLAN_FILTERING && attribute && *(const unsigned char *)RTA_DATA(attribute) == 0;
        if (!attribute || off || link->data_size + RTA_ALIGN(attribute->rta_len) > sizeof link->data)
            continue;
        memcpy(link->data + link->data_size, attribute, attribute->rta_len);
        link->data_size += RTA_ALIGN(attribute->rta_len);
    }
}

/* How this namespace calls another one; -1 = not at all. */
static int number_of_namespace(int fd, const struct namespace *other)
{
    struct { struct nlmsghdr head; struct rtgenmsg any; char pad[3]; struct rtattr attribute; int32_t value; } request = {
        { sizeof request, RTM_GETNSID, NLM_F_REQUEST, 1, 0 }, { AF_UNSPEC }, { 0 }, { sizeof(struct rtattr) + sizeof(int32_t), NETNSA_FD }, other->local,
    };
    char answer[512] __attribute__((aligned(8)));
    struct nlmsghdr *message = (void *)answer;
    if (other->local < 0 || send(fd, &request, sizeof request, 0) < 0 || recv(fd, answer, sizeof answer, 0) < (ssize_t)sizeof *message
        || message->nlmsg_type != RTM_NEWNSID)
        return -1;
    const struct rtattr *number = network_attribute(message, sizeof(struct rtgenmsg), NETNSA_NSID);
    return number ? (int)number_of(number) : -1;
}

static int find_peer_namespace(const struct reading *reading, struct link *link, struct error *err)
{
    const struct namespaces *all = reading->world->namespaces;
    for (int i = NAMESPACE_KINDS; i < all->count; i++)
        if (all->list[i]->kind == NAMESPACE_NET && number_of_namespace(reading->fd, all->list[i]) == link->peer_number) {
            link->peer_namespace = all->list[i];
            return 0;
        }
    return fail(err, "unsupported", "%s with the interface %.16s, whose other end is outside it, which cannot be forked; %s", reading->network->who,
                link->name, reading->network->own ? "remove it (ip link delete)" : "end the program that made it");
}

/* The namespace of the other end is looked up when the list has been read: the answer would come into its middle. */
static int take_link(struct nlmsghdr *message, void *to, struct error *err)
{
    struct reading *reading = to;
    struct network *network = reading->network;
    const struct ifinfomsg *info = NLMSG_DATA(message);
#define ATTRIBUTE(type) network_attribute(message, sizeof *info, type)
    const struct rtattr *address = ATTRIBUTE(IFLA_ADDRESS), *details = ATTRIBUTE(IFLA_LINKINFO);
    struct link link = { .index = info->ifi_index, .flags = info->ifi_flags, .mtu = number_of(ATTRIBUTE(IFLA_MTU)), .peer = -1,
                         .queue_length = number_of(ATTRIBUTE(IFLA_TXQLEN)), .group = number_of(ATTRIBUTE(IFLA_GROUP)),
                         .master = (int)number_of(ATTRIBUTE(IFLA_MASTER)) };
    take_text(ATTRIBUTE(IFLA_IFNAME), link.name, sizeof link.name);
    bool standard = info->ifi_flags & IFF_LOOPBACK || comes_by_itself(link.name);
    if (!standard)
        take_text(nested(details, IFLA_INFO_KIND), link.kind, sizeof link.kind);
    if (address && RTA_PAYLOAD(address) <= sizeof link.address && !standard) {
        link.address_size = RTA_PAYLOAD(address);
        memcpy(link.address, RTA_DATA(address), link.address_size);
    }
    if (strcmp(link.kind, "bridge") == 0)
        take_bridge(&link, nested(details, IFLA_INFO_DATA));
    else if (strcmp(link.kind, "veth") == 0)
        link.peer = (int)number_of(ATTRIBUTE(IFLA_LINK));
    else if (!standard && strcmp(link.kind, "dummy") != 0)
        return fail(err, "unsupported", "%s with the interface %.16s%s%.16s, which cannot be forked; %s", network->who, link.name,
                    *link.kind ? " of the kind " : "", link.kind, reading->network->own ? "remove it (ip link delete)" : "end the program that made it");
    const struct rtattr *elsewhere = ATTRIBUTE(IFLA_LINK_NETNSID);
    link.peer_number = elsewhere ? (int)number_of(elsewhere) : -1;
    if (network->own && link.peer >= 0 && elsewhere && strcmp(link.name, WAY_OUT) == 0) {
        network->way_out = link.index;
        if (!link.master)
            return 0;
        return fail(err, "unsupported", "%s whose interface %s has become a part of another, which cannot be forked; take it out (ip link set %s nomaster)",
                    network->who, WAY_OUT, WAY_OUT);
    }
    network->links = must_grow(network->links, (size_t)(network->link_count + 1) * sizeof link);
    network->links[network->link_count++] = link;
    return 0;
#undef ATTRIBUTE
}

static int find_peers(const struct reading *reading, struct error *err)
{
    for (int i = 0; i < reading->network->link_count; i++) {
        struct link *link = &reading->network->links[i];
        if (link->peer >= 0 && link->peer_number >= 0 && find_peer_namespace(reading, link, err) < 0)
            return -1;
    }
    return 0;
}

int network_links_read(const struct world *world, int fd, struct network *network, struct error *err)
{
    struct reading reading = { world, network, fd };
    return network_dump(fd, RTM_GETLINK, sizeof(struct ifinfomsg), take_link, &reading, err) < 0 ? -1 : find_peers(&reading, err);
}

/* ---- emit ---- */

struct message {
    struct nlmsghdr head;
    struct ifinfomsg info;
    char attributes[MESSAGE_ROOM];
};

static void *append(struct message *message, int type, const void *data, size_t size)
{
    struct rtattr *attribute = (void *)((char *)message + NLMSG_ALIGN(message->head.nlmsg_len));
    attribute->rta_type = (unsigned short)type;
    attribute->rta_len = (unsigned short)RTA_LENGTH(size);
    if (size)
        memcpy(RTA_DATA(attribute), data, size);
    message->head.nlmsg_len = NLMSG_ALIGN(message->head.nlmsg_len) + (uint32_t)RTA_ALIGN(attribute->rta_len);
    return attribute;
}

static void end_nest(struct message *message, struct rtattr *nest)
{
    nest->rta_len = (unsigned short)((char *)message + message->head.nlmsg_len - (char *)nest);
}

static void begin(struct message *message, int flags, const struct link *link)
{
    *message = (struct message){ .head = { .nlmsg_len = NLMSG_LENGTH(sizeof message->info), .nlmsg_type = RTM_NEWLINK,
                                           .nlmsg_flags = (unsigned short)(NLM_F_REQUEST | NLM_F_ACK | flags) },
                                 .info = { .ifi_index = link->index } };
}

/* Name, address and sizes. */
static void append_shape(struct message *message, const struct link *link)
{
    append(message, IFLA_IFNAME, link->name, strlen(link->name) + 1);
    if (link->address_size)
        append(message, IFLA_ADDRESS, link->address, link->address_size);
    append(message, IFLA_MTU, &link->mtu, sizeof link->mtu);
    append(message, IFLA_TXQLEN, &link->queue_length, sizeof link->queue_length);
    append(message, IFLA_GROUP, &link->group, sizeof link->group);
}

static const struct link *peer_of(const struct link *link, const struct namespace *home)
{
    const struct network *network = (link->peer_namespace ? link->peer_namespace : home)->network;
    for (int i = 0; network && i < network->link_count; i++)
        if (network->links[i].index == link->peer && strcmp(network->links[i].kind, "veth") == 0)
            return &network->links[i];
    return NULL;
}

/* The other end has its whole description inside that of this one. */
static void append_peer(const struct plan *plan, struct message *message, const struct link *link, const struct link *peer)
{
    struct rtattr *data = append(message, IFLA_INFO_DATA | NLA_F_NESTED, NULL, 0), *end = append(message, VETH_INFO_PEER | NLA_F_NESTED, NULL, 0);
    struct ifinfomsg *info = (void *)((char *)message + message->head.nlmsg_len);
    *info = (struct ifinfomsg){ .ifi_index = peer->index };
    message->head.nlmsg_len += (uint32_t)sizeof *info;
    append_shape(message, peer);
    if (link->peer_namespace) {
        uint32_t there = (uint32_t)aux_slot(plan->world, link->peer_namespace->aux);
        append(message, IFLA_NET_NS_FD, &there, sizeof there);
    }
    end_nest(message, end);
    end_nest(message, data);
}

/* Of a pair the end that is met last makes both: then both namespaces are there. */
static bool is_made_here(const struct link *link, const struct namespace *home)
{
    if (!*link->kind)
        return false;
    if (link->peer < 0)
        return true;
    return link->peer_namespace ? link->peer_namespace->index < home->index : link->index > link->peer;
}

static void emit_new(struct batch *batch, const struct network_socket *socket, const struct link *link, const struct namespace *home, const char *what)
{
    struct message message;
    const struct link *peer = link->peer < 0 ? NULL : peer_of(link, home);
    begin(&message, NLM_F_CREATE | NLM_F_EXCL, link);
    append_shape(&message, link);
    struct rtattr *details = append(&message, IFLA_LINKINFO | NLA_F_NESTED, NULL, 0);
    append(&message, IFLA_INFO_KIND, link->kind, strlen(link->kind));
    if (peer) {
        append_peer(batch->plan, &message, link, peer);
    } else if (link->data_size) {
        append(&message, IFLA_INFO_DATA | NLA_F_NESTED, link->data, link->data_size);
    }
    end_nest(&message, details);
    network_emit_message(batch, socket, &message, message.head.nlmsg_len, what);
}

static void emit_state(struct batch *batch, const struct network_socket *socket, const struct link *link, const char *what)
{
    struct message message;
    begin(&message, 0, link);
    message.info.ifi_flags = link->flags & SETTABLE_FLAGS;
    message.info.ifi_change = SETTABLE_FLAGS;
    append(&message, IFLA_MTU, &link->mtu, sizeof link->mtu);
    append(&message, IFLA_TXQLEN, &link->queue_length, sizeof link->queue_length);
    if (link->master)
        append(&message, IFLA_MASTER, &link->master, sizeof link->master);
    network_emit_message(batch, socket, &message, message.head.nlmsg_len, what);
}

static const char *label_of(const struct link *link)
{
    static char what[64];
    snprintf(what, sizeof what, "the interface %.16s", link->name);
    return what;
}

void network_links_emit(struct batch *batch, const struct network_socket *socket, const struct namespace *namespace)
{
    const struct network *network = namespace->network;
    for (int i = 0; i < network->link_count; i++)
        if (is_made_here(&network->links[i], namespace))
            emit_new(batch, socket, &network->links[i], namespace, label_of(&network->links[i]));
}

void network_links_emit_states(struct batch *batch, const struct network_socket *socket, const struct network *network)
{
    for (int i = 0; i < network->link_count; i++) {
        const struct link *link = &network->links[i];
        if (*link->kind || link->flags & IFF_UP)
            emit_state(batch, socket, link, label_of(link));
    }
}
