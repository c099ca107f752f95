/* Run batches inside the stopped threads of the source (query.h), and single syscalls inside any stopped thread. */
#ifndef TCLONE_INJECT_H
#define TCLONE_INJECT_H

#include "world.h"

/* Ask every thread of every process (the core's own questions and parts[]), collect the answers; registers and masks are put back. */
int inject_queries(struct world *world, struct error *err);

/*
 * Make a thread in ptrace-stop execute one syscall at the `syscall` instruction of its vdso. Its registers are left changed: the caller
 * sets them afterwards. No signal is involved (PTRACE_SYSCALL stops), so signal actions stay as they are. Signals must be blocked.
 */
int inject_syscall(pid_t tid, const struct user_regs_struct *base, uint64_t vdso, long number, const uint64_t args[6], long *result,
                   struct error *err);
/* The same in three steps: whoever has many threads takes each step with all of them, and waits for none longer than it takes. */
int inject_begin(pid_t tid, const struct user_regs_struct *base, uint64_t vdso, long number, const uint64_t args[6], struct error *err);
int inject_enter(pid_t tid, struct error *err);
int inject_finish(pid_t tid, long *result, struct error *err);
/*
 * Where the scratch mapping is asked for: a place of its own, where it can be told from the program's (tidy.c). If the program has something
 * there, the kernel takes another place.
 */
#define SCRATCH_PLACE 0x2a1d00000000ull
/* Does a frozen thread stand in code that an injection left behind: in the cave, or in the scratch mapping? */
bool inject_in_cave(const struct thread *thread);
bool inject_in_scratch(const struct thread *thread);
/* Where the way back of a thread in the cave is written: a struct resume_frame in the source. */
uint64_t inject_cave_frame(const struct process *process);
/* Has an injection failed so that scratch memory is still mapped, or a thread still in it? */
bool inject_left_something(void);
/* Unmap a range of a frozen process. */
int inject_unmap(struct process *process, uint64_t address, size_t size, struct error *err);
int set_registers(pid_t tid, const struct user_regs_struct *regs, struct error *err);
int get_registers(pid_t tid, struct user_regs_struct *regs, struct error *err);
int set_signal_mask(pid_t tid, uint64_t mask, struct error *err);
/* A stopped thread gets its registers and its signal mask back. Each is tried once more when it fails: nobody else would do it. */
int give_back(const struct thread *thread, struct error *err);
/* Learn what inject_syscall needs of the vdso, which is the same image in every 64-bit process. */
int inject_prepare(struct error *err);

#endif
