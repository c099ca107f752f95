#include "mountinfo.h"
#include "mount_enter.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_LIMIT (16u << 20)
#define FIRST_READ (64u << 10)
#define REMOVED "//deleted"

#ifndef MOUNT_ATTR_NOSYMFOLLOW
#define MOUNT_ATTR_NOSYMFOLLOW 0x00200000
#endif

/* Blanks, newlines, backslashes and hashes are written as \ooo. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++) {
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' && at[3] >= '0' && at[3] <= '7') {
            *to++ = (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0'));
            at += 3;
        } else {
            *to++ = *at;
        }
    }
    *to = 0;
}

static uint64_t attributes_of(char *options)
{
    static const struct { const char *name; uint64_t bit; } known[] = {
        { "ro", MOUNT_ATTR_RDONLY }, { "nosuid", MOUNT_ATTR_NOSUID }, { "nodev", MOUNT_ATTR_NODEV }, { "noexec", MOUNT_ATTR_NOEXEC },
        { "noatime", MOUNT_ATTR_NOATIME }, { "nodiratime", MOUNT_ATTR_NODIRATIME }, { "nosymfollow", MOUNT_ATTR_NOSYMFOLLOW },
    };
    uint64_t bits = MOUNT_ATTR_STRICTATIME;
    char *rest = options;
    for (char *word; (word = strsep(&rest, ","));) {
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (strcmp(word, known[i].name) == 0)
                bits |= known[i].bit;
        if (strcmp(word, "relatime") == 0 || strcmp(word, "noatime") == 0)
            bits &= ~(uint64_t)MOUNT_ATTR_STRICTATIME;     /* relatime is 0 */
    }
    return bits;
}

static void take_optional(struct mount *mount, const char *field)
{
    if (strncmp(field, "shared:", 7) == 0)
        mount->shared = atoi(field + 7);
    else if (strncmp(field, "master:", 7) == 0)
        mount->master = atoi(field + 7);
    else if (strcmp(field, "unbindable") == 0)
        mount->unbindable = true;
}

/* "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue" */
static int parse_line(char *line, struct mount *mount)
{
    char *rest = line, *field[6];
    for (int i = 0; i < 6; i++)
        if (!(field[i] = strsep(&rest, " ")))
            return -1;
    unsigned major, minor;
    if (sscanf(field[2], "%u:%u", &major, &minor) != 2)
        return -1;
    mount->id = atoi(field[0]);
    mount->parent_id = atoi(field[1]);
    mount->device = (uint64_t)major << 32 | minor;
    char *optional;
    while ((optional = strsep(&rest, " ")) && strcmp(optional, "-") != 0)
        take_optional(mount, optional);
    char *type = strsep(&rest, " "), *source = strsep(&rest, " ");
    if (!optional || !type || !source || !rest)
        return -1;
    mount->attributes = attributes_of(field[5]);
    unescape(field[3]);
    unescape(field[4]);
    unescape(source);
    size_t length = strlen(field[3]), suffix = sizeof REMOVED - 1;
    if (length >= suffix && strcmp(field[3] + length - suffix, REMOVED) == 0) {
        mount->root_removed = true;
        field[3][length - suffix] = 0;
    }
    mount->root = must_copy_string(field[3]);
    mount->point = must_copy_string(field[4]);
    mount->type = must_copy_string(type);
    mount->source = must_copy_string(source);
    mount->options = must_copy_string(rest);
    return 0;
}

static void find_parents(struct mount_table *table)
{
    for (int i = 0; i < table->count; i++) {
        struct mount *mount = &table->list[i];
        mount->index = i;
        for (int k = 0; k < table->count && !mount->parent; k++)
            if (k != i && table->list[k].id == mount->parent_id)
                mount->parent = &table->list[k];
    }
}

int mount_table_parse(struct mount_table *table, char *text, struct error *err)
{
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    if (lines > MAX_MOUNTS)
        return fail(err, "limit", "a mount namespace of the source holds %d mounts, more than %d", lines, MAX_MOUNTS);
    *table = (struct mount_table){ .list = must_alloc((size_t)(lines + 1) * sizeof *table->list) };
    char *line = text;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        if (parse_line(line, &table->list[table->count]) < 0)
            return fail(err, "internal", "a line of mountinfo cannot be read: %.120s", line);
        table->count++;
    }
    find_parents(table);
    return 0;
}

struct reading {
    int proc;
    struct mount_table *table;
};

/* Read in one go if it can be: between two reads of a running namespace the list may change. */
static char *read_text(int fd, struct error *err)
{
    size_t capacity = FIRST_READ, used = 0;
    char *text = must_buffer(capacity);
    for (ssize_t got; (got = read(fd, text + used, capacity - used - 1)) != 0;) {
        if (got < 0 || capacity > TEXT_LIMIT) {
            free(text);
            fail_errno(err, "cannot read the mounts of the source");
            return NULL;
        }
        used += (size_t)got;
        if (used + 1 == capacity)
            text = must_grow(text, capacity *= 2);
    }
    text[used] = 0;
    return text;
}

static int read_table(void *context, struct error *err)
{
    struct reading *reading = context;
    AUTO_CLOSE int fd = openat(reading->proc, "thread-self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, "cannot open the mounts of the source");
    AUTO_FREE char *text = read_text(fd, err);
    return text ? mount_table_parse(reading->table, text, err) : -1;
}

int mount_table_read(struct mount_table *table, int mnt_ns, struct error *err)
{
    AUTO_CLOSE int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct reading reading = { proc, table };
    if (proc < 0)
        return fail_errno(err, "cannot open /proc");
    return mount_enter(mnt_ns, read_table, &reading, err);
}

void mount_table_free(struct mount_table *table)
{
    for (int i = 0; i < table->count; i++) {
        struct mount *mount = &table->list[i];
        free(mount->root);
        free(mount->point);
        free(mount->type);
        free(mount->source);
        free(mount->options);
    }
    free(table->list);
    *table = (struct mount_table){ 0 };
}

struct mount *mount_table_root(const struct mount_table *table)
{
    for (int i = 0; i < table->count; i++)
        if (!table->list[i].parent && strcmp(table->list[i].point, "/") == 0)
            return &table->list[i];
    return NULL;
}

static bool hangs_on(const struct mount *mount, const struct mount *ancestor)
{
    while (mount && mount != ancestor)
        mount = mount->parent;
    return mount != NULL;
}

bool mount_hides(const struct mount *other, const struct mount *mount)
{
    const struct mount *branch = mount;     /* that of the mounts on other's parent which leads to `mount` */
    if (!other->parent || hangs_on(mount, other))
        return false;
    if (mount == other->parent)
        return strcmp(other->point, mount->point) == 0;
    while (branch && branch->parent != other->parent)
        branch = branch->parent;
    size_t length = strcmp(other->point, "/") == 0 ? 0 : strlen(other->point);
    return branch && strncmp(branch->point, other->point, length) == 0 && (branch->point[length] == 0 || branch->point[length] == '/');
}
