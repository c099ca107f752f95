/* A tree in /dev/shm: any depth, every type of file, hard links, sparse files, owners, modes, times, attributes and inode numbers. */
#include "fidelity.h"

#include <limits.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>

#define TREE "/dev/shm/fidelity-tree"
#define DEPTH 300
#define SPARSE (3ll << 30)

static struct { const char *name; struct stat st; } kept[] = {
    { TREE, {} }, { TREE "/file", {} }, { TREE "/link", {} }, { TREE "/hard", {} }, { TREE "/fifo", {} }, { TREE "/null", {} },
    { TREE "/sparse", {} }, { TREE "/directory", {} }, { TREE "/directory/inner", {} }, { TREE "/line\nbreak", {} }, { TREE "/odd name)", {} },
};
#define KEPT (int)(sizeof kept / sizeof *kept)

static void make_file(const char *path, const char *text, mode_t mode)
{
    int fd = MUST(open(path, O_WRONLY | O_CREAT | O_EXCL, 0600));
    MUST((int)write(fd, text, strlen(text)));
    MUST(fchmod(fd, mode));
    close(fd);
}

/* A chain of directories whose path is longer than any path that the kernel takes. */
static void walk_down(bool make)
{
    char name[40];
    MUST(chdir(TREE));
    for (int i = 0; i < DEPTH; i++) {
        snprintf(name, sizeof name, "level-%d-of-a-very-deep-tree", i);
        if (make)
            MUST(mkdir(name, 0700));
        MUST(chdir(name));
    }
}

static const struct sockaddr_un address = { AF_UNIX, TREE "/directory/served" };

static void make_tree(void)
{
    struct timespec times[2] = { { 1000000001, 5 }, { 1000000002, 7 } };
    MUST(mkdir(TREE, 0755));
    make_file(TREE "/unlinked", "", 0600);
    make_file(TREE "/file", "content", 04750);
    MUST(unlink(TREE "/unlinked"));
    MUST(symlink("/nowhere/at/all", TREE "/link"));
    MUST(link(TREE "/file", TREE "/hard"));
    MUST(mkfifo(TREE "/fifo", 0620));
    MUST(mknod(TREE "/null", S_IFCHR | 0666, makedev(1, 3)));
    int fd = MUST(open(TREE "/sparse", O_RDWR | O_CREAT, 0600));
    MUST(ftruncate(fd, SPARSE));
    MUST((int)pwrite(fd, "middle", 6, SPARSE / 2));
    close(fd);
    MUST(mkdir(TREE "/directory", 0700));
    make_file(TREE "/directory/inner", "inner", 0444);
    MUST(lchown(TREE "/directory/inner", 1234, 4321));
    make_file(TREE "/line\nbreak", "a", 0600);
    make_file(TREE "/odd name)", "b", 0600);
    MUST(setxattr(TREE "/file", "user.colour", "green", 5, 0));
    int server = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    MUST(bind(server, (const struct sockaddr *)&address, sizeof address));
    MUST(listen(server, 1));
    walk_down(true);
    make_file("bottom", "deep", 0600);
    MUST(chdir("/"));
    for (int i = 0; i < KEPT; i++)
        MUST(utimensat(AT_FDCWD, kept[i].name, times, AT_SYMLINK_NOFOLLOW));
    for (int i = 0; i < KEPT; i++)
        MUST(lstat(kept[i].name, &kept[i].st));
}

static void check_same(const char *name, const struct stat *was)
{
    struct stat st;
    MUST(lstat(name, &st));
    CHECK(st.st_ino == was->st_ino, "%s: inode %lu, was %lu", name, st.st_ino, was->st_ino);
    CHECK(st.st_mode == was->st_mode && st.st_uid == was->st_uid && st.st_gid == was->st_gid, "%s: mode %o", name, st.st_mode);
    CHECK(st.st_nlink == was->st_nlink && st.st_size == was->st_size && st.st_rdev == was->st_rdev, "%s: %lu links, size %ld", name,
          st.st_nlink, st.st_size);
    CHECK(st.st_mtim.tv_sec == was->st_mtim.tv_sec && st.st_mtim.tv_nsec == was->st_mtim.tv_nsec, "%s: changed at %ld", name, st.st_mtim.tv_sec);
    CHECK(st.st_atim.tv_sec == was->st_atim.tv_sec, "%s: read at %ld", name, st.st_atim.tv_sec);
    CHECK(st.st_blocks == was->st_blocks, "%s: %ld blocks, had %ld", name, st.st_blocks, was->st_blocks);
}

static void check_content(void)
{
    char text[64] = "";
    CHECK(strcmp(fidelity_file(TREE "/file"), "content") == 0, "the file holds '%s'", fidelity_file(TREE "/file"));
    CHECK(strcmp(fidelity_file(TREE "/directory/inner"), "inner") == 0, "the inner file differs");
    MUST((int)readlink(TREE "/link", text, sizeof text - 1));
    CHECK(strcmp(text, "/nowhere/at/all") == 0, "the link leads to %s", text);
    memset(text, 0, sizeof text);
    CHECK(getxattr(TREE "/hard", "user.colour", text, sizeof text) == 5 && strcmp(text, "green") == 0, "the attribute is '%s'", text);
    int fd = MUST(open(TREE "/sparse", O_RDONLY));
    CHECK(pread(fd, text, 6, SPARSE / 2) == 6 && memcmp(text, "middle", 6) == 0, "the sparse file differs");
    close(fd);
    walk_down(false);
    CHECK(strcmp(fidelity_file("bottom"), "deep") == 0, "the deepest file differs");
    MUST(chdir("/"));
}

int main(void)
{
    umask(0);
    make_tree();
    int open_directory = MUST(open(TREE "/directory", O_RDONLY | O_DIRECTORY)), open_link = MUST(open(TREE "/link", O_PATH | O_NOFOLLOW));
    fidelity_ready();
    fidelity_await_go();

    for (int i = 0; i < KEPT; i++)
        if (!fidelity_in_branch() || strcmp(kept[i].name, TREE "/directory"))
            check_same(kept[i].name, &kept[i].st);  /* (binding its socket anew changed that directory) */
    check_content();
    struct stat st;
    MUST(fstat(open_directory, &st));
    CHECK(st.st_ino == kept[7].st.st_ino, "the open directory is another");
    MUST(fstat(open_link, &st));
    CHECK(S_ISLNK(st.st_mode) && st.st_ino == kept[2].st.st_ino, "the open link is another");
    int client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    MUST(connect(client, (const struct sockaddr *)&address, sizeof address));
    MUST(mkdir(fidelity_in_branch() ? TREE "/of-branch" : TREE "/of-source", 0700));
    CHECK(access(fidelity_in_branch() ? TREE "/of-source" : TREE "/of-branch", F_OK) < 0, "the other side's directory is here");
    fidelity_pass();
}
