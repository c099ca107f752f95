/* Unread datagrams with their senders, order, sizes and boundaries; a group on one port, of which each member has its own. */
#include "fidelity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define LARGE 60000

static struct sockaddr_in place(const char *address, uint16_t port)
{
    struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(port) };
    inet_pton(AF_INET, address, &place.sin_addr);
    return place;
}

static int bound(const char *address, uint16_t port)
{
    struct sockaddr_in at = place(address, port);
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0)), on = 1;
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    MUST(bind(fd, (void *)&at, sizeof at));
    return fd;
}

static void post(int from, const char *address, uint16_t port, const void *data, size_t size)
{
    struct sockaddr_in to = place(address, port);
    CHECK(sendto(from, data, size, 0, (void *)&to, sizeof to) == (ssize_t)size, "cannot send to %s:%u: %s", address, port, strerror(errno));
}

/* The next datagram: its text and who sent it. */
static void expect(int fd, const char *text, const char *address, uint16_t port)
{
    static char got[65536];
    struct sockaddr_in from = { 0 };
    socklen_t size = sizeof from;
    ssize_t length = recvfrom(fd, got, sizeof got, MSG_DONTWAIT, (void *)&from, &size);
    CHECK(length == (ssize_t)strlen(text) && memcmp(got, text, strlen(text)) == 0, "\"%s\": got %zd bytes \"%.20s\", %s", text, length, got,
          length < 0 ? strerror(errno) : "");
    struct sockaddr_in wanted = place(address, port);
    CHECK(from.sin_addr.s_addr == wanted.sin_addr.s_addr && from.sin_port == wanted.sin_port, "\"%s\" comes from %s:%u", text,
          inet_ntoa(from.sin_addr), ntohs(from.sin_port));
}

static void expect_nothing(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    CHECK(got < 0 && errno == EAGAIN, "there is one more datagram: %zd, %s", got, strerror(errno));
}

static void expect_v6(int fd, const char *text, const char *address, uint16_t port)
{
    char got[64] = "", name[INET6_ADDRSTRLEN];
    struct sockaddr_in6 from = { 0 };
    socklen_t size = sizeof from;
    ssize_t length = recvfrom(fd, got, sizeof got, MSG_DONTWAIT, (void *)&from, &size);
    CHECK(length == (ssize_t)strlen(text) && strcmp(got, text) == 0, "\"%s\": got %zd \"%s\"", text, length, got);
    inet_ntop(AF_INET6, &from.sin6_addr, name, sizeof name);
    CHECK(strcmp(name, address) == 0 && ntohs(from.sin6_port) == port, "\"%s\" comes from %s port %u", text, name, ntohs(from.sin6_port));
}

static struct in_addr destination_of_next(int fd)
{
    char control[256], byte[16];
    struct iovec io = { byte, sizeof byte };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    MUST((int)recvmsg(fd, &header, MSG_DONTWAIT));
    struct in_pktinfo information = { 0 };
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part))
        if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO)
            memcpy(&information, CMSG_DATA(part), sizeof information);
    return information.ipi_addr;
}

int main(void)
{
    static char large[LARGE + 1];
    memset(large, 'L', LARGE);
    int server = bound("127.0.0.1", 18301), first = bound("127.0.0.1", 18302), second = bound("127.0.0.5", 18303);
    post(first, "127.0.0.1", 18301, "one", 3);
    post(second, "127.0.0.1", 18301, "two", 3);
    post(first, "127.0.0.1", 18301, "", 0);
    post(first, "127.0.0.1", 18301, large, LARGE);
    post(second, "127.0.0.1", 18301, "last", 4);
    struct sockaddr_in gone_at = place("127.0.0.1", 18304);
    int gone = bound("127.0.0.1", 18304);
    int wild = MUST(socket(AF_INET, SOCK_DGRAM, 0)), on = 1;
    struct sockaddr_in any = place("0.0.0.0", 18305);
    MUST(setsockopt(wild, IPPROTO_IP, IP_PKTINFO, &on, sizeof on));
    MUST(bind(wild, (void *)&any, sizeof any));
    post(gone, "127.0.0.77", 18305, "to 77", 5);
    post(gone, "127.0.0.1", 18305, "from a dead one", 15);
    close(gone);
    int connected = bound("127.0.0.1", 18306);
    struct sockaddr_in peer = place("127.0.0.1", 18302);
    MUST(connect(connected, (void *)&peer, sizeof peer));
    post(first, "127.0.0.1", 18306, "connected", 9);
    /* A group: whom the kernel chose has it. */
    int group[3];
    for (int i = 0; i < 3; i++)
        group[i] = bound("127.0.0.1", 18307);
    int senders[9], holder[9];
    for (int i = 0; i < 9; i++) {
        senders[i] = bound("127.0.0.1", (uint16_t)(18310 + i));
        char text[] = { (char)('a' + i), 0 };
        post(senders[i], "127.0.0.1", 18307, text, 1);
    }
    char peeked;
    for (int i = 0; i < 3; i++)
        holder[i] = recv(group[i], &peeked, 1, MSG_PEEK | MSG_DONTWAIT) == 1 ? peeked : 0;
    /* A queue that takes no more. */
    int full = bound("127.0.0.1", 18308), full_count = 0;
    for (int i = 0; i < 4000; i++)
        post(first, "127.0.0.1", 18308, &i, sizeof i);
    int full_size = 0, got_size = 0;
    socklen_t option_size = sizeof full_size;
    uint32_t memory[9] = { 0 };
    socklen_t memory_size = sizeof memory;
    MUST(getsockopt(full, SOL_SOCKET, SO_MEMINFO, memory, &memory_size));
    MUST(getsockopt(full, SOL_SOCKET, SO_RCVBUF, &full_size, &option_size));
    CHECK(memory[0] > (uint32_t)full_size / 2, "the queue is not full: %u of %d", memory[0], full_size);
    int offset = 0, none = -1, held = 0;
    MUST(setsockopt(full, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
    for (int number; recv(full, &number, sizeof number, MSG_PEEK | MSG_DONTWAIT) == sizeof number; )
        held++;
    MUST(setsockopt(full, SOL_SOCKET, SO_PEEK_OFF, &none, sizeof none));
    int six = MUST(socket(AF_INET6, SOCK_DGRAM, 0)), six_sender = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    struct sockaddr_in6 any_six = { .sin6_family = AF_INET6, .sin6_port = htons(18320) };
    struct sockaddr_in6 sender_six = { .sin6_family = AF_INET6, .sin6_port = htons(18321), .sin6_addr = in6addr_loopback };
    MUST(bind(six, (void *)&any_six, sizeof any_six));
    MUST(bind(six_sender, (void *)&sender_six, sizeof sender_six));
    any_six.sin6_addr = in6addr_loopback;
    MUST((int)sendto(six_sender, "six", 3, 0, (void *)&any_six, sizeof any_six));
    post(first, "127.0.0.1", 18320, "four in six", 11);
    MUST((int)sendto(six_sender, "again six", 9, 0, (void *)&any_six, sizeof any_six));

    fidelity_ready();
    fidelity_await_go();

    expect(server, "one", "127.0.0.1", 18302);
    expect(server, "two", "127.0.0.5", 18303);
    expect(server, "", "127.0.0.1", 18302);
    expect(server, large, "127.0.0.1", 18302);
    expect(server, "last", "127.0.0.5", 18303);
    expect_nothing(server);
    struct in_addr to = destination_of_next(wild);
    CHECK(to.s_addr == place("127.0.0.77", 0).sin_addr.s_addr, "it was sent to %s", inet_ntoa(to));
    expect(wild, "from a dead one", "127.0.0.1", ntohs(gone_at.sin_port));
    expect_nothing(wild);
    expect(connected, "connected", "127.0.0.1", 18302);
    expect_nothing(connected);
    int count = 0;
    for (int i = 0; i < 3; i++) {
        char got;
        for (bool first_one = true; recv(group[i], &got, 1, MSG_DONTWAIT) == 1; count++, first_one = false)
            CHECK(!first_one || got == holder[i], "member %d has '%c' first, not '%c'", i, got, holder[i]);
    }
    CHECK(count == 9, "the group has %d datagrams", count);
    MUST(getsockopt(full, SOL_SOCKET, SO_RCVBUF, &got_size, &option_size));
    CHECK(got_size == full_size, "SO_RCVBUF is %d, not %d", got_size, full_size);
    for (int number; recv(full, &number, sizeof number, MSG_DONTWAIT) == sizeof number; full_count++)
        CHECK(number == full_count, "datagram %d comes as number %d", number, full_count);
    CHECK(full_count == held && held > 20, "the full queue has %d datagrams, not %d", full_count, held);
    expect_v6(six, "six", "::1", 18321);
    expect_v6(six, "four in six", "::ffff:127.0.0.1", 18302);
    expect_v6(six, "again six", "::1", 18321);
    expect_nothing(six);
    post(first, "127.0.0.1", 18301, "new", 3);
    expect(server, "new", "127.0.0.1", 18302);
    post(first, "127.0.0.1", 18320, "new", 3);
    expect_v6(six, "new", "::ffff:127.0.0.1", 18302);
    /* The port is the socket's own again, and only that. */
    struct sockaddr_in got = { 0 };
    socklen_t size = sizeof got;
    MUST(getsockname(server, (void *)&got, &size));
    CHECK(ntohs(got.sin_port) == 18301 && got.sin_addr.s_addr == htonl(INADDR_LOOPBACK), "the server has port %u", ntohs(got.sin_port));
    fidelity_pass();
}
