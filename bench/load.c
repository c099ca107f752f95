/* The workload of the benchmarks: N processes with a few dirty pages each, and one dirty region of a given size.
 *
 *   load run PROCESSES DIRTY_BYTES READY_FILE   start, write READY_FILE, run for ever
 *   load touch BYTES                            write to that much memory, print the milliseconds, exit
 *
 * READY_FILE gets one line, "PROCESSES MILLISECONDS": how long the program took from its first instruction to this state.
 * Statically linked, so that the same file runs in any root.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SMALL_PAGES = 64, WARM_STRIDE = 4096 };

/* Awake 4 times a second: 100 processes then cost about 1 % of a CPU, and every fork still meets sleepers with a pending timer. */
static const struct timespec TICK = {.tv_sec = 0, .tv_nsec = 250 * 1000 * 1000};

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint8_t *anonymous(size_t bytes)
{
	uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	return memory;
}

/* Fill with numbers that never repeat: a copier can leave nothing out as zero or as the same page again. */
static void dirty(uint8_t *memory, size_t bytes, uint64_t seed)
{
	uint64_t value = seed * 0x9e3779b97f4a7c15ull + 1;

	for (size_t at = 0; at + sizeof(value) <= bytes; at += sizeof(value)) {
		value ^= value << 13;
		value ^= value >> 7;
		value ^= value << 17;
		memcpy(memory + at, &value, sizeof(value));
	}
}

static void live(uint8_t *memory)
{
	volatile uint64_t *counter = (volatile uint64_t *)memory;

	for (;;) {
		++*counter;
		nanosleep(&TICK, NULL);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}

/* One byte from each child says that it has dirtied its pages. */
static void start_children(long count, int *ready)
{
	if (pipe(ready))
		fail("pipe");
	for (long index = 1; index <= count; index++) {
		pid_t pid = fork();

		if (pid < 0)
			fail("fork");
		if (pid == 0) {
			uint8_t *memory = anonymous(SMALL_PAGES * PAGE);

			dirty(memory, SMALL_PAGES * PAGE, (uint64_t)index);
			if (write(ready[1], "r", 1) != 1)
				fail("write");
			close(ready[0]);
			close(ready[1]);
			live(memory);
		}
	}
	close(ready[1]);
	for (long index = 0; index < count; index++) {
		char byte;

		if (read(ready[0], &byte, 1) != 1)
			fail("a child ended early");
	}
	close(ready[0]);
}

static void report(const char *path, long processes, double milliseconds)
{
	char text[64];
	int length = snprintf(text, sizeof(text), "%ld %.3f\n", processes, milliseconds);
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (file < 0 || write(file, text, (size_t)length) != length)
		fail(path);
	close(file);
}

static void run(long processes, size_t bytes, const char *ready_file)
{
	double began = now_ms();
	int ready[2];
	uint8_t *memory;

	/* Children first: they must not inherit the large region. */
	start_children(processes - 1, ready);
	memory = anonymous(bytes + SMALL_PAGES * PAGE);
	dirty(memory, bytes + SMALL_PAGES * PAGE, 0);
	report(ready_file, processes, now_ms() - began);
	live(memory);
}

static void touch(size_t bytes)
{
	double began = now_ms();
	volatile uint8_t *memory = anonymous(bytes);

	for (size_t at = 0; at < bytes; at += WARM_STRIDE)
		memory[at] = 1;
	printf("%.3f\n", now_ms() - began);
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "run") && atol(argv[2]) > 0) {
		run(atol(argv[2]), strtoull(argv[3], NULL, 10), argv[4]);
	} else if (argc == 3 && !strcmp(argv[1], "touch")) {
		touch(strtoull(argv[2], NULL, 10));
		return 0;
	}
	fprintf(stderr, "usage: load run PROCESSES DIRTY_BYTES READY_FILE | load touch BYTES\n");
	return 2;
}
