/* Which processes are relatives, and which pages they share: two have the same page frame at the same address. */
#include "family.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096ul
#define WINDOW_PAGES 512ul
#define WINDOW (WINDOW_PAGES * PAGE)
#define CANDIDATES 3            /* different contents of one page that are looked at */

#define PRESENT (1ull << 63)
#define EXCLUSIVE (1ull << 56)
#define FRAME ((1ull << 55) - 1)

/* ---- relatives ---- */

/* The layout that exec chose at random stays the same through forks. Whoever has it by chance shares no page. */
static bool are_relatives(const struct process *a, const struct process *b)
{
    const struct memory_map *x = a->map, *y = b->map;
    return x->start_code == y->start_code && x->start_stack == y->start_stack && x->arg_start == y->arg_start && x->env_end == y->env_end
        && strcmp(a->executable, b->executable) == 0;
}

static void add_member(struct families *families, int known, struct process *process)
{
    struct family *family = NULL;
    for (int i = 0; i < known && !family; i++)
        if (are_relatives(families->list[i].members[0], process))
            family = &families->list[i];
    if (!family) {
        families->list = must_grow(families->list, (size_t)(families->count + 1) * sizeof *families->list);
        family = &families->list[families->count++];
        *family = (struct family){ .holder = -1 };
    }
    family->members = must_grow(family->members, (size_t)(family->member_count + 1) * sizeof *family->members);
    family->members[family->member_count++] = process;
}

/* ---- shared pages ---- */

struct finder {
    struct family *family;
    uint64_t *frames;           /* [member][WINDOW_PAGES]: the frame, 0 = has none that could be shared */
    int *cursor;                /* by member: its first run that may reach into the window */
    bool *active;
};

static int compare_numbers(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Every window in which at least two members have pages, in order. */
static uint64_t *common_windows(const struct family *family, size_t *count)
{
    size_t used = 0, room = 256;
    uint64_t *windows = must_alloc(room * sizeof *windows);
    for (int m = 0; m < family->member_count; m++) {
        const struct memory_map *map = family->members[m]->map;
        uint64_t next = 0;      /* windows below it are listed for this member */
        for (int i = 0; i < map->run_count; i++) {
            uint64_t first = map->runs[i].start / WINDOW, last = (map->runs[i].end - 1) / WINDOW;
            for (uint64_t window = first > next ? first : next; window <= last; window++) {
                if (used == room)
                    windows = must_grow(windows, (room *= 2) * sizeof *windows);
                windows[used++] = window;
            }
            next = last + 1;
        }
    }
    qsort(windows, used, sizeof *windows, compare_numbers);
    *count = 0;
    for (size_t i = 1; i < used; i++)
        if (windows[i] == windows[i - 1] && (*count == 0 || windows[*count - 1] != windows[i]))
            windows[(*count)++] = windows[i];
    return windows;
}

/* Frames of member m's private pages in the window; false if it has none there. */
static bool read_frames(struct finder *finder, int m, uint64_t start)
{
    const struct memory_map *map = finder->family->members[m]->map;
    uint64_t *frames = &finder->frames[(size_t)m * WINDOW_PAGES], entries[WINDOW_PAGES];
    int at = finder->cursor[m], end;
    while (at < map->run_count && map->runs[at].end <= start)
        at++;
    finder->cursor[m] = end = at;
    while (end < map->run_count && map->runs[end].start < start + WINDOW)
        end++;
    if (end == at)
        return false;
    /* An entry takes the kernel 25 ns, and the pages are often few. */
    uint64_t low = map->runs[at].start > start ? (map->runs[at].start - start) / PAGE : 0;
    uint64_t high = map->runs[end - 1].end < start + WINDOW ? (map->runs[end - 1].end - start) / PAGE : WINDOW_PAGES;
    ssize_t wanted = (ssize_t)((high - low) * sizeof *entries);
    if (pread(finder->family->members[m]->pagemap, entries + low, (size_t)wanted, (off_t)((start / PAGE + low) * sizeof *entries)) != wanted)
        return false;
    memset(frames, 0, WINDOW_PAGES * sizeof *frames);
    bool any = false;
    for (; at < end; at++) {
        uint64_t from = map->runs[at].start > start ? (map->runs[at].start - start) / PAGE : 0;
        uint64_t to = map->runs[at].end < start + WINDOW ? (map->runs[at].end - start) / PAGE : WINDOW_PAGES;
        for (uint64_t i = from; i < to; i++) {
            frames[i] = (entries[i] & PRESENT) && !(entries[i] & EXCLUSIVE) ? entries[i] & FRAME : 0;
            any |= frames[i] != 0;
        }
    }
    return any;
}

/* The frame that most members have as page `page` of the window; 0 = no two have the same. */
static uint64_t most_common(const struct finder *finder, uint64_t page, int *donor, int *sharers)
{
    uint64_t seen[CANDIDATES], best = 0;
    int seen_count = 0;
    *sharers = 1;
    for (int m = 0; m < finder->family->member_count && seen_count < CANDIDATES; m++) {
        uint64_t frame = finder->active[m] ? finder->frames[(size_t)m * WINDOW_PAGES + page] : 0;
        bool looked_at = frame == 0;
        for (int i = 0; i < seen_count; i++)
            looked_at |= seen[i] == frame;
        if (looked_at)
            continue;
        seen[seen_count++] = frame;
        int count = 0;
        for (int k = m; k < finder->family->member_count; k++)
            count += finder->active[k] && finder->frames[(size_t)k * WINDOW_PAGES + page] == frame;
        if (count > *sharers) {
            *sharers = count;
            *donor = finder->family->members[m]->index;
            best = frame;
        }
    }
    return best;
}

static void hold_page(struct family *family, uint64_t address, int donor)
{
    struct held_run *last = family->run_count ? &family->runs[family->run_count - 1] : NULL;
    if (last && last->end == address && last->donor == donor) {
        last->end += PAGE;
        return;
    }
    if ((family->run_count & (family->run_count - 1)) == 0)
        family->runs = must_grow(family->runs, (size_t)(family->run_count ? family->run_count * 2 : 16) * sizeof *family->runs);
    family->runs[family->run_count++] = (struct held_run){ address, address + PAGE, donor };
}

static void has_same_page(struct memory_map *map, uint64_t address)
{
    struct range *last = map->same_count ? &map->same[map->same_count - 1] : NULL;
    if (last && last->end == address) {
        last->end += PAGE;
        return;
    }
    if ((map->same_count & (map->same_count - 1)) == 0)
        map->same = must_grow(map->same, (size_t)(map->same_count ? map->same_count * 2 : 16) * sizeof *map->same);
    map->same[map->same_count++] = (struct range){ address, address + PAGE };
}

static void look_at_window(struct finder *finder, uint64_t start)
{
    struct family *family = finder->family;
    int active = 0;
    for (int m = 0; m < family->member_count; m++) {
        finder->active[m] = read_frames(finder, m, start);
        active += finder->active[m];
    }
    for (uint64_t page = 0; active > 1 && page < WINDOW_PAGES; page++) {
        int donor = 0, sharers;
        uint64_t frame = most_common(finder, page, &donor, &sharers);
        if (!frame)
            continue;
        hold_page(family, start + page * PAGE, donor);
        family->saved += (uint64_t)(sharers - 1) * PAGE;
        for (int m = 0; m < family->member_count; m++)
            if (finder->active[m] && finder->frames[(size_t)m * WINDOW_PAGES + page] == frame)
                has_same_page(family->members[m]->map, start + page * PAGE);
    }
}

static void find_shared(struct family *family)
{
    size_t members = (size_t)family->member_count, count;
    AUTO_FREE uint64_t *frames = must_buffer(members * WINDOW_PAGES * sizeof *frames);
    AUTO_FREE int *cursor = must_alloc(members * sizeof *cursor);
    AUTO_FREE bool *active = must_alloc(members * sizeof *active);
    struct finder finder = { family, frames, cursor, active };
    AUTO_FREE uint64_t *windows = common_windows(family, &count);
    for (size_t i = 0; i < count; i++)
        look_at_window(&finder, windows[i] * WINDOW);
}

void families_find(struct world *world)
{
    struct families *families = world->families = must_alloc(sizeof *world->families);
    for (int i = 0; i < world->process_count; i++)
        if (!world->processes[i]->zombie)
            add_member(families, families->count, world->processes[i]);
    int kept = 0;
    for (int i = 0; i < families->count; i++) {
        struct family *family = &families->list[i];
        if (family->member_count > 1)
            find_shared(family);
        if (family->saved > 0)
            families->list[kept++] = *family;
    }
    families->count = kept;
}
