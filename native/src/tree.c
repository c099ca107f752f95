/*
 * A process inherits its session when it is forked and can leave it only by setsid. So a process is forked
 *   by its parent before or after the parent's own setsid, when that gives the right session;
 *   else (an orphan, whose parent now is pid 1 or a child subreaper) out of its session: by a short-lived step below the session's leader, or, when
 *   the leader has ended, below a stand-in with the leader's pid. When the step ends the kernel hands the process to the one that adopts, as it did
 *   in the source.
 */
#include "tree.h"
#include "namespace_plan.h"
#include "parts/parts.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct builder {
    struct plan *plan;
    struct world *world;
    struct tree_node *nodes;
    struct namespace **where;   /* of each node: its pid namespace */
    int count, capacity;
    int *leaders;               /* sessions whose leader ended: session id … */
    int *leader_nodes;          /* … and the stand-in's node */
    int *leader_adopters;       /* … and who adopts the members when the stand-in ends */
    int leader_count;
    int *before;                /* one a process: the session it must be in before it founds its own; 0 = any */
};

/* `where`, its pid namespace, only matters where some are nested. */
static int add_node(struct builder *builder, struct tree_node node, struct namespace *where)
{
    if (builder->count == builder->capacity) {
        builder->capacity = builder->capacity ? builder->capacity * 2 : 64;
        builder->nodes = must_grow(builder->nodes, (size_t)builder->capacity * sizeof node);
        builder->where = must_grow(builder->where, (size_t)builder->capacity * sizeof where);
    }
    node.first_child = node.next_sibling = -1;
    if (node.kind != NODE_PROCESS && node.kind != NODE_ZOMBIE)
        node.exit_signal = SIGCHLD;
    builder->nodes[builder->count] = node;
    builder->where[builder->count] = where;
    return builder->count++;
}

/* Children keep their order: the kernel lists them oldest first, and wait() finds them so. */
static void adopt(struct builder *builder, int parent, int child)
{
    int *link = &builder->nodes[parent].first_child;
    while (*link >= 0)
        link = &builder->nodes[*link].next_sibling;
    *link = child;
}

/*
 * A command that was started from outside (exec) is in its starter's session, which is 0 inside. Nobody in a branch can be in that session: the
 * topmost of such processes leads a new one there.
 */
static bool came_from_outside(const struct process *process)
{
    return process->ns_session == 0 && process->parent && process->parent->ns_session != 0;
}

static bool leads_session(const struct process *process)
{
    return process->ns_session == process->ns_pid || came_from_outside(process);
}

/* The group to join, 0 = the one it is forked into. */
static int group_to_join(const struct process *process)
{
    bool outside = process->ns_session == 0;
    bool inherits = process->parent && process->parent->ns_group == process->ns_group;
    if (came_from_outside(process) || (outside && inherits))
        return 0;
    return process->ns_group;
}

/* A session or group that lives further out than the process is unknown inside: its number there is 0. */
static struct pid_numbers known_numbers(const struct pid_numbers *numbers)
{
    struct pid_numbers known = *numbers;
    while (known.count > 1 && known.at[known.count - 1] == 0)
        known.count--;
    return known;
}

static struct namespace *where_known(const struct process *process, const struct pid_numbers *numbers)
{
    struct namespace *where = process->namespaces[NAMESPACE_PID];
    for (int level = process->pids.count; where && level > numbers->count; level--)
        where = where->parent;
    return where;
}

/* A node that stands for an id of `process` (its session, its group) whose owner has ended. */
static int add_stand_in(struct builder *builder, struct tree_node node, const struct process *process, const struct pid_numbers *numbers)
{
    struct pid_numbers known = known_numbers(numbers);
    struct namespace *where = where_known(process, &known);
    int index = add_node(builder, node, where);
    if (builder->world->namespaces->nested)
        builder->nodes[index].nest = nest_of_helper(builder->plan, where, &known);
    return index;
}

/* A process that forks others and ends; it has any pid. */
static int add_step(struct builder *builder, int below)
{
    struct namespace *where = builder->where[below];
    int step = add_node(builder, (struct tree_node){ .pid = 0, .kind = NODE_STEP }, where);
    if (builder->world->namespaces->nested)
        builder->nodes[step].nest = nest_of_helper(builder->plan, where, NULL);
    adopt(builder, below, step);
    return step;
}

/* Who becomes the parent of orphans in this pid namespace. */
static int first_of(const struct builder *builder, const struct namespace *where)
{
    for (int i = 0; i < builder->world->process_count; i++) {
        const struct process *process = builder->world->processes[i];
        if (process->namespaces[NAMESPACE_PID] == where && inner_pid(process) == 1)
            return i;
    }
    return 0;
}

#define WHOEVER (-1)

/* -1 when the members of a session would have to be adopted by different processes: it can be led only once. */
static int stand_in(struct builder *builder, const struct process *member, int adopter)
{
    int session = member->ns_session;
    for (int i = 0; i < builder->leader_count; i++)
        if (builder->leaders[i] == session)
            return builder->leader_adopters[i] == adopter || adopter == WHOEVER ? builder->leader_nodes[i] : -1;
    int node = add_stand_in(builder, (struct tree_node){ .pid = session, .kind = NODE_STEP, .new_session = 1 }, member, &member->sessions);
    if (adopter == WHOEVER)
        adopter = first_of(builder, builder->where[node]);
    adopt(builder, adopter, node);
    int n = ++builder->leader_count;
    builder->leaders = must_grow(builder->leaders, (size_t)n * sizeof(int));
    builder->leader_nodes = must_grow(builder->leader_nodes, (size_t)n * sizeof(int));
    builder->leader_adopters = must_grow(builder->leader_adopters, (size_t)n * sizeof(int));
    builder->leaders[n - 1] = session;
    builder->leader_nodes[n - 1] = node;
    builder->leader_adopters[n - 1] = adopter;
    return node;
}

static bool descends_from(const struct process *process, const struct process *ancestor)
{
    for (; process; process = process->parent)
        if (process == ancestor)
            return true;
    return false;
}

static const struct process *member_of(const struct world *world, int session)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->ns_session == session)
            return world->processes[i];
    return NULL;
}

/* The node below which a process without a suitable parent can be forked into `session`, so that `adopter` becomes its parent; -1 = there is none. */
static int node_in_session(struct builder *builder, int session, const struct process *adopter)
{
    const struct process *leader = process_by_ns_pid(builder->world, session), *member = member_of(builder->world, session);
    if ((!leader || !leads_session(leader)) && member)
        return stand_in(builder, member, adopter->index);
    if (!leader || !descends_from(leader, adopter))
        return -1;
    if (leader->zombie)         /* its node ends by itself once everybody is in place */
        return leader->index;
    return add_step(builder, leader->index);
}

/* The session that a process must be forked in; 0 = any. */
static int session_of_birth(const struct builder *builder, const struct process *process)
{
    return leads_session(process) ? builder->before[process->index] : process->ns_session;
}

static bool has_members_elsewhere(const struct world *world, int session, const struct process *ancestor)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->ns_session == session && !descends_from(world->processes[i], ancestor))
            return true;
    return false;
}

/*
 * A process that is in another session than its parent S, which leads one: either S forked it, or its ancestors, before it led a session, and then S
 * must itself be forked in that session; or the session was founded by a descendant of S. Children come before their parents here, since what a
 * process needs decides what its parent needs.
 */
static int plan_birth(struct builder *builder, const struct process *process, struct error *err)
{
    const struct process *parent = process->parent;
    int session = session_of_birth(builder, process);
    if (!parent || !session || session == parent->ns_session || !leads_session(parent))
        return 0;
    const struct process *leader = process_by_ns_pid(builder->world, session);
    bool from_below = leader && leads_session(leader) ? descends_from(leader, parent) : !has_members_elsewhere(builder->world, session, parent);
    if (from_below)
        return 0;
    int *before = &builder->before[parent->index];
    if (*before && *before != session)
        return fail(err, "unsupported", "%s has children in the sessions %d and %d, which cannot be made again; end one of them before the fork",
                    process_label(parent), *before, session);
    *before = session;
    return 0;
}

static int place_process(struct builder *builder, struct process *process, struct error *err)
{
    struct tree_node *node = &builder->nodes[process->index];
    const struct process *parent = process->parent;
    int session = session_of_birth(builder, process);
    if (!parent)
        return 0;
    if (!session || parent->ns_session == session) {
        if (nest_before_parent(process))
            node->before = BEFORE_NAMESPACES;
        adopt(builder, parent->index, process->index);
        return 0;
    }
    if (leads_session(parent) && builder->before[parent->index] == session) {
        node->before = BEFORE_SESSION;
        adopt(builder, parent->index, process->index);
        return 0;
    }
    int below = node_in_session(builder, session, parent);
    if (below < 0)
        return fail(err, "unsupported", "%s was handed to %s from the session %d, in a way that cannot be made again; end it before the fork",
                    process_label(process), process_label(parent), session);
    if (builder->world->namespaces->nested && builder->where[below] != process->namespaces[NAMESPACE_PID])
        return fail(err, "unsupported", "%s is an orphan in a session of another pid namespace, which cannot be forked", process_label(process));
    if (parent->parent && inner_pid(parent) != 1)
        builder->nodes[parent->index].adopts = 1;
    adopt(builder, below, process->index);
    return 0;
}

/* A group whose leader has ended needs somebody with that pid while the others join it. */
static void hold_group(struct builder *builder, const struct process *process)
{
    int group = group_to_join(process);
    if (group == 0 || process_by_ns_pid(builder->world, group))
        return;
    for (int i = 0; i < builder->count; i++)
        if (builder->nodes[i].pid == group && builder->nodes[i].kind == NODE_GROUP)
            return;
    for (int i = 0; i < builder->leader_count; i++)
        if (builder->leaders[i] == group)
            builder->nodes[builder->leader_nodes[i]].kind = NODE_GROUP;     /* the ended session leader leads the group too */
    for (int i = 0; i < builder->leader_count; i++)
        if (builder->leaders[i] == group)
            return;
    int step;
    struct process *leader = process_by_ns_pid(builder->world, process->ns_session);
    step = leader && !leader->zombie ? add_step(builder, leader->index) : stand_in(builder, process, WHOEVER);
    int holder = add_stand_in(builder, (struct tree_node){ .pid = group, .kind = NODE_GROUP, .group = group }, process, &process->groups);
    adopt(builder, step, holder);
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/*
 * The id that was given out last (parts/next_pid.c), at least the highest in use. Steps and creators, which take any pid, get theirs above it: so
 * it must cover every id that some node still wants, also those of zombies and of leaders that have ended.
 */
int tree_last_pid(const struct world *world)
{
    const struct process *first = process_by_ns_pid(world, 1);
    int last = first && first->state ? first->state->last_pid : 0;
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        last = larger(last, larger(process->ns_pid, larger(process->ns_group, process->ns_session)));
        for (int k = 0; k < process->thread_count; k++)
            last = larger(last, process->threads[k].ns_tid);
    }
    return last;
}

/* So far ids were those of the workspace's own pid namespace; each node calls itself and its group as its own pid namespace does. */
static int number_inside(struct builder *builder, struct error *err)
{
    struct world *world = builder->world;
    for (int i = 0; i < builder->count; i++) {
        struct tree_node *node = &builder->nodes[i];
        if (i < world->process_count) {
            const struct process *process = world->processes[i];
            node->nest = nest_of_process(builder->plan, process, err);
            if (!node->nest)
                return -1;
            if (node->group)
                node->group = process->groups.at[process->groups.count - 1];
        }
        const struct arena_nest *nest = plan_local(builder->plan, node->nest);
        node->pid = nest->pids[0];
        if (node->kind == NODE_GROUP)
            node->group = node->pid;
    }
    return 0;
}

int tree_plan(struct plan *plan, struct arena_control *control, struct error *err)
{
    struct world *world = plan->world;
    struct builder builder = { .plan = plan, .world = world };
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        add_node(&builder, (struct tree_node){
            .pid = process->ns_pid, .kind = process->zombie ? NODE_ZOMBIE : NODE_PROCESS,
            .new_session = leads_session(process) && i > 0, .group = group_to_join(process),
            .exit_code = process->exit_code, .exit_signal = process->exit_signal, .uid = process->zombie_uid, .shares_fs = process->shares_fs,
            .session_batch = plan->session[i].count ? batch_place(&plan->session[i]) : 0,
        }, process->namespaces[NAMESPACE_PID]);
        memcpy(builder.nodes[i].name, process->zombie_name, sizeof process->zombie_name);
    }
    AUTO_FREE int *before = builder.before = must_alloc((size_t)world->process_count * sizeof *before);
    for (int i = world->process_count - 1; i >= 0; i--)
        if (plan_birth(&builder, world->processes[i], err) < 0)
            return -1;
    for (int i = 0; i < world->process_count; i++)
        if (place_process(&builder, world->processes[i], err) < 0)
            return -1;
    for (int i = 0; i < world->process_count; i++)
        hold_group(&builder, world->processes[i]);
    if (world->namespaces->nested && number_inside(&builder, err) < 0)
        return -1;
    uint32_t counted = 0;
    for (int i = 0; i < builder.count; i++)
        counted += builder.nodes[i].kind != NODE_STEP;
    control->node_count = counted;
    control->array_length = (uint32_t)builder.count;
    control->nodes = plan_data(plan, builder.nodes, (size_t)builder.count * sizeof *builder.nodes);
    control->last_pid = tree_last_pid(world);
    free(builder.nodes);
    free(builder.where);
    free(builder.leaders);
    free(builder.leader_nodes);
    free(builder.leader_adopters);
    return 0;
}
