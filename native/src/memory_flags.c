#include "memory_flags.h"
#include "doubt.h"
#include "memory.h"
#include "proc.h"
#include "vma_reader.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define SMAPS_LIMIT (512ul << 20)
#define FACTS_SIZE 1024
#define KEY_SHIFT 32            /* the protection key in vm_flags: 4 bits on x86 */
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef SYS_map_shadow_stack
#define SYS_map_shadow_stack 453
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Where the bits of vm_flags stand is the kernel's own affair and changes. So each is learnt from a page of ours that has it. */
static uint64_t bits[MEMORY_ATTRIBUTES];
static uint64_t vvar_flags;     /* of [vvar], which the kernel itself maps as it maps devices */
static uint64_t vdso_flags;
static uint64_t fixed_size;     /* the bit of what cannot be made larger: what the kernel maps itself, and asynchronous I/O rings */
static int reader = -1;
static bool has_keys;
static pthread_t learner;
static bool learning;

/* ---- learning ---- */

static char *sample_page(int protection, int flags, int fd)
{
    char *area = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        return NULL;
    char *page = mmap(area + PAGE, PAGE, protection, flags | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    return page == MAP_FAILED ? NULL : page;
}

static uint64_t flags_at(const struct vma_record *records, ssize_t count, const void *page)
{
    for (ssize_t i = 0; i < count; i++)
        if (records[i].start <= (uint64_t)page && (uint64_t)page < records[i].end)
            return records[i].flags;
    return 0;
}

static char *advised_page(int advice)
{
    char *page = sample_page(PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    return page && madvise(page, PAGE, advice) == 0 ? page : NULL;
}

static char *locked_page(unsigned flags)
{
    char *page = sample_page(PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    return page && mlock2(page, PAGE, flags) == 0 ? page : NULL;
}

static char *sealed_page(void)
{
    char *page = sample_page(PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    return page && syscall(SYS_mseal, page, PAGE, 0) == 0 ? page : NULL;
}

/* Only what holds a page stays accounted when it is made read-only. */
static char *once_writable_page(void)
{
    char *page = sample_page(PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    if (page)
        *page = 1;
    return page && mprotect(page, PAGE, PROT_READ) == 0 ? page : NULL;
}

/* A shared mapping of one object, opened for reading only or for writing. */
static char *shared_page(bool writable)
{
    AUTO_CLOSE int fd = memfd_create("tclone-sample", MFD_CLOEXEC);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    AUTO_CLOSE int opened = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    return opened < 0 ? NULL : sample_page(PROT_READ, MAP_SHARED, opened);
}

/* The descriptor stays open: the flag goes with it. */
static char *watched_page(void)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    char *page = sample_page(PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    struct uffdio_register area = { { (uint64_t)page, PAGE }, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP, 0 };
    return page && fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &area) == 0 ? page : NULL;
}

static char *shadow_stack(void)
{
    long page = syscall(SYS_map_shadow_stack, 0, PAGE, 0);
    return page > 0 ? (char *)page : NULL;
}

static void make_samples(char *samples[MEMORY_ATTRIBUTES])
{
    samples[MEMORY_GROWS_DOWN] = sample_page(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_GROWSDOWN, -1);
    samples[MEMORY_LOCKED] = locked_page(0);
    samples[MEMORY_LOCKED_ON_FAULT] = locked_page(MLOCK_ONFAULT);
    samples[MEMORY_DONT_FORK] = advised_page(MADV_DONTFORK);
    samples[MEMORY_WIPE_ON_FORK] = advised_page(MADV_WIPEONFORK);
    samples[MEMORY_DONT_DUMP] = advised_page(MADV_DONTDUMP);
    samples[MEMORY_MERGEABLE] = advised_page(MADV_MERGEABLE);
    samples[MEMORY_HUGE] = advised_page(MADV_HUGEPAGE);
    samples[MEMORY_NOT_HUGE] = advised_page(MADV_NOHUGEPAGE);
    samples[MEMORY_RANDOM] = advised_page(MADV_RANDOM);
    samples[MEMORY_SEQUENTIAL] = advised_page(MADV_SEQUENTIAL);
    samples[MEMORY_NO_RESERVE] = sample_page(PROT_READ, MAP_PRIVATE | MAP_NORESERVE, -1);
    samples[MEMORY_ACCOUNTED] = once_writable_page();
    samples[MEMORY_DROPPABLE] = sample_page(PROT_READ | PROT_WRITE, MAP_DROPPABLE, -1);
    samples[MEMORY_SEALED] = sealed_page();
    samples[MEMORY_MAY_WRITE] = shared_page(true);
    samples[MEMORY_USERFAULT] = watched_page();
    samples[MEMORY_SHADOW_STACK] = shadow_stack();
}

static uint64_t flags_of_special(const struct vma_record *records, ssize_t count, const char *special)
{
    struct error err = { 0 };
    AUTO_FREE char *maps = proc_read(&err, 1 << 20, NULL, "/proc/self/maps");
    doubt_error(&err);
    const char *name = maps ? strstr(maps, special) : NULL;
    while (name && name > maps && name[-1] != '\n')
        name--;
    return name ? flags_at(records, count, (void *)strtoul(name, NULL, 16)) : 0;
}

static void learn_bits(const struct vma_record *records, ssize_t count, char *samples[MEMORY_ATTRIBUTES], const char *plain, const char *readable,
                       const char *shared)
{
    uint64_t base = flags_at(records, count, plain);
    for (int i = 0; i < MEMORY_ATTRIBUTES; i++)
        bits[i] = samples[i] ? flags_at(records, count, samples[i]) & ~base : 0;
    bits[MEMORY_LOCKED_ON_FAULT] &= ~bits[MEMORY_LOCKED];
    bits[MEMORY_DROPPABLE] &= ~(bits[MEMORY_NO_RESERVE] | bits[MEMORY_WIPE_ON_FORK] | bits[MEMORY_DONT_DUMP]);
    bits[MEMORY_ACCOUNTED] = flags_at(records, count, samples[MEMORY_ACCOUNTED]) & ~flags_at(records, count, readable);
    uint64_t of_writers = flags_at(records, count, samples[MEMORY_MAY_WRITE]) & ~flags_at(records, count, shared);
    bits[MEMORY_MAY_WRITE] = of_writers & base;     /* as every private mapping has it */
    bits[MEMORY_OPEN_FOR_WRITING] = of_writers & ~base;
    uint64_t known = base;
    for (int i = 0; i < MEMORY_ATTRIBUTES; i++)
        known |= bits[i];
    vvar_flags = flags_of_special(records, count, "[vvar]");
    vdso_flags = flags_of_special(records, count, "[vdso]");
    bits[MEMORY_DEVICE] = vvar_flags & ~(known | vdso_flags);
    fixed_size = vvar_flags & vdso_flags & ~known;
}

static void *learn(void *unused)
{
    (void)unused;
    has_keys = __builtin_cpu_supports("pku");
    reader = vma_reader_open();
    if (reader < 0)
        return NULL;
    char *samples[MEMORY_ATTRIBUTES] = { 0 };
    make_samples(samples);
    const char *plain = sample_page(PROT_READ | PROT_WRITE, MAP_PRIVATE, -1), *readable = sample_page(PROT_READ, MAP_PRIVATE, -1);
    const char *shared = shared_page(false);
    struct vma_record *records = NULL;
    ssize_t count = vma_reader_read(reader, (pid_t)syscall(SYS_gettid), &records);
    if (count > 0 && flags_at(records, count, plain) && flags_at(records, count, readable) && flags_at(records, count, shared))
        learn_bits(records, count, samples, plain, readable, shared);
    else
        close_fd(&reader);
    free(records);
    return NULL;
}

/* ---- what another run has learnt ---- */

/* The bits mean something only to the very program that learnt them: which this is, by its file. */
static void print_program(char *text, size_t size)
{
    struct stat st = { 0 };
    if (stat("/proc/self/exe", &st) < 0)
        st.st_ino = 0;
    snprintf(text, size, "%llx.%llx.%llx.%lx", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino, (unsigned long long)st.st_mtim.tv_sec,
             st.st_mtim.tv_nsec);
}

char *memory_flags_facts(int *program)
{
    memory_flags_prepare();
    *program = reader;
    if (reader < 0)
        return NULL;
    char *text = must_alloc(FACTS_SIZE);
    print_program(text, FACTS_SIZE);
    size_t used = strlen(text);
    for (int i = 0; i < MEMORY_ATTRIBUTES; i++)
        used += (size_t)snprintf(text + used, FACTS_SIZE - used, ",%llx", (unsigned long long)bits[i]);
    snprintf(text + used, FACTS_SIZE - used, ",%llx,%x", (unsigned long long)vvar_flags, has_keys);
    return text;
}

/* "FD:PROGRAM,BITS,…,VVAR,KEYS": false where it is not ours. */
static bool take_facts(const char *learnt)
{
    char own[FACTS_SIZE], *at;
    uint64_t words[MEMORY_ATTRIBUTES + 2];
    long program = strtol(learnt, &at, 10);
    print_program(own, sizeof own);
    size_t length = strlen(own);
    if (*at++ != ':' || program < 0 || fcntl((int)program, F_SETFD, FD_CLOEXEC) < 0 || strncmp(at, own, length) != 0)
        return false;
    at += length;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (*at != ',')
            return false;
        words[i] = strtoull(at + 1, &at, 16);
    }
    if (*at)
        return false;
    memcpy(bits, words, sizeof bits);
    vvar_flags = words[MEMORY_ATTRIBUTES];
    has_keys = words[MEMORY_ATTRIBUTES + 1];    /* to ask the processor is slow in a virtual machine */
    reader = (int)program;
    return true;
}

void memory_flags_start(const char *learnt)
{
    if (learnt && take_facts(learnt))
        return;
    learning = pthread_create(&learner, NULL, learn, NULL) == 0;
    if (!learning)
        learn(NULL);
}

void memory_flags_prepare(void)
{
    if (learning)
        pthread_join(learner, NULL);
    learning = false;
}

/* ---- from the iterator ---- */

static uint32_t attributes_of(uint64_t flags)
{
    uint32_t attributes = 0;
    for (int i = 0; i < MEMORY_ATTRIBUTES; i++)
        if (flags & bits[i])
            attributes |= MEMORY_BIT(i);
    return attributes;
}

static void apply_records(struct memory_map *map, const struct vma_record *records, ssize_t count)
{
    ssize_t at = 0;
    for (int i = 0; i < map->vma_count; i++) {
        struct vma *vma = &map->vmas[i];
        while (at < count && records[at].end <= vma->start)
            at++;
        if (at == count || records[at].start > vma->start)
            continue;           /* [vsyscall] is in maps only */
        vma->attributes = attributes_of(records[at].flags);
        if (has_keys)
            vma->key = records[at].flags >> KEY_SHIFT & 15;
    }
    map->lock_future = attributes_of(records[0].default_flags) & (MEMORY_BIT(MEMORY_LOCKED) | MEMORY_BIT(MEMORY_LOCKED_ON_FAULT));
}

/* ---- from smaps, where there is no iterator ---- */

static uint32_t attribute_of_mnemonic(const char *two)
{
    static const struct { char text[3]; enum memory_attribute attribute; } known[] = {
        { "gd", MEMORY_GROWS_DOWN }, { "lo", MEMORY_LOCKED }, { "lf", MEMORY_LOCKED_ON_FAULT }, { "dc", MEMORY_DONT_FORK },
        { "wf", MEMORY_WIPE_ON_FORK }, { "dd", MEMORY_DONT_DUMP }, { "mg", MEMORY_MERGEABLE }, { "hg", MEMORY_HUGE }, { "nh", MEMORY_NOT_HUGE },
        { "rr", MEMORY_RANDOM }, { "sr", MEMORY_SEQUENTIAL }, { "nr", MEMORY_NO_RESERVE }, { "ac", MEMORY_ACCOUNTED }, { "dp", MEMORY_DROPPABLE },
        { "sl", MEMORY_SEALED }, { "mw", MEMORY_MAY_WRITE }, { "sh", MEMORY_OPEN_FOR_WRITING }, { "io", MEMORY_DEVICE }, { "pf", MEMORY_DEVICE }, { "um", MEMORY_USERFAULT },
        { "uw", MEMORY_USERFAULT }, { "ui", MEMORY_USERFAULT }, { "ss", MEMORY_SHADOW_STACK },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(two, known[i].text, 2) == 0)
            return MEMORY_BIT(known[i].attribute);
    return 0;
}

static void parse_mnemonics(const char *at, struct vma *vma)
{
    while (*at && *at != '\n') {
        if (*at == ' ') {
            at++;
            continue;
        }
        vma->attributes |= attribute_of_mnemonic(at);
        while (*at && *at != ' ' && *at != '\n')
            at++;
    }
}

/* Only names can hold anything, and they stand on the lines that begin a mapping; newlines in them are escaped. */
static int read_smaps(struct process *process, struct error *err)
{
    struct memory_map *map = process->map;
    AUTO_FREE char *text = proc_read(err, SMAPS_LIMIT, NULL, "/proc/%d/smaps", process->pid);
    if (!text)
        return -1;
    int at = -1;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        if (strchr("0123456789abcdef", *line))
            at++;
        else if (at >= 0 && at < map->vma_count && strncmp(line, "VmFlags:", 8) == 0)
            parse_mnemonics(line + 8, &map->vmas[at]);
        else if (at >= 0 && at < map->vma_count && strncmp(line, "ProtectionKey:", 14) == 0)
            map->vmas[at].key = (uint8_t)(atoi(line + 14) & 15);
        if (!strchr(line, '\n'))
            break;
    }
    return 0;
}

/* Before the freeze nothing is known of threads; a process whose first thread has ended is met when it is frozen. */
static pid_t any_thread(const struct process *process)
{
    return process->thread_count ? process->threads[0].tid : process->pid;
}

bool memory_flags_suspicious(const struct process *process)
{
    memory_flags_prepare();
    const uint64_t suspicious = bits[MEMORY_DEVICE] | bits[MEMORY_USERFAULT] | bits[MEMORY_SHADOW_STACK] | fixed_size;
    struct vma_record *records = NULL;
    ssize_t count = reader < 0 ? 0 : vma_reader_read(reader, any_thread(process), &records);
    bool found = false;
    for (ssize_t i = 0; i < count && !found; i++)
        found = (records[i].flags & suspicious) && records[i].flags != vvar_flags && records[i].flags != vdso_flags;
    free(records);
    return found;
}

int memory_flags_read(struct process *process, struct error *err)
{
    struct vma_record *records = NULL;
    ssize_t count = reader < 0 ? -1 : vma_reader_read(reader, any_thread(process), &records);
    if (count <= 0) {
        free(records);
        return read_smaps(process, err);
    }
    apply_records(process->map, records, count);
    free(records);
    return 0;
}
