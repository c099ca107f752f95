#include "files.h"
#include "doubt.h"
#include "identity.h"
#include "kinds/handle.h"
#include "mounts.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char DELETED[] = " (deleted)";

static struct file_openings *openings(struct world *world)
{
    if (!world->openings)
        world->openings = must_alloc(sizeof *world->openings);
    return world->openings;
}

int files_new_aux(struct world *world)
{
    return openings(world)->aux_count++;
}

uint64_t aux_slot(const struct world *world, int aux)
{
    return (uint64_t)(world->slot_base + world->description_count + aux);
}

static bool ends_in(const char *text, size_t length, const char *ending)
{
    size_t size = strlen(ending);
    return length >= size && memcmp(text + length - size, ending, size) == 0;
}

bool files_of_dead(const struct world *world, const char *path)
{
    int pid, length = 0;
    if (sscanf(path, "/proc/%d%n", &pid, &length) != 1 || !length)
        return false;
    const char *rest = path + length;
    if (ends_in(rest, strlen(rest), DELETED))   /* even if somebody else has the number now */
        return rest[0] == '/' || strcmp(rest, DELETED) == 0;
    return (rest[0] == '/' || !rest[0]) && !process_by_ns_pid(world, pid);
}

uint64_t files_path_of_dead(struct plan *plan, const char *path)
{
    const char *rest = path + strlen("/proc/");
    rest += strspn(rest, "0123456789");
    size_t length = strlen(rest);
    if (ends_in(rest, length, DELETED))
        length -= sizeof DELETED - 1;
    AUTO_FREE char *own = must_alloc(sizeof "/proc/self" + length);
    sprintf(own, "/proc/self%.*s", (int)length, rest);
    return plan_string(plan, own);
}

static int open_in(int root, const char *path, int flags, mode_t mode)
{
    struct open_how how = { .flags = (uint64_t)flags | O_CLOEXEC, .mode = mode,
                            .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    return (int)AGAIN(syscall(SYS_openat2, root, path, &how, sizeof how));
}

/* -1 = nothing is there. */
static int open_place(int root, const char *path, struct stat *st)
{
    int fd = open_in(root, path, O_PATH | O_NOFOLLOW, 0);
    if (fd >= 0 && fstat(fd, st) == 0)
        return fd;
    doubt(HAS_NO_SUCH_NAME, "cannot tell what %.200s is", path);
    close_fd(&fd);
    return -1;
}

bool files_path_is(const struct world *world, const char *path, uint64_t inode)
{
    struct stat st;
    AUTO_CLOSE int fd = open_place(world->root, path, &st);
    return fd >= 0 && st.st_ino == inode;
}

bool files_path_leads_to(const struct world *world, const struct mount_world *mounts, const char *path, uint64_t inode, const char *open_path)
{
    struct stat st;
    AUTO_CLOSE int fd = open_place(mounts ? mounts->root : world->root, path, &st);
    return fd >= 0 && st.st_ino == inode && identity_same(open_path, fd);
}

/*
 * Opening a file breaks a lease for writing. Whoever holds one is the only one to have the file open, by that very descriptor: a duplicate of it
 * does, as long as it is not moved (sparse parts of the file are then copied, too).
 */
static int open_source(struct ghost *ghost, const char *open_path)
{
    int held;
    struct stat st;
    if (sscanf(open_path, "/proc/self/fd/%d", &held) == 1 && fstat(held, &st) == 0 && S_ISLNK(st.st_mode))
        return fcntl(held, F_DUPFD_CLOEXEC, 0);
    if (sscanf(open_path, "/proc/self/fd/%d", &held) == 1 && fcntl(held, F_GETLEASE) == F_WRLCK) {
        ghost->shares_offset = true;
        return fcntl(held, F_DUPFD_CLOEXEC, 0);
    }
    return open(open_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOATIME);
}

struct ghost *files_ghost(struct world *world, const struct mount_world *mounts, const char *path, uint64_t device, uint64_t inode, const char *open_path, const char *who,
                          struct error *err)
{
    struct file_openings *all = openings(world);
    for (int i = 0; i < all->ghost_count; i++)
        if (all->ghosts[i]->inode == inode && all->ghosts[i]->device == device && identity_same(open_path, all->ghosts[i]->source))
            return all->ghosts[i];
    struct ghost *ghost = must_alloc(sizeof *ghost);
    ghost->device = device;
    ghost->inode = inode;
    ghost->mounts = mounts;
    ghost->path = must_copy_string(path);
    size_t length = strlen(path), suffix = sizeof DELETED - 1;
    if (length > suffix && strcmp(path + length - suffix, DELETED) == 0)
        ghost->path[length - suffix] = 0;
    ghost->source = open_source(ghost, open_path);
    if (ghost->source < 0 || fstat(ghost->source, &ghost->st) < 0) {
        fail_errno(err, "%s: cannot read its unlinked file %s", who, path);
        return NULL;
    }
    if (!S_ISREG(ghost->st.st_mode) && !S_ISDIR(ghost->st.st_mode) && !S_ISLNK(ghost->st.st_mode)) {
        fail(err, "unsupported", "%s uses %s, which was removed and is no regular file, directory or link", who, ghost->path);
        return NULL;
    }
    if (S_ISDIR(ghost->st.st_mode) && length == strlen(ghost->path)) {
        fail(err, "unsupported", "%s uses the directory %s, which lies in a file system that was unmounted or is hidden", who, ghost->path);
        return NULL;
    }
    all->ghost_bytes += (uint64_t)ghost->st.st_blocks * 512;
    if (all->ghost_bytes > world->options.ghost_limit) {
        fail(err, "unsupported", "%s holds the unlinked file %s; unlinked files take more than %llu bytes in all (raise --ghost-limit)", who,
             ghost->path, (unsigned long long)world->options.ghost_limit);
        return NULL;
    }
    ghost->aux = files_new_aux(world);
    all->ghosts = must_grow(all->ghosts, (size_t)(all->ghost_count + 1) * sizeof *all->ghosts);
    all->ghosts[all->ghost_count++] = ghost;
    return ghost;
}

/* Of a regular file that has lost its name, but not all; says where that leads to it. */
static char *other_name(struct file_opening *opening, const struct world *world, const char *open_path)
{
    struct stat st;
    AUTO_CLOSE int fd = open(open_path, O_PATH | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink == 0)
        return NULL;
    const struct mount_world *mounts = opening->mounts;
    char *name = handle_find_name(world, fd, st.st_ino, &mounts);
    if (name)
        opening->mounts = mounts;
    return name;
}

static struct file_opening *opening_for(struct process *process, const char *path, uint64_t device, uint64_t inode, bool writable,
                                        const char *open_path, struct error *err)
{
    struct world *world = process->world;
    const struct mount_world *mounts = mounts_of_link(process, open_path);
    struct file_openings *all = openings(world);
    for (int i = all->count - 1; i >= 0; i--) {
        struct file_opening *opening = all->list[i];
        /* A name that is there leads to one file; names that were removed can have belonged to several. */
        if (opening->inode == inode && opening->device == device && opening->writable == writable && (opening->mounts == mounts || opening->name)
            && strcmp(opening->path, path) == 0 && (!opening->ghost || identity_same(open_path, opening->ghost->source)))
            return opening;
    }
    struct file_opening *opening = must_alloc(sizeof *opening);
    opening->path = must_copy_string(path);
    opening->device = device;
    opening->inode = inode;
    opening->writable = writable;
    opening->mounts = mounts;
    if (!files_path_leads_to(world, mounts, path, inode, open_path) && !(opening->name = other_name(opening, world, open_path))) {
        opening->ghost = files_ghost(world, mounts, path, device, inode, open_path, process_label(process), err);
        if (!opening->ghost)
            return NULL;
    }
    opening->aux = files_new_aux(world);
    if ((all->count & (all->count - 1)) == 0)
        all->list = must_grow(all->list, (size_t)(all->count ? all->count * 2 : 16) * sizeof *all->list);
    all->list[all->count++] = opening;
    return opening;
}

struct file_opening *files_for_vma(struct process *process, const struct vma *vma, struct error *err)
{
    char link[96];
    snprintf(link, sizeof link, "/proc/%d/map_files/%lx-%lx", process->pid, (unsigned long)vma->start, (unsigned long)vma->end);
    bool writable = false;
    if (vma->shared) {
        /* The mode of the link is that of the file: it may be made writable later although it is not now. */
        struct stat st;
        if (lstat(link, &st) < 0) {
            fail_errno(err, "%s: cannot look at its mapping of %s", process_label(process), vma->path);
            return NULL;
        }
        writable = st.st_mode & S_IWUSR;
    }
    return opening_for(process, vma->path, vma->device, vma->inode, writable, link, err);
}

struct file_opening *files_for_executable(struct process *process, struct error *err)
{
    char link[64];
    struct stat st;
    snprintf(link, sizeof link, "/proc/%d/exe", process->pid);
    if (stat(link, &st) < 0) {
        fail_errno(err, "%s: cannot look at its executable", process_label(process));
        return NULL;
    }
    uint64_t device = (uint64_t)major(st.st_dev) << 32 | minor(st.st_dev);
    return opening_for(process, process->executable, device, st.st_ino, false, link, err);
}

/*
 * The working directory of a process in the workspace's own mounts is entered by its name, unless it was removed. In a nested mount namespace the name can
 * mean something else, or the directory can lie elsewhere: there it is opened like a file.
 */
static int bind_directory(struct process *process, struct error *err)
{
    size_t length = strlen(process->cwd), suffix = sizeof DELETED - 1;
    bool removed = length > suffix && strcmp(process->cwd + length - suffix, DELETED) == 0;
    bool by_name = !process->namespaces[NAMESPACE_MNT]->nested || strncmp(process->cwd, "/proc/", 6) == 0;    /* not all of /proc is there yet */
    if ((!removed && by_name) || strcmp(process->cwd, process->root) == 0 || files_of_dead(process->world, process->cwd))
        return 0;
    char link[64];
    struct stat st;
    snprintf(link, sizeof link, "/proc/%d/cwd", process->pid);
    if (stat(link, &st) < 0)
        return fail_errno(err, "%s: cannot look at its working directory", process_label(process));
    uint64_t device = (uint64_t)major(st.st_dev) << 32 | minor(st.st_dev);
    process->directory = opening_for(process, process->cwd, device, st.st_ino, false, link, err);
    return process->directory ? 0 : -1;
}

int files_bind_directories(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++)
        if (!world->processes[i]->zombie && bind_directory(world->processes[i], err) < 0)
            return -1;
    return 0;
}

int files_bind_maps(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        struct memory_map *map = process->map;
        for (int k = 0; map && k < map->vma_count; k++) {
            struct vma *vma = &map->vmas[k];
            if (vma->kind != VMA_FILE)
                continue;
            struct vma *before = k ? &map->vmas[k - 1] : NULL;
            if (before && before->opening && !before->shared && !vma->shared && before->inode == vma->inode
                && before->device == vma->device && strcmp(before->path, vma->path) == 0)
                vma->opening = before->opening;     /* the segments of one library */
            else
                vma->opening = files_for_vma(process, vma, err);
            if (!vma->opening)
                return -1;
        }
    }
    return 0;
}

int files_emit(struct plan *plan, struct error *err)
{
    (void)err;
    struct world *world = plan->world;
    struct batch *batch = &plan->common[STAGE_MAKE];
    struct file_openings *all = openings(world);
    for (int i = 0; i < all->ghost_count; i++) {
        mounts_place_ghost(world, all->ghosts[i], i);
        if (all->ghosts[i]->place)
            mounts_emit_ghost(batch, all->ghosts[i]);
    }
    for (int i = 0; i < all->count; i++) {
        struct file_opening *opening = all->list[i];
        char path[64];
        const char *name = opening->name ? opening->name : opening->path;
        if (opening->ghost) {
            snprintf(path, sizeof path, "/proc/self/fd/%lu", (unsigned long)aux_slot(world, opening->ghost->aux));
            name = path;
        }
        mounts_enter(batch, opening->ghost ? NULL : opening->mounts);
        emit_op(batch, (struct op){ .number = SYS_openat, .arg = { (uint64_t)AT_FDCWD, plan_string(plan, name),
                (uint64_t)((opening->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOATIME) } }, "open %s to map it", opening->path);
        uint64_t cell = emit_result_cell(batch);
        EMIT_FLAGS(batch, opening->path, OP_LOAD(0), SYS_dup3, cell, aux_slot(world, opening->aux), 0);
        EMIT_FLAGS(batch, opening->path, OP_LOAD(0), SYS_close, cell);
        mounts_leave(batch, opening->ghost ? NULL : opening->mounts);
    }
    return 0;
}

/* ---- ghosts in a branch ---- */

static int copy_range(int from, int to, off_t start, off_t end, struct error *err, const char *name)
{
    if (lseek(to, start, SEEK_SET) < 0)
        return fail_errno(err, "cannot copy the unlinked file %s", name);
    for (off_t position = start; position < end;) {
        ssize_t sent = sendfile(to, from, &position, (size_t)(end - position));
        if (sent <= 0)
            return fail_errno(err, "cannot copy the unlinked file %s", name);
    }
    return 0;
}

static int copy_data(int from, int to, uint64_t size, struct error *err, const char *name)
{
    for (off_t at = 0; (uint64_t)at < size;) {
        off_t start = lseek(from, at, SEEK_DATA);
        if (start < 0)
            break;              /* ENXIO: holes up to the end */
        off_t end = lseek(from, start, SEEK_HOLE);
        if (end < 0)
            end = (off_t)size;
        if (copy_range(from, to, start, end, err, name) < 0)
            return -1;
        at = end;
    }
    return 0;
}

static int copy_all(int from, int to, uint64_t size, struct error *err, const char *name)
{
    return copy_range(from, to, 0, (off_t)size, err, name);
}

static int make_link(int directory, const char *name, int source)
{
    char target[PATH_MAX];
    ssize_t length = readlinkat(source, "", target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    return length < 0 || symlinkat(target, directory, name) < 0 ? -1 : openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static int make_file(int directory, const char *name, const struct ghost *ghost)
{
    if (S_ISLNK(ghost->st.st_mode))
        return make_link(directory, name, ghost->source);
    if (!S_ISDIR(ghost->st.st_mode))
        return openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return mkdirat(directory, name, 0700) < 0 ? -1 : openat(directory, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

/* Create the file under its old name if that is free, else next to it, and take the name away again. */
static int make_unnamed(int root, const struct ghost *ghost, int number, struct error *err)
{
    AUTO_FREE char *copy = must_copy_string(ghost->path);
    AUTO_FREE char *base_copy = must_copy_string(ghost->path);
    char other[64];
    snprintf(other, sizeof other, ".tclone-unlinked-%d", number);
    AUTO_CLOSE int directory = open_in(root, dirname(copy), O_PATH | O_DIRECTORY, 0);
    if (directory < 0)
        directory = open_in(root, "/", O_PATH | O_DIRECTORY, 0);
    if (ghost->linkable) {
        int unnamed = openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (unnamed >= 0)
            return unnamed;
    }
    const char *name = basename(base_copy);
    int fd = make_file(directory, name, ghost);
    if (fd < 0) {
        name = other;
        fd = make_file(directory, name, ghost);
    }
    if (fd < 0)
        return fail_errno(err, "cannot make the unlinked file %s in the branch", ghost->path);
    unlinkat(directory, name, S_ISDIR(ghost->st.st_mode) ? AT_REMOVEDIR : 0);
    return fd;
}

static int fill_ghost(const struct ghost *ghost, int fd, struct error *err)
{
    struct timespec times[2] = { ghost->st.st_atim, ghost->st.st_mtim };
    if (S_ISLNK(ghost->st.st_mode))
        return 0;
    bool is_directory = S_ISDIR(ghost->st.st_mode);     /* a removed one is empty */
    if (!is_directory && ftruncate(fd, ghost->st.st_size) < 0)
        return fail_errno(err, "cannot size the unlinked file %s", ghost->path);
    int (*copy)(int, int, uint64_t, struct error *, const char *) = ghost->shares_offset ? copy_all : copy_data;
    if (!is_directory && copy(ghost->source, fd, (uint64_t)ghost->st.st_size, err, ghost->path) < 0)
        return -1;
    if (fchown(fd, ghost->st.st_uid, ghost->st.st_gid) < 0 || fchmod(fd, ghost->st.st_mode & 07777) < 0 || futimens(fd, times) < 0)
        return fail_errno(err, "cannot set the owner of the unlinked file %s", ghost->path);
    return 0;
}

int files_make_named(const struct ghost *ghost, int directory, const char *name, struct error *err)
{
    AUTO_CLOSE int fd = make_file(directory, name, ghost);
    if (fd < 0)
        return fail_errno(err, "cannot make the unlinked file %s in the branch", ghost->path);
    return fill_ghost(ghost, fd, err);
}

int files_make_ghosts(struct world *world, struct branch *branch, struct error *err)
{
    struct file_openings *all = openings(world);
    for (int i = 0; i < all->ghost_count; i++) {
        struct ghost *ghost = all->ghosts[i];
        if (ghost->place)
            continue;
        AUTO_CLOSE int fd = make_unnamed(branch->root, ghost, i, err);
        if (fd < 0 || fill_ghost(ghost, fd, err) < 0)
            return -1;
        /* A program whose file is open for writing anywhere cannot be a process's executable. */
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        bool as_it_is = ghost->linkable || S_ISLNK(ghost->st.st_mode);
        int handle = as_it_is ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : open(path, O_PATH | O_CLOEXEC);
        if (handle < 0)
            return fail_errno(err, "cannot open the unlinked file %s in the branch", ghost->path);
        branch_give(branch, aux_slot(world, ghost->aux), handle);
    }
    return 0;
}
