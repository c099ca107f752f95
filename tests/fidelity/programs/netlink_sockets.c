/* Netlink: protocol, port id, groups, options and packet filter; requests work afterwards. */
#include "fidelity.h"

#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

static uint32_t memberships(int fd)
{
    uint32_t groups[8] = { 0 };
    socklen_t size = sizeof groups;
    MUST(getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, groups, &size));
    return groups[0];
}

static struct sockaddr_nl address_of(int fd)
{
    struct sockaddr_nl address;
    socklen_t size = sizeof address;
    MUST(getsockname(fd, (void *)&address, &size));
    return address;
}

static void ask_for_links(int fd)
{
    struct {
        struct nlmsghdr header;
        struct rtgenmsg body;
    } request = { { sizeof request, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 7, 0 }, { AF_UNSPEC } };
    MUST((int)send(fd, &request, sizeof request, 0));
    char room[16384];
    ssize_t got = MUST(recv(fd, room, sizeof room, 0));
    const struct nlmsghdr *header = (const void *)room;
    CHECK(got > (ssize_t)sizeof *header && header->nlmsg_seq == 7 && header->nlmsg_type == RTM_NEWLINK, "no links: type %u", header->nlmsg_type);
}

int main(void)
{
    int route = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)), monitor = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT));
    struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = 1 << (RTNLGRP_LINK - 1) };
    MUST(bind(route, (void *)&address, sizeof address));
    address.nl_groups = 2;
    MUST(bind(monitor, (void *)&address, sizeof address));
    struct sock_filter code[] = { BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_STMT(BPF_RET | BPF_K, 0xffffffff) };
    struct sock_fprog filter = { 2, code };
    MUST(setsockopt(monitor, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
    int on = 1;
    MUST(setsockopt(monitor, SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    MUST(setsockopt(route, SOL_NETLINK, NETLINK_PKTINFO, &on, sizeof on));
    int unbound = MUST(socket(AF_NETLINK, SOCK_DGRAM, NETLINK_ROUTE));
    uint32_t port = address_of(route).nl_pid, monitor_port = address_of(monitor).nl_pid, groups = memberships(route), monitor_groups = memberships(monitor);

    fidelity_ready();
    fidelity_await_go();

    CHECK(address_of(route).nl_pid == port && address_of(monitor).nl_pid == monitor_port, "port ids %u and %u", address_of(route).nl_pid,
          address_of(monitor).nl_pid);
    CHECK(address_of(unbound).nl_pid == 0, "the unbound socket has port %u", address_of(unbound).nl_pid);
    CHECK(memberships(route) == groups && memberships(monitor) == monitor_groups, "groups %#x and %#x", memberships(route), memberships(monitor));
    CHECK(address_of(monitor).nl_groups == 2, "nl_groups %#x", address_of(monitor).nl_groups);
    int value = 0;
    socklen_t size = sizeof value;
    MUST(getsockopt(route, SOL_NETLINK, NETLINK_PKTINFO, &value, &size));
    CHECK(value == 1, "NETLINK_PKTINFO is lost");
    struct sock_filter got[4];
    size = 4;
    MUST(getsockopt(monitor, SOL_SOCKET, SO_GET_FILTER, got, &size));
    CHECK(size == 2 && memcmp(got, code, sizeof code) == 0, "the filter has %u instructions", size);
    CHECK(fcntl(route, F_GETFD) == FD_CLOEXEC && fcntl(monitor, F_GETFL) & O_NONBLOCK, "descriptor flags are lost");
    ask_for_links(unbound);
    ask_for_links(route);
    fidelity_pass();
}
