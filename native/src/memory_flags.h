/* Attributes of mappings beyond protection: advice, locks, seals … */
#ifndef TCLONE_MEMORY_FLAGS_H
#define TCLONE_MEMORY_FLAGS_H

#include "world.h"

enum memory_attribute {
    MEMORY_GROWS_DOWN, MEMORY_LOCKED, MEMORY_LOCKED_ON_FAULT, MEMORY_DONT_FORK, MEMORY_WIPE_ON_FORK, MEMORY_DONT_DUMP, MEMORY_MERGEABLE,
    MEMORY_HUGE, MEMORY_NOT_HUGE, MEMORY_RANDOM, MEMORY_SEQUENTIAL, MEMORY_NO_RESERVE, MEMORY_ACCOUNTED, MEMORY_DROPPABLE, MEMORY_SEALED,
    MEMORY_MAY_WRITE,
    MEMORY_OPEN_FOR_WRITING,    /* a shared mapping of a file that was opened so */
    MEMORY_DEVICE, MEMORY_USERFAULT, MEMORY_SHADOW_STACK, MEMORY_ATTRIBUTES
};
#define MEMORY_BIT(attribute) (1u << (attribute))

/*
 * Begin, in the background, what takes some milliseconds; and wait for its end. Both before the freeze. `learnt` is NULL or "FD:TEXT" of an earlier run
 * of this program since the machine was started (memory_flags_facts), and saves them; a text of another program is not believed.
 */
void memory_flags_start(const char *learnt);
void memory_flags_prepare(void);
/* What was learnt, as text (the caller's), and the descriptor that goes with it; NULL where the kernel does not tell cheaply. */
char *memory_flags_facts(int *program);
/* Does the running process seem to have mappings that memory_check_vma refuses? Cheap; says no where this kernel does not tell cheaply. */
bool memory_flags_suspicious(const struct process *process);
/* Set `attributes` and `key` of every mapping that memory_read_map found, and the map's lock_future. */
int memory_flags_read(struct process *process, struct error *err);

#endif
