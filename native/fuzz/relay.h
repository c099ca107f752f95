/* Targets of the relay's library. */
#ifndef TCLONE_FUZZ_RELAY_H
#define TCLONE_FUZZ_RELAY_H

#include <stddef.h>
#include <stdint.h>

void run_frames(const uint8_t *bytes, size_t size);
void run_relay(const uint8_t *bytes, size_t size);

#endif
