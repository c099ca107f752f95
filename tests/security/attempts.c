/* What a hostile program tries from inside a workspace. `attempts NAME [ARGUMENT…]` prints `NAME refused ERRNO` or `NAME done`.
 *
 * Each attempt returns 0 when it got what it must not have, and -1 with errno when it was refused. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int readable(const char *path)
{
    char byte;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, &byte, 1) == 1 ? 0 : -1;
}

static int writable(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    /* Opening is enough for most; what is written changes nothing even where it would be taken. */
    return 0;
}

/* The host's file by every way that once led out of some container. */
static int host_file(char **arguments)
{
    char path[4096];
    const char *prefixes[] = { "", "/proc/1/root", "/proc/self/root/../..", "/../../../../../..", "/proc/1/cwd/../../../.." };
    for (size_t at = 0; at < sizeof prefixes / sizeof *prefixes; at++) {
        snprintf(path, sizeof path, "%s%s", prefixes[at], arguments[0]);
        if (readable(path) == 0)
            return 0;
    }
    /* The classic way out of a chroot: stand outside of a new, deeper one and climb. */
    mkdir("/tmp/deeper", 0755);
    int here = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (chroot("/tmp/deeper") == 0 && fchdir(here) == 0) {
        for (int up = 0; up < 64; up++)
            if (chdir("..") != 0)
                break;
        if (readable(arguments[0] + 1) == 0)
            return 0;
    }
    errno = ENOENT;
    return -1;
}

static int handle_of_host(char **arguments)
{
    (void)arguments;
    struct { struct file_handle head; unsigned long inode; unsigned int generation; } handle = { { 8, 1, {} }, 2, 0 };
    int root = open("/", O_RDONLY | O_CLOEXEC);
    return open_by_handle_at(root, &handle.head, O_RDONLY) >= 0 ? 0 : -1;
}

static int mount_something(char **arguments)
{
    (void)arguments;
    return mount("none", "/tmp", "tmpfs", 0, NULL);
}

static int remount_writable(char **arguments)
{
    (void)arguments;
    return mount("none", "/proc/sys", NULL, MS_REMOUNT | MS_BIND, NULL);
}

/* A device of the host's by a node of one's own: memory, the kernel's log, the disk (ARGUMENTS: kind major minor). */
static int device(char **arguments)
{
    mode_t kind = arguments[0][0] == 'b' ? S_IFBLK : S_IFCHR;
    char path[64];
    snprintf(path, sizeof path, "/tmp/node-%d", (int)getuid());
    unlink(path);
    if (mknod(path, kind | 0600, makedev(atoi(arguments[1]), atoi(arguments[2]))) != 0)
        return -1;
    return open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) >= 0 ? 0 : -1;
}

/* The same by every call that makes a node, with bits set that the kernel does not look at (ARGUMENTS: major minor). */
static int device_by_any_call(char **arguments)
{
    enum { MKNOD_32 = 14, MKNODAT_32 = 297, X32 = 0x40000000 };
    const long ignored = 1L << 40, unused_mode = 1L << 20;
    unsigned number = makedev(atoi(arguments[0]), atoi(arguments[1]));
    long mode = S_IFCHR | 0600;
    /* Calls of 32 bits need a path that their pointers reach. */
    char *path = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (path == MAP_FAILED)
        return -1;
    snprintf(path, 64, "/tmp/any-node-%d", (int)getuid());
    int refused = 0;
    for (int way = 0; way < 8; way++) {
        long result = -1;
        unlink(path);
        switch (way) {
        case 0: result = syscall(SYS_mknod, path, mode, (long)number | ignored); break;
        case 1: result = syscall(SYS_mknod, path, mode | unused_mode, (long)number); break;
        case 2: result = syscall(SYS_mknodat, AT_FDCWD, path, mode, (long)number | ignored); break;
        case 3: result = syscall(SYS_mknodat, AT_FDCWD, path, mode | unused_mode, (long)number); break;
        case 4: result = syscall(SYS_mknod | X32, path, mode, (long)number); break;
        case 5: result = syscall(SYS_mknodat | X32, AT_FDCWD, path, mode, (long)number); break;
        case 6: __asm__ volatile("int $0x80" : "=a"(result) : "a"(MKNOD_32), "b"(path), "c"(mode), "d"((long)number) : "memory"); break;
        case 7: __asm__ volatile("int $0x80" : "=a"(result) : "a"(MKNODAT_32), "b"((long)AT_FDCWD), "c"(path), "d"(mode), "S"((long)number) : "memory"); break;
        }
        int error = way >= 6 ? (int)-result : errno;
        if (result == 0 && open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) >= 0)
            return 0;
        refused = result == 0 ? errno : error;
        /* A kernel without calls of that kind has nothing to refuse. */
        if (refused != EPERM && refused != ENOSYS && refused != EACCES)
            break;
    }
    errno = refused;
    return -1;
}

static int trace(char **arguments)
{
    return ptrace(PTRACE_SEIZE, atoi(arguments[0]), 0, 0) == 0 ? 0 : -1;
}

static int read_memory(char **arguments)
{
    char byte;
    struct iovec ours = { &byte, 1 }, theirs = { (void *)0x400000, 1 };
    return process_vm_readv(atoi(arguments[0]), &ours, 1, &theirs, 1, 0) == 1 ? 0 : -1;
}

static int signal_host(char **arguments)
{
    return kill(atoi(arguments[0]), 0);
}

static int enter_namespace(char **arguments)
{
    char path[64];
    int pidfd = (int)syscall(SYS_pidfd_open, atoi(arguments[0]), 0);
    if (pidfd >= 0 && setns(pidfd, CLONE_NEWNET) == 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%s/ns/net", arguments[0]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? setns(fd, CLONE_NEWNET) : -1;
}

static int module(char **arguments)
{
    (void)arguments;
    return syscall(SYS_init_module, "", 0UL, "") == 0 || errno == ENOEXEC ? 0 : -1;
}

static int kexec(char **arguments)
{
    (void)arguments;
    return syscall(SYS_kexec_load, 0UL, 0UL, NULL, 0UL) == 0 ? 0 : -1;
}

static int restart(char **arguments)
{
    (void)arguments;
    return reboot(RB_DISABLE_CAD);
}

static int swap(char **arguments)
{
    (void)arguments;
    return swapon("/tmp/node", 0);
}

static int set_clock(char **arguments)
{
    (void)arguments;
    struct timeval now;
    gettimeofday(&now, NULL);
    return settimeofday(&now, NULL);
}

static int kernel_log(char **arguments)
{
    (void)arguments;
    char text[64];
    return klogctl(3, text, sizeof text) >= 0 ? 0 : -1;
}

/* Keyrings have no namespace: root's would be the host's root's. */
static int add_key(char **arguments)
{
    (void)arguments;
    return syscall(SYS_add_key, "user", "tclone-test", "x", 1UL, -4) >= 0 ? 0 : -1;
}

static int user_keyring(char **arguments)
{
    (void)arguments;
    return syscall(SYS_keyctl, 0, -4, 0) >= 0 ? 0 : -1;
}

static int request_key(char **arguments)
{
    (void)arguments;
    return syscall(SYS_request_key, "user", "tclone-test", NULL, 0) >= 0 || errno == ENOKEY ? 0 : -1;
}

static int trace_kernel(char **arguments)
{
    (void)arguments;
    struct bpf_insn program[] = { { .code = 0xb7, .imm = 0 }, { .code = 0x95 } };
    union bpf_attr wanted = { .prog_type = BPF_PROG_TYPE_KPROBE, .insn_cnt = 2, .insns = (unsigned long)program, .license = (unsigned long)"GPL" };
    return syscall(SYS_bpf, BPF_PROG_LOAD, &wanted, sizeof wanted) >= 0 ? 0 : -1;
}

static int watch_machine(char **arguments)
{
    (void)arguments;
    struct perf_event_attr event = { .type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_CPU_CLOCK };
    return syscall(SYS_perf_event_open, &event, -1, 0, -1, 0) >= 0 ? 0 : -1;
}

static int kernel_faults(char **arguments)
{
    (void)arguments;
    return syscall(SYS_userfaultfd, O_CLOEXEC) >= 0 ? 0 : -1;
}

static int ring(char **arguments)
{
    (void)arguments;
    char parameters[256] = { 0 };
    return syscall(SYS_io_uring_setup, 1, parameters) >= 0 ? 0 : -1;
}

static int write_to(char **arguments)
{
    return writable(arguments[0]);
}

/* ARGUMENTS: address port. Done only when the other end speaks the word of the host's (or a sibling's) server. */
static int reach(char **arguments)
{
    struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1])) };
    struct timeval patience = { .tv_sec = 5 };
    char word[16] = { 0 };
    inet_pton(AF_INET, arguments[0], &there.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&there, sizeof there) != 0)
        return -1;
    ssize_t got = recv(fd, word, sizeof word - 1, 0);
    if (got > 0 && strncmp(word, "secret", 6) == 0)
        return 0;
    if (got >= 0)
        errno = ECONNRESET;
    return -1;
}

static const struct { const char *name; int (*run)(char **); } attempts[] = {
    { "host_file", host_file }, { "handle_of_host", handle_of_host }, { "mount", mount_something }, { "remount", remount_writable },
    { "device", device }, { "device_by_any_call", device_by_any_call },
    { "trace", trace }, { "read_memory", read_memory }, { "signal", signal_host }, { "enter", enter_namespace },
    { "module", module }, { "kexec", kexec }, { "restart", restart }, { "swap", swap }, { "set_clock", set_clock },
    { "kernel_log", kernel_log }, { "add_key", add_key }, { "user_keyring", user_keyring }, { "request_key", request_key },
    { "trace_kernel", trace_kernel }, { "watch_machine", watch_machine }, { "kernel_faults", kernel_faults }, { "ring", ring },
    { "write", write_to }, { "reach", reach },
};

int main(int count, char **arguments)
{
    /* Some of these work for root of a host, and harm it: only a workspace has both. */
    if (getenv("TCLONE_WORKSPACE") == NULL || access("/usr/libexec/tclone/init", X_OK) != 0) {
        fprintf(stderr, "not in a workspace\n");
        return 3;
    }
    for (size_t at = 0; count > 1 && at < sizeof attempts / sizeof *attempts; at++) {
        if (strcmp(attempts[at].name, arguments[1]) != 0)
            continue;
        if (attempts[at].run(arguments + 2) == 0)
            printf("%s done\n", arguments[1]);
        else
            printf("%s refused %d\n", arguments[1], errno);
        return 0;
    }
    fprintf(stderr, "no such attempt\n");
    return 2;
}
