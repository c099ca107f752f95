/* tclone-livefork: one fork of one workspace. Started by the engine; see docs/explanation/architecture.md for the protocol. */
#include "aio.h"
#include "capture.h"
#include "cgroups.h"
#include "control.h"
#include "copy.h"
#include "family.h"
#include "freeze.h"
#include "huge_pages.h"
#include "inject.h"
#include "ipc_namespaces.h"
#include "mounts.h"
#include "memory_flags.h"
#include "namespace_service.h"
#include "posix_queues.h"
#include "preflight.h"
#include "probe.h"
#include "rebuild.h"
#include "settle.h"
#include "shared.h"
#include "shield.h"
#include "tidy.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_BRANCHES 64
#define GHOST_LIMIT (256ull << 20)

enum exit_status { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_REFUSED = 3, EXIT_GONE = 4, EXIT_BUSY = 5 };

struct job {
    struct control control;
    struct world world;
    struct compiled compiled;
    struct branch branches[MAX_BRANCHES];
    int branch_count;
    struct phase_times times;
    int64_t bytes;
    const char *learnt;
};

static const char usage[] =
    "usage: tclone-livefork fork --source PID --control FD --branch ID:SOCKFD:INITPID [--branch ...] [--tcp-close] [--ghost-limit BYTES]\n"
    "                            [--learnt FD:TEXT]\n"
    "       tclone-livefork tidy --source PID\n"
    "       tclone-livefork check --source PID\n"
    "       tclone-livefork learn --control FD\n"
    "fork   copies the running workspace whose first process is PID into prepared branches\n"
    "tidy   takes out of a workspace what a fork that was killed half-way has left in the memory of its processes\n"
    "check  prints, as JSON, what in the workspace cannot be forked (blockers) and what a branch will not have (warnings)\n"
    "learn  sends what this program finds out about the kernel, and a descriptor: given to each fork, they save it 3 ms\n";

static int parse_branch(struct job *job, char *text)
{
    char *socket = strchr(text, ':');
    char *init = socket ? strchr(socket + 1, ':') : NULL;
    if (!init || job->branch_count == MAX_BRANCHES)
        return -1;
    *socket++ = 0;
    *init++ = 0;
    struct branch *branch = &job->branches[job->branch_count++];
    *branch = (struct branch){ .id = text, .socket = atoi(socket), .init = atoi(init), .root = -1, .ipc_ns = -1, .arena = -1 };
    branch->init_pidfd = (int)syscall(SYS_pidfd_open, branch->init, 0);
    return branch->socket > 0 && branch->init > 0 ? 0 : -1;
}

static int parse(struct job *job, int argc, char **argv)
{
    static const struct option options[] = {
        { "source", required_argument, NULL, 's' }, { "control", required_argument, NULL, 'c' }, { "branch", required_argument, NULL, 'b' },
        { "tcp-close", no_argument, NULL, 't' }, { "ghost-limit", required_argument, NULL, 'g' }, { "learnt", required_argument, NULL, 'l' },
        { 0 },
    };
    job->control.socket = -1;
    job->world.options.ghost_limit = GHOST_LIMIT;
    job->world.root = job->world.net_ns = job->world.ipc_ns = -1;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        switch (option) {
        case 's': job->world.source_pid = atoi(optarg); break;
        case 'c': job->control.socket = atoi(optarg); break;
        case 'b':
            if (parse_branch(job, optarg) < 0)
                return -1;
            break;
        case 't': job->world.options.tcp_close = true; break;
        case 'g': job->world.options.ghost_limit = strtoull(optarg, NULL, 10); break;
        case 'l': job->learnt = optarg; break;
        default: return -1;
        }
    }
    return optind == argc ? 0 : -1;
}

static int open_source(struct world *world, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/root", world->source_pid);
    world->root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/ns/net", world->source_pid);
    world->net_ns = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/ns/ipc", world->source_pid);
    world->ipc_ns = open(path, O_RDONLY | O_CLOEXEC);
    if (world->root < 0 || world->net_ns < 0 || world->ipc_ns < 0)
        return fail(err, "gone", "the source's first process (host pid %d) has ended", world->source_pid);
    return 0;
}

static int live_branches(const struct job *job)
{
    int live = 0;
    for (int i = 0; i < job->branch_count; i++)
        live += !job->branches[i].err.code;
    return live;
}

/* Run a step for every branch that is still whole; the fork goes on while one is. */
#define FOR_LIVE(job, branch) \
    for (struct branch *branch = (job)->branches; branch < (job)->branches + (job)->branch_count; branch++) \
        if (!branch->err.code)

/* Whatever went wrong in a branch, its message begins with the branch's id. */
static void name_branch(struct branch *branch)
{
    struct error plain = branch->err;
    if (!plain.code || strncmp(plain.message, branch->id, strlen(branch->id)) == 0)
        return;
    branch->err = (struct error){ 0 };
    fail(&branch->err, plain.code, "%s: %s", branch->id, plain.message);
}

static int none_left(struct job *job, struct error *err)
{
    if (live_branches(job))
        return 0;
    struct branch *branch = &job->branches[0];
    name_branch(branch);
    /* Of a branch, "gone" is nothing that the source could help. */
    bool gone = strcmp(branch->err.code, "gone") == 0;
    return fail(err, gone ? "internal" : branch->err.code, "%s", branch->err.message);
}

/* Each blocker goes out as an event of its own; the error's message has as many of them as fit. */
static int run_preflight(struct job *job, struct error *err)
{
    struct findings findings = { 0 };
    if (preflight(job->world.source_pid, &job->world.options, false, &findings, err) < 0)
        return -1;
    for (int i = 0; i < findings.blockers.count; i++) {
        const struct blocker *blocker = &findings.blockers.items[i];
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, "%s%s", used ? "; " : "", blocker->message);
        err->code = "unsupported";
        control_blocker(&job->control, blocker);
    }
    blockers_free(&findings.blockers);
    return err->code ? -1 : 0;
}

/* Everything for which the source stands still. */
static int copy_frozen(struct job *job, struct error *err)
{
    struct world *world = &job->world;
    if (aio_settle(world, err) < 0)
        return -1;
    control_phase(&job->control, "frozen", &job->times.frozen);
    if (capture(world, err) < 0)
        return -1;
    control_phase(&job->control, "captured", &job->times.captured);
    if (huge_pages_check(world, job->branch_count, err) < 0)
        return -1;
    rebuild_set_current(&job->compiled);
    FOR_LIVE(job, branch)
        families_avoid(world, branch->init, &branch->err);
    if (rebuild_compile(world, &job->compiled, err) < 0)
        return -1;
    job->times.compiled = control_ms(&job->control);
    if (control_await_roots(&job->control, job->branches, job->branch_count, err) < 0)
        return -1;
    FOR_LIVE(job, branch)
        if (cgroups_make(branch, &branch->err) == 0)
            rebuild_start(world, &job->compiled, branch, &branch->err);
    FOR_LIVE(job, branch)
        if (mounts_fill(world, branch, &branch->err) == 0)
            ipc_furnish(world, branch, &branch->err);
    int64_t shared = families_fill(world, &job->compiled.plan, job->branches, job->branch_count, err);
    if (shared < 0)
        return -1;
    FOR_LIVE(job, branch)
        if (rebuild_await(world, branch, &branch_control(branch)->mapped, (uint32_t)job->compiled.process_count, "its memory maps",
                          &branch->err) == 0)
            rebuild_open_processes(world, &job->compiled, branch, &branch->err);
    if (none_left(job, err) < 0)
        return -1;
    control_phase(&job->control, "copying", &job->times.mapped);
    job->bytes = copy_memory(world, &job->compiled, job->branches, job->branch_count, err);
    job->times.copied = control_ms(&job->control);
    job->bytes += job->bytes < 0 ? 0 : shared;
    return job->bytes < 0 ? -1 : none_left(job, err);
}

static int finish_branches(struct job *job, struct error *err)
{
    FOR_LIVE(job, branch)
        if (rebuild_await_leaders(&job->world, &job->compiled, branch, &branch->err) == 0)
            rebuild_await(&job->world, branch, &branch_control(branch)->ready, (uint32_t)job->compiled.thread_count, "its threads", &branch->err);
    for (int i = 0; i < job->branch_count; i++)
        namespace_service_stop(&job->branches[i]);
    FOR_LIVE(job, branch)
        if (shared_finish(&job->world, branch, &branch->err) == 0)
            release_branch(&job->world, &job->compiled, branch, &branch->err);
    return none_left(job, err);
}

static int run_fork(struct job *job, struct error *err)
{
    memory_flags_start(job->learnt);
    if (mounts_read_base(job->branches[0].init, err) < 0 || open_source(&job->world, err) < 0 || inject_prepare(err) < 0 || run_preflight(job, err) < 0 ||
        mqueue_prepare(&job->world, err) < 0 || settle(job->world.net_ns, err) < 0)
        return -1;
    memory_flags_prepare();
    control_phase(&job->control, "preflight", &job->times.preflight);
    if (freeze_whole(&job->world, err) < 0)
        return -1;
    int status = copy_frozen(job, err);
    if (status < 0)
        freeze_blame(&job->world, err);
    thaw(&job->world);
    if (status < 0)
        return -1;
    control_phase(&job->control, "resumed", &job->times.resumed);
    if (finish_branches(job, err) < 0)
        return -1;
    control_phase(&job->control, "rebuilt", &job->times.rebuilt);
    FOR_LIVE(job, branch)
        probe_branch(branch, &branch->err);
    control_phase(&job->control, "usable", &job->times.usable);
    return none_left(job, err);
}

static int count_threads(const struct world *world)
{
    int threads = 0;
    for (int i = 0; i < world->process_count; i++)
        threads += world->processes[i]->thread_count;
    return threads;
}

static int exit_status(const struct error *err)
{
    if (err->code && strcmp(err->code, "unsupported") == 0)
        return EXIT_REFUSED;
    if (err->code && strcmp(err->code, "gone") == 0)
        return EXIT_GONE;
    if (err->code && strcmp(err->code, "busy") == 0)
        return EXIT_BUSY;
    return EXIT_FAILED;
}

static const struct control *told_last;

static void tell_last(const struct error *err)
{
    control_drain(told_last);
    control_error(told_last, err);
}

static int command_fork(struct job *job)
{
    told_last = &job->control;
    on_end_at_once(tell_last);
    struct error err = { 0 };
    if (run_fork(job, &err) < 0) {
        struct error untidy = { 0 };
        if (inject_left_something() && tidy(job->world.source_pid, &untidy) < 0)
            fprintf(stderr, "tclone-livefork: %s\n", untidy.message);
        for (int i = 0; i < job->branch_count; i++)
            namespace_service_stop(&job->branches[i]);
        for (int i = 0; i < job->branch_count; i++)
            if (job->branches[i].init_pidfd >= 0)
                syscall(SYS_pidfd_send_signal, job->branches[i].init_pidfd, SIGKILL, NULL, 0);
        control_drain(&job->control);
        control_error(&job->control, &err);
        return exit_status(&err);
    }
    for (int i = 0; i < job->branch_count; i++) {
        name_branch(&job->branches[i]);
        control_branch(&job->control, &job->branches[i]);
    }
    control_done(&job->control, &job->times, job->world.process_count, count_threads(&job->world), job->bytes);
    return EXIT_DONE;
}

static void print_list(const char *name, const struct blockers *list)
{
    printf("\"%s\":[", name);
    for (int i = 0; i < list->count; i++) {
        AUTO_FREE char *text = blocker_json(&list->items[i]);
        printf("%s%s", i ? "," : "", text);
    }
    printf("],\"%s_omitted\":%d", name, list->omitted);
}

static int command_tidy(const struct job *job)
{
    struct error err = { 0 };
    if (inject_prepare(&err) == 0 && tidy(job->world.source_pid, &err) == 0)
        return EXIT_DONE;
    fprintf(stderr, "tclone-livefork: %s\n", err.message);
    return exit_status(&err);
}

static int command_check(struct job *job)
{
    struct error err = { 0 };
    struct findings findings = { 0 };
    memory_flags_start(NULL);
    if (preflight(job->world.source_pid, &job->world.options, true, &findings, &err) < 0) {
        fprintf(stderr, "tclone-livefork: %s\n", err.message);
        return exit_status(&err);
    }
    printf("{");
    print_list("blockers", &findings.blockers);
    printf(",");
    print_list("warnings", &findings.warnings);
    printf(",\"processes\":%d}\n", findings.processes);
    return EXIT_DONE;
}

static int command_learn(const struct job *job)
{
    int program;
    memory_flags_start(NULL);
    AUTO_FREE char *facts = memory_flags_facts(&program);
    control_learnt(&job->control, facts ? facts : "", program);
    return EXIT_DONE;
}

/* Before the rest is understood, which opens descriptors. */
static pid_t source_of(int argc, char **argv)
{
    for (int i = 2; i < argc - 1; i++)
        if (strcmp(argv[i], "--source") == 0)
            return atoi(argv[i + 1]);
    return 0;
}

int main(int argc, char **argv)
{
    static struct job job;
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    /* The source stands still while we work: go before whatever else the machine does. Branches get the source's own priorities. */
    setpriority(PRIO_PROCESS, 0, -15);
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_DONE;
    }
    const char *command = argc > 1 ? argv[1] : "";
    job.control.started = monotonic_ns();
    if (strcmp(command, "fork") == 0)
        shield_start(source_of(argc, argv));
    if (argc > 1 && parse(&job, argc - 1, argv + 1) == 0) {
        bool source = job.world.source_pid > 0;
        if (strcmp(command, "fork") == 0 && source && job.branch_count > 0)
            return command_fork(&job);
        if (strcmp(command, "tidy") == 0 && source)
            return command_tidy(&job);
        if (strcmp(command, "check") == 0 && source)
            return command_check(&job);
        if (strcmp(command, "learn") == 0 && !source && job.control.socket >= 0)
            return command_learn(&job);
    }
    fputs(usage, stderr);
    return EXIT_USAGE;
}
