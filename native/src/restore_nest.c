/*
 * Nested namespaces in a branch. All but the pid namespaces are made first, by short-lived helpers in the user namespaces that own them; processes
 * join them. A process enters a user namespace at the same point of its life as in the source: before it forks the children that live there too.
 * From then on it has capabilities only inside, so pids in the pid namespaces around are chosen through ns_last_pid, which livefork's helper writes
 * (namespace_service.c), one clone at a time.
 */
#include "restore.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GROUP_PAUSE_US 200
#define GROUP_TRIES 25000       /* 5 s: the group's leader is being forked elsewhere */

/* Where this process is: indices of namespaces, by kind. Children inherit it along with the namespaces themselves. */
static int32_t current[ARENA_NAMESPACE_KINDS];

/* Of its next children, where that is another one: they are born there. -1 = where it is itself. */
static int children_time = -1;

static struct arena_namespace *namespace_at(int index)
{
    return (struct arena_namespace *)control->namespaces + index;
}

static int contains(int ancestor, int index)
{
    while (index >= 0 && index != ancestor)
        index = namespace_at(index)->parent;
    return index >= 0;
}

static uint32_t own_host_pid(void)
{
    char link[32] = { 0 };
    if (readlinkat(host_proc, "self", link, sizeof link - 1) <= 0)
        give_up(NULL, "cannot tell the own pid");
    return (uint32_t)strtoul(link, NULL, 10);
}

/* ---- livefork's helper ---- */

static void lock_service(void)
{
    uint32_t *word = &control->service.lock, free = 0;
    if (__atomic_compare_exchange_n(word, &free, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    while (__atomic_exchange_n(word, 2, __ATOMIC_SEQ_CST) != 0)
        syscall(SYS_futex, word, FUTEX_WAIT, 2, NULL, NULL, 0);
}

static void unlock_service(void)
{
    if (__atomic_exchange_n(&control->service.lock, 0, __ATOMIC_SEQ_CST) == 2)
        syscall(SYS_futex, &control->service.lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void request(int verb)
{
    struct arena_service *service = &control->service;
    service->verb = verb;
    uint32_t number = __atomic_add_fetch(&service->request, 1, __ATOMIC_SEQ_CST);
    wake(&service->request);
    await_word(&service->granted, number);
}

/* ---- clones ---- */

static int exit_signal_of_next = SIGCHLD;

static long clone3_with(const int32_t *pids, int count, uint64_t flags)
{
    struct clone_args args = { .flags = flags, .exit_signal = flags & CLONE_PARENT ? 0 : (uint64_t)exit_signal_of_next,
                               .set_tid = count ? (uint64_t)pids : 0, .set_tid_size = (uint64_t)count };
    long child = syscall(SYS_clone3, &args, sizeof args);
    if (child == 0 && children_time >= 0) {
        current[NEST_TIME] = children_time;
        children_time = -1;
    }
    return child;
}

/* A child that gets these numbers, innermost first, in `namespace` and those around it. */
static long clone_numbered(int namespace, const int32_t *pids, int count, uint64_t flags)
{
    struct arena_service *service = &control->service;
    int chosen = 0;
    while (chosen < count && contains(current[NEST_USER], namespace_at(namespace)->owner)) {
        namespace = namespace_at(namespace)->parent;
        chosen++;
    }
    if (chosen == count)
        return clone3_with(pids, count, flags);
    lock_service();
    service->count = 0;
    for (int i = chosen; i < count; i++, namespace = namespace_at(namespace)->parent) {
        service->namespaces[service->count] = namespace;
        service->pids[service->count++] = pids[i];
    }
    request(SERVICE_NEXT_PIDS);
    long child = clone3_with(pids, chosen, flags);
    if (child == 0)
        return 0;
    int number = errno;
    request(SERVICE_RESET);
    unlock_service();
    errno = number;
    return child;
}

/* ---- joining ---- */

static const char *link_of(int kind)
{
    static const char *const links[ARENA_NAMESPACE_KINDS] = {
        "self/ns/user", "self/ns/pid", "self/ns/mnt", "self/ns/net", "self/ns/ipc", "self/ns/uts", "self/ns/time_for_children",
    };
    return links[kind];
}

/* Open the namespace this process is in at its slot, for those who join. */
static void publish(int index)
{
    struct arena_namespace *namespace = namespace_at(index);
    const char *link = link_of(namespace->kind);
    int fd = openat(host_proc, link, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && namespace->kind == NEST_TIME)
        return;                 /* the kernel has none, so nobody joins it */
    if (fd < 0 || dup3(fd, (int)namespace->slot, 0) < 0)
        give_up(NULL, "cannot open %s of the branch", link);
    close(fd);
    raise_word(&namespace->made);
}

static void join(int index)
{
    struct arena_namespace *namespace = namespace_at(index);
    await_word(&namespace->made, 1);
    if (syscall(SYS_setns, namespace->slot, namespace->flag) < 0)
        give_up(NULL, "cannot join %s of the branch", link_of(namespace->kind));
    if (namespace->kind == NEST_USER)
        must(prctl(PR_SET_KEEPCAPS, 1), "keep capabilities");      /* a new user namespace clears it */
}

static void set_ids(struct arena_nest *nest)
{
    if (!nest->sets_ids)
        return;
    nest->sets_ids = 0;
    if (nest->sets_groups && syscall(SYS_setgroups, nest->group_count, nest->groups) < 0)
        give_up(NULL, "cannot set the groups of a process");
    become(nest->uid, nest->gid);
}

/* What lives in the present user namespace must be joined before the next one is. */
static void join_owned(const struct arena_nest *nest)
{
    for (int kind = NEST_PID + 1; kind < ARENA_NAMESPACE_KINDS; kind++) {
        int wanted = nest->namespaces[kind];
        if (wanted < 0 || wanted == current[kind] || !contains(current[NEST_USER], namespace_at(wanted)->owner))
            continue;
        join(wanted);
        current[kind] = wanted;
    }
}

static void write_file(const char *directory, const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = openat(host_proc, path, O_WRONLY | O_CLOEXEC);
    size_t length = strlen(text);
    if (length && (fd < 0 || write(fd, text, length) != (ssize_t)length))
        give_up(NULL, "cannot write %s of a namespace", name);
    close(fd);
}

/* Nobody must be born there, or join it, before its clocks are set. */
static void set_clocks(const struct arena_namespace *namespace)
{
    must(prctl(PR_SET_DUMPABLE, 1), "become dumpable");         /* as in be_born */
    write_file("self", "timens_offsets", (const char *)namespace->offsets);
}

/* A process that lives in another time namespace than its children makes theirs, in the user namespace that owns it. */
static void make_children_time(const struct arena_nest *nest)
{
    int wanted = nest->children_time;
    if (wanted < 0 || children_time == wanted || namespace_at(wanted)->owner != current[NEST_USER])
        return;
    if (syscall(SYS_unshare, namespace_at(wanted)->flag) < 0)
        give_up(NULL, "cannot make a time namespace for children");
    set_clocks(namespace_at(wanted));
    publish(wanted);
    children_time = wanted;
}

/* From the user namespace this process is in down to `user`; the capabilities of the present one reach down to it. */
static void join_user(int user, int node)
{
    struct arena_nest *nest = (struct arena_nest *)nodes[node].nest;
    if (user == current[NEST_USER])
        return;
    if (!contains(current[NEST_USER], user))
        give_up(NULL, "a process is forked in the wrong user namespace");
    join_owned(nest);
    if (nest->directory)
        run_batch(nest->directory);
    make_children_time(nest);
    set_ids(nest);
    join(user);
    current[NEST_USER] = user;
}

static void join_early_group(int group)
{
    for (int tries = 0; syscall(SYS_setpgid, 0, group) < 0; tries++) {
        if (tries == GROUP_TRIES)
            give_up(NULL, "cannot join the process group %d", group);
        usleep(GROUP_PAUSE_US);
    }
}

void nest_enter(int index)
{
    struct arena_nest *nest = (struct arena_nest *)nodes[index].nest;
    if (nest->early_group)
        join_early_group(nest->early_group);
    int pid = nest->namespaces[NEST_PID];
    if (pid >= 0 && pid != current[NEST_PID]) {      /* it has just been born there */
        current[NEST_PID] = pid;
        if (nest->pids[0] == 1) {
            namespace_at(pid)->init_host_pid = own_host_pid();
            publish(pid);
        }
    }
    join_owned(nest);
    if (nest->namespaces[NEST_USER] >= 0)
        join_user(nest->namespaces[NEST_USER], index);
    for (int kind = NEST_PID + 1; kind < ARENA_NAMESPACE_KINDS; kind++)
        if (nest->namespaces[kind] >= 0 && nest->namespaces[kind] != current[kind])
            give_up(NULL, "cannot get back to %s", link_of(kind));
    make_children_time(nest);
    if (children_time != nest->children_time)
        give_up(NULL, "cannot make a time namespace for children here");
}

/* ---- forking ---- */

/* The first process of a pid namespace whose owner its parent is not in: somebody goes there and forks a brother. */
static long fork_brother(int index, const struct arena_nest *nest)
{
    int pid = nest->namespaces[NEST_PID];
    long helper = clone_numbered(current[NEST_PID], nest->helper_pids, nest->helper_count, CLONE_FILES);
    if (helper)
        return helper;
    join_user(namespace_at(pid)->owner, index);
    if (syscall(SYS_unshare, CLONE_NEWPID) < 0)
        give_up(NULL, "cannot make a pid namespace");
    long child = clone_numbered(pid, nest->pids, nest->pid_count, CLONE_FILES | CLONE_PARENT);
    if (child < 0)
        give_up(NULL, "cannot start pid %d of a pid namespace", nest->pids[0]);
    if (child)
        _exit(0);
    return 0;
}

void nest_fork(int index, void (*run)(int))
{
    const struct arena_nest *nest = (const struct arena_nest *)nodes[index].nest;
    int pid = nest->namespaces[NEST_PID];
    bool brother = false, away = false;
    long child;
    if (pid < 0 || pid == current[NEST_PID]) {
        exit_signal_of_next = nodes[index].exit_signal;
        child = clone_numbered(current[NEST_PID], nest->pids, nest->pid_count, CLONE_FILES | (nodes[index].shares_fs ? CLONE_FS : 0));
        exit_signal_of_next = SIGCHLD;
    } else if (nest->pids[0] == 1 && namespace_at(pid)->owner == current[NEST_USER]) {
        child = clone_numbered(pid, nest->pids, nest->pid_count, CLONE_FILES | CLONE_NEWPID);
    } else if (nest->pids[0] == 1) {
        brother = true;
        child = fork_brother(index, nest);
    } else {
        away = true;
        join(pid);
        child = clone_numbered(pid, nest->pids, nest->pid_count, CLONE_FILES);
    }
    if (child < 0)
        give_up(NULL, "cannot start pid %d", nest->pids[nest->pid_count - 1]);
    if (child == 0)
        run(index);
    if (brother || nodes[index].kind == NODE_STEP)
        await_maker(child, "start the first process of a pid namespace");
    if (away)
        join(current[NEST_PID]);
}

/* A pid namespace whose first process has come and gone: no more can be forked there. */
static void leave_dead(const struct arena_nest *nest)
{
    if (syscall(SYS_unshare, CLONE_NEWPID) < 0)
        give_up(NULL, "cannot make a pid namespace for children");
    long child = clone_numbered(nest->children, nest->dead_pids, nest->dead_count, CLONE_FILES);
    if (child == 0)
        _exit(0);
    if (child < 0 || waitpid((pid_t)child, NULL, __WALL) < 0)
        give_up(NULL, "cannot leave a pid namespace without processes");
}

void nest_finish(int index)
{
    const struct arena_nest *nest = (const struct arena_nest *)nodes[index].nest;
    if (nest->dead_count)
        leave_dead(nest);
    else if (nest->children >= 0)
        join(nest->children);
    else if (nest->children == -2 && syscall(SYS_unshare, CLONE_NEWPID) < 0)
        give_up(NULL, "cannot make a pid namespace for children");
}

/* ---- making ---- */

/* Run by somebody in the parent, which is where the ids of the maps' other side are known. */
static void write_maps(const struct arena_namespace *namespace, uint32_t host_pid)
{
    char directory[16];
    snprintf(directory, sizeof directory, "%u", host_pid);
    if (namespace->setgroups_denied)
        write_file(directory, "setgroups", "deny");
    write_file(directory, "gid_map", (const char *)namespace->gid_map);
    write_file(directory, "uid_map", (const char *)namespace->uid_map);
}

struct birth {
    uint32_t unshared, mapped, host_pid;    /* the first two: futex words */
};

static void __attribute__((noreturn)) be_born(int index, struct birth *birth)
{
    struct arena_namespace *namespace = namespace_at(index);
    int32_t uid[3] = { -1, (int32_t)namespace->owner_uid, -1 }, gid[3] = { -1, (int32_t)namespace->owner_gid, -1 };
    become(uid, gid);
    must(prctl(PR_SET_DUMPABLE, 1), "become dumpable");         /* else /proc belongs to somebody whom the namespace around may not know */
    if (syscall(SYS_unshare, namespace->flag) < 0)
        give_up(NULL, "cannot make a user namespace");
    birth->host_pid = own_host_pid();
    raise_word(&birth->unshared);
    await_word(&birth->mapped, 1);
    publish(index);
    _exit(0);
}

/* In the parent user namespace: a child makes the new one, whose maps are written from here. */
static void make_user(int index)
{
    struct birth *birth = mmap(NULL, sizeof *birth, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (birth == MAP_FAILED)
        give_up(NULL, "out of memory");
    long child = clone3_with(NULL, 0, CLONE_FILES);
    if (child < 0)
        give_up(NULL, "cannot start a process to make a user namespace");
    if (child == 0)
        be_born(index, birth);
    await_word(&birth->unshared, 1);
    write_maps(namespace_at(index), birth->host_pid);
    raise_word(&birth->mapped);
    await_maker(child, "make a user namespace");
}

static void __attribute__((noreturn)) make(int index)
{
    struct arena_namespace *namespace = namespace_at(index);
    if (namespace->origin >= 0)
        join(namespace->origin);        /* while we may: what is mounted there is locked for the new owner then */
    if (namespace->owner != current[NEST_USER])
        join(namespace->owner);
    if (namespace->kind == NEST_USER) {
        make_user(index);
        _exit(0);
    }
    if (syscall(SYS_unshare, namespace->flag) < 0)
        give_up(NULL, "cannot make %s", link_of(namespace->kind));
    if (namespace->kind == NEST_TIME)
        set_clocks(namespace);
    publish(index);
    if (namespace->setup)
        run_batch(namespace->setup);
    _exit(0);
}

static void begin(int index)
{
    if (!namespace_at(index)->nested) {
        current[index] = index;
        publish(index);
        return;
    }
    if (namespace_at(index)->by_process)
        return;
    long child = clone3_with(NULL, 0, CLONE_FILES);
    if (child < 0)
        give_up(NULL, "cannot start a process to make a namespace");
    if (child == 0)
        make(index);
    await_maker(child, "make a namespace");
}

/* Mount namespaces come last: what is mounted there can show another namespace (message queues). */
void nest_begin(void)
{
    for (int mounts = 0; mounts < 2; mounts++) {
        for (uint32_t i = 0; i < control->namespace_count; i++) {
            const struct arena_namespace *namespace = namespace_at((int)i);
            bool last = namespace->nested && namespace->kind == NEST_MNT;
            if (last == mounts && !(namespace->nested && namespace->kind == NEST_PID))
                begin((int)i);
        }
    }
}

static int pid_namespace_of(const struct tree_node *node)
{
    return node->nest ? ((const struct arena_nest *)node->nest)->namespaces[NEST_PID] : 0;
}

/*
 * The holders of leaderless groups were handed to the first process of their pid namespace when the step that forked them ended; zombies of the
 * source stay. A child subreaper is handed them, too.
 */
void reap_group_holders(const struct tree_node *first)
{
    int gets_some = first->pid == 1 || first->adopts;
    for (uint32_t i = 0; gets_some && i < control->array_length; i++)
        if (nodes[i].kind == NODE_GROUP && pid_namespace_of(&nodes[i]) == pid_namespace_of(first))
            must(waitpid(nodes[i].pid, NULL, __WALL) < 0 && errno != ECHILD ? -1 : 0, "end what held a process group");
}

void nest_tickets(void)
{
    lock_service();
    request(SERVICE_TICKETS);
    unlock_service();
}
