/*
 * Batches carried out in C, with the same meaning as interp.S, while a process of a branch still is tclone-restore; and how its processes wait for
 * each other and tell of a failure.
 */
#include "restore.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

void raise_word(uint32_t *word)
{
    __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
    wake(word);
}

void await_word(uint32_t *word, uint32_t wanted)
{
    for (;;) {
        uint32_t value = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        if (value >= wanted)
            return;
        syscall(SYS_futex, word, FUTEX_WAIT, value, NULL, NULL, 0);
    }
}

/* Tell livefork what failed, and stay: it ends the branch. */
void __attribute__((noreturn, format(printf, 2, 3))) give_up(const struct op *op, const char *format, ...)
{
    int number = errno;
    if (control) {
        va_list args;
        va_start(args, format);
        size_t used = (size_t)vsnprintf(control->text, sizeof control->text, format, args);
        va_end(args);
        if (!op && used < sizeof control->text)
            snprintf(control->text + used, sizeof control->text - used, ": %s", strerror(number));
        control->fault.op = (uint64_t)op;
        control->fault.raised = 1;
        wake(&control->fault.raised);
    } else {
        char text[RESTORE_TEXT];
        va_list args;
        va_start(args, format);
        int used = vsnprintf(text, sizeof text, format, args);
        va_end(args);
        if (used < (int)sizeof text)
            used += snprintf(text + used, sizeof text - (size_t)used, ": %s", strerror(number));
        send(own_socket, text, used < (int)sizeof text ? (size_t)used : sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        _exit(1);
    }
    for (;;)
        pause();
}

long must(long result, const char *what)
{
    if (result < 0)
        give_up(NULL, "cannot %s", what);
    return result;
}

void await_maker(long child, const char *what)
{
    int status;
    must(waitpid((pid_t)child, &status, __WALL), what);
    errno = ECHILD;
    if (status)
        give_up(NULL, "cannot %s: its process ended with status %#x", what, (unsigned)status);
}

static uint64_t argument(const struct op *op, int index)
{
    uint64_t value = op->arg[index];
    if (op->flags & OP_LOAD(index))
        value = *(uint64_t *)value;
    if (op->flags & OP_LOAD32(index))
        value = (uint64_t)(int64_t) * (int32_t *)value;
    return value;
}

static void time_left(int64_t *left, int64_t deadline, int64_t unit, int64_t period, uint64_t *missed)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t nanoseconds = deadline - (now.tv_sec * 1000000000ll + now.tv_nsec);
    if (nanoseconds <= 0 && period) {
        *missed += (uint64_t)(-nanoseconds / period + 1);
        nanoseconds = period - -nanoseconds % period;
    }
    if (nanoseconds < unit)
        nanoseconds = unit;
    left[0] = nanoseconds / 1000000000ll;
    left[1] = nanoseconds % 1000000000ll / unit;
}

static int64_t execute(const struct op *op)
{
    uint64_t a[6];
    for (int i = 0; i < 6; i++)
        a[i] = argument(op, i);
    if (op->number == OP_EXPECT)
        return a[0] == a[1] ? (int64_t)a[0] : -EILSEQ;
    if (op->number == OP_SIGNAL)
        raise_word((uint32_t *)a[0]);
    if (op->number == OP_WAIT)
        await_word((uint32_t *)a[0], (uint32_t)a[1]);
    if (op->number == OP_TIME_LEFT)
        time_left((int64_t *)a[0], (int64_t)a[1], (int64_t)a[2], (int64_t)a[3], (uint64_t *)a[4]);
    if (op->number < 0)
        return 0;
    long result = syscall(op->number, a[0], a[1], a[2], a[3], a[4], a[5]);
    return result == -1 ? -errno : result;
}

static bool is_tolerated(const struct op *op)
{
    uint64_t error = (uint64_t)-op->result;
    return error < 128 && control->tolerated[op->flags >> 9 & (OP_TOLERANCES - 1)][error / 64] >> error % 64 & 1;
}

void run_batch(uint64_t address)
{
    for (struct op *op = (struct op *)address; op->number != OP_STOP; op++) {
        op->result = execute(op);
        if (op->result >= 0 || op->result < -4095) {
            if (op->cell)
                *(int64_t *)op->cell = op->result;
        } else if (!is_tolerated(op)) {
            give_up(op, "op failed");
        }
    }
}
