/* Two namespaces for the CRIU comparison.
 *
 *   contain run ROOT PROGRAM [ARGUMENT …]
 *     Start a program as pid 1 of its own pid, mount, network, ipc and uts namespaces with ROOT as its root; print its pid on the host
 *     and exit; the program lives on. ROOT must hold /proc and /dev/null. CRIU wants every descriptor opened inside and nothing of
 *     the host's mounts.
 *
 *   contain mounts RUN ROOT PROGRAM [ARGUMENT …]
 *     Become a program (criu) for which RUN is /run and ROOT a mount point. Its mount namespace ends with it: one that lasted would keep
 *     every mount of the host, an engine's pool and network namespaces among them, alive after they were unmounted.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
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

static void bind(const char *what, const char *where)
{
	must(mount(what, where, NULL, MS_BIND, NULL), where);
}

static void private_mounts(void)
{
	must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
}

static void enter(const char *root)
{
	private_mounts();
	bind(root, root);
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

static int run(const char *root, char **command)
{
	int flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
	long pid = syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, 0);

	must((int)pid, "clone");
	if (pid == 0) {
		enter(root);
		must(setsid(), "setsid");
		own_stdio();
		execv(command[0], command);
		_exit(127);
	}
	printf("%ld\n", pid);
	return 0;
}

static int mounts(const char *own_run, const char *root, char **command)
{
	must(unshare(CLONE_NEWNS), "unshare");
	private_mounts();
	bind(own_run, "/run");
	bind(root, root);
	execv(command[0], command);
	perror(command[0]);
	return 127;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && !strcmp(argv[1], "run"))
		return run(argv[2], argv + 3);
	if (argc >= 5 && !strcmp(argv[1], "mounts"))
		return mounts(argv[2], argv[3], argv + 4);
	fprintf(stderr, "usage: contain run ROOT PROGRAM [ARGUMENT …] | contain mounts RUN ROOT PROGRAM [ARGUMENT …]\n");
	return 2;
}
