/*
 * What a thread has in its processor: vector registers as wide as they are, the stack and the control words of both floating point units, the base of gs,
 * the direction flag. One thread is met while it spins, one while it waits in the kernel; neither touches them meanwhile.
 */
#include "fidelity.h"

#include <asm/prctl.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/resource.h>

#define VECTORS 32
#define WIDEST 64               /* bytes */
#define X87_CONTROL 0x0e7f      /* towards zero, 53 bits, no exceptions */
#define MXCSR_USUAL 0x1f80
#define MXCSR_OWN 0x7f80        /* towards zero, no exceptions */
#define DIRECTION 0x400

enum width { SSE, AVX, AVX512 };

struct state {
    unsigned char vectors[VECTORS][WIDEST];
    uint64_t masks[8];          /* k0 to k7 */
    long double x87[8];
    uint64_t flags;
    uint32_t mxcsr, usual_mxcsr;
    uint16_t x87_control;
} __attribute__((aligned(64)));
_Static_assert(sizeof(long double) == 16, "so they lie in x87");

struct keeper {
    volatile char spins;
    uint64_t gs_area;           /* what the base of gs points to */
    struct state before, after;
    const char *wrong;
};

static enum width width;
static volatile char stop;
static pthread_barrier_t begun;

#define EACH(f, a0, a1, a2, a3, a4, a5, a6, a7) f(a0) f(a1) f(a2) f(a3) f(a4) f(a5) f(a6) f(a7)
#define LOW(f) EACH(f, 0, 1, 2, 3, 4, 5, 6, 7) EACH(f, 8, 9, 10, 11, 12, 13, 14, 15)
#define HIGH(f) EACH(f, 16, 17, 18, 19, 20, 21, 22, 23) EACH(f, 24, 25, 26, 27, 28, 29, 30, 31)
#define LOAD_SSE(n) "movdqu " #n "*64(%[in]), %%xmm" #n "\n"
#define SAVE_SSE(n) "movdqu %%xmm" #n ", " #n "*64(%[out])\n"
#define LOAD_AVX(n) "vmovdqu " #n "*64(%[in]), %%ymm" #n "\n"
#define SAVE_AVX(n) "vmovdqu %%ymm" #n ", " #n "*64(%[out])\n"
#define LOAD_AVX512(n) "vmovdqu64 " #n "*64(%[in]), %%zmm" #n "\n"
#define SAVE_AVX512(n) "vmovdqu64 %%zmm" #n ", " #n "*64(%[out])\n"
#define LOAD_MASK(n) "kmovw %c[masks]+" #n "*8(%[in]), %%k" #n "\n"
#define SAVE_MASK(n) "kmovw %%k" #n ", %c[masks]+" #n "*8(%[out])\n"
#define LOAD_X87(n) "fldt %c[x87]+" #n "*16(%[in])\n"
#define SAVE_X87(n) "fstpt %c[x87]+" #n "*16(%[out])\n"

#define LOAD_REST "fninit\n" EACH(LOAD_X87, 7, 6, 5, 4, 3, 2, 1, 0) "fldcw %c[control](%[in])\n ldmxcsr %c[mxcsr](%[in])\n std\n"
/* A poll of nothing for 20 ms, or a turn of the loop: then look whether it is time. */
#define WAIT \
    "1: pause\n cmpb $0, (%[spins])\n jne 2f\n mov $7, %%eax\n xor %%edi, %%edi\n xor %%esi, %%esi\n mov $20, %%edx\n syscall\n" \
    "2: cmpb $0, (%[stop])\n je 1b\n"
#define SAVE_REST \
    "pushfq\n popq %c[flags](%[out])\n cld\n stmxcsr %c[mxcsr](%[out])\n fnstcw %c[control](%[out])\n" EACH(SAVE_X87, 0, 1, 2, 3, 4, 5, 6, 7) \
    "fninit\n ldmxcsr %c[usual](%[in])\n"

/* The whole of it in one piece, so that the compiler uses none of the registers meanwhile. */
#define KEEP(load, save) \
    __asm__ volatile(load LOAD_REST WAIT save SAVE_REST \
                     : \
                     : [in] "r"(in), [out] "r"(out), [stop] "r"(&stop), [spins] "r"(spins), [masks] "i"(offsetof(struct state, masks)), \
                       [x87] "i"(offsetof(struct state, x87)), [control] "i"(offsetof(struct state, x87_control)), \
                       [mxcsr] "i"(offsetof(struct state, mxcsr)), [usual] "i"(offsetof(struct state, usual_mxcsr)), \
                       [flags] "i"(offsetof(struct state, flags)) \
                     : "rax", "rcx", "rdx", "rsi", "rdi", "r11", "memory", "cc", "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)", \
                       "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
                       "xmm14", "xmm15")

static __attribute__((noinline)) void keep(const struct state *in, struct state *out, const volatile char *spins)
{
    switch (width) {
    case AVX512: KEEP(LOW(LOAD_AVX512) HIGH(LOAD_AVX512) EACH(LOAD_MASK, 0, 1, 2, 3, 4, 5, 6, 7),
                      LOW(SAVE_AVX512) HIGH(SAVE_AVX512) EACH(SAVE_MASK, 0, 1, 2, 3, 4, 5, 6, 7)); break;
    case AVX: KEEP(LOW(LOAD_AVX), LOW(SAVE_AVX)); break;
    case SSE: KEEP(LOW(LOAD_SSE), LOW(SAVE_SSE)); break;
    }
}

static void fill(struct keeper *keeper)
{
    static const size_t counts[] = { 16, 16, 32 }, widths[] = { 16, 32, 64 };
    struct state *state = &keeper->before;
    for (size_t i = 0; i < counts[width]; i++)
        for (size_t k = 0; k < widths[width]; k++)
            state->vectors[i][k] = (unsigned char)(1 + i * 7 + k * 3 + (size_t)keeper->spins);
    for (int i = 0; i < 8; i++) {
        state->masks[i] = width == AVX512 ? 0x1234u + (unsigned)i : 0;
        state->x87[i] = 3.0L + 1.0L / (3.0L + i);       /* 64 bits, more than the control word lets a result have */
    }
    state->x87_control = X87_CONTROL;
    state->mxcsr = MXCSR_OWN;
    state->usual_mxcsr = MXCSR_USUAL;
}

static const char *compare(const struct state *before, const struct state *after)
{
    if (memcmp(before->vectors, after->vectors, sizeof before->vectors) != 0)
        return "vector registers";
    if (memcmp(before->masks, after->masks, sizeof before->masks) != 0)
        return "mask registers";
    for (int i = 0; i < 8; i++)
        if (memcmp(&before->x87[i], &after->x87[i], 10) != 0)
            return "the x87 stack";
    if (after->x87_control != X87_CONTROL || (after->mxcsr & ~0x3fu) != MXCSR_OWN)      /* the lowest bits tell of what has happened */
        return "a control word";
    return after->flags & DIRECTION ? NULL : "the direction flag";
}

static void *run(void *argument)
{
    struct keeper *keeper = argument;
    uint64_t base = 0, seen = 0;
    keeper->gs_area = 0x1122334455667788ull + (uint64_t)keeper->spins;
    MUST((int)syscall(SYS_arch_prctl, ARCH_SET_GS, &keeper->gs_area));
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);       /* many programs share the machine */
    pthread_barrier_wait(&begun);
    keep(&keeper->before, &keeper->after, &keeper->spins);
    keeper->wrong = compare(&keeper->before, &keeper->after);
    MUST((int)syscall(SYS_arch_prctl, ARCH_GET_GS, &base));
    __asm__ volatile("mov %%gs:0, %0" : "=r"(seen));
    if (base != (uint64_t)&keeper->gs_area || seen != keeper->gs_area)
        keeper->wrong = "the base of gs";
    return NULL;
}

int main(void)
{
    static struct keeper keepers[2] = { { .spins = 1 }, { .spins = 0 } };
    pthread_t threads[2];
    __builtin_cpu_init();
    width = __builtin_cpu_supports("avx512f") ? AVX512 : __builtin_cpu_supports("avx") ? AVX : SSE;
    pthread_barrier_init(&begun, NULL, 3);
    for (int i = 0; i < 2; i++) {
        fill(&keepers[i]);
        CHECK(pthread_create(&threads[i], NULL, run, &keepers[i]) == 0, "no thread");
    }
    pthread_barrier_wait(&begun);
    fidelity_sleep_ms(200);
    fidelity_ready();
    double end = fidelity_now(CLOCK_MONOTONIC) + FIDELITY_SPIN_SECONDS;
    while (!fidelity_may_go()) {
        fidelity_sleep_ms(FIDELITY_POLL_MS);
        if (fidelity_now(CLOCK_MONOTONIC) > end)
            keepers[0].spins = 0;       /* it waits from now on */
    }
    stop = 1;
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0, "thread %d cannot be joined", i);
        CHECK(!keepers[i].wrong, "the thread that %s: %s differ", i ? "waits" : "spins", keepers[i].wrong);
    }
    fidelity_pass();
}
