/* What smaps says of the mapping at an address. */
#ifndef FIDELITY_MEMORY_H
#define FIDELITY_MEMORY_H

#include "fidelity.h"

#define PAGE 4096UL

struct mapping {
    unsigned long start, end;
    char mode[8], flags[128];   /* "rw-p"; VmFlags as they are printed */
    long pss, anonymous, locked;        /* KiB */
};

static inline struct mapping mapping_at(const void *address)
{
    struct mapping found = { 0 }, current;
    FILE *smaps = fopen("/proc/self/smaps", "re");
    char line[1024];
    bool inside = false;
    while (fgets(line, sizeof line, smaps) && !(inside && *found.flags)) {
        if (sscanf(line, "%lx-%lx %7s", &current.start, &current.end, current.mode) == 3) {
            inside = current.start <= (uintptr_t)address && (uintptr_t)address < current.end;
            if (inside)
                found = (struct mapping){ .start = current.start, .end = current.end, .mode = "" }, strcpy(found.mode, current.mode);
        } else if (inside && strncmp(line, "VmFlags: ", 9) == 0) {
            snprintf(found.flags, sizeof found.flags, "%.120s", line + 9);
            found.flags[strcspn(found.flags, "\n")] = 0;
        } else if (inside) {
            sscanf(line, "Pss: %ld", &found.pss);
            sscanf(line, "Anonymous: %ld", &found.anonymous);
            sscanf(line, "Locked: %ld", &found.locked);
        }
    }
    fclose(smaps);
    return found;
}

static inline bool mapping_has(const void *address, const char *flag)
{
    return strstr(mapping_at(address).flags, flag) != NULL;
}

/* An area between two that cannot be touched: the kernel then merges it with no neighbour, in source and branch alike. */
static inline char *apart(size_t size, int protection, int flags)
{
    char *area = mmap(NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(area != MAP_FAILED, "cannot reserve: %s", strerror(errno));
    area = mmap(area + PAGE, size, protection, flags | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(area != MAP_FAILED, "cannot map: %s", strerror(errno));
    return area;
}

/* Remember a mapping's flags, bounds and mode before the fork … */
struct expected { const char *what; char *area; struct mapping before; };

static inline struct expected expect_unchanged(const char *what, char *area)
{
    return (struct expected){ what, area, mapping_at(area) };
}

/* … and compare them afterwards. */
static inline void check_unchanged(const struct expected *expected, int count)
{
    for (int i = 0; i < count; i++) {
        const struct mapping *before = &expected[i].before, after = mapping_at(expected[i].area);
        CHECK(strcmp(before->flags, after.flags) == 0, "%s: VmFlags %s, before %s", expected[i].what, after.flags, before->flags);
        CHECK(strcmp(before->mode, after.mode) == 0, "%s: mode %s, before %s", expected[i].what, after.mode, before->mode);
        CHECK(before->start == after.start && before->end == after.end, "%s: %lx-%lx, before %lx-%lx", expected[i].what, after.start, after.end,
              before->start, before->end);
    }
}

#endif
