/*
 * Directories without a name: the working directory, an open one, both the same; one whose name another directory has now; a mapped file in one; and the
 * directories that a process which has ended had in /proc.
 */
#include "fidelity.h"

#define HERE "/tmp/fidelity-removed"

/* The kernel may or may not say that it is deleted. */
static void check_link(const char *link, const char *expected)
{
    char text[256] = "";
    ssize_t length = readlink(link, text, sizeof text - 1);
    char *end = strstr(text, " (deleted)");
    if (end)
        *end = 0;
    CHECK(length > 0 && strncmp(text, "/proc/", 6) == 0 && strcmp(text + 6 + strspn(text + 6, "0123456789"), expected) == 0, "%s is %s", link, text);
}

/* A process that stands in `place` of one that has ended. */
static pid_t stand_in_dead(const char *place)
{
    int ready[2];
    MUST(pipe(ready));
    pid_t stander = fidelity_fork();
    if (stander)
        return MUST((int)read(ready[0], (char[1]){ 0 }, 1)), close(ready[0]), close(ready[1]), stander;
    char path[64];
    pid_t ended = fidelity_fork();
    if (ended == 0)
        for (;;)
            pause();
    snprintf(path, sizeof path, "/proc/%d%s", ended, place);
    MUST(chdir(path));
    MUST(kill(ended, SIGKILL));
    MUST(waitpid(ended, NULL, 0));
    MUST((int)write(ready[1], "r", 1));
    fidelity_await_go();
    check_link("/proc/self/cwd", place);
    CHECK(access("status", F_OK) < 0 && access("0", F_OK) < 0, "somebody lives where the process stands");
    CHECK(chdir("/") == 0, "it cannot leave");
    _exit(0);
}

int main(void)
{
    pid_t in_process = stand_in_dead(""), in_descriptors = stand_in_dead("/fdinfo");
    umask(0);
    MUST(mkdir(HERE, 0755));
    MUST(mkdir(HERE "/cwd", 0711));
    MUST(mkdir(HERE "/open", 0700));
    MUST(mkdir(HERE "/deep", 0700));
    MUST(mkdir(HERE "/deep/down", 0755));
    MUST(chdir(HERE "/cwd"));
    int same = MUST(open(".", O_RDONLY | O_DIRECTORY)), other = MUST(open(HERE "/open", O_RDONLY | O_DIRECTORY));
    int deep = MUST(open(HERE "/deep/down", O_PATH | O_DIRECTORY)), file = MUST(open(HERE "/deep/down/file", O_RDWR | O_CREAT, 0600));
    MUST((int)write(file, "kept", 4));
    MUST(unlink(HERE "/deep/down/file"));
    MUST(rmdir(HERE "/cwd"));
    MUST(rmdir(HERE "/open"));
    MUST(rmdir(HERE "/deep/down"));
    MUST(rmdir(HERE "/deep"));
    MUST(mkdir(HERE "/open", 0755));
    close(MUST(open(HERE "/open/here", O_WRONLY | O_CREAT, 0600)));
    fidelity_ready();
    fidelity_await_go();

    char text[256] = "";
    struct stat st, cwd;
    CHECK(!getcwd(text, sizeof text) && errno == ENOENT, "the working directory has the name %s", text);
    MUST(stat(".", &cwd));
    MUST(fstat(same, &st));
    CHECK(S_ISDIR(cwd.st_mode) && (cwd.st_mode & 0777) == 0711, "the mode of the working directory is %o", cwd.st_mode);
    CHECK(st.st_ino == cwd.st_ino, "the open directory is not the working directory any more");
    CHECK(open("new", O_WRONLY | O_CREAT, 0600) < 0 && errno == ENOENT, "a removed directory takes files: %s", strerror(errno));
    CHECK(faccessat(other, "here", F_OK, 0) < 0, "an open directory is another one that has its name now");
    CHECK(access(HERE "/open/here", F_OK) == 0, "the directory that has the name now is gone");
    MUST(fstat(deep, &st));
    CHECK(S_ISDIR(st.st_mode) && (fcntl(deep, F_GETFL) & O_PATH), "the handle of a directory differs");
    CHECK(pread(file, text, 4, 0) == 4 && memcmp(text, "kept", 4) == 0, "the file of a removed directory is lost");
    CHECK(access(HERE "/cwd", F_OK) < 0 && access(HERE "/deep", F_OK) < 0, "a removed directory is back");
    MUST(chdir("/"));
    fidelity_expect_exit(in_process, 0);
    fidelity_expect_exit(in_descriptors, 0);
    fidelity_pass();
}
