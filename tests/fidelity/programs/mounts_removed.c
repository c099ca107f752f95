/*
 * Files on a tmpfs of a mount namespace made inside that lost a name: open and mapped ones with another name left, ones without any, whose name is another
 * file's now, or whose directory has gone, too. Each stays on the mount and the file system where it was, and its other name still leads to it.
 */
#include "mounts.h"

#define HERE "/tmp/fidelity-mounts-removed"
#define PAGE 4096

static int mount_of(int fd)
{
    struct statx st;
    MUST(statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &st));
    return (int)st.stx_mnt_id;
}

static void expect_text(int fd, const char *text)
{
    char found[64] = "";
    MUST(pread(fd, found, sizeof found - 1, 0));
    CHECK(strcmp(found, text) == 0, "'%s' instead of '%s'", found, text);
}

/* It lies where the mount is, and has so many names. */
static struct stat expect_place(int fd, const char *place, nlink_t names)
{
    struct stat st, directory;
    int at = MUST(open(place, O_PATH | O_DIRECTORY));
    MUST(fstat(fd, &st));
    MUST(fstat(at, &directory));
    CHECK(st.st_dev == directory.st_dev, "a file of %s is in another file system", place);
    CHECK(mount_of(fd) == mount_of(at), "a file of %s is on mount %d instead of %d", place, mount_of(fd), mount_of(at));
    CHECK(st.st_nlink == names, "a file of %s has %lu names", place, (unsigned long)st.st_nlink);
    close(at);
    return st;
}

static void expect_link(int fd, const char *wanted)
{
    char path[64], link[256] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    MUST(readlink(path, link, sizeof link - 1));
    CHECK(strcmp(link, wanted) == 0, "'%s' instead of '%s'", link, wanted);
}

static int make_open(const char *path, const char *text, int flags)
{
    make_file(path, text, 0640);
    return MUST(open(path, flags));
}

/* A text that the branch and the source write differently. */
static const char *own_text(void)
{
    return fidelity_in_branch() ? "written in branch" : "written in source";
}

int main(void)
{
    enter_namespaces(0);
    MUST(mkdir(HERE, 0755));
    MUST(mount("removed", HERE, "tmpfs", 0, NULL));
    MUST(mkdir(HERE "/sub", 0755));
    MUST(mkdir(HERE "/view", 0755));
    MUST(mount(HERE "/sub", HERE "/view", NULL, MS_BIND, NULL));

    int linked = make_open(HERE "/linked", "two names", O_RDWR);
    MUST(link(HERE "/linked", HERE "/sub/other"));
    MUST(unlink(HERE "/linked"));
    int bound = make_open(HERE "/view/bound", "through a bind mount", O_RDWR | O_APPEND);
    MUST(link(HERE "/view/bound", HERE "/view/bound-other"));
    MUST(unlink(HERE "/view/bound"));
    int reader = make_open(HERE "/alone", "no name", O_RDONLY), writer = MUST(open(HERE "/alone", O_RDWR));
    MUST(unlink(HERE "/alone"));
    int reused = make_open(HERE "/reused", "the old one", O_RDWR);
    MUST(unlink(HERE "/reused"));
    make_file(HERE "/reused", "the new one", 0600);
    MUST(mkdir(HERE "/gone", 0755));
    int homeless = make_open(HERE "/gone/file", "no directory either", O_RDWR);
    MUST(unlink(HERE "/gone/file"));
    MUST(rmdir(HERE "/gone"));
    int seen = make_open(HERE "/view/seen", "removed through a bind mount", O_RDWR);
    MUST(unlink(HERE "/sub/seen"));
    int backing = MUST(open(HERE "/mapped", O_RDWR | O_CREAT, 0600));
    MUST(ftruncate(backing, PAGE));
    char *mapped = MUST(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, backing, 0));
    strcpy(mapped, "mapped");
    close(backing);
    MUST(link(HERE "/mapped", HERE "/mapped-other"));
    MUST(unlink(HERE "/mapped"));
    struct stat linked_before, before;
    MUST(fstat(linked, &linked_before));
    MUST(stat(HERE "/mapped-other", &before));

    fidelity_ready();
    fidelity_await_go();

    struct stat st = expect_place(linked, HERE, 1), other;
    MUST(stat(HERE "/sub/other", &other));
    CHECK(st.st_ino == other.st_ino && st.st_ino == linked_before.st_ino, "the other name leads elsewhere");
    MUST(pwrite(linked, own_text(), strlen(own_text()), 0));
    CHECK(strcmp(fidelity_file(HERE "/sub/other"), own_text()) == 0, "what is written does not arrive under the other name");
    expect_place(bound, HERE "/view", 1);
    MUST(write(bound, ", longer", 8));
    CHECK(strcmp(fidelity_file(HERE "/sub/bound-other"), "through a bind mount, longer") == 0, "what is appended does not arrive under the other name");

    expect_place(reader, HERE, 0);
    expect_text(reader, "no name");
    expect_link(reader, HERE "/alone (deleted)");
    MUST(pwrite(writer, own_text(), strlen(own_text()), 0));
    expect_text(reader, own_text());
    expect_place(reused, HERE, 0);
    expect_text(reused, "the old one");
    CHECK(strcmp(fidelity_file(HERE "/reused"), "the new one") == 0, "the name leads to another file");
    expect_place(homeless, HERE, 0);
    expect_text(homeless, "no directory either");
    CHECK(access(HERE "/gone", F_OK) < 0, "the directory is there again");
    expect_place(seen, HERE "/view", 0);
    expect_text(seen, "removed through a bind mount");

    MUST(stat(HERE "/mapped-other", &other));
    CHECK(other.st_ino == before.st_ino && strcmp(fidelity_file(HERE "/mapped-other"), "mapped") == 0, "what was mapped is lost under its other name");
    strcpy(mapped, own_text());
    CHECK(strcmp(fidelity_file(HERE "/mapped-other"), own_text()) == 0, "what is written to memory does not arrive under the other name");
    MUST(munmap(mapped, PAGE));
    int fds[] = { linked, bound, reader, writer, reused, homeless, seen };
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        close(fds[i]);
    MUST(umount(HERE "/view"));
    MUST(umount(HERE));
    fidelity_pass();
}
