/* Sealed memfds mapped in every way, executable and non-executable ones, mappings that can never be made writable, mappings sealed by mseal. */
#include "memory.h"

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x20
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x8
#define MFD_EXEC 0x10
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

#define SIZE (8 * PAGE)

static int object(const char *name, unsigned flags, char fill)
{
    int fd = MUST(memfd_create(name, MFD_CLOEXEC | flags));
    char page[PAGE];
    memset(page, fill, sizeof page);
    for (int i = 0; i < 8; i++)
        MUST((int)write(fd, page, sizeof page));
    return fd;
}

static char *map(int fd, int protection, int flags)
{
    char *area = mmap(NULL, SIZE, protection, flags, fd, 0);
    CHECK(area != MAP_FAILED, "mmap: %s", strerror(errno));
    return area;
}

static int reopened(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return MUST(open(path, O_RDONLY | O_CLOEXEC));
}

static bool can_be_writable(char *area)
{
    bool can = mprotect(area, SIZE, PROT_READ | PROT_WRITE) == 0;
    if (can)
        MUST(mprotect(area, SIZE, PROT_READ));
    return can;
}

/* A memfd that was never opened but only made can be executed although the program holds it writable. */
static int script(void)
{
    static const char text[] = "#!/bin/busybox true\n";
    int fd = MUST(memfd_create("fidelity-script", 0));
    MUST((int)write(fd, text, sizeof text - 1));
    return fd;
}

static bool runs(int fd)
{
    char *arguments[] = { "script", NULL };
    pid_t child = fidelity_fork();
    if (child == 0) {
        syscall(SYS_execveat, fd, "", arguments, arguments + 1, AT_EMPTY_PATH);
        _exit(errno);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return status == 0;
}

int main(void)
{
    int written = object("fidelity-seal-write", MFD_ALLOW_SEALING, 'w'), future = object("fidelity-seal-future", MFD_ALLOW_SEALING, 'f');
    MUST(fcntl(written, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK));
    char *of_written = map(reopened(written), PROT_READ, MAP_SHARED), *private = map(written, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    private[0] = 'p';
    char *by_writer = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, written, 0);      /* allowed since Linux 6.7 */
    if (by_writer == MAP_FAILED)
        by_writer = of_written;
    char *writer = map(future, PROT_READ | PROT_WRITE, MAP_SHARED);
    MUST(fcntl(future, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_GROW | F_SEAL_SEAL));
    char *late_reader = map(reopened(future), PROT_READ, MAP_SHARED);

    int code = object("fidelity-code", MFD_ALLOW_SEALING | MFD_EXEC, '\xc3');   /* ret */
    char *executable = map(code, PROT_READ | PROT_EXEC, MAP_PRIVATE);
    int noexec = memfd_create("fidelity-noexec", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    bool knows_noexec = noexec >= 0;
    if (knows_noexec)
        MUST(ftruncate(noexec, SIZE));
    char *noexec_map = knows_noexec ? map(noexec, PROT_READ | PROT_WRITE, MAP_SHARED) : writer;
    int named = MUST(open("/dev/shm/fidelity-readers", O_RDWR | O_CREAT | O_TRUNC, 0600));
    MUST(ftruncate(named, SIZE));
    char *reader = map(MUST(open("/dev/shm/fidelity-readers", O_RDONLY | O_CLOEXEC)), PROT_READ, MAP_SHARED);
    char *closed_for_ever = apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    strcpy(closed_for_ever, "sealed mapping");
    MUST(mprotect(closed_for_ever, SIZE, PROT_READ));
    bool sealed = syscall(SYS_mseal, closed_for_ever, SIZE, 0) == 0;
    int program = script();
    bool ran = runs(program);
    struct expected expected[] = {
        expect_unchanged("write-sealed", of_written), expect_unchanged("write-sealed, by a writer", by_writer),
        expect_unchanged("write-sealed, private", private), expect_unchanged("future-sealed, writable", writer),
        expect_unchanged("future-sealed, reader", late_reader), expect_unchanged("executable", executable),
        expect_unchanged("not executable", noexec_map), expect_unchanged("opened for reading", reader),
        expect_unchanged("mseal", closed_for_ever),
    };

    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, sizeof expected / sizeof *expected);
    CHECK(fcntl(written, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK), "seals %x", fcntl(written, F_GET_SEALS));
    CHECK(fcntl(future, F_GET_SEALS) == (F_SEAL_FUTURE_WRITE | F_SEAL_GROW | F_SEAL_SEAL), "seals %x", fcntl(future, F_GET_SEALS));
    CHECK(of_written[5] == 'w' && by_writer[SIZE - 1] == 'w' && private[0] == 'p' && private[1] == 'w' && late_reader[0] == 'f', "content");
    CHECK(write(written, "x", 1) < 0 && errno == EPERM && write(future, "x", 1) < 0 && errno == EPERM, "a sealed memfd can be written");
    CHECK(!can_be_writable(of_written) && !can_be_writable(by_writer) && !can_be_writable(late_reader) && !can_be_writable(reader),
          "a mapping for reading can be made writable");
    char side = fidelity_in_branch() ? 'B' : 'S';
    writer[1] = side;
    CHECK(late_reader[1] == side && late_reader[2] == 'f', "the writable mapping of the sealed memfd is not shared");
    ((void (*)(void))executable)();
    CHECK(lseek(program, 0, SEEK_CUR) == 20, "the offset of the executed memfd is %ld", (long)lseek(program, 0, SEEK_CUR));
    CHECK(runs(program) == ran, "the memfd cannot be executed any more");
    if (knows_noexec) {
        struct stat st;
        MUST(fstat(noexec, &st));
        CHECK(fcntl(noexec, F_GET_SEALS) & F_SEAL_EXEC && !(st.st_mode & 0111), "the memfd can be made executable");
        CHECK(fchmod(noexec, 0777) < 0, "its seal has no effect");
    }
    if (sealed)
        CHECK(mprotect(closed_for_ever, SIZE, PROT_NONE) < 0 && munmap(closed_for_ever, SIZE) < 0, "mseal has no effect");
    CHECK(strcmp(closed_for_ever, "sealed mapping") == 0, "content of the sealed mapping");
    fidelity_pass();
}
