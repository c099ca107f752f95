#include "control.h"
#include "freeze.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROOT_TIMEOUT_MS 30000

double control_ms(const struct control *control)
{
    return (double)(monotonic_ns() - control->started) / 1e6;
}

static void send_packet(const struct control *control, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void send_packet(const struct control *control, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0)
        return;
    /* If the engine is gone nobody reads the result; the fork itself then ends with an error when roots are missing. */
    if (control->socket >= 0)
        send(control->socket, text, (size_t)length, MSG_NOSIGNAL);
    else
        printf("%s\n", text);
    free(text);
}

/* Length of the UTF-8 sequence at `at`, 0 when there is none. */
static int sequence_length(const unsigned char *at)
{
    int length = *at >= 0xf0 && *at < 0xf5 ? 4 : *at >= 0xe0 ? 3 : *at >= 0xc2 ? 2 : 0;
    if (*at >= 0xf5 || length == 0)
        return 0;
    for (int i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    /* overlong forms, surrogates, and what lies beyond Unicode */
    if ((*at == 0xe0 && at[1] < 0xa0) || (*at == 0xed && at[1] > 0x9f) || (*at == 0xf0 && at[1] < 0x90) || (*at == 0xf4 && at[1] > 0x8f))
        return 0;
    return length;
}

char *json_string(const char *text)
{
    char *quoted = must_alloc(strlen(text) * 6 + 3), *to = quoted;
    *to++ = '"';
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        int length = *at >= 0x80 ? sequence_length(at) : 0;
        if (length) {
            memcpy(to, at, (size_t)length);
            to += length;
            at += length - 1;
        } else if (*at == '"' || *at == '\\') {
            *to++ = '\\', *to++ = (char)*at;
        } else if (*at < 0x20 || *at >= 0x7f) {         /* bytes of unknown encoding: as Latin-1 */
            to += sprintf(to, "\\u%04x", *at);
        } else {
            *to++ = (char)*at;
        }
    }
    *to++ = '"';
    *to = 0;
    return quoted;
}

/* For tests that kill this program exactly between two phases. */
static void stop_if_asked(const char *name)
{
    const char *wanted = getenv("TCLONE_LIVEFORK_STOP_AT");
    if (wanted && strcmp(wanted, name) == 0)
        raise(SIGSTOP);
}

void control_phase(const struct control *control, const char *name, double *ms)
{
    *ms = control_ms(control);
    send_packet(control, "{\"event\":\"phase\",\"name\":\"%s\",\"ms\":%.3f}", name, *ms);
    stop_if_asked(name);
}

void control_branch(const struct control *control, const struct branch *branch)
{
    AUTO_FREE char *id = json_string(branch->id);
    if (!branch->err.code) {
        send_packet(control, "{\"event\":\"branch\",\"id\":%s,\"error\":null}", id);
        return;
    }
    AUTO_FREE char *message = json_string(branch->err.message);
    send_packet(control, "{\"event\":\"branch\",\"id\":%s,\"error\":%s,\"code\":\"%s\"}", id, message, branch->err.code);
}

void control_error(const struct control *control, const struct error *err)
{
    AUTO_FREE char *message = json_string(err->message);
    send_packet(control, "{\"event\":\"error\",\"code\":\"%s\",\"message\":%s}", err->code ? err->code : "internal", message);
}

void control_blocker(const struct control *control, const struct blocker *blocker)
{
    AUTO_FREE char *text = blocker_json(blocker);
    send_packet(control, "{\"event\":\"blocker\",\"blocker\":%s}", text);
}

void control_done(const struct control *control, const struct phase_times *times, int processes, int threads, int64_t bytes)
{
    send_packet(control,
                "{\"event\":\"done\",\"mode\":\"copy\",\"processes\":%d,\"threads\":%d,\"bytes_copied\":%lld,\"ms\":{\"preflight\":%.3f,"
                "\"freeze\":%.3f,\"capture\":%.3f,\"compile\":%.3f,\"rebuild\":%.3f,\"copy\":%.3f,\"pause\":%.3f,\"release\":%.3f,\"probe\":%.3f,\"total\":%.3f}}",
                processes, threads, (long long)bytes, times->preflight, times->frozen - times->preflight, times->captured - times->frozen,
                times->compiled - times->captured, times->mapped - times->compiled, times->copied - times->mapped,
                times->resumed - times->preflight, times->rebuilt - times->resumed, times->usable - times->rebuilt,
                times->usable);
}

void control_learnt(const struct control *control, const char *facts, int fd)
{
    char text[2048];
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } buffer = { 0 };
    struct iovec io = { text, (size_t)snprintf(text, sizeof text, "{\"event\":\"learnt\",\"facts\":\"%s\"}", facts) };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1 };
    if (fd >= 0) {
        buffer.align = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd) };
        header.msg_control = &buffer;
        header.msg_controllen = sizeof buffer;
        memcpy(CMSG_DATA(&buffer.align), &fd, sizeof fd);
    }
    sendmsg(control->socket, &header, MSG_NOSIGNAL);
}

/* {"op":"root","branch":"ws-4"}: the sender is the engine, so the packet has exactly this form. */
static bool names_branch(const char *packet, const char *id)
{
    char wanted[160];
    snprintf(wanted, sizeof wanted, "\"%s\"", id);
    return strstr(packet, "\"root\"") && strstr(packet, wanted);
}

static int receive_packet(const struct control *control, char *text, size_t size, int *fd, struct error *err)
{
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } buffer;
    struct iovec io = { text, size - 1 };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &buffer, .msg_controllen = sizeof buffer };
    struct pollfd ready = { control->socket, POLLIN, 0 };
    if (poll(&ready, 1, ROOT_TIMEOUT_MS) <= 0)
        return fail(err, "internal", "the engine sent no root file system within %d s", ROOT_TIMEOUT_MS / 1000);
    ssize_t got = recvmsg(control->socket, &header, MSG_CMSG_CLOEXEC);
    if (got <= 0)
        return fail(err, "internal", "the engine went away");
    text[got] = 0;
    *fd = -1;
    struct cmsghdr *part = CMSG_FIRSTHDR(&header);
    if (part && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(part), sizeof *fd);
    return 0;
}

void control_drain(const struct control *control)
{
    struct error ignored = { 0 };
    char text[4096];
    int fd;
    struct pollfd ready = { control->socket, POLLIN, 0 };
    while (control->socket >= 0 && poll(&ready, 1, 0) > 0 && receive_packet(control, text, sizeof text, &fd, &ignored) == 0)
        close_fd(&fd);
}

int control_await_roots(const struct control *control, struct branch *branches, int count, struct error *err)
{
    for (;;) {
        int missing = 0;
        for (int i = 0; i < count; i++)
            missing += !branches[i].err.code && branches[i].root < 0;
        if (missing == 0)
            return 0;
        char text[4096];
        int fd;
        if (receive_packet(control, text, sizeof text, &fd, err) < 0)
            return -1;
        if (strstr(text, "\"abort\""))
            return fail(err, "internal", "the engine gave the fork up");
        for (int i = 0; i < count && fd >= 0; i++) {
            if (branches[i].root < 0 && names_branch(text, branches[i].id)) {
                branches[i].root = fd;
                fd = -1;
            }
        }
        close_fd(&fd);
    }
}
