/* The parsers of a registration are nobody else's business: so the file that has them is a part of this one. */
#include "../src/after_fork.c"

#include "registration.h"

/* tclone-init's own (init.c); nothing here runs a hook. */
int open_console_log(void)
{
    return -1;
}

/* The next text in a block of exactly its size. */
static char *next(const uint8_t **bytes, size_t *size)
{
    const uint8_t *end = *size ? memchr(*bytes, 0, *size) : NULL;
    size_t length = end ? (size_t)(end - *bytes) : *size;
    char *text = malloc(length + 1);
    if (!text)
        abort();
    if (length)
        memcpy(text, *bytes, length);
    text[length] = 0;
    *bytes += length + (end != NULL);
    *size -= length + (end != NULL);
    return text;
}

void run_registration(const uint8_t *bytes, size_t size)
{
    char *name = next(&bytes, &size), *content = next(&bytes, &size), *status = next(&bytes, &size);
    uint64_t value;
    int pid = parse_number(name, 1, INT32_MAX), number = signal_by_name(content);
    if ((pid != -1 && pid < 1) || number < -1 || number > SIGRTMAX)
        abort();
    status_field(status, "\nUid:", 10, &value);
    status_field(status, "\nSigCgt:", 16, &value);
    free(name);
    free(content);
    free(status);
}
