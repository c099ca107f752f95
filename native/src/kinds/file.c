/* Regular files, directories and O_PATH descriptors; memfds and /dev/shm files are opened again through their shared object. */
#include "handle.h"
#include "../doubt.h"
#include "../files.h"
#include "../mounts.h"
#include "../descriptors.h"
#include "../plan.h"
#include "../shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#define PROC_MAGIC 0x9fa0
#define MQUEUE_MAGIC 0x19800202
#define OPEN_FLAGS (O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC | O_DIRECT | O_NOATIME | O_PATH | O_NOFOLLOW | O_LARGEFILE)

struct file_data {
    struct shared_object *object;
    struct ghost *ghost;
    bool itself;                /* takes over the descriptor by which the ghost or memfd was made */
    char *name;                 /* another one, if the file has lost that by which it was opened */
    const struct mount_world *mounts;   /* where its path leads to it; NULL = the workspace's own mounts */
    bool late;                  /* lies in /proc: can be opened only when the processes exist */
    bool of_dead;               /* in the /proc directory of a process that has ended */
    uint64_t write_hint;        /* F_SET_RW_HINT; 0 = none */
};

static bool match(const struct description *description)
{
    mode_t mode = description->st.st_mode;
    if (description->link[0] != '/')
        return false;
    struct statfs fs;
    if (S_ISREG(mode) && fstatfs(description->local, &fs) == 0 && fs.f_type == MQUEUE_MAGIC)
        return false;
    return S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode) || (description->flags & O_PATH);
}

/* A short-lived process opens its own. */
static void emit_of_dead(struct plan *plan, const struct description *description, const char *what)
{
    struct batch *batch = plan_fresh_creator(plan, STAGE_MAKE, 0, 0, 0);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, files_path_of_dead(plan, description->link),
         (uint64_t)(description->flags & OPEN_FLAGS) | O_CLOEXEC);
    emit_to_slot(batch, description, what);
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct file_data *data = description->data = must_alloc(sizeof *data);
    data->object = shared_of_description(world, description, err);
    if (err->code)
        return -1;
    if (data->object) {
        /* Who made a memfd does not count as one who has it open for writing: it can be executed all the same. */
        data->itself = data->object->kind == SHARED_MEMFD && !data->object->taken && (description->flags & O_ACCMODE) == O_RDWR;
        data->object->taken |= data->itself;
        return 0;
    }
    struct statfs fs;
    if (fstatfs(description->local, &fs) < 0)
        return fail_errno(err, "%s: cannot tell its file system", description_label(description));
    if (fs.f_type == PROC_MAGIC) {
        data->of_dead = files_of_dead(world, description->link);
        data->late = !data->of_dead;
        return 0;
    }
    if (S_ISREG(description->st.st_mode) && (description->flags & O_ACCMODE) != O_RDONLY
        && fcntl(description->local, F_GET_RW_HINT, &data->write_hint) < 0) {
        doubt(ANSWERS(EINVAL, EOPNOTSUPP), "%s: cannot read its write hint", description_label(description));
        data->write_hint = 0;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", description->local);
    data->mounts = mounts_of_file(world, description->local);
    if (files_path_leads_to(world, data->mounts, description->link, description->st.st_ino, path))
        return 0;
    data->name = S_ISREG(description->st.st_mode) && description->st.st_nlink > 0
        ? handle_find_name(world, description->local, description->st.st_ino, &data->mounts) : NULL;
    if (data->name)
        return 0;
    uint64_t device = (uint64_t)major(description->st.st_dev) << 32 | minor(description->st.st_dev);
    data->ghost = files_ghost(world, data->mounts, description->link, device, description->st.st_ino, path, description_label(description), err);
    if (!data->ghost)
        return -1;
    if ((description->flags & O_TMPFILE) == O_TMPFILE) {
        data->itself = !data->ghost->linkable && (description->flags & O_ACCMODE) == O_RDWR;
        data->ghost->linkable = true;
    }
    return 0;
}

/* The descriptor in the branch's table of what has no name, or -1. */
static int64_t nameless_at(const struct world *world, const struct file_data *data)
{
    if (data->ghost)
        return (int64_t)aux_slot(world, data->ghost->aux);
    if (data->object && !(data->object->kind == SHARED_SHM_FILE && data->object->linked))
        return (int64_t)aux_slot(world, data->object->aux);
    return -1;
}

static void emit_open(struct batch *batch, const struct description *description, const char *what)
{
    const struct file_data *data = description->data;
    char path[64];
    const char *name = data->name ? data->name : description->link;
    int flags = (description->flags & OPEN_FLAGS) | (S_ISDIR(description->st.st_mode) ? O_DIRECTORY : 0);
    int64_t nameless = nameless_at(batch->plan->world, data);
    const struct mount_world *mounts = nameless >= 0 || data->object ? NULL : data->mounts;
    if (nameless >= 0) {
        snprintf(path, sizeof path, "/proc/self/fd/%ld", (long)nameless);
        name = path;
        flags &= ~O_NOFOLLOW;
    }
    mounts_enter(batch, mounts);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, plan_string(batch->plan, name), (uint64_t)(flags | O_CLOEXEC));
    emit_to_slot(batch, description, what);
    mounts_leave(batch, mounts);
}

/* The open file that O_TMPFILE or memfd_create made. Only the former's flags tell that it may be given a name, should the branch be forked. */
static void emit_itself(struct batch *batch, const struct description *description, const char *what)
{
    uint64_t slot = SLOT(batch->plan, description);
    EMIT(batch, what, SYS_dup3, (uint64_t)nameless_at(batch->plan->world, description->data), slot, O_CLOEXEC);
    EMIT(batch, what, SYS_fcntl, slot, F_SETFL, (uint64_t)(description->flags & OPEN_FLAGS));
    EMIT(batch, what, SYS_lseek, slot, 0, SEEK_SET);
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    const struct file_data *data = description->data;
    const char *what = description_label(description);
    if (data->of_dead) {
        emit_of_dead(plan, description, what);
        return 0;
    }
    struct batch *batch = data->late ? plan_late(plan) : &plan->common[STAGE_MAKE];
    if (data->ghost && (description->flags & O_PATH))   /* the ghost's own descriptor is such a one */
        EMIT(batch, what, SYS_dup3, aux_slot(plan->world, data->ghost->aux), SLOT(plan, description), 0);
    else if (data->itself)
        emit_itself(batch, description, what);
    else
        emit_open(batch, description, what);
    if (description->offset > 0)
        /* In /proc the kernel finds a position by making the text up to there, and that of a branch may be shorter. */
        EMIT_FLAGS(batch, what, data->late ? TOLERATING(SHORTER_TEXT) : 0, SYS_lseek, SLOT(plan, description), (uint64_t)description->offset, SEEK_SET);
    if (data->write_hint)
        EMIT_FLAGS(batch, what, TOLERATING(HINT_REFUSED), SYS_fcntl, SLOT(plan, description), F_SET_RW_HINT,
                   plan_data(plan, &data->write_hint, sizeof data->write_hint));
    if (!(description->flags & O_PATH) && (description->owner_pid || description->owner_signal || (description->flags & O_ASYNC)))
        emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_file = { .name = "file", .match = match, .capture = capture, .emit = emit };
