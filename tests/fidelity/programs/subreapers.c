/* Orphans that a child subreaper adopted, from its own session, from one that a descendant founded and left, and from one that it has left itself. */
#include "fidelity.h"

enum { OWN, FOUNDED_BELOW, LEFT_BEHIND, NESTED, ORPHANS };

struct member { pid_t pid, parent, group, session; };

struct board {
    struct member before[ORPHANS], after[ORPHANS];
    volatile int looked;
};

static struct board *board;
static pid_t reaper;

static struct member look(void)
{
    return (struct member){ getpid(), getppid(), getpgid(0), getsid(0) };
}

/* Wait until the parent is gone, look, and look again after the fork. */
static void __attribute__((noreturn)) stay(int which, pid_t parent)
{
    while (getppid() == parent)
        fidelity_sleep_ms(1);
    board->before[which] = look();
    fidelity_await_go();
    board->after[which] = look();
    __atomic_add_fetch(&board->looked, 1, __ATOMIC_SEQ_CST);
    _exit(which);
}

/* A child that forks an orphan and ends; it founds a session first, if it shall. */
static void leave_orphan(int which, bool new_session)
{
    pid_t child = fidelity_fork();
    if (child == 0) {
        if (new_session)
            setsid();
        pid_t parent = getpid();
        if (fork() == 0)
            stay(which, parent);
        _exit(0);
    }
    fidelity_expect_exit(child, 0);
}

static void await_seen(int which)
{
    while (__atomic_load_n(&board->before[which].pid, __ATOMIC_SEQ_CST) == 0)
        fidelity_sleep_ms(1);
}

static void __attribute__((noreturn)) run_reaper(void)
{
    reaper = getpid();
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
    leave_orphan(LEFT_BEHIND, false);
    await_seen(LEFT_BEHIND);
    MUST(setsid());
    leave_orphan(OWN, false);
    leave_orphan(FOUNDED_BELOW, true);
    /* A subreaper below, which ends: what it adopted goes to the next one above. */
    pid_t below = fidelity_fork();
    if (below == 0) {
        MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
        leave_orphan(NESTED, true);
        await_seen(NESTED);
        fidelity_await_go();
        while (board->looked < ORPHANS)
            fidelity_sleep_ms(10);
        fidelity_expect_exit(board->before[NESTED].pid, NESTED);
        _exit(0);
    }
    for (int which = 0; which < ORPHANS; which++)
        await_seen(which);
    fidelity_await_go();
    int subreaper = 0;
    MUST(prctl(PR_GET_CHILD_SUBREAPER, &subreaper));
    if (!subreaper)
        _exit(99);
    for (int which = 0; which < ORPHANS; which++)
        if (which != NESTED)
            fidelity_expect_exit(board->before[which].pid, which);
    fidelity_expect_exit(below, 0);
    _exit(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : 98);
}

int main(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fidelity_fork();
    if (child == 0)
        run_reaper();
    for (int which = 0; which < ORPHANS; which++)
        await_seen(which);
    fidelity_ready();
    fidelity_await_go();
    fidelity_expect_exit(child, 0);
    for (int i = 0; i < ORPHANS; i++) {
        struct member a = board->before[i], b = board->after[i];
        CHECK(a.pid == b.pid && a.parent == b.parent && a.group == b.group && a.session == b.session,
              "orphan %d: pid %d parent %d group %d session %d became %d %d %d %d", i, a.pid, a.parent, a.group, a.session, b.pid, b.parent, b.group,
              b.session);
    }
    pid_t parent = child;
    CHECK(board->before[OWN].parent == parent && board->before[LEFT_BEHIND].parent == parent && board->before[FOUNDED_BELOW].parent == parent
          && board->before[NESTED].parent != parent, "the test itself is wrong about who adopts");
    fidelity_pass();
}
