/*
 * tclone-restore: pid 1 of a new branch. It waits on descriptor 3 for livefork, moves itself into the branch's root, makes the objects that
 * descriptors refer to, forks the process tree with the right pids, and then every process becomes what its batch says.
 *
 * Until each process has taken its own descriptors they all share one table (CLONE_FILES): an object is made once and any process can be
 * the one that makes it, which matters where the kernel records the maker (SO_PEERCRED).
 */
#include "restore.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEW_ROOT "/tmp"         /* an empty directory of the stage root */

struct arena_control *control;
int host_proc = -1;
int own_socket = RESTORE_SOCKET;

/* ---- set-up ---- */

static void take_root(int root)
{
    static const char *const moved[] = { "/proc", "/sys", "/dev" };
    if (syscall(SYS_move_mount, root, "", AT_FDCWD, NEW_ROOT, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        give_up(NULL, "cannot attach the branch's root");
    for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) {
        char target[32];
        snprintf(target, sizeof target, NEW_ROOT "%s", moved[i]);
        if (mount(moved[i], target, NULL, MS_MOVE, NULL) < 0)
            give_up(NULL, "cannot move %s into the branch's root", moved[i]);
    }
    if (chdir(NEW_ROOT) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        give_up(NULL, "cannot enter the branch's root");
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        give_up(NULL, "cannot leave the stage root");
}

/* New pids shall follow the source's last one. /proc/sys is read-only in a container, so use a proc of our own. */
static void set_last_pid(void)
{
    int fs = (int)syscall(SYS_fsopen, "proc", FSOPEN_CLOEXEC);
    const char *what = "say which pid is the next";
    must(fs, what);
    must(syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0), what);
    int proc = (int)must(syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0), what);
    close(fs);
    int file = openat(proc, "sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
    close(proc);
    if (file < 0 && errno == ENOENT)
        return;                 /* a kernel without CONFIG_CHECKPOINT_RESTORE */
    must(file, what);
    must(dprintf(file, "%d", control->last_pid), what);
    close(file);
}

static void forget_libc(void)
{
    extern const ptrdiff_t __rseq_offset;
    extern const unsigned int __rseq_size;
    if (__rseq_size) {
        char *rseq = (char *)__builtin_thread_pointer() + __rseq_offset;
        unsigned int size = __rseq_size < 32 ? 32 : __rseq_size;
        must(syscall(SYS_rseq, rseq, size, 1 /* RSEQ_FLAG_UNREGISTER */, RSEQ_SIG), "give up the C library's restartable sequences");
    }
    uint64_t all = ~0ull;
    must(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all), "block signals");
    struct rlimit files;
    must(getrlimit(RLIMIT_NOFILE, &files), "read the limit on descriptors");
    files.rlim_cur = files.rlim_max;
    must(setrlimit(RLIMIT_NOFILE, &files), "raise the limit on descriptors");
    umask(0);
    must(prctl(PR_SET_KEEPCAPS, 1), "keep capabilities");
}

static int receive(struct message *message, int fds[MESSAGE_SLOTS], int *fd_count)
{
    union { char bytes[CMSG_SPACE(MESSAGE_SLOTS * sizeof(int))]; struct cmsghdr align; } buffer;
    struct iovec io = { message, sizeof *message };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &buffer, .msg_controllen = sizeof buffer };
    ssize_t got = recvmsg(own_socket, &header, MSG_CMSG_CLOEXEC);
    if (got <= 0)
        _exit(0);               /* livefork or the engine is gone: nobody needs this branch */
    if (got != sizeof *message || (header.msg_flags & MSG_CTRUNC))
        give_up(NULL, "a message from livefork is incomplete");
    *fd_count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        *fd_count = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(part), (size_t)*fd_count * sizeof(int));
    }
    return (int)message->type;
}

/* Move a descriptor out of the way of slots and targets. */
static int move_high(int fd)
{
    struct rlimit files;
    must(getrlimit(RLIMIT_NOFILE, &files), "read the limit on descriptors");
    int high = fcntl(fd, F_DUPFD_CLOEXEC, (int)files.rlim_cur - 64);
    if (high < 0)
        give_up(NULL, "cannot move a descriptor");
    close(fd);
    return high;
}

static void set_up(const struct message *message, const int *fds, int count)
{
    if (count != 3)
        give_up(NULL, "the set-up message has %d descriptors", count);
    int arena = move_high(fds[0]), root = move_high(fds[1]);
    host_proc = move_high(fds[2]);
    void *mapped = mmap((void *)message->arena, message->arena_size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED | MAP_FIXED_NOREPLACE,
                        arena, 0);
    if (mapped != (void *)message->arena)
        give_up(NULL, "cannot map the arena");
    close(arena);
    control = mapped;
    take_root(root);
    close(root);
    set_last_pid();
    /* Low numbers belong to the source's processes; what crun left open there goes. */
    must(syscall(SYS_close_range, 0, control->slot_base - 1, 0), "close what the stage root left open");
}

static void take_slots(const struct message *message, const int *fds, int count)
{
    if ((uint32_t)count != message->count)
        give_up(NULL, "a message has %d descriptors, not %u", count, message->count);
    for (int i = 0; i < count; i++) {
        if (dup3(fds[i], (int)message->slots[i], 0) < 0)
            give_up(NULL, "cannot place descriptor %u", message->slots[i]);
        close(fds[i]);
    }
}

/* ---- creators ---- */

static long clone_with_pid(int pid, uint64_t flags, int exit_signal)
{
    int32_t wanted = pid;
    struct clone_args args = { .flags = flags, .exit_signal = (uint64_t)exit_signal, .set_tid = pid ? (uint64_t)&wanted : 0, .set_tid_size = pid ? 1 : 0 };
    return syscall(SYS_clone3, &args, sizeof args);
}

/* Only the recorded credentials matter. */
void become(const int32_t uid[3], const int32_t gid[3])
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data) < 0)
        give_up(NULL, "capget failed");
    if (syscall(SYS_setresgid, gid[0], gid[1], gid[2]) < 0 || syscall(SYS_setresuid, uid[0], uid[1], uid[2]) < 0)
        give_up(NULL, "cannot become %d:%d", uid[1], gid[1]);
    data[0].effective = data[0].permitted;
    data[1].effective = data[1].permitted;
    if (syscall(SYS_capset, &header, data) < 0)
        give_up(NULL, "capset failed");
}

static void run_creator(const struct arena_creator *creator)
{
    long child = clone_with_pid(creator->pid, CLONE_FILES, SIGCHLD);
    if (child < 0 && creator->pid)
        child = clone_with_pid(0, CLONE_FILES, SIGCHLD);
    if (child < 0)
        give_up(NULL, "cannot start a process as pid %d", creator->pid);
    if (child == 0) {
        int32_t uid = (int32_t)creator->uid, gid = (int32_t)creator->gid;
        become((int32_t[]){ uid, uid, uid }, (int32_t[]){ gid, gid, gid });
        run_batch(creator->batch);
        _exit(0);
    }
    await_maker(child, "make sockets in the name of somebody else");
}

static void run_stages(uint32_t from, uint32_t to)
{
    const struct arena_creator *creators = (const struct arena_creator *)control->creators;
    for (uint32_t stage = from; stage < to; stage++) {
        run_batch(control->stages[stage]);
        for (uint32_t i = 0; i < control->creator_count; i++)
            if (creators[i].stage == stage)
                run_creator(&creators[i]);
    }
}

/* ---- the process tree ---- */

struct tree_node *nodes;

static void __attribute__((noreturn)) become_node(int index);

static void fork_node(int index)
{
    struct tree_node *node = &nodes[index];
    if (node->nest) {
        nest_fork(index, become_node);
        return;
    }
    long child = clone_with_pid(node->pid, CLONE_FILES | (node->shares_fs ? CLONE_FS : 0), node->exit_signal);
    if (child < 0)
        give_up(NULL, "cannot start pid %d", node->pid);
    if (child == 0)
        become_node(index);
    if (node->kind == NODE_STEP)
        await_maker(child, "start processes whose parent has ended");
}

static void fork_children(const struct tree_node *node, enum fork_time before)
{
    for (int child = node->first_child; child >= 0; child = nodes[child].next_sibling)
        if (nodes[child].before == (int32_t)before)
            fork_node(child);
}

/* A zombie shows its name and user id, and no core file may be written for it again: its status cannot tell that there was one. */
static void __attribute__((noreturn)) end_as(const struct tree_node *node)
{
    int signal = node->exit_code & 0x7f;
    must(prctl(PR_SET_NAME, node->name), "name a zombie");
    long known = syscall(SYS_setresuid, node->uid, node->uid, node->uid);
    if (!node->nest || errno != EINVAL)     /* a nested user namespace may not know it */
        must(known, "give a zombie its user");
    if (signal) {
        uint64_t none = 0;
        struct rlimit no_core = { 0, 0 };
        must(setrlimit(RLIMIT_CORE, &no_core), "end a zombie without a core file");
        must(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none), "end a zombie by its signal");
        must(syscall(SYS_kill, syscall(SYS_getpid), signal), "end a zombie by its signal");
    }
    _exit(node->exit_code >> 8 & 0xff);
}

static void __attribute__((noreturn)) interpret(uint64_t batch)
{
    register uint64_t first __asm__("rdi") = batch;
    register uint64_t fault __asm__("rsi") = (uint64_t)&control->fault;
    __asm__ volatile("jmp *%0" : : "r"(control->interpreter), "r"(first), "r"(fault) : "memory");
    __builtin_unreachable();
}

static void join_group(struct tree_node *node)
{
    raise_word(&control->forked);
    await_word(&control->forked, control->node_count);
    if (node->group && node->group != syscall(SYS_getpid) && syscall(SYS_setpgid, 0, node->group) < 0)
        give_up(NULL, "pid %d cannot join the process group %d", node->pid, node->group);
    raise_word(&control->grouped);
}

static void publish_host_pid(struct tree_node *node)
{
    char link[32] = { 0 };
    if (must(readlinkat(host_proc, "self", link, sizeof link - 1), "tell the own pid") > 0)
        node->host_pid = (uint32_t)strtoul(link, NULL, 10);
}

/* Before it forks: memory that its descendants share. */
static void hold_families(const struct tree_node *node)
{
    for (uint64_t at = node->families; at; at = ((struct arena_family *)at)->next) {
        struct arena_family *family = (struct arena_family *)at;
        const struct arena_piece *pieces = (const struct arena_piece *)family->pieces;
        run_batch(family->map_batch);
        for (uint32_t i = 0; i < family->piece_count; i++)
            memcpy((void *)pieces[i].address, (const void *)pieces[i].data, pieces[i].size);
        raise_word(&family->mapped);
    }
    for (uint64_t at = node->families; at; at = ((struct arena_family *)at)->next)
        if (((struct arena_family *)at)->piece_count == 0)
            await_word(&((struct arena_family *)at)->filled, 1);
}

static void release_families(const struct tree_node *node)
{
    for (uint64_t at = node->families; at; at = ((struct arena_family *)at)->next)
        if (((struct arena_family *)at)->release_batch)
            run_batch(((struct arena_family *)at)->release_batch);
}

static void become_node(int index)
{
    struct tree_node *node = &nodes[index];
    publish_host_pid(node);
    hold_families(node);
    if (node->adopts)
        must(prctl(PR_SET_CHILD_SUBREAPER, 1), "adopt orphans");
    fork_children(node, BEFORE_SESSION);
    if (node->new_session && syscall(SYS_setsid) < 0)
        give_up(NULL, "pid %d cannot lead a session", node->pid);
    if (!node->new_session && (node->group == node->pid || node->kind == NODE_GROUP) && syscall(SYS_setpgid, 0, 0) < 0)
        give_up(NULL, "pid %d cannot lead a process group", node->pid);
    if (node->session_batch)
        run_batch(node->session_batch);
    fork_children(node, BEFORE_NAMESPACES);
    if (node->nest)
        nest_enter(index);
    fork_children(node, AT_LAST);
    if (node->nest)
        nest_finish(index);
    release_families(node);
    if (node->kind == NODE_STEP)
        _exit(0);               /* is counted by nobody: node_count leaves steps out */
    join_group(node);
    if (node->kind != NODE_PROCESS)
        await_word(&control->grouped, control->node_count);
    if (node->kind == NODE_ZOMBIE)
        end_as(node);
    if (node->kind == NODE_GROUP)
        _exit(0);
    if (node->adopts)
        await_word(&control->grouped, control->node_count);
    reap_group_holders(node);
    if (node->adopts)
        must(prctl(PR_SET_CHILD_SUBREAPER, 0), "adopt no more orphans");       /* its own batch says what it really is */
    await_word(&control->late, 1);
    interpret(node->batch);
}

static void __attribute__((noreturn)) become_first(void)
{
    struct tree_node *node = &nodes[0];
    publish_host_pid(node);
    hold_families(node);
    if (node->session_batch)
        run_batch(node->session_batch);
    for (enum fork_time before = AT_LAST; before <= BEFORE_NAMESPACES; before++)
        fork_children(node, before);
    release_families(node);
    if (node->nest)
        nest_finish(0);
    join_group(node);
    await_word(&control->grouped, control->node_count);
    reap_group_holders(node);
    run_batch(control->late_batch);
    run_stages(ARENA_EARLY_STAGES, ARENA_STAGES);
    if (control->namespace_count)
        nest_tickets();
    raise_word(&control->late);
    interpret(node->batch);
}

static void run(void)
{
    if (control->mounts)
        run_batch(control->mounts);
    if (control->namespace_count)
        nest_begin();
    run_stages(0, ARENA_EARLY_STAGES);
    nodes = (struct tree_node *)control->nodes;
    become_first();
}

int main(void)
{
    forget_libc();
    own_socket = move_high(RESTORE_SOCKET);
    for (;;) {
        struct message message;
        int fds[MESSAGE_SLOTS], count;
        switch (receive(&message, fds, &count)) {
        case MESSAGE_SETUP: set_up(&message, fds, count); break;
        case MESSAGE_GIVE: take_slots(&message, fds, count); break;
        case MESSAGE_RUN: run(); break;
        default: give_up(NULL, "unknown message %u", message.type);
        }
    }
}
