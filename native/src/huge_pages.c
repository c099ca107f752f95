#include "huge_pages.h"
#include "proc.h"

#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MAX_SHIFT 40

int huge_page_shift(int fd)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0 || fs.f_type != HUGETLBFS_MAGIC || fs.f_bsize <= 0)
        return 0;
    return __builtin_ctzl((unsigned long)fs.f_bsize);
}

static uint64_t round_up(uint64_t size, int shift)
{
    uint64_t rest = (1ull << shift) - 1;
    return (size + rest) & ~rest;
}

static bool is_zero(const char *block, size_t size)
{
    return block[0] == 0 && memcmp(block, block + 1, size - 1) == 0;
}

/* hugetlbfs can be read but not written, and does not tell its holes: reading one gives zeroes and allocates nothing. */
int64_t huge_pages_copy(const struct shared_object *object, int to, struct error *err)
{
    size_t page = 1ul << object->huge_shift, size = round_up(object->size, object->huge_shift);
    if (object->size == 0)
        return 0;
    char *target = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, to, 0);
    char *buffer = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int64_t copied = target == MAP_FAILED || buffer == MAP_FAILED ? fail_errno(err, "cannot map the huge pages of %s", object->name) : 0;
    for (uint64_t at = 0; copied >= 0 && at < size; at += page) {
        size_t got = 0;
        for (ssize_t part; got < page && (part = pread(object->source, buffer + got, page - got, (off_t)(at + got))) > 0;)
            got += (size_t)part;
        if (got != page)
            copied = fail_errno(err, "cannot read the huge pages of %s", object->name);
        else if (!is_zero(buffer, page)) {
            memcpy(target + at, buffer, page);
            copied += (int64_t)page;
        }
    }
    if (target != MAP_FAILED)
        munmap(target, size);
    if (buffer != MAP_FAILED)
        munmap(buffer, page);
    return copied;
}

/* ---- the host's pool ---- */

static int64_t pool_value(int shift, const char *name)
{
    struct error ignored = { 0 };
    AUTO_FREE char *text = proc_read(&ignored, 64, NULL, "/sys/kernel/mm/hugepages/hugepages-%lukB/%s", (1ul << shift) >> 10, name);
    return text ? strtoll(text, NULL, 10) : 0;
}

static int check_size(int shift, uint64_t wanted, const char *who, struct error *err)
{
    int64_t free_pages = pool_value(shift, "free_hugepages") - pool_value(shift, "resv_hugepages")
        + pool_value(shift, "nr_overcommit_hugepages") - pool_value(shift, "surplus_hugepages");
    if ((int64_t)(wanted >> shift) <= free_pages)
        return 0;
    return fail(err, "limit", "%s uses huge pages of %lu KiB: the branches need %lu more, the host has %ld free; raise vm.nr_hugepages", who,
                (1ul << shift) >> 10, (unsigned long)(wanted >> shift), (long)(free_pages > 0 ? free_pages : 0));
}

static uint64_t private_bytes(const struct process *process, int shift)
{
    uint64_t bytes = 0;
    for (int i = 0; process->map && i < process->map->vma_count; i++)
        if (process->map->vmas[i].huge_shift == shift && !process->map->vmas[i].shared)
            bytes += process->map->vmas[i].end - process->map->vmas[i].start;
    return bytes;
}

int huge_pages_check(const struct world *world, int branches, struct error *err)
{
    for (int shift = 16; shift < MAX_SHIFT; shift++) {
        uint64_t wanted = 0;
        const struct process *user = NULL;
        for (int i = 0; i < world->process_count; i++) {
            uint64_t bytes = private_bytes(world->processes[i], shift);
            wanted += bytes;
            user = bytes && !user ? world->processes[i] : user;
        }
        for (int i = 0; world->shared && i < world->shared->count; i++)
            wanted += world->shared->list[i]->huge_shift == shift ? round_up(world->shared->list[i]->size, shift) : 0;
        if (wanted && check_size(shift, wanted * (uint64_t)branches, user ? process_label(user) : "shared memory", err) < 0)
            return -1;
    }
    return 0;
}
