/* Start a program as pid 1 of its own pid, mount, network, ipc and uts namespaces with a given directory as its root.
 *
 *   contain ROOT PROGRAM [ARGUMENT …]
 *
 * Prints the program's pid on the host and exits; the program lives on. ROOT must hold /proc and /dev/null. This is the workload's home for
 * the CRIU comparison: CRIU wants every descriptor opened inside and nothing of the host's mounts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

static void must(int result, const char *what)
{
	if (result < 0) {
		perror(what);
		_exit(1);
	}
}

static void enter(const char *root)
{
	must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
	must(mount(root, root, NULL, MS_BIND, NULL), root);
	must(chdir(root), root);
	must((int)syscall(SYS_pivot_root, ".", "."), "pivot_root");
	must(umount2(".", MNT_DETACH), "leave the old root");
	must(chdir("/"), "/");
	must(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "/proc");
}

static void own_stdio(void)
{
	int null = open("/dev/null", O_RDWR);

	must(null, "/dev/null");
	for (int number = 0; number < 3; number++)
		must(dup2(null, number), "dup2");
	must(close_range(3, ~0U, 0), "close_range");
}

int main(int argc, char **argv)
{
	int flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
	long pid;

	if (argc < 3) {
		fprintf(stderr, "usage: contain ROOT PROGRAM [ARGUMENT …]\n");
		return 2;
	}
	pid = syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, 0);
	must((int)pid, "clone");
	if (pid == 0) {
		enter(argv[1]);
		must(setsid(), "setsid");
		own_stdio();
		execv(argv[2], argv + 2);
		_exit(127);
	}
	printf("%ld\n", pid);
	return 0;
}
