/* Ids, groups, the five capability sets, securebits, keepcaps, no_new_privs, dumpable: also per thread, as the kernel keeps them. */
#include "fidelity.h"

#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>

#define CAPABILITIES 41

struct seen {
    uid_t uid[4];
    gid_t gid[4];
    gid_t groups[8];
    int group_count;
    uint32_t sets[6];
    uint64_t bounding, ambient;
    int securebits, no_new_privs, dumpable, death_signal;
};

static void look(struct seen *seen)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    memset(seen, 0, sizeof *seen);
    getresuid(&seen->uid[0], &seen->uid[1], &seen->uid[2]);
    getresgid(&seen->gid[0], &seen->gid[1], &seen->gid[2]);
    seen->uid[3] = (uid_t)syscall(SYS_setfsuid, -1);
    seen->gid[3] = (gid_t)syscall(SYS_setfsgid, -1);
    seen->group_count = getgroups(8, seen->groups);
    syscall(SYS_capget, &header, seen->sets);
    for (int i = 0; i < CAPABILITIES; i++) {
        seen->bounding |= (uint64_t)(prctl(PR_CAPBSET_READ, i) == 1) << i;
        seen->ambient |= (uint64_t)(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, i, 0, 0) == 1) << i;
    }
    seen->securebits = prctl(PR_GET_SECUREBITS);
    seen->no_new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    seen->dumpable = prctl(PR_GET_DUMPABLE);
    prctl(PR_GET_PDEATHSIG, &seen->death_signal);
}

/* 0: root, fewer capabilities; 1: a user with ambient ones; 2: a user with none and no_new_privs; 3: fsuid apart; 4: undumpable. */
static void become(int variant)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct { uint32_t effective, permitted, inheritable; } sets[2];
    MUST((int)syscall(SYS_capget, &header, sets));
    if (variant == 0) {
        MUST(prctl(PR_CAPBSET_DROP, CAP_MKNOD));
        sets[0].effective &= ~(1u << CAP_CHOWN);
        MUST((int)syscall(SYS_capset, &header, sets));
    }
    if (variant == 1) {
        gid_t groups[] = { 44, 1000, 29 };
        MUST(setgroups(3, groups));
        MUST(prctl(PR_SET_KEEPCAPS, 1));
        MUST(setresgid(1000, 1000, 1000));
        MUST(setresuid(1000, 1000, 1000));
        sets[0].permitted = sets[0].effective = sets[0].inheritable = 1u << CAP_NET_BIND_SERVICE;
        sets[1].permitted = sets[1].effective = sets[1].inheritable = 0;
        MUST((int)syscall(SYS_capset, &header, sets));
        MUST(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0));
    }
    if (variant == 2) {
        MUST(setgroups(0, NULL));
        MUST(setresgid(1001, 1002, 1003));
        MUST(setresuid(1001, 1002, 1003));
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    }
    if (variant == 3) {
        syscall(SYS_setfsgid, 1000);
        syscall(SYS_setfsuid, 1000);
        MUST(prctl(PR_SET_PDEATHSIG, SIGUSR1));
    }
    if (variant == 4) {
        MUST(setresuid(1000, 1000, 1000));
        MUST(prctl(PR_SET_DUMPABLE, 1));
        MUST(prctl(PR_SET_PDEATHSIG, SIGUSR2));
    }
    if (variant == 5)
        MUST(prctl(PR_SET_DUMPABLE, 0));
}

static pthread_barrier_t changed;

/* Raw system call: the libc's would change every thread. */
static void *other_user(void *unused)
{
    (void)unused;
    struct seen before, after;
    syscall(SYS_setresuid, 0, 1234, 0);
    look(&before);
    pthread_barrier_wait(&changed);
    fidelity_await_go();
    look(&after);
    return memcmp(&before, &after, sizeof before) == 0 ? NULL : (void *)1;
}

int main(void)
{
    pid_t children[6];
    int ready[2];
    MUST(pipe(ready));
    for (int i = 0; i < 6; i++) {
        children[i] = fidelity_fork();
        if (children[i] == 0) {
            struct seen before, after;
            become(i);
            look(&before);
            MUST((int)write(ready[1], "r", 1));
            fidelity_await_go();
            look(&after);
            _exit(memcmp(&before, &after, sizeof before) == 0 ? i : 100 + i);
        }
    }
    pthread_t thread;
    pthread_barrier_init(&changed, NULL, 2);
    pthread_create(&thread, NULL, other_user, NULL);
    pthread_barrier_wait(&changed);
    struct seen before, after;
    look(&before);
    for (int i = 0; i < 6; i++) {
        char byte;
        CHECK(read(ready[0], &byte, 1) == 1, "a child did not get ready");
    }
    fidelity_ready();
    fidelity_await_go();
    look(&after);
    CHECK(memcmp(&before, &after, sizeof before) == 0, "the credentials of the main thread differ");
    void *result;
    pthread_join(thread, &result);
    CHECK(!result, "the credentials of a thread differ from what they were");
    for (int i = 0; i < 6; i++)
        fidelity_expect_exit(children[i], i);
    fidelity_pass();
}
