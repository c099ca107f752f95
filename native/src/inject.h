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
int set_registers(pid_t tid, const struct user_regs_struct *regs, struct error *err);
int get_registers(pid_t tid, struct user_regs_struct *regs, struct error *err);
int set_signal_mask(pid_t tid, uint64_t mask, struct error *err);
/* Learn what inject_syscall needs of the vdso, which is the same image in every 64-bit process. */
int inject_prepare(struct error *err);

#endif
