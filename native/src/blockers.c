#include "blockers.h"
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_known(const struct blockers *blockers, const char *message)
{
    for (int i = 0; i < blockers->count; i++)
        if (strcmp(blockers->items[i].message, message) == 0)
            return true;
    return false;
}

/* A command's name may hold "; " itself: look behind the label, where the message begins with it. */
static const char *remedy_of(const char *message, const char *label)
{
    size_t length = label ? strlen(label) : 0;
    const char *rest = length && strncmp(message, label, length) == 0 ? message + length : message;
    const char *at = strstr(rest, "; ");
    return at ? at + 2 : "";
}

void blockers_add(struct blockers *blockers, const struct process *process, int fd, const char *text)
{
    AUTO_FREE char *message = must_copy_string(text);
    make_printable(message);
    if (blockers->count == MAX_BLOCKERS) {
        blockers->omitted++;
        return;
    }
    if (is_known(blockers, message))
        return;
    blockers->items = must_grow(blockers->items, (size_t)(blockers->count + 1) * sizeof *blockers->items);
    struct blocker *blocker = &blockers->items[blockers->count++];
    *blocker = (struct blocker){ .fd = fd, .message = must_copy_string(message) };
    if (process) {
        blocker->pid = process->ns_pid;
        process_command(process, blocker->command, sizeof blocker->command);
    }
    blocker->remedy = remedy_of(blocker->message, process ? process_label(process) : NULL);
}

static const char *number_or_null(char *text, size_t size, int value, bool given)
{
    snprintf(text, size, "%d", value);
    return given ? text : "null";
}

char *blocker_json(const struct blocker *blocker)
{
    AUTO_FREE char *command = json_string(blocker->command);
    AUTO_FREE char *message = json_string(blocker->message);
    AUTO_FREE char *remedy = json_string(blocker->remedy);
    char pid[16], fd[16], *text = NULL;
    if (asprintf(&text, "{\"pid\":%s,\"command\":%s,\"fd\":%s,\"message\":%s,\"remedy\":%s}",
                 number_or_null(pid, sizeof pid, blocker->pid, blocker->pid > 0), blocker->command[0] ? command : "null",
                 number_or_null(fd, sizeof fd, blocker->fd, blocker->fd >= 0), message, remedy) < 0)
        return must_copy_string("{}");
    return text;
}

void blockers_free(struct blockers *blockers)
{
    for (int i = 0; i < blockers->count; i++)
        free(blockers->items[i].message);
    free(blockers->items);
    *blockers = (struct blockers){ 0 };
}
