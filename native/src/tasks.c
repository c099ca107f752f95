#include "tasks.h"
#include "doubt.h"
#include "inject.h"
#include "memory.h"
#include "namespaces.h"
#include "parts/parts.h"
#include "proc.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define XSTATE_LIMIT (64u << 10)
#define XSTATE_HEADER 512       /* begins with the features that are in use */
#define XSTATE_TILES 18         /* XFEATURE_XTILE_DATA */
#define PIDFD_THREAD_FLAG O_EXCL    /* PIDFD_THREAD, which older headers lack */
#define STAT_EXIT_SIGNAL 38
#define STAT_EXIT_CODE 52
#define PTRACE_GET_RSEQ_CONFIG 0x420f
#define PTRACE_GET_USER_DISPATCH 0x4211 /* PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, Linux 6.4 */

/* How many pid namespaces lie around the workspace's own, seen from ours: the first process is in the workspace's own. */
static int level_of_first(const char *field)
{
    int numbers = 0;
    for (const char *at = field; at && *at && *at != '\n'; at++)
        numbers += *at == '\t' || *at == ' ';
    return numbers > 0 ? numbers : 0;
}

static int read_status(struct process *process, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, 1 << 20, NULL, "/proc/%d/status", process->pid);
    if (!text)
        return -1;
    struct world *world = process->world;
    const char *ids = proc_field(text, "NStgid");
    if (!process->parent)
        world->pid_level = level_of_first(ids);
    bool known = namespaces_numbers(world, ids, &process->pids) && namespaces_numbers(world, proc_field(text, "NSpgid"), &process->groups)
        && namespaces_numbers(world, proc_field(text, "NSsid"), &process->sessions);
    process->ns_pid = process->pids.at[0];
    if (!known)
        return fail(err, "unsupported", "%s lives more than %d pid namespaces deep, which cannot be forked", process_label(process),
                    MAX_PID_LEVELS - 1);
    process->ns_group = process->groups.at[0];
    process->ns_session = process->sessions.at[0];
    const char *mask = proc_field(text, "Umask");
    process->umask = mask ? (int)strtol(mask, NULL, 8) : 022;
    return 0;
}

/* Field `number` of /proc/PID/stat, counted as proc(5) does from 1; what is behind the name, which may hold anything. */
long tasks_stat_field(const char *text, int number)
{
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < number; field++)
        at = strchr(at + 1, ' ');
    return at ? strtol(at, NULL, 10) : 0;
}

static int read_name(pid_t pid, char *name, size_t size, struct error *err)
{
    size_t length = 0;
    AUTO_FREE char *text = proc_read(err, 64, &length, "/proc/%d/comm", pid);
    if (!text)
        return -1;
    if (length > size)
        length = size;
    memcpy(name, text, length ? length - 1 : 0);        /* without the newline that the kernel adds */
    return 0;
}

static int read_zombie(struct process *process, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, 1 << 16, NULL, "/proc/%d/stat", process->pid);
    AUTO_FREE char *status = proc_read(err, 1 << 20, NULL, "/proc/%d/status", process->pid);   /* with up to 65536 groups */
    if (!text || !status)
        return -1;
    process->exit_code = (int)tasks_stat_field(text, STAT_EXIT_CODE);
    process->exit_signal = (int)tasks_stat_field(text, STAT_EXIT_SIGNAL);
    const char *uid = proc_field(status, "Uid");
    process->zombie_uid = uid ? (uint32_t)strtoul(uid, NULL, 10) : 0;
    return read_name(process->pid, process->zombie_name, sizeof process->zombie_name, err);
}

static int read_ended_leader(struct process *process, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, 1 << 16, NULL, "/proc/%d/stat", process->group_leader);
    if (!text)
        return -1;
    process->leader_exit_code = (int)tasks_stat_field(text, STAT_EXIT_CODE);
    return read_name(process->group_leader, process->leader_name, sizeof process->leader_name, err);
}

/* ---- what a parent is told ---- */

/*
 * Only /proc/PID/stat tells the exit signal, and printing that costs more than anything else here. So it is looked at before the freeze, and again
 * in it for those few that were not started with SIGCHLD (an exec or a new parent may have made it SIGCHLD since).
 */
static pid_t *unusual;
static int unusual_count;

void tasks_note_exit_signal(pid_t pid)
{
    struct error err = { 0 };
    AUTO_FREE char *text = proc_read(&err, 1 << 16, NULL, "/proc/%d/stat", pid);
    doubt_error(&err);
    if (!text || tasks_stat_field(text, STAT_EXIT_SIGNAL) == SIGCHLD)
        return;
    unusual = must_grow(unusual, (size_t)(unusual_count + 1) * sizeof *unusual);
    unusual[unusual_count++] = pid;
}

static int read_exit_signal(struct process *process, struct error *err)
{
    process->exit_signal = SIGCHLD;
    for (int i = 0; i < unusual_count; i++) {
        if (unusual[i] != process->group_leader)
            continue;
        AUTO_FREE char *text = proc_read(err, 1 << 16, NULL, "/proc/%d/stat", process->group_leader);
        if (!text)
            return -1;
        process->exit_signal = (int)tasks_stat_field(text, STAT_EXIT_SIGNAL);
    }
    return 0;
}

/*
 * A thread that stands in an rseq critical section is sent to its abort handler by the kernel when it next returns to user mode. But running
 * anything else in it, or registering rseq in a branch, makes the kernel forget the section: the thread would go on in it unprotected, also in
 * the source. So we do it in the kernel's stead (struct rseq and rseq_cs: include/uapi/linux/rseq.h).
 */
static uint64_t rseq_abort_address(const struct thread *thread)
{
    struct { uint32_t version, flags; uint64_t start, length, abort; } section;
    uint64_t pointer = 0;
    int mem = thread->process->mem;
    if (!thread->rseq || pread(mem, &pointer, sizeof pointer, (off_t)(thread->rseq + 8)) != sizeof pointer || !pointer)
        return 0;
    if (pread(mem, &section, sizeof section, (off_t)pointer) != sizeof section)
        return 0;
    return thread->regs.rip - section.start < section.length ? section.abort : 0;
}

/*
 * Syscalls that livefork runs inside such a thread would be sent to the program, as a SIGSYS that ends it while signals are blocked. It could be turned
 * off meanwhile, but would stay off if livefork were killed then.
 */
static bool dispatches_syscalls(pid_t tid)
{
    struct { uint64_t mode, selector, offset, length; } dispatch = { 0 };
    return ptrace(PTRACE_GET_USER_DISPATCH, tid, sizeof dispatch, &dispatch) == 0 && dispatch.mode;
}

static int read_thread(struct thread *thread, struct error *err)
{
    static char buffer[XSTATE_LIMIT] __attribute__((aligned(8)));
    pid_t tid = thread->tid;
    if (!thread->regs.rip && get_registers(tid, &thread->regs, err) < 0)       /* else the freeze has read them */
        return -1;
    if (thread->regs.cs != CODE_SEGMENT_64)
        return fail(err, "unsupported", "%s runs 32-bit code, which cannot be forked", process_label(thread->process));
    struct iovec io = { buffer, sizeof buffer };
    if (ptrace(PTRACE_GETREGSET, tid, NT_X86_XSTATE, &io) < 0)
        return fail_errno(err, "cannot read the extended registers of thread %d", tid);
    /* The kernel takes tiles back only from a thread that has used them already; a program lets go of them when it has done its sum. */
    if (io.iov_len > XSTATE_HEADER && *(uint64_t *)(buffer + XSTATE_HEADER) >> XSTATE_TILES & 1)
        return fail(err, "busy", "%s is in the middle of a computation with AMX tiles; fork again", process_label(thread->process));
    thread->xstate = must_alloc(io.iov_len);
    thread->xstate_size = io.iov_len;
    memcpy(thread->xstate, buffer, io.iov_len);
    if (ptrace(PTRACE_GETSIGMASK, tid, sizeof thread->signal_mask, &thread->signal_mask) < 0)
        return fail_errno(err, "cannot read the signal mask of thread %d", tid);
    if (dispatches_syscalls(tid))
        return fail(err, "unsupported", "%s catches its own system calls (syscall user dispatch, as Wine does), which cannot be forked",
                    process_label(thread->process));
    struct { uint64_t pointer; uint32_t size, signature, flags, pad; } rseq = { 0 };
    if (ptrace(PTRACE_GET_RSEQ_CONFIG, tid, sizeof rseq, &rseq) < 0)
        return fail_errno(err, "cannot read the rseq registration of thread %d", tid);
    thread->rseq = rseq.pointer;
    thread->rseq_size = rseq.size;
    thread->rseq_signature = rseq.signature;
    uint64_t abort = rseq_abort_address(thread);
    if (abort)
        thread->regs.rip = abort;
    if (syscall(SYS_get_robust_list, tid, &thread->robust_list, &thread->robust_list_size) < 0)
        return fail_errno(err, "cannot read the robust list of thread %d", tid);
    return 0;
}

/* A directory of a process that has ended keeps its name in /proc until somebody looks; it cannot be opened any more. */
static void mark_dead_directory(const struct process *process, const char *link, char **path)
{
    static const char deleted[] = " (deleted)";
    char at[64];
    size_t length = strlen(*path), suffix = sizeof deleted - 1;
    if (strncmp(*path, "/proc/", 6) != 0 || (length > suffix && strcmp(*path + length - suffix, deleted) == 0))
        return;
    snprintf(at, sizeof at, "/proc/%d/%s", process->pid, link);
    AUTO_CLOSE int fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 || (errno != ESRCH && errno != ENOENT))
        return;
    *path = must_grow(*path, length + sizeof deleted);
    memcpy(*path + length, deleted, sizeof deleted);
}

static int open_process(struct process *process, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", process->pid);
    if (process->mem < 0)
        process->mem = open(path, O_RDONLY | O_CLOEXEC);
    if (process->mem < 0)
        return fail_errno(err, "cannot open %s", path);
    process->pidfd = (int)syscall(SYS_pidfd_open, process->pid, process->leader_ended ? PIDFD_THREAD_FLAG : 0);
    if (process->pidfd < 0)
        return fail_errno(err, "cannot open a pidfd of %s", process_label(process));
    process->executable = proc_link(err, "/proc/%d/exe", process->pid);
    process->cwd = proc_link(err, "/proc/%d/cwd", process->pid);
    process->root = proc_link(err, "/proc/%d/root", process->pid);
    if (!process->executable || !process->cwd || !process->root)
        return -1;
    mark_dead_directory(process, "cwd", &process->cwd);
    mark_dead_directory(process, "root", &process->root);
    return 0;
}

int tasks_read(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        if (read_status(process, err) < 0)
            return -1;
        if (process->zombie) {
            if (read_zombie(process, err) < 0)
                return -1;
            continue;
        }
        if (namespaces_of_process(process, err) < 0 || open_process(process, err) < 0 || read_exit_signal(process, err) < 0)
            return -1;
        if (process->leader_ended && read_ended_leader(process, err) < 0)
            return -1;
        for (int k = 0; k < process->thread_count; k++)
            if (read_thread(&process->threads[k], err) < 0)
                return -1;
    }
    return namespaces_link(world, err);
}

/* ---- asked inside ---- */

struct core_memo {
    int gettid, brk, first_fd;
    uint64_t clear_tid;
};

static int core_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    struct core_memo *mine = must_alloc(sizeof *mine);
    *memo = mine;
    mine->gettid = ASK(query, SYS_gettid);
    mine->clear_tid = query_reserve(query, sizeof(uint64_t));
    ASK(query, SYS_prctl, PR_GET_TID_ADDRESS, mine->clear_tid);
    mine->brk = ASK(query, SYS_brk, 0);
    const struct process *process = query_thread(query)->process;
    for (int i = 0; query_is_leader(query) && i < process->fd_count; i++) {
        int op = ASK(query, SYS_fcntl, (uint64_t)process->fds[i].fd, F_GETFD);
        if (i == 0)
            mine->first_fd = op;
    }
    return 0;
}

static int core_collect(struct query *query, void *memo, struct error *err)
{
    struct core_memo *mine = memo;
    struct thread *thread = query_thread(query);
    /* gettid answers in the innermost pid namespace. */
    thread->ns_tid = thread->tids.count ? thread->tids.at[0] : (pid_t)query_result(query, mine->gettid);
    thread->clear_tid = *(uint64_t *)query_read(query, mine->clear_tid);
    if (thread->ns_tid <= 0)
        return fail(err, "internal", "%s: gettid failed inside it", process_label(thread->process));
    struct process *process = thread->process;
    process->map->brk = (uint64_t)query_result(query, mine->brk);
    for (int i = 0; query_is_leader(query) && i < process->fd_count; i++) {
        int64_t flags = query_result(query, mine->first_fd + i);
        if (flags < 0)
            return fail(err, "internal", "%s: descriptor %d vanished while frozen", process_label(process), process->fds[i].fd);
        process->fds[i].cloexec = flags & FD_CLOEXEC;
    }
    return 0;
}

const struct part part_core = { .name = "core", .ask = core_ask, .collect = core_collect };
