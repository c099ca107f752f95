/* A child stopped by job control stays stopped in source and branch, and goes on when it is continued. */
#include "fidelity.h"

#include <sys/mman.h>

int main(void)
{
    volatile int *counter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(counter != MAP_FAILED, "mmap: %s", strerror(errno));
    pid_t child = fidelity_fork();
    if (child == 0) {
        for (;;) {
            ++*counter;
            fidelity_sleep_ms(5);
        }
    }
    while (*counter < 3)
        fidelity_sleep_ms(5);
    MUST(kill(child, SIGSTOP));
    int status;
    MUST(waitpid(child, &status, WUNTRACED));
    CHECK(WIFSTOPPED(status), "the child did not stop: %#x", status);
    int stopped_at = *counter;
    fidelity_ready();
    fidelity_await_go();

    fidelity_sleep_ms(100);
    CHECK(*counter == stopped_at, "the stopped child counted on from %d to %d", stopped_at, *counter);
    MUST(kill(child, SIGCONT));
    for (int i = 0; i < 4000 && *counter == stopped_at; i++)
        fidelity_sleep_ms(5);
    CHECK(*counter > stopped_at, "the child does not go on after SIGCONT");
    MUST(kill(child, SIGKILL));
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "the child cannot be ended");
    fidelity_pass();
}
