/*
 * Which process id comes next. Only somebody who lives in a pid namespace is told: the workspace's first process is asked. In a branch no id that a
 * process had which has ended may be another's at once: somebody may still have it, in a pid file or in a variable of a shell.
 */
#include "parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define TEXT 64
/* For what is made in a branch and takes any id; above them the count starts anew. */
#define ROOM 4096

struct answer {
    int read;                   /* op */
    uint64_t text;
};

struct next_pid_memo {
    struct answer load, most;
};

/* A file that cannot be opened is read as descriptor -1. */
static struct answer ask_file(struct query *query, const char *path)
{
    struct answer answer = { .text = query_reserve(query, TEXT) };
    uint64_t cell = query_data(query, &(int64_t){ -1 }, sizeof(int64_t)), name = query_data(query, path, strlen(path) + 1);
    query_op(query, (struct op){ .number = SYS_openat, .cell = cell, .arg = { (uint64_t)AT_FDCWD, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY } });
    answer.read = query_op(query, (struct op){ .number = SYS_read, .flags = OP_LOAD(0), .arg = { cell, answer.text, TEXT - 1 } });
    query_op(query, (struct op){ .number = SYS_close, .flags = OP_LOAD(0), .arg = { cell } });
    return answer;
}

/* The number after the last space: "0.12 0.20 0.18 3/80 4711", or the only one; 0 = there is none. */
static long last_number(const struct query *query, struct answer answer)
{
    int64_t length = query_result(query, answer.read);
    if (length <= 0 || length >= TEXT)
        return 0;
    char text[TEXT];
    memcpy(text, query_read(query, answer.text), (size_t)length);
    text[length] = '\0';
    const char *space = strrchr(text, ' ');
    return strtol(space ? space + 1 : text, NULL, 10);
}

static int next_pid_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    const struct process *process = query_thread(query)->process;
    if (!query_is_leader(query) || process->ns_pid != 1)
        return 0;
    struct next_pid_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->load = ask_file(query, "/proc/loadavg");
    mine->most = ask_file(query, "/proc/sys/kernel/pid_max");
    return 0;
}

static int next_pid_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    const struct next_pid_memo *mine = memo;
    if (!mine)
        return 0;
    long last = last_number(query, mine->load);
    if (last > 0 && last < last_number(query, mine->most) - ROOM)
        process_state(query_thread(query)->process)->last_pid = (int)last;
    return 0;
}

const struct part part_next_pid = { .name = "next process id", .ask = next_pid_ask, .collect = next_pid_collect };
