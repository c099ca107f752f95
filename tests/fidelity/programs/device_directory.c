/*
 * What a workspace keeps in its /dev: nodes in a directory, links, files open and closed, a fifo, a logger's socket with a message that nobody has read;
 * and what it has taken out of it or put in the place of.
 */
#include "fidelity.h"

#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#define HOME "/dev/fidelity"
#define TEXT "kept in /dev"

static struct sockaddr_un log_address(void)
{
    return (struct sockaddr_un){ .sun_family = AF_UNIX, .sun_path = "/dev/fidelity-log" };
}

static void write_file(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640));
    MUST(write(fd, text, strlen(text)));
    close(fd);
}

static void make_tree(void)
{
    MUST(mkdir(HOME, 0750));
    MUST(mknod(HOME "/tun", S_IFCHR | 0640, makedev(10, 200)));
    MUST(chown(HOME "/tun", 12, 34));
    MUST(mkfifo(HOME "/fifo", 0620));
    write_file(HOME "/file", TEXT);
    MUST(link(HOME "/file", HOME "/twin"));
    MUST(symlink("fidelity/file", "/dev/fidelity-link"));
    unlink("/dev/core");
    write_file("/dev/core", "no link any more");
}

static void check_tree(void)
{
    struct stat st, twin;
    char target[32] = "";
    MUST(stat(HOME "/tun", &st));
    CHECK(S_ISCHR(st.st_mode) && (st.st_mode & 07777) == 0640 && st.st_rdev == makedev(10, 200) && st.st_uid == 12 && st.st_gid == 34, "another node: mode %o, device %lx", st.st_mode, (long)st.st_rdev);
    MUST(stat(HOME, &st));
    CHECK(S_ISDIR(st.st_mode) && (st.st_mode & 07777) == 0750, "another directory: mode %o", st.st_mode);
    CHECK(readlink("/dev/fidelity-link", target, sizeof target - 1) == 13 && strcmp(target, "fidelity/file") == 0, "a link to %s", target);
    MUST(stat(HOME "/file", &st));
    MUST(stat(HOME "/twin", &twin));
    CHECK(st.st_ino == twin.st_ino && st.st_nlink == 2 && (st.st_mode & 07777) == 0640, "no other name of the same file: %lu links", (long)st.st_nlink);
    CHECK(strcmp(fidelity_file("/dev/fidelity-link"), TEXT) == 0, "other content");
    MUST(lstat("/dev/core", &st));
    CHECK(S_ISREG(st.st_mode) && strcmp(fidelity_file("/dev/core"), "no link any more") == 0, "what took the place of a link: mode %o", st.st_mode);
}

int main(void)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    make_tree();
    struct stat before, now;
    struct sockaddr_un log = log_address();
    char text[32] = "";
    MUST(stat("/dev/null", &before));
    int file = MUST(open(HOME "/file", O_RDWR | O_CLOEXEC)), fifo = MUST(open(HOME "/fifo", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    int removed = MUST(open(HOME "/removed", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    MUST(write(removed, "nameless", 8));
    MUST(unlink(HOME "/removed"));
    MUST(lseek(file, 5, SEEK_SET));
    MUST(write(fifo, "in the fifo", 11));
    int receiver = MUST(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), sender = MUST(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST(bind(receiver, (void *)&log, sizeof log));
    MUST(sendto(sender, "first", 5, 0, (void *)&log, sizeof log));

    fidelity_ready();
    fidelity_await_go();

    check_tree();
    MUST(stat("/dev/null", &now));
    CHECK(now.st_ino == before.st_ino && now.st_rdev == before.st_rdev && now.st_mode == before.st_mode, "another /dev/null: inode %lu instead of %lu", (long)now.st_ino, (long)before.st_ino);
    CHECK(lseek(file, 0, SEEK_CUR) == 5 && read(file, text, 2) == 2 && memcmp(text, TEXT + 5, 2) == 0, "an open file stands elsewhere");
    MUST(fstat(file, &before));
    MUST(stat(HOME "/file", &now));
    CHECK(before.st_ino == now.st_ino && before.st_dev == now.st_dev, "the open file is not the one of that name");
    CHECK(pread(removed, text, sizeof text, 0) == 8 && memcmp(text, "nameless", 8) == 0, "a file without a name is lost");
    CHECK(read(fifo, text, sizeof text) == 11 && memcmp(text, "in the fifo", 11) == 0, "the fifo has lost what was in it");
    MUST(sendto(sender, "second", 6, 0, (void *)&log, sizeof log));
    CHECK(recv(receiver, text, sizeof text, 0) == 5 && memcmp(text, "first", 5) == 0, "the first message is lost");
    CHECK(recv(receiver, text, sizeof text, 0) == 6 && memcmp(text, "second", 6) == 0, "the socket's name leads elsewhere");
    /* Branches go on first: the source must not see this. */
    if (fidelity_in_branch())
        MUST(pwrite(file, "CHANGED", 7, 0));
    fidelity_pass();
}
