/* Installs a filter that kills on futex by the privilege it has in a user namespace of its own, and gives that up; no_new_privs is not set. */
#include "../programs/fidelity.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

int main(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct none[2] = { { 0 } };
    mkdir(FIDELITY_DIRECTORY, 0777);
    MUST(unshare(CLONE_NEWUSER));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    MUST((int)syscall(SYS_capset, &header, none));
    fidelity_ready();
    for (int i = 0; i < 600 && !fidelity_may_go(); i++)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    return 0;
}
