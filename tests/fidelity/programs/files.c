/* Regular files: offsets shared by dup and fork but not by open, append mode, unlinked and grown ones, directories, O_PATH, /proc, devices. */
#include "fidelity.h"

#include <dirent.h>

static void check_link(int fd, const char *expected)
{
    char path[64], target[256] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    MUST((int)readlink(path, target, sizeof target - 1));
    CHECK(strcmp(target, expected) == 0, "descriptor %d is %s, expected %s", fd, target, expected);
}

int main(void)
{
    mkdir("/tmp/fidelity-files", 0755);
    MUST(chdir("/tmp/fidelity-files"));
    int first = MUST(open("data", O_RDWR | O_CREAT | O_TRUNC, 0600));
    MUST((int)write(first, "0123456789", 10));
    lseek(first, 3, SEEK_SET);
    int duplicate = MUST(dup(first)), own = MUST(open("data", O_RDONLY | O_CLOEXEC));
    lseek(own, 8, SEEK_SET);
    int high = MUST(fcntl(first, F_DUPFD, 700));
    int append = MUST(open("log", O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0600));
    MUST((int)write(append, "one ", 4));
    int unlinked = MUST(open("gone", O_RDWR | O_CREAT | O_TRUNC, 0640));
    MUST((int)write(unlinked, "still here", 10));
    MUST(unlink("gone"));
    int temporary = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (temporary >= 0)
        MUST((int)write(temporary, "nameless", 8));
    struct stat data_before, unlinked_before;
    fstat(first, &data_before);
    fstat(unlinked, &unlinked_before);
    int directory = MUST(open("/tmp/fidelity-files", O_RDONLY | O_DIRECTORY)), handle = MUST(open("data", O_PATH));
    int null = MUST(open("/dev/null", O_RDWR)), zero = MUST(open("/dev/zero", O_RDONLY)), random = MUST(open("/dev/urandom", O_RDONLY));
    int status = MUST(open("/proc/self/status", O_RDONLY));
    MUST(mkdir("empty", 0700));
    pid_t child = fidelity_fork();
    if (child == 0) {
        fidelity_await_go();
        for (int tries = 0; lseek(first, 0, SEEK_CUR) != 5 && tries < 500; tries++)
            fidelity_sleep_ms(5);
        _exit(lseek(first, 0, SEEK_CUR) == 5 ? 0 : 1);
    }
    fidelity_ready();
    fidelity_await_go();

    struct stat st;
    char text[32] = "";
    CHECK(lseek(first, 0, SEEK_CUR) == 3 && lseek(own, 0, SEEK_CUR) == 8, "offsets differ");
    CHECK(read(duplicate, text, 2) == 2 && strcmp(text, "34") == 0, "read '%s'", text);
    CHECK(lseek(first, 0, SEEK_CUR) == 5 && lseek(high, 0, SEEK_CUR) == 5, "dup does not share its offset any more");
    fidelity_expect_exit(child, 0);
    CHECK(fcntl(own, F_GETFD) == FD_CLOEXEC && fcntl(first, F_GETFD) == 0, "close-on-exec flags differ");
    CHECK((fcntl(append, F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE)) == (O_APPEND | O_NONBLOCK | O_WRONLY), "flags %x",
          fcntl(append, F_GETFL));
    lseek(append, 0, SEEK_SET);
    MUST((int)write(append, fidelity_in_branch() ? "branch" : "source", 6));
    CHECK(strcmp(fidelity_file("log"), fidelity_in_branch() ? "one branch" : "one source") == 0, "log is '%s'", fidelity_file("log"));
    fstat(first, &st);
    CHECK(st.st_ino == data_before.st_ino && st.st_dev != 0, "inode %lu became %lu", data_before.st_ino, st.st_ino);
    fstat(unlinked, &st);
    CHECK(st.st_nlink == 0 && st.st_size == 10 && (st.st_mode & 0777) == 0640, "the unlinked file: links %lu size %ld", st.st_nlink, st.st_size);
    memset(text, 0, sizeof text);
    CHECK(pread(unlinked, text, 10, 0) == 10 && strcmp(text, "still here") == 0 && lseek(unlinked, 0, SEEK_CUR) == 10, "'%s'", text);
    CHECK(access("gone", F_OK) < 0, "the unlinked file has a name again");
    memset(text, 0, sizeof text);
    if (temporary >= 0)
        CHECK(pread(temporary, text, 8, 0) == 8 && strcmp(text, "nameless") == 0, "O_TMPFILE: '%s'", text);
    check_link(directory, "/tmp/fidelity-files");
    CHECK(faccessat(directory, "empty", F_OK, 0) == 0, "nothing can be found through the directory");
    CHECK((fcntl(handle, F_GETFL) & O_PATH) && read(handle, text, 1) < 0 && errno == EBADF, "O_PATH is lost");
    fstat(handle, &st);
    CHECK(st.st_ino == data_before.st_ino, "the O_PATH descriptor is of another file");
    check_link(null, "/dev/null");
    CHECK(read(null, text, 4) == 0 && read(zero, text, 4) == 4 && text[0] == 0 && read(random, text, 4) == 4, "devices");
    char line[16] = "";
    CHECK(read(status, line, 9) == 9 && strncmp(line, "Name:\tfil", 9) == 0, "/proc/self/status starts with '%s'", line);
    char cwd[64];
    CHECK(getcwd(cwd, sizeof cwd) && strcmp(cwd, "/tmp/fidelity-files") == 0, "the working directory is %s", cwd);
    /* A branch's entries are not the source's. */
    MUST(mkdir(fidelity_in_branch() ? "of-branch" : "of-source", 0700));
    CHECK(access(fidelity_in_branch() ? "of-source" : "of-branch", F_OK) < 0, "the other side's directory is here");
    int entries = 0;
    DIR *listing = opendir(".");
    while (readdir(listing))
        entries++;
    CHECK(entries == 6, "%d entries, expected 6", entries);
    fidelity_pass();
}
