/*
 * Restartable sequences: one thread is met inside its critical section and has to begin it anew in the branch (there it would go on in the middle, maybe
 * on another CPU); one has an area and a signature of its own, one has none.
 */
#include "fidelity.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/sysinfo.h>

#define OWN_SIGNATURE 0x0badcafe
#define UNREGISTER 1

struct area {
    uint32_t cpu_start, cpu;
    uint64_t section;
    uint32_t flags, pad[3];
} __attribute__((aligned(32)));
_Static_assert(sizeof(struct area) == 32, "what every kernel with restartable sequences knows");

static struct area own;
static pthread_barrier_t registered;
static volatile uint64_t turns, aborts;
static volatile uint32_t stop;
static double began;            /* when the section that came to its end was entered, by CLOCK_BOOTTIME */
static double completed;
static const char *failure;

static struct area *libc_area(void)
{
    return (struct area *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* Turn round within one critical section until told to stop; false = it was left by its abort handler. */
static bool section(struct area *area)
{
    uint32_t aborted = 0;
    __asm__ volatile(
        ".pushsection __rseq_cs, \"aw\"\n"
        ".balign 32\n"
        "3: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n"
        ".popsection\n"
        "lea 3b(%%rip), %%rax\n"
        "mov %%rax, (%[place])\n"
        "1: incq (%[turns])\n"
        "cmpl $0, (%[stop])\n"
        "je 1b\n"
        "2: jmp 5f\n"
        ".long %c[signature]\n"
        "4: movl $1, %[aborted]\n"
        "5:\n"
        : [aborted] "+r"(aborted)
        : [place] "r"(&area->section), [turns] "r"(&turns), [stop] "r"(&stop), [signature] "i"(RSEQ_SIG)
        : "rax", "memory", "cc");
    area->section = 0;
    return !aborted;
}

static void *spin(void *unused)
{
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);       /* many programs share the machine */
    struct area *area = libc_area();
    pthread_barrier_wait(&registered);
    for (;;) {
        began = fidelity_now(CLOCK_BOOTTIME);
        if (section(area))
            break;
        aborts++;
    }
    completed = fidelity_now(CLOCK_BOOTTIME);
    return unused;
}

static bool is_registered(struct area *area, uint32_t signature)
{
    return syscall(SYS_rseq, area, sizeof *area, 0, signature) < 0 && errno == EBUSY
        && syscall(SYS_rseq, area, sizeof *area, 0, signature ^ 1) < 0 && errno == EPERM
        && area->cpu < (uint32_t)get_nprocs_conf();
}

static bool forget_libc_area(void)
{
    return syscall(SYS_rseq, libc_area(), __rseq_size < 32 ? 32 : __rseq_size, UNREGISTER, RSEQ_SIG) == 0;
}

static void *with_own_area(void *unused)
{
    if (!forget_libc_area() || syscall(SYS_rseq, &own, sizeof own, 0, OWN_SIGNATURE) < 0)
        failure = "an area of its own cannot be registered";
    pthread_barrier_wait(&registered);
    fidelity_await_go();
    if (!failure && !is_registered(&own, OWN_SIGNATURE))
        failure = "the area of its own is not registered";
    return unused;
}

static void *without_area(void *unused)
{
    struct area *area = libc_area();
    if (!forget_libc_area())
        failure = "the libc's area cannot be given up";
    pthread_barrier_wait(&registered);
    fidelity_await_go();
    if (!failure && area->cpu != (uint32_t)-1)
        failure = "an area that was given up is written to";
    if (!failure && syscall(SYS_rseq, area, sizeof *area, 0, RSEQ_SIG) < 0)
        failure = "the area that was given up cannot be registered again";
    return unused;
}

/* By CLOCK_BOOTTIME, at most 1/100 s too early. Of a branch: when it was made. */
static double process_start(void)
{
    const char *fields = strrchr(fidelity_file("/proc/self/stat"), ')') + 2;    /* from the third on */
    for (int i = 3; i < 22; i++)
        fields = strchr(fields, ' ') + 1;
    return (double)strtoull(fields, NULL, 10) / (double)sysconf(_SC_CLK_TCK);
}

int main(void)
{
    CHECK(__rseq_size > 0, "the libc registers no restartable sequences");
    pthread_barrier_init(&registered, NULL, 4);
    pthread_t threads[3];
    void *(*const runs[])(void *) = { spin, with_own_area, without_area };
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, runs[i], NULL) == 0, "no thread");
    pthread_barrier_wait(&registered);
    while (turns == 0)
        fidelity_sleep_ms(1);
    fidelity_ready();
    double end = fidelity_now(CLOCK_MONOTONIC) + FIDELITY_SPIN_SECONDS;
    while (!fidelity_may_go() && fidelity_now(CLOCK_MONOTONIC) < end)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    stop = 1;
    fidelity_await_go();
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0, "thread %d cannot be joined", i);
    CHECK(!failure, "%s", failure);
    double start = process_start();
    CHECK(completed < start || began >= start, "the section that was entered %.3f s before this process was made has come to its end in it (%lu aborts)",
          start - began, aborts);
    CHECK(is_registered(libc_area(), RSEQ_SIG), "the first thread's area is not registered");
    fidelity_pass();
}
