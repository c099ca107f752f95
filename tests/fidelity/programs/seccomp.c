/* Seccomp filters: none, one, two stacked, one without no_new_privs, another one per thread, and strict mode. Counts and effects stay. */
#include "fidelity.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>

static void deny(int number, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    MUST((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

static int filter_count(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)syscall(SYS_gettid));
    char *field = strstr(fidelity_file(path), "Seccomp_filters:");
    return field ? atoi(field + 16) : -1;
}

static bool denied(int number, int error)
{
    return syscall(number, 0, 0, 0) == -1 && errno == error;
}

static pthread_barrier_t filtered;

static void *filtered_thread(void *unused)
{
    (void)unused;
    deny(SYS_sync, ETIME);
    pthread_barrier_wait(&filtered);
    fidelity_await_go();
    return denied(SYS_sync, ETIME) ? NULL : (void *)1;
}

/* mmap, mprotect and clone refused: what a fork would like to use in the target. */
static void __attribute__((noreturn)) run_hostile(int base)
{
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    deny(SYS_mmap, EPERM);
    deny(SYS_clone3, EPERM);
    deny(SYS_rt_sigaction, EPERM);
    fidelity_await_go();
    _exit(filter_count() == base + 3 && denied(SYS_mmap, EPERM) && denied(SYS_rt_sigaction, EPERM) ? 7 : 1);
}

/* Only read, write, _exit and sigreturn are allowed: anything else would kill it. It ends when its pipe does. */
static void __attribute__((noreturn)) run_strict(int input)
{
    char byte;
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    ssize_t got = read(input, &byte, 1);
    syscall(SYS_exit, got == 1 && byte == 'g' ? 9 : 1);
    __builtin_unreachable();
}

int main(void)
{
    int base = filter_count(), strict_pipe[2];
    MUST(pipe(strict_pipe));
    pid_t hostile = fidelity_fork();
    if (hostile == 0)
        run_hostile(base);
    pid_t strict = fidelity_fork();
    if (strict == 0)
        run_strict(strict_pipe[0]);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    deny(SYS_acct, EXFULL);
    pthread_t thread;
    pthread_barrier_init(&filtered, NULL, 2);
    pthread_create(&thread, NULL, filtered_thread, NULL);
    pthread_barrier_wait(&filtered);
    fidelity_sleep_ms(50);
    fidelity_ready();
    fidelity_await_go();
    CHECK(filter_count() == base + 1, "%d filters, expected %d", filter_count(), base + 1);
    CHECK(denied(SYS_acct, EXFULL), "the filter lets acct through");
    void *result;
    pthread_join(thread, &result);
    CHECK(!result, "the thread's own filter is gone");
    fidelity_expect_exit(hostile, 7);
    MUST((int)write(strict_pipe[1], "g", 1));
    fidelity_expect_exit(strict, 9);
    fidelity_pass();
}
