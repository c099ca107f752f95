/*
 * A process that has as many descriptors as its limit allows, and attributes that are set by way of /proc: nothing can be opened any more, and what is
 * open must not be taken for what could not.
 */
#include "fidelity.h"

#include <sys/resource.h>

#define MOST 64

static volatile int *full;

static int set_by_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC), written = fd < 0 ? -1 : (int)write(fd, text, strlen(text));
    close(fd);
    return written;
}

static void fill(void)
{
    for (int fd = 0; fd < MOST; fd++)
        close(fd);
    int input = MUST(open(FIDELITY_DIRECTORY "full_table.input", O_RDWR | O_CREAT | O_TRUNC, 0600));
    MUST((int)write(input, "input", 5));
    MUST(lseek(input, 1, SEEK_SET));
    CHECK(input == 0, "standard input is descriptor %d", input);
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ MOST, MOST }));
    while (dup(0) >= 0)
        ;
    CHECK(errno == EMFILE, "the table is not full: %s", strerror(errno));
}

static void check(const char *login)
{
    struct rlimit limit;
    struct stat st;
    for (int fd = 1; fd < MOST; fd++)
        MUST(close(fd));
    MUST(fstat(0, &st));
    CHECK(st.st_size == 5 && lseek(0, 0, SEEK_CUR) == 1, "standard input has %ld bytes and stands at %ld", (long)st.st_size, (long)lseek(0, 0, SEEK_CUR));
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    CHECK(limit.rlim_cur == MOST && limit.rlim_max == MOST, "the limit is %lu", (unsigned long)limit.rlim_cur);
    CHECK(atoi(fidelity_file("/proc/self/oom_score_adj")) == 400, "the OOM score is %s", fidelity_file("/proc/self/oom_score_adj"));
    CHECK(!*login || strcmp(fidelity_file("/proc/self/loginuid"), login) == 0, "the login id %s became %s", login, fidelity_file("/proc/self/loginuid"));
}

int main(void)
{
    char login[32] = "";
    full = MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t child = fidelity_fork();
    if (child == 0) {
        MUST(set_by_file("/proc/self/oom_score_adj", "400"));
        if (set_by_file("/proc/self/loginuid", "4321") > 0)
            snprintf(login, sizeof login, "%s", fidelity_file("/proc/self/loginuid"));
        fill();
        *full = 1;
        fidelity_await_go();
        check(login);
        _exit(0);
    }
    while (!*full && waitpid(child, NULL, WNOHANG) == 0)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    fidelity_ready();
    int status;
    MUST(waitpid(child, &status, 0));
    if (status == 0)
        fidelity_pass();
}
