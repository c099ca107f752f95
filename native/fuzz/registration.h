/* Target of tclone-init: what a workspace registers to be told of a fork. */
#ifndef TCLONE_FUZZ_REGISTRATION_H
#define TCLONE_FUZZ_REGISTRATION_H

#include <stddef.h>
#include <stdint.h>

/* Three texts with NUL bytes between them: a registration's name, its content, and the status of the process that it names. */
void run_registration(const uint8_t *bytes, size_t size);

#endif
