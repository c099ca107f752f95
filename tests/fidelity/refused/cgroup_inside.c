/* Makes a cgroup in a user and cgroup namespace of its own. "member": and moves there; "group": only makes it. */
#include "../programs/fidelity.h"

#include <sys/mount.h>

#define MOUNT "/tmp/cgroups"

static void put(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY));
    MUST((int)write(fd, text, strlen(text)));
    close(fd);
}

int main(int argc, char **argv)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    mkdir(MOUNT, 0755);
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP));
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", "0 0 1");
    put("/proc/self/gid_map", "0 0 1");
    if (mount("groups", MOUNT, "cgroup", 0, "pids") < 0)
        MUST(mount("groups", MOUNT, "cgroup2", 0, NULL));
    MUST(mkdir(MOUNT "/inside", 0755));
    if (argc > 1 && strcmp(argv[1], "member") == 0) {
        put(MOUNT "/inside/cgroup.procs", "0");
        MUST(umount(MOUNT));
    }
    fidelity_ready();
    for (int i = 0; i < 600 && !fidelity_may_go(); i++)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    if (argc > 1 && strcmp(argv[1], "group") == 0)
        rmdir(MOUNT "/inside");
    return 0;
}
