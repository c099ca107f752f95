/* Regular files, directories and O_PATH descriptors; memfds and /dev/shm files are opened again through their shared object. */
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
    const struct mount_world *mounts;   /* where its path leads to it; NULL = the workspace's own mounts */
    bool late;                  /* lies in /proc: can be opened only when the processes exist */
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

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct file_data *data = description->data = must_alloc(sizeof *data);
    data->object = shared_of_description(world, description, err);
    if (err->code)
        return -1;
    if (data->object)
        return 0;
    struct statfs fs;
    if (fstatfs(description->local, &fs) == 0 && fs.f_type == PROC_MAGIC) {
        data->late = true;
        return 0;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", description->local);
    data->mounts = mounts_of_file(world, description->local);
    if (files_path_leads_to(world, data->mounts, description->link, description->st.st_ino, path))
        return 0;
    uint64_t device = (uint64_t)major(description->st.st_dev) << 32 | minor(description->st.st_dev);
    data->ghost = files_ghost(world, description->link, device, description->st.st_ino, path, description_label(description), err);
    return data->ghost ? 0 : -1;
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    const struct file_data *data = description->data;
    struct batch *batch = data->late ? plan_late(plan) : &plan->common[STAGE_MAKE];
    char path[64];
    const char *name = description->link;
    int flags = description->flags & OPEN_FLAGS;
    if (data->ghost || (data->object && !(data->object->kind == SHARED_SHM_FILE && data->object->linked))) {
        snprintf(path, sizeof path, "/proc/self/fd/%lu",
                 (unsigned long)aux_slot(plan->world, data->ghost ? data->ghost->aux : data->object->aux));
        name = path;
        flags &= ~O_NOFOLLOW;
    }
    if (S_ISDIR(description->st.st_mode))
        flags |= O_DIRECTORY;
    const char *what = description_label(description);
    const struct mount_world *mounts = data->ghost || data->object ? NULL : data->mounts;
    mounts_enter(batch, mounts);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, plan_string(plan, name), (uint64_t)(flags | O_CLOEXEC));
    emit_to_slot(batch, description, what);
    mounts_leave(batch, mounts);
    if (description->offset > 0)
        EMIT_FLAGS(batch, what, OP_MAY_FAIL, SYS_lseek, SLOT(plan, description), (uint64_t)description->offset, SEEK_SET);
    if (!(description->flags & O_PATH) && (description->owner_pid || description->owner_signal || (description->flags & O_ASYNC)))
        emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_file = { .name = "file", .match = match, .capture = capture, .emit = emit };
