/* Error convention: a fallible function returns < 0 and fills a struct error whose message names the object. */
#ifndef TCLONE_ERROR_H
#define TCLONE_ERROR_H

#include <stddef.h>

struct error {
    const char *code;   /* "unsupported", "limit", "gone", "busy" (a new try may do), "internal"; NULL while there is no error */
    char message[768];
};

/* Fill err (the first failure wins) and return -1. Control characters, which names of the workspace can hold, become `?`. */
int fail(struct error *err, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same, with ": strerror(errno)" appended. ESRCH becomes code "gone", ENOSPC and ENOMEM become "limit". */
int fail_errno(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Replace the control characters of a text. */
void make_printable(char *text);

/*
 * Ends the program where it cannot go on, by SIGKILL: whoever waits for it then puts the source back (shield.h), and nothing is held that its end would not
 * release. The reason goes to stderr, and to `last_words` if it is set, unless a helper process calls this.
 */
void end_at_once(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void on_end_at_once(void (*last_words)(const struct error *err));

/* Memory that cannot be had ends the program. */
void *must_alloc(size_t size);
/* The same for what is written before it is read: nothing is zeroed, so pages that are not needed are never touched. */
void *must_buffer(size_t size);
void *must_grow(void *block, size_t size);
char *must_copy_string(const char *text);

void close_fd(int *fd);
#define AUTO_CLOSE __attribute__((cleanup(close_fd)))
void free_block(void *block);
#define AUTO_FREE __attribute__((cleanup(free_block)))

#endif
