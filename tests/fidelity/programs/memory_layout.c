/*
 * What the kernel knows of a program's layout: the heap still grows and shrinks, arguments and environment can be read by others, the executable, the
 * auxiliary vector; the vdso moved elsewhere; /dev/zero mapped privately and shared; a file mapping that reaches beyond the end of its file.
 */
#include "memory.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/auxv.h>

static sigjmp_buf back;

static void on_fault(int number)
{
    siglongjmp(back, number);
}

/* The signal that reading the address raises, 0 if none. */
static int fault_at(const volatile char *address)
{
    int number = sigsetjmp(back, 1);
    if (number == 0)
        (void)*address;
    return number;
}

static void read_into(const char *path, char *text, size_t size)
{
    int fd = MUST(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t got = MUST(read(fd, text, size));
    memset(text + got, 0, size - (size_t)got);
    close(fd);
}

struct layout {
    char cmdline[1024], environment[4096], auxv[1024], executable[256], stat[1024];
};

static void read_layout(struct layout *layout)
{
    read_into("/proc/self/cmdline", layout->cmdline, sizeof layout->cmdline);
    read_into("/proc/self/environ", layout->environment, sizeof layout->environment);
    read_into("/proc/self/auxv", layout->auxv, sizeof layout->auxv);
    memset(layout->executable, 0, sizeof layout->executable);
    MUST(readlink("/proc/self/exe", layout->executable, sizeof layout->executable - 1));
}

/* Fields of /proc/self/stat, counted as in proc(5) from 1. */
static unsigned long stat_field(int wanted)
{
    const char *at = strrchr(fidelity_file("/proc/self/stat"), ')') + 2;
    for (int field = 3; field < wanted; field++)
        at = strchr(at, ' ') + 1;
    return strtoul(at, NULL, 10);
}

int main(void)
{
    struct sigaction action = { .sa_handler = on_fault };
    MUST(sigaction(SIGSEGV, &action, NULL));
    MUST(sigaction(SIGBUS, &action, NULL));
    struct layout before, after;
    read_layout(&before);
    char *heap = MUST(sbrk(16 * PAGE));
    memset(heap, 'h', 16 * PAGE);
    static const int fields[] = { 26, 27, 28, 45, 46, 47, 48, 49, 50, 51 };     /* start_code … env_end */
    unsigned long values[10];
    for (int i = 0; i < 10; i++)
        values[i] = stat_field(fields[i]);

    int zero = MUST(open("/dev/zero", O_RDWR | O_CLOEXEC));
    char *private = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0);
    char *shared = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, zero, 0);
    CHECK(private != MAP_FAILED && shared != MAP_FAILED, "/dev/zero: %s", strerror(errno));
    strcpy(private, "private");
    strcpy(shared + PAGE, "shared");
    int file = MUST(open("/tmp/fidelity-layout", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    MUST(ftruncate(file, 2 * PAGE));
    char *beyond = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *beyond_private = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    strcpy(beyond, "file");
    beyond_private[PAGE] = 'p';
    MUST(ftruncate(file, PAGE));
    CHECK(fault_at(beyond + PAGE) == SIGBUS && fault_at(beyond_private + 2 * PAGE) == SIGBUS, "no SIGBUS beyond the end of the file");

    fidelity_ready();
    fidelity_await_go();
    read_layout(&after);
    CHECK(memcmp(before.cmdline, after.cmdline, sizeof after.cmdline) == 0, "cmdline: %s, before %s", after.cmdline, before.cmdline);
    CHECK(memcmp(before.environment, after.environment, sizeof after.environment) == 0, "the environment differs");
    CHECK(memcmp(before.auxv, after.auxv, sizeof after.auxv) == 0, "the auxiliary vector differs");
    CHECK(strcmp(before.executable, after.executable) == 0, "the executable is %s", after.executable);
    for (int i = 0; i < 10; i++)
        CHECK(stat_field(fields[i]) == values[i], "field %d of stat differs: %lx, before %lx", fields[i], stat_field(fields[i]), values[i]);
    CHECK(sbrk(0) == heap + 16 * PAGE, "the heap ends elsewhere");
    char *more = MUST(sbrk(64 * PAGE));
    CHECK(more == heap + 16 * PAGE && more[0] == 0 && heap[16 * PAGE - 1] == 'h', "the heap does not grow where it ended");
    MUST(sbrk(-64 * (long)PAGE));
    CHECK(fault_at(more) == SIGSEGV, "the heap does not shrink");
    CHECK(strcmp(private, "private") == 0 && strcmp(shared + PAGE, "shared") == 0 && private[PAGE] == 0 && shared[0] == 0, "/dev/zero");
    pid_t child = fidelity_fork();
    if (child == 0) {
        shared[0] = 'c';
        _exit(0);
    }
    fidelity_expect_exit(child, 0);
    CHECK(shared[0] == 'c', "the shared mapping of /dev/zero is not shared");
    CHECK(strcmp(beyond, "file") == 0 && fault_at(beyond + PAGE) == SIGBUS && fault_at(beyond_private + 2 * PAGE) == SIGBUS, "beyond the end");
    MUST(ftruncate(file, 4 * PAGE));
    CHECK(fault_at(beyond + PAGE) == 0 && beyond[3 * PAGE] == 0, "the mapping does not follow the file when it grows");
    fidelity_pass();
}
