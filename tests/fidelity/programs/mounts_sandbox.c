/*
 * A sandbox as bubblewrap and flatpak make it: a tmpfs becomes the root, parts of the workspace are bound into it, a file comes from memory and has lost its
 * name there, the old root is unmounted. One process went in with a file and a mapping of the old root; a second sandbox lies inside the first.
 */
#include "mounts.h"

#define BASE "/tmp/fidelity-sandbox"

static void put_file(const char *path, const char *text)
{
    int fd = MUST(open("/temporary", O_WRONLY | O_CREAT | O_EXCL, 0600));
    MUST((int)write(fd, text, strlen(text)));
    close(fd);
    close(MUST(open(path, O_WRONLY | O_CREAT, 0600)));
    MUST(mount("/temporary", path, NULL, MS_BIND, NULL));
    MUST(unlink("/temporary"));
}

static void bind_in(const char *from, const char *to, bool read_only)
{
    MUST(mkdir(to, 0755));
    MUST(mount(from, to, NULL, MS_BIND | MS_REC, NULL));
    if (read_only)
        MUST(mount(NULL, to, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_RELATIME, NULL));
}

static void pivot(const char *new_root, const char *old)
{
    MUST((int)syscall(SYS_pivot_root, new_root, old));
    MUST(chdir("/"));
}

/* bubblewrap's way: first onto a tmpfs that holds both roots, then into the new one. */
static void make_sandbox(const char *base, const char *inside)
{
    MUST(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL));
    MUST(mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, NULL));
    MUST(chdir(base));
    MUST(mkdir("newroot", 0755));
    MUST(mkdir("oldroot", 0755));
    MUST(mount("newroot", "newroot", NULL, MS_BIND | MS_REC, NULL));
    pivot(base, "oldroot");
    bind_in("/oldroot/bin", "/newroot/bin", true);
    bind_in("/oldroot/fidelity", "/newroot/fidelity", true);
    bind_in("/oldroot/proc", "/newroot/proc", false);
    bind_in("/oldroot/dev", "/newroot/dev", false);
    bind_in("/oldroot/tmp", "/newroot/tmp", false);
    MUST(mkdir("/newroot/etc", 0755));
    put_file("/newroot/etc/passwd", inside);
    MUST(mkdir("/newroot/run", 0700));
    MUST(mount("tmpfs", "/newroot/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=700"));
    MUST(symlink("run", "/newroot/var"));
    make_file("/newroot/run/state", inside, 0600);
    MUST(mount("tmpfs", "/newroot/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, NULL));
    MUST(umount2("/oldroot", MNT_DETACH));
    int old = MUST(open("/", O_RDONLY | O_DIRECTORY));
    MUST(chdir("/newroot"));
    pivot(".", ".");
    MUST(fchdir(old));
    MUST(umount2(".", MNT_DETACH));
    MUST(chdir("/"));
    close(old);
}

static void check_inside(const char *inside, const char *mounts)
{
    check_same_mounts(mounts);
    CHECK(strcmp(fidelity_file("/etc/passwd"), inside) == 0, "/etc/passwd is '%s'", fidelity_file("/etc/passwd"));
    CHECK(strcmp(fidelity_file("/var/state"), inside) == 0, "/var/state is '%s'", fidelity_file("/var/state"));
    CHECK(access("/root", F_OK) < 0 && access("/etc/shadow", F_OK) < 0, "the sandbox sees the workspace");
    CHECK(access("/bin/busybox", X_OK) == 0, "/bin is not there");
    CHECK(open("/bin/new", O_WRONLY | O_CREAT, 0600) < 0 && errno == EROFS, "/bin can be written to");
    CHECK(umount2("/proc/sys", MNT_DETACH) < 0, "what masks /proc can be unmounted");
}

/* Inside the sandbox, a namespace that changes nothing: what it inherited is locked. */
static void check_copy(void)
{
    enter_namespaces(0);
    char *mounts = describe_mounts();
    make_file("/tmp/fidelity-sandbox/copy-ready", "", 0600);
    fidelity_await_go();
    check_same_mounts(mounts);
    CHECK(umount2("/bin", MNT_DETACH) < 0 && umount2("/run", MNT_DETACH) < 0, "mounts of the sandbox around can be unmounted");
    CHECK(mount(NULL, "/bin", NULL, MS_BIND | MS_REMOUNT | MS_NOSUID | MS_RELATIME, NULL) < 0, "/bin can be made writable");
    CHECK(strcmp(fidelity_file("/run/state"), "outer") == 0, "/run/state is '%s'", fidelity_file("/run/state"));
}

int main(void)
{
    umask(0);
    MUST(mkdir(BASE, 0755));
    int outside = MUST(open("/etc/passwd", O_RDONLY));
    char *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, outside, 0), first = *map;
    enter_namespaces(CLONE_NEWIPC);
    make_sandbox(BASE, "outer");
    int shared = MUST(open("/run/state", O_RDWR)), passwd = MUST(open("/etc/passwd", O_RDONLY));
    char *mounts = describe_mounts();
    int memory = MUST(open("/dev/shm/own", O_RDWR | O_CREAT | O_EXCL, 0600));
    MUST(ftruncate(memory, 8192));
    char *own = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    strcpy(own, "own");
    pid_t child = fidelity_fork();
    if (child == 0) {
        MUST(mkdir("/run/inner", 0700));
        enter_namespaces(0);
        make_sandbox("/run/inner", "inner");
        mounts = describe_mounts();
        make_file("/tmp/fidelity-sandbox/inner-ready", "", 0600);
        fidelity_await_go();
        check_inside("inner", mounts);
        char text[8] = "";
        CHECK(pread(shared, text, 5, 0) == 5 && memcmp(text, "outer", 5) == 0, "the outer sandbox's file is '%s'", text);
        _exit(0);
    }
    pid_t copy = fidelity_fork();
    if (copy == 0) {
        check_copy();
        _exit(0);
    }
    while (access("/tmp/fidelity-sandbox/copy-ready", F_OK) < 0)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    while (access("/tmp/fidelity-sandbox/inner-ready", F_OK) < 0)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    fidelity_ready();
    fidelity_await_go();
    check_inside("outer", mounts);
    char text[8] = "";
    CHECK(pread(passwd, text, 5, 0) == 5 && strcmp(text, "outer") == 0, "the open /etc/passwd is '%s'", text);
    CHECK(*map == first && pread(outside, text, 1, 0) == 1 && *text == first, "the file of the workspace differs");
    CHECK(strcmp(fidelity_file("/dev/shm/own"), "own") == 0, "shared memory of the sandbox is '%s'", own);
    strcpy(own, fidelity_in_branch() ? "branch" : "source");
    CHECK(strcmp(fidelity_file("/dev/shm/own"), own) == 0, "the mapping and the file in /dev/shm are not one");
    fidelity_expect_exit(child, 0);
    fidelity_expect_exit(copy, 0);
    MUST((int)pwrite(shared, fidelity_in_branch() ? "b" : "s", 1, 0));
    CHECK(fidelity_file("/run/state")[0] == (fidelity_in_branch() ? 'b' : 's'), "the open file is not the one in the sandbox");
    fidelity_pass();
}
