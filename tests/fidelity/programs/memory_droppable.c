/* Memory that the kernel may drop (MAP_DROPPABLE), where the libc keeps the state of its random generator: a branch never gets the source's. */
#include "memory.h"

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif

int main(void)
{
    char *area = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {   /* a kernel older than 6.11 */
        fidelity_ready();
        fidelity_await_go();
        fidelity_pass();
    }
    strcpy(area, "state of a generator");
    strcpy(area + 3 * PAGE, "state of a generator");
    struct expected expected[] = { expect_unchanged("droppable", area) };
    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, 1);
    if (fidelity_in_branch())
        CHECK(area[0] == 0 && area[3 * PAGE] == 0, "the branch has the source's state");
    strcpy(area, "new");
    CHECK(strcmp(area, "new") == 0 || area[0] == 0, "it cannot be used");
    fidelity_pass();
}
