/* System calls in which a thread was waiting when it was frozen. */
#ifndef TCLONE_INTERRUPTED_H
#define TCLONE_INTERRUPTED_H

#include "world.h"

/*
 * Some calls (epoll_wait, sigwaitinfo, semop …) return EINTR for any interruption, also that of being frozen, and the kernel never restarts
 * them. Where the wait had no time limit and no signal is due, make the frozen thread (in source and branch) enter the call again instead.
 */
void interrupted_conceal(struct thread *thread);
/* In rax: the kernel would go on by its own notes (include/linux/errno.h: ERESTART_RESTARTBLOCK). */
#define INTERRUPTED_WITH_RESTART_BLOCK (-516)
/* In rax: the kernel would make the call anew, or let it end with EINTR if a handler runs first (ERESTARTNOHAND), as with a restart block. */
#define INTERRUPTED_WITHOUT_HANDLER (-514)
/*
 * *regs become those with which a branch's thread starts its interrupted call again. `memory` is the /proc/PID/mem of its process: what is left of a
 * wait is written there.
 */
void interrupted_restart(const struct thread *thread, struct user_regs_struct *regs, int memory);

#endif
