#include "network_rules.h"
#include "proc.h"

#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/pkt_sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ENGINE_TABLE "tclone"       /* engine/network/firewall.py; of the family inet */
#define TABLE_NAMES_LIMIT 4096

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

static int take_table(struct nlmsghdr *message, void *to, struct error *err)
{
    const struct network *network = to;
    const struct nfgenmsg *head = NLMSG_DATA(message);
    const struct rtattr *attribute = network_attribute(message, sizeof *head, NFTA_TABLE_NAME);
    const char *name = attribute && RTA_PAYLOAD(attribute) ? RTA_DATA(attribute) : "?";
    if (message->nlmsg_type != (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWTABLE))
        return 0;
    if (network->own && head->nfgen_family == NFPROTO_INET && strcmp(name, ENGINE_TABLE) == 0)
        return 0;
    return fail(err, "unsupported", "%s with the packet filter table %s %.64s (nftables, iptables), which cannot be forked; remove it "
                "(nft delete table %s %.64s) or end the program that made it", network->who, family_name(head->nfgen_family), name,
                family_name(head->nfgen_family), name);
}

static int check_nftables(struct network *network, struct error *err)
{
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    if (fd < 0 && errno == EPROTONOSUPPORT)
        return 0;               /* this kernel has none */
    if (fd < 0)
        return fail_errno(err, "cannot ask for the packet filters of a network namespace");
    return network_dump(fd, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE, sizeof(struct nfgenmsg), take_table, network, err);
}

/* Tables of the kernel's older filters are listed once somebody has asked for them; to ask would make them. */
static int check_old_tables(const struct network *network, struct error *err)
{
    static const char *const lists[] = { "ip_tables_names", "ip6_tables_names", "arp_tables_names" };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct error none = { 0 };
        AUTO_FREE char *names = proc_read(&none, TABLE_NAMES_LIMIT, NULL, "/proc/thread-self/net/%s", lists[i]);
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

int network_rules_check(int route, struct network *network, struct error *err)
{
    if (check_nftables(network, err) < 0 || check_old_tables(network, err) < 0)
        return -1;
    return network_dump(route, RTM_GETQDISC, sizeof(struct tcmsg), take_discipline, network, err);
}
