/* Listeners: backlog, connections not accepted yet, relative and unlinked and replaced names, a name of 108 bytes. */
#include "fidelity.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define BASE "/tmp/fidelity-listen"

static socklen_t address_of(struct sockaddr_un *address, const char *name, size_t length)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(address->sun_path, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
}

static int listen_at(const char *name, size_t length, int backlog)
{
    struct sockaddr_un address;
    int fd = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    MUST(bind(fd, (void *)&address, address_of(&address, name, length)));
    MUST(listen(fd, backlog));
    return fd;
}

static int connect_to(const char *name, size_t length, int flags)
{
    struct sockaddr_un address;
    int fd = MUST(socket(AF_UNIX, SOCK_STREAM | flags, 0));
    if (connect(fd, (void *)&address, address_of(&address, name, length)) == 0)
        return fd;
    int number = errno;
    close(fd);
    errno = number;
    return -1;
}

static void expect_name(int fd, const char *name, size_t length)
{
    struct sockaddr_un got, wanted;
    char room[128];
    socklen_t size = sizeof room, wanted_size = address_of(&wanted, name, length);
    MUST(getsockname(fd, (void *)room, &size));
    memcpy(&got, room, sizeof got);
    CHECK(size >= wanted_size && memcmp(&got, &wanted, wanted_size) == 0, "fd %d: its name is %.30s", fd, got.sun_path);
}

static void expect_text(int fd, const char *text)
{
    char got[64] = "";
    CHECK(recv(fd, got, sizeof got - 1, MSG_DONTWAIT) == (ssize_t)strlen(text) && strcmp(got, text) == 0, "fd %d: got \"%s\", not \"%s\" (%s)", fd,
          got, text, strerror(errno));
}

int main(void)
{
    MUST(mkdir(BASE, 0755));
    MUST(chdir(BASE));
    int relative = listen_at("./here", sizeof "./here", 3);
    MUST(chdir("/"));
    MUST(chdir(BASE));
    int small = listen_at(BASE "/small", sizeof BASE "/small", 1);
    int unlinked = listen_at(BASE "/unlinked", sizeof BASE "/unlinked", 5);
    int client_of_unlinked = MUST(connect_to(BASE "/unlinked", sizeof BASE "/unlinked", 0)), served = MUST(accept(unlinked, NULL, NULL));
    MUST(unlink(BASE "/unlinked"));
    int replaced = listen_at(BASE "/server", sizeof BASE "/server", 5);
    int client_of_replaced = MUST(connect_to(BASE "/server", sizeof BASE "/server", 0)), served_by_replaced = MUST(accept(replaced, NULL, NULL));
    MUST(unlink(BASE "/server"));
    int server = listen_at(BASE "/server", sizeof BASE "/server", 5);
    int client_of_server = MUST(connect_to(BASE "/server", sizeof BASE "/server", 0)), served_by_server = MUST(accept(server, NULL, NULL));
    MUST(mkdir(BASE "/gone", 0700));
    int gone = listen_at(BASE "/gone/s", sizeof BASE "/gone/s", 5);
    int client_of_gone = MUST(connect_to(BASE "/gone/s", sizeof BASE "/gone/s", 0)), served_by_gone = MUST(accept(gone, NULL, NULL));
    MUST(unlink(BASE "/gone/s"));
    MUST(rmdir(BASE "/gone"));
    char full[108];
    memset(full, 'f', sizeof full);
    memcpy(full, BASE "/", sizeof BASE);
    int longest = listen_at(full, sizeof full, 5);

    /* A client that has gone again: accepted, it is at its end. */
    int left = listen_at(BASE "/left", sizeof BASE "/left", 5);
    close(MUST(connect_to(BASE "/left", sizeof BASE "/left", 0)));
    int after_left = MUST(connect_to(BASE "/left", sizeof BASE "/left", 0));

    /* A client that has sent something before it is accepted, and ended that; one over a sequence of packets. */
    int early = listen_at(BASE "/early", sizeof BASE "/early", 5);
    int spoke = MUST(connect_to(BASE "/early", sizeof BASE "/early", 0));
    static char block[3000];
    memset(block, 'b', sizeof block);
    CHECK(write(spoke, "first ", 6) == 6 && write(spoke, block, sizeof block) == sizeof block, "cannot write");
    MUST(shutdown(spoke, SHUT_WR));
    struct sockaddr_un of_packets;
    socklen_t of_packets_size = address_of(&of_packets, BASE "/packets", sizeof BASE "/packets");
    int packets = MUST(socket(AF_UNIX, SOCK_SEQPACKET, 0)), packet_client = MUST(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    MUST(bind(packets, (void *)&of_packets, of_packets_size));
    MUST(listen(packets, 5));
    MUST(connect(packet_client, (void *)&of_packets, of_packets_size));
    CHECK(send(packet_client, "one", 3, 0) == 3 && send(packet_client, "and two", 7, 0) == 7, "cannot send");

    /* Two clients wait, one of them from another process; the backlog of 1 is full then. */
    int ready[2];
    MUST(pipe(ready));
    int waiting = MUST(connect_to(BASE "/small", sizeof BASE "/small", 0));
    pid_t child = fidelity_fork();
    if (child == 0) {
        int other = MUST(connect_to(BASE "/small", sizeof BASE "/small", 0));
        MUST((int)write(ready[1], "x", 1));
        char got[16] = "";
        CHECK(read(other, got, sizeof got) == 5 && strcmp(got, "hello") == 0, "the waiting client got \"%s\"", got);
        _exit(0);
    }
    char byte;
    MUST((int)read(ready[0], &byte, 1));
    CHECK(connect_to(BASE "/small", sizeof BASE "/small", SOCK_NONBLOCK) < 0 && errno == EAGAIN, "the backlog is not full");

    fidelity_ready();
    fidelity_await_go();

    expect_name(relative, "./here", sizeof "./here");
    int fresh = MUST(connect_to("here", sizeof "here", 0)), fresh_served = MUST(accept(relative, NULL, NULL));
    CHECK(write(fresh, "fresh", 5) == 5, "cannot write");
    expect_text(fresh_served, "fresh");
    CHECK(fcntl(small, F_GETFL) & O_NONBLOCK, "the listener is not non-blocking any more");
    CHECK(connect_to(BASE "/small", sizeof BASE "/small", SOCK_NONBLOCK) < 0 && errno == EAGAIN, "the backlog is not full any more: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        int pending = MUST(accept(small, NULL, NULL));
        struct ucred credentials;
        socklen_t size = sizeof credentials;
        MUST(getsockopt(pending, SOL_SOCKET, SO_PEERCRED, &credentials, &size));
        pid_t expected = i == 0 ? getpid() : child;
        CHECK(credentials.pid == expected, "waiting client %d is pid %d, not %d", i, credentials.pid, expected);
        expect_name(pending, BASE "/small", sizeof BASE "/small");
        CHECK(write(pending, "hello", 5) == 5, "cannot answer a client that waited");
    }
    expect_text(waiting, "hello");
    int spoken_to = MUST(accept(early, NULL, NULL));
    static char got[4096];
    size_t used = 0;
    for (ssize_t size; (size = recv(spoken_to, got + used, sizeof got - used, MSG_DONTWAIT)) > 0;)
        used += (size_t)size;
    CHECK(used == 6 + sizeof block && memcmp(got, "first b", 7) == 0 && got[used - 1] == 'b', "%zu bytes sent before it was accepted", used);
    CHECK(recv(spoken_to, got, 1, MSG_DONTWAIT) == 0, "no end of file after what was sent early: %s", strerror(errno));
    CHECK(write(spoken_to, "answer", 6) == 6, "cannot answer");
    expect_text(spoke, "answer");
    int packet_server = MUST(accept(packets, NULL, NULL));
    expect_text(packet_server, "one");
    expect_text(packet_server, "and two");
    char end;
    int gone_again = MUST(accept(left, NULL, NULL)), still_there = MUST(accept(left, NULL, NULL));
    CHECK(recv(gone_again, &end, 1, MSG_DONTWAIT) == 0, "the client that has gone is not at its end: %s", strerror(errno));
    CHECK(write(after_left, "behind", 6) == 6, "cannot write");
    expect_text(still_there, "behind");
    fidelity_expect_exit(child, 0);

    expect_name(unlinked, BASE "/unlinked", sizeof BASE "/unlinked");
    expect_name(served, BASE "/unlinked", sizeof BASE "/unlinked");
    CHECK(access(BASE "/unlinked", F_OK) < 0 && errno == ENOENT, "the unlinked name is back");
    CHECK(write(client_of_unlinked, "u", 1) == 1, "cannot write");
    expect_text(served, "u");
    CHECK(write(client_of_replaced, "r", 1) == 1, "cannot write");
    expect_text(served_by_replaced, "r");
    CHECK(write(client_of_server, "s", 1) == 1, "cannot write");
    expect_text(served_by_server, "s");
    int to_server = MUST(connect_to(BASE "/server", sizeof BASE "/server", 0));
    CHECK(accept(replaced, NULL, NULL) < 0 && errno == EAGAIN, "the replaced listener got the client");
    MUST(accept(server, NULL, NULL));
    close(to_server);
    CHECK(write(client_of_gone, "g", 1) == 1, "cannot write");
    expect_text(served_by_gone, "g");
    CHECK(access(BASE "/gone", F_OK) < 0, "the removed directory is back");
    expect_name(longest, full, sizeof full);
    MUST(connect_to(full, sizeof full, 0));
    MUST(accept(longest, NULL, NULL));

    /* Nothing but what the program made lies there. */
    char *names = fidelity_file("/proc/self/cmdline");
    (void)names;
    CHECK(access(BASE "/here", F_OK) == 0 && access(BASE "/small", F_OK) == 0, "a name is missing");
    fidelity_pass();
}
