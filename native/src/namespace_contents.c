#include "namespace_contents.h"
#include "network.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAP_TEXT_LIMIT 65536
#define OFFSETS_LIMIT 256
#define NANOSECONDS 1000000000ll
#define MOST_SECONDS 9000000000ll       /* the kernel takes no more than half of that */

static const char *who(const struct world *world, const struct namespace *namespace)
{
    return process_label(namespace->member ? namespace->member : world->processes[0]);
}

/* ---- user ---- */

/* "         0       1000          1" a line; the second number is the host's, since we ask from there. */
static int parse_map(const char *text, struct id_map *map)
{
    while (*text) {
        struct id_range range;
        int used = 0;
        if (sscanf(text, " %u %u %u%n", &range.inside, &range.host, &range.count, &used) != 3)
            break;
        if (map->count == MAX_ID_RANGES)
            return -1;
        map->ranges = must_grow(map->ranges, (size_t)(map->count + 1) * sizeof range);
        map->ranges[map->count++] = range;
        text += used;
    }
    return 0;
}

static int read_maps(const struct world *world, struct namespace *namespace, pid_t pid, struct error *err)
{
    AUTO_FREE char *uids = proc_read(err, MAP_TEXT_LIMIT, NULL, "/proc/%d/uid_map", pid);
    AUTO_FREE char *gids = proc_read(err, MAP_TEXT_LIMIT, NULL, "/proc/%d/gid_map", pid);
    AUTO_FREE char *setgroups = proc_read(err, 64, NULL, "/proc/%d/setgroups", pid);
    if (!uids || !gids || !setgroups)
        return -1;
    if (parse_map(uids, &namespace->uids) < 0 || parse_map(gids, &namespace->gids) < 0)
        return fail(err, "internal", "%s: the id maps of its user namespace are not understood", who(world, namespace));
    namespace->setgroups_denied = strncmp(setgroups, "deny", 4) == 0;
    return 0;
}

/* Nobody lives in it: a child of ours goes there for a moment. */
static int read_empty_user(const struct world *world, struct namespace *namespace, struct error *err)
{
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) < 0)
        return fail_errno(err, "cannot make a pipe");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char said = setns(namespace->local, CLONE_NEWUSER) == 0;
        if (write(ready[1], &said, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    char said = 0;
    close(ready[1]);
    int status = child > 0 && read(ready[0], &said, 1) == 1 && said ? read_maps(world, namespace, child, err)
                                                                      : fail(err, "internal", "cannot enter a user namespace of the workspace");
    close(ready[0]);
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return status;
}

/* ---- time ---- */

/* The file shows where the next children of a process live. */
static const struct process *who_forks_into(const struct world *world, const struct namespace *namespace)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        const struct namespace *children = process->children_time ? process->children_time : process->namespaces[NAMESPACE_TIME];
        if (!process->zombie && children == namespace)
            return process;
    }
    return NULL;
}

static int read_offsets(const struct world *world, struct namespace *namespace, struct error *err)
{
    const struct process *process = who_forks_into(world, namespace);
    long long seconds = 0, nanoseconds = 0;
    if (!process)
        return fail(err, "unsupported", "%s keeps a time namespace in which nobody lives that could fork there, which cannot be forked; end it",
                    who(world, namespace));
    namespace->offsets = proc_read(err, OFFSETS_LIMIT, NULL, "/proc/%d/timens_offsets", process->pid);
    if (!namespace->offsets)
        return -1;
    if (sscanf(namespace->offsets, "monotonic %lld %lld", &seconds, &nanoseconds) != 2 || seconds > MOST_SECONDS || seconds < -MOST_SECONDS
        || nanoseconds < 0 || nanoseconds >= NANOSECONDS)
        return fail(err, "internal", "%s: the offsets of its time namespace are not understood", process_label(process));
    namespace->monotonic_offset = seconds * NANOSECONDS + nanoseconds;
    return 0;
}

/* ---- visits: this thread is inside for the time of a few questions ---- */

static int visit(const struct world *world, struct namespace *namespace, int there,
                 int (*ask)(const struct world *, struct namespace *, struct error *), struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/thread-self/ns/%s", namespace_name(namespace->kind));
    AUTO_CLOSE int home = open(path, O_RDONLY | O_CLOEXEC);
    if (home < 0 || setns(there, (int)namespace_flag(namespace->kind)) < 0)
        return fail_errno(err, "cannot enter a %s namespace of the workspace", namespace_name(namespace->kind));
    int status = ask(world, namespace, err);
    if (setns(home, (int)namespace_flag(namespace->kind)) < 0)
        return fail_errno(err, "cannot return from a %s namespace of the workspace", namespace_name(namespace->kind));
    return status;
}

static int ask_names(const struct world *world, struct namespace *namespace, struct error *err)
{
    (void)world;
    struct utsname names;
    if (uname(&names) < 0)
        return fail_errno(err, "cannot read a host name");
    snprintf(namespace->host_name, sizeof namespace->host_name, "%s", names.nodename);
    snprintf(namespace->domain_name, sizeof namespace->domain_name, "%s", names.domainname);
    return 0;
}

int namespace_contents_read(const struct world *world, struct namespace *namespace, struct error *err)
{
    switch (namespace->kind) {
    case NAMESPACE_USER:
        return namespace->member ? read_maps(world, namespace, namespace->member->pid, err) : read_empty_user(world, namespace, err);
    case NAMESPACE_NET:
        return visit(world, namespace, namespace->local, network_read, err);
    case NAMESPACE_TIME:
        return read_offsets(world, namespace, err);
    case NAMESPACE_UTS:
        return visit(world, namespace, namespace->local, ask_names, err);
    default:
        return 0;
    }
}

int namespace_own_network_read(const struct world *world, struct error *err)
{
    static bool nothing_added;
    bool frozen = world->root >= 0;
    char path[64];
    if (frozen && nothing_added)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/ns/net", world->source_pid);
    AUTO_CLOSE int there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0)
        return fail(err, "gone", "the source's first process (host pid %d) has ended", world->source_pid);
    struct namespace *own = world->namespaces->list[NAMESPACE_NET];
    if (visit(world, own, there, network_read, err) < 0)
        return -1;
    nothing_added = !network_has_additions(own->network);
    return 0;
}

/* ---- emit ---- */

void namespace_contents_emit(struct plan *plan, const struct namespace *namespace)
{
    struct batch *batch = plan_namespace(plan, namespace);
    if (namespace->kind == NAMESPACE_NET)
        network_emit(batch, namespace, plan->world->namespaces);
    if (namespace->kind == NAMESPACE_UTS) {
        EMIT(batch, "host name", SYS_sethostname, plan_string(plan, namespace->host_name), strlen(namespace->host_name));
        EMIT(batch, "domain name", SYS_setdomainname, plan_string(plan, namespace->domain_name), strlen(namespace->domain_name));
    }
}
