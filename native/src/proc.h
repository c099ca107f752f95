/* Readers of /proc text. Lengths and contents come from hostile tasks: everything is bounded and checked. */
#ifndef TCLONE_PROC_H
#define TCLONE_PROC_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "error.h"

/* Read a whole file below /proc into a fresh, NUL-terminated block (caller frees). At most `limit` bytes, else code "limit". */
char *proc_read(struct error *err, size_t limit, size_t *length, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* The value of "Key:\t…" in status-like text, or NULL. */
const char *proc_field(const char *text, const char *key);
/* The next entry of a directory (`what`); NULL behind the last, and with err filled if the list cannot be read to its end. */
struct dirent *directory_next(DIR *directory, const char *what, struct error *err);
/* readlink into a fresh block; NULL and err on failure. */
char *proc_link(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
