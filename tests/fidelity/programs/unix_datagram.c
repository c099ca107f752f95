/* Datagram sockets: bound, connected, pairs; boundaries and sender names of what is unread; a peer that is gone. */
#include "fidelity.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SERVER "/tmp/fidelity-datagram"

static socklen_t address_of(struct sockaddr_un *address, const char *name, size_t length)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(address->sun_path, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
}

static int bound_to(const char *name, size_t length)
{
    struct sockaddr_un address;
    int fd = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
    if (length)
        MUST(bind(fd, (void *)&address, address_of(&address, name, length)));
    return fd;
}

static void join(int fd, const char *name, size_t length)
{
    struct sockaddr_un address;
    MUST(connect(fd, (void *)&address, address_of(&address, name, length)));
}

static void expect(int fd, const char *text, const char *sender, size_t length)
{
    char got[64] = "";
    struct sockaddr_un from, wanted;
    socklen_t size = sizeof from, wanted_size = address_of(&wanted, sender, length);
    ssize_t bytes = recvfrom(fd, got, sizeof got - 1, MSG_DONTWAIT, (void *)&from, &size);
    CHECK(bytes == (ssize_t)strlen(text) && strcmp(got, text) == 0, "fd %d: got \"%s\", not \"%s\"", fd, got, text);
    CHECK(length == 0 ? size == 0 || size == 2 : size == wanted_size && memcmp(&from, &wanted, size) == 0, "\"%s\": its sender has a name of %u bytes",
          text, size);
}

int main(void)
{
    unlink(SERVER);
    int server = bound_to(SERVER, sizeof SERVER), client = bound_to("\0fidelity client", 16), nameless = bound_to("", 0);
    join(client, SERVER, sizeof SERVER);
    join(nameless, SERVER, sizeof SERVER);
    MUST((int)send(client, "first", 5, 0));
    MUST((int)send(nameless, "second", 6, 0));
    int leaver = bound_to("\0fidelity leaver", 16);
    join(leaver, SERVER, sizeof SERVER);
    MUST((int)send(leaver, "third", 5, 0));
    close(leaver);
    int pair[2], left[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    MUST((int)send(pair[0], "a", 1, 0));
    MUST((int)send(pair[0], "bc", 2, 0));
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, left));
    MUST((int)send(left[1], "farewell", 8, 0));
    close(left[1]);
    /* Two bound sockets that are connected to each other. */
    int here = bound_to("\0fidelity here", 14), there = bound_to("\0fidelity there", 15);
    join(here, "\0fidelity there", 15);
    join(there, "\0fidelity here", 14);
    MUST((int)send(here, "over", 4, 0));
    /* One that got a message before it chose its only peer. */
    int chooser = bound_to("\0fidelity chooser", 17);
    struct sockaddr_un address;
    MUST((int)sendto(nameless, "earlier", 7, 0, (void *)&address, address_of(&address, "\0fidelity chooser", 17)));
    join(chooser, SERVER, sizeof SERVER);

    fidelity_ready();
    fidelity_await_go();

    expect(server, "first", "\0fidelity client", 16);
    expect(server, "second", "", 0);
    expect(server, "third", "\0fidelity leaver", 16);
    char rest[8];
    CHECK(recv(server, rest, sizeof rest, MSG_DONTWAIT) < 0 && errno == EAGAIN, "a message too many");
    MUST((int)send(client, "new", 3, 0));
    expect(server, "new", "\0fidelity client", 16);
    expect(pair[1], "a", "", 0);
    expect(pair[1], "bc", "", 0);
    MUST((int)send(pair[1], "back", 4, 0));
    expect(pair[0], "back", "", 0);
    expect(left[0], "farewell", "", 0);
    CHECK(send(left[0], "x", 1, MSG_NOSIGNAL) < 0 && errno == ECONNREFUSED, "sending to a peer that is gone: %s", strerror(errno));
    expect(there, "over", "\0fidelity here", 14);
    MUST((int)send(there, "and out", 7, 0));
    expect(here, "and out", "\0fidelity there", 15);
    expect(chooser, "earlier", "", 0);
    CHECK(sendto(nameless, "later", 5, 0, (void *)&address, address_of(&address, "\0fidelity chooser", 17)) < 0 && errno == EPERM,
          "a connected socket takes messages from others: %s", strerror(errno));
    fidelity_pass();
}
