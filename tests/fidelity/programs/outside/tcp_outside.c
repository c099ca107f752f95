/*
 * Connections whose other end is outside the workspace (test_outside.py plays it): a branch sees them end, with what was unread still readable, and
 * the source's go on. One with both ends inside shows what --tcp-close adds.
 */
#include "../fidelity.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define ROLES "uhifb"           /* unread bytes, half-closed, idle, full, blocked reader */

static int by_role[128];

static struct sockaddr_in place(uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static void expect(int fd, const char *text)
{
    char got[64] = "";
    ssize_t size = recv(fd, got, strlen(text), MSG_WAITALL);
    CHECK(size == (ssize_t)strlen(text) && strcmp(got, text) == 0, "got \"%s\", not \"%s\"", got, text);
}

static void expect_reset(int fd, const char *what)
{
    char byte;
    struct pollfd state = { fd, POLLIN | POLLOUT, 0 };
    CHECK(poll(&state, 1, 0) == 1 && state.revents & POLLHUP, "%s polls as %#x", what, state.revents);
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    CHECK(got < 0 && errno == ECONNRESET, "reading %s: %zd, %s", what, got, strerror(errno));
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == 0, "no end of file after %s: %s", what, strerror(errno));
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "writing to %s: %s", what, strerror(errno));
}

/* Each first byte says what a connection is for. */
static void accept_all(int listener)
{
    for (size_t i = 0; i < strlen(ROLES); i++) {
        int fd = MUST(accept(listener, NULL, NULL));
        char role = 0;
        CHECK(recv(fd, &role, 1, MSG_WAITALL) == 1 && role && strchr(ROLES, role), "a connection without a role: %d", role);
        by_role[(int)role] = fd;
    }
}

static void expect_closed(int fd, const char *what)
{
    char byte;
    struct pollfd state = { fd, POLLHUP, 0 };
    CHECK(poll(&state, 1, 0) == 1 && state.revents == POLLHUP, "%s polls as %#x", what, state.revents);
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    CHECK(got == 0, "reading %s: %zd, %s", what, got, strerror(errno));
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "writing to %s: %s", what, strerror(errno));
}

static void check_branch(int client, int served, bool all_closed)
{
    void (*const expect_over)(int, const char *) = all_closed ? expect_closed : expect_reset;
    expect(by_role['u'], "unread bytes");
    expect_over(by_role['u'], "an outward connection with unread bytes");
    expect(by_role['h'], "half");
    char byte;
    CHECK(recv(by_role['h'], &byte, 1, MSG_DONTWAIT) == 0, "no end of file where the other side had finished: %s", strerror(errno));
    CHECK(send(by_role['h'], "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "writing where the other side had finished: %s", strerror(errno));
    expect_over(by_role['i'], "an idle outward connection");
    expect_over(by_role['f'], "a full outward connection");
    expect(served, "inside");
    if (all_closed) {
        expect_over(client, "the client of an inner connection");
        expect_over(served, "the server of an inner connection");
    } else {
        CHECK(send(served, "back", 4, MSG_NOSIGNAL) == 4, "the inner connection: %s", strerror(errno));
        expect(client, "back");
    }
}

static void check_source(int client, int served)
{
    expect(by_role['u'], "unread bytes");
    CHECK(send(by_role['u'], "from the source", 15, MSG_NOSIGNAL) == 15, "the source's connection suffered: %s", strerror(errno));
    expect(by_role['h'], "half");
    CHECK(send(by_role['h'], "from the source", 15, MSG_NOSIGNAL) == 15, "the source's half connection suffered: %s", strerror(errno));
    expect(served, "inside");
    CHECK(send(served, "back", 4, MSG_NOSIGNAL) == 4, "the inner connection: %s", strerror(errno));
    expect(client, "back");
}

int main(void)
{
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
    struct sockaddr_in address = place(18361);
    MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(listener, (void *)&address, sizeof address));
    MUST(listen(listener, 16));
    int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(client, (void *)&address, sizeof address));
    int served = MUST(accept(listener, NULL, NULL));
    MUST((int)send(client, "inside", 6, 0));
    fidelity_write("listening", "yes");
    accept_all(listener);
    char block[4096] = { 0 };
    while (send(by_role['f'], block, sizeof block, MSG_DONTWAIT) > 0)
        ;
    pid_t reader = fidelity_fork();
    if (reader == 0) {
        char byte;
        ssize_t got = recv(by_role['b'], &byte, 1, 0);
        _exit(got == 0 || (got < 0 && errno == ECONNRESET) ? 7 : 8);
    }
    close(by_role['b']);
    fidelity_sleep_ms(300);     /* what was sent has arrived, and the reader waits */

    fidelity_ready();
    fidelity_await_go();

    if (fidelity_in_branch()) {
        check_branch(client, served, access(FIDELITY_DIRECTORY "all-closed", F_OK) == 0);
        fidelity_expect_exit(reader, 7);
    } else {
        check_source(client, served);
        CHECK(waitpid(reader, NULL, WNOHANG) == 0, "the source's reader woke up");
        kill(reader, SIGKILL);
    }
    address = place(18361);
    int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(fresh, (void *)&address, sizeof address));
    MUST(accept(listener, NULL, NULL));
    fidelity_pass();
}
