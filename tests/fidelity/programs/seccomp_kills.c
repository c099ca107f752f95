/*
 * Filters that kill on, or deny, everything but what their process really does: it sleeps, but has not allowed the call by which the kernel goes on
 * with an interrupted sleep (restart_syscall), nor what a fork makes in a process (futex, seccomp, munmap).
 */
#include "fidelity.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/resource.h>

#define MAX_ALLOWED 8
#define NAP_SECONDS 1           /* so long that a fork meets it asleep, mostly */
#define DENIED EDOM

static uint32_t *go;

static void install(uint32_t otherwise, const int *allowed, int count)
{
    struct sock_filter code[2 * MAX_ALLOWED + 2] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
    unsigned short length = 1;
    for (int i = 0; i < count; i++) {
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sock_fprog program = { length, code };
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void install_unprivileged(uint32_t otherwise, const int *allowed, int count)
{
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    install(otherwise, allowed, count);
}

/* The sleep has no place for what is left of it. Returns whether none of them failed. */
static bool nap_until_go(void)
{
    const struct timespec nap = { NAP_SECONDS, 0 };
    bool fine = true;
    while (!__atomic_load_n(go, __ATOMIC_SEQ_CST))
        fine &= syscall(SYS_nanosleep, &nap, NULL) == 0;
    return fine;
}

/* Two filters, of which the older one lets the newer one be installed, but kills on seccomp(). Ends by the kill. */
static void __attribute__((noreturn)) run_killed(void)
{
    static const int older[] = { SYS_nanosleep, SYS_exit_group, SYS_prctl }, newer[] = { SYS_nanosleep, SYS_exit_group };
    install_unprivileged(SECCOMP_RET_KILL_PROCESS, older, 3);
    install_unprivileged(SECCOMP_RET_KILL_PROCESS, newer, 2);
    if (nap_until_go())
        syscall(SYS_getppid);
    _exit(1);
}

static void __attribute__((noreturn)) run_denied(void)
{
    static const int allowed[] = { SYS_nanosleep, SYS_exit_group };
    install_unprivileged(SECCOMP_RET_ERRNO | DENIED, allowed, 2);
    bool fine = nap_until_go();
    _exit(fine && syscall(SYS_getppid) == -1 && errno == DENIED ? 5 : 1);
}

static void *nap_in_thread(void *unused)
{
    static const int allowed[] = { SYS_nanosleep, SYS_exit };
    (void)unused;
    install_unprivileged(SECCOMP_RET_KILL_PROCESS, allowed, 2);
    if (nap_until_go())
        syscall(SYS_exit, 0);
    syscall(SYS_getppid);
    return NULL;
}

/* Only one of its threads has a filter. */
static void __attribute__((noreturn)) run_with_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, nap_in_thread, NULL) != 0)
        _exit(2);
    pthread_join(thread, NULL);
    _exit(getppid() > 0 ? 6 : 3);
}

/* Both threads have the same filter (TSYNC). */
static void *nap_only(void *unused)
{
    (void)unused;
    nap_until_go();
    syscall(SYS_exit, 0);
    return NULL;
}

static void __attribute__((noreturn)) run_in_step(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_nanosleep, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    pthread_t thread;
    if (pthread_create(&thread, NULL, nap_only, NULL) != 0)
        _exit(2);
    fidelity_sleep_ms(200);     /* the thread has begun its naps: its start may need other calls */
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
    _exit(nap_until_go() ? 7 : 1);
}

/* Installed by a privilege that it gives up, without no_new_privs: what a fork has to do after that is allowed, restart_syscall is not. */
static void __attribute__((noreturn)) run_privileged(void)
{
    static const int allowed[] = { SYS_nanosleep, SYS_exit_group, SYS_futex, SYS_capset, SYS_prctl };
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct none[2] = { { 0 } };
    MUST(unshare(CLONE_NEWUSER));
    install(SECCOMP_RET_ERRNO | DENIED, allowed, 5);
    MUST((int)syscall(SYS_capset, &header, none));
    bool fine = nap_until_go() && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0;
    _exit(fine && syscall(SYS_getppid) == -1 && errno == DENIED ? 8 : 1);
}

static pid_t start(void (*run)(void))
{
    pid_t child = fidelity_fork();
    if (child == 0)
        run();
    return child;
}

int main(void)
{
    const struct rlimit no_core = { 0, 0 };
    MUST(setrlimit(RLIMIT_CORE, &no_core));
    go = mmap(NULL, sizeof *go, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(go != MAP_FAILED, "no shared page");
    pid_t killed = start(run_killed), denied = start(run_denied), threaded = start(run_with_thread), in_step = start(run_in_step);
    pid_t privileged = start(run_privileged);
    fidelity_sleep_ms(600);
    fidelity_ready();
    fidelity_await_go();
    __atomic_store_n(go, 1, __ATOMIC_SEQ_CST);
    int status;
    CHECK(waitpid(killed, &status, 0) == killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS,
          "the process with two filters ended with %#x, not by SIGSYS", status);
    fidelity_expect_exit(denied, 5);
    fidelity_expect_exit(threaded, 6);
    fidelity_expect_exit(in_step, 7);
    fidelity_expect_exit(privileged, 8);
    fidelity_pass();
}
