/*
 * A domain of Landlock is shown to nobody, but it shows itself: whoever lives in one may not look into a process outside of it. So each thread is made to
 * compare its own table with its parent's. Where the parent is of the same user, with no more capabilities, nothing else can forbid that.
 */
#include "parts.h"
#include "../doubt.h"
#include "../namespaces.h"
#include "../proc.h"

#include <errno.h>
#include <linux/kcmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define LABEL_LIMIT 4096

struct landlock_memo {
    int compare_op;             /* -1 = there is nobody to compare with */
};

static bool comparable(const struct process *process)
{
    const struct process *parent = process->parent;
    return parent && !parent->zombie && parent->namespaces[NAMESPACE_USER] == process->namespaces[NAMESPACE_USER]
        && parent->namespaces[NAMESPACE_PID] == process->namespaces[NAMESPACE_PID];
}

static int landlock_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    struct landlock_memo *mine = *memo = must_alloc(sizeof *mine);
    const struct process *process = query_thread(query)->process;
    mine->compare_op = comparable(process) ? ASK(query, SYS_kcmp, (uint64_t)inner_pid(process), (uint64_t)inner_pid(process->parent), KCMP_VM, 0, 0) : -1;
    return 0;
}

static int landlock_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    const struct landlock_memo *mine = memo;
    query_thread(query)->denied = mine->compare_op >= 0 && query_result(query, mine->compare_op) == -EPERM;
    return 0;
}

/* Another security module may tell them apart. */
static bool same_label(const struct process *one, const struct process *other)
{
    struct error no_left = { 0 }, no_right = { 0 };
    AUTO_FREE char *left = proc_read(&no_left, LABEL_LIMIT, NULL, "/proc/%d/attr/current", one->pid);
    AUTO_FREE char *right = proc_read(&no_right, LABEL_LIMIT, NULL, "/proc/%d/attr/current", other->pid);
    if (!left != !right)
        doubt_error(left ? &no_right : &no_left);
    return (!left && !right) || (left && right && strcmp(left, right) == 0);
}

/* By all that the kernel asks else, it might have looked (ptrace_may_access, with real ids). */
static bool would_be_allowed(const struct thread *thread)
{
    const struct process *parent = thread->process->parent;
    const struct credentials *mine = &thread->credentials, *theirs = &parent->threads[0].credentials;
    for (int i = 0; i < 3; i++)
        if (theirs->uid[i] != mine->uid[0] || theirs->gid[i] != mine->gid[0])
            return false;
    return parent->state && parent->state->dumpable == 1 && (theirs->permitted & ~mine->permitted) == 0 && same_label(thread->process, parent);
}

int landlock_check(const struct world *world, struct error *err)
{
    for (int i = 1; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        for (int k = 0; !process->zombie && k < process->thread_count; k++)
            if (process->threads[k].denied && would_be_allowed(&process->threads[k]))
                return fail(err, "unsupported", "%s has confined itself (Landlock), which a branch of it would not be; end it, or start it without that",
                            process_label(process));
    }
    return 0;
}

const struct part part_landlock = { .name = "Landlock domain", .ask = landlock_ask, .collect = landlock_collect };
