#include "rescue.h"
#include "hold.h"
#include "inject.h"
#include "proc.h"
#include "sharing.h"
#include "tidy.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define STATUS_LIMIT (1u << 20)
#define PAUSE_US 500
#define LONGEST_PAUSES 4000     /* 2 s */

static char state_of(const char *status)
{
    const char *state = proc_field(status, "State");
    return state ? *state : 'X';
}

static bool has_ended(pid_t pid)
{
    struct error ignored = { 0 };
    AUTO_FREE char *status = proc_read(&ignored, STATUS_LIMIT, NULL, "/proc/%d/status", pid);
    return !status || state_of(status) == 'Z' || state_of(status) == 'X';
}

/* A child that works in the worker's memory holds bytes of a terminal or messages of a queue (apart.c), and puts them back by itself. */
static bool holds_something(pid_t worker)
{
    struct error ignored = { 0 };
    AUTO_FREE char *text = proc_read(&ignored, STATUS_LIMIT, NULL, "/proc/%d/task/%d/children", worker, worker);
    char *rest = text;
    for (long pid = text ? strtol(rest, &rest, 10) : 0; pid > 0; pid = strtol(rest, &rest, 10))
        if (!has_ended((pid_t)pid) && sharing_memory(worker, (pid_t)pid) == 1)
            return true;
    return false;
}

/* In the middle of a batch (inject.c)? One that has come to its end sleeps; all others whom the worker traces stand still. */
static bool answers(pid_t worker, pid_t pid, pid_t tid)
{
    struct error ignored = { 0 };
    AUTO_FREE char *status = proc_read(&ignored, STATUS_LIMIT, NULL, "/proc/%d/task/%d/status", pid, tid);
    const char *tracer = status ? proc_field(status, "TracerPid") : NULL;
    return tracer && atoi(tracer) == worker && strchr("RD", state_of(status));
}

struct pids {
    pid_t *items;
    int count;
};

static void add_children(struct pids *pids, pid_t pid, pid_t tid)
{
    struct error ignored = { 0 };
    AUTO_FREE char *text = proc_read(&ignored, STATUS_LIMIT, NULL, "/proc/%d/task/%d/children", pid, tid);
    char *rest = text;
    for (long child = text ? strtol(rest, &rest, 10) : 0; child > 0; child = strtol(rest, &rest, 10)) {
        pids->items = must_grow(pids->items, (size_t)(pids->count + 1) * sizeof *pids->items);
        pids->items[pids->count++] = (pid_t)child;
    }
}

/* Is any thread of the source in the middle of a batch? */
static bool somebody_answers(pid_t worker, pid_t source)
{
    struct pids pids = { must_alloc(sizeof *pids.items), 1 };
    bool found = false;
    pids.items[0] = source;
    for (int i = 0; i < pids.count && !found; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/task", pids.items[i]);
        DIR *threads = opendir(path);
        for (struct dirent *entry; threads && !found && (entry = readdir(threads));) {
            pid_t tid = atoi(entry->d_name);
            if (tid <= 0)
                continue;
            found = answers(worker, pids.items[i], tid);
            add_children(&pids, pids.items[i], tid);
        }
        if (threads)
            closedir(threads);
    }
    free(pids.items);
    return found;
}

static int let_end(pid_t worker)
{
    int status;
    do {
        ptrace(PTRACE_CONT, worker, 0, 0);
        if (waitpid(worker, &status, __WALL) < 0)
            _exit(1);
    } while (WIFSTOPPED(status));
    return status;
}

int rescue(pid_t worker, pid_t source)
{
    struct error err = { 0 };
    for (int i = 0; i < LONGEST_PAUSES && (holds_something(worker) || somebody_answers(worker, source)); i++)
        usleep(PAUSE_US);
    bool held = hold_begin(source) == 0;
    int status = let_end(worker);
    if (inject_prepare(&err) < 0 || tidy(source, &err) < 0)
        fprintf(stderr, "tclone-livefork: %s\n", err.message);
    if (held)
        hold_end(source);
    return status;
}
