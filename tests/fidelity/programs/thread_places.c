/* Threads with a working directory, a root and a umask of their own (unshare(CLONE_FS)), and one that shares the process's. */
#include "fidelity.h"

#include <pthread.h>

#define HERE "/tmp/fidelity-thread-places"
#define THREADS 3

enum { SHARING, ELSEWHERE, IN_ROOT };

static pthread_barrier_t begun, gone_on;
static char problems[THREADS][256];

static void settle(int which)
{
    if (which == SHARING)
        return;
    MUST(unshare(CLONE_FS));
    umask((mode_t)(which * 011));
    if (which == ELSEWHERE)
        MUST(chdir(HERE "/elsewhere"));
    if (which == IN_ROOT) {
        MUST(chdir(HERE "/root/inner"));
        MUST(chroot(HERE "/root"));
    }
}

static const char *wanted_link(int which, const char *name)
{
    bool root = strcmp(name, "root") == 0;
    switch (which) {
    case ELSEWHERE: return root ? "/" : HERE "/elsewhere";
    case IN_ROOT: return root ? HERE "/root" : HERE "/root/inner";
    default: return root ? "/" : HERE "/main";
    }
}

/* By the links of the thread's own directory, read by whoever is not in a root of its own. */
static void look(int which, pid_t thread)
{
    static const char *const names[] = { "cwd", "root" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64], link[256] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/%s", thread, names[i]);
        MUST(readlink(path, link, sizeof link - 1));
        CHECK(strcmp(link, wanted_link(which, names[i])) == 0, "thread %d: its %s is %s instead of %s", which, names[i], link, wanted_link(which, names[i]));
    }
}

static pid_t ids[THREADS];

static void *run(void *argument)
{
    int which = (int)(intptr_t)argument;
    ids[which] = (pid_t)syscall(SYS_gettid);
    settle(which);
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&gone_on);
    mode_t mask = umask(0777), wanted = which == SHARING ? 027 : (mode_t)(which * 011);
    if (which != SHARING && mask != wanted)
        snprintf(problems[which], sizeof problems[which], "thread %d: its umask is %03o instead of %03o", which, mask, wanted);
    if (which == ELSEWHERE && access("mark", F_OK) < 0)
        snprintf(problems[which], sizeof problems[which], "thread %d: names lead elsewhere", which);
    if (which == IN_ROOT && access("/only-here", F_OK) < 0)
        snprintf(problems[which], sizeof problems[which], "thread %d: its root is another", which);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    static const char *const directories[] = { HERE, HERE "/main", HERE "/elsewhere", HERE "/root", HERE "/root/inner" };
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        MUST(mkdir(directories[i], 0755));
    MUST(close(MUST(open(HERE "/elsewhere/mark", O_WRONLY | O_CREAT, 0600))));
    MUST(close(MUST(open(HERE "/root/only-here", O_WRONLY | O_CREAT, 0600))));
    MUST(chdir(HERE "/main"));
    umask(027);
    pthread_barrier_init(&begun, NULL, THREADS + 1);
    pthread_barrier_init(&gone_on, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i) == 0, "no thread %d", i);
    pthread_barrier_wait(&begun);

    fidelity_ready();
    fidelity_await_go();

    for (int i = 0; i < THREADS; i++)
        look(i, ids[i]);
    mode_t mask = umask(027);
    CHECK(mask == 027, "its umask is %03o", mask);
    CHECK(syscall(SYS_kcmp, getpid(), ids[SHARING], 3 /* KCMP_FS */, 0, 0) == 0, "the thread that shares does not any more");
    for (int i = ELSEWHERE; i < THREADS; i++)
        CHECK(syscall(SYS_kcmp, getpid(), ids[i], 3, 0, 0) != 0, "thread %d shares with the others", i);
    pthread_barrier_wait(&gone_on);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(!problems[i][0], "%s", problems[i]);
    }
    fidelity_pass();
}
