/*
 * /proc/locks names the holder's process and the inode of each lock, so only few files need a closer look. A record lock (fcntl) belongs to
 * a process and an inode: any of the process's descriptors of that file will do to take it again. flock and OFD locks belong to an open file
 * description; which one, its fdinfo tells.
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

enum lock_kind { LOCK_RECORD, LOCK_WHOLE_FILE, LOCK_OPEN_FILE };

struct file_lock {
    enum lock_kind kind;
    bool write;
    int pid;                    /* host's, for record locks */
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
        return false;           /* a waiter ("->"), or a lease */
    if (strcmp(kind, "POSIX") == 0)
        lock->kind = LOCK_RECORD;
    else if (strcmp(kind, "FLOCK") == 0)
        lock->kind = LOCK_WHOLE_FILE;
    else if (strcmp(kind, "OFDLCK") == 0)
        lock->kind = LOCK_OPEN_FILE;
    else
        return false;
    lock->write = strcmp(access, "WRITE") == 0;
    lock->start = start;
    lock->length = strcmp(end, "EOF") == 0 ? 0 : atoll(end) - start + 1;
    return true;
}

static void add_lock(struct file_lock lock)
{
    locks = must_grow(locks, (size_t)(lock_count + 1) * sizeof lock);
    locks[lock_count++] = lock;
}

/* A descriptor of the process for this file that may hold such a lock: writing needs one that is open for writing. */
static void find_record_holder(struct world *world, struct file_lock *lock)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        for (int k = 0; process->pid == lock->pid && k < process->fd_count; k++) {
            const struct description *description = process->fds[k].description;
            int access = description->flags & O_ACCMODE;
            if (description->st.st_ino != lock->inode || !S_ISREG(description->st.st_mode))
                continue;
            if (access == O_RDWR || access == (lock->write ? O_WRONLY : O_RDONLY)) {
                lock->process = process;
                lock->fd = process->fds[k].fd;
                add_lock(*lock);
                return;
            }
        }
    }
}

static int read_file_locks(const struct description *description, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, LOCKS_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
    if (!text)
        return -1;
    for (const char *line = strstr(text, "lock:\t"); line; line = strstr(line + 1, "lock:\t")) {
        struct file_lock lock = { .description = description };
        const char *number = strchr(line, ' ');
        if (number && parse_lock(number, &lock) && lock.kind != LOCK_RECORD)
            add_lock(lock);
    }
    return 0;
}

static int by_value(const void *left, const void *right)
{
    unsigned long a = *(const unsigned long *)left, b = *(const unsigned long *)right;
    return a < b ? -1 : a > b;
}

int locks_read(struct world *world, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, LOCKS_LIMIT, NULL, "/proc/locks");
    AUTO_FREE unsigned long *inodes = NULL;
    size_t count = 0;
    if (!text)
        return -1;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        struct file_lock lock = { 0 };
        const char *number = strchr(line, ' ');
        if (!number || !parse_lock(number, &lock))
            continue;
        if (lock.kind == LOCK_RECORD) {
            find_record_holder(world, &lock);
            continue;
        }
        inodes = must_grow(inodes, (count + 1) * sizeof *inodes);
        inodes[count++] = lock.inode;
    }
    if (count == 0)
        return 0;
    qsort(inodes, count, sizeof *inodes, by_value);
    for (int i = 0; i < world->description_count; i++) {
        const struct description *description = world->descriptions[i];
        unsigned long inode = description->st.st_ino;
        if (S_ISREG(description->st.st_mode) && bsearch(&inode, inodes, count, sizeof *inodes, by_value)
            && read_file_locks(description, err) < 0)
            return -1;
    }
    return 0;
}

void locks_emit(struct plan *plan)
{
    for (int i = 0; i < lock_count; i++) {
        const struct file_lock *lock = &locks[i];
        if (lock->kind == LOCK_WHOLE_FILE) {
            EMIT(&plan->common[STAGE_FILL], description_label(lock->description), SYS_flock, SLOT(plan, lock->description),
                 (uint64_t)((lock->write ? LOCK_EX : LOCK_SH) | LOCK_NB));
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
