/* Of the process: dumpable, child subreaper, huge pages, memory merging, the OOM killer's adjustment, what a core file holds; and the death signal of each thread. */
#include "parts.h"
#include "../doubt.h"
#include "../locks.h"
#include "../proc.h"
#include "../process_batch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_GET_MEMORY_MERGE
#define PR_GET_MEMORY_MERGE 68
#endif
#ifndef PR_GET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif
#define PROC_LIMIT 4096
#define LDT_READ 0
#define LDT_ENTRY 8             /* bytes */
#define DUMPABLE_BY_ROOT_ONLY 2     /* cannot be set: only the kernel itself does, for setuid programs */

/* What the engine gave us it gave the restorer too. */
struct own_values {
    int oom_score_adjust;
    bool audited;               /* the kernel knows who logged in */
    uint32_t login;
    unsigned core_filter;
};

static const struct own_values *own_values(void)
{
    static struct own_values values;
    static bool known;
    struct error no_score = { 0 }, no_login = { 0 }, no_filter = { 0 };
    if (known)
        return &values;
    known = true;
    AUTO_FREE char *adjust = proc_read(&no_score, PROC_LIMIT, NULL, "/proc/self/oom_score_adj");
    AUTO_FREE char *login = proc_read(&no_login, PROC_LIMIT, NULL, "/proc/self/loginuid");
    AUTO_FREE char *filter = proc_read(&no_filter, PROC_LIMIT, NULL, "/proc/self/coredump_filter");
    doubt_error(&no_score);
    doubt_error(&no_login);
    doubt_error(&no_filter);
    values = (struct own_values){ adjust ? atoi(adjust) : 0, login != NULL, login ? (uint32_t)strtoul(login, NULL, 10) : 0,
                                  filter ? (unsigned)strtoul(filter, NULL, 16) : 0 };
    return &values;
}

/* ---- what a core file holds: few programs choose it, so most are not asked while they stand still ---- */

static pid_t *choosers;
static int chooser_count;

/* -1 when it cannot be told: it has ended, or the kernel writes no core files. */
static int64_t core_filter_of(pid_t pid)
{
    struct error ignored = { 0 };
    AUTO_FREE char *text = proc_read(&ignored, PROC_LIMIT, NULL, "/proc/%d/coredump_filter", pid);
    return text && *text ? (int64_t)strtoul(text, NULL, 16) : -1;
}

void process_note_core_filter(const struct process *process)
{
    int64_t filter = core_filter_of(process->pid);
    if (filter < 0 || filter == own_values()->core_filter)
        return;
    choosers = must_grow(choosers, (size_t)(chooser_count + 1) * sizeof *choosers);
    choosers[chooser_count++] = process->group_leader;
}

static unsigned core_filter_frozen(const struct process *process)
{
    for (int i = 0; i < chooser_count; i++) {
        int64_t filter = choosers[i] == process->group_leader ? core_filter_of(process->pid) : -1;
        if (filter >= 0)
            return (unsigned)filter;
    }
    return own_values()->core_filter;
}

/* ---- files in /proc that livefork writes to, for a sandbox may see none of them ---- */

static int write_to(pid_t pid, const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 || write(fd, text, strlen(text)) < 0 ? -1 : 0;
}

static int use_resource_right(bool use, struct error *err)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2];
    const uint32_t right = 1u << CAP_SYS_RESOURCE;
    if (syscall(SYS_capget, &header, data) < 0)
        return fail_errno(err, "cannot read this program's capabilities");
    data[0].effective = use ? data[0].effective | (data[0].permitted & right) : data[0].effective & ~right;
    return syscall(SYS_capset, &header, data) < 0 ? fail_errno(err, "cannot change this program's capabilities") : 0;
}

/*
 * Whoever sets a score with CAP_SYS_RESOURCE also sets the lowest that the process may choose from then on: so the score is raised without. Lowering needs
 * it; where the engine lacks it the branch is a little more likely to be killed than its source.
 */
static int set_oom_score(const struct process *process, pid_t pid, struct error *err)
{
    int value = process->state->oom_score_adjust, usual = own_values()->oom_score_adjust;
    char text[16];
    if (value == usual)
        return 0;
    snprintf(text, sizeof text, "%d", value);
    if (value > usual && use_resource_right(false, err) < 0)
        return -1;
    int status = write_to(pid, "oom_score_adj", text), number = errno;
    if (value > usual && use_resource_right(true, err) < 0)
        return -1;
    errno = number;
    return status < 0 && (value > usual || errno != EACCES) ? fail_errno(err, "%s: cannot set its OOM score in the branch", process_label(process)) : 0;
}

int process_finish(const struct process *process, pid_t pid, struct error *err)
{
    char text[16];
    if (set_oom_score(process, pid, err) < 0)
        return -1;
    snprintf(text, sizeof text, "%#x", process->state->core_filter);
    if (process->state->core_filter != own_values()->core_filter && write_to(pid, "coredump_filter", text) < 0)
        return fail_errno(err, "%s: cannot choose in the branch what a core file of it holds (coredump_filter)", process_label(process));
    return 0;
}

struct process_memo {
    int dumpable_op, thp_op, merge_op, deny_op, subreaper_op, ldt_op;
    uint64_t subreaper, ldt;
};

static int process_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    if (!query_is_leader(query))
        return 0;
    struct process_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->subreaper = query_reserve(query, sizeof(int));
    mine->ldt = query_reserve(query, LDT_ENTRY);
    mine->ldt_op = ASK(query, SYS_modify_ldt, LDT_READ, mine->ldt, LDT_ENTRY);
    mine->dumpable_op = ASK(query, SYS_prctl, PR_GET_DUMPABLE);
    mine->thp_op = ASK(query, SYS_prctl, PR_GET_THP_DISABLE);
    mine->merge_op = ASK(query, SYS_prctl, PR_GET_MEMORY_MERGE);
    mine->deny_op = ASK(query, SYS_prctl, PR_GET_MDWE);
    mine->subreaper_op = ASK(query, SYS_prctl, PR_GET_CHILD_SUBREAPER, mine->subreaper);
    return 0;
}

static int positive(const struct query *query, int op)
{
    int64_t result = query_result(query, op);
    return result > 0 ? (int)result : 0;
}

static int process_collect(struct query *query, void *memo, struct error *err)
{
    if (!memo)
        return 0;
    const struct process_memo *mine = memo;
    struct process *process = query_thread(query)->process;
    struct process_state *state = process_state(process);
    /* Without a table nothing is read. How many entries one has nobody tells, and reading all 8192 would cost every fork. */
    if (query_result(query, mine->ldt_op) == LDT_ENTRY)
        return fail(err, "unsupported", "%s has memory segments of its own (modify_ldt, for 16-bit programs), which cannot be forked; end it",
                    process_label(process));
    state->dumpable = positive(query, mine->dumpable_op);
    state->thp_disabled = positive(query, mine->thp_op);
    state->memory_merge = positive(query, mine->merge_op);
    state->memory_deny_write_execute = positive(query, mine->deny_op);
    if (query_result(query, mine->subreaper_op) == 0)
        state->child_subreaper = *(int *)query_read(query, mine->subreaper);
    AUTO_FREE char *text = proc_read(err, PROC_LIMIT, NULL, "/proc/%d/oom_score_adj", process->pid);
    if (!text)
        return -1;
    state->oom_score_adjust = atoi(text);
    state->core_filter = core_filter_frozen(process);
    state->login = own_values()->login;
    if (own_values()->audited) {
        AUTO_FREE char *login = proc_read(err, PROC_LIMIT, NULL, "/proc/%d/loginuid", process->pid);
        if (!login)
            return -1;
        state->login = (uint32_t)strtoul(login, NULL, 10);
    }
    return 0;
}

/* A task inherits it; so each writes its own. Not in a nested user namespace, which may not know the id: there it stays what the parent's was. */
static void emit_login(struct batch *batch, const struct process *process)
{
    char text[16];
    if (process->state->login == own_values()->login || process->host_ids)
        return;
    struct plan *plan = batch->plan;
    int length = snprintf(text, sizeof text, "%u", process->state->login);
    EMIT_FLAGS(batch, "login id", TOLERATING(NO_LOGIN_FILE), SYS_openat, (uint64_t)AT_FDCWD,
               plan_string(plan, "/proc/thread-self/loginuid"), O_WRONLY | O_CLOEXEC);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, "login id", OP_LOAD(0) | TOLERATING(NO_LOGIN_FILE), SYS_write, cell, plan_data(plan, text, sizeof text), (uint64_t)length);
    EMIT_FLAGS(batch, "login id", OP_LOAD(0) | TOLERATING(NO_LOGIN_FILE), SYS_close, cell);
}

static int process_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    emit_login(batch, process);
    if (thread != &process->threads[0])
        return 0;
    const struct process_state *state = process->state;
    if (state->child_subreaper)
        EMIT(batch, "child subreaper", SYS_prctl, PR_SET_CHILD_SUBREAPER, 1);
    if (state->thp_disabled)
        EMIT(batch, "huge pages", SYS_prctl, PR_SET_THP_DISABLE, 1, (uint64_t)(state->thp_disabled & ~1));
    if (state->memory_deny_write_execute)
        EMIT(batch, "write-execute denial", SYS_prctl, PR_SET_MDWE, (uint64_t)state->memory_deny_write_execute);
    return 0;
}

const struct part part_process = { .name = "process", .ask = process_ask, .collect = process_collect, .emit = process_emit };

/* A change of credentials clears the death signal and makes the memory undumpable. The leader comes last, so its word on the latter stands. */
static int after_credentials_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    if (thread->attributes->death_signal && process->parent && process_leader_is_awaited(process->parent))
        EMIT(batch, "death signal", OP_WAIT, process_leader_gone(batch->plan, process->parent), 1);
    if (thread->attributes->death_signal)
        EMIT(batch, "death signal", SYS_prctl, PR_SET_PDEATHSIG, (uint64_t)thread->attributes->death_signal);
    if (thread == &process->threads[0])
        EMIT(batch, "dumpable", SYS_prctl, PR_SET_DUMPABLE, (uint64_t)(process->state->dumpable % DUMPABLE_BY_ROOT_ONLY));
    if (thread == &process->threads[0])
        locks_emit_late_leases(batch, process);
    return 0;
}

const struct part part_after_credentials = { .name = "after credentials", .emit = after_credentials_emit };
