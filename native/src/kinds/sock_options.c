#include "sock_options.h"
#include "../descriptors.h"
#include "../doubt.h"

#include <errno.h>
#include <linux/filter.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_FILTER 4096         /* BPF_MAXINSNS */

/* The values of a fresh socket, one set for each kind of socket seen. Read once: a fork meets a dozen kinds. */
struct defaults {
    int domain, type, protocol;
    const struct option_name *names;
    struct socket_option *values;
    struct defaults *next;
};
static struct defaults *known;

static int name_count(const struct option_name *names)
{
    int count = 0;
    while (names[count].size)
        count++;
    return count;
}

#define HAS_NO_SUCH_OPTION \
    ANSWERS(ENOPROTOOPT, EOPNOTSUPP, EINVAL, ENOTCONN, ENOENT, ENODEV, ENODATA, EADDRNOTAVAIL, EISCONN, EACCES, ERANGE, EBUSY, ENOSYS)

/* size becomes 0 where the socket does not have the option. */
static void read_option(int fd, const struct option_name *name, struct socket_option *value, const char *who)
{
    *value = (struct socket_option){ .level = name->level, .name = name->name };
    socklen_t size = name->size;
    if (getsockopt(fd, name->level, name->name, value->value, &size) == 0)
        value->size = size;
    else
        doubt(HAS_NO_SUCH_OPTION, "%s: cannot read its option %d of level %d", who, name->name, name->level);
}

static const struct socket_option *default_values(const struct option_name *names, int domain, int type, int protocol, struct error *err)
{
    for (struct defaults *set = known; set; set = set->next)
        if (set->domain == domain && set->type == type && set->protocol == protocol && set->names == names)
            return set->values;
    AUTO_CLOSE int fd = socket(domain, type | SOCK_CLOEXEC, protocol);
    /* The host may not allow what the workspace does (ICMP sockets, multipath TCP); the family's usual socket has the same defaults. */
    if (fd < 0)
        fd = socket(domain, type | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        fail_errno(err, "cannot make a socket of family %d, type %d, protocol %d to compare with", domain, type, protocol);
        return NULL;
    }
    struct defaults *set = must_alloc(sizeof *set);
    *set = (struct defaults){ domain, type, protocol, names, must_alloc((size_t)name_count(names) * sizeof *set->values), known };
    for (int i = 0; i < name_count(names); i++)
        read_option(fd, &names[i], &set->values[i], "a fresh socket");
    known = set;
    return set->values;
}

static int count_filter(const struct description *description, socklen_t *count, struct error *err)
{
    *count = 0;
    if (getsockopt(description->local, SOL_SOCKET, SO_GET_FILTER, NULL, count) == 0)
        return 0;
    if (errno != EACCES) {
        doubt(HAS_NO_SUCH_OPTION, "%s: cannot tell whether it has a packet filter", description_label(description));
        return 0;
    }
    return fail(err, "unsupported", "%s has an eBPF program attached, which cannot be read back; end the program that uses it",
                description_label(description));
}

int socket_check_filter(const struct description *description, struct error *err)
{
    socklen_t count;
    return count_filter(description, &count, err);
}

static int read_filter(struct socket_options *options, const struct description *description, struct error *err)
{
    socklen_t count;
    if (count_filter(description, &count, err) < 0)
        return -1;
    if (count == 0)
        return 0;
    if (count > MAX_FILTER)
        return fail(err, "limit", "%s has a packet filter of %u instructions", description_label(description), count);
    options->filter = must_alloc(count * sizeof(struct sock_filter));
    if (getsockopt(description->local, SOL_SOCKET, SO_GET_FILTER, options->filter, &count) < 0)
        return fail_errno(err, "%s: cannot read its packet filter", description_label(description));
    options->filter_count = (int)count;
    return 0;
}

int socket_options_read(struct socket_options *options, const struct description *description, const struct option_name *names, int domain,
                        int type, int protocol, struct error *err)
{
    const struct socket_option *fresh = default_values(names, domain, type, protocol, err);
    if (!fresh)
        return -1;
    int count = name_count(names);
    for (int i = 0; i < count; i++) {
        struct socket_option value;
        if (fresh[i].size == 0 && !names[i].size_varies)
            continue;           /* not an option of this family */
        read_option(description->local, &names[i], &value, description_label(description));
        if (value.level == SOL_SOCKET && value.name == SO_SNDBUF)
            memcpy(&options->send_buffer, value.value, sizeof(int));
        if (value.level == SOL_SOCKET && value.name == SO_RCVBUF)
            memcpy(&options->receive_buffer, value.value, sizeof(int));
        if (value.size == 0 || (value.size == fresh[i].size && memcmp(value.value, fresh[i].value, value.size) == 0))
            continue;
        options->list = must_grow(options->list, (size_t)(options->count + 1) * sizeof *options->list);
        options->list[options->count++] = value;
    }
    return read_filter(options, description, err);
}

const struct socket_option *socket_options_find(const struct socket_options *options, int level, int name)
{
    for (int i = 0; i < options->count; i++)
        if (options->list[i].level == level && options->list[i].name == name)
            return &options->list[i];
    return NULL;
}

void socket_option_emit(struct batch *batch, uint64_t fd, int level, int name, const void *value, uint32_t size, const char *what)
{
    EMIT(batch, what, SYS_setsockopt, fd, (uint64_t)level, (uint64_t)name, plan_data(batch->plan, value, size), size);
}

/* Sizes are read back doubled, and only the FORCE variants ignore the sysctl limits of the branch. */
void socket_option_put(struct batch *batch, uint64_t fd, const struct socket_option *option, const char *what)
{
    if (option->level != SOL_SOCKET || (option->name != SO_SNDBUF && option->name != SO_RCVBUF)) {
        socket_option_emit(batch, fd, option->level, option->name, option->value, option->size, what);
        return;
    }
    int size;
    memcpy(&size, option->value, sizeof size);
    size /= 2;
    socket_option_emit(batch, fd, SOL_SOCKET, option->name == SO_SNDBUF ? SO_SNDBUFFORCE : SO_RCVBUFFORCE, &size, sizeof size, what);
}

void socket_options_emit(struct batch *batch, const struct socket_options *options, uint64_t fd, const char *what)
{
    for (int i = 0; i < options->count; i++)
        socket_option_put(batch, fd, &options->list[i], what);
    socket_options_emit_filter(batch, options, fd, what);
}

void socket_options_emit_filter(struct batch *batch, const struct socket_options *options, uint64_t fd, const char *what)
{
    if (options->filter_count) {
        struct plan *plan = batch->plan;
        struct sock_fprog program = { .len = (unsigned short)options->filter_count };
        size_t size = (size_t)options->filter_count * sizeof(struct sock_filter);
        program.filter = (struct sock_filter *)plan_data(plan, options->filter, size);
        socket_option_emit(batch, fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program, what);
    }
}

void socket_options_emit_deaf(struct batch *batch, uint64_t fd, const char *what)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = { .len = 1, .filter = (struct sock_filter *)plan_data(batch->plan, &nothing, sizeof nothing) };
    socket_option_emit(batch, fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program, what);
}

void socket_options_emit_undeaf(struct batch *batch, uint64_t fd, const char *what)
{
    int none = 0;
    socket_option_emit(batch, fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none, what);
}

int socket_number(int fd, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    if (getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0)
        return value;
    doubt(ANSWERS(EBADF, ENOTSOCK, ENOPROTOOPT, EOPNOTSUPP, EINVAL), "cannot read the option %d of a socket of the workspace", name);     /* EBADF: O_PATH */
    return -1;
}
