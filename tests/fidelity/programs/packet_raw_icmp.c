/* Raw, packet and ICMP sockets: what they are bound to, their filters, memberships and options; and that they hear, but nothing of the fork. */
#include "fidelity.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/icmp.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <sys/socket.h>

/* A protocol number for experiments: nobody else in the workspace uses it. */
#define PROTOCOL 253

static int number(int fd, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    MUST(getsockopt(fd, level, name, &value, &size));
    return value;
}

static void set(int fd, int level, int name, int value)
{
    MUST(setsockopt(fd, level, name, &value, sizeof value));
}

static struct sockaddr_in at(uint32_t address)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
}

/* Wait for a packet whose payload, `skip` bytes in, is this text. */
static void expect(int fd, size_t skip, const char *text)
{
    char got[2048];
    for (int i = 0; i < 100; i++) {
        struct pollfd state = { fd, POLLIN, 0 };
        CHECK(poll(&state, 1, 20000) == 1, "\"%s\" does not come", text);
        ssize_t size = MUST(recv(fd, got, sizeof got, 0));
        if (size >= (ssize_t)(skip + strlen(text)) && memcmp(got + skip, text, strlen(text)) == 0)
            return;
    }
    fidelity_fail("\"%s\" does not come among a hundred others", text);
}

static void expect_silence(int fd, const char *what)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    CHECK(got < 0 && errno == EAGAIN, "%s has heard something: %zd, %s", what, got, strerror(errno));
}

int main(void)
{
    int raw = MUST(socket(AF_INET, SOCK_RAW, PROTOCOL)), connected = MUST(socket(AF_INET, SOCK_RAW, PROTOCOL));
    int header = MUST(socket(AF_INET, SOCK_RAW, IPPROTO_RAW));
    struct sockaddr_in bound = at(0x7f000009), loopback = at(INADDR_LOOPBACK);
    MUST(bind(raw, (void *)&bound, sizeof bound));
    MUST(connect(connected, (void *)&bound, sizeof bound));
    set(raw, IPPROTO_IP, IP_TTL, 33);
    int icmp = MUST(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    struct icmp_filter filter = { ~(1u << ICMP_ECHOREPLY) };
    MUST(setsockopt(icmp, SOL_RAW, ICMP_FILTER, &filter, sizeof filter));
    int tcp = MUST(socket(AF_INET, SOCK_RAW, IPPROTO_TCP));     /* would hear how the branch makes its connections */
    struct sock_filter none[] = { BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_STMT(BPF_RET | BPF_K, 0) };
    struct sock_fprog deaf = { 2, none };
    MUST(setsockopt(tcp, SOL_SOCKET, SO_ATTACH_FILTER, &deaf, sizeof deaf));
    while (recv(tcp, &(char){ 0 }, 1, MSG_DONTWAIT) >= 0)
        ;                       /* of other programs, before it had the filter */
    int six = MUST(socket(AF_INET6, SOCK_RAW, PROTOCOL));
    int packet = socket(AF_PACKET, SOCK_DGRAM, 0);
    if (packet >= 0) {
        struct sockaddr_ll lo = { .sll_family = AF_PACKET, .sll_protocol = htons(0x88b5), .sll_ifindex = 1 };
        set(packet, SOL_PACKET, PACKET_AUXDATA, 1);
        MUST(bind(packet, (void *)&lo, sizeof lo));
        struct packet_mreq group = { 1, PACKET_MR_MULTICAST, 6, { 0x01, 0x00, 0x5e, 0x12, 0x34, 0x56 } };
        MUST(setsockopt(packet, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group));
    }
    int old = socket(AF_PACKET, SOCK_PACKET, htons(0x88b6)), ring = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr old_name = { .sa_family = AF_PACKET, .sa_data = "lo" };
    struct tpacket_req frames = { .tp_block_size = 8192, .tp_block_nr = 2, .tp_frame_size = 2048, .tp_frame_nr = 8 };
    if (old >= 0)
        MUST(bind(old, &old_name, sizeof old_name));
    if (ring >= 0)              /* not mapped yet */
        MUST(setsockopt(ring, SOL_PACKET, PACKET_RX_RING, &frames, sizeof frames));
    int ping = MUST(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP));     /* the harness allows it in the source only */
    struct sockaddr_in ident = at(INADDR_LOOPBACK);
    ident.sin_port = htons(4711);
    MUST(bind(ping, (void *)&ident, sizeof ident));

    fidelity_ready();
    fidelity_await_go();

    struct sockaddr_in got;
    socklen_t size = sizeof got;
    MUST(getsockname(raw, (void *)&got, &size));
    CHECK(got.sin_addr.s_addr == bound.sin_addr.s_addr, "the raw socket is bound to %s", inet_ntoa(got.sin_addr));
    CHECK(number(raw, IPPROTO_IP, IP_TTL) == 33 && number(header, IPPROTO_IP, IP_HDRINCL) == 1 && number(raw, IPPROTO_IP, IP_HDRINCL) == 0,
          "an option of a raw socket is lost");
    CHECK((uint32_t)number(icmp, SOL_RAW, ICMP_FILTER) == filter.data, "ICMP_FILTER is lost");
    expect_silence(raw, "the raw socket");
    expect_silence(tcp, "the socket with a filter");
    struct sock_filter program[4];
    size = 4;
    MUST(getsockopt(tcp, SOL_SOCKET, SO_GET_FILTER, program, &size));
    CHECK(size == 2 && memcmp(program, none, sizeof none) == 0, "the filter has %u instructions", size);
    MUST((int)send(connected, "raw bytes", 9, 0));
    expect(raw, sizeof(struct iphdr), "raw bytes");
    struct { struct icmphdr head; char text[8]; } echo = { .head = { .type = ICMP_ECHO, .un.echo.id = htons(77) }, .text = "echo me" };
    uint32_t sum = 0;
    for (size_t i = 0; i < sizeof echo / 2; i++)
        sum += ((uint16_t *)&echo)[i];
    sum = (sum >> 16) + (sum & 0xffff);
    echo.head.checksum = (uint16_t)~(sum + (sum >> 16));
    MUST((int)sendto(icmp, &echo, sizeof echo, 0, (void *)&loopback, sizeof loopback));
    expect(icmp, sizeof(struct iphdr) + sizeof(struct icmphdr), "echo me");
    CHECK(number(six, SOL_SOCKET, SO_PROTOCOL) == PROTOCOL && number(six, SOL_SOCKET, SO_TYPE) == SOCK_RAW, "the IPv6 raw socket is another");
    if (packet >= 0) {
        struct sockaddr_ll lo = { 0 };
        size = sizeof lo;
        MUST(getsockname(packet, (void *)&lo, &size));
        CHECK(lo.sll_protocol == htons(0x88b5) && lo.sll_ifindex == 1,
              "the packet socket listens to %#x on %d", ntohs(lo.sll_protocol), lo.sll_ifindex);
        CHECK(number(packet, SOL_PACKET, PACKET_AUXDATA) == 1, "PACKET_AUXDATA is lost");
        expect_silence(packet, "the packet socket");
        lo.sll_halen = 6;
        MUST((int)sendto(packet, "a frame", 7, 0, (void *)&lo, sizeof lo));
        expect(packet, 0, "a frame");
        CHECK(strstr(fidelity_file("/proc/net/dev_mcast"), "01005e123456"), "the membership of the packet socket is lost");
        close(packet);
        CHECK(!strstr(fidelity_file("/proc/net/dev_mcast"), "01005e123456"), "the membership does not belong to the socket");
    }
    if (old >= 0) {
        struct sockaddr name = { 0 };
        size = sizeof name;
        MUST(getsockname(old, &name, &size));
        CHECK(strcmp(name.sa_data, "lo") == 0, "the socket of the old type listens on \"%s\"", name.sa_data);
        expect_silence(old, "the socket of the old type");
    }
    if (ring >= 0) {
        void *mapped = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
        CHECK(mapped != MAP_FAILED, "the ring is lost: %s", strerror(errno));
    }
    size = sizeof got;
    MUST(getsockname(ping, (void *)&got, &size));
    CHECK(ntohs(got.sin_port) == 4711, "the ICMP socket has the number %u", ntohs(got.sin_port));
    MUST((int)sendto(ping, &echo, sizeof echo, 0, (void *)&loopback, sizeof loopback));
    expect(ping, sizeof(struct icmphdr), "echo me");
    fidelity_pass();
}
