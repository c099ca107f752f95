#include "unix_socket.h"
#include "../doubt.h"
#include "../mounts.h"
#include "../world.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATH_AT offsetof(struct sockaddr_un, sun_path)

/* The text of a path name: at most 108 bytes, with or without a NUL. */
static char *path_text(const struct unix_name *name)
{
    size_t room = name->length - PATH_AT;
    char *text = must_alloc(room + 1);
    memcpy(text, name->address + PATH_AT, room);
    return text;
}

/* Symbolic links are followed, since bind followed them (/var/run/…), but never out of the workspace's root. */
static int look_up(const struct world *world, const struct mount_world *mounts, const char *path, struct stat *st)
{
    struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };
    AUTO_CLOSE int fd = (int)AGAIN(syscall(SYS_openat2, mounts ? mounts->root : world->root, path, &how, sizeof how));
    if (fd >= 0 && fstat(fd, st) == 0)
        return 0;
    doubt(HAS_NO_SUCH_NAME, "cannot tell whether the socket %.108s is there", path);
    return -1;
}

static char *format_path(const char *format, const char *text, int number)
{
    char *path = NULL;
    if (asprintf(&path, format, text, number) < 0)
        end_at_once("out of memory");
    return path;
}

static struct unix_place *new_place(const struct world *world, const struct mount_world *mounts, const struct unix_name *name, const char *cwd,
                                    int number)
{
    struct unix_place *place = must_alloc(sizeof *place);
    place->mounts = mounts;
    AUTO_FREE char *text = path_text(name);
    if (text[0] == '/') {
        place->path = must_copy_string(text);
    } else {
        place->base = must_copy_string(cwd);
        place->path = must_alloc(strlen(cwd) + strlen(text) + 2);
        sprintf(place->path, "%s%s%s", cwd, strcmp(cwd, "/") ? "/" : "", text);
    }
    AUTO_FREE char *directory = must_copy_string(place->path);
    *strrchr(directory, '/') = 0;
    place->alias = format_path("%s/.tclone-%d", directory, number);
    struct stat st;
    place->lost = look_up(world, mounts, *directory ? directory : "/", &st) < 0 || !S_ISDIR(st.st_mode);
    place->mode = 0777;
    return place;
}

static bool leads_to(const struct world *world, struct unix_place *place, const char *path, const struct unix_socket *socket)
{
    struct stat st;
    if (look_up(world, place->mounts, path, &st) < 0 || !S_ISSOCK(st.st_mode) || (uint32_t)st.st_ino != socket->diag.file_inode)
        return false;
    place->in_place = true;
    place->mode = st.st_mode & 07777;
    place->uid = st.st_uid;
    place->gid = st.st_gid;
    return true;
}

struct unix_place *unix_place_find(struct world *world, const struct unix_socket *socket)
{
    const struct process *holder = socket->description->holder;
    const struct mount_world *mounts = holder ? mounts_of_process(holder) : NULL;
    struct unix_place *place = new_place(world, mounts, &socket->name, holder ? holder->cwd : "/", (int)socket->diag.inode);
    if (leads_to(world, place, place->path, socket) || !holder || mounts || place->base || strcmp(holder->root, "/") == 0)
        return place;
    /* Bound after its process had changed its root, perhaps. */
    AUTO_FREE char *below = format_path("%s", holder->root, 0);
    below = must_grow(below, strlen(below) + strlen(place->path) + 1);
    strcat(below, place->path);
    if (leads_to(world, place, below, socket)) {
        place->root = must_copy_string(holder->root);
        place->path = must_copy_string(below);
        place->lost = false;
    }
    return place;
}

/* In pid 1 of a branch: see the tree below `root` alone, until the root directory kept in the returned cell is entered again. */
static uint64_t enter_root(struct batch *batch, const char *root, const char *what)
{
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, plan_string(batch->plan, "/"), O_PATH | O_DIRECTORY | O_CLOEXEC);
    uint64_t kept = emit_result_cell(batch);
    EMIT(batch, what, SYS_chroot, plan_string(batch->plan, root));
    return kept;
}

static void leave_root(struct batch *batch, uint64_t kept, const char *what)
{
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_fchdir, kept);
    EMIT(batch, what, SYS_chroot, plan_string(batch->plan, "."));
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, kept);
}

struct unix_place *unix_place_temporary(struct world *world, const struct unix_name *name, int number)
{
    return new_place(world, NULL, name, "/", number);
}

/* Rename with a path that need not exist. */
static void move_aside(struct batch *batch, const char *from, const char *to, const char *what)
{
    EMIT_FLAGS(batch, what, TOLERATING(GONE_NAME), SYS_rename, plan_string(batch->plan, from), plan_string(batch->plan, to));
}

/* Whoever is to connect in the branch learns the name that the kernel chose from the arena. */
static void bind_substitute(struct batch *batch, struct unix_place *place, uint64_t fd, const char *what)
{
    struct plan *plan = batch->plan;
    struct sockaddr_un any = { .sun_family = AF_UNIX };
    uint32_t room = sizeof any;
    place->address = plan_reserve(plan, sizeof any);
    place->address_length = plan_data(plan, &room, sizeof room);
    EMIT(batch, what, SYS_bind, fd, plan_data(plan, &any, sizeof any.sun_family), sizeof any.sun_family);
    EMIT(batch, what, SYS_getsockname, fd, place->address, place->address_length);
}

/*
 * The file that bears the name is a socket of the snapshot, which nobody serves any more: it makes room. If the name meanwhile belongs to
 * another file, that one steps aside, and ours is moved to an alias where it can be connected to until the branch is complete.
 */
static void emit_bind(struct batch *batch, struct unix_place *place, const struct unix_name *name, uint64_t fd, const char *what)
{
    struct plan *plan = batch->plan;
    if (!place || place->lost) {
        if (place)
            bind_substitute(batch, place, fd, what);
        else
            EMIT(batch, what, SYS_bind, fd, plan_data(plan, name->address, name->length), name->length);
        return;
    }
    AUTO_FREE char *kept = format_path("%s.tclone-kept-%d", place->path, batch->count);
    if (place->in_place)
        EMIT(batch, what, SYS_unlink, plan_string(plan, place->path));
    else
        move_aside(batch, place->path, kept, what);
    if (place->base)
        EMIT(batch, what, SYS_chdir, plan_string(plan, place->base));
    uint64_t kept_root = place->root ? enter_root(batch, place->root, what) : 0;
    /* A full 108 bytes are reported with one more; bind takes no NUL then. */
    uint32_t length = name->length > sizeof(struct sockaddr_un) ? sizeof(struct sockaddr_un) : name->length;
    EMIT(batch, what, SYS_bind, fd, plan_data(plan, name->address, length), length);
    if (place->root)
        leave_root(batch, kept_root, what);
    if (place->base)
        EMIT(batch, what, SYS_chdir, plan_string(plan, "/"));
    if (!place->in_place) {
        move_aside(batch, place->path, place->alias, what);
        move_aside(batch, kept, place->path, what);
    }
}

void unix_place_bind(struct batch *batch, struct unix_place *place, const struct unix_name *name, uint64_t fd, const char *what)
{
    bool theirs = place && place->mounts && place->in_place;
    struct mount_maker before = { 0, 0 };
    mounts_enter(batch, place ? place->mounts : NULL);
    if (theirs)
        before = mounts_make_as(batch, place->uid, place->gid);
    emit_bind(batch, place, name, fd, what);
    if (theirs)
        mounts_made(batch, before);
    mounts_leave(batch, place ? place->mounts : NULL);
}

uint64_t unix_place_address(struct plan *plan, const struct unix_place *place, const struct unix_name *name, socklen_t *length)
{
    if (!place || (place->in_place && !place->base && !place->root)) {
        *length = name->length > sizeof(struct sockaddr_un) ? sizeof(struct sockaddr_un) : name->length;
        return plan_data(plan, name->address, *length);
    }
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *path = place->in_place ? place->path : place->alias;
    if (place->lost || strlen(path) >= sizeof address.sun_path)
        return 0;
    strcpy(address.sun_path, path);
    *length = (socklen_t)(PATH_AT + strlen(path) + 1);
    return plan_data(plan, &address, *length);
}

static void emit_connect(struct batch *batch, const struct unix_place *place, const struct unix_name *name, uint64_t fd, const char *what)
{
    socklen_t length = 0;
    if (place && place->lost) {
        EMIT_FLAGS(batch, what, OP_LOAD32(2), SYS_connect, fd, place->address, place->address_length);
        return;
    }
    uint64_t address = unix_place_address(batch->plan, place, name, &length);
    if (address) {
        EMIT(batch, what, SYS_connect, fd, address, length);
        return;
    }
    /* Too long for an address: go to its directory. */
    const char *path = place->in_place ? place->path : place->alias, *base = strrchr(path, '/');
    struct sockaddr_un shorter = { .sun_family = AF_UNIX };
    AUTO_FREE char *directory = must_copy_string(path);
    directory[base - path] = 0;
    snprintf(shorter.sun_path, sizeof shorter.sun_path, "%s", base + 1);
    EMIT(batch, what, SYS_chdir, plan_string(batch->plan, *directory ? directory : "/"));
    EMIT(batch, what, SYS_connect, fd, plan_data(batch->plan, &shorter, sizeof shorter), (uint64_t)(PATH_AT + strlen(shorter.sun_path) + 1));
    EMIT(batch, what, SYS_chdir, plan_string(batch->plan, "/"));
}

void unix_place_connect(struct batch *batch, const struct unix_place *place, const struct unix_name *name, uint64_t fd, const char *what)
{
    mounts_enter(batch, place ? place->mounts : NULL);
    emit_connect(batch, place, name, fd, what);
    mounts_leave(batch, place ? place->mounts : NULL);
}

static void emit_finish(struct batch *batch, const struct unix_place *place, const char *what)
{
    struct plan *plan = batch->plan;
    if (!place || place->lost)
        return;
    if (!place->in_place) {
        EMIT_FLAGS(batch, what, TOLERATING(GONE_NAME), SYS_unlink, plan_string(plan, place->alias));
        return;
    }
    uint64_t path = plan_string(plan, place->path);
    EMIT(batch, what, SYS_chown, path, place->uid, place->gid);
    EMIT(batch, what, SYS_chmod, path, place->mode);
}

void unix_place_finish(struct batch *batch, const struct unix_place *place, const char *what)
{
    mounts_enter(batch, place ? place->mounts : NULL);
    emit_finish(batch, place, what);
    mounts_leave(batch, place ? place->mounts : NULL);
}
