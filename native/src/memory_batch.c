#include "memory_batch.h"
#include "aio.h"
#include "huge_pages.h"
#include "parts/parts.h"
#include "rebuild.h"
#include "shared.h"
#include "vdso.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEYS 16
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

struct context {
    struct batch *batch;
    struct plan *plan;
    const struct process *process;
    const struct memory_map *map;
    const char *label;
};

/*
 * Anonymous areas are filled by UFFDIO_COPY, which places whole pages: 1.35 GB/s a core against 1.0 for process_vm_writev, which takes a fault
 * and clears each page first. Small areas are not worth their registration.
 */
#define USERFAULTFD_MINIMUM (256ull << 10)

static bool has(const struct vma *vma, enum memory_attribute attribute)
{
    return vma->attributes & MEMORY_BIT(attribute);
}

static bool wants_userfaultfd(const struct vma *vma)
{
    return (vma->kind == VMA_ANONYMOUS || vma->kind == VMA_STACK) && !vma->shared && vma->end - vma->start >= USERFAULTFD_MINIMUM
        && (vma->protection & PROT_WRITE) && !has(vma, MEMORY_DROPPABLE);
}

void memory_batch_prepare(struct process *process)
{
    struct memory_map *map = process->map;
    for (int i = 0; i < map->vma_count && map->userfaultfd_aux < 0; i++)
        if (wants_userfaultfd(&map->vmas[i]))
            map->userfaultfd_aux = files_new_aux(process->world);
}

/*
 * The kernel counts a private mapping that was ever writable against the commit limit, and forever (the data of libraries that is read-only after
 * relocation, above all). So such a mapping is made writable here too; its final protection comes when it is filled.
 */
static bool once_writable(const struct vma *vma)
{
    return has(vma, MEMORY_ACCOUNTED) && !vma->shared && !(vma->protection & PROT_WRITE);
}

int memory_filling_protection(const struct vma *vma)
{
    return vma->protection | (once_writable(vma) ? PROT_WRITE : 0);
}

/* ---- maps ---- */

/* Changes of protection have cut an attached segment into several mappings: the first of them if they are all there, else NULL. */
static const struct vma *sysv_first(const struct memory_map *map, const struct vma *vma, uint64_t whole)
{
    const struct vma *first = vma;
    while (first->offset && first > map->vmas && first[-1].object == vma->object && first[-1].end == first->start)
        first--;
    uint64_t covered = 0;
    for (const struct vma *part = first; part < map->vmas + map->vma_count && covered < whole; part++) {
        if (part->object != vma->object || part->offset != covered || part->start != first->start + covered)
            return NULL;
        covered += part->end - part->start;
    }
    return covered == whole ? first : NULL;
}

static int emit_sysv(struct context *context, const struct vma *vma, struct error *err)
{
    const struct shared_object *object = vma->object;
    uint64_t page = object->huge_shift ? 1ull << object->huge_shift : 4096, whole = (object->size + page - 1) & ~(page - 1);
    const struct vma *first = sysv_first(context->process->map, vma, whole);
    if (!first)
        return fail(err, "unsupported", "%s maps a part of the SysV segment %d, which cannot be forked", context->label, (int)object->inode);
    if (vma != first)
        return 0;               /* came with the first */
    int flags = SHM_REMAP | (has(vma, MEMORY_MAY_WRITE) ? 0 : SHM_RDONLY) | (vma->protection & PROT_EXEC ? SHM_EXEC : 0);
    EMIT(context->batch, context->label, SYS_shmat, object->inode, vma->start, (uint64_t)flags);
    int attached = PROT_READ | (has(vma, MEMORY_MAY_WRITE) ? PROT_WRITE : 0) | (vma->protection & PROT_EXEC);
    for (const struct vma *part = first; part->start < first->start + whole; part++) {
        if (part->protection != attached)
            EMIT(context->batch, context->label, SYS_mprotect, part->start, part->end - part->start, (uint64_t)part->protection);
        if (part + 1 == context->process->map->vmas + context->process->map->vma_count)
            break;
    }
    return 0;
}

static int map_flags(const struct vma *vma)
{
    int flags = MAP_FIXED_NOREPLACE | (has(vma, MEMORY_NO_RESERVE) ? MAP_NORESERVE : 0) | (has(vma, MEMORY_GROWS_DOWN) ? MAP_GROWSDOWN : 0);
    if (has(vma, MEMORY_DROPPABLE))
        flags |= MAP_DROPPABLE;
    else
        flags |= vma->shared ? MAP_SHARED : MAP_PRIVATE;
    if (vma->kind == VMA_ANONYMOUS || vma->kind == VMA_STACK)
        flags |= MAP_ANONYMOUS;
    if (vma->kind == VMA_HUGE)
        flags |= MAP_ANONYMOUS | MAP_HUGETLB | (int)HUGE_SIZE_FLAG(vma->huge_shift);
    return flags;
}

/*
 * What was opened for reading only cannot be made writable by mprotect: neither can it be in the branch. The same holds for what was mapped when
 * the object was sealed against writing; objects with F_SEAL_WRITE are sealed before they are mapped here too (shared.c).
 */
static bool wants_readonly_object(const struct vma *vma)
{
    return vma->shared && !has(vma, MEMORY_MAY_WRITE) && !(has(vma, MEMORY_OPEN_FOR_WRITING) && shared_filled_early(vma->object));
}

static void emit_readonly_object(struct context *context, const struct vma *vma)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%lu", (unsigned long)aux_slot(context->plan->world, vma->object->aux));
    EMIT(context->batch, context->label, SYS_openat, (uint64_t)AT_FDCWD, plan_string(context->plan, path), O_RDONLY | O_CLOEXEC);
    uint64_t cell = emit_result_cell(context->batch);
    EMIT_FLAGS(context->batch, context->label, OP_LOAD(4), SYS_mmap, vma->start, vma->end - vma->start, (uint64_t)vma->protection,
               (uint64_t)map_flags(vma), cell, vma->offset);
    EMIT_FLAGS(context->batch, context->label, OP_LOAD(0), SYS_close, cell);
}

static void emit_unmap(struct context *context, uint64_t start, uint64_t end)
{
    if (start < end)
        EMIT(context->batch, context->label, SYS_munmap, start, end - start);
}

/* Unmap everything but the arena and the mappings that were inherited from the family's holder and are this process's own. */
static void emit_clearance(struct context *context)
{
    uint64_t at = 0, arena = context->plan->arena, arena_end = arena + ARENA_LIMIT;
    for (int i = 0; i < context->map->vma_count; i++) {
        const struct vma *vma = &context->map->vmas[i];
        if (!vma->kept)
            continue;
        if (at <= arena && arena < vma->start) {
            emit_unmap(context, at, arena);
            at = arena_end;
        }
        emit_unmap(context, at, vma->start);
        at = vma->end;
    }
    if (at <= arena) {
        emit_unmap(context, at, arena);
        at = arena_end;
    }
    emit_unmap(context, at, TASK_TOP);
}

/* What was inherited becomes this process's: without the pages that it has not, and with its protection. */
static void emit_inheritance(struct context *context)
{
    const struct memory_map *map = context->map;
    for (int i = 0; i < map->dropped_count; i++)
        EMIT(context->batch, context->label, SYS_madvise, map->dropped[i].start, map->dropped[i].end - map->dropped[i].start, MADV_DONTNEED);
    for (int i = 0; i < map->vma_count; i++) {
        const struct vma *vma = &map->vmas[i];
        int protection = memory_filling_protection(vma);
        if (vma->kept && protection != (PROT_READ | PROT_WRITE))
            EMIT(context->batch, context->label, SYS_mprotect, vma->start, vma->end - vma->start, (uint64_t)protection);
    }
}

static int emit_vma(struct context *context, const struct vma *vma, struct error *err)
{
    if (vma->kind == VMA_VDSO || vma->kind == VMA_VSYSCALL || vma->kept)
        return 0;
    if (vma->object && vma->object->kind == SHARED_SYSV)
        return emit_sysv(context, vma, err);
    if (vma->kind == VMA_AIO_RING) {
        aio_reserve(context->batch, vma, context->label);
        return 0;
    }
    uint64_t fd = (uint64_t)-1, offset = 0;
    if (vma->kind == VMA_FILE) {
        fd = aux_slot(context->plan->world, vma->opening->aux);
        offset = vma->offset;
    }
    if (vma->kind == VMA_SHARED_OBJECT) {
        if (wants_readonly_object(vma)) {
            emit_readonly_object(context, vma);
            return 0;
        }
        fd = aux_slot(context->plan->world, vma->object->aux);
        offset = vma->offset;
    }
    EMIT(context->batch, context->label, SYS_mmap, vma->start, vma->end - vma->start, (uint64_t)memory_filling_protection(vma),
         (uint64_t)map_flags(vma), fd, offset);
    return 0;
}

/* ---- protection keys ---- */

/* A mapping that may only be executed has a key which the kernel itself chose and does not count as allocated; 0 = there is none. */
static int execute_only_key(const struct memory_map *map)
{
    for (int i = 0; i < map->vma_count; i++)
        if (map->vmas[i].protection == PROT_EXEC && map->vmas[i].key)
            return map->vmas[i].key;
    return 0;
}

static bool uses_keys(const struct context *context, int reserved)
{
    return context->process->state->keys || reserved;
}

/* The kernel gives the lowest free key. So all are taken, except the one that it shall choose for execute-only mappings … */
static void emit_keys(struct context *context, int reserved)
{
    if (!uses_keys(context, reserved))
        return;
    for (int key = 1; key < KEYS; key++)
        EMIT(context->batch, "protection key", SYS_pkey_alloc, 0, 0);
    if (reserved)
        EMIT(context->batch, "protection key", SYS_pkey_free, (uint64_t)reserved);
}

/* … and those given back that the source has not. */
static void emit_spare_keys(struct context *context, int reserved)
{
    if (!uses_keys(context, reserved))
        return;
    for (int key = 1; key < KEYS; key++)
        if (key != reserved && !(context->process->state->keys & 1u << key))
            EMIT(context->batch, "protection key", SYS_pkey_free, (uint64_t)key);
}

static void emit_layout(struct context *context, const struct file_opening *executable)
{
    const struct memory_map *map = context->map;
    struct plan *plan = context->plan;
    struct {
        uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end, auxv;
        uint32_t auxv_size;
        int32_t exe_fd;
    } layout = {
        map->start_code, map->end_code, map->start_data, map->end_data, map->start_brk, map->brk, map->start_stack, map->arg_start,
        map->arg_end, map->env_start, map->env_end, plan_data(plan, map->auxv, map->auxv_size), (uint32_t)map->auxv_size,
        (int32_t)aux_slot(plan->world, executable->aux),
    };
    EMIT(context->batch, context->label, SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, plan_data(plan, &layout, sizeof layout), sizeof layout, 0);
}

static void emit_userfaultfd(struct context *context)
{
    const struct memory_map *map = context->map;
    struct plan *plan = context->plan;
    if (map->userfaultfd_aux < 0)
        return;
    uint64_t slot = aux_slot(plan->world, map->userfaultfd_aux);
    struct uffdio_api api = { .api = UFFD_API };
    /* Nobody touches the areas while they are filled; and a process in a nested user namespace may not ask for more. */
    EMIT(context->batch, context->label, SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    uint64_t cell = emit_result_cell(context->batch);
    EMIT_FLAGS(context->batch, context->label, OP_LOAD(0), SYS_dup3, cell, slot, O_CLOEXEC);
    EMIT_FLAGS(context->batch, context->label, OP_LOAD(0), SYS_close, cell);
    EMIT(context->batch, context->label, SYS_ioctl, slot, UFFDIO_API, plan_data(plan, &api, sizeof api));
    for (int i = 0; i < map->vma_count; i++) {
        struct vma *vma = &map->vmas[i];
        if (!wants_userfaultfd(vma))
            continue;
        struct uffdio_register area = { { vma->start, vma->end - vma->start }, UFFDIO_REGISTER_MODE_MISSING, 0 };
        EMIT(context->batch, context->label, SYS_ioctl, slot, UFFDIO_REGISTER, plan_data(plan, &area, sizeof area));
        vma->by_userfaultfd = true;
    }
}

static struct context context_of(struct batch *batch, const struct process *process, const char *label)
{
    return (struct context){ batch, batch->plan, process, process->map, label };
}

int memory_emit_maps(struct batch *batch, const struct process *process, const char *label, const struct file_opening *executable,
                     struct error *err)
{
    struct context context = context_of(batch, process, label);
    const struct memory_map *map = context.map;
    emit_clearance(&context);
    emit_inheritance(&context);
    if (vdso_emit(batch, process, label, err) < 0)
        return -1;
    int reserved = execute_only_key(map);
    emit_keys(&context, reserved);
    for (int i = 0; i < map->vma_count; i++)
        if (emit_vma(&context, &map->vmas[i], err) < 0)
            return -1;
    emit_spare_keys(&context, reserved);
    aio_emit(batch, process, label);
    emit_layout(&context, executable);
    emit_userfaultfd(&context);
    return 0;
}

/* ---- attributes ---- */

/* The next mappings that lie side by side and for which `wanted` holds, as one range; *at is where to look and moves on. */
static bool next_range(const struct memory_map *map, int *at, bool (*wanted)(const struct vma *), struct range *range)
{
    while (*at < map->vma_count && !wanted(&map->vmas[*at]))
        ++*at;
    if (*at == map->vma_count)
        return false;
    *range = (struct range){ map->vmas[*at].start, map->vmas[*at].end };
    for (++*at; *at < map->vma_count && map->vmas[*at].start == range->end && wanted(&map->vmas[*at]); ++*at)
        range->end = map->vmas[*at].end;
    return true;
}

#define FOR_RANGES(map, wanted, range) for (int at_ = 0; next_range((map), &at_, (wanted), &(range));)

static bool is_ours(const struct vma *vma) { return vma->kind != VMA_VDSO && vma->kind != VMA_VSYSCALL; }
static bool is_plain(const struct vma *vma) { return is_ours(vma) && !has(vma, MEMORY_DROPPABLE); }

#define WANTED(name, attribute) static bool name(const struct vma *vma) { return is_plain(vma) && has(vma, attribute); }
WANTED(dont_fork, MEMORY_DONT_FORK)
WANTED(wipe_on_fork, MEMORY_WIPE_ON_FORK)
WANTED(dont_dump, MEMORY_DONT_DUMP)
WANTED(mergeable, MEMORY_MERGEABLE)
WANTED(huge, MEMORY_HUGE)
WANTED(not_huge, MEMORY_NOT_HUGE)
WANTED(in_random_order, MEMORY_RANDOM)
WANTED(sequential, MEMORY_SEQUENTIAL)

static bool unmergeable(const struct vma *vma) { return is_plain(vma) && !vma->shared && !has(vma, MEMORY_MERGEABLE); }
static bool locked(const struct vma *vma) { return is_ours(vma) && has(vma, MEMORY_LOCKED) && !has(vma, MEMORY_LOCKED_ON_FAULT); }
static bool locked_on_fault(const struct vma *vma) { return is_ours(vma) && has(vma, MEMORY_LOCKED) && has(vma, MEMORY_LOCKED_ON_FAULT); }
static bool sealed(const struct vma *vma) { return is_ours(vma) && has(vma, MEMORY_SEALED); }

static void emit_protection(struct context *context)
{
    for (int i = 0; i < context->map->vma_count; i++) {
        const struct vma *vma = &context->map->vmas[i];
        if (vma->key && vma->protection != PROT_EXEC)
            EMIT(context->batch, "protection key", SYS_pkey_mprotect, vma->start, vma->end - vma->start, (uint64_t)vma->protection, vma->key);
        else if (once_writable(vma))
            EMIT(context->batch, context->label, SYS_mprotect, vma->start, vma->end - vma->start, (uint64_t)vma->protection);
    }
}

static void emit_guards(struct context *context)
{
    for (int i = 0; i < context->map->guard_count; i++) {
        const struct range *guard = &context->map->guards[i];
        EMIT(context->batch, "guard pages", SYS_madvise, guard->start, guard->end - guard->start, MADV_GUARD_INSTALL);
    }
}

static void emit_advice(struct context *context)
{
    static const struct { int advice; bool (*wanted)(const struct vma *); } kinds[] = {
        { MADV_DONTFORK, dont_fork }, { MADV_WIPEONFORK, wipe_on_fork }, { MADV_DONTDUMP, dont_dump }, { MADV_MERGEABLE, mergeable },
        { MADV_HUGEPAGE, huge }, { MADV_NOHUGEPAGE, not_huge }, { MADV_RANDOM, in_random_order }, { MADV_SEQUENTIAL, sequential },
    };
    struct range range;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        FOR_RANGES(context->map, kinds[i].wanted, range)
            EMIT(context->batch, "memory advice", SYS_madvise, range.start, range.end - range.start, (uint64_t)kinds[i].advice);
}

/* For the whole process, which also marks what exists; then the exceptions. Where the kernel would not merge anyhow it refuses the advice. */
static void emit_merging(struct context *context)
{
    struct range range;
    if (!context->process->state->memory_merge)
        return;
    EMIT(context->batch, "memory merging", SYS_prctl, PR_SET_MEMORY_MERGE, 1);
    FOR_RANGES(context->map, unmergeable, range)
        EMIT_FLAGS(context->batch, "memory merging", TOLERATING(UNCHANGEABLE_MERGING), SYS_madvise, range.start, range.end - range.start, MADV_UNMERGEABLE);
}

/* Pages that may not be touched, or lie behind the end of a file: the kernel sets the lock, and tells that it could not have them. */
static bool is_touchable(const struct memory_map *map, const struct vma *vma)
{
    for (int i = 0; i < map->guard_count; i++)
        if (map->guards[i].start < vma->end && vma->start < map->guards[i].end)
            return false;
    return vma->protection & PROT_READ && (vma->kind == VMA_ANONYMOUS || vma->kind == VMA_STACK);
}

/* Set on fault first, which touches no page and so cannot fail for want of one. */
static void emit_lock(struct context *context, const struct range *range, bool touchable)
{
    uint64_t size = range->end - range->start;
    if (!touchable)
        EMIT(context->batch, "memory lock", SYS_mlock2, range->start, size, MLOCK_ONFAULT);
    EMIT_FLAGS(context->batch, "memory lock", touchable ? 0 : TOLERATING(UNTOUCHABLE_PAGES), SYS_mlock2, range->start, size, 0);
}

/* Neighbours as one, as far as all of it can be touched, or may not be. */
static void emit_whole_locks(struct context *context)
{
    const struct memory_map *map = context->map;
    struct range range = { 0, 0 };
    bool touchable = false;
    for (int i = 0; i <= map->vma_count; i++) {
        const struct vma *vma = i < map->vma_count && locked(&map->vmas[i]) ? &map->vmas[i] : NULL;
        if (vma && range.end == vma->start && is_touchable(map, vma) == touchable) {
            range.end = vma->end;
            continue;
        }
        if (range.end)
            emit_lock(context, &range, touchable);
        range = vma ? (struct range){ vma->start, vma->end } : (struct range){ 0, 0 };
        touchable = vma && is_touchable(map, vma);
    }
}

/* Needs CAP_IPC_LOCK or the limit, so it comes before credentials and limits. */
static void emit_locks(struct context *context)
{
    struct range range;
    emit_whole_locks(context);
    FOR_RANGES(context->map, locked_on_fault, range)
        EMIT(context->batch, "memory lock", SYS_mlock2, range.start, range.end - range.start, MLOCK_ONFAULT);
    uint32_t future = context->map->lock_future;
    if (future)
        EMIT(context->batch, "memory lock", SYS_mlockall,
             (uint64_t)(MCL_FUTURE | (future & MEMORY_BIT(MEMORY_LOCKED_ON_FAULT) ? MCL_ONFAULT : 0)));
}

static void emit_seals(struct context *context)
{
    struct range range;
    FOR_RANGES(context->map, sealed, range)
        EMIT(context->batch, "memory seal", SYS_mseal, range.start, range.end - range.start, 0);
}

static void emit_names(struct context *context)
{
    for (int i = 0; i < context->map->vma_count; i++) {
        const struct vma *vma = &context->map->vmas[i];
        if (vma->given_name)
            EMIT_FLAGS(context->batch, "memory name", TOLERATING(NO_MEMORY_NAMES), SYS_prctl, PR_SET_VMA, PR_SET_VMA_ANON_NAME, vma->start,
                       vma->end - vma->start, plan_string(context->plan, vma->given_name));
    }
}

void memory_emit_attributes(struct batch *batch, const struct process *process, const char *label)
{
    struct context context = context_of(batch, process, label);
    if (process->map->userfaultfd_aux >= 0)
        EMIT(batch, context.label, SYS_close, aux_slot(context.plan->world, process->map->userfaultfd_aux));
    emit_protection(&context);
    emit_names(&context);
    emit_guards(&context);
    emit_merging(&context);
    emit_advice(&context);
    emit_locks(&context);
    emit_seals(&context);
}
