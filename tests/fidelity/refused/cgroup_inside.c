/* Makes cgroups in a user and cgroup namespace of its own. "threaded": of that type; "deep": with a longer path than is read. */
#include "../programs/fidelity.h"

#include <sys/mount.h>

#define MOUNT "/tmp/cgroups"
#define DEPTH 5
#define NAME_LENGTH 250

static void put(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY));
    MUST((int)write(fd, text, strlen(text)));
    close(fd);
}

static void make_deep(void)
{
    char name[NAME_LENGTH + 1] = "";
    memset(name, 'd', NAME_LENGTH);
    MUST(chdir(MOUNT));
    for (int i = 0; i < DEPTH; i++) {
        MUST(mkdir(name, 0755));
        MUST(chdir(name));
    }
    MUST(chdir("/"));
}

int main(int argc, char **argv)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    mkdir(MOUNT, 0755);
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP));
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", "0 0 1");
    put("/proc/self/gid_map", "0 0 1");
    MUST(mount("groups", MOUNT, "cgroup2", 0, NULL));
    if (argc > 1 && strcmp(argv[1], "threaded") == 0) {
        MUST(mkdir(MOUNT "/inside", 0755));
        put(MOUNT "/inside/cgroup.type", "threaded");
    } else {
        make_deep();
    }
    fidelity_ready();
    for (int i = 0; i < 600 && !fidelity_may_go(); i++)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    return 0;
}
