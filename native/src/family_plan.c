/* Who holds a family's memory while the branch's processes are forked, in which areas, and what each member keeps of it. */
#include "family.h"
#include "files.h"
#include "proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define ELBOW_ROOM (16ul << 20) /* the restorer's heap may grow, its stack too */
/* To fork past a page that is no use to the child costs some 25 ns, to copy one 700. */
#define CARRY_NS 25ul
#define COPY_NS 700ul
#define EMBEDDED_MAXIMUM (256ul << 10)

/* Does one of the ranges, which are sorted and apart, meet [start, end)? */
static bool meets(const struct range *ranges, int count, uint64_t start, uint64_t end)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ranges[middle].end <= start)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low].start < end;
}

/* ---- places that are taken ---- */

static struct range *taken;
static int taken_count;
static bool taken_in_order;

static void take(uint64_t start, uint64_t end)
{
    taken = must_grow(taken, (size_t)(taken_count + 1) * sizeof *taken);
    taken[taken_count++] = (struct range){ start, end };
    taken_in_order = false;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static void put_in_order(void)
{
    int kept = 0;
    qsort(taken, (size_t)taken_count, sizeof *taken, compare_ranges);
    for (int i = 0; i < taken_count; i++) {
        if (kept && taken[i].start <= taken[kept - 1].end)
            taken[kept - 1].end = taken[i].end > taken[kept - 1].end ? taken[i].end : taken[kept - 1].end;
        else
            taken[kept++] = taken[i];
    }
    taken_count = kept;
    taken_in_order = true;
}

static bool is_taken(uint64_t start, uint64_t end)
{
    if (!taken_in_order)
        put_in_order();
    return meets(taken, taken_count, start, end);
}

int families_avoid(struct world *world, pid_t restorer, struct error *err)
{
    if (world->families->count == 0)
        return 0;
    AUTO_FREE char *text = proc_read(err, 1 << 20, NULL, "/proc/%d/maps", restorer);
    if (!text)
        return -1;
    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx", &start, &end) == 2)
            take(start > ELBOW_ROOM ? start - ELBOW_ROOM : 0, end + ELBOW_ROOM);
    }
    return 0;
}

/* ---- the holder ---- */

struct forest {
    const struct tree_node *nodes;
    int count;
    int *parent;                /* by node; -1 for pid 1 */
    int *turn;                  /* by node: when it is forked (a parent waits for what a step below it does) */
};

static void visit(struct forest *forest, int node, int *turn)
{
    forest->turn[node] = (*turn)++;
    static const enum fork_time order[] = { BEFORE_SESSION, BEFORE_NAMESPACES, AT_LAST };
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        for (int child = forest->nodes[node].first_child; child >= 0; child = forest->nodes[child].next_sibling) {
            forest->parent[child] = node;
            if (forest->nodes[child].before == (int32_t)order[i])
                visit(forest, child, turn);
        }
    }
}

static bool is_below(const struct forest *forest, int node, int above)
{
    while (node >= 0 && node != above)
        node = forest->parent[node];
    return node == above;
}

/* Nodes and process indices agree for processes. */
static int common_ancestor(const struct forest *forest, const struct family *family)
{
    int node = family->members[0]->index;
    for (int i = 1; i < family->member_count; i++)
        while (!is_below(forest, family->members[i]->index, node))
            node = forest->parent[node];
    return node;
}

static uint64_t held_pages(const struct family *family)
{
    uint64_t pages = 0;
    for (int i = 0; i < family->run_count; i++)
        pages += (family->runs[i].end - family->runs[i].start) / PAGE;
    return pages;
}

/* Everybody who is forked below the holder carries the pages for a while. */
static bool is_worth(const struct forest *forest, const struct family *family, int holder)
{
    uint64_t outsiders = 0;
    for (int i = 0; i < forest->count; i++)
        outsiders += is_below(forest, i, holder);
    outsiders -= (uint64_t)family->member_count;
    return outsiders * held_pages(family) * CARRY_NS < family->saved / PAGE * COPY_NS;
}

/* Keep the members below the eldest that has any below it. */
static void reduce_to_eldest(const struct forest *forest, struct family *family)
{
    for (int i = 0; i < family->member_count; i++) {
        int holder = family->members[i]->index, kept = 0;
        for (int k = i; k < family->member_count; k++)
            kept += is_below(forest, family->members[k]->index, holder);
        if (kept < 2)
            continue;
        kept = 0;
        for (int k = i; k < family->member_count; k++)
            if (is_below(forest, family->members[k]->index, holder))
                family->members[kept++] = family->members[k];
        family->member_count = kept;
        family->holder = holder;
        return;
    }
}

static void choose_holder(const struct forest *forest, struct family *family)
{
    int ancestor = common_ancestor(forest, family);
    if (is_worth(forest, family, ancestor))
        family->holder = ancestor;
    else
        reduce_to_eldest(forest, family);
}

/* ---- areas ---- */

static bool can_be_held(const struct vma *vma)
{
    const uint32_t unlike = MEMORY_BIT(MEMORY_GROWS_DOWN) | MEMORY_BIT(MEMORY_DROPPABLE) | MEMORY_BIT(MEMORY_DEVICE) | MEMORY_BIT(MEMORY_USERFAULT);
    const uint32_t writable = MEMORY_BIT(MEMORY_ACCOUNTED) | MEMORY_BIT(MEMORY_NO_RESERVE);
    return !vma->shared && (vma->kind == VMA_ANONYMOUS || (vma->kind == VMA_FILE && vma->opening)) && !(vma->attributes & unlike)
        && (vma->attributes & writable);
}

static bool are_alike(const struct vma *a, const struct vma *b)
{
    return a->kind == b->kind && (a->attributes & MEMORY_BIT(MEMORY_NO_RESERVE)) == (b->attributes & MEMORY_BIT(MEMORY_NO_RESERVE))
        && (a->kind == VMA_ANONYMOUS || (a->opening == b->opening && a->start - a->offset == b->start - b->offset));
}

static int compare_areas(const void *a, const void *b)
{
    const struct area *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Overlapping mappings of the same kind become one area; of different kinds the first stands. */
static void plan_areas(struct family *family)
{
    int capacity = 0, kept = 0;
    for (int m = 0; m < family->member_count; m++)
        capacity += family->members[m]->map->vma_count;
    struct area *areas = must_alloc((size_t)(capacity + 1) * sizeof *areas);
    int count = 0;
    for (int m = 0; m < family->member_count; m++) {
        const struct memory_map *map = family->members[m]->map;
        for (int i = 0; i < map->vma_count; i++)
            if (can_be_held(&map->vmas[i]) && meets(map->same, map->same_count, map->vmas[i].start, map->vmas[i].end))
                areas[count++] = (struct area){ map->vmas[i].start, map->vmas[i].end, &map->vmas[i] };
    }
    qsort(areas, (size_t)count, sizeof *areas, compare_areas);
    for (int i = 0; i < count; i++) {
        struct area *last = kept ? &areas[kept - 1] : NULL;
        if (last && areas[i].start < last->end) {
            if (are_alike(last->model, areas[i].model) && areas[i].end > last->end)
                last->end = areas[i].end;
        } else {
            areas[kept++] = areas[i];
        }
    }
    family->areas = areas;
    for (int i = 0; i < kept; i++)
        if (!is_taken(areas[i].start, areas[i].end))
            areas[family->area_count++] = areas[i];
    for (int i = 0; i < family->area_count; i++)
        take(areas[i].start, areas[i].end);
}

static const struct area *area_of(const struct family *family, uint64_t address)
{
    int low = 0, high = family->area_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (family->areas[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < family->area_count && family->areas[low].start <= address ? &family->areas[low] : NULL;
}

/* Only what lies in an area can be held. */
static void clip_held(struct family *family)
{
    struct held_run *old = family->runs;
    int old_count = family->run_count, room = old_count + family->area_count;
    family->runs = must_alloc((size_t)(room + 1) * sizeof *family->runs);
    family->run_count = 0;
    for (int i = 0, a = 0; i < old_count; i++) {
        while (a < family->area_count && family->areas[a].end <= old[i].start)
            a++;
        for (int k = a; k < family->area_count && family->areas[k].start < old[i].end; k++) {
            uint64_t start = old[i].start > family->areas[k].start ? old[i].start : family->areas[k].start;
            uint64_t end = old[i].end < family->areas[k].end ? old[i].end : family->areas[k].end;
            family->runs[family->run_count++] = (struct held_run){ start, end, old[i].donor };
        }
    }
    free(old);
}

/* ---- what a member keeps ---- */

static void add_range(struct range **list, int *count, uint64_t start, uint64_t end)
{
    if ((*count & (*count - 1)) == 0)
        *list = must_grow(*list, (size_t)(*count ? *count * 2 : 16) * sizeof **list);
    (*list)[(*count)++] = (struct range){ start, end };
}

/* A mapping is kept whole or not at all: two mappings cannot be joined to the one that the program knows. */
static void choose_kept(const struct family *family, struct memory_map *map)
{
    for (int i = 0; i < map->vma_count; i++) {
        struct vma *vma = &map->vmas[i];
        const struct area *area = area_of(family, vma->start);
        vma->kept = area && vma->end <= area->end && can_be_held(vma) && are_alike(area->model, vma)
            && meets(map->same, map->same_count, vma->start, vma->end);
    }
}

/* Pages in [start, end) that are inherited but are not the member's. */
static void drop_others(const struct memory_map *map, uint64_t start, uint64_t end, int *same, struct range **dropped, int *count)
{
    while (start < end) {
        while (*same < map->same_count && map->same[*same].end <= start)
            ++*same;
        bool more = *same < map->same_count && map->same[*same].start < end;
        uint64_t until = more ? map->same[*same].start : end;
        if (until > start)
            add_range(dropped, count, start, until);
        if (!more)
            return;
        start = map->same[*same].end;
    }
}

static void plan_drops(const struct family *family, struct memory_map *map)
{
    int run = 0, same = 0;
    for (int i = 0; i < map->vma_count; i++) {
        const struct vma *vma = &map->vmas[i];
        if (!vma->kept)
            continue;
        while (run < family->run_count && family->runs[run].end <= vma->start)
            run++;
        for (int k = run; k < family->run_count && family->runs[k].start < vma->end; k++)
            drop_others(map, family->runs[k].start > vma->start ? family->runs[k].start : vma->start,
                        family->runs[k].end < vma->end ? family->runs[k].end : vma->end, &same, &map->dropped, &map->dropped_count);
    }
}

/* The pages that come by inheritance need not be copied. */
static void reduce_runs(struct memory_map *map)
{
    struct page_run *old = map->runs;
    int old_count = map->run_count, same = 0;
    map->runs = must_alloc((size_t)(old_count + map->same_count + 1) * sizeof *map->runs);
    map->run_count = 0;
    map->bytes = 0;
    for (int i = 0; i < old_count; i++) {
        struct range *left = NULL;
        int count = 0;
        if (old[i].vma->kept)
            drop_others(map, old[i].start, old[i].end, &same, &left, &count);
        else
            add_range(&left, &count, old[i].start, old[i].end);
        for (int k = 0; k < count; k++) {
            map->runs[map->run_count++] = (struct page_run){ left[k].start, left[k].end, old[i].vma };
            map->bytes += left[k].end - left[k].start;
        }
        free(left);
    }
    free(old);
}

static int compare_turns(const void *a, const void *b, void *argument)
{
    const struct forest *forest = argument;
    return forest->turn[((const struct family *)a)->holder] - forest->turn[((const struct family *)b)->holder];
}

void families_plan(struct world *world, const struct tree_node *nodes, int node_count)
{
    struct families *families = world->families;
    if (families->count == 0)
        return;
    AUTO_FREE int *parent = must_alloc((size_t)node_count * sizeof *parent);
    AUTO_FREE int *turn = must_alloc((size_t)node_count * sizeof *turn);
    struct forest forest = { nodes, node_count, parent, turn };
    int first = 0, kept = 0;
    parent[0] = -1;
    visit(&forest, 0, &first);
    for (int i = 0; i < families->count; i++) {
        struct family *family = &families->list[i];
        choose_holder(&forest, family);
        if (family->holder < 0)
            continue;
        plan_areas(family);
        clip_held(family);
        if (family->run_count == 0)
            continue;
        for (int m = 0; m < family->member_count; m++) {
            struct memory_map *map = family->members[m]->map;
            choose_kept(family, map);
            plan_drops(family, map);
            reduce_runs(map);
        }
        families->list[kept++] = *family;
    }
    families->count = kept;
    qsort_r(families->list, (size_t)kept, sizeof *families->list, compare_turns, &forest);
}

/* ---- ops ---- */

/* Readable and writable, whatever the members have: each sets its own protection. */
static uint64_t emit_areas(struct plan *plan, const struct family *family)
{
    struct batch batch = { .plan = plan };
    for (int i = 0; i < family->area_count; i++) {
        const struct area *area = &family->areas[i];
        const struct vma *model = area->model;
        uint64_t flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE | (model->attributes & MEMORY_BIT(MEMORY_NO_RESERVE) ? MAP_NORESERVE : 0);
        bool of_file = model->kind == VMA_FILE;
        EMIT(&batch, "memory that relatives share", SYS_mmap, area->start, area->end - area->start, PROT_READ | PROT_WRITE,
             flags | (of_file ? 0 : MAP_ANONYMOUS), of_file ? aux_slot(plan->world, model->opening->aux) : (uint64_t)-1,
             of_file ? model->offset - (model->start - area->start) : 0);
    }
    return batch_place(&batch);
}

static uint64_t emit_release(struct plan *plan, const struct family *family)
{
    struct batch batch = { .plan = plan };
    for (int m = 0; m < family->member_count; m++)
        if (family->members[m]->index == family->holder)
            return 0;
    for (int i = 0; i < family->area_count; i++)
        EMIT(&batch, "memory that relatives share", SYS_munmap, family->areas[i].start, family->areas[i].end - family->areas[i].start);
    return batch_place(&batch);
}

/* Small families, of shells and their like, need no round trip between branch and livefork. */
static int embed(struct plan *plan, struct family *family, struct arena_family *held, struct error *err)
{
    family->embedded = family->run_count > 0 && held_pages(family) * PAGE <= EMBEDDED_MAXIMUM;
    if (!family->embedded)
        return 0;
    AUTO_FREE struct arena_piece *pieces = must_alloc((size_t)family->run_count * sizeof *pieces);
    for (int i = 0; i < family->run_count; i++) {
        const struct held_run *run = &family->runs[i];
        const struct process *donor = plan->world->processes[run->donor];
        size_t size = run->end - run->start;
        pieces[i] = (struct arena_piece){ run->start, plan_reserve(plan, size), size };
        if (pread(donor->mem, plan_local(plan, pieces[i].data), size, (off_t)run->start) != (ssize_t)size)
            return fail_errno(err, "%s: cannot read its memory at %lx", process_label(donor), (unsigned long)run->start);
    }
    held->pieces = plan_data(plan, pieces, (size_t)family->run_count * sizeof *pieces);
    held->piece_count = (uint32_t)family->run_count;
    return 0;
}

int families_emit(struct plan *plan, struct tree_node *nodes, struct error *err)
{
    struct families *families = plan->world->families;
    for (int i = 0; i < families->count; i++) {
        struct family *family = &families->list[i];
        struct arena_family held = { .map_batch = emit_areas(plan, family), .release_batch = emit_release(plan, family),
                                     .next = nodes[family->holder].families };
        if (embed(plan, family, &held, err) < 0)
            return -1;
        family->words = nodes[family->holder].families = plan_data(plan, &held, sizeof held);
    }
    return 0;
}
