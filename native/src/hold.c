/*
 * The v2 freezer acts on a thread at the end of its stop, before it goes back to its program; v1's does not let a tracer in. The v2 tree is there on every
 * host, and the engine gives each workspace a group in it. Pauses (engine/cgroups.py) are held by the group above, so the two never meet.
 */
#include "hold.h"
#include "cgroup_tree.h"
#include "cgroups.h"

#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

static int open_switch(pid_t first)
{
    struct stat st;
    struct error ignored = { 0 };
    int back = cgroups_enter(first, &ignored);
    if (back < 0)
        return -1;
    AUTO_CLOSE int base = cgroup_mount("");
    cgroups_leave(back);
    if (base < 0 || fstat(base, &st) < 0 || st.st_ino == CGROUP_ROOT_INODE)
        return -1;
    return cgroup_open(base, "cgroup.freeze", O_RDWR);
}

static bool is_held(int file)
{
    char state;
    return pread(file, &state, 1, 0) == 1 && state == '1';
}

int hold_begin(pid_t first)
{
    AUTO_CLOSE int file = open_switch(first);
    return file >= 0 && !is_held(file) && pwrite(file, "1", 1, 0) == 1 ? 0 : -1;
}

void hold_end(pid_t first)
{
    AUTO_CLOSE int file = open_switch(first);
    if (file >= 0 && is_held(file) && pwrite(file, "0", 1, 0) < 0)
        return;                 /* the group has gone */
}
