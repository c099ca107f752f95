/*
 * Namespaces that nobody lives in: held by descriptors, some open in two processes, one of a socket; and the descriptor of a namespace that others
 * live in.
 */
#include "fidelity.h"

#include <linux/nsfs.h>
#include <net/if.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>

#define NAME "fidelity-namespace-descriptors"

static int open_own(const char *kind)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    return MUST(open(path, O_RDONLY | O_CLOEXEC));
}

static int *shared;             /* descriptors that a helper leaves in the table it shares with us */

/* A helper makes a namespace, opens it and ends; `prepare` runs inside. */
static int leave_behind(const char *kind, int flag, void (*prepare)(void))
{
    pid_t helper = (pid_t)MUST(syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0));
    if (helper == 0) {
        MUST(unshare(flag));
        prepare();
        shared[0] = open_own(kind);
        _exit(0);
    }
    fidelity_expect_exit(helper, 0);
    return shared[0];
}

static void name_host(void)
{
    MUST(sethostname("left-behind", 11));
}

static void listen_there(void)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    memcpy(name.sun_path + 1, NAME, sizeof NAME - 1);
    int listener = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(bind(listener, (struct sockaddr *)&name, offsetof(struct sockaddr_un, sun_path) + sizeof NAME));
    MUST(listen(listener, 1));
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP };
    MUST(ioctl(fd, SIOCSIFFLAGS, &request));
    close(fd);
}

static ino_t inode(int fd)
{
    struct stat st;
    MUST(fstat(fd, &st));
    return st.st_ino;
}

static void check_net(int net)
{
    int home = open_own("net");
    CHECK(inode(home) != inode(net), "the network namespace is the workspace's own");
    struct sockaddr_un outside_name = { .sun_family = AF_UNIX };
    memcpy(outside_name.sun_path + 1, NAME, sizeof NAME - 1);
    int outside = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(connect(outside, (struct sockaddr *)&outside_name, offsetof(struct sockaddr_un, sun_path) + sizeof NAME) < 0 && errno == ECONNREFUSED,
          "the abstract name is known outside its network namespace");
    MUST(setns(net, CLONE_NEWNET));
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    memcpy(name.sun_path + 1, NAME, sizeof NAME - 1);
    int client = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(connect(client, (struct sockaddr *)&name, offsetof(struct sockaddr_un, sun_path) + sizeof NAME));
    struct ifreq request = { .ifr_name = "lo" };
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST(ioctl(fd, SIOCGIFFLAGS, &request));
    CHECK(request.ifr_flags & IFF_UP, "its loopback interface is down");
}

static void check_host_name(int uts)
{
    struct utsname names;
    MUST(setns(uts, CLONE_NEWUTS));
    MUST(uname(&names));
    CHECK(strcmp(names.nodename, "left-behind") == 0, "the host name is %s", names.nodename);
}

static void run(int report)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(unshare(CLONE_NEWUSER));   /* with capabilities over what is made from here on */
    int net = leave_behind("net", CLONE_NEWNET, listen_there);
    int uts = leave_behind("uts", CLONE_NEWUTS, name_host);
    int again = open_own("uts"), user = open_own("user");
    MUST(write(report, "x", 1));
    fidelity_await_go();
    CHECK(inode(again) == inode(open_own("uts")), "the descriptor of the own UTS namespace leads elsewhere");
    int owner = MUST(ioctl(net, NS_GET_USERNS));
    CHECK(inode(owner) == inode(user) && inode(user) == inode(open_own("user")), "another user namespace owns the network namespace");
    check_net(net);
    check_host_name(uts);
    _exit(3);
}

int main(void)
{
    int report[2];
    MUST(pipe(report));
    int own = open_own("pid");
    pid_t child = fidelity_fork();
    if (child == 0)
        run(report[1]);
    char byte;
    MUST(read(report[0], &byte, 1));
    fidelity_ready();
    fidelity_await_go();
    CHECK(inode(own) == inode(open_own("pid")), "the descriptor of the pid namespace leads elsewhere");
    fidelity_expect_exit(child, 3);
    fidelity_pass();
}
