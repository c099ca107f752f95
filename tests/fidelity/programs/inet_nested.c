/* Sockets of a network namespace that a program made for itself, beside sockets of the workspace's own with the very same addresses. */
#include "fidelity.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

struct sockets { int client, server, listener, datagram, route; };

static struct sockaddr_in place(uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

/* The same ports on both sides, that of the client included. */
static struct sockets make(const char *text)
{
    struct sockaddr_in listening = place(18381), connecting = place(18382), receiving = place(18383);
    int on = 1;
    struct sockets made = {
        .client = MUST(socket(AF_INET, SOCK_STREAM, 0)), .listener = MUST(socket(AF_INET, SOCK_STREAM, 0)),
        .datagram = MUST(socket(AF_INET, SOCK_DGRAM, 0)), .route = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)),
    };
    MUST(setsockopt(made.listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(made.listener, (void *)&listening, sizeof listening));
    MUST(listen(made.listener, 4));
    MUST(bind(made.client, (void *)&connecting, sizeof connecting));
    MUST(connect(made.client, (void *)&listening, sizeof listening));
    made.server = MUST(accept(made.listener, NULL, NULL));
    MUST((int)send(made.client, text, strlen(text), 0));
    MUST(bind(made.datagram, (void *)&receiving, sizeof receiving));
    MUST((int)sendto(made.datagram, text, strlen(text), 0, (void *)&receiving, sizeof receiving));
    struct sockaddr_nl any = { .nl_family = AF_NETLINK };
    MUST(bind(made.route, (void *)&any, sizeof any));
    return made;
}

static void expect(int fd, const char *text)
{
    char got[64] = "";
    ssize_t size = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);
    CHECK(size == (ssize_t)strlen(text) && strcmp(got, text) == 0, "got %zd bytes \"%s\", not \"%s\": %s", size, got, text,
          size < 0 ? strerror(errno) : "");
}

static uint64_t namespace_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    MUST(getsockopt(fd, SOL_SOCKET, 71 /* SO_NETNS_COOKIE */, &cookie, &size));
    return cookie;
}

static void check(const struct sockets *made, const char *text)
{
    expect(made->server, text);
    expect(made->datagram, text);
    MUST((int)send(made->server, text, strlen(text), 0));
    struct pollfd state = { made->client, POLLIN, 0 };
    CHECK(poll(&state, 1, 20000) == 1, "\"%s\" does not come back", text);
    expect(made->client, text);
    struct sockaddr_in listening = place(18381);
    int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(fresh, (void *)&listening, sizeof listening));
    close(MUST(accept(made->listener, NULL, NULL)));
    close(fresh);
}

static void bring_up_loopback(void)
{
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(ioctl(fd, SIOCSIFFLAGS, &request));
    close(fd);
}

int main(void)
{
    struct sockets own = make("the workspace's");
    pid_t child = fidelity_fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
            _exit(77);
        bring_up_loopback();
        struct sockets inner = make("the inner one's");
        fidelity_write("inner", "ready");
        fidelity_await_go();
        CHECK(namespace_of(inner.client) == namespace_of(inner.route), "the inner sockets are in different namespaces");
        CHECK(namespace_of(inner.client) != namespace_of(own.client), "the inner sockets are in the workspace's namespace");
        check(&inner, "the inner one's");
        _exit(7);
    }
    while (access(FIDELITY_DIRECTORY "inet_nested.inner", F_OK) < 0) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) {
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 77, "the inner process ended with %#x", status);
            child = 0;          /* this workspace does not allow it */
            break;
        }
        fidelity_sleep_ms(20);
    }

    fidelity_ready();
    fidelity_await_go();

    check(&own, "the workspace's");
    if (child)
        fidelity_expect_exit(child, 7);
    fidelity_pass();
}
