/*
 * Two walks. The first lists the source, which stands still. Then every inode is made, in the order of the source's inode numbers, below a
 * temporary name in the root: a tmpfs numbers its inodes one after the other, so they get the numbers they had. The second walk moves each to
 * its place and fills it. Both walks hold one directory open, and go up by "..": the depth of a tree is bounded by nothing else.
 */
#include "tree_copy.h"
#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/xattr.h>
#include <unistd.h>

#define BUFFER (256u << 10)
#define XATTR_NAMES 65536
#define XATTR_VALUE 65536
/* Unused numbers that may be passed over in a tree: opening and closing a nameless file takes 1.5 us. */
#define MAX_SKIPPED 16384
#define MAX_TARGET 4097
#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct entry {
    int parent;                 /* -1 = the root itself */
    int first_child, next;      /* -1 = none */
    int twin;                   /* an earlier name of the same inode, -1 = none */
    char *name;
    char *target;               /* of a symbolic link */
    struct stat st;
};

struct walk {
    struct tree_copy *copy;
    unsigned token;             /* makes temporary names that the tree does not use itself */
    struct entry *entries;
    int count, capacity;
    char *buffer;
};

int64_t copy_extents(int from, int to, uint64_t size)
{
    AUTO_FREE char *buffer = must_buffer(BUFFER);
    int64_t copied = 0;
    for (off_t at = 0; (uint64_t)at < size;) {
        off_t start = lseek(from, at, SEEK_DATA);
        if (start < 0)
            return errno == ENXIO ? copied : -1;    /* holes up to the end */
        off_t end = lseek(from, start, SEEK_HOLE);
        if (end < 0)
            return -1;
        for (at = start; at < end;) {
            size_t piece = end - at < BUFFER ? (size_t)(end - at) : BUFFER;
            ssize_t got = pread(from, buffer, piece, at);
            if (got <= 0 || pwrite(to, buffer, (size_t)got, at) != got)
                return got == 0 ? copied : -1;
            at += got;
            copied += got;
        }
    }
    return copied;
}

/* ---- the first walk ---- */

static int add_entry(struct walk *walk, int parent, const char *name, const struct stat *st, struct error *err)
{
    if (walk->count == TREE_MAX_ENTRIES)
        return fail(err, "limit", "%s holds more than %d files; remove some and fork again", walk->copy->label, TREE_MAX_ENTRIES);
    if (walk->count == walk->capacity) {
        walk->capacity = walk->capacity ? walk->capacity * 2 : 64;
        walk->entries = must_grow(walk->entries, (size_t)walk->capacity * sizeof *walk->entries);
    }
    walk->entries[walk->count] = (struct entry){ .parent = parent, .first_child = -1, .next = -1, .twin = -1, .name = must_copy_string(name),
                                                 .st = *st };
    return walk->count++;
}

static int read_target(struct walk *walk, int index, int directory, struct error *err)
{
    struct entry *entry = &walk->entries[index];
    char target[MAX_TARGET];
    if (!S_ISLNK(entry->st.st_mode))
        return 0;
    ssize_t length = readlinkat(directory, entry->name, target, sizeof target - 1);
    if (length < 0)
        return fail_errno(err, "cannot read the link %s in %s", entry->name, walk->copy->label);
    target[length] = 0;
    entry->target = must_copy_string(target);
    return 0;
}

static int list_directory(struct walk *walk, int index, int fd, struct error *err)
{
    int listing = openat(fd, ".", DIRECTORY | O_NOATIME);
    DIR *directory = listing < 0 ? NULL : fdopendir(listing);
    if (!directory)
        return fail_errno(err, "cannot list a directory in %s", walk->copy->label);
    int status = 0;
    struct dirent *found;
    while (status == 0 && (found = directory_next(directory, walk->copy->label, err))) {
        struct stat st;
        if (strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0)
            continue;
        if (index == 0 && walk->copy->leave && walk->copy->leave(walk->copy->context, found->d_name))
            continue;
        if (fstatat(fd, found->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            status = fail_errno(err, "cannot look at %s in %s", found->d_name, walk->copy->label);
            break;
        }
        int child = add_entry(walk, index, found->d_name, &st, err);
        if (child < 0 || read_target(walk, child, fd, err) < 0) {
            status = -1;
            break;
        }
        /* Newest first, as a tmpfs lists them: so the second walk goes from the oldest to the newest. */
        walk->entries[child].next = walk->entries[index].first_child;
        walk->entries[index].first_child = child;
    }
    closedir(directory);
    return status < 0 || err->code ? -1 : 0;
}

/* The first directory among `from` and the siblings behind it, or -1. */
static int first_directory(const struct walk *walk, int from)
{
    /* What is mounted there is another matter. */
    while (from >= 0 && (!S_ISDIR(walk->entries[from].st.st_mode) || walk->entries[from].st.st_dev != walk->entries[0].st.st_dev))
        from = walk->entries[from].next;
    return from;
}

static int step(int *fd, const char *name)
{
    int next = openat(*fd, name, DIRECTORY | O_NOATIME);
    if (next < 0)
        return -1;
    close(*fd);
    *fd = next;
    return 0;
}

static int scan(struct walk *walk, struct error *err)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(walk->copy->from, ".", DIRECTORY | O_NOATIME);
    if (fd < 0 || fstat(fd, &st) < 0)
        return fail_errno(err, "cannot open %s", walk->copy->label);
    int index = add_entry(walk, -1, ".", &st, err);
    for (;;) {
        if (list_directory(walk, index, fd, err) < 0)
            return -1;
        int next = first_directory(walk, walk->entries[index].first_child);
        while (next < 0 && walk->entries[index].parent >= 0) {
            if (step(&fd, "..") < 0)
                return fail_errno(err, "cannot walk through %s", walk->copy->label);
            next = first_directory(walk, walk->entries[index].next);
            index = walk->entries[index].parent;
        }
        if (next < 0)
            return 0;
        if (step(&fd, walk->entries[next].name) < 0)
            return fail_errno(err, "cannot open %s in %s", walk->entries[next].name, walk->copy->label);
        index = next;
    }
}

/* ---- making the inodes ---- */

static const struct entry *sorting;     /* qsort has no room for a context */

static int by_inode(const void *left, const void *right)
{
    int a = *(const int *)left, b = *(const int *)right;
    if (sorting[a].st.st_ino != sorting[b].st.st_ino)
        return sorting[a].st.st_ino < sorting[b].st.st_ino ? -1 : 1;
    return a - b;
}

struct temporary { char name[40]; };

static struct temporary temporary_name(const struct walk *walk, int index)
{
    struct temporary temporary;
    snprintf(temporary.name, sizeof temporary.name, ".tclone-%08x-%d", walk->token, index);
    return temporary;
}

/* The number that comes after the one which a nameless file is given. */
static ino_t use_up_number(int directory)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return fd < 0 || fstat(fd, &st) < 0 ? 0 : st.st_ino + 1;
}

static void skip_numbers(int directory, ino_t *next, ino_t wanted, int *budget)
{
    while (*next && *next < wanted && wanted - *next <= (ino_t)*budget) {
        *next = use_up_number(directory);
        --*budget;
    }
}

static int make_inode(const struct walk *walk, int index, ino_t *next, struct error *err)
{
    const struct entry *entry = &walk->entries[index];
    struct temporary temporary = temporary_name(walk, index);
    int to = walk->copy->to, status;
    mode_t mode = entry->st.st_mode;
    if (S_ISDIR(mode))
        status = mkdirat(to, temporary.name, 0700);
    else if (S_ISLNK(mode))
        status = symlinkat(entry->target, to, temporary.name);
    else
        status = mknodat(to, temporary.name, (mode & S_IFMT) | 0600, S_ISREG(mode) ? 0 : entry->st.st_rdev);
    struct stat st;
    if (status < 0 || fstatat(to, temporary.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return fail_errno(err, "cannot make %s in the branch's %s", entry->name, walk->copy->label);
    *next = st.st_ino + 1;
    return 0;
}

static int make_inodes(struct walk *walk, struct error *err)
{
    AUTO_FREE int *order = must_alloc((size_t)walk->count * sizeof *order);
    for (int i = 0; i < walk->count; i++)
        order[i] = i;
    sorting = walk->entries;
    qsort(order, (size_t)walk->count, sizeof *order, by_inode);
    int budget = MAX_SKIPPED;
    struct stat root;
    if (fstat(walk->copy->to, &root) < 0)
        return fail_errno(err, "cannot look at the branch's %s", walk->copy->label);
    ino_t next = root.st_ino + 1;       /* as long as nothing else was made in it */
    for (int i = 0; i < walk->count; i++) {
        struct entry *entry = &walk->entries[order[i]];
        if (entry->parent < 0)
            continue;
        if (i > 0 && walk->entries[order[i - 1]].st.st_ino == entry->st.st_ino && !S_ISDIR(entry->st.st_mode)) {
            const struct entry *before = &walk->entries[order[i - 1]];
            entry->twin = before->twin >= 0 ? before->twin : order[i - 1];
            continue;
        }
        skip_numbers(walk->copy->to, &next, entry->st.st_ino, &budget);
        if (make_inode(walk, order[i], &next, err) < 0)
            return -1;
    }
    return 0;
}

/* ---- the second walk ---- */

struct place { int from, to; };         /* the directory that the walk stands in, on both sides */

static int copy_attribute(const char *from, const char *to, const char *name, char *value)
{
    ssize_t size = lgetxattr(from, name, value, XATTR_VALUE);
    if (size < 0)
        return errno == ENODATA ? 0 : -1;
    return lsetxattr(to, name, value, (size_t)size, 0);
}

static int copy_attributes(const struct walk *walk, const struct place *place, const char *name, const char *name_to, struct error *err)
{
    AUTO_FREE char *from = NULL, *to = NULL;
    if (asprintf(&from, "/proc/self/fd/%d/%s", place->from, name) < 0 || asprintf(&to, "/proc/self/fd/%d/%s", place->to, name_to) < 0)
        return fail_errno(err, "out of memory");
    char *names = walk->buffer, *value = walk->buffer + XATTR_NAMES;
    ssize_t size = llistxattr(from, names, XATTR_NAMES);
    for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1)
        if (copy_attribute(from, to, names + at, value) < 0)
            return fail_errno(err, "cannot copy the attribute %s of %s in %s", names + at, name, walk->copy->label);
    return 0;
}

static int fill_file(const struct walk *walk, const struct entry *entry, const struct place *place, const char *name, struct error *err)
{
    AUTO_CLOSE int to = openat(place->to, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0)
        return fail_errno(err, "cannot open %s in the branch's %s", entry->name, walk->copy->label);
    if (walk->copy->claim && walk->copy->claim(walk->copy->context, &entry->st, to))
        return 0;
    if (entry->st.st_size == 0)
        return 0;
    AUTO_CLOSE int from = openat(place->from, entry->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
    if (from < 0 || ftruncate(to, entry->st.st_size) < 0 || copy_extents(from, to, (uint64_t)entry->st.st_size) < 0)
        return fail_errno(err, "cannot copy %s in %s", entry->name, walk->copy->label);
    return 0;
}

/* Owner, mode, attributes and times of what lies at `name` on the branch's side. */
static int set_attributes(const struct walk *walk, const struct entry *entry, const struct place *place, const char *from, const char *to,
                          struct error *err)
{
    const struct stat *st = &entry->st;
    if (fchownat(place->to, to, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0
        || (!S_ISLNK(st->st_mode) && fchmodat(place->to, to, st->st_mode & 07777, 0) < 0))
        return fail_errno(err, "cannot set the owner of %s in the branch's %s", entry->name, walk->copy->label);
    if (copy_attributes(walk, place, from, to, err) < 0)
        return -1;
    struct timespec times[2] = { st->st_atim, st->st_mtim };
    if (utimensat(place->to, to, times, AT_SYMLINK_NOFOLLOW) < 0)
        return fail_errno(err, "cannot set the times of %s in the branch's %s", entry->name, walk->copy->label);
    return 0;
}

/* Move an inode to its name. A file with several names keeps its temporary one until the end of the walk, for the others to link to. */
static int give_name(const struct walk *walk, int index, const struct place *place, struct error *err)
{
    const struct entry *entry = &walk->entries[index];
    struct temporary temporary = temporary_name(walk, entry->twin >= 0 ? entry->twin : index);
    bool shared = !S_ISDIR(entry->st.st_mode) && entry->st.st_nlink > 1;
    int status = shared ? linkat(walk->copy->to, temporary.name, place->to, entry->name, 0)
                        : renameat(walk->copy->to, temporary.name, place->to, entry->name);
    return status < 0 ? fail_errno(err, "cannot name %s in the branch's %s", entry->name, walk->copy->label) : 0;
}

static int place_entry(const struct walk *walk, int index, const struct place *place, struct error *err)
{
    const struct entry *entry = &walk->entries[index];
    if (give_name(walk, index, place, err) < 0)
        return -1;
    if (S_ISDIR(entry->st.st_mode) || entry->twin >= 0)
        return 0;               /* directories get their attributes when all is in them */
    if (S_ISREG(entry->st.st_mode) && fill_file(walk, entry, place, entry->name, err) < 0)
        return -1;
    return set_attributes(walk, entry, place, entry->name, entry->name, err);
}

static int place_children(const struct walk *walk, int index, const struct place *place, struct error *err)
{
    for (int child = walk->entries[index].first_child; child >= 0; child = walk->entries[child].next)
        if (place_entry(walk, child, place, err) < 0)
            return -1;
    return 0;
}

static void drop_temporary_names(const struct walk *walk)
{
    for (int i = 0; i < walk->count; i++) {
        const struct entry *entry = &walk->entries[i];
        if (entry->twin < 0 && entry->st.st_nlink > 1 && !S_ISDIR(entry->st.st_mode))
            unlinkat(walk->copy->to, temporary_name(walk, i).name, 0);
    }
}

static int finish_directory(const struct walk *walk, int index, const struct place *place, struct error *err)
{
    if (index == 0)
        drop_temporary_names(walk);
    return set_attributes(walk, &walk->entries[index], place, ".", ".", err);
}

static int fill(const struct walk *walk, struct place *place, struct error *err)
{
    int index = 0;
    for (;;) {
        if (place_children(walk, index, place, err) < 0)
            return -1;
        int next = first_directory(walk, walk->entries[index].first_child);
        while (next < 0) {
            if (finish_directory(walk, index, place, err) < 0)
                return -1;
            if (index == 0)
                return 0;
            if (step(&place->from, "..") < 0 || step(&place->to, "..") < 0)
                return fail_errno(err, "cannot walk through %s", walk->copy->label);
            next = first_directory(walk, walk->entries[index].next);
            index = walk->entries[index].parent;
        }
        if (step(&place->from, walk->entries[next].name) < 0 || step(&place->to, walk->entries[next].name) < 0)
            return fail_errno(err, "cannot open %s in %s", walk->entries[next].name, walk->copy->label);
        index = next;
    }
}

int tree_copy(struct tree_copy *copy, struct error *err)
{
    struct walk walk = { .copy = copy, .buffer = must_alloc(XATTR_NAMES + XATTR_VALUE) };
    struct place place = { openat(copy->from, ".", DIRECTORY | O_NOATIME), openat(copy->to, ".", DIRECTORY) };
    int status = 0;
    if (getrandom(&walk.token, sizeof walk.token, 0) != sizeof walk.token)
        walk.token = (unsigned)getpid();
    if (place.from < 0 || place.to < 0)
        status = fail_errno(err, "cannot open %s", copy->label);
    if (status == 0)
        status = scan(&walk, err);
    if (status == 0)
        status = make_inodes(&walk, err);
    if (status == 0)
        status = fill(&walk, &place, err);
    close_fd(&place.from);
    close_fd(&place.to);
    for (int i = 0; i < walk.count; i++) {
        free(walk.entries[i].name);
        free(walk.entries[i].target);
    }
    free(walk.entries);
    free(walk.buffer);
    return status;
}
