/* For programs with mounts of their own: entering namespaces, and a text that says which mounts there are. */
#ifndef MOUNTS_H
#define MOUNTS_H

#include "fidelity.h"

#include <sys/mount.h>

#define MAX_LINES 200

static inline void put_text(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY));
    MUST((int)write(fd, text, strlen(text)));
    close(fd);
}

static inline void make_file(const char *path, const char *text, mode_t mode)
{
    int fd = MUST(open(path, O_WRONLY | O_CREAT | O_EXCL, 0600));
    MUST((int)write(fd, text, strlen(text)));
    MUST(fchmod(fd, mode));
    close(fd);
}

/* New user and mount namespaces, in which the caller is root and nobody else is known. */
static inline void enter_namespaces(int more)
{
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWNS | more));
    put_text("/proc/self/setgroups", "deny");
    put_text("/proc/self/uid_map", "0 0 1");
    put_text("/proc/self/gid_map", "0 0 1");
}

static inline int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* What stays the same in a branch: no ids, no device numbers, no options that name the layers of the root. */
static inline void describe_mount(char *line, char *to)
{
    char root[512], point[512], flags[128], type[64], source[256], options[1024];
    char *tail = strstr(line, " - ");
    if (sscanf(line, "%*d %*d %*s %511s %511s %127s", root, point, flags) != 3 || sscanf(tail, " - %63s %255s %1023s", type, source, options) != 3)
        fidelity_fail("a line of mountinfo is '%s'", line);
    *tail = 0;
    bool ours = strcmp(type, "tmpfs") == 0;
    /* Where a file system is mounted that is not the workspace's own, its path there says which cgroup it shows. */
    sprintf(to, "%s %s %s %s %s%s%s %s", point, strncmp(type, "cgroup", 6) ? root : "", flags, type, ours ? source : "",
            strstr(line, " shared:") ? " shared" : "", strstr(line, " master:") ? " slave" : "", ours ? options : "");
}

/* All mounts the caller sees, sorted, one a line; the caller frees it. */
static inline char *describe_mounts(void)
{
    char *lines[MAX_LINES], *text = strdup(fidelity_file("/proc/self/mountinfo")), *rest = text, *line;
    int count = 0;
    size_t size = 1;
    while ((line = strsep(&rest, "\n")) && *line) {
        CHECK(count < MAX_LINES, "too many mounts");
        lines[count] = malloc(3000);
        describe_mount(line, lines[count]);
        size += strlen(lines[count++]) + 1;
    }
    qsort(lines, (size_t)count, sizeof *lines, by_text);
    char *all = calloc(1, size);
    for (int i = 0; i < count; i++) {
        strcat(strcat(all, lines[i]), "\n");
        free(lines[i]);
    }
    free(text);
    return all;
}

/* The first lines that differ. */
static inline void check_same_mounts(const char *before)
{
    char *after = describe_mounts(), *left = strdup(before), *right = strdup(after), *left_rest = left, *right_rest = right;
    while (left_rest && right_rest) {
        char *a = strsep(&left_rest, "\n"), *b = strsep(&right_rest, "\n");
        CHECK(strcmp(a, b) == 0, "mounts differ: was '%.200s', is '%.200s'", a, b);
    }
    CHECK(left_rest == right_rest, "there are more or fewer mounts than before");
    free(left);
    free(right);
    free(after);
}

#endif
