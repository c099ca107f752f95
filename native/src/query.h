/*
 * Questions that only a task itself can answer (signal actions, alternate stack, prctl …): a batch that inject.c runs inside each thread of
 * the frozen source. Every op is allowed to fail; a part looks at the results.
 */
#ifndef TCLONE_QUERY_H
#define TCLONE_QUERY_H

#include "op.h"
#include "plan.h"
#include "world.h"

struct query;

struct thread *query_thread(struct query *query);
bool query_is_leader(const struct query *query);
/* Room in the source's scratch mapping (zeroed); returns its address there, usable as an argument. */
uint64_t query_reserve(struct query *query, size_t size);
/* The same, filled with data. */
uint64_t query_data(struct query *query, const void *data, size_t size);
/* Append an op; returns its index. */
int query_op(struct query *query, struct op op);
#define ASK(query, nr, ...) query_op((query), (struct op){ .number = (nr), .arg = { __VA_ARGS__ } })
/* After the batch ran: result of an op, and our copy of what lies at a reserved address. */
int64_t query_result(const struct query *query, int op_index);
void *query_read(const struct query *query, uint64_t address);

/*
 * A part of a thread's (or, on the leader, a process's) state. Parts keep op indices and addresses between ask and collect in the
 * struct that `ask` returns by way of *memo (freed by the caller with free()).
 */
struct part {
    const char *name;
    int (*ask)(struct query *query, void **memo, struct error *err);        /* may be NULL */
    int (*collect)(struct query *query, void *memo, struct error *err);     /* may be NULL; runs while the source is frozen */
    /* Ops run in the branch's thread, in the order of parts[]; memory and descriptors are in place, all signals are blocked. */
    int (*emit)(struct batch *batch, const struct thread *thread, struct error *err);
};
/* parts.c: in the order of emission. Credentials and seccomp come last: after them most else would be refused. */
extern const struct part *const parts[];

#endif
