/*
 * A sandbox as an ordinary user makes one, whose user namespace knows no root outside: a tmpfs with content, and a devpts with terminals of its own,
 * numbered like those of the workspace; one of them controls a session there. Sockets with names in the tmpfs, a lease on a file; and in a sandbox within the
 * sandbox, where the tmpfs is locked, it is there, too.
 */
#include "mounts.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>

#define HERE FIDELITY_DIRECTORY "user"
#define USER 1000
#define MOST_TERMINALS 64

struct terminal {
    int index, master, slave;
};

static struct terminal open_terminal(const char *multiplexer, const char *directory)
{
    struct terminal made;
    int unlock = 0;
    char path[128];
    made.master = MUST(open(multiplexer, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    MUST(ioctl(made.master, TIOCGPTN, &made.index));
    MUST(ioctl(made.master, TIOCSPTLCK, &unlock));
    snprintf(path, sizeof path, "%s/%d", directory, made.index);
    made.slave = MUST(open(path, O_RDWR | O_NOCTTY | O_CLOEXEC));
    struct winsize size = { .ws_row = (unsigned short)(10 + made.index), .ws_col = 33 };
    MUST(ioctl(made.master, TIOCSWINSZ, &size));
    return made;
}

/* The one there that has the wanted number. */
static struct terminal open_numbered(int wanted)
{
    struct terminal made, skipped[MOST_TERMINALS];
    int count = 0;
    while ((made = open_terminal(HERE "/pts/ptmx", HERE "/pts")).index < wanted && count < MOST_TERMINALS)
        skipped[count++] = made;
    for (int i = 0; i < count; i++) {
        close(skipped[i].master);
        close(skipped[i].slave);
    }
    return made;
}

static void say(struct terminal terminal, const char *text)
{
    MUST(write(terminal.slave, text, strlen(text)));
}

static void expect(struct terminal terminal, const char *text)
{
    char got[64] = "";
    struct stat st;
    struct winsize size;
    int index;
    MUST(ioctl(terminal.master, TIOCGPTN, &index));
    MUST(fstat(terminal.slave, &st));
    MUST(ioctl(terminal.slave, TIOCGWINSZ, &size));
    CHECK(index == terminal.index && size.ws_row == 10 + index, "terminal %d has number %d and %d rows", terminal.index, index, size.ws_row);
    ssize_t size_got = read(terminal.master, got, sizeof got - 1);
    CHECK(size_got == (ssize_t)strlen(text) && strcmp(got, text) == 0, "terminal %d holds \"%s\", not \"%s\"", index, got, text);
    MUST(write(terminal.slave, "after", 5));
    CHECK(read(terminal.master, got, sizeof got) == 5 && memcmp(got, "after", 5) == 0, "terminal %d does not work", index);
}

static void __attribute__((noreturn)) lead_session(struct terminal terminal, int ready)
{
    MUST(setsid());
    MUST(ioctl(terminal.slave, TIOCSCTTY, 0));
    int controlling = MUST(open("/dev/tty", O_RDWR | O_CLOEXEC));
    pid_t child = fidelity_fork();
    if (child == 0) {
        MUST(setpgid(0, 0));
        for (;;)
            pause();
    }
    setpgid(child, child);
    MUST(tcsetpgrp(terminal.slave, child));
    MUST(write(ready, "r", 1));
    fidelity_await_go();
    bool right = tcgetpgrp(controlling) == child && tcgetsid(terminal.slave) == getpid() && ioctl(controlling, TIOCNOTTY) == 0;
    kill(child, SIGKILL);
    _exit(right ? 0 : 1);
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

static int bind_socket(int type, const char *path)
{
    struct sockaddr_un address = address_of(path);
    int made = MUST(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    MUST(bind(made, (void *)&address, sizeof address));
    MUST(chmod(path, 0640));
    return made;
}

static void check_sockets(int listener, int receiver)
{
    char text[8] = "";
    struct sockaddr_un stream = address_of(HERE "/memory/stream"), datagram = address_of(HERE "/memory/datagram");
    int client = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), sender = MUST(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST(connect(client, (void *)&stream, sizeof stream));
    int server = MUST(accept(listener, NULL, NULL));
    MUST(write(client, "hello", 5));
    CHECK(read(server, text, sizeof text) == 5 && memcmp(text, "hello", 5) == 0, "the stream brings \"%.8s\"", text);
    MUST(sendto(sender, "letter", 6, 0, (void *)&datagram, sizeof datagram));
    CHECK(recv(receiver, text, sizeof text, MSG_DONTWAIT) == 6 && memcmp(text, "letter", 6) == 0, "the datagram is \"%.8s\"", text);
    struct stat st;
    MUST(stat(HERE "/memory/datagram", &st));
    CHECK(S_ISSOCK(st.st_mode) && (st.st_mode & 0777) == 0640 && st.st_uid == 0, "the socket file has mode %o and owner %u", st.st_mode, st.st_uid);
}

/* A sandbox in the sandbox: what is mounted around cannot be changed there. */
static void __attribute__((noreturn)) live_within(int ready)
{
    enter_namespaces(0);
    MUST(mount("within", HERE "/pts", "tmpfs", 0, NULL));
    make_file(HERE "/pts/within", "within", 0600);
    MUST(write(ready, "w", 1));
    fidelity_await_go();
    bool right = strcmp(fidelity_file(HERE "/memory/directory/inner"), "inner") == 0;
    _exit(right && strcmp(fidelity_file(HERE "/pts/within"), "within") == 0 ? 0 : 1);
}

static void make_content(void)
{
    make_file(HERE "/memory/file", "content", 0640);
    MUST(mkdir(HERE "/memory/directory", 0711));
    make_file(HERE "/memory/directory/inner", "inner", 0600);
    MUST(link(HERE "/memory/file", HERE "/memory/directory/linked"));
    MUST(symlink("file", HERE "/memory/symbolic"));
    MUST(mkfifo(HERE "/memory/fifo", 0600));
    make_file(HERE "/memory/gone", "no name", 0600);
}

static void expect_text(const char *path, const char *wanted)
{
    CHECK(strcmp(fidelity_file(path), wanted) == 0, "%s holds \"%s\"", path, fidelity_file(path));
}

static void check_content(int gone)
{
    struct stat st, other;
    char text[16] = "";
    MUST(lstat(HERE "/memory/file", &st));
    MUST(lstat(HERE "/memory/directory/linked", &other));
    CHECK(st.st_uid == 0 && st.st_gid == 0 && (st.st_mode & 07777) == 0640 && st.st_ino == other.st_ino && st.st_nlink == 2, "owner %u:%u, mode %o",
          st.st_uid, st.st_gid, st.st_mode);
    MUST(lstat(HERE "/memory/directory", &st));
    CHECK((st.st_mode & 07777) == 0711 && st.st_uid == 0, "the directory has mode %o and owner %u", st.st_mode, st.st_uid);
    expect_text(HERE "/memory/symbolic", "content");
    expect_text(HERE "/memory/directory/inner", "inner");
    MUST(lstat(HERE "/memory/fifo", &st));
    CHECK(S_ISFIFO(st.st_mode), "the fifo has mode %o", st.st_mode);
    CHECK(pread(gone, text, sizeof text, 0) == 7 && strcmp(text, "no name") == 0, "the file without a name holds \"%s\"", text);
    make_file(HERE "/memory/new", fidelity_in_branch() ? "branch" : "source", 0600);
    MUST(unlink(HERE "/memory/new"));
}

int main(void)
{
    umask(0);
    MUST(mkdir(HERE, 0777));
    MUST(mkdir(HERE "/memory", 0777));
    MUST(mkdir(HERE "/pts", 0777));
    struct terminal outer = open_terminal("/dev/ptmx", "/dev/pts");
    MUST(setresgid(USER, USER, USER));
    MUST(setresuid(USER, USER, USER));
    MUST(prctl(PR_SET_DUMPABLE, 1));
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWNS));
    put_text("/proc/self/setgroups", "deny");
    put_text("/proc/self/uid_map", "0 1000 1");
    put_text("/proc/self/gid_map", "0 1000 1");
    MUST(mount("memory", HERE "/memory", "tmpfs", 0, NULL));
    MUST(mount("pts", HERE "/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620"));
    make_content();
    int gone = MUST(open(HERE "/memory/gone", O_RDWR | O_CLOEXEC));
    MUST(unlink(HERE "/memory/gone"));
    struct terminal same = open_numbered(outer.index), session = open_terminal(HERE "/pts/ptmx", HERE "/pts");
    say(outer, "outside");
    say(same, "inside");
    int listener = bind_socket(SOCK_STREAM, HERE "/memory/stream"), receiver = bind_socket(SOCK_DGRAM, HERE "/memory/datagram");
    MUST(listen(listener, 4));
    int leased = MUST(open(HERE "/leased", O_RDONLY | O_CREAT | O_CLOEXEC, 0600));
    MUST(fcntl(leased, F_SETLEASE, F_RDLCK));
    int ready[2];
    char byte;
    MUST(pipe(ready));
    pid_t leader = fidelity_fork();
    if (leader == 0)
        lead_session(session, ready[1]);
    MUST(read(ready[0], &byte, 1));
    pid_t within = fidelity_fork();
    if (within == 0)
        live_within(ready[1]);
    MUST(read(ready[0], &byte, 1));

    fidelity_ready();
    fidelity_await_go();
    check_content(gone);
    check_sockets(listener, receiver);
    CHECK(fcntl(leased, F_GETLEASE) == F_RDLCK, "the lease is %d", fcntl(leased, F_GETLEASE));
    fidelity_expect_exit(leader, 0);
    fidelity_expect_exit(within, 0);
    expect(outer, "outside");
    expect(same, "inside");
    struct stat st, other;
    MUST(fstat(same.slave, &st));
    MUST(fstat(outer.slave, &other));
    CHECK(st.st_dev != other.st_dev && st.st_rdev == other.st_rdev && st.st_uid == 0, "the terminals lie in one file system, or owner %u", st.st_uid);
    char path[64];
    snprintf(path, sizeof path, HERE "/pts/%d", same.index);
    MUST(stat(path, &other));
    CHECK(st.st_ino == other.st_ino && st.st_dev == other.st_dev, "%s is another terminal", path);
    fidelity_pass();
}
