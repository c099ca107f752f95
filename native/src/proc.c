#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *proc_read(struct error *err, size_t limit, size_t *length, const char *format, ...)
{
    char path[128];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);

    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT)
            errno = ESRCH;
        fail_errno(err, "cannot open %s", path);
        return NULL;
    }
    size_t capacity = 4096, used = 0;
    char *text = must_buffer(capacity);
    for (;;) {
        if (used + 1 == capacity) {
            if (capacity >= limit) {
                free(text);
                fail(err, "limit", "%s is longer than %zu bytes", path, limit);
                return NULL;
            }
            capacity *= 2;
            text = must_grow(text, capacity);
        }
        ssize_t got = read(fd, text + used, capacity - used - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            fail_errno(err, "cannot read %s", path);
            free(text);
            return NULL;
        }
        if (got == 0)
            break;
        used += (size_t)got;
    }
    text[used] = 0;
    if (length)
        *length = used;
    return text;
}

const char *proc_field(const char *text, const char *key)
{
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        if (strncmp(line, key, length) == 0 && line[length] == ':') {
            line += length + 1;
            while (*line == '\t' || *line == ' ')
                line++;
            return line;
        }
        if (!*line)
            break;
    }
    return NULL;
}

struct dirent *directory_next(DIR *directory, const char *what, struct error *err)
{
    errno = 0;
    struct dirent *entry = readdir(directory);
    if (!entry && errno)
        fail_errno(err, "cannot list %s", what);
    return entry;
}

char *proc_link(struct error *err, const char *format, ...)
{
    char path[128], target[PATH_MAX + 64];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) {
        if (errno == ENOENT)
            errno = ESRCH;
        fail_errno(err, "cannot read the link %s", path);
        return NULL;
    }
    target[length] = 0;
    return must_copy_string(target);
}
