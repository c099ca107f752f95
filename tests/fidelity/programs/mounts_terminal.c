/*
 * A terminal whose node is mounted over a file, as sandboxes have their /dev/console: with the flags of its own, in the namespace and in a copy of it, and
 * beside a device that is mounted like it.
 */
#include "mounts.h"

#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <termios.h>

#define HERE "/tmp/fidelity-console"
#define CONSOLE HERE "/console"

static int open_pair(int *slave, char *name, size_t size)
{
    int number, off = 0, master = MUST(open("/dev/ptmx", O_RDWR | O_NOCTTY));
    MUST(ioctl(master, TIOCSPTLCK, &off));
    MUST(ioctl(master, TIOCGPTN, &number));
    snprintf(name, size, "/dev/pts/%d", number);
    *slave = MUST(open(name, O_RDWR | O_NOCTTY));
    struct termios settings;
    MUST(tcgetattr(*slave, &settings));
    cfmakeraw(&settings);
    MUST(tcsetattr(*slave, TCSANOW, &settings));
    return master;
}

static void check_console(int master, const char *text, const char *where)
{
    char got[16] = "";
    int console = open(CONSOLE, O_RDWR | O_NOCTTY);
    CHECK(console >= 0, "%s: the console cannot be opened: %s", where, strerror(errno));
    CHECK(write(console, text, 4) == 4 && read(master, got, sizeof got) == 4 && memcmp(got, text, 4) == 0, "%s: the terminal says '%s'", where, got);
    close(console);
}

int main(void)
{
    char name[32];
    int slave, held[2];
    struct stat st;
    int master = open_pair(&slave, name, sizeof name);
    enter_namespaces(0);
    MUST(mkdir(HERE, 0755));
    make_file(CONSOLE, "", 0600);
    make_file(HERE "/null", "", 0600);
    MUST(mount(name, CONSOLE, NULL, MS_BIND, NULL));
    MUST(mount(NULL, CONSOLE, NULL, MS_BIND | MS_REMOUNT | MS_NOEXEC | MS_NOSUID | MS_RDONLY, NULL));
    MUST(mount("/dev/null", HERE "/null", NULL, MS_BIND, NULL));
    MUST(pipe(held));
    pid_t copy = fidelity_fork();
    if (copy == 0) {
        char byte;
        MUST(unshare(CLONE_NEWNS));
        fidelity_write("copied", "yes");
        close(held[1]);
        CHECK(read(held[0], &byte, 1) == 1, "it is told to end");
        check_console(master, "copy", "in a copy of the namespace");
        _exit(0);
    }
    while (access(FIDELITY_DIRECTORY "mounts_terminal.copied", F_OK) < 0)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    char *before = describe_mounts();
    fidelity_ready();
    fidelity_await_go();
    char *after = describe_mounts();
    CHECK(strcmp(before, after) == 0, "the mounts differ:\n%s\n%s", before, after);
    MUST(stat(CONSOLE, &st));
    CHECK(S_ISCHR(st.st_mode) && major(st.st_rdev) == 136, "the console is %o, device %lx", st.st_mode, (long)st.st_rdev);
    check_console(master, "here", "in the namespace");
    MUST(stat(HERE "/null", &st));
    CHECK(S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3), "the other device is %o", st.st_mode);
    MUST((int)write(held[1], "e", 1));
    fidelity_expect_exit(copy, 0);
    MUST(umount(CONSOLE));
    CHECK(stat(CONSOLE, &st) == 0 && S_ISREG(st.st_mode), "what is below the console is no file");
    fidelity_pass();
}
