/*
 * A FUSE server that lets its client open one file and from then on never answers: whoever asks for anything of the file system waits for ever.
 * With "detached" the mount is taken away again, and only the client's descriptor leads to it. With a second argument "late" all this comes when it is told
 * to: between the look at a workspace that runs and its freeze.
 */
#include "../programs/fidelity.h"

#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>

#define FILE_NODE 2

static void put(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY));
    MUST((int)write(fd, text, strlen(text)));
    close(fd);
}

static void answer(int fuse, uint64_t unique, const void *body, size_t size)
{
    char reply[512];
    struct fuse_out_header header = { .len = (uint32_t)(sizeof header + size), .unique = unique };
    memcpy(reply, &header, sizeof header);
    memcpy(reply + sizeof header, body, size);
    MUST((int)write(fuse, reply, header.len));
}

static const char *mount_point = "/tmp/fuse-mount";

static struct fuse_attr attributes(uint64_t node)
{
    return (struct fuse_attr){ .ino = node, .mode = node == FILE_NODE ? S_IFREG | 0644 : S_IFDIR | 0755, .nlink = 1, .size = 5, .blksize = 4096 };
}

/* Returns false once the file is open. */
static bool serve(int fuse)
{
    static char request[1 << 20];
    MUST((int)read(fuse, request, sizeof request));
    const struct fuse_in_header *in = (const struct fuse_in_header *)request;
    struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = 4096 };
    struct fuse_entry_out entry = { .nodeid = FILE_NODE, .attr = attributes(FILE_NODE) };
    struct fuse_attr_out attr = { .attr = attributes(in->nodeid) };
    struct fuse_open_out opened = { .fh = 1 };
    switch (in->opcode) {
    case FUSE_INIT: answer(fuse, in->unique, &init, sizeof init); return true;
    case FUSE_LOOKUP: answer(fuse, in->unique, &entry, sizeof entry); return true;
    case FUSE_GETATTR: answer(fuse, in->unique, &attr, sizeof attr); return true;
    case FUSE_OPEN: answer(fuse, in->unique, &opened, sizeof opened); return false;
    default: return true;
    }
}

static void client(bool detached, int ready)
{
    char file[64];
    snprintf(file, sizeof file, "%s/file", mount_point);
    MUST(open(file, O_RDONLY));
    if (detached)
        MUST(umount2(mount_point, MNT_DETACH));
    MUST((int)write(ready, "r", 1));
    pause();
}

int main(int argc, char **argv)
{
    char options[128], byte;
    int ready[2];
    mkdir(FIDELITY_DIRECTORY, 0777);
    if (argc > 1 && strcmp(argv[1], "newline") == 0)
        mount_point = "/tmp/fuse\nmount";
    bool late = argc > 2 && strcmp(argv[2], "late") == 0;
    if (late)
        fidelity_ready();
    while (late && access(FIDELITY_DIRECTORY "late", F_OK) < 0)
        fidelity_sleep_ms(1);
    mkdir(mount_point, 0755);
    umask(0);
    MUST(mknod("/tmp/fuse-device", S_IFCHR | 0666, makedev(10, 229)));
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWNS));
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", "0 0 1");
    put("/proc/self/gid_map", "0 0 1");
    int fuse = MUST(open("/tmp/fuse-device", O_RDWR | O_CLOEXEC));
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    MUST(mount("silent", mount_point, "fuse", MS_NOSUID | MS_NODEV, options));
    MUST(pipe(ready));
    if (fidelity_fork() == 0) {
        close(fuse);
        client(argc > 1 && strcmp(argv[1], "detached") == 0, ready[1]);
    }
    while (serve(fuse))
        ;
    MUST((int)read(ready[0], &byte, 1));
    if (late)
        fidelity_write("late", "late");
    else
        fidelity_ready();
    for (;;)
        pause();
}
