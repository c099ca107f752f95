/*
 * The kernel's own flags of every mapping of a process. /proc tells them in smaps only, which walks all page tables: 3 ms for a process of 300
 * mappings and 100 MB, too long for a pause. A BPF iterator (Linux 6.1) tells them in 15 us.
 */
#ifndef TCLONE_VMA_READER_H
#define TCLONE_VMA_READER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct vma_record {
    uint64_t start, end;
    uint64_t flags;             /* vm_flags */
    uint64_t default_flags;     /* mm->def_flags: what every new mapping gets (mlockall's MCL_FUTURE) */
};

/* Load the program; takes a millisecond, the half of it for finding three types among the kernel's 126 000. Returns a descriptor, or -1 if
 * this kernel has no such iterator or does not let us use it. */
int vma_reader_open(void);
/* All mappings of the process that thread `tid` belongs to, in order; the block is the caller's. Returns their number or -1. Thread-safe. */
ssize_t vma_reader_read(int reader, pid_t tid, struct vma_record **records);

#endif
