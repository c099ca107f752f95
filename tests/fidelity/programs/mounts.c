/*
 * Mounts in a namespace that keeps the workspace's root: bind mounts of directories and files, read-only, with flags, on top of each other and hidden,
 * the whole of /proc with what is masked there; tmpfs with options, content and mounts inside; shared and slave mounts; files open and mapped there.
 */
#include "mounts.h"

#include <sys/inotify.h>

#define HERE "/tmp/fidelity-mounts"

static void bind_mount(const char *from, const char *to, unsigned long more)
{
    MUST(mount(from, to, NULL, MS_BIND | more, NULL));
}

static void remount(const char *at, unsigned long flags)
{
    MUST(mount(NULL, at, NULL, MS_BIND | MS_REMOUNT | flags, NULL));
}

static void make_places(void)
{
    static const char *const directories[] = { HERE, HERE "/real", HERE "/real/sub", HERE "/bound", HERE "/proc", HERE "/memory", HERE "/hidden",
                                               HERE "/hidden/below", HERE "/shared", HERE "/slave", HERE "/stack", HERE "/part", HERE "/odd \\name)" };
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        MUST(mkdir(directories[i], 0755));
    make_file(HERE "/real/file", "real", 0644);
    make_file(HERE "/bound-file", "", 0644);
    make_file(HERE "/removed-file", "", 0644);
    make_file(HERE "/below-etc", "hidden by nobody", 0644);
}

static void make_mounts(void)
{
    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    bind_mount(HERE "/real", HERE "/bound", 0);
    remount(HERE "/bound", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME);
    bind_mount(HERE "/real/file", HERE "/bound-file", 0);
    bind_mount(HERE "/real", HERE "/odd \\name)", 0);
    bind_mount("/proc", HERE "/proc", MS_REC);
    MUST(mount("ours", HERE "/memory", "tmpfs", MS_NOSUID | MS_STRICTATIME, "size=4m,nr_inodes=1000,mode=751"));
    MUST(mkdir(HERE "/memory/mounted", 0700));
    MUST(mkdir(HERE "/memory/directory", 02775));
    make_file(HERE "/memory/directory/file", "in memory", 0640);
    make_file(HERE "/memory/mounted/under", "under a mount", 0600);
    make_file(HERE "/memory/soon-removed", "removed and bound", 0600);
    MUST(mount("inner", HERE "/memory/mounted", "tmpfs", 0, "size=1m"));
    make_file(HERE "/memory/mounted/inner", "inner", 0600);
    bind_mount(HERE "/memory/directory", HERE "/part", 0);
    bind_mount(HERE "/memory/soon-removed", HERE "/removed-file", 0);
    MUST(unlink(HERE "/memory/soon-removed"));
    bind_mount(HERE "/real", HERE "/hidden/below", 0);
    bind_mount(HERE "/real/sub", HERE "/hidden", 0);
    bind_mount(HERE "/real", HERE "/stack", 0);
    bind_mount(HERE "/memory/directory", HERE "/stack", 0);
    bind_mount(HERE "/real", HERE "/shared", 0);
    MUST(mount(NULL, HERE "/shared", NULL, MS_SHARED, NULL));
    bind_mount(HERE "/shared", HERE "/slave", 0);
    MUST(mount(NULL, HERE "/slave", NULL, MS_SLAVE, NULL));
}

static void check_text(const char *path, const char *expected)
{
    CHECK(strcmp(fidelity_file(path), expected) == 0, "%s holds '%s', expected '%s'", path, fidelity_file(path), expected);
}

static void check_content(void)
{
    check_text(HERE "/bound/file", "real");
    check_text(HERE "/bound-file", "real");
    check_text(HERE "/odd \\name)/file", "real");
    check_text(HERE "/memory/directory/file", "in memory");
    check_text(HERE "/memory/mounted/inner", "inner");
    check_text(HERE "/part/file", "in memory");
    check_text(HERE "/stack/file", "in memory");
    check_text(HERE "/removed-file", "removed and bound");
    CHECK(access(HERE "/hidden/below/file", F_OK) < 0, "what another mount hides can be seen");
    CHECK(open(HERE "/bound/new", O_WRONLY | O_CREAT, 0600) < 0 && errno == EROFS, "a read-only mount can be written to: %s", strerror(errno));
    CHECK(open(HERE "/proc/sys/kernel/core_pattern", O_WRONLY) < 0, "what is masked in /proc can be written to");
    CHECK(umount2("/proc/sys", MNT_DETACH) < 0 && umount2(HERE "/proc/sys", MNT_DETACH) < 0, "what masks /proc can be unmounted");
}

/* What is mounted below a shared mount shows in its slave, and is seen nowhere but here. */
static void check_propagation(void)
{
    MUST(mount("late", HERE "/shared/sub", "tmpfs", 0, NULL));
    make_file(HERE "/shared/sub/late", "", 0600);
    CHECK(access(HERE "/slave/sub/late", F_OK) == 0, "a slave mount does not follow its master any more");
    CHECK(access(HERE "/real/sub/late", F_OK) < 0, "a mount shows where it does not belong");
}

int main(void)
{
    umask(0);
    make_places();
    pid_t child = fidelity_fork();
    if (child) {
        char *outside = describe_mounts();
        int status;
        while (waitpid(child, &status, 0) < 0)
            CHECK(errno == EINTR, "waitpid: %s", strerror(errno));
        check_same_mounts(outside);
        _exit(WEXITSTATUS(status));
    }
    enter_namespaces(0);
    make_mounts();
    MUST(chdir(HERE "/memory/directory"));
    int file = MUST(open(HERE "/memory/directory/file", O_RDWR)), directory = MUST(open(HERE "/memory/mounted", O_RDONLY | O_DIRECTORY));
    int through_bind = MUST(open(HERE "/bound/file", O_RDONLY)), handle = MUST(open(HERE "/part", O_PATH));
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(map != MAP_FAILED, "mmap: %s", strerror(errno));
    MUST(mkfifo(HERE "/memory/fifo", 0600));
    int fifo = MUST(open(HERE "/memory/fifo", O_RDWR | O_NONBLOCK));
    MUST((int)write(fifo, "in a fifo", 9));
    int watch = MUST(inotify_init1(IN_NONBLOCK));
    MUST(inotify_add_watch(watch, HERE "/memory/directory", IN_CREATE));
    struct stat before, st;
    MUST(fstat(file, &before));
    lseek(file, 3, SEEK_SET);
    char *mounts = describe_mounts();
    fidelity_ready();
    fidelity_await_go();

    check_same_mounts(mounts);
    check_content();
    MUST(fstat(file, &st));
    CHECK(st.st_ino == before.st_ino && lseek(file, 0, SEEK_CUR) == 3, "the open file differs: inode %lu, was %lu", st.st_ino, before.st_ino);
    CHECK(faccessat(directory, "inner", F_OK, 0) == 0 && faccessat(handle, "file", F_OK, 0) == 0, "open directories differ");
    char text[16] = "", cwd[64] = "";
    CHECK(read(fifo, text, 9) == 9 && strcmp(text, "in a fifo") == 0, "the fifo holds '%s'", text);
    memset(text, 0, sizeof text);
    CHECK(pread(through_bind, text, 4, 0) == 4 && strcmp(text, "real") == 0, "the file opened through a bind mount holds '%s'", text);
    CHECK(getcwd(cwd, sizeof cwd) && strcmp(cwd, HERE "/memory/directory") == 0 && access("file", F_OK) == 0, "the working directory is %s", cwd);
    memcpy(map, fidelity_in_branch() ? "BR" : "SO", 2);
    check_text(HERE "/part/file", fidelity_in_branch() ? "BR memory" : "SO memory");
    make_file(HERE "/part/created", "", 0600);
    union { struct inotify_event event; char room[256]; } told;
    CHECK(read(watch, &told, sizeof told) > 0 && told.event.wd == 1 && strcmp(told.event.name, "created") == 0, "a file watch tells nothing: %s",
          strerror(errno));
    check_propagation();
    fidelity_pass();
}
