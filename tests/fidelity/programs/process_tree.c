/* Sessions, process groups, orphans: also ones whose session leader or group leader has ended. */
#include "fidelity.h"

struct member {
    pid_t pid, parent, group, session;
};

/* What each process found before the fork, and what it finds after it. */
struct board {
    struct member before[6], after[6];
    int looked;
};

static struct board *board;

static struct member look(void)
{
    return (struct member){ getpid(), getppid(), getpgid(0), getsid(0) };
}

/* Process `index`: look once now, once after the fork. */
static void __attribute__((noreturn)) stay(int index)
{
    if (index != 4 && index != 5)
        board->before[index] = look();
    fidelity_await_go();
    board->after[index] = look();
    __atomic_add_fetch(&board->looked, 1, __ATOMIC_SEQ_CST);
    _exit(index);
}

/* An orphan, once its parent (who started it and ends) is gone. */
static void __attribute__((noreturn)) stay_as_orphan(int index, pid_t parent)
{
    while (getppid() == parent)
        fidelity_sleep_ms(1);
    board->before[index] = look();
    stay(index);
}

static void start_orphan_of_dead_session(void)
{
    pid_t leader = fidelity_fork();
    if (leader == 0) {
        setsid();
        pid_t parent = getpid();
        if (fork() == 0)
            stay_as_orphan(4, parent);
        _exit(0);
    }
    fidelity_expect_exit(leader, 0);
}

static void start_orphan_of_dead_group(void)
{
    pid_t leader = fidelity_fork();
    if (leader == 0) {
        setpgid(0, 0);
        pid_t parent = getpid();
        if (fork() == 0)
            stay_as_orphan(5, parent);
        _exit(0);
    }
    fidelity_expect_exit(leader, 0);
}

int main(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fidelity_fork();
        if (children[i] == 0) {
            if (i == 1)
                setsid();
            if (i == 2)
                setpgid(0, 0);
            if (i == 3)
                setpgid(0, children[2]);
            stay(i);
        }
        if (i == 2)
            setpgid(children[2], children[2]);
    }
    start_orphan_of_dead_session();
    start_orphan_of_dead_group();
    for (int i = 0; i < 6; i++)
        while (__atomic_load_n(&board->before[i].pid, __ATOMIC_SEQ_CST) == 0)
            fidelity_sleep_ms(1);
    struct member self = look();
    fidelity_ready();
    fidelity_await_go();
    struct member again = look();
    CHECK(memcmp(&self, &again, sizeof self) == 0, "my own ids changed");
    for (int i = 0; i < 4; i++)
        fidelity_expect_exit(children[i], i);
    for (int tries = 0; tries < 2000 && __atomic_load_n(&board->looked, __ATOMIC_SEQ_CST) < 6; tries++)
        fidelity_sleep_ms(10);
    CHECK(board->looked == 6, "only %d of 6 processes went on", board->looked);
    for (int i = 0; i < 6; i++) {
        struct member a = board->before[i], b = board->after[i];
        CHECK(a.pid == b.pid && a.group == b.group && a.session == b.session, "process %d: pid %d group %d session %d became %d %d %d", i,
              a.pid, a.group, a.session, b.pid, b.group, b.session);
        CHECK(a.parent == b.parent || (i < 4 && b.parent == 1), "process %d: parent %d became %d", i, a.parent, b.parent);
    }
    fidelity_pass();
}
