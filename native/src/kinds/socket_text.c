#include "socket_text.h"
#include "sock_diag.h"
#include "../doubt.h"
#include "../proc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

#define TEXT_LIMIT (16u << 20)
#define INODE_COLUMN 9          /* in every one of these tables */

struct table {
    const char *name;
    uint64_t namespace;
    char *text;
    unsigned long *inodes;
    struct byte_index lines;
    struct table *next;
};
static struct table *tables;

uint64_t socket_namespace(int fd)
{
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    if (getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size) < 0)
        doubt(ANSWERS(ENOPROTOOPT), "cannot tell the network namespace of a socket");
    return cookie;
}

static const char *column(const char *line, int number)
{
    for (;;) {
        line += strspn(line, " \t");
        if (number-- == 0)
            return line;
        line += strcspn(line, " \t\n");
    }
}

static void index_lines(struct table *table)
{
    size_t count = 0;
    for (const char *at = table->text; (at = strchr(at, '\n')); at++)
        count++;
    table->inodes = must_alloc((count + 1) * sizeof *table->inodes);
    count = 0;
    for (char *line = strchr(table->text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        unsigned long *inode = &table->inodes[count++];
        *inode = strtoul(column(line + 1, INODE_COLUMN), NULL, 10);
        byte_index_put(&table->lines, inode, sizeof *inode, line + 1);
    }
}

static struct table *table_of(const char *name, uint64_t namespace, const struct description *description)
{
    for (struct table *table = tables; table; table = table->next)
        if (table->namespace == namespace && strcmp(table->name, name) == 0)
            return table;
    struct error err = { 0 };
    struct table *table = must_alloc(sizeof *table);
    *table = (struct table){ .name = name, .namespace = namespace, .next = tables };
    table->text = proc_read(&err, TEXT_LIMIT, NULL, "/proc/%d/net/%s", description->holder->pid, name);
    if (table->text)
        index_lines(table);
    else
        doubt_error(&err);
    tables = table;
    return table;
}

const char *socket_text_line(const char *name, uint64_t namespace, const struct description *description)
{
    if (!description->holder)
        return NULL;
    unsigned long inode = (unsigned long)description->st.st_ino;
    return byte_index_find(&table_of(name, namespace, description)->lines, &inode, sizeof inode);
}
