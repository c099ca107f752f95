/*
 * Batches of syscalls: the "machine code" that livefork compiles captured state into.
 *
 * A batch is an array of struct op that ends with an OP_STOP. In a source process it runs under ptrace (inject.c); in a branch it is run by
 * tclone-restore (pid 1, plain C loop) or by the interpreter in interp.S (every process, once its own text is gone).
 * All pointers in arguments are addresses in the place where the batch runs.
 */
#ifndef TCLONE_OP_H
#define TCLONE_OP_H

#include <stdint.h>

struct op {
    int32_t number;     /* a syscall number, or one of enum pseudo_op */
    uint32_t flags;     /* OP_LOAD(i), OP_TOLERATE(errors) */
    uint64_t arg[6];
    int64_t result;
    uint64_t what;      /* arena address of a C string that names the object, for the error message; 0 = none */
    uint64_t cell;      /* where to store the result as 64 bits when the op succeeded; 0 = nowhere */
};

#define OP_SIZE 80
_Static_assert(sizeof(struct op) == OP_SIZE, "interp.S knows this size");

#define OP_LOAD(i) (1u << (i))      /* arg[i] is the address of a 64-bit value (mostly the result of an earlier op) */
#define OP_ANY_ERROR 0x100u         /* of a question to a source process: whatever comes is recorded in result, and the batch goes on */
#define OP_TOLERATE(errors) ((uint32_t)(errors) << 9)  /* enum tolerance: after one of these errors the batch of a branch goes on */
#define OP_TOLERANCES 64
#define OP_LOAD32(i) (0x10000u << (i)) /* arg[i] is the address of a 32-bit value (for example of pipe2's array) */

enum pseudo_op {
    OP_STOP = -1,       /* end of the batch (a trap in the interpreter, which never gets there) */
    OP_WAIT = -2,       /* until *(uint32_t *)arg[0] >= arg[1] (futex) */
    OP_SIGNAL = -3,     /* atomically increment *(uint32_t *)arg[0] and wake its waiters */
    OP_CLONE = -4,      /* clone3(arg[0], arg[1]); the child goes on with the batch at the address on top of its stack */
    OP_EXPECT = -5,     /* arg[0] (usually loaded) must equal arg[1]; else the op fails with result -EILSEQ */
    OP_PARK = -6,       /* *(uint32_t *)arg[0] = 1, then sleep for at most the timespec at arg[1]; a tracer takes the thread meanwhile */
    OP_RESUME = -7,     /* become again what the struct resume_frame at arg[0] says */
    /*
     * Two 64-bit numbers at arg[0]: the time left until arg[1] (ns of CLOCK_MONOTONIC) as seconds and units of arg[2] ns (1: a timespec, 1000: a
     * timeval), at least one unit. For calls that take only a relative time: the batch runs an unknown time after it was written. With a period arg[3]
     * (ns, 0 = none) the time until its next end is told instead when arg[1] has passed, and the number missed is added to the 64 bits at arg[4].
     */
    OP_TIME_LEFT = -8,
};

/*
 * A way back to the interrupted program that needs no tracer: if livefork is killed while its batches run in the source, each thread
 * goes on where it was. The fields are in the order in which interp.S and cave.S pop them; the tail is what iretq takes.
 */
struct resume_frame {
    uint64_t signal_mask;
    uint64_t r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
    uint64_t rip, cs, flags, rsp, ss;
};

/* Where a process or thread reports that an op failed. In a branch the table of tolerances lies right behind it. */
struct op_fault {
    uint32_t raised;    /* futex word: becomes 1 */
    uint32_t pad;
    uint64_t op;        /* arena address of the op that failed */
};
#define OP_FAULT_SIZE 16
_Static_assert(sizeof(struct op_fault) == OP_FAULT_SIZE, "interp.S knows this size");

/* cave.S: one syscall with the registers as they are, then the resume_frame at cave_frame. */
extern const char cave_start[], cave_frame[], cave_end[];

extern const char interp_start[], interp_resume[], interp_end[];   /* position independent: rdi = first op, rsi = struct op_fault */

#endif
