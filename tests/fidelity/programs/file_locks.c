/* Record locks, flock and OFD locks are held in a branch as in the source: a second taker is refused, until the holder lets go. */
#include "fidelity.h"

#include <fcntl.h>
#include <sys/file.h>

#define LOCKED_PATH "/tmp/fidelity/file_locks.data"

static int record_lock(int fd, int command, short type, off_t start, off_t length)
{
    struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
    return fcntl(fd, command, &lock);
}

/* In a process of its own, since a process never conflicts with its own record locks. */
static int others_may_lock(off_t start, short type)
{
    pid_t child = fidelity_fork();
    if (child == 0) {
        int fd = open(LOCKED_PATH ".record", O_RDWR);
        _exit(fd >= 0 && record_lock(fd, F_SETLK, type, start, 1) == 0 ? 0 : 1);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int open_locked(const char *suffix)
{
    char path[128];
    snprintf(path, sizeof path, "%s%s", LOCKED_PATH, suffix);
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    MUST(fd);
    return fd;
}

/* A lock whose taker has closed the file: only its child has it open. The child tells who is said to hold it. */
static pid_t start_heir(int *leave)
{
    int inherited = open_locked(".inherited"), ends[2];
    MUST(pipe(ends));
    *leave = ends[1];
    MUST(flock(inherited, LOCK_EX));
    pid_t parent = getpid(), heir = fidelity_fork();
    if (heir == 0) {
        fidelity_await_go();
        char path[64], *held;
        int taker = 0;
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", inherited);
        held = strstr(fidelity_file(path), "FLOCK");
        CHECK(held && sscanf(held, "FLOCK ADVISORY WRITE %d", &taker) == 1 && taker == parent, "pid %d holds the lock it passed on, it is said", taker);
        close(ends[1]);
        _exit(read(ends[0], path, 1) == 0 ? 0 : 1);
    }
    close(inherited);
    close(ends[0]);
    return heir;
}

int main(void)
{
    int leave;
    pid_t heir = start_heir(&leave);
    int record = open_locked(".record"), whole = open_locked(".flock"), description = open_locked(".ofd");
    MUST(record_lock(record, F_SETLK, F_WRLCK, 10, 10));
    MUST(record_lock(record, F_SETLK, F_RDLCK, 100, 0));
    MUST(flock(whole, LOCK_EX));
    int directory = MUST(open("/tmp/fidelity", O_RDONLY | O_DIRECTORY));
    MUST(flock(directory, LOCK_SH));
    MUST(record_lock(description, F_OFD_SETLK, F_WRLCK, 5, 5));
    fidelity_ready();
    fidelity_await_go();

    CHECK(!others_may_lock(10, F_RDLCK) && !others_may_lock(19, F_WRLCK), "the written range 10-19 is not locked");
    CHECK(others_may_lock(9, F_WRLCK) && others_may_lock(20, F_WRLCK), "more than the range 10-19 is locked");
    CHECK(others_may_lock(500, F_RDLCK) && !others_may_lock(500, F_WRLCK), "the shared lock up to the end of the file is lost");
    int second = open_locked(".flock");
    CHECK(flock(second, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK, "a second flock was granted");
    int again = MUST(open("/tmp/fidelity", O_RDONLY | O_DIRECTORY));
    CHECK(flock(again, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK, "the directory is not locked");
    char path[64], *held;
    int taker = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", whole);
    held = strstr(fidelity_file(path), "FLOCK");
    CHECK(held && sscanf(held, "FLOCK ADVISORY WRITE %d", &taker) == 1 && taker == getpid(), "pid %d holds the flock, it is said", taker);
    int other = open_locked(".ofd");
    CHECK(record_lock(other, F_OFD_SETLK, F_WRLCK, 7, 1) == -1 && (errno == EAGAIN || errno == EACCES), "a second OFD lock was granted");
    CHECK(record_lock(other, F_OFD_SETLK, F_WRLCK, 0, 5) == 0, "the OFD lock covers more than its range");
    int third = open_locked(".inherited");
    CHECK(flock(third, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK, "the lock that was passed on is lost");
    close(leave);
    fidelity_expect_exit(heir, 0);
    CHECK(flock(third, LOCK_EX | LOCK_NB) == 0, "the lock outlives whom it was passed on to");

    MUST(record_lock(record, F_SETLK, F_UNLCK, 0, 0));
    MUST(flock(whole, LOCK_UN));
    MUST(record_lock(description, F_OFD_SETLK, F_UNLCK, 0, 0));
    CHECK(others_may_lock(10, F_WRLCK), "the range cannot be unlocked");
    CHECK(flock(second, LOCK_EX | LOCK_NB) == 0, "the flock cannot be given up");
    CHECK(record_lock(other, F_OFD_SETLK, F_WRLCK, 7, 1) == 0, "the OFD lock cannot be given up");
    fidelity_pass();
}
