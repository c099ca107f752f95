#include "rebuild.h"
#include "doubt.h"
#include "family.h"
#include "files.h"
#include "freeze.h"
#include "ipc_namespaces.h"
#include "locks.h"
#include "memory.h"
#include "mounts.h"
#include "namespace_plan.h"
#include "namespace_service.h"
#include "posix_queues.h"
#include "proc.h"
#include "process_batch.h"
#include "shared.h"
#include "sysv.h"
#include "tolerances.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Without anything done. Where hundreds have ended and wait to be reaped, a busy machine takes longer for all of them; the engine limits the whole. */
#define REBUILD_TIMEOUT_NS (30ull * 1000 * 1000 * 1000)
#define ARENA_SPACING (1ull << 32)
#define LEADER_PAUSE_US 100
#define STAT_LIMIT 4096

/* ---- compile ---- */

static int choose_arena(struct world *world, struct plan *plan, struct error *err)
{
    for (uint64_t at = ARENA; at < TASK_TOP / 2; at += ARENA_SPACING) {
        if (memory_range_free(world, at, at + ARENA_LIMIT)) {
            plan->arena = at;
            return 0;
        }
    }
    return fail(err, "limit", "the address spaces of the source leave no common room for the arena");
}

static int start_plan(struct world *world, struct compiled *compiled, struct error *err)
{
    struct plan *plan = &compiled->plan;
    plan->world = world;
    plan->size = ARENA_LIMIT;
    if (choose_arena(world, plan, err) < 0)
        return -1;
    plan->arena_local = mmap(NULL, plan->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (plan->arena_local == MAP_FAILED)
        return fail_errno(err, "cannot map the arena");
    compiled->control = plan_local(plan, plan_reserve(plan, sizeof *compiled->control));
    compiled->gates = plan_reserve(plan, (size_t)world->process_count * sizeof(uint32_t));
    compiled->control->interpreter = plan_data(plan, interp_start, (size_t)(interp_end - interp_start));
    compiled->control->slot_base = (uint32_t)world->slot_base;
    tolerances_fill(compiled->control->tolerated);
    for (int i = 0; i < STAGES; i++)
        plan->common[i].plan = plan;
    plan->late.plan = plan->mounts.plan = plan;
    plan->own = must_alloc((size_t)world->process_count * sizeof *plan->own);
    plan->session = must_alloc((size_t)world->process_count * sizeof *plan->session);
    for (int i = 0; i < world->process_count; i++)
        plan->own[i].plan = plan->session[i].plan = plan;
    return 0;
}

static int emit_descriptions(struct plan *plan, struct error *err)
{
    struct world *world = plan->world;
    for (int stage = 0; stage < STAGES; stage++)
        for (int i = 0; i < world->description_count; i++)
            if (world->descriptions[i]->kind->emit(plan, world->descriptions[i], stage, err) < 0)
                return -1;
    return 0;
}

static void place_stages(struct plan *plan, struct arena_control *control)
{
    _Static_assert((int)STAGES == ARENA_STAGES, "restore.c runs as many stages as are planned");
    for (int i = 0; i < STAGES; i++)
        control->stages[i] = batch_place(&plan->common[i]);
    control->late_batch = batch_place(&plan->late);
    control->mounts = plan->mounts.count ? batch_place(&plan->mounts) : 0;
    struct arena_creator *creators = must_alloc((size_t)(plan->creator_count + 1) * sizeof *creators);
    for (int i = 0; i < plan->creator_count; i++) {
        struct creator *from = &plan->creators[i];
        creators[i] = (struct arena_creator){ .stage = from->stage, .pid = from->ns_pid, .uid = from->uid, .gid = from->gid,
                                              .batch = batch_place(from->batch) };
    }
    control->creator_count = (uint32_t)plan->creator_count;
    control->creators = plan_data(plan, creators, (size_t)plan->creator_count * sizeof *creators);
    free(creators);
}

int rebuild_compile(struct world *world, struct compiled *compiled, struct error *err)
{
    if (start_plan(world, compiled, err) < 0)
        return -1;
    struct plan *plan = &compiled->plan;
    if (namespace_plan_begin(plan, tree_last_pid(world), err) < 0 || mounts_emit(plan, err) < 0)
        return -1;
    ipc_emit(plan);
    /* Executables add openings, so they come before the batch that opens files. */
    if (process_batches_prepare(world, err) < 0 || files_emit(plan, err) < 0 || emit_descriptions(plan, err) < 0)
        return -1;
    locks_emit(plan);
    sysv_semaphores_emit(plan);
    if (tree_plan(plan, compiled->control, err) < 0)
        return -1;
    struct tree_node *nodes = plan_local(plan, compiled->control->nodes);
    families_plan(world, nodes, (int)compiled->control->array_length);
    if (families_emit(plan, nodes, err) < 0)
        return -1;
    compiled->points = must_alloc((size_t)world->process_count * sizeof *compiled->points);
    int status = 0;
    for (int i = 0; i < world->process_count && status == 0; i++) {
        struct process *process = world->processes[i];
        if (process->zombie)
            continue;
        compiled->process_count++;
        compiled->thread_count += process->thread_count;
        compiled->points[i] = must_alloc((size_t)process->thread_count * sizeof **compiled->points);
        nodes[i].batch = process_batch(compiled, process, err);
        if (!nodes[i].batch)
            status = -1;
    }
    if (status == 0)
        place_stages(plan, compiled->control);
    if (status == 0)
        status = namespace_plan_place(plan, compiled->control, err);
    return status == 0 ? doubts_check(err) : status;
}

/* ---- messages to tclone-restore ---- */

struct gift { uint64_t slot; int fd; struct branch *branch; };
static struct gift *gifts;
static int gift_count, gift_capacity;

void branch_give(struct branch *branch, uint64_t slot, int fd)
{
    if (gift_count == gift_capacity) {
        gift_capacity = gift_capacity ? gift_capacity * 2 : 64;
        gifts = must_grow(gifts, (size_t)gift_capacity * sizeof *gifts);
    }
    gifts[gift_count++] = (struct gift){ slot, fd, branch };
}

int rebuild_ended(const struct branch *branch, const char *what, struct error *err)
{
    char text[RESTORE_TEXT + 1];
    ssize_t got;
    int resets = 0;
    /* An end that was left with packets of ours unread resets the socket once; what it said is still queued. */
    do
        got = recv(branch->socket, text, sizeof text - 1, MSG_DONTWAIT);
    while (got < 0 && errno == ECONNRESET && ++resets < 2);
    if (got > 0) {
        text[got] = 0;
        return fail(err, "internal", "%s: its restorer gave up: %s", branch->id, text);
    }
    return fail(err, "killed", "%s: its processes were killed (%s)", branch->id, what);
}

static int send_message(struct branch *branch, struct message *message, const int *fds, int count, struct error *err)
{
    union { char bytes[CMSG_SPACE(MESSAGE_SLOTS * sizeof(int))]; struct cmsghdr align; } buffer = { 0 };
    struct iovec io = { message, sizeof *message };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1 };
    if (count) {
        header.msg_control = &buffer;
        header.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(part), fds, (size_t)count * sizeof(int));
    }
    if (sendmsg(branch->socket, &header, MSG_NOSIGNAL) < 0) {
        if (errno == EPIPE || errno == ECONNRESET)
            return rebuild_ended(branch, "nothing was made yet", err);
        return fail_errno(err, "%s: its restorer cannot be reached", branch->id);
    }
    return 0;
}

static int send_gifts(struct branch *branch, struct error *err)
{
    struct message message = { .type = MESSAGE_GIVE };
    int fds[MESSAGE_SLOTS], kept = 0;
    int status = 0;
    for (int i = 0; i <= gift_count; i++) {
        bool last = i == gift_count;
        if (!last && gifts[i].branch != branch) {
            gifts[kept++] = gifts[i];
            continue;
        }
        if (!last) {
            message.slots[message.count] = (uint32_t)gifts[i].slot;
            fds[message.count++] = gifts[i].fd;
        }
        if (message.count == MESSAGE_SLOTS || (last && message.count)) {
            if (status == 0)
                status = send_message(branch, &message, fds, (int)message.count, err);
            for (uint32_t k = 0; k < message.count; k++)
                close(fds[k]);
            message.count = 0;
        }
    }
    gift_count = kept;
    return status;
}

static int make_arena(const struct compiled *compiled, struct branch *branch, struct error *err)
{
    const struct plan *plan = &compiled->plan;
    branch->arena = memfd_create("tclone-arena", MFD_CLOEXEC);
    if (branch->arena < 0 || ftruncate(branch->arena, (off_t)plan->used) < 0)
        return fail_errno(err, "%s: cannot make its arena", branch->id);
    branch->arena_local = mmap(NULL, plan->used, PROT_READ | PROT_WRITE, MAP_SHARED, branch->arena, 0);
    if (branch->arena_local == MAP_FAILED)
        return fail_errno(err, "%s: cannot map its arena", branch->id);
    memcpy(branch->arena_local, plan->arena_local, plan->used);
    return 0;
}

static int send_setup(const struct compiled *compiled, struct branch *branch, struct error *err)
{
    AUTO_CLOSE int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0)
        return fail_errno(err, "cannot open /proc");
    struct message message = { .type = MESSAGE_SETUP, .arena = compiled->plan.arena, .arena_size = compiled->plan.used };
    int fds[3] = { branch->arena, branch->root, proc };
    return send_message(branch, &message, fds, 3, err);
}

int rebuild_start(struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/ipc", branch->init);
    branch->ipc_ns = open(path, O_RDONLY | O_CLOEXEC);
    if (branch->ipc_ns < 0)
        return errno == ENOENT || errno == ESRCH ? rebuild_ended(branch, "nothing was made yet", err)
                                                 : fail_errno(err, "%s: its restorer cannot be reached", branch->id);
    if (make_arena(compiled, branch, err) < 0)
        return -1;
    if (shared_make(world, branch, err) < 0 || mqueue_make(branch, world->namespaces->list[NAMESPACE_IPC], err) < 0 || files_make_ghosts(world, branch, err) < 0)
        return -1;
    if (send_setup(compiled, branch, err) < 0 || send_gifts(branch, err) < 0)
        return -1;
    if (namespace_service_start(world, compiled, branch, err) < 0)
        return -1;
    struct message run = { .type = MESSAGE_RUN };
    return send_message(branch, &run, NULL, 0, err);
}

/* ---- waiting for the branch ---- */

struct arena_control *branch_control(const struct branch *branch)
{
    return (struct arena_control *)branch->arena_local;
}

static const void *in_arena(const struct compiled *compiled, const struct branch *branch, uint64_t address)
{
    uint64_t offset = address - compiled->plan.arena;
    return offset < compiled->plan.used ? branch->arena_local + offset : NULL;
}

static const struct compiled *current;  /* for messages only */

static int report_fault(const struct branch *branch, struct error *err)
{
    const struct arena_control *control = branch_control(branch);
    const struct op *op = control->fault.op ? in_arena(current, branch, control->fault.op) : NULL;
    if (!op)
        return fail(err, "internal", "%s: %.255s", branch->id, control->text);
    const char *what = op->what ? in_arena(current, branch, op->what) : NULL;
    return fail(err, op->result == -ENOMEM ? "limit" : "internal", "%s: %.255s: operation %d(%#lx, %#lx, %#lx, %#lx): %s", branch->id,
                what ? what : "?", op->number, (unsigned long)op->arg[0], (unsigned long)op->arg[1], (unsigned long)op->arg[2],
                (unsigned long)op->arg[3], strerror((int)-op->result));
}

/* Grows with everything that the branch gets done. */
static uint64_t steps_done(const struct arena_control *control)
{
    const uint32_t *const words[] = { &control->forked, &control->grouped, &control->late, &control->mapped, &control->ready };
    uint64_t steps = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        steps += __atomic_load_n(words[i], __ATOMIC_SEQ_CST);
    return steps;
}

int rebuild_await(const struct world *world, struct branch *branch, const uint32_t *word, uint32_t wanted, const char *what, struct error *err)
{
    (void)world;
    struct arena_control *control = branch_control(branch);
    uint64_t deadline = monotonic_ns() + REBUILD_TIMEOUT_NS, steps = steps_done(control);
    for (;;) {
        if (__atomic_load_n(&control->fault.raised, __ATOMIC_SEQ_CST))
            return report_fault(branch, err);
        uint32_t value = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        if (value >= wanted)
            return 0;
        struct pollfd death = { branch->init_pidfd, POLLIN, 0 };
        if (poll(&death, 1, 0) > 0)
            return rebuild_ended(branch, what, err);
        if (monotonic_ns() > deadline) {
            if (steps_done(control) == steps)
                return fail(err, "internal", "%s: %s took too long (%u of %u)", branch->id, what, value, wanted);
            deadline = monotonic_ns() + REBUILD_TIMEOUT_NS;
            steps = steps_done(control);
        }
        struct timespec pause = { 0, 10 * 1000 * 1000 };
        syscall(SYS_futex, word, FUTEX_WAIT, value, &pause, NULL, 0);
    }
}

static int fetch_userfaultfd(const struct world *world, struct branch *branch, int index, struct error *err)
{
    const struct memory_map *map = world->processes[index]->map;
    if (map->userfaultfd_aux < 0)
        return 0;
    AUTO_CLOSE int pidfd = (int)syscall(SYS_pidfd_open, branch->pids[index], 0);
    branch->userfaultfds[index] = (int)syscall(SYS_pidfd_getfd, pidfd, (int)aux_slot(world, map->userfaultfd_aux), 0);
    if (branch->userfaultfds[index] < 0)
        return fail_errno(err, "%s: cannot fetch the userfaultfd of its pid %d", branch->id, world->processes[index]->ns_pid);
    return 0;
}

int rebuild_open_processes(const struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err)
{
    struct arena_control *control = branch_control(branch);
    branch->pids = must_alloc((size_t)world->process_count * sizeof *branch->pids);
    branch->memory = must_alloc((size_t)world->process_count * sizeof *branch->memory);
    branch->userfaultfds = must_alloc((size_t)world->process_count * sizeof *branch->userfaultfds);
    const struct tree_node *nodes = in_arena(compiled, branch, control->nodes);
    for (int i = 0; i < world->process_count; i++) {
        branch->memory[i] = branch->userfaultfds[i] = -1;
        if (world->processes[i]->zombie)
            continue;
        branch->pids[i] = (pid_t)nodes[i].host_pid;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", branch->pids[i]);
        branch->memory[i] = open(path, O_RDWR | O_CLOEXEC);
        if (branch->memory[i] < 0)
            return fail_errno(err, "%s: cannot open the memory of its pid %d", branch->id, world->processes[i]->ns_pid);
        if (fetch_userfaultfd(world, branch, i, err) < 0)
            return -1;
    }
    return 0;
}

/* A futex word in the branch's arena becomes 1. */
static void set_word(const struct compiled *compiled, struct branch *branch, uint64_t address)
{
    uint32_t *word = (uint32_t *)(branch->arena_local + (address - compiled->plan.arena));
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void rebuild_open_gate(const struct compiled *compiled, struct branch *branch, int index)
{
    close_fd(&branch->userfaultfds[index]);
    set_word(compiled, branch, compiled->gates + (uint64_t)index * sizeof(uint32_t));
}

/* No call waits for the end of a first thread while others live; it comes a moment after the branch's memory is filled. */
static int await_leader(const struct world *world, struct compiled *compiled, struct branch *branch, int index, struct error *err)
{
    for (uint64_t deadline = monotonic_ns() + REBUILD_TIMEOUT_NS;; usleep(LEADER_PAUSE_US)) {
        AUTO_FREE char *text = proc_read(err, STAT_LIMIT, NULL, "/proc/%d/stat", branch->pids[index]);
        const char *state = text ? strrchr(text, ')') : NULL;
        if (!state)
            return text ? fail(err, "internal", "%s: a process of the branch cannot be looked at", branch->id) : -1;
        if (strncmp(state, ") Z", 3) == 0)
            break;
        if (__atomic_load_n(&branch_control(branch)->fault.raised, __ATOMIC_SEQ_CST))
            return report_fault(branch, err);
        if (monotonic_ns() > deadline)
            return fail(err, "internal", "%s: the first thread of %s does not end in the branch", branch->id, process_label(world->processes[index]));
    }
    set_word(compiled, branch, process_leader_gone(&compiled->plan, world->processes[index]));
    return 0;
}

int rebuild_await_leaders(const struct world *world, struct compiled *compiled, struct branch *branch, struct error *err)
{
    for (int i = 0; i < world->process_count; i++)
        if (!world->processes[i]->zombie && process_leader_is_awaited(world->processes[i]) && await_leader(world, compiled, branch, i, err) < 0)
            return -1;
    return 0;
}

void rebuild_set_current(const struct compiled *compiled)
{
    current = compiled;
}
