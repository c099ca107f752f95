#include "shared.h"
#include "device_directory.h"
#include "files.h"
#include "huge_pages.h"
#include "mount_enter.h"
#include "mounts.h"
#include "namespaces.h"
#include "sysv.h"
#include "tree_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define SHM_PREFIX "/dev/shm/"
#define MEMFD_PREFIX "/memfd:"
#define DELETED " (deleted)"
#define SHARED_ANONYMOUS_NAME "/dev/zero" DELETED

static bool starts(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static char *without_deleted(const char *text)
{
    char *copy = must_copy_string(text);
    size_t length = strlen(copy), suffix = strlen(DELETED);
    if (length > suffix && strcmp(copy + length - suffix, DELETED) == 0)
        copy[length - suffix] = 0;
    return copy;
}

struct shared_objects *shared_objects(struct world *world)
{
    if (!world->shared)
        world->shared = must_alloc(sizeof *world->shared);
    return world->shared;
}

struct shared_object *shared_add(struct world *world)
{
    struct shared_objects *all = shared_objects(world);
    struct shared_object *object = must_alloc(sizeof *object);
    object->index = all->count;
    object->source = -1;
    object->seals = -1;
    all->list = must_grow(all->list, (size_t)(all->count + 1) * sizeof *all->list);
    all->list[all->count++] = object;
    return object;
}

/* `ipc`: the namespace of a SysV segment; NULL = it is none. */
static struct shared_object *find_object(struct world *world, uint64_t device, uint64_t inode, const struct namespace *ipc)
{
    struct shared_objects *all = shared_objects(world);
    for (int i = 0; i < all->count; i++) {
        struct shared_object *object = all->list[i];
        if (object->inode == inode && (ipc ? object->ipc == ipc : object->kind != SHARED_SYSV && object->device == device))
            return object;
    }
    return NULL;
}

/* Take over `fd`, a readable descriptor of a tmpfs inode. `link` is its name as /proc tells it. */
static struct shared_object *describe(struct world *world, int fd, const char *link, struct error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0) {
        fail_errno(err, "cannot look at shared memory %s", link);
        close(fd);
        return NULL;
    }
    struct shared_object *object = shared_add(world);
    object->source = fd;
    object->device = (uint64_t)major(st.st_dev) << 32 | minor(st.st_dev);
    object->inode = st.st_ino;
    object->size = (uint64_t)st.st_size;
    object->mode = st.st_mode & 07777;
    object->uid = st.st_uid;
    object->gid = st.st_gid;
    object->aux = files_new_aux(world);
    object->huge_shift = huge_page_shift(fd);
    AUTO_FREE char *name = without_deleted(link);
    if (starts(name, SHM_PREFIX)) {
        object->kind = SHARED_SHM_FILE;
        object->name = must_copy_string(name + strlen(SHM_PREFIX));
        object->linked = files_path_is(world, name, st.st_ino);
    } else if (starts(name, MEMFD_PREFIX)) {
        object->kind = SHARED_MEMFD;
        object->name = must_copy_string(name + strlen(MEMFD_PREFIX));
        object->seals = fcntl(fd, F_GET_SEALS);
    } else {
        object->kind = SHARED_ANONYMOUS;
        object->name = must_copy_string(name);
    }
    return object;
}

static int reopen_readable(const char *path, const char *what, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, "cannot read the shared memory of %s", what);
    return fd;
}

/* A sandbox can have a file system of its own at /dev/shm; its files are opened by their names like others. */
static bool is_foreign_shm(const struct world *world, uint64_t device)
{
    const struct mount_world *own = world->mounts ? &world->mounts->list[0] : NULL;
    for (int i = 0; own && i < own->table.count; i++)
        if (strcmp(own->table.list[i].point, "/dev/shm") == 0)
            return own->table.list[i].device != device;
    return false;
}

/* The device of a memfd of one's own; huge pages have one for each size. 0 if the kernel has none. */
static uint64_t memfd_device(unsigned flags)
{
    AUTO_CLOSE int fd = memfd_create("device", MFD_CLOEXEC | flags);
    struct stat st;
    return fd < 0 || fstat(fd, &st) < 0 ? 0 : (uint64_t)major(st.st_dev) << 32 | minor(st.st_dev);
}

bool shared_is_kernel_device(uint64_t device)
{
    static const unsigned flags[] = { 0, MFD_HUGETLB | HUGE_SIZE_FLAG(21), MFD_HUGETLB | HUGE_SIZE_FLAG(30) };
    static uint64_t devices[sizeof flags / sizeof *flags];
    bool found = false;
    if (!devices[0])
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            devices[i] = memfd_device(flags[i]);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        found |= device != 0 && devices[i] == device;
    return found;
}

struct shared_object *shared_of_description(struct world *world, const struct description *description, struct error *err)
{
    /* Shared anonymous memory can be opened, too, through /proc/PID/map_files. */
    if (!S_ISREG(description->st.st_mode) || (!starts(description->link, SHM_PREFIX) && !starts(description->link, MEMFD_PREFIX)
                                              && strcmp(description->link, SHARED_ANONYMOUS_NAME) != 0))
        return NULL;
    uint64_t device = (uint64_t)major(description->st.st_dev) << 32 | minor(description->st.st_dev);
    if (starts(description->link, SHM_PREFIX) ? is_foreign_shm(world, device) : !shared_is_kernel_device(device))
        return NULL;
    struct shared_object *object = find_object(world, device, description->st.st_ino, NULL);
    if (object)
        return object;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", description->local);
    int fd = reopen_readable(path, description->link, err);
    return fd < 0 ? NULL : describe(world, fd, description->link, err);
}

int shared_bind_maps(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        for (int k = 0; process->map && k < process->map->vma_count; k++) {
            struct vma *vma = &process->map->vmas[k];
            if (vma->kind == VMA_SHARED_OBJECT && vma->path && starts(vma->path, SHM_PREFIX) && is_foreign_shm(world, vma->device))
                vma->kind = VMA_FILE;
            if (vma->kind != VMA_SHARED_OBJECT)
                continue;
            bool sysv = vma->path && starts(vma->path, "/SYSV");
            vma->object = find_object(world, vma->device, vma->inode, sysv ? process->namespaces[NAMESPACE_IPC] : NULL);
            if (vma->object)
                continue;
            if (sysv)
                return fail(err, "unsupported", "%s maps the SysV segment %lu of an IPC namespace that it has left, which cannot be forked; end it",
                            process_label(process), (unsigned long)vma->inode);
            if (!vma->path)
                return fail(err, "unsupported", "%s has a shared mapping at %lx of a kind that cannot be copied", process_label(process),
                            (unsigned long)vma->start);
            char path[96];
            snprintf(path, sizeof path, "/proc/%d/map_files/%lx-%lx", process->pid, (unsigned long)vma->start, (unsigned long)vma->end);
            int fd = reopen_readable(path, process_label(process), err);
            if (fd < 0 || !(vma->object = describe(world, fd, vma->path, err)))
                return -1;
        }
    }
    return 0;
}

/* ---- /dev/shm, and /dev around it ---- */

static int open_directory(const char *format, pid_t pid, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, format, pid);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, "cannot open %s", path);
    return fd;
}

/* Files that are open or mapped are objects, which have their content copied later, by several threads. */
struct shm_copy {
    struct world *world;
    struct branch *branch;
};

static bool claim_object(void *context, const struct stat *st, int fd)
{
    struct shm_copy *copy = context;
    struct shared_object *object = find_object(copy->world, (uint64_t)major(st->st_dev) << 32 | minor(st->st_dev), st->st_ino, NULL);
    if (object)
        copy->branch->objects[object->index] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return object;
}

/* The source's, without what is mounted in them. */
struct source_directories { int shm, devices; };

static int copies_of_directories(void *context, struct error *err)
{
    struct source_directories *directories = context;
    directories->shm = mount_copy("/dev/shm", err);
    directories->devices = directories->shm < 0 ? -1 : mount_copy("/dev", err);
    return directories->devices < 0 ? -1 : 0;
}

static int open_source(struct world *world, struct source_directories *directories, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", world->source_pid);
    AUTO_CLOSE int mnt_ns = open(path, O_RDONLY | O_CLOEXEC);
    return mnt_ns < 0 ? fail_errno(err, "cannot open %s", path) : mount_enter(mnt_ns, copies_of_directories, directories, err);
}

static int configure(int context, unsigned command, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return (int)syscall(SYS_fsconfig, context, command, key, key ? text : NULL, 0);
}

/* The branch's /dev/shm holds as much as the source's, whatever it was prepared with; without a limit (0) no file system of the workspace is. */
static int resize_shm(int from, int to, struct error *err)
{
    struct statfs wanted, is;
    if (fstatfs(from, &wanted) < 0 || fstatfs(to, &is) < 0)
        return fail_errno(err, "cannot find out the size of /dev/shm");
    if (wanted.f_blocks == is.f_blocks && wanted.f_files == is.f_files)
        return 0;
    AUTO_CLOSE int context = (int)syscall(SYS_fspick, to, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC);
    if (context < 0 || configure(context, FSCONFIG_SET_STRING, "size", (uint64_t)wanted.f_blocks * (uint64_t)wanted.f_bsize) < 0
        || configure(context, FSCONFIG_SET_STRING, "nr_inodes", wanted.f_files) < 0
        || configure(context, FSCONFIG_CMD_RECONFIGURE, NULL, 0) < 0)
        return fail_errno(err, "cannot give /dev/shm its size in the branch");
    return 0;
}

static int copy_shm(struct world *world, struct branch *branch, int from, struct error *err)
{
    AUTO_CLOSE int to = open_directory("/proc/%d/root/dev/shm", branch->init, err);
    if (to < 0)
        return -1;
    if (resize_shm(from, to, err) < 0)
        return -1;
    struct shm_copy context = { world, branch };
    struct tree_copy copy = { .label = "/dev/shm", .from = from, .to = to, .claim = claim_object, .context = &context };
    return tree_copy(&copy, err);
}

static int copy_devices(struct branch *branch, int from, struct error *err)
{
    AUTO_CLOSE int to = open_directory("/proc/%d/root/dev", branch->init, err);
    return to < 0 ? -1 : device_directory_copy(from, to, err);
}

static int copy_directories(struct world *world, struct branch *branch, struct error *err)
{
    struct source_directories from = { -1, -1 };
    int status = open_source(world, &from, err);
    if (status == 0)
        status = copy_devices(branch, from.devices, err);
    if (status == 0)
        status = copy_shm(world, branch, from.shm, err);
    close_fd(&from.shm);
    close_fd(&from.devices);
    return status;
}

/* ---- in a branch ---- */

static int make_unlinked_shm(struct branch *branch, const struct shared_object *object, struct error *err)
{
    AUTO_CLOSE int directory = open_directory("/proc/%d/root/dev/shm", branch->init, err);
    if (directory < 0)
        return -1;
    const char *name = strrchr(object->name, '/') ? strrchr(object->name, '/') + 1 : object->name;
    int fd = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    char other[64];
    if (fd < 0) {               /* the name was given to another file since */
        snprintf(other, sizeof other, ".tclone-unlinked-%d", object->index);
        name = other;
        fd = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    }
    if (fd < 0)
        return fail_errno(err, "cannot make /dev/shm/%s", object->name);
    unlinkat(directory, name, 0);
    return fd;
}

/* Memory without a file is one all the same, by the name of /dev/zero: it is opened where we have it mapped. -1 = not possible. */
static int make_anonymous(const struct shared_object *object)
{
    char path[96];
    void *at = mmap(NULL, object->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return -1;
    snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)at, (unsigned long)at + object->size);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    munmap(at, object->size);
    return fd;
}

static int make_object(struct branch *branch, const struct shared_object *object, struct error *err)
{
    int fd = branch->objects[object->index];
    if (fd < 0 && object->kind == SHARED_SHM_FILE)
        fd = make_unlinked_shm(branch, object, err);
    else if (fd < 0 && object->kind == SHARED_ANONYMOUS && !object->huge_shift)
        fd = make_anonymous(object);
    if (fd < 0 && object->kind != SHARED_SHM_FILE)
        fd = memfd_create(object->name, MFD_CLOEXEC | (object->seals >= 0 && object->seals != F_SEAL_SEAL ? MFD_ALLOW_SEALING : 0)
                                            | (object->huge_shift ? MFD_HUGETLB | HUGE_SIZE_FLAG(object->huge_shift) : 0));
    if (fd < 0)
        return fail_errno(err, "cannot make the shared memory %s", object->name);
    branch->objects[object->index] = fd;
    if (ftruncate(fd, (off_t)object->size) < 0)
        return fail_errno(err, "cannot size the shared memory %s", object->name);
    if (fchown(fd, object->uid, object->gid) < 0 || fchmod(fd, object->mode) < 0)
        return fail_errno(err, "cannot set the owner of the shared memory %s", object->name);
    return 0;
}

bool shared_filled_early(const struct shared_object *object)
{
    return object->kind == SHARED_MEMFD && object->seals > 0 && object->seals & F_SEAL_WRITE;
}

static int add_seals(const struct branch *branch, const struct shared_object *object, struct error *err)
{
    if (fcntl(branch->objects[object->index], F_ADD_SEALS, object->seals) < 0)
        return fail_errno(err, "cannot seal the memfd %s", object->name);
    return 0;
}

/*
 * The open file that a process of the branch takes over must stay as memfd_create made it, its offset too. What it is filled by is another one, which
 * counts as a writer: shared_finish closes it.
 */
static int give_object(struct world *world, struct branch *branch, const struct shared_object *object, struct error *err)
{
    int *own = &branch->objects[object->index], given = *own;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", given);
    *own = object->taken ? open(path, O_RDWR | O_CLOEXEC) : fcntl(given, F_DUPFD_CLOEXEC, 0);
    branch_give(branch, aux_slot(world, object->aux), given);
    return *own < 0 ? fail_errno(err, "cannot open the shared memory %s again", object->name) : 0;
}

int shared_make(struct world *world, struct branch *branch, struct error *err)
{
    struct shared_objects *all = shared_objects(world);
    branch->objects = must_alloc((size_t)(all->count + 1) * sizeof *branch->objects);
    for (int i = 0; i < all->count; i++)
        branch->objects[i] = -1;
    if (copy_directories(world, branch, err) < 0)
        return -1;
    for (int i = 0; i < all->count; i++) {
        struct shared_object *object = all->list[i];
        if (object->kind == SHARED_SYSV)
            continue;
        if (make_object(branch, object, err) < 0)
            return -1;
        if (give_object(world, branch, object, err) < 0)
            return -1;
        if (shared_filled_early(object) && (shared_fill(world, branch, i, err) < 0 || add_seals(branch, object, err) < 0))
            return -1;
    }
    return sysv_make(world, branch, world->namespaces->list[NAMESPACE_IPC], err);
}

int64_t shared_fill(struct world *world, struct branch *branch, int index, struct error *err)
{
    struct shared_object *object = world->shared->list[index];
    if (object->huge_shift)
        return huge_pages_copy(object, branch->objects[index], err);
    int64_t copied = copy_extents(object->source, branch->objects[index], object->size);
    if (copied < 0)
        return fail_errno(err, "cannot fill the shared memory %s of the branch", object->name);
    return copied;
}

int shared_finish(struct world *world, struct branch *branch, struct error *err)
{
    for (int i = 0; i < shared_objects(world)->count; i++) {
        struct shared_object *object = world->shared->list[i];
        if (object->kind == SHARED_MEMFD && object->seals > 0 && object->seals != F_SEAL_SEAL && !shared_filled_early(object)
            && add_seals(branch, object, err) < 0)
            return -1;
        close_fd(&branch->objects[i]);
    }
    return sysv_finish(world, branch, err);
}
