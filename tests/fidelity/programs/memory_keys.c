/* Protection keys: which are allocated, the key of a mapping, and what each thread may do with it. Nothing is checked on processors without them. */
#include "memory.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

static __thread sigjmp_buf back;

static void on_fault(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static bool can_read(const volatile char *address)
{
    if (sigsetjmp(back, 1))
        return false;
    (void)*address;
    return true;
}

static char *keyed;
static int key;
static volatile bool thread_may_read;

static void *other_thread(void *unused)
{
    MUST(pkey_set(key, 0));
    fidelity_await_go();
    thread_may_read = can_read(keyed);
    return unused;
}

int main(void)
{
    int first = pkey_alloc(0, 0);
    if (first < 0) {
        fidelity_ready();
        fidelity_await_go();
        fidelity_pass();
    }
    key = MUST(pkey_alloc(0, PKEY_DISABLE_ACCESS));
    int third = MUST(pkey_alloc(0, 0));
    MUST(pkey_free(first));
    keyed = apart(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    char *readonly = apart(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE), *executable = apart(PAGE, PROT_EXEC, MAP_PRIVATE);
    strcpy(keyed, "keyed");
    strcpy(readonly, "third");
    MUST(pkey_mprotect(keyed, 4 * PAGE, PROT_READ | PROT_WRITE, key));
    MUST(pkey_mprotect(readonly, 4 * PAGE, PROT_READ, third));
    struct sigaction action = { .sa_handler = on_fault };
    MUST(sigaction(SIGSEGV, &action, NULL));
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, other_thread, NULL));
    struct expected expected[] = { expect_unchanged("no access", keyed), expect_unchanged("read-only", readonly),
                                   expect_unchanged("execute-only", executable) };

    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, 3);
    CHECK(pkey_get(key) == PKEY_DISABLE_ACCESS, "rights of key %d: %d", key, pkey_get(key));
    CHECK(!can_read(keyed) && !can_read(executable) && strcmp(readonly, "third") == 0, "what may be read");
    pthread_join(thread, NULL);
    CHECK(thread_may_read, "the other thread may not read any more");
    CHECK(pkey_alloc(0, 0) >= 0, "no key is free");
    MUST(pkey_set(key, 0));
    CHECK(can_read(keyed), "the key gives no access");
    CHECK(pkey_free(third) == 0 && pkey_free(third) < 0, "key %d was not allocated", third);
    fidelity_pass();
}
