/* Where the fields of the kernel's own structures stand (BTF), for BPF programs that read them; and the call that loads such programs. */
#ifndef TCLONE_KERNEL_TYPES_H
#define TCLONE_KERNEL_TYPES_H

#include <linux/bpf.h>
#include <linux/btf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct kernel_types {
    const char *image;
    size_t size;
    bool mapped;
    const char *at, *end;           /* the types, by id from 1 */
    const char *strings;
    uint32_t strings_size;
    const char **marks;
    uint32_t count;                 /* of types passed so far */
};

struct wanted_type {
    uint32_t kind;
    const char *name;
    uint32_t id;                    /* 0: not found */
};

/* Returns -1 where this kernel has no such description. Close it in any case. */
int kernel_types_open(struct kernel_types *types);
/* One walk until all are found: 64 000 types of Linux 6.18, half a millisecond. */
bool kernel_types_find(struct kernel_types *types, struct wanted_type *wanted, int count);
/* The byte offset of a member, also one of an anonymous struct or union in it (depth 0 at first); -1 if there is none. */
int kernel_types_member(struct kernel_types *types, uint32_t id, const char *name, int depth);
void kernel_types_close(struct kernel_types *types);

int kernel_bpf(enum bpf_cmd command, union bpf_attr *attributes);
/* Start an iterator's program over the task `tid`, or its mappings; what it writes is read from the descriptor. -1: the kernel does not. */
int kernel_bpf_iterate(int program, pid_t tid);

#endif
