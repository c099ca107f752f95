#include "memory.h"
#include "aio.h"
#include "huge_pages.h"
#include "proc.h"
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARED_ANONYMOUS "/dev/zero (deleted)"
#define NAMED_PRIVATE "[anon:"
#define NAMED_SHARED "[anon_shmem:"     /* in the place of SHARED_ANONYMOUS */

/* /proc/PID/maps escapes newlines as \012 and nothing else that matters to a path. */
static char *unescape(const char *text)
{
    char *path = must_alloc(strlen(text) + 1), *to = path;
    while (*text) {
        if (strncmp(text, "\\012", 4) == 0) {
            *to++ = '\n';
            text += 4;
        } else {
            *to++ = *text++;
        }
    }
    return path;
}

static enum vma_kind kind_of(const struct vma *vma, const char *name)
{
    if (strcmp(name, "[vdso]") == 0 || strncmp(name, "[vvar", 5) == 0)
        return VMA_VDSO;
    if (strcmp(name, "[vsyscall]") == 0)
        return VMA_VSYSCALL;
    if (strcmp(name, "[stack]") == 0)
        return VMA_STACK;
    /* A file of the workspace can have such a name, too. */
    bool kernels_own = strncmp(name, "/memfd:", 7) == 0 || strncmp(name, "/SYSV", 5) == 0 || strcmp(name, SHARED_ANONYMOUS) == 0;
    if (strncmp(name, "/dev/shm/", 9) == 0 || (kernels_own && shared_is_kernel_device(vma->device)))
        return VMA_SHARED_OBJECT;
    if (strncmp(name, HUGE_PAGE_NAME, strlen(HUGE_PAGE_NAME)) == 0)
        return vma->shared ? VMA_SHARED_OBJECT : VMA_HUGE;
    if (*name == '/')
        return VMA_FILE;
    return vma->shared ? VMA_SHARED_OBJECT : VMA_ANONYMOUS;
}

/* What the program itself has called memory without a file (PR_SET_VMA), NULL = nothing. */
static char *given_name(const char *name)
{
    static const char *const prefixes[] = { NAMED_PRIVATE, NAMED_SHARED };
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t prefix = strlen(prefixes[i]), length = strlen(name);
        if (strncmp(name, prefixes[i], prefix) != 0 || length <= prefix || name[length - 1] != ']')
            continue;
        char *given = must_copy_string(name + prefix);
        given[length - prefix - 1] = 0;
        return given;
    }
    return NULL;
}

static int map_file_huge_shift(const struct process *process, const struct vma *vma)
{
    char path[96];
    snprintf(path, sizeof path, "/proc/%d/map_files/%lx-%lx", process->pid, (unsigned long)vma->start, (unsigned long)vma->end);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? 0 : huge_page_shift(fd);
}

static int parse_line(struct process *process, char *line, struct vma *vma, struct error *err)
{
    unsigned long start, end, offset, inode;
    unsigned major, minor;
    char mode[5];
    int used = 0;
    if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %n", &start, &end, mode, &offset, &major, &minor, &inode, &used) < 7 || used == 0)
        return fail(err, "internal", "%s: a line of its maps cannot be read: %.80s", process_label(process), line);
    const char *text = line + used, *name = strncmp(text, NAMED_SHARED, strlen(NAMED_SHARED)) == 0 ? SHARED_ANONYMOUS : text;
    *vma = (struct vma){ .start = start, .end = end, .offset = offset, .inode = inode, .device = (uint64_t)major << 32 | minor };
    vma->protection = (mode[0] == 'r' ? PROT_READ : 0) | (mode[1] == 'w' ? PROT_WRITE : 0) | (mode[2] == 'x' ? PROT_EXEC : 0);
    vma->shared = mode[3] == 's';
    vma->kind = aio_is_ring(process, start, end, name) ? VMA_AIO_RING : kind_of(vma, name);
    if (*name == '/' || vma->kind == VMA_VDSO)
        vma->path = unescape(name);
    vma->given_name = given_name(text);
    if (strncmp(name, HUGE_PAGE_NAME, strlen(HUGE_PAGE_NAME)) == 0)
        vma->huge_shift = (uint8_t)map_file_huge_shift(process, vma);
    if (strncmp(name, "anon_inode:", 11) == 0)
        return fail(err, "unsupported", "%s maps a kernel object (%.60s) that cannot be copied; end the program that uses it",
                    process_label(process), name);
    return 0;
}

/* What no copy can be made of, whoever looks: also before anything stops (memory_check.c). */
int memory_check_vma(const struct process *process, const struct vma *vma, struct error *err)
{
    const char *name = vma->path ? vma->path : "a device";
    if (vma->kind == VMA_VDSO || vma->kind == VMA_VSYSCALL)
        return 0;
    if (vma->shared && strcmp(name, "/secretmem (deleted)") == 0)
        return fail(err, "unsupported", "%s maps secret memory (memfd_secret, at %lx), which nobody else can read; end the program that uses it",
                    process_label(process), (unsigned long)vma->start);
    if (vma->kind == VMA_AIO_RING)
        return aio_check(process, vma, err);
    if (vma->attributes & MEMORY_BIT(MEMORY_DEVICE))
        return fail(err, "unsupported", "%s maps the memory of a device (%.200s at %lx), which cannot be copied; end the program that uses it",
                    process_label(process), name, (unsigned long)vma->start);
    if (vma->attributes & MEMORY_BIT(MEMORY_USERFAULT))
        return fail(err, "unsupported", "%s handles page faults of its memory at %lx by userfaultfd, which cannot be forked; end that program",
                    process_label(process), (unsigned long)vma->start);
    if (vma->attributes & MEMORY_BIT(MEMORY_SHADOW_STACK))
        return fail(err, "unsupported", "%s runs with a shadow stack, which cannot be forked; start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off",
                    process_label(process));
    return 0;
}

static int read_layout(struct process *process, struct memory_map *map, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, 1 << 16, NULL, "/proc/%d/stat", process->pid);
    if (!text)
        return -1;
    /* Fields are counted from behind the command, which may hold any text. */
    char *rest = strrchr(text, ')');
    if (!rest || strlen(rest) < 4)
        return fail(err, "internal", "%s: no command in its stat", process_label(process));
    uint64_t field[53] = { 0 };
    rest += 4;                  /* ") S " */
    for (int i = 4; i < 53 && *rest; i++)
        field[i] = strtoull(rest, &rest, 10);
    map->start_code = field[26];
    map->end_code = field[27];
    map->start_stack = field[28];
    map->start_data = field[45];
    map->end_data = field[46];
    map->start_brk = map->brk = field[47];
    map->arg_start = field[48];
    map->arg_end = field[49];
    map->env_start = field[50];
    map->env_end = field[51];

    char path[64];
    snprintf(path, sizeof path, "/proc/%d/auxv", process->pid);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, map->auxv, sizeof map->auxv);
    if (size < 0)
        return fail_errno(err, "cannot read %s", path);
    map->auxv_size = (size_t)size;
    return 0;
}

/* What a fork runs inside a process, it runs from there. */
static int check_vdso(const struct process *process, struct error *err)
{
    for (int i = 0; i < process->map->vma_count; i++) {
        const struct vma *vma = &process->map->vmas[i];
        if (vma->kind == VMA_VDSO && strcmp(vma->path, "[vdso]") == 0 && !(vma->protection & PROT_EXEC))
            return fail(err, "unsupported", "%s has made its vdso not executable, and cannot be forked therefore; let it leave the vdso as it is",
                        process_label(process));
    }
    return 0;
}

int memory_read_map(struct process *process, struct error *err)
{
    struct memory_map *map = process->map = must_alloc(sizeof *map);
    map->userfaultfd_aux = -1;
    AUTO_FREE char *text = proc_read(err, 64 << 20, NULL, "/proc/%d/maps", process->pid);
    if (!text)
        return -1;
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    if (lines > MAX_VMAS)
        return fail(err, "limit", "%s has %d mappings, more than %d", process_label(process), lines, MAX_VMAS);
    map->vmas = must_alloc((size_t)lines * sizeof *map->vmas);
    char *line = text;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        struct vma *vma = &map->vmas[map->vma_count];
        if (parse_line(process, line, vma, err) < 0)
            return -1;
        if (vma->kind == VMA_VDSO && strcmp(vma->path, "[vdso]") == 0 && !map->vdso)
            map->vdso = vma->start;
        map->vma_count++;
    }
    if (read_layout(process, map, err) < 0 || memory_flags_read(process, err) < 0)
        return -1;
    for (int i = 0; i < map->vma_count; i++)
        if (memory_check_vma(process, &map->vmas[i], err) < 0)
            return -1;
    if (!map->vdso)
        return fail(err, "unsupported", "%s has no vdso (it unmapped it, or is not a 64-bit program)", process_label(process));
    return check_vdso(process, err);
}

bool memory_range_free(const struct world *world, uint64_t start, uint64_t end)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct memory_map *map = world->processes[i]->map;
        for (int k = 0; map && k < map->vma_count; k++)
            if (map->vmas[k].start < end && start < map->vmas[k].end)
                return false;
    }
    return true;
}

/* ---- PAGEMAP_SCAN (Linux 6.7): include/uapi/linux/fs.h ---- */

struct scan_region { uint64_t start, end, categories; };
struct scan_argument {
    uint64_t size, flags, start, end, walk_end, vec, vec_length, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN_IOCTL _IOWR('f', 16, struct scan_argument)
#define PAGE_FILE (1ull << 2)
#define PAGE_PRESENT (1ull << 3)
#define PAGE_SWAPPED (1ull << 4)
#define PAGE_PFN_ZERO (1ull << 5)
#define PAGE_GUARD (1ull << 8)  /* Linux 6.15; older kernels refuse a mask with it */

static void add_guard(struct memory_map *map, uint64_t start, uint64_t end)
{
    if ((map->guard_count & (map->guard_count - 1)) == 0)
        map->guards = must_grow(map->guards, (size_t)(map->guard_count ? map->guard_count * 2 : 16) * sizeof *map->guards);
    map->guards[map->guard_count++] = (struct range){ start, end };
}

static void add_run(struct memory_map *map, uint64_t start, uint64_t end, struct vma *vma)
{
    if ((map->run_count & (map->run_count - 1)) == 0)
        map->runs = must_grow(map->runs, (size_t)(map->run_count ? map->run_count * 2 : 16) * sizeof *map->runs);
    map->runs[map->run_count++] = (struct page_run){ start, end, vma };
    map->bytes += end - start;
}

static bool holds_private_data(const struct vma *vma)
{
    return !vma->shared && vma->kind != VMA_VDSO && vma->kind != VMA_VSYSCALL && !(vma->attributes & MEMORY_BIT(MEMORY_DROPPABLE));
}

/* Clip a region of pages to the mappings it lies in; *at only moves forward. */
static void clip_region(struct memory_map *map, const struct scan_region *region, int *at)
{
    uint64_t start = region->start;
    while (start < region->end) {
        while (*at < map->vma_count && map->vmas[*at].end <= start)
            ++*at;
        if (*at == map->vma_count)
            return;
        struct vma *vma = &map->vmas[*at];
        if (vma->start >= region->end)
            return;
        uint64_t from = start > vma->start ? start : vma->start;
        uint64_t to = region->end < vma->end ? region->end : vma->end;
        if (region->categories & PAGE_GUARD)
            add_guard(map, from, to);
        else if (holds_private_data(vma))
            add_run(map, from, to, vma);
        start = to;
    }
}

/* Whether this kernel knows guard pages: the first scan that is told to look for them finds out. */
static uint64_t guard_category = PAGE_GUARD;

static int scan(int pagemap, uint64_t start, struct scan_region *regions, size_t length, uint64_t *walk_end)
{
    for (;;) {
        uint64_t guard = __atomic_load_n(&guard_category, __ATOMIC_RELAXED);
        struct scan_argument argument = {
            .size = sizeof argument, .start = start, .end = TASK_TOP, .vec = (uint64_t)regions, .vec_length = length,
            .category_inverted = PAGE_FILE | PAGE_PFN_ZERO, .category_mask = PAGE_FILE | PAGE_PFN_ZERO,
            .category_anyof_mask = PAGE_PRESENT | PAGE_SWAPPED | guard, .return_mask = guard,
        };
        int count = ioctl(pagemap, SCAN_IOCTL, &argument);
        *walk_end = argument.walk_end;
        if (count >= 0 || errno != EINVAL || guard == 0)
            return count;
        __atomic_store_n(&guard_category, 0, __ATOMIC_RELAXED);
    }
}

int memory_scan_pages(struct process *process, struct error *err)
{
    enum { REGIONS = 8192 };
    AUTO_FREE struct scan_region *regions = must_buffer(REGIONS * sizeof *regions);
    struct memory_map *map = process->map;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/pagemap", process->pid);
    process->pagemap = open(path, O_RDONLY | O_CLOEXEC);
    if (process->pagemap < 0)
        return fail_errno(err, "cannot open %s", path);
    int at = 0;
    for (uint64_t start = 0, walked; start < TASK_TOP; start = walked) {
        int count = scan(process->pagemap, start, regions, REGIONS, &walked);
        if (count < 0)
            return fail_errno(err, "%s: PAGEMAP_SCAN failed (Linux 6.7 or newer is needed)", process_label(process));
        for (int i = 0; i < count; i++)
            clip_region(map, &regions[i], &at);
        /* After more than 511 regions the kernel may tell an end that it has been past, and would tell what follows it once more. */
        if (count > 0 && regions[count - 1].end > walked)
            walked = regions[count - 1].end;
        if (walked <= start)
            break;
    }
    return 0;
}
