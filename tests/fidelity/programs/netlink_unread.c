/* Netlink with something unread: the source reads it; a branch is told by ENOBUFS that it has missed something, never left to wait. */
#include "fidelity.h"

#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

static void ask(int fd, uint32_t number)
{
    struct {
        struct nlmsghdr header;
        struct rtgenmsg body;
    } request = { { sizeof request, RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, number, 0 }, { AF_UNSPEC } };
    struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
    MUST((int)sendto(fd, &request, sizeof request, 0, (void *)&kernel, sizeof kernel));
}

/* Read a listing to its end; messages with another number are not part of it. */
static int read_listing(int fd, uint32_t number)
{
    static char room[65536];
    for (int seen = 0;;) {
        struct pollfd state = { fd, POLLIN, 0 };
        CHECK(poll(&state, 1, 20000) == 1, "the listing %u has no end", number);
        ssize_t got = recv(fd, room, sizeof room, 0);
        if (got < 0)
            return -errno;
        size_t left = (size_t)got;
        for (const struct nlmsghdr *header = (const void *)room; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_seq != number)
                continue;
            if (header->nlmsg_type == NLMSG_DONE)
                return seen;
            seen++;
        }
    }
}

static bool in_group(int fd, unsigned group)
{
    uint32_t groups[128] = { 0 };
    socklen_t size = sizeof groups;
    MUST(getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, groups, &size));
    return groups[(group - 1) / 32] >> (group - 1) % 32 & 1;
}

static uint32_t port_of(int fd)
{
    struct sockaddr_nl address;
    socklen_t size = sizeof address;
    MUST(getsockname(fd, (void *)&address, &size));
    return address.nl_pid;
}

static int make(int protocol, uint32_t port)
{
    struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_pid = port };
    int fd = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol));
    MUST(bind(fd, (void *)&address, sizeof address));
    return fd;
}

int main(void)
{
    int unread = make(NETLINK_ROUTE, 0), half_read = make(NETLINK_ROUTE, 0), quiet = make(NETLINK_ROUTE, 0), generic = make(NETLINK_GENERIC, 0);
    int many_groups = make(NETLINK_ROUTE, 0), chosen = make(NETLINK_ROUTE, 0x7abcde01);
    unsigned far = RTNLGRP_NEXTHOP, near = RTNLGRP_IPV4_ROUTE;
    MUST(setsockopt(many_groups, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &far, sizeof far));
    MUST(setsockopt(many_groups, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &near, sizeof near));
    int connected = make(NETLINK_ROUTE, 0), size = 100000;
    struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
    MUST(connect(connected, (void *)&kernel, sizeof kernel));
    MUST(setsockopt(unread, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    ask(unread, 5);
    /* A buffer for a single message: the listing goes on with each read. */
    ask(half_read, 6);
    char little[64];
    MUST((int)recv(half_read, little, sizeof little, 0));
    uint32_t ports[] = { port_of(unread), port_of(half_read), port_of(generic), port_of(chosen) };
    int wanted = 0, got_size = 0;
    socklen_t option_size = sizeof wanted;
    MUST(getsockopt(unread, SOL_SOCKET, SO_RCVBUF, &wanted, &option_size));

    fidelity_ready();
    fidelity_await_go();

    CHECK(port_of(unread) == ports[0] && port_of(half_read) == ports[1] && port_of(generic) == ports[2] && port_of(chosen) == ports[3]
          && ports[3] == 0x7abcde01, "a port id has changed");
    CHECK(in_group(many_groups, far) && in_group(many_groups, near) && !in_group(many_groups, near + 1), "groups are lost");
    MUST(getsockopt(unread, SOL_SOCKET, SO_RCVBUF, &got_size, &option_size));
    CHECK(got_size == wanted, "SO_RCVBUF is %d, not %d", got_size, wanted);
    int first = read_listing(unread, 5);
    if (fidelity_in_branch()) {
        CHECK(first == -ENOBUFS, "unread messages: the branch gets %d", first);
        int half = read_listing(half_read, 6);
        CHECK(half == -ENOBUFS || half >= 0, "a listing half read: the branch gets %d", half);
    } else {
        CHECK(first > 0, "the unread listing is lost: %d", first);
        CHECK(read_listing(half_read, 6) >= 0, "the listing cannot be read to its end");
    }
    ask(unread, 7);
    CHECK(read_listing(unread, 7) > 0, "a new listing does not come");
    ask(half_read, 8);
    CHECK(read_listing(half_read, 8) > 0, "a new listing does not come");
    char byte;
    CHECK(recv(quiet, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN, "the quiet socket: %s", strerror(errno));
    CHECK(recv(many_groups, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN, "the socket with groups: %s", strerror(errno));
    ask(connected, 9);
    CHECK(read_listing(connected, 9) > 0, "the connected socket gets no listing");
    fidelity_pass();
}
