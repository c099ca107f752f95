/*
 * ns_last_pid can only be written by somebody who lives in the pid namespace and has capabilities over it: this helper is a child of livefork that
 * was born in the branch's pid namespace, with the host's capabilities and the host's /proc (whose sysctl goes by who writes). For a pid namespace
 * further in it has a child there.
 */
#include "namespace_service.h"
#include "namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAST_PID "/proc/sys/kernel/ns_last_pid"
#define PATIENCE_SECONDS 1
#define END_PAUSE_US 200
#define END_TRIES 10000         /* 2 s */

/* A child of the helper in a nested pid namespace; in memory that both share. */
struct inside {
    pid_t pid;
    uint32_t asked, written;    /* futex words: counts */
    int last;
    bool failed;
};

struct helper {
    struct arena_control *control;
    const struct arena_namespace *namespaces;
    const struct arena_ticket *tickets;
    const struct world *world;
    int32_t resets[ARENA_PID_LEVELS];   /* namespaces whose next pid is a chosen one */
    int reset_count;
    struct inside *inside;      /* by namespace */
};

static void __attribute__((noreturn)) give_up(struct helper *helper, const char *what)
{
    struct arena_control *control = helper->control;
    snprintf(control->text, sizeof control->text, "%s: %s", what, strerror(errno));
    control->fault.op = 0;
    __atomic_store_n(&control->fault.raised, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &control->fault.raised, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    _exit(1);
}

static void await(uint32_t *word, uint32_t wanted)
{
    for (;;) {
        uint32_t value = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        if (value >= wanted)
            return;
        struct timespec pause = { PATIENCE_SECONDS, 0 };
        syscall(SYS_futex, word, FUTEX_WAIT, value, &pause, NULL, 0);
    }
}

static void set(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int write_last_pid(int last)
{
    char text[16];
    int length = snprintf(text, sizeof text, "%d", last);
    AUTO_CLOSE int fd = open(LAST_PID, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, (size_t)length) == length ? 0 : -1;
}

/* In the child: write whenever asked to. */
static void __attribute__((noreturn)) write_when_asked(struct inside *inside)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint32_t turn = 1;; turn++) {
        await(&inside->asked, turn);
        inside->failed = write_last_pid(inside->last) < 0;
        set(&inside->written, turn);
    }
}

/* A child that lives in the pid namespace `index`. Its own numbers are as high as any helper's, so that they take nobody's. */
static void start_inside(struct helper *helper, int index, struct inside *inside)
{
    struct namespace *namespace = helper->world->namespaces->list[index];
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/ns/pid", helper->namespaces[index].init_host_pid);
    AUTO_CLOSE int there = open(path, O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int here = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    if (there < 0 || here < 0 || setns(there, CLONE_NEWPID) < 0)
        give_up(helper, "cannot enter a nested pid namespace");
    int32_t pids[ARENA_PID_LEVELS];
    int count = 0;
    for (struct namespace *at = namespace; at; at = at->parent)
        pids[count++] = namespace_spare_pid(at);
    struct clone_args args = { .exit_signal = SIGCHLD, .set_tid = (uint64_t)pids, .set_tid_size = (uint64_t)count };
    inside->pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (inside->pid == 0)
        write_when_asked(inside);
    if (inside->pid < 0 || setns(here, CLONE_NEWPID) < 0)
        give_up(helper, "cannot start a process in a nested pid namespace");
}

static void write_inside(struct helper *helper, int index, int last)
{
    struct inside *inside = &helper->inside[index];
    if (!inside->pid)
        start_inside(helper, index, inside);
    inside->last = last;
    set(&inside->asked, inside->asked + 1);
    await(&inside->written, inside->asked);
    if (inside->failed)
        give_up(helper, "cannot choose a pid in a nested pid namespace");
}

/* Before anybody of the branch could become their parent. */
static void end_inside(struct helper *helper)
{
    for (int i = 0; i < helper->world->namespaces->count; i++) {
        if (!helper->inside[i].pid)
            continue;
        kill(helper->inside[i].pid, SIGKILL);
        waitpid(helper->inside[i].pid, NULL, 0);
    }
}

static void set_last_pid(struct helper *helper, int index, int last)
{
    if (index != NAMESPACE_PID)
        write_inside(helper, index, last);
    else if (write_last_pid(last) < 0)
        give_up(helper, "cannot choose a pid");
}

static void choose(struct helper *helper, const int32_t *namespaces, const int32_t *pids, int count)
{
    /* Inner ones first: the children that write there must not take what was chosen outside. */
    for (int i = 0; i < count && i < ARENA_PID_LEVELS; i++) {
        set_last_pid(helper, namespaces[i], pids[i] - 1);
        helper->resets[i] = namespaces[i];
    }
    helper->reset_count = count;
}

static void reset(struct helper *helper)
{
    for (int i = 0; i < helper->reset_count; i++) {
        int index = helper->resets[i];
        set_last_pid(helper, index, index == NAMESPACE_PID ? helper->control->last_pid : helper->world->namespaces->list[index]->highest_pid);
    }
    helper->reset_count = 0;
}

static void serve_requests(struct helper *helper)
{
    struct arena_service *service = &helper->control->service;
    for (uint32_t number = 1;; number++) {
        await(&service->request, number);
        int verb = service->verb;
        if (verb == SERVICE_NEXT_PIDS)
            choose(helper, service->namespaces, service->pids, service->count);
        else if (verb == SERVICE_RESET)
            reset(helper);
        set(&service->granted, number);
        if (verb == SERVICE_TICKETS)
            return;
    }
}

static void serve_tickets(struct helper *helper)
{
    struct arena_service *service = &helper->control->service;
    for (uint32_t turn = 1; turn <= service->ticket_count; turn++) {
        const struct arena_ticket *ticket = &helper->tickets[turn - 1];
        choose(helper, ticket->namespaces, ticket->pids, ticket->count);
        set(&service->ticket, turn);
        await(&service->used, turn);
        if (turn == service->ticket_count)
            reset(helper);
    }
}

static void __attribute__((noreturn)) serve(struct helper *helper)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    helper->inside = mmap(NULL, (size_t)helper->world->namespaces->count * sizeof *helper->inside, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (helper->inside == MAP_FAILED)
        give_up(helper, "cannot share memory with children");
    serve_requests(helper);
    serve_tickets(helper);
    end_inside(helper);
    _exit(0);
}

int namespace_service_start(const struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err)
{
    struct arena_control *control = branch_control(branch);
    if (!control->namespace_count)
        return 0;
    struct helper helper = {
        .control = control, .world = world,
        .namespaces = (const void *)(branch->arena_local + (control->namespaces - compiled->plan.arena)),
        .tickets = (const void *)(branch->arena_local + (control->service.tickets - compiled->plan.arena)),
    };
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/pid", branch->init);
    AUTO_CLOSE int there = open(path, O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int here = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    if (there < 0 || here < 0 || setns(there, CLONE_NEWPID) < 0)
        return fail_errno(err, "%s: cannot enter its pid namespace", branch->id);
    /* A number of its own: the restorer may not have set where unchosen ones start. */
    int32_t pid = namespace_spare_pid(world->namespaces->list[NAMESPACE_PID]);
    struct clone_args args = { .exit_signal = SIGCHLD, .set_tid = (uint64_t)&pid, .set_tid_size = 1 };
    pid_t child = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (child == 0)
        serve(&helper);
    int number = errno;
    if (setns(here, CLONE_NEWPID) < 0)
        return fail_errno(err, "cannot return from the pid namespace of a branch");
    errno = number;
    branch->service = child;
    return child > 0 ? 0 : fail_errno(err, "%s: cannot start a helper", branch->id);
}

void namespace_service_stop(struct branch *branch)
{
    if (branch->service <= 0)
        return;
    /* It ends by itself, and its children before it: killed, they would become children of the branch's first process. */
    for (int i = 0; i < END_TRIES && !branch->err.code; i++) {
        if (waitpid(branch->service, NULL, WNOHANG) != 0) {
            branch->service = 0;
            return;
        }
        usleep(END_PAUSE_US);
    }
    kill(branch->service, SIGKILL);
    waitpid(branch->service, NULL, 0);
    branch->service = 0;
}
