/* Devices opened by nodes of the workspace's own: one that has lost its name, one whose name another has now, one that is where it was; and the usual ones. */
#include "fidelity.h"

#include <sys/sysmacros.h>

#define BASE "/tmp/fidelity-nodes"

static const struct node {
    const char *name;
    int minor;                  /* of the memory devices */
    mode_t mode;
    uid_t owner;
    bool removed, replaced;
} nodes[] = {
    { "null", 3, 0700, 0, true, false },
    { "zero", 5, 0640, 1000, true, true },
    { "full", 7, 0666, 1000, false, false },
};
#define NODES (int)(sizeof nodes / sizeof *nodes)

static int open_node(const struct node *node, struct stat *st)
{
    char path[64];
    snprintf(path, sizeof path, BASE "/%s", node->name);
    MUST(mknod(path, S_IFCHR | node->mode, makedev(1, (unsigned)node->minor)));
    MUST(chown(path, node->owner, node->owner));
    int fd = MUST(open(path, O_RDWR | O_APPEND));
    if (node->removed)
        MUST(unlink(path));
    if (node->replaced)
        close(MUST(open(path, O_WRONLY | O_CREAT | O_EXCL, 0600)));
    MUST(fstat(fd, st));
    return fd;
}

static void check_node(const struct node *node, int fd, const struct stat *before)
{
    struct stat st;
    char path[64];
    MUST(fstat(fd, &st));
    CHECK(st.st_mode == before->st_mode && st.st_rdev == before->st_rdev, "%s is now %o, device %lx", node->name, st.st_mode, (long)st.st_rdev);
    CHECK(st.st_uid == node->owner && st.st_gid == node->owner, "%s belongs to %u", node->name, st.st_uid);
    CHECK(st.st_nlink == before->st_nlink, "%s has %lu names", node->name, (long)st.st_nlink);
    CHECK((fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND)) == (O_RDWR | O_APPEND), "%s: flags %x", node->name, fcntl(fd, F_GETFL));
    snprintf(path, sizeof path, BASE "/%s", node->name);
    int named = stat(path, &st);
    CHECK((named == 0) == (!node->removed || node->replaced), "%s: its name is there or not", node->name);
    CHECK(named < 0 || node->removed || st.st_ino == before->st_ino, "%s: another node has its name", node->name);
}

int main(void)
{
    umask(0);
    MUST(mkdir(BASE, 0755));
    int fds[NODES], usual = MUST(open("/dev/null", O_WRONLY));
    struct stat before[NODES], st;
    for (int i = 0; i < NODES; i++)
        fds[i] = open_node(&nodes[i], &before[i]);
    fidelity_ready();
    fidelity_await_go();
    for (int i = 0; i < NODES; i++)
        check_node(&nodes[i], fds[i], &before[i]);
    char bytes[4] = "full";
    CHECK(read(fds[0], bytes, 4) == 0 && read(fds[1], bytes, 4) == 4 && bytes[0] == 0, "what is read from the devices differs");
    CHECK(write(fds[2], "x", 1) < 0 && errno == ENOSPC, "the full device takes bytes");
    MUST(fstat(usual, &st));
    CHECK(S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3) && st.st_nlink == 1, "/dev/null is %o with %lu names", st.st_mode, (long)st.st_nlink);
    fidelity_pass();
}
