/* Multicast: memberships with and without sources on IPv4 and IPv6, who receives what, and the sender's settings. */
#include "fidelity.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

static struct sockaddr_in group_of(const char *address, uint16_t port)
{
    struct sockaddr_in group = { .sin_family = AF_INET, .sin_port = htons(port) };
    inet_pton(AF_INET, address, &group.sin_addr);
    return group;
}

static int make(int family, uint16_t port)
{
    int fd = MUST(socket(family, SOCK_DGRAM, 0)), on = 1, off = 0;
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    union { struct sockaddr_in v4; struct sockaddr_in6 v6; } any = { .v4 = { .sin_family = (sa_family_t)family, .sin_port = htons(port) } };
    MUST(bind(fd, (void *)&any, family == AF_INET ? sizeof any.v4 : sizeof any.v6));
    if (family == AF_INET)      /* what others have joined does not count */
        MUST(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off));
    return fd;
}

static int number(int fd, int level, int name)
{
    int value = 0;
    socklen_t size = sizeof value;
    MUST(getsockopt(fd, level, name, &value, &size));
    return value;
}

/* As many as are known of the filter of a group; -1 = not a member. */
static int sources_of(int fd, const char *group, uint32_t *mode)
{
    struct sockaddr_in wanted = group_of(group, 0);
    union { struct group_filter filter; char room[GROUP_FILTER_SIZE(8)]; } answer = { .filter = { .gf_interface = 1, .gf_numsrc = 8 } };
    memcpy(&answer.filter.gf_group, &wanted, sizeof wanted);
    socklen_t size = sizeof answer;
    if (getsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, &answer, &size) < 0)
        return -1;
    *mode = answer.filter.gf_fmode;
    return (int)answer.filter.gf_numsrc;
}

static void expect(int fd, const char *text)
{
    char got[32] = "";
    struct pollfd state = { fd, POLLIN, 0 };
    CHECK(poll(&state, 1, 20000) == 1, "\"%s\" does not come", text);
    ssize_t size = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);
    CHECK(size > 0 && strcmp(got, text) == 0, "got \"%s\", not \"%s\"", got, text);
}

int main(void)
{
    int member = make(AF_INET, 18331), other = make(AF_INET, 18331), sender = MUST(socket(AF_INET, SOCK_DGRAM, 0)), six = make(AF_INET6, 18332);
    struct ip_mreqn join = { .imr_multiaddr = group_of("239.1.2.3", 0).sin_addr, .imr_ifindex = 1 };
    MUST(setsockopt(member, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join));
    join.imr_multiaddr = group_of("239.1.2.4", 0).sin_addr;
    MUST(setsockopt(other, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join));
    struct group_source_req source = { .gsr_interface = 1 };
    struct sockaddr_in group = group_of("239.1.2.5", 0), allowed = group_of("127.0.0.9", 0);
    memcpy(&source.gsr_group, &group, sizeof group);
    memcpy(&source.gsr_source, &allowed, sizeof allowed);
    MUST(setsockopt(member, IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &source, sizeof source));
    group = group_of("239.1.2.4", 0);
    memcpy(&source.gsr_group, &group, sizeof group);
    MUST(setsockopt(other, IPPROTO_IP, MCAST_BLOCK_SOURCE, &source, sizeof source));
    struct in_addr loopback = { htonl(INADDR_LOOPBACK) };
    unsigned char hops = 7;
    MUST(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof loopback));
    MUST(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof hops));
    struct ipv6_mreq join_six = { .ipv6mr_interface = 1 };
    inet_pton(AF_INET6, "ff12::4321", &join_six.ipv6mr_multiaddr);
    MUST(setsockopt(six, IPPROTO_IPV6, IPV6_JOIN_GROUP, &join_six, sizeof join_six));
    int six_sender = MUST(socket(AF_INET6, SOCK_DGRAM, 0)), interface = 1;
    MUST(setsockopt(six_sender, IPPROTO_IPV6, IPV6_MULTICAST_IF, &interface, sizeof interface));
    struct sockaddr_in to = group_of("239.1.2.3", 18331);
    MUST((int)sendto(sender, "before", 6, 0, (void *)&to, sizeof to));
    fidelity_sleep_ms(200);

    fidelity_ready();
    fidelity_await_go();

    uint32_t mode = 99;
    CHECK(sources_of(member, "239.1.2.3", &mode) == 0 && mode == MCAST_EXCLUDE, "the plain membership: mode %u", mode);
    CHECK(sources_of(member, "239.1.2.5", &mode) == 1 && mode == MCAST_INCLUDE, "the membership with a source: mode %u", mode);
    CHECK(sources_of(other, "239.1.2.4", &mode) == 1 && mode == MCAST_EXCLUDE, "the membership without a source: mode %u", mode);
    CHECK(sources_of(other, "239.1.2.3", &mode) == -1, "a member that never joined");
    CHECK(number(sender, IPPROTO_IP, IP_MULTICAST_TTL) == 7, "IP_MULTICAST_TTL is lost");
    CHECK((uint32_t)number(sender, IPPROTO_IP, IP_MULTICAST_IF) == htonl(INADDR_LOOPBACK), "IP_MULTICAST_IF is lost");
    CHECK(number(member, IPPROTO_IP, IP_MULTICAST_ALL) == 0, "IP_MULTICAST_ALL is lost");
    CHECK(number(six_sender, IPPROTO_IPV6, IPV6_MULTICAST_IF) == 1, "IPV6_MULTICAST_IF is lost");
    expect(member, "before");
    MUST((int)sendto(sender, "to member", 9, 0, (void *)&to, sizeof to));
    expect(member, "to member");
    to = group_of("239.1.2.4", 18331);
    MUST((int)sendto(sender, "to other", 8, 0, (void *)&to, sizeof to));
    expect(other, "to other");
    char byte;
    CHECK(recv(member, &byte, 1, MSG_DONTWAIT) < 0, "a datagram of a group it has not joined");
    /* There may be no route to send to an IPv6 group: the membership itself must be there. */
    MUST(setsockopt(six, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &join_six, sizeof join_six));
    CHECK(setsockopt(six, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &join_six, sizeof join_six) < 0, "joined twice");
    /* Leaving works once, and only once. */
    join.imr_multiaddr = group_of("239.1.2.3", 0).sin_addr;
    MUST(setsockopt(member, IPPROTO_IP, IP_DROP_MEMBERSHIP, &join, sizeof join));
    CHECK(setsockopt(member, IPPROTO_IP, IP_DROP_MEMBERSHIP, &join, sizeof join) < 0, "joined twice");
    fidelity_pass();
}
