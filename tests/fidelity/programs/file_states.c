/* Less usual files: O_TMPFILE linked later, one name of two removed, a removed directory, how far a directory was read, huge offsets, a closed /proc file. */
#include "fidelity.h"

#include <dirent.h>

#define BASE "/tmp/fidelity-states"
#define ENTRIES 300

static void fill_directory(void)
{
    char path[64];
    MUST(mkdir(BASE "/many", 0755));
    for (int i = 0; i < ENTRIES; i++) {
        snprintf(path, sizeof path, BASE "/many/entry-with-a-long-name-%03d", i);
        close(MUST(open(path, O_WRONLY | O_CREAT, 0600)));
    }
}

static int read_entries(int fd, int most, bool *seen)
{
    char buffer[2048];
    int count = 0;
    for (long got; count < most && (got = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;) {
        for (long at = 0; at < got;) {
            struct dirent64 *entry = (struct dirent64 *)(buffer + at);
            int number;
            at += entry->d_reclen;
            if (sscanf(entry->d_name, "entry-with-a-long-name-%d", &number) != 1)
                continue;
            CHECK(!seen[number], "the entry %d comes twice", number);
            seen[number] = true;
            count++;
        }
    }
    return count;
}

int main(void)
{
    MUST(mkdir(BASE, 0755));
    fill_directory();
    static bool seen[ENTRIES];
    int many = MUST(open(BASE "/many", O_RDONLY | O_DIRECTORY)), first = read_entries(many, 40, seen);
    int unnamed = MUST(open(BASE, O_TMPFILE | O_RDWR, 0640));
    MUST((int)write(unnamed, "unnamed", 7));
    int linked = MUST(open(BASE "/one", O_RDWR | O_CREAT, 0600));
    MUST((int)write(linked, "linked", 6));
    MUST(link(BASE "/one", BASE "/two"));
    MUST(unlink(BASE "/one"));
    struct stat linked_before;
    MUST(fstat(linked, &linked_before));
    MUST(mkdir(BASE "/gone", 0750));
    int gone = MUST(open(BASE "/gone", O_RDONLY | O_DIRECTORY));
    pid_t inside = fidelity_fork();
    if (inside == 0) {
        char path[256];
        MUST(chdir(BASE "/gone"));
        MUST(rmdir(BASE "/gone"));
        fidelity_write("inside", "there");
        fidelity_await_go();
        CHECK(getcwd(path, sizeof path) == NULL && errno == ENOENT, "the removed working directory is %s", path);
        CHECK(open("new", O_WRONLY | O_CREAT, 0600) == -1 && errno == ENOENT, "a file can be made in a removed directory");
        _exit(0);
    }
    while (access("/tmp/fidelity/file_states.inside", F_OK) < 0)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    int huge = MUST(open(BASE "/huge", O_RDWR | O_CREAT, 0600));
    off_t far = (off_t)1 << 42;
    MUST(lseek(huge, far, SEEK_SET));
    uint64_t hint = 4 /* RWH_WRITE_LIFE_LONG */;
    MUST(fcntl(huge, F_SET_RW_HINT, &hint));
    pid_t ended = fidelity_fork();
    if (ended == 0)
        _exit(0);
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", ended);
    int of_dead = MUST(open(path, O_RDONLY));
    fidelity_expect_exit(ended, 0);
    int own = MUST(open("/proc/self/status", O_RDONLY)), system = MUST(open("/proc/version", O_RDONLY));
    MUST((int)read(own, text, 6));
    MUST((int)read(system, text, 6));

    fidelity_ready();
    fidelity_await_go();

    int rest = read_entries(many, ENTRIES, seen);
    CHECK(first + rest == ENTRIES, "%d entries were read before and %d after, of %d", first, rest, ENTRIES);
    MUST(lseek(many, 0, SEEK_SET));
    memset(seen, 0, sizeof seen);
    CHECK(read_entries(many, 100000, seen) == ENTRIES, "the directory read again differs");
    snprintf(path, sizeof path, "/proc/self/fd/%d", unnamed);
    MUST(linkat(AT_FDCWD, path, AT_FDCWD, BASE "/named", AT_SYMLINK_FOLLOW));
    int named = MUST(open(BASE "/named", O_RDONLY));
    CHECK(read(named, text, sizeof text) == 7 && memcmp(text, "unnamed", 7) == 0, "the file made by O_TMPFILE is empty");
    struct stat one, two;
    MUST(fstat(linked, &one));
    MUST(stat(BASE "/two", &two));
    CHECK(one.st_ino == two.st_ino && one.st_ino == linked_before.st_ino, "the file with one name removed has inode %lu, its other name %lu", one.st_ino, two.st_ino);
    CHECK(pwrite(linked, "L", 1, 0) == 1 && (named = open(BASE "/two", O_RDONLY)) >= 0 && read(named, text, 6) == 6 && memcmp(text, "Linked", 6) == 0,
          "what is written by the descriptor does not reach the other name");
    MUST(fstat(gone, &one));
    CHECK(one.st_nlink == 0 && S_ISDIR(one.st_mode) && (one.st_mode & 0777) == 0750, "the removed directory: links %lu, mode %o", one.st_nlink, one.st_mode);
    fidelity_expect_exit(inside, 0);
    CHECK(lseek(huge, 0, SEEK_CUR) == far, "the offset is %ld", lseek(huge, 0, SEEK_CUR));
    hint = 0;
    MUST(fcntl(huge, F_GET_RW_HINT, &hint));
    CHECK(hint == 4, "the write hint is %lu", hint);
    CHECK(read(of_dead, text, sizeof text) == -1 && errno == ESRCH, "the stat file of a dead process can be read: %s", strerror(errno));
    CHECK(lseek(own, 0, SEEK_CUR) == 6 && read(own, text, 12) == 12, "the offset in /proc is lost");
    CHECK(lseek(system, 0, SEEK_CUR) == 6, "the offset in /proc/version is lost");
    fidelity_pass();
}
