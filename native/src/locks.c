/*
 * fdinfo of a descriptor lists the locks of its file that belong to the process (record locks) or to the open file description (flock, OFD, leases).
 * /proc/locks would tell in one read which files matter, but reading it waits for an RCU grace period: 10 to 17 ms of the source's pause.
 */
#include "locks.h"
#include "descriptors.h"
#include "proc.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>

#define LOCKS_LIMIT (16u << 20)

enum lock_kind { LOCK_RECORD, LOCK_WHOLE_FILE, LOCK_OPEN_FILE, LOCK_LEASE };

struct file_lock {
    enum lock_kind kind;
    bool write, breaking, to_nothing;
    int pid;                    /* host's, of who took it; open file description locks have none */
    unsigned long inode;
    int64_t start, length;      /* length 0 = to the end */
    const struct process *process;
    int fd;                     /* record locks: one of the process's numbers */
    const struct description *description;
};

static struct file_lock *locks;
static int lock_count;

/* "POSIX  ADVISORY  WRITE 4711 00:39:1234 0 EOF", behind the number. */
static bool parse_lock(const char *text, struct file_lock *lock)
{
    char kind[16], mode[16], access[16], end[32];
    unsigned major, minor;
    long long start;
    if (sscanf(text, "%15s %15s %15s %d %x:%x:%lu %lld %31s", kind, mode, access, &lock->pid, &major, &minor, &lock->inode, &start, end) != 9)
        return false;           /* a waiter ("->") */
    if (strcmp(kind, "POSIX") == 0)
        lock->kind = LOCK_RECORD;
    else if (strcmp(kind, "FLOCK") == 0)
        lock->kind = LOCK_WHOLE_FILE;
    else if (strcmp(kind, "OFDLCK") == 0)
        lock->kind = LOCK_OPEN_FILE;
    else if (strcmp(kind, "LEASE") == 0)
        lock->kind = LOCK_LEASE;
    else
        return false;
    lock->write = strcmp(access, "WRITE") == 0;
    /* Then it says what is to be left of it; what it was follows from that when something is. */
    lock->breaking = strcmp(mode, "BREAKING") == 0;
    lock->to_nothing = strcmp(access, "UNLCK") == 0;
    lock->start = start;
    lock->length = strcmp(end, "EOF") == 0 ? 0 : (long long)(strtoull(end, NULL, 10) - (unsigned long long)start + 1);
    return true;
}

static void add_lock(struct file_lock lock)
{
    locks = must_grow(locks, (size_t)(lock_count + 1) * sizeof lock);
    locks[lock_count++] = lock;
}

static bool known_record(const struct file_lock *lock)
{
    for (int i = lock_count - 1; i >= 0 && locks[i].process == lock->process; i--)
        if (locks[i].kind == LOCK_RECORD && locks[i].inode == lock->inode && locks[i].start == lock->start && locks[i].length == lock->length)
            return true;
    return false;
}

/* Any descriptor of the file can take a record lock again, if it is open for what the lock is for. */
static void take_record(struct file_lock lock, const struct process *process, const struct fd_entry *entry)
{
    int access = entry->description->flags & O_ACCMODE;
    lock.process = process;
    lock.fd = entry->fd;
    if ((access == O_RDWR || access == (lock.write ? O_WRONLY : O_RDONLY)) && !known_record(&lock))
        add_lock(lock);
}

static int read_locks_of(const struct process *process, const struct fd_entry *entry, bool first_holder, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, LOCKS_LIMIT, NULL, "/proc/%d/fdinfo/%d", process->pid, entry->fd);
    if (!text)
        return -1;
    for (const char *line = strstr(text, "lock:\t"); line; line = strstr(line + 1, "lock:\t")) {
        struct file_lock lock = { .description = entry->description };
        const char *number = strchr(line, ' ');
        if (!number || !parse_lock(number, &lock))
            continue;
        if (lock.kind == LOCK_RECORD)
            take_record(lock, process, entry);
        else if (first_holder)
            add_lock(lock);
    }
    return 0;
}

int locks_read(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        for (int k = 0; k < process->fd_count; k++) {
            const struct fd_entry *entry = &process->fds[k];
            const struct description *description = entry->description;
            if (!(S_ISREG(description->st.st_mode) || S_ISDIR(description->st.st_mode)) || description->link[0] != '/' || (description->flags & O_PATH))
                continue;
            bool first_holder = description->holder == process && description->holder_fd == entry->fd;
            if (read_locks_of(process, entry, first_holder, err) < 0)
                return -1;
        }
    }
    return 0;
}

static void emit_owner(struct batch *batch, uint64_t fd, int type, int pid, const char *what)
{
    struct { int type, pid; } owner = { type, pid };
    EMIT_FLAGS(batch, what, TOLERATING(OWNER_GONE), SYS_fcntl, fd, F_SETOWN_EX, plan_data(batch->plan, &owner, sizeof owner));
}

/* Break it again, so that it has its time to be given up; whoever was told in the source is not told twice. */
static void emit_breaking(struct batch *batch, const struct file_lock *lock, uint64_t fd, const char *what)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", (int)fd);
    emit_owner(batch, fd, F_OWNER_PID, 0, what);
    uint64_t flags = (lock->to_nothing ? O_WRONLY : O_RDONLY) | O_NONBLOCK | O_CLOEXEC;
    EMIT_FLAGS(batch, what, TOLERATING(LEASE_BROKEN), SYS_openat, (uint64_t)AT_FDCWD, plan_string(batch->plan, path), flags);
    uint64_t opened = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, TOLERATING(NOT_OPENED) | OP_LOAD(0), SYS_close, opened);
}

/*
 * A lease makes its caller the owner whom a break is told, with the number by which it asked (si_fd): so it is taken by the process itself. The owner
 * of the source's is set behind it.
 */
static void emit_lease(struct batch *batch, const struct file_lock *lock)
{
    const struct description *description = lock->description;
    const char *what = description_label(description);
    uint64_t fd = (uint64_t)description->holder_fd;
    bool write = lock->breaking ? !lock->to_nothing || (description->flags & O_ACCMODE) != O_RDONLY : lock->write;
    /* A file of /dev/shm is open for writing until all processes have let go of what it was made from: there the lease is lost. */
    EMIT_FLAGS(batch, what, TOLERATING(LEASE_LOST), SYS_fcntl, fd, F_SETLEASE, write ? F_WRLCK : F_RDLCK);
    if (lock->breaking)
        emit_breaking(batch, lock, fd, what);
    emit_owner(batch, fd, description->owner_pid ? description->owner_type : F_OWNER_PID, description->owner_pid, what);
}

/* In a queue, nobody can answer. Without a name nobody can open it either, and what it was made from in the branch is still open. */
static const struct process *taker_of_lease(const struct file_lock *lock)
{
    return lock->kind == LOCK_LEASE && lock->description->st.st_nlink > 0 ? lock->description->holder : NULL;
}

void locks_emit_late_leases(struct batch *batch, const struct process *process)
{
    for (int i = 0; i < lock_count; i++)
        if (process->host_ids && taker_of_lease(&locks[i]) == process)
            emit_lease(batch, &locks[i]);
}

static uint64_t whole_file_operation(const struct file_lock *lock)
{
    return (uint64_t)((lock->write ? LOCK_EX : LOCK_SH) | LOCK_NB);
}

/* Who took it is told to those who list locks: so it takes it again, while all have one table of descriptors. If it has ended, pid 1 stands for it. */
static void emit_whole_file(struct plan *plan, const struct file_lock *lock)
{
    const struct description *description = lock->description;
    for (int i = 0; i < plan->world->process_count; i++)
        if (plan->world->processes[i]->group_leader == lock->pid && !plan->world->processes[i]->zombie)
            return;             /* locks_emit_taken */
    EMIT(&plan->common[STAGE_FILL], description_label(description), SYS_flock, SLOT(plan, description), whole_file_operation(lock));
}

void locks_emit_taken(struct batch *batch, const struct process *process)
{
    for (int i = 0; i < lock_count; i++) {
        const struct file_lock *lock = &locks[i];
        if (lock->kind == LOCK_WHOLE_FILE && lock->pid == process->group_leader)
            EMIT(batch, description_label(lock->description), SYS_flock, SLOT(batch->plan, lock->description), whole_file_operation(lock));
    }
}

void locks_emit(struct plan *plan)
{
    for (int i = 0; i < lock_count; i++) {
        const struct file_lock *lock = &locks[i];
        if (lock->kind == LOCK_LEASE) {
            const struct process *taker = taker_of_lease(lock);
            if (taker && !taker->host_ids)
                emit_lease(plan_own(plan, taker), lock);
            continue;
        }
        if (lock->kind == LOCK_WHOLE_FILE) {
            emit_whole_file(plan, lock);
            continue;
        }
        struct flock record = { .l_type = lock->write ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET, .l_start = lock->start, .l_len = lock->length };
        uint64_t at = plan_data(plan, &record, sizeof record);
        if (lock->kind == LOCK_OPEN_FILE)
            EMIT(&plan->common[STAGE_FILL], description_label(lock->description), SYS_fcntl, SLOT(plan, lock->description), F_OFD_SETLK, at);
        else
            EMIT(plan_own(plan, lock->process), process_label(lock->process), SYS_fcntl, (uint64_t)lock->fd, F_SETLK, at);
    }
}
