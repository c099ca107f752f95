#include "vdso.h"
#include "arena.h"
#include "proc.h"
#include "rebuild.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define ARCH_MAP_VDSO_64 0x2003
#define MAX_PIECES 8

/* As the kernel lays them out in every process: livefork looks at its own. */
struct layout {
    struct piece { char name[24]; uint64_t offset, size; } pieces[MAX_PIECES];
    int count;
    uint64_t size;
};

static int read_own_layout(struct layout *layout, struct error *err)
{
    AUTO_FREE char *maps = proc_read(err, 1 << 20, NULL, "/proc/self/maps");
    uint64_t base = 0;
    if (!maps)
        return -1;
    for (char *line = strtok(maps, "\n"); line && layout->count < MAX_PIECES; line = strtok(NULL, "\n")) {
        unsigned long start, end;
        char name[24];
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %23s", &start, &end, name) != 3
            || (strncmp(name, "[vvar", 5) != 0 && strcmp(name, "[vdso]") != 0))
            continue;
        base = base ? base : start;
        struct piece *piece = &layout->pieces[layout->count++];
        strcpy(piece->name, name);
        piece->offset = start - base;
        piece->size = end - start;
        layout->size = end - base;
    }
    return layout->count ? 0 : fail(err, "internal", "this process has no vdso");
}

static const struct vma *find_piece(const struct memory_map *map, const struct piece *piece)
{
    for (int i = 0; i < map->vma_count; i++)
        if (map->vmas[i].kind == VMA_VDSO && strcmp(map->vmas[i].path, piece->name) == 0
            && map->vmas[i].end - map->vmas[i].start == piece->size)
            return &map->vmas[i];
    return NULL;
}

/* Where all pieces would begin if they lie as the kernel put them; 0 = they do not. */
static uint64_t usual_place(const struct layout *layout, const struct memory_map *map)
{
    uint64_t base = 0;
    for (int i = 0; i < layout->count; i++) {
        const struct vma *vma = find_piece(map, &layout->pieces[i]);
        if (!vma || (base && vma->start - layout->pieces[i].offset != base))
            return 0;
        base = vma->start - layout->pieces[i].offset;
    }
    return base;
}

/* Room behind the arena, which is free in all processes as well. */
static uint64_t find_room(const struct plan *plan, uint64_t size)
{
    for (uint64_t at = plan->arena + ARENA_LIMIT; at < TASK_TOP / 2; at += size)
        if (memory_range_free(plan->world, at, at + size))
            return at;
    return 0;
}

int vdso_emit(struct batch *batch, const struct process *process, const char *label, struct error *err)
{
    static struct layout layout;
    if (!layout.count && read_own_layout(&layout, err) < 0)
        return -1;
    uint64_t usual = usual_place(&layout, process->map), base = usual ? usual : find_room(batch->plan, layout.size);
    if (!base)
        return fail(err, "limit", "%s leaves no room for its vdso", label);
    EMIT(batch, label, SYS_arch_prctl, ARCH_MAP_VDSO_64, base);
    for (int i = 0; i < layout.count && !usual; i++) {
        const struct piece *piece = &layout.pieces[i];
        const struct vma *vma = find_piece(process->map, piece);
        if (vma)
            EMIT(batch, label, SYS_mremap, base + piece->offset, piece->size, piece->size, MREMAP_MAYMOVE | MREMAP_FIXED, vma->start);
        else
            EMIT(batch, label, SYS_munmap, base + piece->offset, piece->size);
    }
    return 0;
}
