/* From the captured world to a running branch. */
#ifndef TCLONE_REBUILD_H
#define TCLONE_REBUILD_H

#include "arena.h"
#include "branch.h"
#include "plan.h"

struct release_point {          /* per thread: where its last op (the wait for release) lies */
    uint64_t op;
};

struct compiled {
    struct plan plan;
    struct arena_control *control;  /* in the template */
    uint64_t gates;             /* uint32_t[process_count]: memory filled, go on */
    struct release_point **points;  /* [process][thread] */
    int process_count;          /* live ones */
    int thread_count;
};

/* Compile the world once for all branches. */
int rebuild_compile(struct world *world, struct compiled *compiled, struct error *err);
/* Give one branch its root, descriptors and arena, and set it going. */
int rebuild_start(struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err);
/* Wait for a counter of the control page, for a fault, or for the branch's death. */
int rebuild_await(const struct world *world, struct branch *branch, const uint32_t *word, uint32_t wanted, const char *what, struct error *err);
/* The first process of a branch has ended: fails with what it said of that, else with the code "killed". `what` was to be there next. */
int rebuild_ended(const struct branch *branch, const char *what, struct error *err);
/* Learn the host pids of a mapped branch and open the memory of each process. */
int rebuild_open_processes(const struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err);
/* Let process `index` go on: its memory is filled. */
void rebuild_open_gate(const struct compiled *compiled, struct branch *branch, int index);
/* Behind all gates: wait until the first threads that children are to be told of have ended, too (process_batch.h). */
int rebuild_await_leaders(const struct world *world, struct compiled *compiled, struct branch *branch, struct error *err);
/* Give every thread its registers and let all go at once (release.c). */
int release_branch(const struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err);

/* Whose texts faults are looked up in. */
void rebuild_set_current(const struct compiled *compiled);
struct arena_control *branch_control(const struct branch *branch);

#define ARENA_LIMIT (1ull << 30)

#endif
