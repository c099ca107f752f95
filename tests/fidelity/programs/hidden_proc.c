/* A sandbox that sees no /proc: what was written there before (what a core file holds, how readily the process is killed) is what it was. */
#include "mounts.h"

int main(void)
{
    char core[32], oom[32];
    put_text("/proc/self/oom_score_adj", "321");
    if (access("/proc/self/coredump_filter", W_OK) == 0)
        put_text("/proc/self/coredump_filter", "0x25");
    enter_namespaces(0);
    snprintf(oom, sizeof oom, "%s", fidelity_file("/proc/self/oom_score_adj"));
    snprintf(core, sizeof core, "%s", access("/proc/self/coredump_filter", R_OK) == 0 ? fidelity_file("/proc/self/coredump_filter") : "");
    MUST(mount("nothing", "/proc", "tmpfs", 0, NULL));
    CHECK(access("/proc/self", F_OK) < 0, "/proc can be seen");

    fidelity_ready();
    fidelity_await_go();

    CHECK(access("/proc/self", F_OK) < 0, "/proc can be seen");
    MUST(umount("/proc"));
    CHECK(strcmp(fidelity_file("/proc/self/oom_score_adj"), oom) == 0, "oom_score_adj is %s", fidelity_file("/proc/self/oom_score_adj"));
    if (*core)
        CHECK(strcmp(fidelity_file("/proc/self/coredump_filter"), core) == 0, "coredump_filter is %s", fidelity_file("/proc/self/coredump_filter"));
    fidelity_pass();
}
