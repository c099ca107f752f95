/*
 * What the kernel knows of a process's asynchronous I/O contexts and tells nobody: how many requests are under way. Its free places are counted for the
 * context and for each processor; a BPF iterator over the process reads them.
 */
#ifndef TCLONE_AIO_READER_H
#define TCLONE_AIO_READER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct aio_record {
    uint64_t id;                /* of the context: where its ring is mapped */
    uint64_t events;            /* places in the ring */
    uint64_t available, completed, available_on_cpus;
    uint64_t cancellable;       /* 0 = no request waits for a descriptor to become ready (an empty list leads to itself) */
};

/* Returns a descriptor, or -1 if this kernel has no such iterator or does not let us use it (Linux 6.1 is needed). */
int aio_reader_open(void);
/* All contexts of the process that thread `tid` belongs to; the block is the caller's. Returns their number or -1. */
ssize_t aio_reader_read(int reader, pid_t tid, struct aio_record **records);
/* Requests that were submitted and have not ended. */
int64_t aio_record_in_flight(const struct aio_record *record);

#endif
