/*
 * Pseudo terminals. A pty is made by opening the multiplexer of its devpts until the right index comes (in a branch it is fresh); then its slaves are
 * opened by name, and descriptors of /dev/tty by a short-lived process whose controlling terminal it is for a moment.
 *
 * A slave whose master nobody inside holds (an exec session's: the other end is on the host) comes back hung up: reads give end of file.
 * Unread bytes of both directions are carried over by tty_queue.c.
 */
#include "kinds.h"
#include "tty.h"
#include "../descriptors.h"
#include "../doubt.h"
#include "../files.h"
#include "../mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define TTY_MAJOR 5             /* /dev/tty, /dev/console, /dev/ptmx */
#define TTY_MINOR 0
#define PTMX_MINOR 2
#define MAX_INDEX 4096

static bool is_device(const struct stat *st, unsigned major_number, unsigned minor_number)
{
    return S_ISCHR(st->st_mode) && major(st->st_rdev) == major_number && minor(st->st_rdev) == minor_number;
}

static bool is_master(const struct description *description)
{
    return is_device(&description->st, TTY_MAJOR, PTMX_MINOR);
}

static bool is_slave(const struct description *description)
{
    return S_ISCHR(description->st.st_mode) && major(description->st.st_rdev) == SLAVE_MAJOR;
}

static bool is_controlling(const struct description *description)
{
    return is_device(&description->st, TTY_MAJOR, TTY_MINOR);
}

static bool tty_match(const struct description *description)
{
    return !(description->flags & O_PATH) && (is_master(description) || is_slave(description) || is_controlling(description));
}

/* ---- capture ---- */

static struct pty **ptys;
static int pty_count;
static const struct description *first_terminal;    /* whose emit makes them all */

static int index_of(const struct description *description, struct error *err)
{
    unsigned value = 0;
    if (is_slave(description))
        return (int)minor(description->st.st_rdev);
    if (is_master(description)) {
        if (ioctl(description->local, TIOCGPTN, &value) < 0)
            return fail_errno(err, "%s: cannot ask for its number", description_label(description));
        return (int)value;
    }
    if (ioctl(description->local, TIOCGDEV, &value) < 0)
        return fail_errno(err, "%s: cannot ask which terminal it is", description_label(description));
    if ((value >> 8 & 0xfff) != SLAVE_MAJOR)
        return fail(err, "unsupported", "%s is not a pseudo terminal; end the program", description_label(description));
    return (int)((value & 0xff) | (value >> 12 & 0xfff00));
}

/* A slave of the host's devpts may have the same index; it has no master inside and hangs up as well. */
static struct pty *pty_of(const struct own_system *system, int index)
{
    for (int i = 0; i < pty_count; i++)
        if (ptys[i]->index == index && ptys[i]->system == system)
            return ptys[i];
    ptys = must_grow(ptys, (size_t)(pty_count + 1) * sizeof *ptys);
    struct pty *pty = ptys[pty_count++] = must_alloc(sizeof *pty);
    pty->system = system;
    pty->index = index;
    return pty;
}

/*
 * The pty behind a descriptor of /dev/tty, which tells the index alone: of several with that index (in several devpts) the one whose session its holder
 * is in.
 */
static struct pty *controlling_pty(const struct description *description, int index)
{
    const struct process *holder = description->holder;
    struct pty *found = NULL;
    for (int i = 0; i < pty_count; i++) {
        const struct process *leader = ptys[i]->leader;
        if (ptys[i]->index == index && (!found || (holder && leader && leader->ns_session == holder->ns_session)))
            found = ptys[i];
    }
    return found ? found : pty_of(NULL, index);
}

static int tty_capture(struct world *world, struct description *description, struct error *err)
{
    int index = index_of(description, err);
    if (index < 0)
        return -1;
    if (index >= MAX_INDEX)
        return fail(err, "limit", "%s: terminal number %d is above %d; end programs that hold terminals", description_label(description), index,
                    MAX_INDEX - 1);
    if (!first_terminal)
        first_terminal = description;
    if (is_controlling(description))
        return 0;               /* link_controlling */
    struct pty *pty = description->data = pty_of(mounts_system(world, description->st.st_dev), index);
    if (!pty->first)
        pty->first = description;
    if (is_master(description))
        pty->master = description;
    else if (is_slave(description) && (!pty->slave || (description->flags & O_ACCMODE) == O_RDWR))
        pty->slave = description;
    return 0;
}

/* Owner and mode of /dev/pts/N, from a descriptor or, if only the master is held, from the directory of the source. */
static void read_node(const struct world *world, struct pty *pty)
{
    if (pty->slave) {
        pty->node = pty->slave->st;
        return;
    }
    char path[PATH_MAX];
    int root = pty->system ? pty->system->maker->root : world->root;
    snprintf(path, sizeof path, "%s/%d", pty->system ? pty->system->mount->point : "/dev/pts", pty->index);
    struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };
    AUTO_CLOSE int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    bool there = fd >= 0 && fstat(fd, &pty->node) == 0;
    if (!there)
        doubt(HAS_NO_SUCH_NAME, "%s: cannot tell the owner of its node", description_label(pty->first));
    if (!there || !S_ISCHR(pty->node.st_mode))
        pty->node = (struct stat){ .st_mode = S_IFCHR | 0620 };
}

static int read_settings(struct pty *pty, struct error *err)
{
    int fd = pty->master->local;
    const char *label = description_label(pty->master);
    int discipline = 0;
    if (ioctl(fd, TCGETS2, &pty->termios) < 0 || ioctl(fd, TIOCGWINSZ, &pty->size) < 0 || ioctl(fd, TIOCGPTLCK, &pty->locked) < 0
        || ioctl(fd, TIOCGPKT, &pty->packet_mode) < 0 || ioctl(fd, TIOCGEXCL, &pty->master_exclusive) < 0)
        return fail_errno(err, "%s: cannot read its settings", label);
    if (pty->slave) {
        if (ioctl(pty->slave->local, TIOCGEXCL, &pty->slave_exclusive) < 0 || ioctl(pty->slave->local, TIOCGETD, &discipline) < 0)
            return fail_errno(err, "%s: cannot read its settings", description_label(pty->slave));
        if (discipline != 0)
            return fail(err, "unsupported", "%s uses line discipline %d; end the program that set it", description_label(pty->slave), discipline);
        return 0;
    }
    struct pollfd hung = { .fd = fd };
    pty->slave_closed = poll(&hung, 1, 0) == 1 && (hung.revents & POLLHUP);
    return 0;
}

/* Those of one devpts together. */
static int by_index(const void *left, const void *right)
{
    const struct pty *one = *(struct pty *const *)left, *other = *(struct pty *const *)right;
    if (one->system != other->system)
        return one->system < other->system ? -1 : 1;
    return one->index - other->index;
}

static int link_controlling(const struct world *world, struct error *err)
{
    for (int i = 0; i < world->description_count; i++) {
        struct description *description = world->descriptions[i];
        if (description->kind != &kind_tty || !is_controlling(description))
            continue;
        int index = index_of(description, err);
        if (index < 0)
            return -1;
        struct pty *pty = description->data = controlling_pty(description, index);
        if (!pty->first)
            pty->first = description;
    }
    return 0;
}

static int tty_link(struct world *world, struct error *err)
{
    if (tty_sessions_find(world, ptys, pty_count, err) < 0 || link_controlling(world, err) < 0)
        return -1;
    if (!pty_count)
        return 0;
    qsort(ptys, (size_t)pty_count, sizeof *ptys, by_index);
    for (int i = 0; i < pty_count; i++) {
        struct pty *pty = ptys[i];
        read_node(world, pty);
        if (pty->master && read_settings(pty, err) < 0)
            return -1;
    }
    return tty_queues_capture(world, ptys, pty_count, err);
}

/* ---- emit ---- */

/* A devpts mounted inside is open at a slot; the workspace's own has its place. */
static uint64_t directory_of(const struct plan *plan, const struct pty *pty)
{
    return pty->system ? aux_slot(plan->world, pty->system->slot) : (uint64_t)AT_FDCWD;
}

static uint64_t slave_path(struct plan *plan, const struct pty *pty)
{
    char path[32];
    snprintf(path, sizeof path, "%s%d", pty->system ? "" : "/dev/pts/", pty->index);
    return plan_string(plan, path);
}

void tty_emit_open(struct batch *batch, const struct pty *pty, bool multiplexer, uint64_t flags, const char *what)
{
    struct plan *plan = batch->plan;
    uint64_t path = !multiplexer ? slave_path(plan, pty) : plan_string(plan, pty->system ? "ptmx" : "/dev/pts/ptmx");
    EMIT(batch, what, SYS_openat, directory_of(plan, pty), path, flags);
}

static void emit_int_ioctl(struct batch *batch, uint64_t slot, uint64_t request, int value, const char *what)
{
    EMIT(batch, what, SYS_ioctl, slot, request, plan_data(batch->plan, &value, sizeof value));
}

/* Of one devpts: all multiplexers from 0 up to the highest index in use; those not wanted are closed when the last one has its number. */
static void emit_masters(struct batch *batch, struct pty **some, int count)
{
    struct plan *plan = batch->plan;
    uint64_t number = plan_reserve(plan, sizeof(uint64_t));
    int highest = some[count - 1]->index, next = 0;
    AUTO_FREE uint64_t *extra = must_alloc((size_t)(highest + 1) * sizeof *extra);
    int extra_count = 0;
    for (int index = 0; index <= highest; index++) {
        struct pty *pty = some[next];
        bool wanted = pty->index == index;
        const char *what = wanted ? description_label(pty->first) : "a terminal number to skip";
        tty_emit_open(batch, pty, true, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC, what);
        uint64_t cell = emit_result_cell(batch);
        if (!wanted) {
            extra[extra_count++] = cell;
            continue;
        }
        next++;
        EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, cell, TIOCGPTN, number);
        EMIT_FLAGS(batch, what, OP_LOAD32(0), OP_EXPECT, number, (uint64_t)index);
        int unlocked = 0;
        EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, cell, TIOCSPTLCK, plan_data(plan, &unlocked, sizeof unlocked));
        pty->master_cell = cell;
    }
    for (int i = 0; i < extra_count; i++)
        EMIT_FLAGS(batch, "a terminal number to skip", OP_LOAD(0), SYS_close, extra[i]);
}

static void emit_all_masters(struct batch *batch)
{
    for (int from = 0, to; from < pty_count; from = to) {
        for (to = from + 1; to < pty_count && ptys[to]->system == ptys[from]->system;)
            to++;
        emit_masters(batch, ptys + from, to - from);
    }
}

static void emit_node(struct batch *batch, const struct pty *pty, const char *what)
{
    uint64_t directory = directory_of(batch->plan, pty), path = slave_path(batch->plan, pty);
    EMIT(batch, what, SYS_fchownat, directory, path, pty->node.st_uid, pty->node.st_gid, 0);
    EMIT(batch, what, SYS_fchmodat, directory, path, pty->node.st_mode & 07777);
}

static void emit_settings(struct batch *batch, const struct pty *pty, const char *what)
{
    struct plan *plan = batch->plan;
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, pty->master_cell, TCSETS2, plan_data(plan, &pty->termios, sizeof pty->termios));
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, pty->master_cell, TIOCSWINSZ, plan_data(plan, &pty->size, sizeof pty->size));
    if (pty->locked)
        EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, pty->master_cell, TIOCSPTLCK, plan_data(plan, &pty->locked, sizeof pty->locked));
    if (!pty->master)
        return;
    uint64_t slot = SLOT(plan, pty->master);
    if (pty->packet_mode)
        emit_int_ioctl(batch, slot, TIOCPKT, 1, what);
    if (pty->master_exclusive)
        EMIT(batch, what, SYS_ioctl, slot, TIOCEXCL);
    if (pty->slave_exclusive)
        EMIT(batch, what, SYS_ioctl, SLOT(plan, pty->slave), TIOCEXCL);
}

static uint64_t opening_flags(const struct description *description)
{
    return (uint64_t)(description->flags & (O_ACCMODE | O_NONBLOCK)) | O_NOCTTY | O_CLOEXEC;
}

static void emit_opening(struct batch *batch, const struct description *description, const struct pty *pty, const char *what)
{
    tty_emit_open(batch, pty, false, opening_flags(description), what);
    emit_to_slot(batch, description, what);
    emit_status_flags(batch, description, what);
}

/* Every slave of one pty; true when there was one. */
static bool emit_slaves(struct batch *batch, const struct pty *pty, bool controlling_too)
{
    const struct world *world = batch->plan->world;
    bool any = false;
    for (int i = 0; i < world->description_count; i++) {
        const struct description *description = world->descriptions[i];
        if (description->kind != &kind_tty || description->data != pty)
            continue;
        if (!is_slave(description) && !(controlling_too && is_controlling(description)))
            continue;
        emit_opening(batch, description, pty, description_label(description));
        any = true;
    }
    return any;
}

static void emit_pty(struct batch *batch, const struct pty *pty)
{
    const char *what = description_label(pty->first);
    emit_node(batch, pty, what);
    /* /dev/tty cannot be opened on a terminal that has hung up: there the slave itself stands for it. */
    bool opened = emit_slaves(batch, pty, !pty->master);
    if (pty->slave_closed && !opened) {
        tty_emit_open(batch, pty, false, O_RDWR | O_NOCTTY | O_CLOEXEC, what);
        uint64_t cell = emit_result_cell(batch);
        EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, cell);
    }
    if (!pty->master) {
        EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, pty->master_cell);
        return;
    }
    uint64_t slot = SLOT(batch->plan, pty->master);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_dup3, pty->master_cell, slot, 0);
    tty_queue_emit(batch, pty, what);
    EMIT(batch, what, SYS_fcntl, slot, F_SETFL, (uint64_t)(pty->master->flags & O_NONBLOCK));
    emit_settings(batch, pty, what);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, pty->master_cell);
    emit_status_flags(batch, pty->master, what);
}

/* A process that has the terminal as its controlling one for long enough to open /dev/tty. */
static void emit_controlling(struct plan *plan, const struct description *description, const struct pty *pty, const char *what)
{
    struct batch *batch = plan_creator(plan, STAGE_MAKE, 0, 0, 0);
    EMIT_FLAGS(batch, what, TOLERATING(LEADER_ALREADY), SYS_setsid);       /* fails when an earlier description did it */
    tty_emit_open(batch, pty, false, O_RDWR | O_NOCTTY | O_CLOEXEC, what);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, cell, TIOCSCTTY, 0);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, plan_string(plan, "/dev/tty"), opening_flags(description));
    emit_to_slot(batch, description, what);
    emit_status_flags(batch, description, what);
    /* The next one, and the session that really owns the terminal, can then take it. Our own group gets SIGHUP, which is blocked. */
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_ioctl, cell, TIOCNOTTY);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, cell);
}

static int tty_emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    struct pty *pty = description->data;
    struct batch *batch = &plan->common[STAGE_MAKE];
    if (description == first_terminal) {
        emit_all_masters(batch);
        for (int i = 0; i < pty_count; i++)
            emit_pty(batch, ptys[i]);
    }
    const char *what = description_label(description);
    if (is_controlling(description) && pty->master)
        emit_controlling(plan, description, pty, what);
    if (description == pty->first && pty->leader)
        tty_session_emit(plan, pty, what);
    return 0;
}

const struct fd_kind kind_tty = {
    .name = "terminal",
    .match = tty_match,
    .capture = tty_capture,
    .link = tty_link,
    .emit = tty_emit,
};
