/* The state of threads and processes that the files of parts/ own. */
#ifndef TCLONE_PARTS_H
#define TCLONE_PARTS_H

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

#include "../query.h"

#define SIGNALS 64
#define KERNEL_SIGSET_SIZE 8
#define STEADY_CLOCKS 2         /* CLOCK_MONOTONIC, CLOCK_BOOTTIME */

/* The kernel's struct for rt_sigaction; libc's differs. */
struct kernel_sigaction {
    uint64_t handler, flags, restorer, mask;
};

/* The kernel's struct for sched_setattr, second version. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
    uint32_t clamp_least, clamp_most;   /* of utilisation; both 0 where the kernel knows none */
};

struct filter {
    struct filter *next;
    uint32_t flags;
    uint16_t length;            /* instructions */
    uint64_t *instructions;     /* struct sock_filter, 8 bytes each */
    uint64_t program;           /* in the arena: struct sock_fprog */
};

#define AFFINITY_BYTES 128      /* 1024 CPUs */

struct attributes {
    struct scheduling scheduling;
    unsigned char affinity[AFFINITY_BYTES];
    size_t affinity_size;       /* 0 = as it is by default */
    int io_priority;            /* 0 = none */
    int64_t timer_slack;        /* ns; 0 = default */
    int death_signal;           /* PR_SET_PDEATHSIG */
    uint64_t personality;
};

struct posix_timer {
    int id;
    int signal, notify;         /* SIGEV_* */
    uint64_t value;             /* sigev_value */
    int host_target;            /* the thread (SIGEV_THREAD_ID) it signals */
    int clock;
    struct itimerspec spec;     /* it_value: time left when captured */
};

/* Process-wide state that no other file has. */
struct process_state {
    struct rlimit limits[RLIM_NLIMITS];
    struct itimerval interval_timers[3];
    struct timespec interval_timers_read;   /* CLOCK_MONOTONIC */
    struct posix_timer *timers;
    int timer_count;
    struct timespec timers_read[STEADY_CLOCKS];     /* of timers.c's steady clocks */
    int dumpable, child_subreaper, memory_merge;
    int thp_disabled;           /* 0 = they are not; else 1 and the flags that they were disabled with */
    int memory_deny_write_execute;
    int oom_score_adjust;
    unsigned core_filter;       /* /proc/PID/coredump_filter */
    uint32_t login;             /* /proc/PID/loginuid, as the host numbers users */
    uint16_t keys;              /* allocated protection keys, without 0 */
    int last_pid;               /* of the first process: the id given out last; 0 = not known, or too near the end of all */
    siginfo_t *pending;         /* shared by all threads */
    int pending_count;
    struct timespec pending_read;   /* CLOCK_MONOTONIC */
};

/* Signals pending for one thread. */
struct pending_signals {
    siginfo_t *list;
    int count;
};

/* Filters of a thread that must be installed before it gives up CAP_SYS_ADMIN (seccomp.c). */
void seccomp_emit_privileged(struct batch *batch, const struct thread *thread);
/* Refuse a thread whose filters, installed by that, do not let through what follows in its finished batch. */
int seccomp_check_rest(const struct batch *batch, const struct thread *thread, struct error *err);
/* Install all others, in the stopped threads of a branch: tids[k] is the host's id of thread k. The arena is still mapped. */
int seccomp_finish(const struct process *process, const pid_t *tids, struct error *err);
/*
 * A thread that is stopped in a call which the kernel would go on with by restart_syscall (rax is -516): if its filters do not let that through, make
 * it start the call anew, in *regs and in the thread.
 */
int seccomp_guard_restart(struct thread *thread, struct user_regs_struct *regs, struct error *err);

/* Priorities that a workspace's root may not set are set by livefork, on the branch's thread with this host id. */
int attributes_finish(const struct thread *thread, pid_t tid, struct error *err);


/* Before the freeze: look whether this process has chosen what a core file of it holds. */
void process_note_core_filter(const struct process *process);
/* What livefork itself sets, on a thread of the branch's process with this host id. */
int process_finish(const struct process *process, pid_t pid, struct error *err);

/*
 * Ops that move the process into the directory `path` in /proc of a process that has ended: a short-lived one shares root and working directory with it,
 * moves one of them into a directory of its own, and ends.
 */
void root_emit_into_dead(struct batch *batch, const struct process *process, const char *path, bool as_root, const char *what);

/* Find threads with directories of their own, once mounts are known. Fails with "unsupported" for one that cannot have them again, or has descriptors of its own. */
int places_read(struct world *world, struct error *err);
/* The same for a process that runs, as far as that can be told. */
int places_check(struct process *process, struct error *err);

/* Once all was asked: refuse who has confined itself, as far as that can be told. */
int landlock_check(const struct world *world, struct error *err);

/* The text of /proc/PID/timers. */
int timers_parse(const struct process *process, const char *text, struct process_state *state, struct error *err);

/* process->state, made when it is first needed. */
struct process_state *process_state(struct process *process);

extern const struct part part_name, part_alt_stack, part_signal_actions, part_limits, part_attributes, part_process, part_root, part_place, part_landlock, part_interval_timers,
    part_posix_timers, part_pending_signals, part_credentials, part_after_credentials, part_seccomp, part_semaphore_undo,
    part_inotify_overflow, part_keys, part_next_pid, part_switches, part_aio, part_fanotify_overflow;

#endif
