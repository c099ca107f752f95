/* What is fuzzed. An input is a number of texts with NUL bytes between them: the n-th file below /proc that is read has the n-th text. */
#ifndef TCLONE_FUZZ_TARGETS_H
#define TCLONE_FUZZ_TARGETS_H

#include <stddef.h>
#include <stdint.h>

struct target {
    const char *name;
    void (*run)(const uint8_t *bytes, size_t size);
    unsigned long fresh_after;  /* runs after which the program starts afresh, because the module keeps what it found; 0 = never */
};

extern const struct target targets[];       /* ends with a name of NULL */
const struct target *target_by_name(const char *name);

#endif
