#include "error.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void make_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at; at++)
        if (*at < 0x20 || *at == 0x7f)
            *at = '?';
}

int fail(struct error *err, const char *code, const char *format, ...)
{
    if (err->code)
        return -1;
    err->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    make_printable(err->message);
    return -1;
}

static const char *code_of(int number)
{
    switch (number) {
    case ESRCH: return "gone";
    case ENOSPC:
    case ENOMEM: return "limit";
    default: return "internal";
    }
}

int fail_errno(struct error *err, const char *format, ...)
{
    int number = errno;
    if (err->code)
        return -1;
    err->code = code_of(number);
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof err->message - used, ": %s", strerror(number));
    make_printable(err->message);
    return -1;
}

static void (*words)(const struct error *err);
static pid_t speaker;

void on_end_at_once(void (*last_words)(const struct error *err))
{
    words = last_words;
    speaker = getpid();
}

void end_at_once(const char *format, ...)
{
    static struct error err = { .code = "internal" };
    va_list args;
    va_start(args, format);
    vsnprintf(err.message, sizeof err.message, format, args);
    va_end(args);
    make_printable(err.message);
    dprintf(STDERR_FILENO, "tclone-livefork: %s\n", err.message);
    void (*last_words)(const struct error *) = getpid() == speaker ? words : NULL;
    words = NULL;               /* to tell it takes memory, too */
    if (last_words)
        last_words(&err);
    for (;;)
        raise(SIGKILL);
}

static void *checked(void *block)
{
    if (!block)
        end_at_once("the host has no memory left for the fork program");
    return block;
}

void *must_alloc(size_t size) { return checked(calloc(1, size ? size : 1)); }
void *must_buffer(size_t size) { return checked(malloc(size ? size : 1)); }
void *must_grow(void *block, size_t size) { return checked(realloc(block, size ? size : 1)); }
char *must_copy_string(const char *text) { return checked(strdup(text)); }

void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void free_block(void *block)
{
    free(*(void **)block);
}

#ifdef TCLONE_SANITIZED
/* One run is one fork, and its exit gives all memory back: what is still held then is no fault. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }
#endif
