/*
 * The root directory of a process that called chroot. It comes late, since paths mean something else from then on. A directory that was removed
 * (a browser's sandbox: an empty directory of a process that has ended) gets a stand-in that is removed as well.
 */
#include "parts.h"
#include "../files.h"
#include "../namespace_plan.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const char DELETED[] = " (deleted)";
static const char ENDING[] = ".tclone-root";

static bool is_deleted(const char *path)
{
    size_t length = strlen(path), suffix = sizeof DELETED - 1;
    return length > suffix && strcmp(path + length - suffix, DELETED) == 0;
}

static bool stands_in_root(const struct process *process)
{
    return strcmp(process->root, process->cwd) == 0;
}

void root_emit_into_dead(struct batch *batch, const struct process *process, const char *path, bool as_root, const char *what)
{
    struct plan *plan = batch->plan;
    struct batch helper = { .plan = plan };
    EMIT(&helper, what, as_root ? SYS_chroot : SYS_chdir, files_path_of_dead(plan, path));
    if (as_root && stands_in_root(process))     /* later nobody gets there */
        EMIT(&helper, what, SYS_chdir, plan_string(plan, "/"));
    EMIT(&helper, what, SYS_exit, 0);
    uint64_t stack[2] = { batch_place(&helper), plan->arena + offsetof(struct arena_control, fault) };
    struct clone_args args = { .flags = CLONE_FS | CLONE_VM | CLONE_VFORK, .stack = plan_reserve(plan, 256), .stack_size = 128 };
    memcpy((char *)plan_local(plan, args.stack) + args.stack_size, stack, sizeof stack);
    struct nest_clone clone = nest_clone(batch, process, NULL, &args);
    emit_op(batch, (struct op){ .number = OP_CLONE, .arg = { plan_data(plan, &args, sizeof args), sizeof args } }, "%s", what);
    uint64_t pid = emit_result_cell(batch);
    nest_clone_done(batch, clone);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_wait4, pid, 0, __WALL, 0);
}

/* A removed directory: made again under its name, or next to it if that is taken, entered and removed. */
static void emit_removed(struct batch *batch, const struct process *process, const char *what)
{
    struct plan *plan = batch->plan;
    const char *path = process->root;
    char name[4096 + 16];
    size_t length = strlen(path) - (sizeof DELETED - 1);
    const size_t ending = sizeof ENDING - 1;
    if (length > ending && memcmp(path + length - ending, ENDING, ending) == 0)
        length -= ending;       /* a fork of a fork */
    snprintf(name, sizeof name, "%.*s%s", (int)length, path, ENDING);
    uint64_t address = plan_string(plan, name);
    EMIT(batch, what, SYS_mkdir, address, 0700);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, address, O_PATH | O_DIRECTORY | O_CLOEXEC);
    uint64_t cell = emit_result_cell(batch);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, plan_string(plan, "."), O_PATH | O_DIRECTORY | O_CLOEXEC);
    uint64_t back = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_fchdir, cell);
    EMIT(batch, what, SYS_rmdir, address);
    EMIT(batch, what, SYS_chroot, plan_string(plan, "."));
    if (!stands_in_root(process))
        EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_fchdir, back);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, cell);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, back);
}

static int root_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    const struct process *process = thread->process;
    struct plan *plan = batch->plan;
    if (thread != &process->threads[0] || process->shares_fs || strcmp(process->root, "/") == 0)
        return 0;
    char what[192];
    snprintf(what, sizeof what, "%s: root %.100s", process_label(process), process->root);
    (void)err;
    if (files_of_dead(plan->world, process->root))
        root_emit_into_dead(batch, process, process->root, true, what);
    else if (is_deleted(process->root))
        emit_removed(batch, process, what);
    else
        EMIT(batch, what, SYS_chroot, plan_string(plan, process->root));
    return 0;
}

const struct part part_root = { .name = "root directory", .emit = root_emit };
