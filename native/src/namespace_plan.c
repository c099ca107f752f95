#include "namespace_plan.h"
#include "files.h"
#include "kinds/sock_diag.h"
#include "namespace_contents.h"
#include "network.h"
#include "process_batch.h"

#include <errno.h>
#include <linux/sched.h>
#include <linux/sockios.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#define HELPER_PIDS 64          /* one a branch */
#define MAP_LINE 40             /* three numbers of ten digits */

_Static_assert(ARENA_PID_LEVELS == MAX_PID_LEVELS && ARENA_NAMESPACE_KINDS == NAMESPACE_KINDS, "arena.h knows these");
_Static_assert(NEST_USER == NAMESPACE_USER && NEST_PID == NAMESPACE_PID && NEST_MNT == NAMESPACE_MNT
               && NEST_TIME == NAMESPACE_TIME, "arena.h knows these");

static struct arena_ticket *tickets;
static uint32_t ticket_count;

int namespace_spare_pid(struct namespace *namespace)
{
    return ++namespace->highest_pid;
}

struct batch *plan_namespace(struct plan *plan, const struct namespace *namespace)
{
    return &plan->namespace_setup[namespace->index];
}

int namespace_plan_begin(struct plan *plan, int highest_pid, struct error *err)
{
    (void)err;
    struct namespaces *all = plan->world->namespaces;
    network_emit(&plan->mounts, all->list[NAMESPACE_NET], all);
    if (!all->nested)
        return 0;
    struct namespace *own = all->list[NAMESPACE_PID];
    if (own->highest_pid < highest_pid)
        own->highest_pid = highest_pid;
    plan->namespace_setup = must_alloc((size_t)all->count * sizeof *plan->namespace_setup);
    for (int i = 0; i < all->count; i++) {
        plan->namespace_setup[i].plan = plan;
        all->list[i]->aux = files_new_aux(plan->world);
        if (all->list[i]->nested)
            namespace_contents_emit(plan, all->list[i]);
    }
    return 0;
}

/* ---- the table ---- */

/* The map as the parent user namespace writes it. */
static uint64_t map_text(struct plan *plan, const struct namespace *user, bool group, struct error *err)
{
    const struct id_map *map = group ? &user->gids : &user->uids;
    size_t size = (size_t)map->count * MAP_LINE + 1, used = 0;
    AUTO_FREE char *text = must_alloc(size);
    for (int i = 0; i < map->count; i++) {
        uint32_t outside;
        if (!namespace_id_inside(user->parent, group, map->ranges[i].host, &outside)) {
            fail(err, "internal", "an id map of a nested user namespace names ids that its parent does not know");
            return 0;
        }
        used += (size_t)snprintf(text + used, size - used, "%u %u %u\n", map->ranges[i].inside, outside, map->ranges[i].count);
    }
    return plan_data(plan, text, used + 1);
}

/* Does a process make it for its children, without living there itself? */
static bool is_made_by_process(const struct world *world, const struct namespace *namespace)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->children_time == namespace)
            return true;
    return false;
}

static int place_user(struct plan *plan, const struct namespace *user, struct arena_namespace *entry, struct error *err)
{
    entry->setgroups_denied = user->setgroups_denied;
    if (!namespace_id_inside(user->parent, false, user->owner_uid, &entry->owner_uid))
        return fail(err, "unsupported", "a nested user namespace has an owner whom its parent does not know");
    entry->owner_gid = user->parent->gids.count ? user->parent->gids.ranges[0].inside : 0;
    entry->uid_map = map_text(plan, user, false, err);
    entry->gid_map = map_text(plan, user, true, err);
    return entry->uid_map && entry->gid_map ? 0 : -1;
}

int namespace_plan_place(struct plan *plan, struct arena_control *control, struct error *err)
{
    struct namespaces *all = plan->world->namespaces;
    if (!all->nested)
        return 0;
    AUTO_FREE struct arena_namespace *table = must_alloc((size_t)all->count * sizeof *table);
    for (int i = 0; i < all->count; i++) {
        const struct namespace *from = all->list[i];
        table[i] = (struct arena_namespace){
            .kind = from->kind, .flag = namespace_flag(from->kind), .nested = from->nested,
            .parent = from->parent ? from->parent->index : -1, .owner = from->owner ? from->owner->index : NAMESPACE_USER,
            .origin = from->origin ? from->origin->index : -1,
            .slot = (uint32_t)aux_slot(plan->world, from->aux),
            .setup = plan->namespace_setup[i].count ? batch_place(&plan->namespace_setup[i]) : 0,
        };
        if (from->nested && from->kind == NAMESPACE_TIME) {
            table[i].offsets = plan_string(plan, from->offsets);
            table[i].by_process = is_made_by_process(plan->world, from);
        }
        if (from->nested && from->kind == NAMESPACE_USER && place_user(plan, from, &table[i], err) < 0)
            return -1;
    }
    table[NAMESPACE_USER].owner = -1;
    control->namespaces = plan_data(plan, table, (size_t)all->count * sizeof *table);
    control->namespace_count = (uint32_t)all->count;
    control->service.ticket_count = ticket_count;
    control->service.tickets = plan_data(plan, tickets, ticket_count * sizeof *tickets);
    /* What takes any pid gets one above those of livefork's helpers. */
    control->last_pid = all->list[NAMESPACE_PID]->highest_pid + HELPER_PIDS + all->count;
    return 0;
}

/* ---- nests ---- */

int nest_numbers(struct namespace *where, const struct pid_numbers *numbers, int32_t pids[ARENA_PID_LEVELS])
{
    int count = where->level + 1;
    for (int i = 0; i < count; i++, where = where->parent)
        pids[i] = numbers && numbers->count == count ? numbers->at[count - 1 - i] : namespace_spare_pid(where);
    return count;
}

uint64_t nest_of_helper(struct plan *plan, struct namespace *where, const struct pid_numbers *numbers)
{
    struct arena_nest nest = { .children = -1, .children_time = -1 };
    nest.pid_count = nest_numbers(where, numbers, nest.pids);
    for (int kind = 0; kind < NAMESPACE_KINDS; kind++)
        nest.namespaces[kind] = kind == NAMESPACE_PID ? where->index : -1;
    return plan_data(plan, &nest, sizeof nest);
}

bool nest_before_parent(const struct process *child)
{
    const struct process *parent = child->parent;
    if (child->zombie || parent->zombie)
        return false;
    const struct namespace *user = parent->namespaces[NAMESPACE_USER];
    if (!namespace_contains(user, child->namespaces[NAMESPACE_USER]))
        return true;
    for (int kind = NAMESPACE_MNT; kind < NAMESPACE_KINDS; kind++) {
        const struct namespace *theirs = child->namespaces[kind];
        const struct namespace *owner = theirs->owner ? theirs->owner : child->world->namespaces->list[NAMESPACE_USER];
        const struct namespace *born = kind == NAMESPACE_TIME && parent->children_time ? parent->children_time : parent->namespaces[kind];
        if (theirs != born && !namespace_contains(user, owner))
            return true;
    }
    return false;
}

/* A child in another pid namespace may be in our process group, which it can only inherit. */
static int early_group(const struct process *process, struct error *err)
{
    struct world *world = process->world;
    int group = process->groups.at[process->groups.count - 1];
    for (int i = 0; i < world->process_count; i++) {
        const struct process *child = world->processes[i];
        if (child->parent != process || child->pids.count <= process->pids.count || child->groups.at[child->groups.count - 1] != 0)
            continue;
        if (child->ns_group != process->ns_group)
            return fail(err, "unsupported", "%s is the first of a pid namespace and in another process group than its parent, which cannot be forked",
                        process_label(child));
        if (group && group != inner_pid(process) && process->parent && process->parent->ns_group != process->ns_group)
            return group;
    }
    return 0;
}

/* Which user namespace a process is forked in. */
static const struct namespace *user_of_birth(const struct process *process)
{
    const struct process *parent = process->parent;
    return parent && !parent->zombie ? parent->namespaces[NAMESPACE_USER] : process->world->namespaces->list[NAMESPACE_USER];
}

static void plan_entry(struct plan *plan, const struct process *process, struct arena_nest *nest)
{
    const struct host_ids *ids = process->host_ids;
    const struct namespace *birth = user_of_birth(process);
    if (!ids || birth == process->namespaces[NAMESPACE_USER])
        return;
    struct batch directory = { .plan = plan };
    process_emit_working_directory(&directory, process);
    nest->directory = batch_place(&directory);
    nest->sets_ids = 1;
    for (int i = 0; i < 3; i++) {
        uint32_t inside;
        nest->uid[i] = namespace_id_inside(birth, false, ids->uid[i], &inside) ? (int32_t)inside : -1;
        nest->gid[i] = namespace_id_inside(birth, true, ids->gid[i], &inside) ? (int32_t)inside : -1;
    }
    if (birth->setgroups_denied)        /* they were inherited, and are again */
        return;
    nest->sets_groups = 1;
    AUTO_FREE uint32_t *groups = must_alloc((size_t)(ids->group_count + 1) * sizeof *groups);
    for (int i = 0; i < ids->group_count; i++)
        nest->group_count += namespace_id_inside(birth, true, ids->groups[i], &groups[nest->group_count]);
    nest->groups = plan_data(plan, groups, (size_t)nest->group_count * sizeof *groups);
}

static bool has_process(const struct world *world, const struct namespace *namespace)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->namespaces[NAMESPACE_PID] == namespace)
            return true;
    return false;
}

/* Where its next children go, if not where it lives itself. */
static void plan_children(const struct process *process, struct arena_nest *nest)
{
    struct namespace *children = process->children_namespace;
    nest->children = children ? children->index : -2;
    if (children && !has_process(process->world, children))
        nest->dead_count = nest_numbers(children, NULL, nest->dead_pids);
}

uint64_t nest_of_process(struct plan *plan, const struct process *process, struct error *err)
{
    struct arena_nest nest = { .children = -1, .children_time = process->children_time ? process->children_time->index : -1 };
    struct namespace *pid = process->namespaces[NAMESPACE_PID];
    nest.pid_count = nest_numbers(pid, &process->pids, nest.pids);
    for (int kind = 0; kind < NAMESPACE_KINDS; kind++)
        nest.namespaces[kind] = process->namespaces[kind] ? process->namespaces[kind]->index : -1;
    if (process->parent && pid->owner && inner_pid(process) == 1)
        nest.helper_count = nest_numbers(pid->parent, NULL, nest.helper_pids);
    if (!process->zombie && process->children_namespace != pid)
        plan_children(process, &nest);
    nest.early_group = early_group(process, err);
    if (nest.early_group < 0)
        return 0;
    plan_entry(plan, process, &nest);
    return plan_data(plan, &nest, sizeof nest);
}

/* ---- clones in a process's own batch ---- */

struct nest_clone nest_clone(struct batch *batch, const struct process *process, const struct pid_numbers *numbers, struct clone_args *args)
{
    struct plan *plan = batch->plan;
    struct nest_clone clone = { false };
    if (!plan->world->namespaces->nested)
        return clone;
    struct namespace *at = process->namespaces[NAMESPACE_PID];
    int32_t pids[ARENA_PID_LEVELS] = { 0 };
    int count = nest_numbers(at, numbers, pids), chosen = 0;
    const struct namespace *user = process->namespaces[NAMESPACE_USER];
    while (chosen < count && (!at->owner || namespace_contains(user, at->owner)) && !(user->nested && !at->owner)) {
        at = at->parent;
        chosen++;
    }
    args->set_tid = chosen ? plan_data(plan, pids, sizeof pids) : 0;
    args->set_tid_size = (uint64_t)chosen;
    if (chosen == count)
        return clone;
    struct arena_ticket ticket = { 0 };
    for (int i = chosen; i < count; i++, at = at->parent) {
        ticket.namespaces[ticket.count] = at->index;
        ticket.pids[ticket.count++] = pids[i];
    }
    tickets = must_grow(tickets, (size_t)(ticket_count + 1) * sizeof *tickets);
    tickets[ticket_count++] = ticket;
    EMIT(batch, "its turn to start a thread", OP_WAIT, plan->arena + offsetof(struct arena_control, service.ticket), ticket_count);
    clone.ticket = true;
    return clone;
}

void nest_clone_done(struct batch *batch, struct nest_clone clone)
{
    if (clone.ticket)
        EMIT(batch, "its turn to start a thread", OP_SIGNAL, batch->plan->arena + offsetof(struct arena_control, service.used));
}

/* ---- sockets ---- */

static void emit_setns(struct batch *batch, const struct namespace *net)
{
    EMIT(batch, "network namespace", SYS_setns, aux_slot(batch->plan->world, net->aux), namespace_flag(NAMESPACE_NET));
}

void namespace_enter_net(struct batch *batch, const struct namespace *net)
{
    if (net && net->nested)
        emit_setns(batch, net);
}

void namespace_leave_net(struct batch *batch, const struct namespace *net)
{
    if (net && net->nested)
        emit_setns(batch, batch->plan->world->namespaces->list[NAMESPACE_NET]);
}

/* The kernel's number of the workspace's own network namespace. */
static int own_net_cookie(const struct world *world, uint64_t *cookie, struct error *err)
{
    static uint64_t known;
    if (!known) {
        AUTO_CLOSE int fd = sock_diag_open(world->net_ns, err);
        socklen_t size = sizeof known;
        if (fd < 0)
            return -1;
        if (getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &known, &size) < 0)
            return fail_errno(err, "cannot tell the network namespace of the workspace");
    }
    *cookie = known;
    return 0;
}

static int find_net(struct world *world, int socket, bool or_own, const struct namespace **net, struct error *err)
{
    *net = NULL;
    uint64_t own = 0, cookie = 0;
    socklen_t size = sizeof cookie;
    if (own_net_cookie(world, &own, err) < 0)
        return -1;
    if (getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size) == 0 && cookie == own)
        return 0;
    AUTO_CLOSE int fd = ioctl(socket, SIOCGSKNS);
    if (fd < 0)
        return fail_errno(err, "cannot tell the network namespace of a socket");
    struct namespace *found = namespace_of_descriptor(world, fd, NAMESPACE_NET, err);
    if (!found)
        return -1;
    if (found->nested && !found->member && namespace_contents_read(world, found, err) < 0) {
        if (!or_own || strcmp(err->code, "unsupported") != 0)
            return -1;
        *err = (struct error){ 0 };
        return 0;
    }
    *net = found;
    return 0;
}

int namespace_of_socket(struct world *world, int socket, const struct namespace **net, struct error *err)
{
    return find_net(world, socket, false, net, err);
}

int namespace_of_unix_socket(struct world *world, int socket, const struct namespace **net, struct error *err)
{
    return find_net(world, socket, true, net, err);
}
