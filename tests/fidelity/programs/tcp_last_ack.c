/*
 * TCP connections that both sides have finished, of which one was not told that its end has arrived (LAST_ACK): what was sent before is read, then the end
 * comes. The acknowledgement is dropped by a filter of the socket itself, which takes CAP_NET_ADMIN; so all this is in a network of its own.
 */
#include "fidelity.h"

#include <linux/filter.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define PORT 18213
#define FAREWELL "what the server had still to say"

struct pair { int client, server; struct sockaddr_in client_name, server_name; };

static struct sockaddr_in name_of(int fd, int option)
{
    struct sockaddr_in name = { 0 };
    socklen_t size = sizeof name;
    MUST(option ? getsockopt(fd, SOL_SOCKET, option, &name, &size) : getsockname(fd, (void *)&name, &size));
    return name;
}

static struct pair make_pair(int listener)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct pair pair = { .client = MUST(socket(AF_INET, SOCK_STREAM, 0)) };
    MUST(connect(pair.client, (void *)&address, sizeof address));
    pair.server = MUST(accept(listener, NULL, NULL));
    pair.client_name = name_of(pair.client, 0);
    pair.server_name = name_of(pair.server, 0);
    return pair;
}

static void hear_nothing(int fd)
{
    struct sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = { 1, &drop };
    MUST(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
}

static int state_of(int fd)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size));
    return info.tcpi_state;
}

static struct pair make_unacknowledged(int listener, const char *said)
{
    struct pair pair = make_pair(listener);
    MUST(shutdown(pair.client, SHUT_WR));
    for (int i = 0; i < 100 && state_of(pair.client) != TCP_FIN_WAIT2; i++)
        fidelity_sleep_ms(10);
    hear_nothing(pair.server);
    if (*said)
        CHECK(send(pair.server, said, strlen(said), MSG_NOSIGNAL) == (ssize_t)strlen(said), "cannot send: %s", strerror(errno));
    MUST(shutdown(pair.server, SHUT_WR));
    return pair;
}

static void expect_over(const struct pair *pair, const char *said, const char *what)
{
    char text[64] = "";
    struct sockaddr_in peer = name_of(pair->client, SO_PEERNAME), own = name_of(pair->client, 0);
    CHECK(peer.sin_port == pair->server_name.sin_port, "%s: the client's peer has port %u, not %u", what, ntohs(peer.sin_port), ntohs(pair->server_name.sin_port));
    CHECK(own.sin_port == pair->client_name.sin_port, "%s: the client has port %u, not %u", what, ntohs(own.sin_port), ntohs(pair->client_name.sin_port));
    CHECK(recv(pair->server, text, 1, 0) == 0, "%s: the server hears no end: %s", what, strerror(errno));
    size_t length = strlen(said);
    CHECK(!length || (recv(pair->client, text, length, MSG_WAITALL) == (ssize_t)length && strcmp(text, said) == 0), "%s: the client hears \"%s\"", what, text);
    CHECK(recv(pair->client, text, 1, 0) == 0, "%s: the client hears no end: %s", what, strerror(errno));
    CHECK(send(pair->client, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "%s: the client can be written to: %s", what, strerror(errno));
    CHECK(send(pair->server, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "%s: the server can be written to: %s", what, strerror(errno));
}

static void enter_network(void)
{
    struct ifreq loopback = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWNET));
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(ioctl(fd, SIOCSIFFLAGS, &loopback));
    close(fd);
}

int main(void)
{
    enter_network();
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(listener, (void *)&address, sizeof address));
    MUST(listen(listener, 16));
    struct pair silent = make_unacknowledged(listener, ""), talking = make_unacknowledged(listener, FAREWELL);
    close(listener);
    fidelity_sleep_ms(300);
    CHECK(state_of(silent.server) == TCP_LAST_ACK && state_of(talking.server) == TCP_LAST_ACK, "the servers are in states %d and %d",
          state_of(silent.server), state_of(talking.server));
    CHECK(state_of(silent.client) == TCP_CLOSE, "the client is in state %d", state_of(silent.client));

    fidelity_ready();
    fidelity_await_go();

    expect_over(&silent, "", "nothing said");
    expect_over(&talking, FAREWELL, "a farewell");
    fidelity_pass();
}
