/*
 * The plan: batches under construction, in the arena that a branch will map at ARENA.
 *
 * Order of work in a branch (restore.c):
 *   MAKE, CONNECT       objects that descriptors refer to, made by pid 1 in ONE descriptor table that all processes share at first; within a
 *                       stage first the common batch, then the batches of "creators", short-lived processes with a given pid and
 *                       credentials: the kernel takes SO_PEERCRED from who calls listen, connect and socketpair
 *   process tree        clone3 with the right ids; sessions (with their session batches) and groups
 *   late batch          what needs the other processes: pidfds, /proc/PID files (threads do not exist yet)
 *   FILL, WATCH         by pid 1; a creator now gets any pid, since the right one is taken
 *   own batch           each process in itself: memory map, then its descriptors are taken from the shared table to their own numbers
 *   (livefork fills the memory)
 *   finish batch        each process and thread: signal actions, timers, credentials, seccomp …, then it waits to be released
 */
#ifndef TCLONE_PLAN_H
#define TCLONE_PLAN_H

#include "op.h"
#include "tolerances.h"
#include "world.h"

#include <time.h>

#define ARENA 0x100000000000ul  /* default address of the arena; plan->arena is the chosen one */

enum stage {
    STAGE_MAKE,         /* sockets bound and listening, pipes, event descriptors, files, terminals */
    STAGE_CONNECT,      /* what needs a listener or a peer: connect, accept */
    STAGE_FILL,         /* queues: bytes and descriptors in flight; half-closed states */
    STAGE_WATCH,        /* what refers to other descriptors: epoll, then nested epoll; inotify */
    STAGES
};

struct batch {
    struct plan *plan;
    const char *who;            /* of a process's own: put in front of what does not name a process; NULL = nobody */
    struct op *ops;
    int count, capacity;
};

struct plan {
    struct world *world;
    char *arena_local;          /* our mapping of the arena template */
    uint64_t arena;             /* its address in the branch */
    size_t used, size;
    struct batch common[STAGES], late;
    struct creator *creators;
    int creator_count;
    struct batch mounts;        /* run first of all by pid 1: the workspace's own interfaces and mounts (network.c, mount_build.c) */
    struct batch *own, *session;    /* one a process */
    struct batch *namespace_setup;  /* one a namespace, where some are nested */
};

/* ---- data ---- */
/* Room in the arena, zeroed, 16-aligned; the address is the branch's. plan_local gives our pointer to it. */
uint64_t plan_reserve(struct plan *plan, size_t size);
uint64_t plan_data(struct plan *plan, const void *data, size_t size);
uint64_t plan_string(struct plan *plan, const char *text);
void *plan_local(struct plan *plan, uint64_t address);

/* ---- ops ---- */
/*
 * Append an op; trailing arguments may be left out. `what` is a printf format that names the object ("pid 41 (bash) fd 5: pipe").
 * Returns its index in the batch.
 */
int emit_op(struct batch *batch, struct op op, const char *what, ...) __attribute__((format(printf, 3, 4)));
#define EMIT(batch, what, nr, ...) emit_op((batch), (struct op){ .number = (nr), .arg = { __VA_ARGS__ } }, "%s", (what))
#define EMIT_FLAGS(batch, what, flag, nr, ...) emit_op((batch), (struct op){ .number = (nr), .flags = (flag), .arg = { __VA_ARGS__ } }, "%s", (what))
/*
 * A cell in the arena that receives the result of the op last emitted on this batch (the value is stored 64 bits wide); give its address to OP_LOAD.
 * Until then, and if the op fails and may, it holds -1: no descriptor.
 */
uint64_t emit_result_cell(struct batch *batch);

struct timespec timespec_sum(struct timespec a, struct timespec b);
/*
 * Make the batch write into the timespec (unit 1) or timeval (unit 1000, in ns) at `cell` what is left when it runs, of the time `left` that was left
 * at `captured` (CLOCK_MONOTONIC). A time so long that it cannot be counted in ns stays as it is.
 */
void emit_time_left(struct batch *batch, uint64_t cell, struct timespec left, const struct timespec *captured, uint64_t unit, const char *what);
/* The same for something periodic: ends of periods that have passed are added to the 64 bits at `missed`, and the next is waited for. */
void emit_period_left(struct batch *batch, uint64_t cell, const struct itimerspec *spec, const struct timespec *captured, uint64_t missed,
                      const char *what);

/* ---- descriptors ---- */
#define SLOT(plan, description) ((uint64_t)((plan)->world->slot_base + (description)->index))
/* Move the descriptor that the last op returned to the slot of a description (dup3 with O_CLOEXEC clear, then close). */
void emit_to_slot(struct batch *batch, const struct description *description, const char *what);
/* fcntl F_SETFL to the status flags the description had (O_APPEND, O_NONBLOCK, O_ASYNC, O_DIRECT, O_NOATIME), F_SETOWN_EX and F_SETSIG. */
void emit_status_flags(struct batch *batch, const struct description *description, const char *what);

/*
 * The batch of the creator with this namespace pid, credentials and stage. It runs in a short-lived process that has this pid (if no
 * such pid may be used, 0 = any) and shares the descriptor table with pid 1.
 */
struct batch *plan_creator(struct plan *plan, enum stage stage, int ns_pid, uint32_t uid, uint32_t gid);

/* The same, but a new one even if there is one with this pid already: creators run in the order in which they were planned. */
struct batch *plan_fresh_creator(struct plan *plan, enum stage stage, int ns_pid, uint32_t uid, uint32_t gid);

/* Run by pid 1 once the whole process tree exists, while all still share one descriptor table: pidfds, /proc/PID files, owners. */
struct batch *plan_late(struct plan *plan);

/* Run by a session leader right after its setsid and before it forks: what children inherit (the controlling terminal). STAGE_MAKE is done,
 * the table is still shared. */
struct batch *plan_session(struct plan *plan, const struct process *leader);

/* The batch in `process` itself, run after it has its descriptors, ids, memory and signal actions, before its threads are released.
 * For state that can only be set from inside (pending signals to self, owners, leases). */
struct batch *plan_own(struct plan *plan, const struct process *process);

/* Copy a finished batch and its OP_STOP into the arena; returns the address. */
uint64_t batch_place(struct batch *batch);

struct creator {
    enum stage stage;
    int ns_pid;
    uint32_t uid, gid;
    struct batch *batch;
};

/* ---- kinds of descriptors ---- */
struct fd_kind {
    const char *name;                                       /* as users know it: "eventfd" */
    /* Is this description of my kind? Looks at st, link; must be cheap. */
    bool (*match)(const struct description *description);
    /* Run while the source is frozen: read all that emit needs into description->data. Must not change the source. NULL = nothing to read. */
    int (*capture)(struct world *world, struct description *description, struct error *err);
    /* Once, after every description was captured (for state that links several: unix peers). NULL = none. */
    int (*link)(struct world *world, struct error *err);
    /* Emit what makes the description in a branch: called for each stage in order; emit nothing in stages that do not concern it. */
    int (*emit)(struct plan *plan, const struct description *description, enum stage stage, struct error *err);
    /* Before the freeze: refuse what cannot be forked, naming pid, command, descriptor and remedy. NULL = always fine. */
    int (*check)(struct world *world, const struct description *description, struct error *err);
};
/* kinds.c lists every kind; the first whose match is true takes the description. */
extern const struct fd_kind *const fd_kinds[];

#endif
