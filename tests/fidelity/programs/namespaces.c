/*
 * Nested user, pid, net, IPC and UTS namespaces, two levels deep: a browser's way (a user without privileges makes user, pid and net namespaces in
 * one clone, and a further pid namespace for each child) and root's way (unshare, fork, and the same again inside). Every member looks at itself
 * before and after; main compares who shares which namespace with whom.
 */
#include "fidelity.h"

#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>

#define MEMBERS 10
#define KINDS 6
#define ABSTRACT "fidelity-namespaces"
#define USER 1000
#define FIRST_WITH_HOST_NAME 6

static const char *const kinds[KINDS] = { "user", "pid", "net", "ipc", "uts", "mnt" };

struct member {
    bool ready, done;
    int number;                 /* in the workspace */
    char links[KINDS][64];
    char text[4096];
};

static struct shared {
    bool go;
    struct member members[MEMBERS];
} *shared;

static void append(char *text, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof shared->members->text - used, format, args);
    va_end(args);
}

static void append_field(char *text, const char *status, const char *key)
{
    const char *at = strstr(status, key);
    if (at)
        append(text, "%.*s\n", (int)strcspn(at + 1, "\n"), at + 1);
}

/* /proc is the workspace's here: it shows all numbers of a task. */
static void look(int index, char *text)
{
    static const char *const keys[] = { "\nNSpid:", "\nNSpgid:", "\nNSsid:", "\nUid:", "\nGid:", "\nGroups:", "\nCapInh:", "\nCapPrm:", "\nCapEff:",
                                        "\nCapBnd:", "\nCapAmb:", "\nNoNewPrivs:" };
    text[0] = 0;
    char *status = fidelity_file("/proc/self/status");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        append_field(text, status, keys[i]);
    append(text, "uids %s", fidelity_file("/proc/self/uid_map"));
    append(text, "gids %s", fidelity_file("/proc/self/gid_map"));
    append(text, "setgroups %s", fidelity_file("/proc/self/setgroups"));
    append(text, "pid %d parent %d session %d group %d ids %d %d securebits %d\n", getpid(), getppid(), getsid(0), getpgid(0), (int)geteuid(),
           (int)getegid(), prctl(PR_GET_SECUREBITS));
    struct utsname names;
    uname(&names);
    if (index >= FIRST_WITH_HOST_NAME)  /* the workspace's own is the harness's business */
        append(text, "host name %s\n", names.nodename);
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    struct ifreq request = { .ifr_name = "lo" };
    MUST(ioctl(fd, SIOCGIFFLAGS, &request));
    append(text, "loopback %d\n", request.ifr_flags & IFF_UP);
    close(fd);
    for (int i = 0; i < KINDS; i++) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[i]);
        ssize_t length = MUST(readlink(path, shared->members[index].links[i], sizeof shared->members->links[i] - 1));
        shared->members[index].links[i][length] = 0;
    }
}

static void ready(int index)
{
    struct member *member = &shared->members[index];
    look(index, member->text);
    char link[16] = "";
    MUST(readlink("/proc/self", link, sizeof link - 1));
    member->number = atoi(link);
    member->ready = true;
}

static void await_go(void)
{
    while (!*(volatile bool *)&shared->go)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
}

static void check(int index)
{
    struct member *member = &shared->members[index];
    static char now[sizeof member->text];
    look(index, now);
    CHECK(strcmp(now, member->text) == 0, "member %d was\n%s\nand is\n%s", index, member->text, now);
    member->done = true;
}

static void write_text(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY | O_CLOEXEC));
    MUST(write(fd, text, strlen(text)));
    close(fd);
}

static void write_maps(int inside, int outside)
{
    char text[64];
    snprintf(text, sizeof text, "%d %d 1", inside, outside);
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/gid_map", text);
    write_text("/proc/self/uid_map", text);
}

static pid_t clone_into(unsigned long flags)
{
    fflush(NULL);
    return (pid_t)MUST(syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0));
}

static struct sockaddr_un abstract_name(socklen_t *length)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    memcpy(name.sun_path + 1, ABSTRACT, sizeof ABSTRACT - 1);
    *length = offsetof(struct sockaddr_un, sun_path) + sizeof ABSTRACT;
    return name;
}

static int listen_abstract(void)
{
    socklen_t length;
    struct sockaddr_un name = abstract_name(&length);
    int fd = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(bind(fd, (struct sockaddr *)&name, length));
    MUST(listen(fd, 4));
    return fd;
}

/* Whoever connects by the name in this network namespace reaches this listener. */
static void check_abstract(int listener)
{
    socklen_t length;
    struct sockaddr_un name = abstract_name(&length);
    int client = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(connect(client, (struct sockaddr *)&name, length));
    MUST(write(client, "x", 1));
    int server = MUST(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    char byte = 0;
    CHECK(read(server, &byte, 1) == 1 && byte == 'x', "the abstract name leads elsewhere");
    close(client);
    close(server);
}

static void read_thread_numbers(char *text, size_t size)
{
    char status[4096] = "";
    int fd = MUST(open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC));
    MUST(read(fd, status, sizeof status - 1));
    close(fd);
    const char *field = strstr(status, "\nNSpid:");
    CHECK(field, "no NSpid");
    snprintf(text, size, "%.*s", (int)strcspn(field + 1, "\n"), field + 1);
}

static void *wait_in_thread(void *argument)
{
    int *number = argument;
    char before[128], after[128];
    read_thread_numbers(before, sizeof before);
    *number = (int)syscall(SYS_gettid);
    await_go();
    read_thread_numbers(after, sizeof after);
    CHECK(strcmp(before, after) == 0, "a thread was %s and is %s", before, after);
    CHECK(syscall(SYS_gettid) == *number, "a thread was %d and is %d", *number, (int)syscall(SYS_gettid));
    return NULL;
}

/* A leaf with threads; its own child, if it has one, is waited for by number. */
static void __attribute__((noreturn)) leaf(int index, bool threads)
{
    pthread_t thread;
    int number = 0;
    if (threads) {
        pthread_create(&thread, NULL, wait_in_thread, &number);
        while (!*(volatile int *)&number)
            fidelity_sleep_ms(5);
    }
    ready(index);
    await_go();
    check(index);
    if (threads)
        pthread_join(thread, NULL);
    _exit(10 + index);
}

/* Pid 1 of a pid namespace inside the browser's, and its child. */
static void __attribute__((noreturn)) renderer(int index)
{
    CHECK(getpid() == 1 && getppid() == 0, "a new pid namespace begins with %d", getpid());
    pid_t child = fidelity_fork();
    if (child == 0)
        leaf(index + 1, true);
    CHECK(child == 2, "the second process is %d", child);
    ready(index);
    await_go();
    check(index);
    CHECK(kill(child, 0) == 0 || errno == ESRCH, "the child is nowhere");
    fidelity_expect_exit(2, 11 + index);
    _exit(10 + index);
}

static void limit_capabilities(void)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2] = { { .permitted = 1u << CAP_SYS_ADMIN | 1u << CAP_SYS_CHROOT, .effective = 1u << CAP_SYS_ADMIN }, { 0 } };
    MUST(syscall(SYS_capset, &header, data));
}

/* The browser's zygote: pid 1, with an orphan to adopt and two renderers. */
static void __attribute__((noreturn)) zygote(void)
{
    write_maps(USER, USER);
    /* A second user namespace: the capabilities that come with it serve for the chroot. It does not own the pid namespace. */
    MUST(unshare(CLONE_NEWUSER));
    write_maps(USER, USER);
    int listener = listen_abstract();
    pid_t step = fidelity_fork();
    if (step == 0) {
        if (fidelity_fork() == 0) {
            while (getppid() != 1)
                fidelity_sleep_ms(5);
            setsid();
            leaf(1, false);
        }
        _exit(0);
    }
    fidelity_expect_exit(step, 0);
    pid_t renderers[2];
    for (int i = 0; i < 2; i++)
        if ((renderers[i] = clone_into(CLONE_NEWPID)) == 0)
            renderer(2 + 2 * i);
    limit_capabilities();
    ready(0);
    await_go();
    check(0);
    check_abstract(listener);
    fidelity_expect_exit(renderers[0], 12);
    fidelity_expect_exit(renderers[1], 14);
    int status;
    CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 11, "the orphan ended with 0x%x", status);
    fidelity_expect_exit(clone_into(CLONE_NEWPID) ?: (_exit(getpid() == 1 ? 5 : 6), 0), 5);
    _exit(10);
}

static void loopback_up(void)
{
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP };
    MUST(ioctl(fd, SIOCSIFFLAGS, &request));
    close(fd);
}

/* Root's way: `unshare -Urpf`, and again inside, with a host name of its own. */
static void __attribute__((noreturn)) second_level(void)
{
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC));
    write_maps(5, 0);
    MUST(sethostname("inner", 5));
    pid_t first = fidelity_fork();
    if (first == 0)
        renderer(8);
    ready(7);
    await_go();
    check(7);
    fidelity_expect_exit(first, 18);
    _exit(17);
}

static void __attribute__((noreturn)) first_level(void)
{
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS));
    write_maps(0, 0);
    loopback_up();
    MUST(sethostname("outer", 5));
    pid_t first = fidelity_fork();
    if (first == 0)
        second_level();
    ready(6);
    await_go();
    check(6);
    fidelity_expect_exit(first, 17);
    _exit(16);
}

static pid_t start_browser(void)
{
    pid_t user = fidelity_fork();
    if (user)
        return user;
    gid_t groups[] = { 27, 1000 };
    MUST(setgroups(2, groups));
    MUST(setresgid(USER, USER, USER));
    MUST(setresuid(USER, USER, USER));
    MUST(prctl(PR_SET_DUMPABLE, 1));
    pid_t first = clone_into(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET);
    if (first == 0)
        zygote();
    await_go();
    fidelity_expect_exit(first, 10);
    _exit(3);
}

/* Who shares what with whom. */
static void graph(char *text, size_t size)
{
    size_t used = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < MEMBERS; i++) {
            int first = 0;
            while (strcmp(shared->members[first].links[kind], shared->members[i].links[kind]) != 0)
                first++;
            used += (size_t)snprintf(text + used, size - used, "%d ", first);
        }
        char own[64] = "", path[32];
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[kind]);
        MUST(readlink(path, own, sizeof own - 1));
        used += (size_t)snprintf(text + used, size - used, "%s %d\n", kinds[kind], strcmp(own, shared->members[0].links[kind]) == 0);
    }
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int listener = listen_abstract();
    pid_t browser = start_browser();
    pid_t levels = fidelity_fork();
    if (levels == 0)
        first_level();
    for (int i = 0; i < MEMBERS; i++)
        while (!*(volatile bool *)&shared->members[i].ready)
            fidelity_sleep_ms(10);
    static char before[2048], after[2048];
    graph(before, sizeof before);
    fidelity_ready();
    fidelity_await_go();
    shared->go = true;
    fidelity_expect_exit(browser, 3);
    fidelity_expect_exit(levels, 16);
    for (int i = 0; i < MEMBERS; i++)
        CHECK(shared->members[i].done, "member %d has not looked at itself", i);
    graph(after, sizeof after);
    CHECK(strcmp(before, after) == 0, "namespaces were shared like this\n%s\nand are like this\n%s", before, after);
    check_abstract(listener);
    fidelity_pass();
}
