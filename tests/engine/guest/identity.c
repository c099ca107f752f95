/*
 * Is forked, and says what it notices: on SIGUSR2 it adds a line to /tmp/told, on SIGUSR1 a line of random draws to /tmp/draws,
 * one of each source of random numbers that a program has.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

struct opaque_parameters {
    uint32_t size, prot, flags, reserved[13];
};
typedef long (*vdso_getrandom)(void *buffer, size_t length, unsigned flags, void *state, size_t size);

/* A function of the vdso by its name, NULL when this kernel has none. */
static void *vdso_symbol(const char *wanted)
{
    const char *base = (const char *)getauxval(AT_SYSINFO_EHDR);
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)base;
    const Elf64_Phdr *program = (const Elf64_Phdr *)(base + header->e_phoff);
    const Elf64_Dyn *dynamic = NULL;
    uintptr_t load = 0;
    for (int i = 0; i < header->e_phnum; i++) {
        if (program[i].p_type == PT_LOAD)
            load = (uintptr_t)base + program[i].p_offset - program[i].p_vaddr;
        if (program[i].p_type == PT_DYNAMIC)
            dynamic = (const Elf64_Dyn *)(base + program[i].p_offset);
    }
    const Elf64_Sym *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *gnu_hash = NULL, *hash = NULL;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t value = load + dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const Elf64_Sym *)value;
        else if (dynamic->d_tag == DT_STRTAB)
            strings = (const char *)value;
        else if (dynamic->d_tag == DT_HASH)
            hash = (const uint32_t *)value;
        else if (dynamic->d_tag == DT_GNU_HASH)
            gnu_hash = (const uint32_t *)value;
    }
    if (!symbols || !strings || (!hash && !gnu_hash))
        return NULL;
    /* Without a count of symbols (DT_HASH) the string table, which follows, is their end. */
    size_t count = hash ? hash[1] : ((uintptr_t)strings - (uintptr_t)symbols) / sizeof *symbols;
    for (size_t i = 0; i < count; i++)
        if (strcmp(strings + symbols[i].st_name, wanted) == 0)
            return (void *)(load + symbols[i].st_value);
    return NULL;
}

static vdso_getrandom vdso;
static void *vdso_state;
static struct opaque_parameters parameters;

static void open_vdso(void)
{
    vdso = (vdso_getrandom)vdso_symbol("__vdso_getrandom");
    if (!vdso || vdso(NULL, 0, 0, &parameters, ~0UL) != 0)
        return;
    void *state = mmap(NULL, 4096, (int)parameters.prot, (int)parameters.flags, -1, 0);
    uint64_t first;
    if (state != MAP_FAILED && vdso(&first, sizeof first, 0, state, parameters.size) == sizeof first)
        vdso_state = state;
}

static void add_line(const char *path, const char *line)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (write(fd, line, strlen(line)) < 0)
        abort();
    close(fd);
}

static void draw(void)
{
    uint64_t by_syscall = 0, by_libc = 0, by_vdso = 0;
    char line[256];
    syscall(SYS_getrandom, &by_syscall, sizeof by_syscall, 0);
    if (getrandom(&by_libc, sizeof by_libc, 0) < 0 || (vdso_state && vdso(&by_vdso, sizeof by_vdso, 0, vdso_state, parameters.size) < 0))
        abort();
    uint64_t by_arc4 = (uint64_t)arc4random() << 32 | arc4random();
    snprintf(line, sizeof line, "syscall=%016lx libc=%016lx arc4random=%016lx vdso=%016lx rand=%x\n", by_syscall, by_libc, by_arc4, by_vdso, rand());
    add_line("/tmp/draws", line);
}

static void ignore(int number)
{
    (void)number;
}

int main(void)
{
    signal(SIGUSR2, ignore);    /* by which others see that it is expected */
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGUSR1);
    sigaddset(&awaited, SIGUSR2);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    srand(1);
    open_vdso();
    printf("pid %d\nvdso %d\ndone\n", (int)getpid(), vdso_state != NULL);
    fflush(stdout);
    for (;;) {
        int number = sigwaitinfo(&awaited, NULL);
        if (number == SIGUSR1)
            draw();
        else if (number == SIGUSR2)
            add_line("/tmp/told", "told\n");
    }
}
