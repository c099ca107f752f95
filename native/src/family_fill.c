/* Fill the holders of families while a branch is built. */
#include "family.h"
#include "rebuild.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHUNK (512ul << 10)
#define MAX_THREADS 4

struct filler {
    struct world *world;
    const struct family *family;
    const struct plan *plan;
    struct branch *branches;
    int branch_count;
    struct held_run *pieces;    /* at most CHUNK each */
    int piece_count, next;
    int64_t bytes;
    pthread_mutex_t lock;       /* guards errors */
    struct error err;           /* of the source */
};

static struct arena_family *words_of(const struct plan *plan, const struct branch *branch, const struct family *family)
{
    return (struct arena_family *)(branch->arena_local + (family->words - plan->arena));
}

static pid_t holder_of(const struct plan *plan, const struct branch *branch, const struct family *family)
{
    const struct tree_node *nodes = (const void *)(branch->arena_local + (branch_control(branch)->nodes - plan->arena));
    return (pid_t)nodes[family->holder].host_pid;
}

static void record_error(struct filler *filler, struct error *of, const struct error *err)
{
    pthread_mutex_lock(&filler->lock);
    if (!of->code)
        *of = *err;
    pthread_mutex_unlock(&filler->lock);
}

/* Shared pages are read through /proc/PID/mem (copy.c tells why). */
static int read_piece(struct filler *filler, const struct held_run *piece, char *buffer, struct error *err)
{
    const struct process *donor = filler->world->processes[piece->donor];
    for (uint64_t at = piece->start; at < piece->end;) {
        ssize_t got = pread(donor->mem, buffer + (at - piece->start), piece->end - at, (off_t)at);
        if (got <= 0)
            return fail_errno(err, "%s: cannot read its memory at %lx", process_label(donor), (unsigned long)at);
        at += (uint64_t)got;
    }
    return 0;
}

static int write_piece(struct filler *filler, struct branch *branch, const struct held_run *piece, char *buffer, struct error *err)
{
    size_t length = piece->end - piece->start;
    struct iovec from = { buffer, length }, to = { (void *)piece->start, length };
    if (process_vm_writev(holder_of(filler->plan, branch, filler->family), &from, 1, &to, 1, 0) == (ssize_t)length)
        return 0;
    if (errno == EFAULT)
        errno = ENOMEM;         /* a page could not be had: the memory limit of the branch */
    return fail_errno(err, "%s: cannot fill the memory that relatives share", branch->id);
}

static void *fill(void *argument)
{
    struct filler *filler = argument;
    char *buffer = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct error err = { 0 };
    if (buffer == MAP_FAILED) {
        fail_errno(&err, "cannot map a copy buffer");
        record_error(filler, &filler->err, &err);
        return NULL;
    }
    for (int i; (i = __atomic_fetch_add(&filler->next, 1, __ATOMIC_SEQ_CST)) < filler->piece_count && !filler->err.code;) {
        const struct held_run *piece = &filler->pieces[i];
        if (read_piece(filler, piece, buffer, &err) < 0) {
            record_error(filler, &filler->err, &err);
            break;
        }
        for (int k = 0; k < filler->branch_count; k++) {
            struct branch *branch = &filler->branches[k];
            struct error refused = { 0 };
            if (!branch->err.code && write_piece(filler, branch, piece, buffer, &refused) < 0)
                record_error(filler, &branch->err, &refused);
        }
        __atomic_add_fetch(&filler->bytes, (int64_t)(piece->end - piece->start), __ATOMIC_SEQ_CST);
    }
    munmap(buffer, CHUNK);
    return NULL;
}

static void cut_pieces(struct filler *filler)
{
    const struct family *family = filler->family;
    size_t count = 0;
    for (int i = 0; i < family->run_count; i++)
        count += (family->runs[i].end - family->runs[i].start + CHUNK - 1) / CHUNK;
    filler->pieces = must_alloc((count + 1) * sizeof *filler->pieces);
    for (int i = 0; i < family->run_count; i++) {
        const struct held_run *run = &family->runs[i];
        for (uint64_t at = run->start; at < run->end; at += CHUNK)
            filler->pieces[filler->piece_count++] = (struct held_run){ at, at + CHUNK < run->end ? at + CHUNK : run->end, run->donor };
    }
}

static void fill_family(struct filler *filler)
{
    pthread_t threads[MAX_THREADS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int helpers = (int)(cores < MAX_THREADS ? cores : MAX_THREADS) - 1, started = 0;
    cut_pieces(filler);
    while (started < helpers && started < filler->piece_count - 1 && pthread_create(&threads[started], NULL, fill, filler) == 0)
        started++;
    fill(filler);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(filler->pieces);
}

int64_t families_fill(struct world *world, const struct plan *plan, struct branch *branches, int branch_count, struct error *err)
{
    int64_t bytes = 0;
    for (int i = 0; i < world->families->count; i++) {
        struct filler filler = { .world = world, .family = &world->families->list[i], .plan = plan, .branches = branches,
                                 .branch_count = branch_count, .lock = PTHREAD_MUTEX_INITIALIZER };
        if (filler.family->embedded)
            continue;
        for (int k = 0; k < branch_count; k++)
            if (!branches[k].err.code)
                rebuild_await(world, &branches[k], &words_of(plan, &branches[k], filler.family)->mapped, 1, "memory that relatives share",
                              &branches[k].err);
        fill_family(&filler);
        if (filler.err.code) {
            *err = filler.err;
            return -1;
        }
        bytes += filler.bytes;
        for (int k = 0; k < branch_count; k++) {
            if (branches[k].err.code)
                continue;
            uint32_t *filled = &words_of(plan, &branches[k], filler.family)->filled;
            __atomic_store_n(filled, 1, __ATOMIC_SEQ_CST);
            syscall(SYS_futex, filled, FUTEX_WAKE, 1, NULL, NULL, 0);
        }
    }
    return bytes;
}
