/* Memory maps: what is mapped where in the source, and which pages hold private data that must be copied. */
#ifndef TCLONE_MEMORY_H
#define TCLONE_MEMORY_H

#include "memory_flags.h"
#include "world.h"

enum vma_kind {
    VMA_ANONYMOUS,
    VMA_STACK,          /* grows down */
    VMA_FILE,
    VMA_HUGE,           /* private and anonymous, of huge pages: huge_pages.c */
    VMA_SHARED_OBJECT,  /* memfd, /dev/shm, shared anonymous, SysV: shared.c */
    VMA_AIO_RING,       /* parts/aio.c */
    VMA_VDSO,           /* vdso and its data: vdso.c */
    VMA_VSYSCALL,
};

struct vma {
    uint64_t start, end, offset;
    int protection;             /* PROT_* */
    bool shared;
    enum vma_kind kind;
    uint64_t device, inode;     /* as /proc prints them; device is major << 32 | minor */
    char *path;                 /* NULL for anonymous ones; "[vdso]", "[vvar]" …; unescaped; " (deleted)" kept */
    char *given_name;           /* PR_SET_VMA; NULL = none */
    struct shared_object *object;
    struct file_opening *opening;
    bool by_userfaultfd;        /* filled with UFFDIO_COPY (process_batch.c) */
    uint32_t attributes;        /* MEMORY_BIT of memory_flags.h */
    uint8_t key;                /* protection key */
    uint8_t huge_shift;         /* log2 of the page size, for mappings of hugetlbfs; else 0 */
    bool kept;                  /* in a branch: inherited from the family's holder (family.h) */
};

struct range {
    uint64_t start, end;
};

struct page_run {
    uint64_t start, end;
    struct vma *vma;
};

struct memory_map {
    struct vma *vmas;
    int vma_count;
    uint64_t vdso;              /* start of [vdso] */
    uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack;
    uint64_t arg_start, arg_end, env_start, env_end;
    char auxv[1024];
    size_t auxv_size;
    struct page_run *runs;
    int run_count;
    uint64_t bytes;             /* to copy */
    struct range *guards;       /* guard pages (MADV_GUARD_INSTALL) */
    int guard_count;
    struct range *same;         /* pages as the family's holder has them (family.h) … */
    int same_count;
    struct range *dropped;      /* … and, within mappings that are kept, those that it has but this process has not */
    int dropped_count;
    uint32_t lock_future;       /* MEMORY_LOCKED, MEMORY_LOCKED_ON_FAULT: what mlockall gave to mappings to come */
    int userfaultfd_aux;        /* auxiliary slot of the branch process's userfaultfd, -1 = it needs none */
};

int memory_read_map(struct process *process, struct error *err);
/* Refuse a mapping of which no copy can be made. */
int memory_check_vma(const struct process *process, const struct vma *vma, struct error *err);
/* Find the private pages and the guard pages (PAGEMAP_SCAN); the source must be frozen. Thread-safe for different processes. */
int memory_scan_pages(struct process *process, struct error *err);
/* The protection a mapping has in a branch until it is filled (memory_batch.c). */
int memory_filling_protection(const struct vma *vma);
bool memory_range_free(const struct world *world, uint64_t start, uint64_t end);

#define MAX_VMAS 70000
#define TASK_TOP 0x7ffffffff000ull

#endif
