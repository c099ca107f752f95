/*
 * Interfaces of network namespaces made inside: further addresses of the loopback interface, routes, rules and neighbours, a bridge with a port, a veth pair
 * within a namespace and one between two. What is sent through them arrives before and after the fork.
 */
#include "fidelity.h"

#include <arpa/inet.h>
#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* ---- rtnetlink ---- */

struct request {
    struct nlmsghdr head;
    char body[1024];
};

static int route = -1;

static void *grow(struct request *request, size_t size)
{
    void *at = (char *)request + NLMSG_ALIGN(request->head.nlmsg_len);
    request->head.nlmsg_len = (uint32_t)(NLMSG_ALIGN(request->head.nlmsg_len) + size);
    return at;
}

static struct rtattr *attribute(struct request *request, int type, const void *data, size_t size)
{
    struct rtattr *made = grow(request, RTA_LENGTH(size));
    made->rta_type = (unsigned short)type;
    made->rta_len = (unsigned short)RTA_LENGTH(size);
    memcpy(RTA_DATA(made), data, size);
    return made;
}

static void close_nest(struct request *request, struct rtattr *nest)
{
    nest->rta_len = (unsigned short)((char *)request + request->head.nlmsg_len - (char *)nest);
}

static struct request begin(int type, const void *body, size_t size)
{
    struct request request = { { NLMSG_LENGTH(size), (unsigned short)type, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, 0, 0 }, { 0 } };
    memcpy(request.body, body, size);
    return request;
}

static void carry_out(struct request *request, const char *what)
{
    struct { struct nlmsghdr head; int error; char rest[4096]; } answer;
    MUST(send(route, request, request->head.nlmsg_len, 0));
    MUST(recv(route, &answer, sizeof answer, 0));
    CHECK(answer.head.nlmsg_type == NLMSG_ERROR && answer.error == 0, "%s: %s", what, strerror(-answer.error));
}

static void make_link(const char *kind, const char *name, int index, const char *other, int other_index, int other_namespace)
{
    struct ifinfomsg info = { .ifi_index = index };
    struct request request = begin(RTM_NEWLINK, &info, sizeof info);
    attribute(&request, IFLA_IFNAME, name, strlen(name) + 1);
    struct rtattr *details = attribute(&request, IFLA_LINKINFO, "", 0);
    attribute(&request, IFLA_INFO_KIND, kind, strlen(kind));
    if (other) {
        struct rtattr *data = attribute(&request, IFLA_INFO_DATA, "", 0), *peer = attribute(&request, VETH_INFO_PEER, "", 0);
        *(struct ifinfomsg *)grow(&request, sizeof info) = (struct ifinfomsg){ .ifi_index = other_index };
        attribute(&request, IFLA_IFNAME, other, strlen(other) + 1);
        if (other_namespace >= 0)
            attribute(&request, IFLA_NET_NS_FD, &other_namespace, sizeof other_namespace);
        close_nest(&request, peer);
        close_nest(&request, data);
    }
    close_nest(&request, details);
    carry_out(&request, name);
}

static void bring_up(const char *name, const char *master)
{
    struct ifinfomsg info = { .ifi_index = (int)if_nametoindex(name), .ifi_flags = IFF_UP, .ifi_change = IFF_UP };
    struct request request = begin(RTM_NEWLINK, &info, sizeof info);
    request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
    if (master)
        attribute(&request, IFLA_MASTER, (uint32_t[]){ if_nametoindex(master) }, sizeof(uint32_t));
    carry_out(&request, name);
}

static void give_with(const char *name, const char *address, int length, unsigned char flags)
{
    unsigned char bytes[16];
    int family = strchr(address, ':') ? AF_INET6 : AF_INET;
    struct ifaddrmsg message = { (unsigned char)family, (unsigned char)length, flags, 0, if_nametoindex(name) };
    struct request request = begin(RTM_NEWADDR, &message, sizeof message);
    inet_pton(family, address, bytes);
    attribute(&request, IFA_LOCAL, bytes, family == AF_INET6 ? 16 : 4);
    attribute(&request, IFA_ADDRESS, bytes, family == AF_INET6 ? 16 : 4);
    carry_out(&request, address);
}

static void give(const char *name, const char *address, int length)
{
    give_with(name, address, length, strchr(address, ':') ? IFA_F_NODAD : 0);
}

static void lead(const char *to, int length, const char *through)
{
    struct rtmsg message = { .rtm_family = AF_INET, .rtm_dst_len = (unsigned char)length, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = RTPROT_STATIC,
                             .rtm_scope = RT_SCOPE_UNIVERSE, .rtm_type = RTN_UNICAST };
    struct request request = begin(RTM_NEWROUTE, &message, sizeof message);
    struct in_addr destination, gateway;
    inet_pton(AF_INET, to, &destination);
    inet_pton(AF_INET, through, &gateway);
    attribute(&request, RTA_DST, &destination, 4);
    attribute(&request, RTA_GATEWAY, &gateway, 4);
    carry_out(&request, to);
}

static void add_rule_and_neighbour(const char *name)
{
    struct fib_rule_hdr rule = { .family = AF_INET, .table = RT_TABLE_MAIN, .action = FR_ACT_TO_TBL };
    struct request request = begin(RTM_NEWRULE, &rule, sizeof rule);
    attribute(&request, FRA_PRIORITY, (uint32_t[]){ 777 }, sizeof(uint32_t));
    carry_out(&request, "rule");
    struct ndmsg neighbour = { .ndm_family = AF_INET, .ndm_ifindex = (int)if_nametoindex(name), .ndm_state = NUD_PERMANENT };
    struct request other = begin(RTM_NEWNEIGH, &neighbour, sizeof neighbour);
    attribute(&other, NDA_DST, (uint32_t[]){ inet_addr("10.1.0.99") }, 4);
    attribute(&other, NDA_LLADDR, "\2\3\4\5\6\7", 6);
    carry_out(&other, "neighbour");
}

/* ---- what there is ---- */

static uint32_t mix(uint32_t sum, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ ((const unsigned char *)data)[i]) * 16777619u;
    return sum;
}

/* A sum over names, numbers and addresses of interfaces, or over other lists; what counts or passes (statistics, ages) is left out. */
static uint32_t sum_of(int type, size_t head, const int *kinds, int *count)
{
    static char buffer[1 << 16];
    struct { struct nlmsghdr head; struct ifinfomsg any; } request = { { sizeof request, (unsigned short)type, NLM_F_REQUEST | NLM_F_DUMP, 0, 0 }, { 0 } };
    uint32_t sum = 0;
    *count = 0;
    MUST(send(route, &request, sizeof request, 0));
    for (;;) {
        int left = (int)MUST(recv(route, buffer, sizeof buffer, 0));
        for (struct nlmsghdr *message = (void *)buffer; NLMSG_OK(message, (unsigned)left); message = NLMSG_NEXT(message, left)) {
            if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR)
                return sum;
            uint32_t one = 2166136261u;
            struct rtattr *attribute = (void *)((char *)NLMSG_DATA(message) + NLMSG_ALIGN(head));
            int rest = (int)(message->nlmsg_len - NLMSG_SPACE(head));
            if (type == RTM_GETNEIGH && !(((struct ndmsg *)NLMSG_DATA(message))->ndm_state & NUD_PERMANENT))
                continue;
            if (type == RTM_GETADDR && IN6_IS_ADDR_LINKLOCAL((struct in6_addr *)RTA_DATA(attribute)) && attribute->rta_len == RTA_LENGTH(16))
                continue;       /* the kernel gives itself one, some time after */
            if (type == RTM_GETROUTE && ((struct rtmsg *)NLMSG_DATA(message))->rtm_protocol == RTPROT_KERNEL)
                continue;
            for (; RTA_OK(attribute, rest); attribute = RTA_NEXT(attribute, rest))
                for (const int *kind = kinds; *kind; kind++)
                    if (attribute->rta_type == *kind)
                        one = mix(mix(one, &attribute->rta_type, 2), RTA_DATA(attribute), RTA_PAYLOAD(attribute));
            sum += one;
            ++*count;
        }
    }
}

/* IFA_F_… of an IPv6 address. */
static uint32_t flags_of(const char *address)
{
    static char buffer[1 << 16];
    struct { struct nlmsghdr head; struct ifaddrmsg any; } request = { { sizeof request, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, 0, 0 }, { .ifa_family = AF_INET6 } };
    unsigned char wanted[16];
    uint32_t found = 0;
    inet_pton(AF_INET6, address, wanted);
    MUST(send(route, &request, sizeof request, 0));
    for (;;) {
        int left = (int)MUST(recv(route, buffer, sizeof buffer, 0));
        for (struct nlmsghdr *message = (void *)buffer; NLMSG_OK(message, (unsigned)left); message = NLMSG_NEXT(message, left)) {
            if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR)
                return found;
            int rest = (int)IFA_PAYLOAD(message);
            bool same = false;
            for (struct rtattr *one = IFA_RTA(NLMSG_DATA(message)); RTA_OK(one, rest); one = RTA_NEXT(one, rest)) {
                if (one->rta_type == IFA_ADDRESS)
                    same = memcmp(RTA_DATA(one), wanted, sizeof wanted) == 0;
                if (one->rta_type == IFA_FLAGS && same)
                    found = *(uint32_t *)RTA_DATA(one);
            }
        }
    }
}

/* One that was to be looked for on the wire once its interface is up: it still is, and has to stand the same check as in the source. */
static void check_tentative(const char *address, uint32_t before)
{
    CHECK(before == (IFA_F_PERMANENT | IFA_F_TENTATIVE), "flags %x of a new address", before);
    CHECK(flags_of(address) == before, "flags %x instead of %x of an address not checked yet", flags_of(address), before);
    bring_up("one", NULL);
    bring_up("other", NULL);
    for (int i = 0; i < 400 && flags_of(address) != IFA_F_PERMANENT; i++)
        fidelity_sleep_ms(50);
    CHECK(flags_of(address) == IFA_F_PERMANENT, "flags %x of an address that has been checked", flags_of(address));
}

struct picture { uint32_t links, addresses, routes, rules, neighbours; int counts[5]; };

static struct picture picture(void)
{
    static const int of_links[] = { IFLA_IFNAME, IFLA_ADDRESS, IFLA_MTU, IFLA_MASTER, IFLA_LINK, IFLA_TXQLEN, 0 }, of_addresses[] = { IFA_LOCAL, IFA_ADDRESS, IFA_LABEL, 0 };
    static const int of_routes[] = { RTA_DST, RTA_GATEWAY, RTA_OIF, RTA_TABLE, RTA_PREFSRC, 0 }, of_rules[] = { FRA_PRIORITY, FRA_TABLE, 0 };
    static const int of_neighbours[] = { NDA_DST, NDA_LLADDR, 0 };
    struct picture now = { 0 };
    now.links = sum_of(RTM_GETLINK, sizeof(struct ifinfomsg), of_links, &now.counts[0]);
    now.addresses = sum_of(RTM_GETADDR, sizeof(struct ifaddrmsg), of_addresses, &now.counts[1]);
    now.routes = sum_of(RTM_GETROUTE, sizeof(struct rtmsg), of_routes, &now.counts[2]);
    now.rules = sum_of(RTM_GETRULE, sizeof(struct fib_rule_hdr), of_rules, &now.counts[3]);
    now.neighbours = sum_of(RTM_GETNEIGH, sizeof(struct ndmsg), of_neighbours, &now.counts[4]);
    return now;
}

static void compare(const struct picture *before, const char *where)
{
    struct picture now = picture();
    CHECK(now.links == before->links, "%s: other interfaces, %d instead of %d", where, now.counts[0], before->counts[0]);
    CHECK(now.addresses == before->addresses, "%s: other addresses, %d instead of %d", where, now.counts[1], before->counts[1]);
    CHECK(now.routes == before->routes, "%s: other routes, %d instead of %d", where, now.counts[2], before->counts[2]);
    CHECK(now.rules == before->rules, "%s: other rules, %d instead of %d", where, now.counts[3], before->counts[3]);
    CHECK(now.neighbours == before->neighbours, "%s: other neighbours, %d instead of %d", where, now.counts[4], before->counts[4]);
}

static int receiver(const char *address)
{
    struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(18390), .sin_addr.s_addr = inet_addr(address) };
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST(bind(fd, (void *)&place, sizeof place));
    return fd;
}

static void send_to(const char *address)
{
    struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(18390), .sin_addr.s_addr = inet_addr(address) };
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST(sendto(fd, "over the wire", 13, 0, (void *)&place, sizeof place));
    close(fd);
}

static void expect_one(int fd, const char *what)
{
    char text[32];
    struct pollfd state = { fd, POLLIN, 0 };
    CHECK(poll(&state, 1, 5000) == 1 && recv(fd, text, sizeof text, 0) == 13, "nothing arrives %s", what);
}

static void open_route(void)
{
    close(route);
    route = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
}

static void map_ids(void)
{
    int fd;
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWNET));
    fd = MUST(open("/proc/self/setgroups", O_WRONLY | O_CLOEXEC));
    MUST(write(fd, "deny", 4));
    close(fd);
    fd = MUST(open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC));
    MUST(write(fd, "0 0 1", 5));
    close(fd);
}

int main(void)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    map_ids();
    int ready[2], first = MUST(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    MUST(pipe(ready));
    pid_t child = fidelity_fork();
    if (child == 0) {           /* a second namespace, joined with the first one by a pair */
        MUST(unshare(CLONE_NEWNET));
        open_route();
        make_link("veth", "far", 20, "near", 21, first);
        give("far", "10.2.0.2", 24);
        bring_up("lo", NULL);
        bring_up("far", NULL);
        MUST(write(ready[1], "r", 1));
        int arrives = receiver("10.2.0.2");
        struct picture before = picture();
        fidelity_await_go();
        compare(&before, "second");
        expect_one(arrives, "in the second namespace");
        _exit(5);
    }
    MUST(read(ready[0], &(char){ 0 }, 1));
    open_route();
    bring_up("lo", NULL);
    give("lo", "127.5.6.7", 32);
    give("lo", "10.9.9.9", 32);
    give("lo", "fd00::9", 128);
    make_link("bridge", "br0", 5, NULL, 0, -1);
    make_link("veth", "left", 7, "right", 9, -1);
    bring_up("br0", NULL);
    bring_up("left", "br0");
    bring_up("right", NULL);
    give("br0", "10.1.0.1", 24);
    give("near", "10.2.0.1", 24);
    bring_up("near", NULL);
    lead("10.7.0.0", 16, "10.1.0.7");
    lead("10.8.0.0", 16, "10.2.0.2");
    add_rule_and_neighbour("br0");
    make_link("veth", "one", 30, "other", 31, -1);
    give_with("one", "fd00::77", 64, 0);
    uint32_t tentative = flags_of("fd00::77");
    int own = receiver("10.9.9.9");
    fidelity_sleep_ms(200);
    struct picture before = picture();

    fidelity_ready();
    fidelity_await_go();

    compare(&before, "first");
    send_to("10.9.9.9");
    expect_one(own, "on the loopback interface");
    send_to("10.2.0.2");
    fidelity_expect_exit(child, 5);
    check_tentative("fd00::77", tentative);
    fidelity_pass();
}
