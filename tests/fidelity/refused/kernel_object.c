/* Holds one object that no branch can have, named by the first argument. Where the kernel does not give it to a workspace, nothing is left to refuse. */
#include "../programs/fidelity.h"

#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/landlock.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>

static long device(const char *path, unsigned major_number, unsigned minor_number)
{
    unlink(path);
    return mknod(path, S_IFCHR | 0600, makedev(major_number, minor_number)) < 0 ? -1 : open(path, O_RDWR);
}

static long notified_queue(void)
{
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
    mqd_t queue = mq_open("/refused", O_RDWR | O_CREAT, 0600, NULL);
    return queue == (mqd_t)-1 ? -1 : mq_notify(queue, &event);
}

/* A request that ends when something can be read, which never comes. */
static long awaited_by_aio(void)
{
    static aio_context_t context;
    int ends[2];
    if (pipe(ends) < 0 || syscall(SYS_io_setup, 8, &context) < 0)
        return -1;
    struct iocb request = { .aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (uint32_t)ends[0], .aio_buf = POLLIN }, *list = &request;
    return syscall(SYS_io_submit, context, 1, &list) == 1 ? 0 : -1;
}

/* Nothing is left open that shows it. */
static long confine_itself(void)
{
    struct landlock_ruleset_attr rules = { .handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_BLOCK };
    long fd = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (fd < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_landlock_restrict_self, fd, 0) < 0)
        return -1;
    return close((int)fd);
}

static long secret_memory(bool mapped)
{
    long fd = syscall(SYS_memfd_secret, 0);
    if (fd < 0 || ftruncate((int)fd, 4096) < 0)
        return -1;
    if (!mapped)
        return fd;
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    *at = 's';
    return close((int)fd);
}

static long make(const char *what)
{
    struct io_uring_params ring = { 0 };
    struct perf_event_attr counter = { .type = PERF_TYPE_SOFTWARE, .size = sizeof counter, .config = PERF_COUNT_SW_CPU_CLOCK, .exclude_kernel = 1 };
    union bpf_attr map = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1 };
    struct landlock_ruleset_attr rules = { .handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE };
    if (strcmp(what, "secret memory") == 0)
        return secret_memory(false);
    if (strcmp(what, "mapped secret memory") == 0)
        return secret_memory(true);
    if (strcmp(what, "aio poll") == 0)
        return awaited_by_aio();
    if (strcmp(what, "io_uring") == 0)
        return syscall(SYS_io_uring_setup, 4, &ring);
    if (strcmp(what, "userfaultfd") == 0)
        return syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY);
    if (strcmp(what, "perf event") == 0)
        return syscall(SYS_perf_event_open, &counter, 0, -1, -1, 0);
    if (strcmp(what, "BPF object") == 0)
        return syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map);
    if (strcmp(what, "landlock ruleset") == 0)
        return syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (strcmp(what, "landlock domain") == 0)
        return confine_itself();
    if (strcmp(what, "mount under construction") == 0)
        return syscall(SYS_fsopen, "tmpfs", 0);
    if (strcmp(what, "mq_notify") == 0)
        return notified_queue();
    if (strcmp(what, "namespace descriptor") == 0)
        return open("/proc/self/ns/uts", O_RDONLY);
    if (strcmp(what, "kernel log") == 0)
        return device("/tmp/kmsg", 1, 11);
    if (strcmp(what, "tunnel device") == 0)
        return device("/tmp/tun", 10, 200);
    errno = EINVAL;
    return -1;
}

int main(int argc, char **argv)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    if (make(argc > 1 ? argv[1] : "") < 0)
        CHECK(errno == EPERM || errno == ENOSYS || errno == EACCES || errno == ENODEV || errno == ENXIO || errno == EOPNOTSUPP, "%s: %s", argv[1],
              strerror(errno));
    else
        fidelity_write("made", "made");
    fidelity_ready();
    for (int i = 0; i < 600 && !fidelity_may_go(); i++)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    return 0;
}
