/* Which session a terminal controls, and which of its groups is in the foreground. */
#include "kinds.h"
#include "tty.h"
#include "../descriptors.h"
#include "../doubt.h"
#include "../proc.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#define STAT_LIMIT 4096

/* ---- capture ---- */

struct stat_fields {
    int host_group;
    unsigned terminal;          /* encoded device number, 0 = none */
    int host_foreground;
};

static int read_stat(const struct process *process, struct stat_fields *fields, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, STAT_LIMIT, NULL, "/proc/%d/stat", process->pid);
    if (!text)
        return -1;
    /* The command may hold anything, parentheses too. */
    const char *rest = strrchr(text, ')');
    char state;
    int parent, session, terminal;
    if (!rest || sscanf(rest + 1, " %c %d %d %d %d %d", &state, &parent, &fields->host_group, &session, &terminal, &fields->host_foreground) != 6)
        return fail(err, "internal", "%s: its stat line is not understood", process_label(process));
    fields->terminal = (unsigned)terminal;
    return 0;
}

static bool is_leader(const struct process *process)
{
    return !process->zombie && process->ns_session == process->ns_pid && process->ns_session != 0;
}

/* The foreground group in the workspace's numbering; 0 when no process is left in it. */
static int foreground_group(const struct world *world, int session, int host_foreground, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        struct stat_fields fields;
        if (process->ns_session != session)
            continue;
        if (process->group_leader == host_foreground)
            return process->ns_group;
        if (read_stat(process, &fields, err) < 0)
            return -1;
        if (fields.host_group == host_foreground)
            return process->ns_group;
    }
    return 0;
}

/* Its number on the host, asked by way of the master, which may see it whoever asks; 0 = nobody leads one on this terminal. */
static int session_of(const struct pty *pty)
{
    int session = 0;
    if (ioctl(pty->master->local, TIOCGSID, &session) == 0)
        return session;
    doubt(ANSWERS(ENOTTY, EIO), "%s: cannot tell whose terminal it is", description_label(pty->master));
    return 0;
}

int tty_sessions_find(const struct world *world, struct pty **ptys, int count, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        struct stat_fields fields;
        if (!is_leader(process))
            continue;
        if (read_stat(process, &fields, err) < 0)
            return -1;
        if ((fields.terminal >> 8 & 0xfff) != SLAVE_MAJOR)
            continue;
        int index = (int)((fields.terminal & 0xff) | (fields.terminal >> 12 & 0xfff00));
        for (int k = 0; k < count; k++) {
            struct pty *pty = ptys[k];
            if (pty->index != index || !pty->master || session_of(pty) != process->group_leader)
                continue;
            pty->leader = process;
            pty->foreground = foreground_group(world, process->ns_session, fields.host_foreground, err);
            if (pty->foreground < 0)
                return -1;
        }
    }
    return 0;
}

/* ---- emit ---- */

/* A group of the workspace's numbering as a process in a nested pid namespace calls it. */
static int group_as_seen_by(const struct process *leader, int group)
{
    const struct world *world = leader->world;
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        if (process->ns_group == group && process->pids.count >= leader->pids.count)
            return process->groups.at[leader->pids.count - 1];
    }
    return group;
}

/* Under which number the leader has its terminal open; -1 = it has not. */
static int own_number(const struct pty *pty)
{
    const struct process *leader = pty->leader;
    for (int i = 0; i < leader->fd_count; i++) {
        const struct description *description = leader->fds[i].description;
        if (description->kind == &kind_tty && description->data == pty && description != pty->master)
            return leader->fds[i].fd;
    }
    return -1;
}

void tty_session_emit(struct plan *plan, const struct pty *pty, const char *what)
{
    struct batch *batch = plan_session(plan, pty->leader);
    tty_emit_open(batch, pty, false, O_RDWR | O_NOCTTY | O_CLOEXEC, what);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, cell, TIOCSCTTY, 0);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, cell);
    if (pty->foreground <= 0 || pty->foreground == pty->leader->ns_group)
        return;
    batch = plan_own(plan, pty->leader);
    int group = group_as_seen_by(pty->leader, pty->foreground), own = own_number(pty);
    uint64_t at = plan_data(plan, &group, sizeof group);
    if (own >= 0) {             /* where it lives there need not be a name that leads to the terminal */
        EMIT(batch, what, SYS_ioctl, (uint64_t)own, TIOCSPGRP, at);
        return;
    }
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, plan_string(plan, "/dev/tty"), O_RDWR | O_NOCTTY | O_CLOEXEC);
    cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, cell, TIOCSPGRP, at);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, cell);
}
