/* 60 000 mappings: read-only and writable pages in turn, some with advice; the fork keeps every one. */
#include "memory.h"

#define MAPPINGS 60000

static int count_maps(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;
    while (fgets(line, sizeof line, maps))
        count++;
    fclose(maps);
    return count;
}

int main(void)
{
    char *area = apart(MAPPINGS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
    int made = 0;
    for (; made < MAPPINGS; made += 2) {
        if (made % 64 == 0)
            *(int *)(area + (size_t)made * PAGE) = made + 1;
        if (mprotect(area + (size_t)made * PAGE, PAGE, PROT_READ) < 0)
            break;              /* vm.max_map_count */
        if (made % 1000 == 0)
            MUST(madvise(area + (size_t)(made + 1) * PAGE, PAGE, MADV_DONTDUMP));
    }
    CHECK(made > 1000, "only %d mappings could be made", made);
    int before = count_maps();

    fidelity_ready();
    fidelity_await_go();
    CHECK(count_maps() == before, "%d mappings, before %d", count_maps(), before);
    for (int i = 0; i < made; i += 64)
        CHECK(*(int *)(area + (size_t)i * PAGE) == i + 1, "page %d differs", i);
    for (int i = 1; i < made; i += 2)
        area[(size_t)i * PAGE] = 'w';
    for (int i = 0; i < made; i += 5000)
        CHECK(strcmp(mapping_at(area + (size_t)i * PAGE).mode, "r--p") == 0, "mapping %d", i);
    CHECK(mapping_has(area + 1001 * PAGE, "dd") && !mapping_has(area + 1003 * PAGE, "dd"), "advice");
    fidelity_pass();
}
