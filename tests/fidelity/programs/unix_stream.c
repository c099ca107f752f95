/* Connected stream and seqpacket sockets: names and credentials of both ends, unread bytes and boundaries, half-closed and closed peers. */
#include "fidelity.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static socklen_t address_of(struct sockaddr_un *address, const char *name, size_t length)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(address->sun_path, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
}

static void expect_name(int fd, bool peer, const char *name, size_t length)
{
    struct sockaddr_un got, wanted;
    socklen_t size = sizeof got, wanted_size = address_of(&wanted, name, length);
    memset(&got, 0, sizeof got);
    MUST(peer ? getpeername(fd, (void *)&got, &size) : getsockname(fd, (void *)&got, &size));
    CHECK(size == wanted_size && memcmp(&got, &wanted, size) == 0, "fd %d: its %s is %u bytes long: %.20s", fd, peer ? "peer's name" : "name", size,
          got.sun_path[0] ? got.sun_path : got.sun_path + 1);
}

static void expect_peer(int fd, pid_t pid, uid_t uid)
{
    struct ucred credentials;
    socklen_t size = sizeof credentials;
    MUST(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size));
    CHECK(credentials.pid == pid && credentials.uid == uid, "fd %d: the peer is pid %d uid %u, expected %d and %u", fd, credentials.pid,
          credentials.uid, pid, uid);
}

static void say(int fd, const char *text)
{
    CHECK(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text), "fd %d: cannot send %s: %s", fd, text, strerror(errno));
}

static void hear(int fd, const char *text)
{
    char got[256] = "";
    /* On a stream the other side may have said more by now; a packet must end where it should. */
    int type;
    socklen_t type_size = sizeof type;
    MUST(getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size));
    ssize_t size = recv(fd, got, type == SOCK_STREAM ? strlen(text) : sizeof got - 1, MSG_DONTWAIT);
    CHECK(size == (ssize_t)strlen(text) && strcmp(got, text) == 0, "fd %d: got %zd \"%s\" (%s), expected \"%s\"", fd, size, got,
          size < 0 ? strerror(errno) : "", text);
}

static int listen_at(int type, const char *name, size_t length)
{
    struct sockaddr_un address;
    int fd = MUST(socket(AF_UNIX, type, 0));
    MUST(bind(fd, (void *)&address, address_of(&address, name, length)));
    MUST(listen(fd, 5));
    return fd;
}

static int connect_to(int type, const char *name, size_t length)
{
    struct sockaddr_un address;
    int fd = MUST(socket(AF_UNIX, type, 0));
    MUST(connect(fd, (void *)&address, address_of(&address, name, length)));
    return fd;
}

#define PATH "/tmp/fidelity-stream"
#define ABSTRACT "\0fidelity\nwith \0 bytes"

int main(void)
{
    pid_t self = getpid();
    int pair[2], half[2], packets[2], orphan[2], reset[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    say(pair[0], "to one");
    say(pair[1], "to zero");

    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, half));
    say(half[0], "last");
    MUST(shutdown(half[0], SHUT_WR));
    say(half[1], "still open");

    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets));
    say(packets[0], "one");
    say(packets[0], "and two");
    say(packets[0], "three is the end");

    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, orphan));
    say(orphan[1], "testament");
    close(orphan[1]);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, reset));
    say(reset[0], "never read");
    close(reset[1]);

    unlink(PATH);
    int by_path = listen_at(SOCK_STREAM, PATH, sizeof PATH), by_abstract = listen_at(SOCK_SEQPACKET, ABSTRACT, sizeof ABSTRACT - 1);
    MUST(chmod(PATH, 0640));
    MUST(chown(PATH, 1000, 1001));
    /* A client with a pid and ids of its own. */
    int ready[2];
    MUST(pipe(ready));
    pid_t child = fidelity_fork();
    if (child == 0) {
        MUST(chmod(PATH, 0666));
        MUST(setgid(1000));
        MUST(setuid(1000));
        int client = connect_to(SOCK_STREAM, PATH, sizeof PATH);
        say(client, "from the child");
        MUST((int)write(ready[1], "x", 1));
        fidelity_await_go();
        expect_name(client, false, "", 0);
        expect_name(client, true, PATH, sizeof PATH);
        expect_peer(client, self, 0);
        hear(client, "to the child");
        say(client, "thanks");
        _exit(0);
    }
    char byte;
    MUST((int)read(ready[0], &byte, 1));
    MUST(chmod(PATH, 0640));
    int accepted = MUST(accept(by_path, NULL, NULL));
    say(accepted, "to the child");
    int client = connect_to(SOCK_SEQPACKET, ABSTRACT, sizeof ABSTRACT - 1), served = MUST(accept(by_abstract, NULL, NULL));
    say(client, "packet");

    /* An accepted connection outlives its listener, whose name someone else has taken. */
    unlink(PATH "-old");
    int old = listen_at(SOCK_STREAM, PATH "-old", sizeof PATH "-old");
    int old_client = connect_to(SOCK_STREAM, PATH "-old", sizeof PATH "-old"), old_served = MUST(accept(old, NULL, NULL));
    close(old);
    MUST(unlink(PATH "-old"));
    int newcomer = MUST(open(PATH "-old", O_RDWR | O_CREAT | O_TRUNC, 0600));
    MUST((int)write(newcomer, "not a socket", 12));
    close(newcomer);

    fidelity_ready();
    fidelity_await_go();

    expect_peer(pair[0], self, 0);
    expect_name(pair[0], false, "", 0);
    hear(pair[1], "to one");
    hear(pair[0], "to zero");
    say(pair[0], "again");
    hear(pair[1], "again");

    hear(half[1], "last");
    char rest[8];
    CHECK(recv(half[1], rest, sizeof rest, MSG_DONTWAIT) == 0, "no end of file after SHUT_WR");
    CHECK(send(half[0], "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "can write after SHUT_WR");
    hear(half[0], "still open");
    say(half[1], "more");
    hear(half[0], "more");

    hear(packets[1], "one");
    hear(packets[1], "and two");
    hear(packets[1], "three is the end");
    CHECK(recv(packets[1], rest, sizeof rest, MSG_DONTWAIT) < 0 && errno == EAGAIN, "a packet too many");

    hear(orphan[0], "testament");
    CHECK(recv(orphan[0], rest, sizeof rest, MSG_DONTWAIT) == 0, "no end of file from a closed peer");
    CHECK(send(orphan[0], "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "can write to a closed peer");
    CHECK(recv(reset[0], rest, sizeof rest, MSG_DONTWAIT) < 0 && errno == ECONNRESET, "no reset from a peer closed with unread bytes: %s", strerror(errno));

    struct stat st;
    MUST(stat(PATH, &st));
    CHECK((st.st_mode & 07777) == 0640 && st.st_uid == 1000 && st.st_gid == 1001, "mode %o, owner %u:%u", st.st_mode, st.st_uid, st.st_gid);
    expect_name(accepted, false, PATH, sizeof PATH);
    expect_name(accepted, true, "", 0);
    expect_peer(accepted, child, 1000);
    hear(accepted, "from the child");
    fidelity_expect_exit(child, 0);
    hear(accepted, "thanks");
    expect_name(served, false, ABSTRACT, sizeof ABSTRACT - 1);
    expect_name(client, true, ABSTRACT, sizeof ABSTRACT - 1);
    expect_peer(served, self, 0);
    hear(served, "packet");

    expect_name(old_served, false, PATH "-old", sizeof PATH "-old");
    say(old_client, "over the gone listener");
    hear(old_served, "over the gone listener");
    CHECK(strcmp(fidelity_file(PATH "-old"), "not a socket") == 0, "the newcomer under the old name was changed");

    int fresh = connect_to(SOCK_STREAM, PATH, sizeof PATH), fresh_served = MUST(accept(by_path, NULL, NULL));
    say(fresh, "a new client");
    hear(fresh_served, "a new client");
    fidelity_pass();
}
