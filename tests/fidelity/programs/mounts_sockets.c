/* Unix sockets bound in a tmpfs that only their mount namespace has: listening, connected, with a client not accepted yet and with datagrams in queue. */
#include "mounts.h"

#include <sys/socket.h>
#include <sys/un.h>

#define HERE "/tmp/fidelity-mounts-sockets"

static struct sockaddr_un address_of(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", name);
    return address;
}

static int bound(int type, const char *name)
{
    int fd = MUST(socket(AF_UNIX, type, 0));
    struct sockaddr_un address = address_of(name);
    MUST(bind(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static int connected(int type, const char *name)
{
    int fd = MUST(socket(AF_UNIX, type, 0));
    struct sockaddr_un address = address_of(name);
    MUST(connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static void expect(int fd, const char *text)
{
    char got[32] = "";
    MUST((int)recv(fd, got, sizeof got - 1, 0));
    CHECK(strcmp(got, text) == 0, "'%s' came instead of '%s'", got, text);
}

int main(void)
{
    MUST(mkdir(HERE, 0755));
    enter_namespaces(0);
    MUST(mount("tmpfs", HERE, "tmpfs", 0, "mode=755"));
    int server = bound(SOCK_STREAM, HERE "/server"), mailbox = bound(SOCK_DGRAM, HERE "/mailbox");
    MUST(chmod(HERE "/server", 0640));
    MUST(listen(server, 5));
    int client = connected(SOCK_STREAM, HERE "/server"), accepted = MUST(accept(server, NULL, NULL));
    MUST((int)send(client, "queued", 6, 0));
    int sender = connected(SOCK_DGRAM, HERE "/mailbox");
    MUST((int)send(sender, "letter", 6, 0));
    MUST(chdir(HERE));
    int relative = bound(SOCK_STREAM, "relative");
    MUST(listen(relative, 5));
    fidelity_ready();
    fidelity_await_go();

    expect(accepted, "queued");
    MUST((int)send(accepted, "answer", 6, 0));
    expect(client, "answer");
    expect(mailbox, "letter");
    MUST((int)send(sender, "another", 7, 0));
    expect(mailbox, "another");
    struct stat st;
    MUST(stat(HERE "/server", &st));
    CHECK(S_ISSOCK(st.st_mode) && (st.st_mode & 0777) == 0640, "the socket file has mode %o", st.st_mode);
    int more = connected(SOCK_STREAM, HERE "/server"), other = connected(SOCK_STREAM, "relative");
    MUST((int)send(more, fidelity_in_branch() ? "branch" : "source", 6, 0));
    expect(MUST(accept(server, NULL, NULL)), fidelity_in_branch() ? "branch" : "source");
    MUST(accept(relative, NULL, NULL));
    struct sockaddr_un name;
    socklen_t length = sizeof name;
    MUST(getpeername(client, (struct sockaddr *)&name, &length));
    CHECK(strcmp(name.sun_path, HERE "/server") == 0, "the peer's name is %s", name.sun_path);
    close(other);
    fidelity_pass();
}
